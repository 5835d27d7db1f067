# SPDX-License-Identifier: Apache-2.0
"""Steps: what Adam and AdamW do beside torch's classes. `param_groups` and `state` are read at every step."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import defaultdict
from itertools import chain
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor
from torch.optim import optimizer as _torchs

from .. import _threads
from .._cohort import Cohort
from .._host_copies import local
from .._library import SQUARES_WORDS, InvalidArgument, Report, Unavailable
from .._put_off import PutOff, refuse_without
from .._quantized8 import is_quantized, moments
from .._ranks import Gradient, Ranks, norm_of, zero_redundancy_group
from .._signals import whole
from .._split_masters import masters
from .._signature_module import CHANGED, HYPER_CHANGED, NEW_GRADIENT, NO_GRADIENT, new_signature
from ..executor import Executor, shared_executor
from ..optimizer import add_squares
from ._arguments import Arguments, check_format, check_group, check_param, formats
from ._state import (check_hyper, check_state, complete_state, count_tensor, loaded_state, settle_count)

# The classes as they are now: somebody may put ours in their places.
torch_adam, torch_adamw = torch.optim.Adam, torch.optim.AdamW

# Whose hooks count, by the param's id: those of the optimizer that was made last.
_owners: "weakref.WeakValueDictionary[int, Steps]" = weakref.WeakValueDictionary()


def _remove(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()


class _OpenStep:
    """A step that backward has begun: which gradients were submitted, and as which version."""

    def __init__(self, cohort: Cohort):
        self.cohort = cohort
        self.submitted: Dict[int, Tuple[Tensor, int, int]] = {}  # by the shard's number: gradient, its version and address
        self.versions: Dict[int, Any] = {}  # of params and states, when they were submitted
        self.kept: List[Any] = []  # storages that the library works on
        self.hyper_changed = False  # since the step began, or was then and is not now
        self.fits = True  # every gradient so far could be taken as it lies


class Steps:
    """What Adam and AdamW have beside torch's classes."""

    state: Any
    param_groups: List[Dict[str, Any]]

    def _set_up(self, process_group: Any, arguments: Arguments) -> None:
        arguments.check(process_group)
        for g, group in enumerate(self.param_groups):
            check_group(group, g)
        if process_group is None and arguments.needs_norm:
            process_group = zero_redundancy_group()
        self._process_group, self._arguments = process_group, arguments
        self._check_params()
        self._begin()

    def _check_params(self) -> None:
        for g, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for i, param in enumerate(group["params"]):
                check_param(param, f"group{g}.{names[i] if names else i}")

    def __repr__(self) -> str:
        given = self._arguments.given() if hasattr(self, "_arguments") else {}
        if given.get("zenflow") is not None:
            given["zenflow"] = self._arguments.zenflow
        own = "".join(f"    {name}: {value}\n" for name, value in sorted(given.items()))
        return super().__repr__()[:-1] + (f"adamant\n{own}" if own else "") + ")"

    def _begin(self) -> None:
        # A GradScaler then leaves gradients alone, and says by attributes that it steps; see _check_sums(). Otherwise it
        # unscales p.grad before, as for torch's own classes.
        self._step_supports_amp_scaling = self._arguments.accumulate > 1
        self._watched: Dict[int, Tensor] = {}  # params with hooks, by id
        self._handles: List[Any] = []
        weakref.finalize(self, _remove, self._handles)
        self._may_be_averaged = True  # until that was looked for
        self._lock = threading.RLock()  # backward calls hooks in a thread for each device
        self._signature = new_signature()
        self._ranks = Ranks(self._process_group) if self._process_group is not None else None
        self._norm_of_others = 0.0  # of a step in which this rank has no gradients
        # Weights in host memory of params that are elsewhere, by the param's id, beside the param itself.
        self._mirrors: Dict[int, Tuple[Tensor, Tensor]] = {}
        self._versions: Dict[int, Tuple[Any, ...]] = {}  # of params whose weights are elsewhere, too, when both were the same
        given = self._arguments.zenflow
        self._put_off = PutOff(given) if given is not None else None
        self._forget()
        self._watch()

    def _forget(self) -> None:
        """Drops what is known about params, which the next step then looks at anew."""
        self._cohorts: Optional[List[Cohort]] = None
        self._open: Optional[_OpenStep] = None
        self._joint: Optional[Tensor] = None  # the words of all cohorts' sum of squares, where there are several
        self._hyper_is_taken = True
        self._overlaps = True  # until the step under way turned out not to
        self._backwards: Dict[int, int] = {}  # how many gradients of this step a param has had, by its id
        self._made: Dict[int, Tuple[int, int]] = {}  # address and version of the last of them
        self._moved: Set[int] = set()  # params whose gradients went to their sums, and that have no other yet
        self.last_report: Optional[Report] = None

    # Set-up of steps

    def _executor(self) -> Executor:
        own = self._arguments
        if own.cores is None and own.cpuadam_cores_perc is None:
            return shared_executor(threads=own.threads)
        return _threads.executor_apart(own.cores, own.cpuadam_cores_perc, own.threads)

    @property
    def _needs_norm(self) -> bool:
        return self._arguments.needs_norm

    def _reduce(self, words: Any) -> None:
        """What the library calls with a cohort's sum of squares, to get that of all gradients of all ranks."""
        given = torch.frombuffer(words, dtype=torch.int64)
        if self._joint is None:
            # A copy, as a process group's thread may be the last to drop it, which must not take Python's lock then.
            total = given.clone()
            self._add_over_ranks(total)
        given.copy_(total if self._joint is None else self._joint)

    def _reduce_columns(self, numbers: Any, how: str) -> None:
        """What the library calls with numbers of columns, to get their sums over all ranks, or the largest."""
        given = torch.frombuffer(numbers, dtype=torch.int64)
        total = given.clone()
        if self._ranks is not None:
            self._ranks.reduce(total, how)
        given.copy_(total)

    def _add_over_ranks(self, words: Tensor) -> None:
        """Has these words count the gradients of all ranks, replicated ones once."""
        if self._ranks is None:
            return
        places = {id(param): (cohort, number) for cohort in self._cohorts or [] for number, param in enumerate(cohort.params)}
        gradients, seen = [], set()
        for g, param in self._all_params():
            if id(param) in seen:
                continue
            seen.add(id(param))
            values = None
            if param.grad is not None:
                cohort, number = places.get(id(param), (None, 0))
                values = (local(param.grad.detach()).to("cpu").contiguous() if cohort is None else
                          cohort.whole_gradient(number, local(param.grad)))
            gradients.append(Gradient(self._name(param), param, values, self.param_groups[g].get("replicated")))
        self._ranks.add_up(words, gradients)

    def _hyper(self, group: int) -> Dict[str, Any]:
        of = self.param_groups[group]
        return {"lr": float(of["lr"]), "betas": (float(of["betas"][0]), float(of["betas"][1])),
                "eps": float(of["eps"]), "weight_decay": float(of["weight_decay"]),
                "decoupled": of.get("decoupled_weight_decay", isinstance(self, torch_adamw)),
                **{name: getattr(self._arguments, name) for name in ("exp_avg_sq_rounding", "param_rounding", "rounding_seed")}}

    def _name(self, param: Tensor) -> str:
        for g, group in enumerate(self.param_groups):
            for i, each in enumerate(group["params"]):
                if each is param:
                    names = group.get("param_names")
                    return f"group{g}.{names[i] if names else i}"
        return "param"

    def _init_state(self, group: int, param: Tensor) -> None:
        check_param(param, self._name(param))
        complete_state(self, group, param)

    def _format_of(self, group: Dict[str, Any]) -> Optional[str]:
        return group.get("state_format") or self._arguments.state_format

    def _all_params(self) -> List[Tuple[int, Tensor]]:
        return [(g, param) for g, group in enumerate(self.param_groups) for param in group["params"]]

    def _look(self) -> List[Cohort]:
        """Sorts params by the steps they have taken; those without gradients are left alone."""
        self._refuse_with_sums("params, states or types of gradients are others now")
        self._refuse_groups()
        everything = self._all_params()
        known = {id(param) for _, param in everything}
        for of in (self._mirrors, self._versions):
            for gone in of.keys() - known:
                del of[gone]
        self._cohorts = None
        made = self._cohorts_of([each for each in everything if each[1].grad is not None])
        self._record(made)
        return made

    def _record(self, cohorts: List[Cohort]) -> None:
        """Takes groups, states and addresses as they are now for those that the step groups were made of."""
        slots, first = {}, 0
        for cohort in cohorts:
            cohort.first_slot = first
            slots.update({id(param): first + number for number, param in enumerate(cohort.params)})
            first += len(cohort.params)
        # A param that is there twice is stepped once.
        numbers = [slots.pop(id(param), -1) for _, param in self._all_params()]
        self._entry = {number: entry for entry, number in enumerate(numbers) if number >= 0}
        states = self.state if isinstance(self.state, dict) else dict(self.state)
        self._signature.record(self.param_groups, states, numbers)

    def _check(self) -> int:
        return self._signature.check(self.param_groups, self.state)

    def _widen_count(self, entry: int) -> None:
        """Has a step count in a dtype that holds the next ones exactly."""
        state = self.state[self._all_params()[entry][1]]
        state["step"] = count_tensor(int(state["step"]))
        self._cohorts = None

    def _refuse_groups(self) -> None:
        for g, group in enumerate(self.param_groups):
            check_group(group, g)

    def _refuse_sparse(self, param: Tensor) -> None:
        if param.grad is not None and param.grad.is_sparse:
            raise RuntimeError(f"{self._name(param)} has a sparse gradient, but Adam needs dense ones; consider "
                               "torch.optim.SparseAdam")

    def _refuse_with_sums(self, what: str) -> None:
        if any(cohort.summed for cohort in self._cohorts or []):
            raise InvalidArgument(f"gradients of earlier backward() calls were added up, but {what}; call step() before "
                                  "that, or zero_grad() to begin anew")

    def _cohorts_of(self, members: List[Tuple[int, Tensor]]) -> List[Cohort]:
        by_steps: Dict[int, List[Tuple[int, Tensor]]] = {}
        seen: Set[int] = set()
        counts: Set[int] = set()
        for g, param in members:
            self._refuse_sparse(param)
            if id(param) in seen:
                continue
            seen.add(id(param))
            self._init_state(g, param)
            state = self.state[param]
            steps = settle_count(state, self._name(param))
            if state["step"].data_ptr() in counts:  # each param counts by itself
                state["step"] = count_tensor(steps)
            counts.add(state["step"].data_ptr())
            by_steps.setdefault(steps, []).append((g, param))
        # Where gradients are added up, more params may join before the step.
        alone = len(by_steps) == 1 and self._arguments.accumulate == 1
        return [Cohort(self, steps, some, alone) for steps, some in sorted(by_steps.items())]

    # Steps

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step over all params that have a gradient.

        Args:
            closure: is called first, with gradients enabled, to compute the loss again.

        Returns the closure's loss, or without one, where max_norm is set, the norm of all gradients before clipping,
        as a tensor of one double. `last_report` has more about the step.

        Raises:
            InvalidArgument: a param or a gradient that cannot be taken as it lies; nothing has changed.
        """
        if (self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks  # type: ignore[attr-defined]
                or _torchs._global_optimizer_pre_hooks or _torchs._global_optimizer_post_hooks
                or torch.autograd._profiler_enabled()):
            return self._step_with_hooks(*(() if closure is None else (closure,)))
        return self._step(closure)

    # torch's wrapper, which otherwise takes longer than a small step, is left out where nothing needs it.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with whole:
            if self._arguments.accumulate > 1:
                self._check_sums()
            try:
                report = (self._put_off.step(self) if self._put_off is not None else
                          self._finish() if self._open is not None else self._step_all())
            finally:
                self._signature.release()
            self._overlaps = True
            self._begin_gradients()
            self.last_report = report
        if closure is None and self._arguments.max_norm is not None:
            return torch.tensor(self._norm_of_others if report is None else report.global_norm, dtype=torch.float64, device="cpu")
        return loss

    _step_with_hooks = torch.optim.Optimizer.profile_hook_step(_step)

    def _step_all(self) -> Optional[Report]:
        cohorts = self._cohorts
        known, self._hyper_is_taken = self._hyper_is_taken, True
        bits = CHANGED if cohorts is None or not all(cohort.is_usable for cohort in cohorts) else self._check()
        if bits & CHANGED or bits & NO_GRADIENT and self._arguments.accumulate == 1:
            cohorts = self._cohorts = self._look()
        elif bits & NEW_GRADIENT:
            if any(cohort.summed for cohort in cohorts or []):
                self._join()
            else:
                self._cohorts = self._look()
            cohorts = self._cohorts
        assert cohorts is not None
        if bits or not known:
            for cohort in cohorts:
                cohort.take_hypers(self)
        if self._needs_norm and len(cohorts) != 1:
            self._joint = self._words_of(cohorts, [[local(param.grad) if param.grad is not None else None
                                                    for param in cohort.params] for cohort in cohorts])
        report = None
        try:
            for cohort in cohorts:
                report = cohort.step(self)
        finally:
            self._joint = None
        if self._arguments.accumulate > 1 and (len(cohorts) != 1 or cohorts[0].last_left_out):
            self._cohorts = None  # params that have taken equally many steps by now go together
        return report

    def _words_of(self, cohorts: List[Cohort], grads: List[List[Optional[Tensor]]]) -> Tensor:
        """The sum of squares of all gradients of all ranks, as words. Every rank adds up once a step, also one that has
        no gradients."""
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64, device="cpu")
        for cohort, of_cohort in zip(cohorts, grads):
            for number, grad in enumerate(of_cohort):
                if grad is not None:
                    add_squares(cohort.whole_gradient(number, grad), words, self._executor())
        self._add_over_ranks(words)
        self._norm_of_others = norm_of(words)
        return words

    # Gradients that backward brings

    def _watch(self) -> None:
        if not self._arguments.overlap and self._arguments.accumulate == 1:
            for _, param in self._all_params():
                _owners[id(param)] = self
            return
        me = weakref.ref(self)

        def before(number: int) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                it = me()
                if it is not None and _owners.get(number) is it:
                    with whole, it._lock:
                        if number in it._watched:
                            it._before_gradient(it._watched[number])
            return hook

        def after(param: Tensor) -> None:
            it = me()
            if it is not None and _owners.get(id(param)) is it:
                with whole, it._lock:
                    if id(param) in it._watched:
                        it._after_gradient(param)
        if self._watched:
            current = {id(param) for _, param in self._all_params()}
            for number in [number for number in self._watched if number not in current]:
                del self._watched[number]
        for _, param in self._all_params():
            if param.requires_grad and id(param) not in self._watched:
                self._watched[id(param)] = param
                self._may_be_averaged = True
                _owners[id(param)] = self
                self._handles += [param.register_hook(before(id(param))),
                                  param.register_post_accumulate_grad_hook(after)]

    def _refuse_to_be_averaged(self) -> None:
        """DistributedDataParallel averages gradients when these hooks have seen them."""
        self._may_be_averaged = False
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        parallel = torch.nn.parallel.DistributedDataParallel
        for each in gc.get_objects():
            if issubclass(type(each), parallel) and any(id(param) in self._watched for param in each.parameters()):
                self._may_be_averaged = True
                raise InvalidArgument("a param belongs to a DistributedDataParallel, which averages gradients after "
                                      "backward has made them, but overlap=True and accumulate take them before; leave "
                                      "these out, or shard the model with FSDP2")

    def _begin_gradients(self) -> None:
        self._backwards.clear()
        self._made.clear()
        self._moved.clear()

    def _before_gradient(self, param: Tensor) -> None:
        """Before backward adds to a param's gradient, or sets it. FSDP2 does so without calling this."""
        if not self._backwards:
            self._watch()  # params that have begun to want gradients, or belong to no group now
            if id(param) not in self._watched:
                return
        if self._may_be_averaged:
            self._refuse_to_be_averaged()
        if self._open is not None and self._open.cohort.number.get(id(param)) in self._open.submitted:
            self._refuse_one_more()
        if self._arguments.accumulate > 1:
            with torch.no_grad():
                self._check_sum(param)
                if param.grad is not None:
                    self._add_up(param)

    def _after_gradient(self, param: Tensor) -> None:
        """When backward has set a param's gradient, or added to it."""
        if param.grad is not None:
            self._made[id(param)] = (local(param.grad).data_ptr(), param.grad._version)
        self._moved.discard(id(param))
        self._backwards[id(param)] = self._backwards.get(id(param), 0) + 1
        if self._arguments.overlap and self._overlaps and self._backwards[id(param)] >= self._arguments.accumulate:
            self._on_gradient(param)

    def _refuse_one_more(self) -> None:
        # Whatever forward has read since then may be params of before or after the step.
        self._abandon("backward() is called once more")
        often = f"{self._arguments.accumulate} backward() calls" if self._arguments.accumulate > 1 else "one backward()"
        raise InvalidArgument(f"backward() is called again before step(), but with overlap=True the step began after "
                              f"{often}. Params and moments are as before it again, and this step's gradients are of "
                              "no use. Call step() in time, or set overlap=False to add gradients up. "
                              "checkpoint(use_reentrant=True) calls backward() by itself; False does not")

    # Sums of gradients

    def _check_sums(self) -> None:
        if hasattr(self, "found_inf"):
            for name in ("grad_scale", "found_inf"):
                if hasattr(self, name):
                    delattr(self, name)
            raise InvalidArgument("a GradScaler steps this optimizer, but it unscales and looks at the last gradient alone, "
                                  "and accumulate takes a sum; scale the loss by hand, use bfloat16, or set accumulate=1")
        for cohort in self._cohorts or []:
            for number in sorted(cohort.summed):
                param = cohort.params[number]
                self._check_sum(param)
                if param.grad is None and number in cohort.summed:  # autograd.grad() has come after the last gradient
                    param.grad = torch.zeros_like(param, dtype=cohort.dtypes[number])

    def _check_sum(self, param: Tensor) -> None:
        """Raises where the last gradient, which is a part of the sum, was changed; forgets all sums where all gradients
        were dropped, as zero_grad() of a model does."""
        cohort = self._cohort_of(param)
        if cohort is None or cohort.number[id(param)] not in cohort.summed:
            return
        if param.grad is None:
            if id(param) in self._moved:
                return
            dropped = [p.grad is None and id(p) not in self._moved for c in self._cohorts or []
                       for p in (c.params[number] for number in c.summed)]
            if not all(dropped):
                raise InvalidArgument(f"the gradient of {self._name(param)} was set to None while gradients are added up, "
                                      "and others were not; call the optimizer's zero_grad() to begin anew")
            self._forget_sums()
        elif (local(param.grad).data_ptr(), param.grad._version) != self._made.get(id(param)):
            raise InvalidArgument(f"the gradient of {self._name(param)} was changed after backward() had made it, but with "
                                  "accumulate it is only the last part of a sum. To clip, set max_norm; to change "
                                  "gradients, set accumulate=1")

    def _forget_sums(self) -> None:
        for cohort in self._cohorts or []:
            cohort.forget_sums()
        self._begin_gradients()

    def _add_up(self, param: Tensor) -> None:
        """The gradient that is there goes to the param's float32 sum."""
        cohorts = self._cohorts
        if cohorts is None or not all(cohort.is_usable for cohort in cohorts) or (
                not any(cohort.summed for cohort in cohorts) and self._check_early() & CHANGED):
            self._cohorts = self._look()
        cohort = self._cohort_of(param)
        if cohort is None:
            self._join()
            cohort = self._cohort_of(param)
        grad = param.grad
        assert cohort is not None and grad is not None
        number = cohort.number[id(param)]
        if not cohort.fits(number, local(grad)):
            self._cohorts = self._look()  # raises where something has been added up
            return self._add_up(param)
        cohort.accumulate(number, local(grad))
        param.grad = None
        self._moved.add(id(param))

    def _cohort_of(self, param: Tensor) -> Optional[Cohort]:
        return next((cohort for cohort in self._cohorts or [] if id(param) in cohort.number), None)

    def _join(self) -> None:
        """Params that have their first gradient go with the others into this step."""
        with torch.no_grad():
            new = [(g, param) for g, param in self._all_params()
                   if param.grad is not None and self._cohort_of(param) is None]
            assert self._cohorts is not None
            self._cohorts += self._cohorts_of(new)
        self._record(self._cohorts)

    def _on_gradient(self, param: Tensor) -> None:
        """Submits the gradient that backward has just made."""
        if self._open is None:
            cohorts = self._cohorts
            if not cohorts or len(cohorts) != 1 or not cohorts[0].is_usable:
                return  # the first step, and steps of params that have not been stepped equally often, wait
            number = cohorts[0].number.get(id(param))
            if number is None:
                return
            if self._check_early() & CHANGED or not self._is_as_recorded(cohorts[0], number):
                self._overlaps = False  # step() takes all of them
                return
            cohorts[0].take_hypers(self)
            cohorts[0].begin(self)
            self._open = _OpenStep(cohorts[0])
        step = self._open
        number = step.cohort.number.get(id(param))
        grad = local(param.grad) if param.grad is not None else None
        if number is None:
            return  # has its first gradient, see _finish()
        if number in step.submitted:  # FSDP2 has added to it
            self._refuse_one_more()
        if grad is None or not self._is_as_recorded(step.cohort, number):
            step.fits = False
            return
        step.versions[number] = self._versions_of(param)
        assert param.grad is not None
        storages = [local(tensor.detach()).untyped_storage() for tensor in (param, param.grad, *self._tensors_of(param))]
        step.kept += [(storage, storage.data_ptr()) for storage in storages]
        step.cohort.native.keep(storages)
        step.cohort.submit(number, grad)
        step.submitted[number] = (param.grad, param.grad._version, local(param.grad).data_ptr())

    def _check_early(self) -> int:
        """_check() before step(), which has to take hyperparameters over later."""
        bits = self._check()
        self._signature.release()
        self._hyper_is_taken = False
        return bits

    def _is_as_recorded(self, cohort: Cohort, number: int) -> bool:
        return self._signature.check_one(self.param_groups, self.state, self._entry[cohort.first_slot + number])

    def _tensors_of(self, param: Tensor) -> List[Tensor]:
        state = self.state.get(param)
        return [state[name] for name in (*moments, *masters) if name in state] if isinstance(state, dict) else []

    def _versions_of(self, param: Tensor) -> Any:
        return [(tensor._version, local(tensor.detach()).data_ptr()) for tensor in (param, *self._tensors_of(param))]

    def _abandon(self, why: str) -> None:
        step = self._open
        assert step is not None
        try:
            step.cohort.abandon()
        except Unavailable:
            raise InvalidArgument(f"{why}, but with overlap=True backward() has begun a step, which cannot be given up "
                                  "without max_norm. Call step() first, with the hyperparameters that it began with; it "
                                  "steps what has a gradient. Or set overlap=False") from None
        self._open = None
        self._overlaps = False

    def _refuse_changed(self, what: str) -> None:
        """Ends a step that backward has begun with params, states or groups that are others now."""
        step, self._open = self._open, None
        assert step is not None
        self._cohorts = None
        if all(storage.data_ptr() == address for storage, address in step.kept):
            try:
                step.cohort.abandon()
            except Unavailable:
                pass
            step.cohort.native.close()
        else:  # closing would write before the step's values to memory that was given back
            step.cohort.native.leak()
        raise InvalidArgument(f"cannot finish the step that backward() began: {what}, but with overlap=True params and states are "
                              "written from backward() on, and may be of before the step or of after it. Load a state. Change "
                              "params, gradients, groups and states before backward() or after step(), or set overlap=False")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A step that backward has begun is given up first, and sums are forgotten."""
        self._settle("zero_grad() is called")
        self._forget_sums()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    @property
    def _can_abandon(self) -> bool:
        """Whether the library keeps what it takes to undo a step that is open."""
        return self._needs_norm

    def _changed_since_submitted(self, step: _OpenStep) -> Optional[str]:
        """Which of the params submitted was changed since then, it or its state; None: none was."""
        if not isinstance(self.param_groups, list):
            return "param_groups is no list"
        present = {id(param) for _, param in self._all_params()}
        for number in step.submitted:
            param = step.cohort.params[number]
            if id(param) not in present:
                if not self._can_abandon:
                    return f"{step.cohort.names[number]} is in no group now"
                continue
            grad, *known = step.submitted[number]
            if param.grad is not grad or [grad._version, local(grad).data_ptr()] != known:
                return (f"the gradient of {self._name(param)} was changed after backward() had made it (to clip gradients, set "
                        "max_norm)")
            if self._versions_of(param) != step.versions[number]:
                return f"{self._name(param)} or its state was changed"
        return None

    def _finish(self) -> Optional[Report]:
        step = self._open
        assert step is not None
        cohort = step.cohort
        changed = self._changed_since_submitted(step)
        present = {id(param) for _, param in self._all_params()}
        for number, param in enumerate(cohort.params):
            if changed is None and number not in step.submitted and param.grad is not None and id(param) in present:
                if self._is_as_recorded(cohort, number):
                    cohort.submit(number, local(param.grad))
                    step.submitted[number] = (param.grad, param.grad._version, local(param.grad).data_ptr())
                else:
                    step.fits = False
        newcomers = any(param.grad is not None and id(param) not in cohort.number for _, param in self._all_params())
        bits = self._check()
        self._hyper_is_taken = False
        if changed is not None:
            self._refuse_changed(changed)
        if bits & CHANGED or not step.fits:
            if not self._can_abandon:
                self._refuse_changed("params, groups, states or dtypes of gradients are others now")
            self._abandon("params have changed")
            return self._step_all()
        step.hyper_changed = step.hyper_changed or bool(bits & HYPER_CHANGED)
        if newcomers and self._needs_norm or step.hyper_changed and not cohort.has_hypers(self):
            self._abandon("hyperparameters are others than when backward began the step")
            return self._step_all()
        left_out = [number for number in range(len(cohort.params)) if number not in step.submitted]
        self._open = None  # finish() gives it up where it fails
        report = cohort.finish(left_out, self)
        if newcomers:
            self._join()
            for other in (self._cohorts or [])[1:]:
                report = other.step(self)
        if left_out or newcomers:
            self._cohorts = None  # whoever has taken equally many steps from now on goes together
        return report

    # State

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch's."""
        if not hasattr(self, "_arguments"):
            super().add_param_group(param_group)  # type: ignore[misc]
            return
        self._refuse_with_sums("a group is added")
        self._settle("add_param_group() is called")
        super().add_param_group(param_group)  # type: ignore[misc]
        try:
            check_group(self.param_groups[-1], len(self.param_groups) - 1)
            self._check_params()
        except BaseException:
            self.param_groups.pop()
            raise
        self._forget()
        self._watch()

    def _settle(self, what: str) -> None:
        """Gives up a step that backward has begun; its gradients stay, and step() then takes all of it."""
        if self._open is not None:
            with whole:
                self._abandon(what)
                self._overlaps = True

    def land(self) -> None:
        """With zenflow, waits for what was put off in the last window, and has weights that are behind their masters catch
        up: before an evaluation, before weights are written, and at the end of training. A run in which that is done
        goes on with other bits than one in which it is not. Without zenflow there is nothing to do."""
        if self._put_off is not None:
            with whole:
                self._put_off.land(self)

    def take_weights(self) -> None:
        """Has all weights count as they are: after somebody has written them by way of `param.data`, which torch does not
        tell, where there are masters or params are on a GPU. With zenflow also those that are behind their masters and
        would catch up later: after somebody has written them without land() before."""
        self._versions.clear()
        if self._put_off is not None:
            with whole:
                self._put_off.take_weights(self)

    def state_dict(self) -> Dict[str, Any]:
        """As torch's, with its keys, and "master_param" or "master_low" where there are masters. With zenflow
        states have more, see the class."""
        self._settle("state_dict() is called")
        if self._put_off is None:
            return super().state_dict()  # type: ignore[misc]
        put_off = self._put_off
        with whole:
            put_off.save()

        def without_copies(_: Any, made: Dict[str, Any]) -> Dict[str, Any]:
            return {**made, "state": put_off.saved(made["state"])}
        ours = self.register_state_dict_post_hook(without_copies, prepend=True)  # type: ignore[attr-defined]
        try:
            return super().state_dict()  # type: ignore[misc]
        finally:
            ours.remove()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As torch's, from its classes and from these; states keep the types that they were saved in. With zenflow also
        from those without: nothing is put off then, and all columns have taken the param's steps. Raises InvalidArgument
        where a state_format is given, and one of it and of the states is quantized8, or has masters in two halves where
        the other has whole ones; and for a state of zenflow without that. Nothing has changed then."""
        self._refuse_with_sums("a state is loaded")
        self._settle("load_state_dict() is called")
        given = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():  # type: ignore[attr-defined]
            changed = hook(self, given)
            if changed is not None:
                given = changed
        saved = copy.deepcopy(given["param_groups"])
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for g, group in enumerate(saved):
            check_hyper(group, g)
            if len(group["params"]) != len(self.param_groups[g]["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
            check_group(group, g)
        param_of = self._params_by_number(given)
        for key, values in given["state"].items():
            if key in param_of:
                check_state(self._name(param_of[key]), param_of[key], values)
        self._check_formats(given)
        if self._put_off is None:
            refuse_without(given)
        else:
            self._put_off.check(self, given)
        states: Any = defaultdict(dict)
        for key, values in given["state"].items():
            param = param_of.get(key)
            states[key if param is None else param] = (copy.deepcopy(values) if param is None else
                                                       loaded_state(values, param, self._name(param)))
        groups = []
        for group, new in zip(self.param_groups, saved):
            names = {"param_names": group["param_names"]} if "param_names" in group and "param_names" not in new else {}
            groups.append({**new, **names, "params": group["params"]})
        self.__setstate__({"state": states, "param_groups": groups})
        if self._put_off is not None:
            self._put_off.forget(self.state.values())
        self._versions.clear()
        self._forget()
        for after in self._optimizer_load_state_dict_post_hooks.values():  # type: ignore[attr-defined]
            after(self)

    def _params_by_number(self, state_dict: Dict[str, Any]) -> Dict[Any, Tensor]:
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        return dict(zip(numbers, (param for _, param in self._all_params())))

    def _check_formats(self, incoming: Dict[str, Any]) -> None:
        """Raises where states are quantized8, or have masters in two halves, and state_format says otherwise, or the other
        way round."""
        params = iter([param for _, param in self._all_params()])
        for g, group in enumerate(incoming["param_groups"]):
            asked = self._format_of(group)
            check_format(asked)
            for i, number in enumerate(group["params"]):
                param, state = next(params, None), incoming["state"].get(number, {})
                if asked is None or param is None:  # torch says that there are too many
                    continue
                splits, kind = formats[asked]
                eight = kind == torch.uint8
                other = next((value for name, value in state.items() if name in moments and is_quantized(value) != eight), None)
                if other is not None:
                    has = f"moments of {other.dtype}{'' if eight else ', which is quantized8'}"
                    how = "quantized(state)" if eight else "dequantized(state, param)"
                elif "master_low" in state and not splits:
                    has, how = "a master in two halves", "joined_master(state, param)"
                elif "master_param" in state and splits and param.dtype == torch.bfloat16:
                    has, how = "a master of float32", "split_master(state, param)"
                else:
                    continue
                raise InvalidArgument(f"the state of group{g}.{i} has {has}, but state_format is {asked}; leave state_format "
                                      f"out to go on with the states' own, or make them so by adamant.torch.{how}, for each "
                                      "state of state_dict['state']")

    def __getstate__(self) -> Dict[str, Any]:
        if self._process_group is not None:
            raise InvalidArgument("an optimizer with a process_group cannot be copied or pickled, as the group cannot; "
                                  "save its state_dict()")
        self._settle("a copy is made")
        own: Dict[str, Any] = {"_arguments": self._arguments}
        if self._put_off is not None:
            self._put_off.save()
        return {**super().__getstate__(), **own}  # type: ignore[misc]

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if "_arguments" in state:  # a copy, not a state that is loaded
            self._process_group = None
            self._begin()
            if self._put_off is not None:
                self._put_off.forget(self.state.values())


