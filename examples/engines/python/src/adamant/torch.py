# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW for PyTorch: torch.optim's classes, whose step the library does in one pass over memory.

    from adamant.torch import AdamW
    optimizer = AdamW(model.parameters(), lr=1e-4, max_norm=1.0)

Params are dense tensors of float32, bfloat16 or float16, in host memory or on a GPU; DTensors (FSDP2) by their local
shards.
"""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import chain
from math import prod
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor
from torch.optim import optimizer as _torchs

from . import _threads
from ._arrays import GROUP_BYTES, GROUP_ELEMS, group_count
from ._cohort import Cohort
from ._host_copies import local
from ._library import SQUARES_WORDS, InvalidArgument, Report, Unavailable
from ._put_off import PutOff, refuse_without
from ._put_off_native import ZenFlow
from ._quantized8 import dequantized, is_quantized, moments, quantized, zeros
from ._signals import whole
from ._split_masters import joined_master, masters, split_master
from .executor import Cores, Executor, shared_executor
from .optimizer import add_squares

__all__ = ["Adam", "AdamW", "ZenFlow", "dequantized", "joined_master", "quantized", "split_master"]

# Whose hooks count, by the param's id: those of the optimizer that was made last.
_owners: "weakref.WeakValueDictionary[int, _Steps]" = weakref.WeakValueDictionary()
_moment_types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "quantized8": torch.uint8}
# By name, whether masters are in two halves, and the type of new moments.
_formats = {**{name: (False, kind) for name, kind in _moment_types.items()},
            **{"split_float32" + (f"+{name}" if name != "float32" else ""): (True, kind)
               for name, kind in _moment_types.items()}}
_arguments = """
    The arguments of torch.optim.{name} mean what they mean there. `foreach`, `fused` and `capturable` are accepted and
    change nothing: they choose among torch's own ways to step. `amsgrad` and `differentiable` are refused.

    More arguments, by name only:
        max_norm: all gradients together are scaled down to this norm, exactly, within the step. step() then returns the
            norm that they had, and `last_report` has the coefficient. None: they are not.
        on_nonfinite: what becomes of a step with infinities or NaNs: "apply" takes them as they are, as torch does,
            "skip" changes nothing, "zero" has those elements count as zeros.
        overlap: each param is submitted while backward goes on, as soon as its gradient is there. Also with max_norm,
            exactly. For one backward() a step, or the last of those that `accumulate` says. From then to step()
            gradients must stay as they are, which step() checks, and params are those of before or after the step, so
            nothing may read them. Not under DistributedDataParallel, which changes gradients after backward has made
            them.
        accumulate: of how many backward() calls a step takes the sum. It is made in float32, whatever the type of the
            gradients; p.grad has the last one alone, so what changes it, as a GradScaler or clipping do, is an error.
            step() may come after fewer. Not under DistributedDataParallel; under FSDP2 torch itself adds up.
        offload: params in host memory are stepped as those on a GPU are, by copies; to try that without a GPU.
        zenflow: a ZenFlow(...), or a dictionary of its arguments: a few columns of each matrix are stepped at once, the
            others once in a window of steps. Params of two or more dimensions are matrices; columns are the last one.
            Their states lie by columns: moments and masters have the param's shape, and the first column's elements
            come first in memory; "by_columns" is a copy of the weights that lies so, which is stepped where the param
            has no master. quantized8 moments want a multiple of 64 rows, whose groups are of columns. Threads work on
            states after step() has returned; state_dict() waits for them, and has counts, sums and the position of the
            window, so that a loaded run goes on with the same bits. last_report.zenflow has more about a step. Weights
            may be behind their masters: see land(). Params that are all on one NVIDIA GPU are stepped at once there, where
            the library was built with CUDA, and the states of these are out of date until state_dict() is called; where
            that cannot be, a warning says so once. Not with overlap, which is backward's, nor with accumulate.
        state_format: the type of new moments, "float32", "bfloat16" or "quantized8". None: the param's, as torch has
            it, and float32 where the param is float16 or has a master. A group's own goes before it, as in
            {{"params": norms, "state_format": "float32"}}. "split_float32", "split_float32+bfloat16" and
            "split_float32+quantized8" are the same moments, and give bfloat16 params masters in two halves: the param
            is the upper one, and the state has the lower one, "master_low", of int16: the bits of the float32 master
            are (param << 16) + low. They are those of master=True in every step; the param is rounded with ties away
            from zero. float32 params have the moments alone; float16 params are refused without master=True. Moments
            of quantized8 are tensors of uint8 of the shape [groups, 68]: a group for each 64 elements of the param in
            row-major order, and one for what is left, has 64 codes, t[:, :64], and a float32 scale,
            t[:, 64:].contiguous().view(torch.float32). dequantized() reads them. DTensors have them where each rank's
            shard has whole groups, equally many.
        exp_avg_sq_rounding, param_rounding: how second moments and params of bfloat16 are rounded, "nearest" or
            "stochastic"; the first is of both moments' codes with quantized8. Rounded to nearest, second moments do not
            come down where 1 - betas[1] is below 0.002, and params do not move by less than half a unit. Chance depends
            on rounding_seed, the step, the param's place in its group (or its name, where it has one) and the element
            alone.
        master: bfloat16 and float16 params get float32 masters, state "master_param", which are stepped and then
            rounded to the params. Where state_format has them in two halves, bfloat16 params have these instead.
        process_group: gradients are cut over these ranks, as ZeRO and FSDP2 do, and the norm is over all of them. The
            same bits for any number of ranks that cut params at multiples of 4096 elements.
        cores: the hardware threads of the optimizer, "0-3" or numbers; cpuadam_cores_perc: its share of the rank's
            cores instead. torch's threads are bound to the others of the process's. By default the optimizer has a
            thread on each core of the rank's, and torch's are left alone.
        threads: how many threads; by default one for each of the cores.

    Params on a GPU have their states in host memory, as ZeRO-Offload has it: gradients are copied down into pinned
    memory, and weights up as each param is stepped, on streams of their own. What step() returns to has the new
    weights on the caller's stream. Weights that somebody else has written, as load_state_dict() of a model does, are
    taken over by the next step, into masters, too. Of a master in two halves the lower one stays as it is: elements
    that have not changed keep every bit, and the master of one that has is half a unit of the param off at most.

    state_dict() has torch's keys, and goes into torch's class and back at any step, in the types that it was saved in.
    With quantized8 and "master_low", which torch's class has not, it goes back only. dequantized() and quantized(),
    joined_master() and split_master() change states.
    Not thread-safe, as torch's optimizers. Works in the process that first called step(); a forked one gets threads of
    its own.
    """


def _check_format(given: Optional[str]) -> None:
    if given is not None and given not in _formats:
        raise InvalidArgument(f"state_format is {given!r}, but must be one of {', '.join(_formats)}, or None")


def _in_host(param: Tensor) -> Dict[str, Any]:
    return {} if param.device.type == "cpu" else {"device": "cpu"}


def _remove(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()


class _OpenStep:
    """A step that backward has begun: which gradients were submitted, and as which version."""

    def __init__(self, cohort: Cohort):
        self.cohort = cohort
        self.submitted: Dict[int, Tuple[Tensor, int]] = {}  # by the shard's number
        self.fits = True  # every gradient so far could be taken as it lies


class _Steps:
    """What Adam and AdamW have beside torch's classes."""

    state: Any
    param_groups: List[Dict[str, Any]]

    def _set_up(self, **own: Any) -> None:
        for given in (own["state_format"], *(group.get("state_format") for group in self.param_groups)):
            _check_format(given)
        for name in ("exp_avg_sq_rounding", "param_rounding"):
            if own[name] not in ("nearest", "stochastic"):
                raise InvalidArgument(f"{name} is {own[name]!r}, but must be nearest or stochastic")
        if own["on_nonfinite"] not in ("apply", "skip", "zero"):
            raise InvalidArgument(f"on_nonfinite is {own['on_nonfinite']!r}, but must be apply, skip or zero")
        if own["max_norm"] is not None and not own["max_norm"] > 0:
            raise InvalidArgument(f"max_norm is {own['max_norm']}, but must be above 0, or None for no clipping")
        if own["cores"] is not None and own["cpuadam_cores_perc"] is not None:
            raise InvalidArgument("both cores and cpuadam_cores_perc are given; choose one")
        if not isinstance(own["accumulate"], int) or own["accumulate"] < 1:
            raise InvalidArgument(f"accumulate is {own['accumulate']!r}, but must be a number of backward() calls, from 1")
        own["zenflow"] = ZenFlow.of(own["zenflow"])
        if own["zenflow"] is not None and (own["overlap"] or own["accumulate"] > 1):
            raise InvalidArgument("zenflow has an overlap of its own, with the next steps, so overlap=True cannot be beside "
                                  "it; leave that out" if own["overlap"] else
                                  "zenflow adds up gradients in windows, so accumulate cannot be beside it; leave accumulate "
                                  "out and let backward() add to p.grad")
        self._process_group = own.pop("process_group")
        self._own = own
        self._begin()

    def _begin(self) -> None:
        # A GradScaler then leaves gradients alone, and says by attributes that it steps; see _check_sums(). Otherwise it
        # unscales p.grad before, as for torch's own classes.
        self._step_supports_amp_scaling = self._own["accumulate"] > 1
        self._watched: Dict[int, Tensor] = {}  # params with hooks, by id
        self._handles: List[Any] = []
        weakref.finalize(self, _remove, self._handles)
        self._may_be_averaged = True  # until that was looked for
        self._lock = threading.RLock()  # backward calls hooks in a thread for each device
        self._mirrors: Dict[int, Tensor] = {}  # weights in host memory of params that are elsewhere, by the param's id
        self._versions: Dict[int, Tuple[int, int]] = {}  # of params whose weights are elsewhere, too, when both were the same
        given = self._own.get("zenflow")
        self._put_off = PutOff(given) if given is not None else None
        self._forget()
        self._watch()

    def _forget(self) -> None:
        """Drops what is known about params, which the next step then looks at anew."""
        self._cohorts: Optional[List[Cohort]] = None
        self._idle: List[Tensor] = []  # params without a gradient when they were last looked at
        self._param_count = -1
        self._open: Optional[_OpenStep] = None
        self._joint: Optional[Tensor] = None  # the words of all cohorts' sum of squares, where there are several
        self._overlaps = True  # until the step under way turned out not to
        self._backwards: Dict[int, int] = {}  # how many gradients of this step a param has had, by its id
        self._made: Dict[int, Tuple[int, int]] = {}  # address and version of the last of them
        self._moved: Set[int] = set()  # params whose gradients went to their sums, and that have no other yet
        self.last_report: Optional[Report] = None

    # Set-up of steps

    def _executor(self) -> Executor:
        own = self._own
        if own["cores"] is None and own["cpuadam_cores_perc"] is None:
            return shared_executor(threads=own["threads"])
        return _threads.executor_apart(own["cores"], own["cpuadam_cores_perc"], own["threads"])

    @property
    def _needs_norm(self) -> bool:
        return self._own["max_norm"] is not None or self._own["on_nonfinite"] == "skip"

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
        self._add_over_ranks(total, how)
        given.copy_(total)

    def _add_over_ranks(self, words: Tensor, how: str = "SUM") -> None:
        group = self._process_group
        if group is None:
            return
        operation = getattr(torch.distributed.ReduceOp, how)
        if torch.distributed.get_backend(group) == "nccl":
            there = words.cuda()
            torch.distributed.all_reduce(there, operation, group=group)
            words.copy_(there)
        else:
            torch.distributed.all_reduce(words, operation, group=group)

    def _hyper(self, group: int) -> Dict[str, Any]:
        of = self.param_groups[group]
        return {"lr": float(of["lr"]), "betas": (float(of["betas"][0]), float(of["betas"][1])),
                "eps": float(of["eps"]), "weight_decay": float(of["weight_decay"]),
                "decoupled": of.get("decoupled_weight_decay", isinstance(self, torch.optim.AdamW)),
                **{name: self._own[name] for name in ("exp_avg_sq_rounding", "param_rounding", "rounding_seed")}}

    def _name(self, param: Tensor) -> str:
        for g, group in enumerate(self.param_groups):
            for i, each in enumerate(group["params"]):
                if each is param:
                    names = group.get("param_names")
                    return f"group{g}.{names[i] if names else i}"
        return "param"

    def _init_state(self, group: int, param: Tensor) -> None:
        state = self.state[param]
        if param.is_complex():
            raise InvalidArgument(f"{self._name(param)} has the type {param.dtype}, but must be real")
        with torch.no_grad():
            splits, kind = _formats.get(self._format_of(self.param_groups[group]) or "", (False, None))
            if splits and param.dtype == torch.float16 and not self._own["master"]:
                raise InvalidArgument(f"{self._name(param)} has the type {param.dtype}, but masters in two halves are for "
                                      "bfloat16 params. Set master=True, with which float16 params have float32 masters, or "
                                      'put it into a group with "state_format": "float32"')
            missing = [name for name in moments if name not in state]
            if missing and (len(missing) == 1 or float(state.get("step", 0)) > 0):
                raise InvalidArgument(f"the state of {self._name(param)} has no {' and no '.join(missing)}, but has taken "
                                      f"{int(state.get('step', 0))} steps; load a state that is whole")
            if missing:
                if kind is None:
                    kind = torch.float32 if param.dtype == torch.float16 or self._own["master"] else param.dtype
                state.update({name: self._new_groups(param) if kind == torch.uint8 else
                              torch.zeros_like(param, dtype=kind, memory_format=torch.preserve_format,
                                               **_in_host(param)) for name in moments})
            if all(name in state for name in masters):
                raise InvalidArgument(f"the state of {self._name(param)} has both {' and '.join(masters)}; take out the one "
                                      "that is not to be stepped")
            if any(name in state for name in masters):
                pass
            elif splits and param.dtype == torch.bfloat16:
                state["master_low"] = torch.zeros_like(param, dtype=torch.int16, memory_format=torch.preserve_format,
                                                       **_in_host(param))
            elif self._own["master"] and param.dtype in (torch.bfloat16, torch.float16):
                state["master_param"] = param.detach().to(dtype=torch.float32, memory_format=torch.preserve_format,
                                                          **_in_host(param))
            state.setdefault("step", torch.tensor(0.0))

    def _format_of(self, group: Dict[str, Any]) -> Optional[str]:
        return group.get("state_format") or self._own["state_format"]

    def _new_groups(self, param: Tensor) -> Tensor:
        """A moment of quantized8. A DTensor's is one, too, so that checkpoints cut it as they cut the param."""
        made = zeros(local(param).numel())
        if not hasattr(param, "to_local"):
            return made
        ranks = prod(param.device_mesh.size(i) for i, how in enumerate(param.placements) if not how.is_replicate())
        plain = all(how.is_replicate() or (how.is_shard(0) and type(how).__name__ == "Shard") for how in param.placements)
        if ranks > 1 and (not plain or param.shape[0] % ranks or param.numel() // ranks % GROUP_ELEMS):
            raise InvalidArgument(f"{self._name(param)} has shape {tuple(param.shape)} and is cut by {param.placements} over "
                                  f"{ranks} ranks, but quantized8 moments are in groups of {GROUP_ELEMS} elements, and each "
                                  "rank must have equally many whole ones. Put the param into a group with "
                                  '"state_format": "float32" or "bfloat16"')
        return type(param).from_local(made, param.device_mesh, param.placements, run_check=False,  # type: ignore[attr-defined]
                                      shape=torch.Size((group_count(param.numel()), GROUP_BYTES)), stride=(GROUP_BYTES, 1))

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
        self._idle = [param for _, param in everything if param.grad is None]
        self._param_count = len(everything)
        return made

    def _refuse_groups(self) -> None:
        for g, group in enumerate(self.param_groups):
            for what in ("amsgrad", "differentiable"):
                if group.get(what):
                    raise InvalidArgument(f"{what} is set for parameter group {g}, but this optimizer has none; take "
                                          "torch.optim's, or leave it out")

    def _refuse_sparse(self, param: Tensor) -> None:
        if param.grad is not None and param.grad.is_sparse:
            raise RuntimeError(f"{self._name(param)} has a sparse gradient, but Adam needs dense ones; consider "
                               "torch.optim.SparseAdam")

    def _refuse_replicated(self, param: Tensor) -> None:
        if self._process_group is not None and any(
                placement.is_replicate() for placement in getattr(param, "placements", ())):
            raise InvalidArgument(f"{self._name(param)} is replicated, so its gradient would count once for each "
                                  "rank of process_group; shard it, or give it an optimizer of its own")

    def _refuse_with_sums(self, what: str) -> None:
        if any(cohort.summed for cohort in self._cohorts or []):
            raise InvalidArgument(f"gradients of earlier backward() calls were added up, but {what}; call step() before "
                                  "that, or zero_grad() to begin anew")

    def _cohorts_of(self, members: List[Tuple[int, Tensor]]) -> List[Cohort]:
        by_steps: Dict[int, List[Tuple[int, Tensor]]] = {}
        for g, param in members:
            self._refuse_sparse(param)
            self._refuse_replicated(param)
            self._init_state(g, param)
            by_steps.setdefault(int(self.state[param]["step"]), []).append((g, param))
        # Where gradients are added up, more params may join before the step.
        alone = len(by_steps) == 1 and self._own["accumulate"] == 1
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
            if self._own["accumulate"] > 1:
                self._check_sums()
            report = (self._put_off.step(self) if self._put_off is not None else
                      self._finish() if self._open is not None else self._step_all())
            self._overlaps = True
            self._begin_gradients()
            self.last_report = report
        if closure is None and self._own["max_norm"] is not None:
            return torch.tensor(0.0 if report is None else report.global_norm, dtype=torch.float64)
        return loss

    _step_with_hooks = torch.optim.Optimizer.profile_hook_step(_step)

    def _step_all(self) -> Optional[Report]:
        cohorts = self._cohorts
        grads = self._known_gradients() if cohorts is not None else None
        if cohorts is None or grads is None:
            cohorts = self._cohorts = self._look()
            grads = [[local(param.grad) for param in cohort.params] for cohort in cohorts]
        for cohort in cohorts:
            cohort.take_hypers(self)
        if self._needs_norm and len(cohorts) != 1:
            self._joint = self._words_of(cohorts, grads)
        report = None
        try:
            for cohort, of_cohort in zip(cohorts, grads):
                report = cohort.step(of_cohort)
        finally:
            self._joint = None
        if self._own["accumulate"] > 1 and (len(cohorts) != 1 or any(grad is None for grad in grads[0])):
            self._cohorts = None  # whoever has taken equally many steps by now goes together
        return report

    def _words_of(self, cohorts: List[Cohort], grads: List[List[Optional[Tensor]]]) -> Tensor:
        """The sum of squares of all gradients of all ranks, as words. Every rank adds up once a step, also one that has
        no gradients."""
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64)
        for cohort, of_cohort in zip(cohorts, grads):
            for number, grad in enumerate(of_cohort):
                if grad is not None:
                    add_squares(cohort.whole_gradient(number, grad), words, self._executor())
        self._add_over_ranks(words)
        return words

    def _known_gradients(self) -> Optional[List[List[Optional[Tensor]]]]:
        """The gradients of all cohorts, if the same params as in the last step have one."""
        assert self._cohorts is not None
        if sum([len(group["params"]) for group in self.param_groups]) != self._param_count:
            return None
        if any([param.grad is not None for param in self._idle]):
            if not any(cohort.summed for cohort in self._cohorts):
                return None
            self._join()
        grads = []
        for cohort in self._cohorts:
            if not cohort.is_usable:
                return None
            of_cohort = cohort.gradients()
            if of_cohort is None:
                return None
            grads.append(of_cohort)
        return grads

    # Gradients that backward brings

    def _watch(self) -> None:
        if not self._own["overlap"] and self._own["accumulate"] == 1:
            for _, param in self._all_params():
                _owners[id(param)] = self
            return
        me = weakref.ref(self)

        def before(number: int) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                it = me()
                if it is not None and _owners.get(number) is it:
                    with whole, it._lock:
                        it._before_gradient(it._watched[number])
            return hook

        def after(param: Tensor) -> None:
            it = me()
            if it is not None and _owners.get(id(param)) is it:
                with whole, it._lock:
                    it._after_gradient(param)
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
            self._watch()  # params that have begun to want gradients
        if self._may_be_averaged:
            self._refuse_to_be_averaged()
        if self._open is not None and self._open.cohort.number.get(id(param)) in self._open.submitted:
            self._refuse_one_more()
        if self._own["accumulate"] > 1:
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
        if self._own["overlap"] and self._overlaps and self._backwards[id(param)] >= self._own["accumulate"]:
            self._on_gradient(param)

    def _refuse_one_more(self) -> None:
        # Whatever forward has read since then may be params of before or after the step.
        self._abandon("backward() is called once more")
        often = f"{self._own['accumulate']} backward() calls" if self._own["accumulate"] > 1 else "one backward()"
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
        if self._cohorts is None or not all(cohort.is_usable for cohort in self._cohorts):
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
        self._idle = [param for param in self._idle if param.grad is None]

    def _on_gradient(self, param: Tensor) -> None:
        """Submits the gradient that backward has just made."""
        if self._open is None:
            cohorts = self._cohorts
            if not cohorts or len(cohorts) != 1 or not cohorts[0].is_usable:
                return  # the first step, and steps of params that have not been stepped equally often, wait
            cohorts[0].take_hypers(self)
            cohorts[0].begin()
            self._open = _OpenStep(cohorts[0])
        step = self._open
        number = step.cohort.number.get(id(param))
        grad = local(param.grad) if param.grad is not None else None
        if number is None:
            return  # has its first gradient, see _finish()
        if number in step.submitted:  # FSDP2 has added to it
            self._refuse_one_more()
        if grad is None or not step.cohort.fits(number, grad):
            step.fits = False
            return
        step.cohort.submit(number, grad)
        step.submitted[number] = (param.grad, param.grad._version)

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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A step that backward has begun is given up first, and sums are forgotten."""
        self._settle("zero_grad() is called")
        self._forget_sums()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def _finish(self) -> Optional[Report]:
        step = self._open
        assert step is not None
        cohort = step.cohort
        for number, (grad, version) in step.submitted.items():
            if cohort.params[number].grad is not grad or grad._version != version:
                raise InvalidArgument(f"the gradient of {self._name(cohort.params[number])} was changed after backward() had "
                                      "made it, but with overlap=True it is stepped from then on. Params and moments may "
                                      "be made of both: load a state. To change gradients, set overlap=False; to clip "
                                      "them, set max_norm")
        for number, param in enumerate(cohort.params):
            if number not in step.submitted and param.grad is not None:
                if cohort.fits(number, local(param.grad)):
                    cohort.submit(number, local(param.grad))
                    step.submitted[number] = (param.grad, param.grad._version)
                else:
                    step.fits = False
        newcomers = any(param.grad is not None and id(param) not in cohort.number for _, param in self._all_params())
        same = all(self._hyper(group) == known for group, known in cohort.hypers.items())
        if not step.fits or (newcomers and self._needs_norm) or not same:
            self._abandon("params, gradients or hyperparameters are others than when backward began the step")
            self._overlaps = True
            return self._step_all()
        left_out = [number for number in range(len(cohort.params)) if number not in step.submitted]
        self._open = None  # finish() gives it up where it fails
        report = cohort.finish(left_out)
        if newcomers:
            self._join()
            for other in (self._cohorts or [])[1:]:
                report = other.step([local(param.grad) for param in other.params])
        if left_out or newcomers:
            self._cohorts = None  # whoever has taken equally many steps from now on goes together
        return report

    # State

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch's."""
        if hasattr(self, "_own"):
            _check_format(param_group.get("state_format"))
            self._refuse_with_sums("a group is added")
            self._settle("add_param_group() is called")
        super().add_param_group(param_group)  # type: ignore[misc]
        if hasattr(self, "_own"):
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
        """With zenflow, has all weights count as they are, also those that are behind their masters and would catch up
        later: after somebody has written them without land() before. Without it weights that others write always do."""
        if self._put_off is not None:
            with whole:
                self._put_off.take_weights(self)

    def state_dict(self) -> Dict[str, Any]:
        """As torch's, with its keys, and "master_param" or "master_low" where there are masters. With zenflow it has one
        more key, "zenflow": where the run is in its window."""
        self._settle("state_dict() is called")
        if self._put_off is not None:
            with whole:
                self._put_off.save()
            made = super().state_dict()  # type: ignore[misc]
            return {**made, "state": self._put_off.saved(made["state"]), "zenflow": dict(self._put_off.position)}
        made = super().state_dict()  # type: ignore[misc]
        # Params that have taken equally many steps share one count here, but nowhere else.
        made["state"] = {param: {**state, "step": state["step"].clone()} if "step" in state else state
                         for param, state in made["state"].items()}
        return made

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As torch's, from its classes and from these; states keep the types that they were saved in. With zenflow also
        from those without: nothing is put off then, and all columns have taken the param's steps. Raises InvalidArgument
        where a state_format is given, and one of it and of the states is quantized8, or has masters in two halves where
        the other has whole ones; and for a state of zenflow without that. Nothing has changed then."""
        self._refuse_with_sums("a state is loaded")
        self._settle("load_state_dict() is called")
        given: Dict[str, Any] = {}

        def keep(_: Any, incoming: Dict[str, Any]) -> Dict[str, Any]:
            self._check_formats(incoming)
            if self._put_off is None:
                refuse_without(incoming)
            else:
                self._put_off.check(self, incoming)
            given.update(incoming)
            return {**incoming, "state": {}}  # torch would cast states to the params' types, and put them on a GPU
        seen = self.register_load_state_dict_pre_hook(keep)  # type: ignore[attr-defined]
        try:
            super().load_state_dict(state_dict)  # type: ignore[misc]
        finally:
            seen.remove()
        param_of = self._params_by_number(given)
        self.state.clear()
        for key, values in given["state"].items():
            param = param_of.get(key)
            if param is None:
                self.state[key] = values
                continue
            self.state[param] = {name: torch.tensor(float(value), dtype=torch.float32) if name == "step" else
                                 value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
                                 for name, value in values.items()}
        if self._put_off is not None:
            steps = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
            self._put_off.forget(given.get("zenflow"), steps)
        self._versions.clear()
        self._forget()

    def _params_by_number(self, state_dict: Dict[str, Any]) -> Dict[Any, Tensor]:
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        return dict(zip(numbers, (param for _, param in self._all_params())))

    def _check_formats(self, incoming: Dict[str, Any]) -> None:
        """Raises where states are quantized8, or have masters in two halves, and state_format says otherwise, or the other
        way round."""
        params = iter([param for _, param in self._all_params()])
        for g, group in enumerate(incoming["param_groups"]):
            asked = self._format_of(group)
            _check_format(asked)
            for i, number in enumerate(group["params"]):
                param, state = next(params, None), incoming["state"].get(number, {})
                if asked is None or param is None:  # torch says that there are too many
                    continue
                splits, kind = _formats[asked]
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
        own = {"_own": self._own}
        if self._put_off is not None:
            self._put_off.save()
            own["_position"] = self._put_off.position
        return {**super().__getstate__(), **own}  # type: ignore[misc]

    def __setstate__(self, state: Dict[str, Any]) -> None:
        position = state.pop("_position", None)
        super().__setstate__(state)  # type: ignore[misc]
        if "_own" in state:  # a copy, not a state that is loaded
            self._process_group = None
            self._begin()
            if self._put_off is not None:
                self._put_off.forget(position, 0)


class Adam(_Steps, torch.optim.Adam):
    __doc__ = "torch.optim.Adam, stepped by adamant.\n" + _arguments.format(name="Adam")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: Optional[bool] = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, decoupled_weight_decay: bool = False,
                 max_norm: Optional[float] = None, on_nonfinite: str = "apply", overlap: bool = False,
                 accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False, cores: Optional[Cores] = None,
                 cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None):
        more = {"decoupled_weight_decay": True} if decoupled_weight_decay else {}
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach,
                                  maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused,
                                  **more)
        self._set_up(max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate,
                     state_format=state_format, exp_avg_sq_rounding=exp_avg_sq_rounding,
                     param_rounding=param_rounding, rounding_seed=rounding_seed, master=master, process_group=process_group,
                     offload=offload, cores=cores, cpuadam_cores_perc=cpuadam_cores_perc, threads=threads,
                     zenflow=zenflow)


class AdamW(_Steps, torch.optim.AdamW):
    __doc__ = "torch.optim.AdamW, stepped by adamant.\n" + _arguments.format(name="AdamW")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, max_norm: Optional[float] = None, on_nonfinite: str = "apply",
                 overlap: bool = False, accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False,
                 cores: Optional[Cores] = None, cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None):
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
                                   foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused)
        self._set_up(max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate,
                     state_format=state_format, exp_avg_sq_rounding=exp_avg_sq_rounding,
                     param_rounding=param_rounding, rounding_seed=rounding_seed, master=master, process_group=process_group,
                     offload=offload, cores=cores, cpuadam_cores_perc=cpuadam_cores_perc, threads=threads,
                     zenflow=zenflow)
