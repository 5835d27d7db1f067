# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW for PyTorch: torch.optim's classes, whose step the library does in one pass over memory.

    from adamant.torch import AdamW
    optimizer = AdamW(model.parameters(), lr=1e-4, max_norm=1.0)

Params are dense tensors in host memory, of float32, bfloat16 or float16; DTensors (FSDP2) by their local shards.
"""

from __future__ import annotations

import weakref
from array import array as packed
from itertools import chain
from operator import is_
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor

from . import _threads
from ._arrays import place_of
from ._library import SQUARES_WORDS, InvalidArgument, Report, Unavailable
from .executor import Cores, Executor, shared_executor
from .optimizer import Optimizer as Native
from .optimizer import add_squares

__all__ = ["Adam", "AdamW"]

_formats = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_moments = ("exp_avg", "exp_avg_sq")
_arguments = """
    The arguments of torch.optim.{name} mean what they mean there. `foreach`, `fused` and `capturable` are accepted and
    change nothing: they choose among torch's own ways to step. `amsgrad` and `differentiable` are refused.

    More arguments, by name only:
        max_norm: all gradients together are scaled down to this norm, exactly, within the step. step() then returns the
            norm that they had, and `last_report` has the coefficient. None: they are not.
        on_nonfinite: what becomes of a step with infinities or NaNs: "apply" takes them as they are, as torch does,
            "skip" changes nothing, "zero" has those elements count as zeros.
        overlap: each param is submitted while backward goes on, as soon as its gradient is there. Also with max_norm,
            exactly. For one backward() a step. From then to step() gradients must stay as they are, which step()
            checks, and params are those of before or after the step, so nothing may read them. Not under
            DistributedDataParallel, which changes gradients after backward has made them.
        state_format: the type of new moments, "float32" or "bfloat16". None: the param's, as torch has it, and float32
            where the param is float16 or has a master.
        master: bfloat16 and float16 params get float32 masters, state "master_param", which are stepped and then
            rounded to the params.
        process_group: gradients are cut over these ranks, as ZeRO and FSDP2 do, and the norm is over all of them. The
            same bits for any number of ranks that cut params at multiples of 4096 elements.
        cores: the hardware threads of the optimizer, "0-3" or numbers; cpuadam_cores_perc: its share of the rank's
            cores instead. torch's threads are bound to the others of the process's. By default the optimizer has a
            thread on each core of the rank's, and torch's are left alone.
        threads: how many threads; by default one for each of the cores.

    state_dict() has torch's keys, and goes into torch's class and back at any step, in the types that it was saved in.
    Not thread-safe, as torch's optimizers. Works in the process that first called step(); a forked one gets threads of
    its own.
    """


def _local(tensor: Tensor) -> Tensor:
    """A DTensor's shard of this rank; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie without gaps and none twice, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def _check_place(tensor: Tensor, what: str) -> None:
    """Raises where a tensor cannot be taken as it lies, in whichever order of its dimensions."""
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and _is_dense(tensor)
    place_of(_flat(tensor) if dense else tensor, what)


class _Cohort:
    """Params that have taken equally many steps: one optimizer of the library's, and one tensor that counts for all."""

    def __init__(self, of: "_Steps", steps: int, members: List[Tuple[int, Tensor]], alone: bool):
        self.params = [param for _, param in members]
        own = of._own
        self.native = Native(of._executor(), on_nonfinite=own["on_nonfinite"], max_norm=own["max_norm"] or 0.0,
                             reduce=of._reduce if of._needs_norm and (of._process_group or not alone) else None)
        self.hypers = {group: of._hyper(group) for group in sorted({group for group, _ in members})}
        self.number_of = {group: self.native.add_group(f"group{group}", maximize=of.param_groups[group]["maximize"],
                                                       **hyper) for group, hyper in self.hypers.items()}
        self.count = torch.tensor(float(steps), dtype=torch.float32)
        self.states = [of.state[param] for param in self.params]
        self.moments = [[state[name] for state in self.states] for name in _moments]
        self.at: List[int] = []
        self.strides: List[Tuple[int, ...]] = []
        self.dtypes: List[torch.dtype] = []
        self.in_order = True  # all of them in row-major order
        for (group, param), state in zip(members, self.states):
            self._add(of._name(param), self.number_of[group], param, state)
        self.native.steps = steps
        for state in self.states:
            state["step"] = self.count
        self.number = {id(param): i for i, param in enumerate(self.params)}
        self.plain = not any(hasattr(param, "to_local") for param in self.params)

    def _add(self, name: str, group: int, param: Tensor, state: Dict[str, Tensor]) -> None:
        local, grad = _local(param.detach()), _local(param.grad)
        arrays = {"param": local, "grad": grad, **{moment: _local(state[moment]) for moment in _moments}}
        if "master_param" in state:
            arrays["weight_out"], arrays["param"] = local, _local(state["master_param"])
        for what, array in arrays.items():
            what = f"{what} of {name}"
            _check_place(array, what)
            if array.shape != local.shape:
                raise InvalidArgument(f"{what} has shape {tuple(array.shape)}, but the param has {tuple(local.shape)}")
            if array.stride() != local.stride() and array.numel() > 1:
                raise InvalidArgument(f"{what} has strides {array.stride()}, but the param has {local.stride()}: the "
                                      "elements of all must lie in the same order, as nothing is copied here")
        self.at.append(local.data_ptr())
        self.strides.append(local.stride())
        self.dtypes.append(grad.dtype)
        self.in_order = self.in_order and local.is_contiguous() and grad.is_contiguous()
        self.native.add_shard(group, name, **{what: _flat(array) for what, array in arrays.items()})

    def gradients(self) -> Optional[List[Tensor]]:
        """The gradients of this step, if nothing but they and their addresses has changed; else None."""
        grads = [param.grad for param in self.params]
        params: List[Any] = self.params
        try:
            if not self.plain:
                grads = [_local(grad) for grad in grads]
                params = [_local(param) for param in params]
            if [grad.dtype for grad in grads] != self.dtypes or [param.data_ptr() for param in params] != self.at:
                return None
            if self.in_order:
                same = all([grad.is_contiguous() for grad in grads])
            else:
                same = [grad.stride() for grad in grads] == self.strides
        except AttributeError:  # a gradient is None
            return None
        for name, known in zip(_moments, self.moments):
            if not all(map(is_, [state[name] for state in self.states], known)):
                return None
        return grads if same else None

    def fits(self, number: int, grad: Tensor) -> bool:
        """Whether that shard can be stepped with this gradient as it lies."""
        param = self.params[number]
        return (_local(param).data_ptr() == self.at[number] and grad.dtype == self.dtypes[number] and
                (grad.stride() == self.strides[number] or grad.numel() <= 1))

    def take_hypers(self, of: "_Steps") -> None:
        for group, known in self.hypers.items():
            now = of._hyper(group)
            if now != known:
                self.native.set_hyperparameters(self.number_of[group], **now)
                self.hypers[group] = now

    def step(self, grads: List[Tensor]) -> Report:
        report = self.native.step_at(packed("Q", [grad.data_ptr() for grad in grads]))
        self.stepped(report)
        return report

    def stepped(self, report: Report) -> None:
        # Autograd then sees that what it has saved was changed.
        torch.autograd.graph.increment_version(self.params)
        if not report.skipped:
            self.count += 1


class _OpenStep:
    """A step that backward has begun: which gradients were submitted, and as which version."""

    def __init__(self, cohort: _Cohort):
        self.cohort = cohort
        self.submitted: Dict[int, Tuple[Tensor, int]] = {}  # by the shard's number
        self.fits = True  # every gradient so far could be taken as it lies


class _Steps:
    """What Adam and AdamW have beside torch's classes."""

    state: Any
    param_groups: List[Dict[str, Any]]

    def _set_up(self, max_norm: Optional[float], on_nonfinite: str, overlap: bool, state_format: Optional[str],
                master: bool, process_group: Any, cores: Optional[Cores], cpuadam_cores_perc: Optional[float],
                threads: int) -> None:
        if state_format is not None and state_format not in _formats:
            raise InvalidArgument(f"state_format is {state_format!r}, but must be one of {', '.join(_formats)}, or None")
        if on_nonfinite not in ("apply", "skip", "zero"):
            raise InvalidArgument(f"on_nonfinite is {on_nonfinite!r}, but must be apply, skip or zero")
        if max_norm is not None and not max_norm > 0:
            raise InvalidArgument(f"max_norm is {max_norm}, but must be above 0, or None for no clipping")
        if cores is not None and cpuadam_cores_perc is not None:
            raise InvalidArgument("both cores and cpuadam_cores_perc are given; choose one")
        self._own = {"max_norm": max_norm, "on_nonfinite": on_nonfinite, "overlap": overlap,
                     "state_format": state_format, "master": master, "cores": cores,
                     "cpuadam_cores_perc": cpuadam_cores_perc, "threads": threads}
        self._process_group = process_group
        self._watched: Set[int] = set()
        self._step_supports_amp_scaling = False  # a GradScaler then unscales gradients itself, as for torch's own
        self._forget()
        self._watch()

    def _forget(self) -> None:
        """Drops what is known about params, which the next step then looks at anew."""
        self._cohorts: Optional[List[_Cohort]] = None
        self._idle: List[Tensor] = []  # params without a gradient when they were last looked at
        self._param_count = -1
        self._open: Optional[_OpenStep] = None
        self._joint: Optional[Tensor] = None  # the words of all cohorts' sum of squares, where there are several
        self._overlaps = True  # until the step under way turned out not to
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

    def _add_over_ranks(self, words: Tensor) -> None:
        group = self._process_group
        if group is None:
            return
        if torch.distributed.get_backend(group) == "nccl":
            there = words.cuda()
            torch.distributed.all_reduce(there, group=group)
            words.copy_(there)
        else:
            torch.distributed.all_reduce(words, group=group)

    def _hyper(self, group: int) -> Dict[str, Any]:
        of = self.param_groups[group]
        return {"lr": float(of["lr"]), "betas": (float(of["betas"][0]), float(of["betas"][1])),
                "eps": float(of["eps"]), "weight_decay": float(of["weight_decay"]),
                "decoupled": of.get("decoupled_weight_decay", isinstance(self, torch.optim.AdamW))}

    def _name(self, param: Tensor) -> str:
        for g, group in enumerate(self.param_groups):
            for i, each in enumerate(group["params"]):
                if each is param:
                    names = group.get("param_names")
                    return f"group{g}.{names[i] if names else i}"
        return "param"

    def _init_state(self, param: Tensor) -> None:
        state = self.state[param]
        if param.is_complex():
            raise InvalidArgument(f"{self._name(param)} has the type {param.dtype}, but must be real")
        with torch.no_grad():
            narrow = param.dtype in (torch.bfloat16, torch.float16)
            missing = [name for name in _moments if name not in state]
            if missing and (len(missing) == 1 or float(state.get("step", 0)) > 0):
                raise InvalidArgument(f"the state of {self._name(param)} has no {' and no '.join(missing)}, but has taken "
                                      f"{int(state.get('step', 0))} steps; load a state that is whole")
            if missing:
                kind = _formats.get(self._own["state_format"] or "")
                if kind is None:
                    kind = torch.float32 if param.dtype == torch.float16 or self._own["master"] else param.dtype
                for name in _moments:
                    state[name] = torch.zeros_like(param, dtype=kind, memory_format=torch.preserve_format)
            if self._own["master"] and narrow and "master_param" not in state:
                state["master_param"] = param.detach().to(torch.float32, memory_format=torch.preserve_format)
            state.setdefault("step", torch.tensor(0.0))

    def _look(self) -> List[_Cohort]:
        """Sorts params by the steps they have taken; those without gradients are left alone."""
        by_steps: Dict[int, List[Tuple[int, Tensor]]] = {}
        idle = []
        for g, group in enumerate(self.param_groups):
            for what in ("amsgrad", "differentiable"):
                if group.get(what):
                    raise InvalidArgument(f"{what} is set for parameter group {g}, but this optimizer has none; take "
                                          "torch.optim's, or leave it out")
            for param in group["params"]:
                if param.grad is None:
                    idle.append(param)
                    continue
                if param.grad.is_sparse:
                    raise RuntimeError(f"{self._name(param)} has a sparse gradient, but Adam needs dense ones; consider "
                                       "torch.optim.SparseAdam")
                if self._process_group is not None and any(
                        placement.is_replicate() for placement in getattr(param, "placements", ())):
                    raise InvalidArgument(f"{self._name(param)} is replicated, so its gradient would count once for each "
                                          "rank of process_group; shard it, or give it an optimizer of its own")
                self._init_state(param)
                by_steps.setdefault(int(self.state[param]["step"]), []).append((g, param))
        self._idle, self._param_count = idle, sum(len(group["params"]) for group in self.param_groups)
        return [_Cohort(self, steps, members, len(by_steps) == 1) for steps, members in sorted(by_steps.items())]

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            report = self._finish() if self._open is not None else self._step_all()
            self._overlaps = True
        self.last_report = report
        if closure is None and self._own["max_norm"] is not None:
            return torch.tensor(0.0 if report is None else report.global_norm, dtype=torch.float64)
        return loss

    def _step_all(self) -> Optional[Report]:
        cohorts = self._cohorts
        grads = self._known_gradients() if cohorts is not None else None
        if cohorts is None or grads is None:
            self._cohorts = None
            cohorts = self._cohorts = self._look()
            grads = [[_local(param.grad) for param in cohort.params] for cohort in cohorts]
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
        return report

    def _words_of(self, cohorts: List[_Cohort], grads: List[List[Tensor]]) -> Tensor:
        """The sum of squares of all gradients of all ranks, as words. Every rank adds up once a step, also one that has
        no gradients."""
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64)
        for grad in chain.from_iterable(grads):
            add_squares(_flat(grad), words, self._executor())
        self._add_over_ranks(words)
        return words

    def _known_gradients(self) -> Optional[List[List[Tensor]]]:
        """The gradients of all cohorts, if the same params as in the last step have one."""
        if sum([len(group["params"]) for group in self.param_groups]) != self._param_count:
            return None
        if any([param.grad is not None for param in self._idle]):
            return None
        assert self._cohorts is not None
        grads = []
        for cohort in self._cohorts:
            if not cohort.native.here:
                return None
            of_cohort = cohort.gradients()
            if of_cohort is None:
                return None
            grads.append(of_cohort)
        return grads

    # Overlap with backward

    def _watch(self) -> None:
        if not self._own["overlap"]:
            return
        me = weakref.ref(self)

        def before(param: Tensor) -> Callable[[Tensor], None]:
            number = id(param)

            def hook(grad: Tensor) -> None:
                it = me()
                if it is not None and it._open is not None:
                    it._about_to_change(number)
            return hook

        def after(param: Tensor) -> None:
            it = me()
            if it is not None:
                it._on_gradient(param)
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad and id(param) not in self._watched:
                    self._watched.add(id(param))
                    param.register_hook(before(param))
                    param.register_post_accumulate_grad_hook(after)

    def _on_gradient(self, param: Tensor) -> None:
        """Submits the gradient that backward has just made."""
        if not self._overlaps:
            return
        if self._open is None:
            cohorts = self._cohorts
            if not cohorts or len(cohorts) != 1 or not cohorts[0].native.here:
                return  # the first step, and steps of params that have not been stepped equally often, wait
            cohorts[0].take_hypers(self)
            cohorts[0].native.begin_step()
            self._open = _OpenStep(cohorts[0])
        step = self._open
        number = step.cohort.number.get(id(param))
        grad = _local(param.grad) if param.grad is not None else None
        if number is None or grad is None or not step.cohort.fits(number, grad):
            step.fits = False
            return
        step.cohort.native.submit_at(number, grad.data_ptr())
        step.submitted[number] = (param.grad, param.grad._version)

    def _about_to_change(self, param: int) -> None:
        """Before backward adds to a gradient that was submitted."""
        assert self._open is not None
        if self._open.cohort.number.get(param) in self._open.submitted:
            # Whatever forward has read since then may be params of before or after the step.
            self._abandon("backward() is called a second time")
            raise InvalidArgument("backward() is called a second time before step(), but with overlap=True the first one "
                                  "began the step. Params and moments are as before it again, and this step's gradients "
                                  "are of no use. Call step() after each backward(), or set overlap=False to add "
                                  "gradients up")

    def _abandon(self, why: str) -> None:
        step = self._open
        assert step is not None
        try:
            step.cohort.native.abandon()
        except Unavailable:
            raise InvalidArgument(f"{why}, but with overlap=True backward() has begun a step, which cannot be given up "
                                  "without max_norm; call step() first, or set overlap=False") from None
        torch.autograd.graph.increment_version(step.cohort.params)
        self._open = None
        self._overlaps = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A step that backward has begun is given up first."""
        self._settle("zero_grad() is called")
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
                if cohort.fits(number, _local(param.grad)):
                    cohort.native.submit_at(number, _local(param.grad).data_ptr())
                    step.submitted[number] = (param.grad, param.grad._version)
                else:
                    step.fits = False
        newcomers = any(param.grad is not None and id(param) not in cohort.number
                        for group in self.param_groups for param in group["params"])
        same = all(self._hyper(group) == known for group, known in cohort.hypers.items())
        if not step.fits or newcomers or not same:
            self._abandon("params, gradients or hyperparameters are others than when backward began the step")
            self._overlaps = True
            return self._step_all()
        left_out = [number for number in range(len(cohort.params)) if number not in step.submitted]
        for number in left_out:
            cohort.native.leave_out(number)
            cohort.states[number]["step"] = cohort.count.clone()
        report = cohort.native.finish()
        self._open = None
        cohort.stepped(report)
        if left_out:
            self._cohorts = None  # they have taken fewer steps from now on
        return report

    # State

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch's."""
        super().add_param_group(param_group)  # type: ignore[misc]
        if hasattr(self, "_own"):
            self._settle("add_param_group() is called")
            self._forget()
            self._watch()

    def _settle(self, what: str) -> None:
        """Gives up a step that backward has begun; its gradients stay, and step() then takes all of it."""
        if self._open is not None:
            self._abandon(what)
            self._overlaps = True

    def state_dict(self) -> Dict[str, Any]:
        """As torch's, with its keys, and "master_param" where there are masters."""
        self._settle("state_dict() is called")
        made = super().state_dict()  # type: ignore[misc]
        # Params that have taken equally many steps share one count here, but nowhere else.
        made["state"] = {param: {**state, "step": state["step"].clone()} if "step" in state else state
                         for param, state in made["state"].items()}
        return made

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As torch's, from its classes and from these; states keep the types that they were saved in."""
        self._settle("load_state_dict() is called")
        given: Dict[str, Any] = {}
        seen = self.register_load_state_dict_pre_hook(  # type: ignore[attr-defined]
            lambda _, incoming: given.update(incoming))
        try:
            super().load_state_dict(state_dict)  # type: ignore[misc]
        finally:
            seen.remove()
        numbers = chain.from_iterable(group["params"] for group in given["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, param in zip(numbers, params):
            for name, value in given["state"].get(number, {}).items():
                if name == "step":
                    self.state[param][name] = torch.tensor(float(value), dtype=torch.float32)
                elif isinstance(value, Tensor):
                    self.state[param][name] = value.detach().to(param.device, copy=True)
        self._forget()

    def __getstate__(self) -> Dict[str, Any]:
        if self._process_group is not None:
            raise InvalidArgument("an optimizer with a process_group cannot be copied or pickled, as the group cannot; "
                                  "save its state_dict()")
        self._settle("a copy is made")
        return {**super().__getstate__(), "_own": self._own}  # type: ignore[misc]

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if "_own" in state:  # a copy, not a state that is loaded
            self._process_group = None
            self._step_supports_amp_scaling = False
            self._watched = set()
            self._forget()
            self._watch()


class Adam(_Steps, torch.optim.Adam):
    __doc__ = "torch.optim.Adam, stepped by adamant.\n" + _arguments.format(name="Adam")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: Optional[bool] = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, decoupled_weight_decay: bool = False,
                 max_norm: Optional[float] = None, on_nonfinite: str = "apply", overlap: bool = False,
                 state_format: Optional[str] = None, master: bool = False, process_group: Any = None,
                 cores: Optional[Cores] = None, cpuadam_cores_perc: Optional[float] = None, threads: int = 0):
        more = {"decoupled_weight_decay": True} if decoupled_weight_decay else {}
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach,
                                  maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused,
                                  **more)
        self._set_up(max_norm, on_nonfinite, overlap, state_format, master, process_group, cores, cpuadam_cores_perc,
                     threads)


class AdamW(_Steps, torch.optim.AdamW):
    __doc__ = "torch.optim.AdamW, stepped by adamant.\n" + _arguments.format(name="AdamW")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, max_norm: Optional[float] = None, on_nonfinite: str = "apply",
                 overlap: bool = False, state_format: Optional[str] = None, master: bool = False,
                 process_group: Any = None, cores: Optional[Cores] = None,
                 cpuadam_cores_perc: Optional[float] = None, threads: int = 0):
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
                                   foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused)
        self._set_up(max_norm, on_nonfinite, overlap, state_format, master, process_group, cores, cpuadam_cores_perc,
                     threads)
