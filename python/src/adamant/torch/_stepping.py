# SPDX-License-Identifier: Apache-2.0
"""The step of Adam and AdamW. `param_groups` and `state` are read at every step."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, TypeVar

import torch
from torch import Tensor
from torch.optim import optimizer as _torch_optimizer

from .. import _threads
from .._host_copies import align_gradient, local
from .._library import SQUARES_WORDS, InvalidArgument, Report
from .._ranks import Gradient, Ranks, norm_of, partitioning_engine, unknown_shards, zero_redundancy_group
from .._signals import delayed_signals
from .._signature_module import CHANGED, NEW_GRADIENT, NO_GRADIENT, new_signature
from .._step_group import StepGroup
from .._zenflow_steps import ZenFlowSteps
from ..executor import Executor, shared_executor
from ..optimizer import add_squares
from ._arguments import Arguments, check_group, check_new_group, check_param
from ._backward import Backward, OpenStep, next_creation
from ._changes import ChangedWeights, Changes
from ._saving import Saving
from ._state import complete_state, count_tensor, settle_count

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Keep torch's classes: users may assign ours to torch.optim.
torch_adam, torch_adamw = torch.optim.Adam, torch.optim.AdamW


# Arguments that an engine with its own partitions makes wrong, or leaves without effect.
_not_for_partitions = {
    "max_norm": "each rank would clip by the norm of its own partition. {} clips by that of all",
    "on_nonfinite": "each rank would skip its own partition alone. {} skips such steps itself",
    "overlap": "backward() makes the gradients of other tensors than those that {} steps",
    "accumulate": "backward() makes the gradients of other tensors than those that {} steps",
    "zenflow": "{} steps flat partitions, which have no columns",
    "process_group": "only a norm needs it, and {} computes the norm",
    "track_changes": "the weights are not those that {} steps"}


def _remove_all(handles: Dict[int, List[Any]]) -> None:
    for handle in itertools.chain.from_iterable(handles.values()):
        handle.remove()


def _unused(name: str, index: int, used: Set[str]) -> str:
    """Returns the name, with the index if it is in use, and adds it to those in use."""
    while name in used:
        name += f".{index}"
    used.add(name)
    return name


def _with_hooks(step: _Function) -> _Function:
    """Calls torch's wrapper of step() only if hooks or the profiler need it: it takes longer than a small step."""
    wrapped = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:  # hooks see which arguments are named
        is_needed = (self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
                     or _torch_optimizer._global_optimizer_pre_hooks or _torch_optimizer._global_optimizer_post_hooks
                     or torch.autograd._profiler_enabled())
        return (wrapped if is_needed else step)(self, *arguments, **named)
    call.hooked = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _disable_compilation() -> None:
    """Keeps torch.compile out of step(), which it could not trace.

    Called when the first optimizer is created, because torch.optim's constructor has imported the compiler then.
    """
    if Steps.step is _traceable_step:
        Steps.step = torch.compiler.disable(Steps.step)  # type: ignore[method-assign]


class Steps(Backward, Saving):
    """Base of Adam and AdamW: the step, on top of torch's optimizer classes."""

    state: Any
    param_groups: List[Dict[str, Any]]

    def _set_up(self, process_group: Any, arguments: Arguments) -> None:
        arguments.check(process_group)
        for g, group in enumerate(self.param_groups):
            check_new_group(group, g, arguments)
        if process_group is None and arguments.needs_norm:
            process_group = zero_redundancy_group()
        self._process_group, self._arguments = process_group, arguments
        self._check_params()
        self._begin()

    def _check_params(self) -> None:
        for g, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for i, param in enumerate(group["params"]):
                check_param(param, f"group{g}.{names[i] if names and i < len(names) else i}")

    def __repr__(self) -> str:
        arguments = self._arguments.non_defaults() if hasattr(self, "_arguments") else {}
        if arguments.get("zenflow") is not None:
            arguments["zenflow"] = self._arguments.zenflow
        lines = "".join(f"    {name}: {value}\n" for name, value in sorted(arguments.items()))
        return super().__repr__()[:-1] + (f"adamant\n{lines}" if lines else "") + ")"

    def _begin(self) -> None:
        _disable_compilation()
        # If True, a GradScaler does not unscale p.grad and sets attributes, see _refuse_scaler(). If False, it unscales
        # p.grad before step(), as for torch's classes.
        self._step_supports_amp_scaling = self._arguments.accumulate > 1 or self._arguments.overlap
        self._created = next_creation()
        self._watched: Dict[int, Tensor] = {}  # params with hooks, by id
        self._handles: Dict[int, List[Any]] = {}  # their hooks
        self._keys: List[int] = []  # ids of the params when hooks were added last
        weakref.finalize(self, _remove_all, self._handles)
        self._positions: Dict[int, Tuple[int, int]] = {}  # where a param was found, by its id: group and index
        self._local_names: Dict[int, str] = {}  # their names in these groups
        self._names: Dict[int, Tuple[Any, str]] = {}  # by the param's id: a reference to it, and its given name
        self._name_lists: List[Any] = []  # values of "param_names" whose names are known
        self._record_names()
        self._may_be_averaged = True  # until _refuse_averaging() has checked
        self._may_be_partitioned = True  # until _refuse_partitions() has checked
        self._lock = threading.RLock()  # backward() calls hooks in one thread for each device
        self._signature = new_signature()
        self._ranks = Ranks(self._process_group) if self._process_group is not None else None
        self._rank_norm = 0.0  # norm over all ranks, for a step without gradients on this rank
        # By the param's id: the param and its weights in host memory, for params on another device.
        self._mirrors: Dict[int, Tuple[Tensor, Tensor]] = {}
        # By the param's id: the versions at which its weights were equal to its master and its mirror.
        self._versions: Dict[int, Tuple[Any, ...]] = {}
        self._changes = Changes() if self._arguments.track_changes else None
        zenflow = self._arguments.zenflow
        self._zenflow = ZenFlowSteps(zenflow) if zenflow is not None else None
        self._forget()
        self._watch()

    def _forget(self) -> None:
        """Discards everything recorded about params. The next step reads them again."""
        self._step_groups: Optional[List[StepGroup]] = None
        self._open: Optional[OpenStep] = None
        self._total_words: Optional[Tensor] = None  # sum of squares of all step groups in words, if there are several
        self._hyper_is_taken = True
        self._is_stale = False  # after a failed step whose accumulated gradients are in the step groups
        self._overlaps = True  # False if the current step cannot begin in backward()
        self._backwards: Dict[int, int] = {}  # number of gradients in this step, by the param's id
        self._made: Dict[int, Tuple[Any, ...]] = {}  # address and version of the last gradient
        self._moved: Set[int] = set()  # params whose last gradient was moved to the accumulator
        self.last_report: Optional[Report] = None

    # Set-up of steps

    def _executor(self) -> Executor:
        arguments = self._arguments
        if arguments.cores is None and arguments.cpuadam_cores_perc is None:
            return shared_executor(threads=arguments.threads)
        return _threads.dedicated_executor(arguments.cores, arguments.cpuadam_cores_perc, arguments.threads)

    @property
    def _needs_norm(self) -> bool:
        return self._arguments.needs_norm

    def _reduce(self, words: Any) -> None:
        """Callback of libadamant_c: replaces a step group's sum of squares by that of all gradients of all ranks."""
        group_words = torch.frombuffer(words, dtype=torch.int64)
        if self._total_words is None:
            # Copy: a process group's thread may drop the last reference, and must not take the GIL then.
            total = group_words.clone()
            self._reduce_over_ranks(total)
        group_words.copy_(total if self._total_words is None else self._total_words)

    def _reduce_columns(self, numbers: Any, operation: str) -> None:
        """Callback of libadamant_c: replaces numbers of columns by their reduction over all ranks."""
        column_numbers = torch.frombuffer(numbers, dtype=torch.int64)
        total = column_numbers.clone()
        if self._ranks is not None:
            self._ranks.reduce(total, operation)
        column_numbers.copy_(total)

    def _reduce_over_ranks(self, words: Tensor) -> None:
        """Replaces the sum of squares by that of all ranks' gradients. Replicated gradients count once."""
        if self._ranks is None:
            return
        positions = {id(param): (step_group, number) for step_group in self._step_groups or []
                     for number, param in enumerate(step_group.params)}
        gradients, seen = [], set()
        for g, param in self._all_params():
            if id(param) in seen:
                continue
            seen.add(id(param))
            values = None
            if param.grad is not None:
                step_group, number = positions.get(id(param), (None, 0))
                values = (local(param.grad.detach()).to("cpu").contiguous() if step_group is None else
                          step_group.total_gradient(number, local(param.grad)))
            gradients.append(Gradient(self._name(param), param, values, self.param_groups[g].get("replicated")))
        self._ranks.reduce_squares(words, gradients)

    def _hyper(self, group: int) -> Dict[str, Any]:
        try:
            return self._read_hyper(self.param_groups[group])
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise InvalidArgument(f"cannot step parameter group {group}: lr, betas, eps and weight_decay must be "
                                  f"numbers ({type(error).__name__}: {error})") from None

    def _read_hyper(self, group: Dict[str, Any]) -> Dict[str, Any]:
        beta1, beta2 = group["betas"]
        for name, value in (("lr", group["lr"]), ("betas", beta1), ("betas", beta2), ("eps", group["eps"]),
                            ("weight_decay", group["weight_decay"])):
            if isinstance(value, str):  # which float() would accept
                raise TypeError(f"{name} is {value!r}")
        return {"lr": float(group["lr"]), "betas": (float(beta1), float(beta2)),
                "eps": float(group["eps"]), "weight_decay": float(group["weight_decay"]),
                "decoupled": group.get("decoupled_weight_decay", isinstance(self, torch_adamw)),
                **{name: getattr(self._arguments, name)
                   for name in ("exp_avg_sq_rounding", "param_rounding", "rounding_seed")}}

    def _name(self, param: Tensor) -> str:
        """The group's number and the param's name, or its index in the group."""
        self._record_names()
        position = self._positions.get(id(param))
        if position is None or not self._is_at(param, *position):
            self._find_params()
            position = self._positions.get(id(param))
        return "param" if position is None else f"group{position[0]}.{self._local_names[id(param)]}"

    def _find_params(self) -> None:
        self._positions, self._local_names = {}, {}
        for g, group in enumerate(self.param_groups):
            used: Set[str] = set()
            for i, param in enumerate(group["params"]):
                if id(param) in self._positions:
                    continue
                reference, known = self._names.get(id(param), (None, ""))
                name = known if reference is not None and reference() is param else str(i)
                # A param of this name may have joined from another group.
                self._positions[id(param)], self._local_names[id(param)] = (g, i), _unused(name, i, used)

    def _record_names(self) -> None:
        """Records names by param when they are new: users change "params" of a group, and not "param_names"."""
        lists = [group.get("param_names") for group in self.param_groups]
        if len(lists) == len(self._name_lists) and all(map(operator.is_, lists, self._name_lists)):
            return
        self._names = {key: entry for key, entry in self._names.items() if entry[0]() is not None}
        for group, names in zip(self.param_groups, lists):
            if not names or len(names) != len(group["params"]) or any(names is known for known in self._name_lists):
                continue
            used: Set[str] = set()
            for i, (param, name) in enumerate(zip(group["params"], names)):
                self._names[id(param)] = weakref.ref(param), _unused(name, i, used)
        self._name_lists, self._positions = lists, {}

    def _is_at(self, param: Tensor, group: int, index: int) -> bool:
        try:
            return self.param_groups[group]["params"][index] is param
        except (LookupError, TypeError):
            return False

    def _init_state(self, group: int, param: Tensor) -> None:
        check_param(param, self._name(param))
        if self._needs_norm:
            self._refuse_other_ranks(param)
        complete_state(self, group, param)

    def _refuse_other_ranks(self, param: Tensor) -> None:
        """Raises InvalidArgument if the norm would lack shards of other ranks."""
        reason = unknown_shards(param, self._process_group)
        if reason is not None:
            raise InvalidArgument(f"cannot compute the norm of {self._name(param)}: {reason}, so each rank would clip or "
                                  "skip by a norm of its own. Pass a process_group of all these ranks, such as the "
                                  "result of DeviceMesh.get_group()")

    def _format_of(self, group: Dict[str, Any]) -> Optional[str]:
        return group.get("state_format") or self._arguments.state_format

    def _all_params(self) -> List[Tuple[int, Tensor]]:
        return [(g, param) for g, group in enumerate(self.param_groups) for param in group["params"]]

    def _regroup(self, known: Optional[Dict[int, torch.dtype]] = None) -> List[StepGroup]:
        """Creates a step group of all params with gradients, and of known ones: dtypes of their gradients, by id."""
        known = known or {}
        self._refuse_accumulated("params, states or gradient dtypes have changed")
        self._refuse_groups()
        members = self._all_params()
        present = {id(param) for _, param in members}
        for cache in (self._mirrors, self._versions):
            for key in cache.keys() - present:
                del cache[key]
        self._step_groups = None
        step_groups = self._new_step_groups([(g, param) for g, param in members
                                             if param.grad is not None or id(param) in known], known)
        self._record(step_groups)
        return step_groups

    def _record(self, step_groups: List[StepGroup]) -> None:
        """Records groups, states and addresses as those of the current step groups."""
        slots, first = {}, 0
        for step_group in step_groups:
            step_group.first_slot = first
            slots.update({id(param): first + number for number, param in enumerate(step_group.params)})
            first += len(step_group.params)
        # A param that is listed twice is stepped once.
        numbers = [slots.pop(id(param), -1) for _, param in self._all_params()]
        assert not slots, "a step group contains params that belong to no parameter group"
        self._entry = {number: entry for entry, number in enumerate(numbers) if number >= 0}
        states = self.state if isinstance(self.state, dict) else dict(self.state)
        self._signature.record(self._groups(), states, numbers)

    def _groups(self) -> List[Dict[str, Any]]:
        """The groups as the signature reads them: a list of dicts with lists of params."""
        if isinstance(self.param_groups, list) and all(
                isinstance(group, dict) and isinstance(group["params"], (list, tuple)) for group in self.param_groups):
            return self.param_groups
        return [{**group, "params": list(group["params"])} for group in self.param_groups]

    def _check(self) -> int:
        try:
            return self._signature.check(self._groups(), self.state)
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
            return CHANGED  # a hyperparameter is invalid; _hyper() raises the error later

    def _widen_count(self, entry: int) -> None:
        """Replaces a step count by a tensor whose dtype holds the next counts exactly."""
        state = self.state[self._all_params()[entry][1]]
        state["step"] = count_tensor(int(state["step"]))
        self._step_groups = None

    def _refuse_groups(self) -> None:
        for g, group in enumerate(self.param_groups):
            check_group(group, g)

    def _refuse_sparse(self, param: Tensor) -> None:
        if param.grad is not None and param.grad.is_sparse:
            raise RuntimeError(f"cannot step {self._name(param)}: it has a sparse gradient, but Adam needs dense "
                               "gradients. Consider torch.optim.SparseAdam")

    def _refuse_accumulated(self, event: str) -> None:
        if any(step_group.accumulated for step_group in self._step_groups or []):
            raise InvalidArgument(f"gradients of earlier backward() calls were accumulated, but {event}. Call step() "
                                  "before, or zero_grad() to drop them")

    def _new_step_groups(self, members: List[Tuple[int, Tensor]],
                         grad_dtypes: Optional[Dict[int, torch.dtype]] = None) -> List[StepGroup]:
        distinct: List[Tuple[int, Tensor]] = []
        seen: Set[int] = set()
        counts: Set[int] = set()
        for g, param in members:
            self._refuse_sparse(param)
            if id(param) in seen:
                continue
            seen.add(id(param))
            align_gradient(param)
            self._init_state(g, param)
            state = self.state[param]
            steps = settle_count(state, self._name(param))
            if state["step"].data_ptr() in counts:  # params must not share a count
                state["step"] = count_tensor(steps)
            counts.add(state["step"].data_ptr())
            distinct.append((g, param))
        return [StepGroup(self, distinct, grad_dtypes or {})] if distinct else []

    # Steps

    @_with_hooks
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Perform one step for all params that have a gradient.

        Parameters
        ----------
        closure : callable, optional
            Reevaluates the model with gradients enabled and returns the loss.

        Returns
        -------
        Any
            The closure's loss. Without a closure: with max_norm the norm of all gradients before clipping, as a
            float64 tensor, or NaN if one is infinite or NaN; otherwise None. `last_report` has more.

        Raises
        ------
        adamant.InvalidArgument
            A param, gradient, state or hyperparameter cannot be stepped; the message names it.
        RuntimeError
            A gradient is sparse.

        Notes
        -----
        `param_groups` and `state` are read at every call. If a param or state changed after backward() began the step
        (overlap), params and states are inconsistent: load a state.
        """
        if self._may_be_partitioned:
            self._refuse_partitions()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with delayed_signals:
            if self._step_supports_amp_scaling:
                self._refuse_scaler()
            self._refuse_accumulated_by_others()
            if self._arguments.accumulate > 1:
                self._check_accumulated()
            try:
                report = (self._zenflow.step(self) if self._zenflow is not None else
                          self._finish() if self._open is not None else self._step_all())
            finally:
                self._signature.release()
            self._overlaps, self._is_stale = True, False
            self._restore_hooks(after_backward=True)
            self._begin_gradients()
            self.last_report = report
        if closure is None and self._arguments.max_norm is not None:
            norm = (self._rank_norm if report is None else report.global_norm if report.nonfinite_grads == 0 else
                    math.nan)
            return torch.tensor(norm, dtype=torch.float64, device="cpu")
        return loss

    def _refuse_partitions(self) -> None:
        """Raises InvalidArgument in an engine that partitions params, for arguments that need whole params."""
        engine = partitioning_engine()
        given = self._arguments.non_defaults()
        if self._process_group is not None:
            given["process_group"] = self._process_group
        for argument, reason in _not_for_partitions.items():
            if engine is not None and argument in given and given[argument] != "zero":
                raise InvalidArgument(f"cannot use {argument} in {engine}: {reason.format(engine)}. Leave it out")
        self._may_be_partitioned = False

    def _step_all(self) -> Optional[Report]:
        step_groups = self._step_groups
        for step_group in step_groups or []:
            for param in step_group.distributed:
                align_gradient(param)
        is_usable = step_groups is not None and all(step_group.is_usable for step_group in step_groups)
        bits = self._check() if is_usable else CHANGED
        self._hyper_is_taken = self._hyper_is_taken and not bits  # the next check does not report this change again
        if bits & CHANGED:
            step_groups = self._step_groups = self._regroup()
        elif bits & NEW_GRADIENT:
            if any(step_group.accumulated for step_group in step_groups or []):
                self._join()
            else:  # params that lack a gradient now probably get one again
                self._step_groups = self._regroup({id(param): dtype for step_group in step_groups or []
                                                   for param, dtype in zip(step_group.params, step_group.dtypes)})
            step_groups = self._step_groups
        assert step_groups is not None
        if not self._hyper_is_taken:
            for step_group in step_groups:
                step_group.take_hypers(self)
            self._hyper_is_taken = True
        skips = bool(bits & (CHANGED | NEW_GRADIENT | NO_GRADIENT)) or self._arguments.accumulate > 1
        if skips and all(param.grad is None for step_group in step_groups for param in step_group.params):
            step_groups = []  # other ranks may have gradients
        if self._needs_norm and len(step_groups) != 1:
            self._total_words = self._sum_squares(step_groups, [[local(param.grad) if param.grad is not None else None
                                                                 for param in step_group.params]
                                                                for step_group in step_groups])
        for step_group in step_groups:
            step_group.check_gradients()
        reports = []
        try:
            for step_group in step_groups:
                reports.append(step_group.step(self, skips))
        except BaseException:
            self._refresh_groups()
            raise
        finally:
            self._total_words = None
        if len(step_groups) > 1:
            self._step_groups = None  # the next step makes one of them
        return self._joined(reports, step_groups)

    def _refresh_groups(self) -> None:
        """Makes the next step create its groups again, because libadamant_c has the gradients of a failed step."""
        self._is_stale = any(step_group.accumulated for step_group in self._step_groups or [])
        if not self._is_stale:
            self._step_groups = None

    def _joined(self, reports: List[Report], step_groups: List[StepGroup]) -> Optional[Report]:
        """One report for the step groups of a step."""
        first = 0
        for report, before in zip(reports[1:], step_groups):
            first += len(before.params)
            reports[0].join(report, first, same_gradients=self._needs_norm)
        return reports[0] if reports else None

    def _sum_squares(self, step_groups: List[StepGroup], grads: List[List[Optional[Tensor]]]) -> Tensor:
        """The sum of squares of all gradients of all ranks, in words. Collective: every rank calls it once a step, even
        without gradients."""
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64, device="cpu")
        executor = self._executor()
        for step_group, group_grads in zip(step_groups, grads):
            for number, grad in enumerate(group_grads):
                if grad is not None:
                    add_squares(step_group.total_gradient(number, grad), words, executor)
        self._reduce_over_ranks(words)
        self._rank_norm = norm_of(words)
        return words

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset gradients, as torch's zero_grad() does.

        Drops accumulated gradients, and rolls back a step that backward() began.

        Parameters
        ----------
        set_to_none : bool, default True
            Set gradients to None instead of zero.

        Raises
        ------
        adamant.InvalidArgument
            With overlap, a step has begun and cannot be rolled back. Set max_norm or on_nonfinite="skip", or call
            step().
        """
        self._settle("zero_grad() is called")
        self._restore_hooks(after_backward=False)
        self._clear_accumulators()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Add a param group, as torch's add_param_group() does.

        Parameters
        ----------
        param_group : dict
            Params and options of the group.

        Raises
        ------
        adamant.InvalidArgument
            The group has an unsupported option or dtype, accumulated gradients are pending, or a begun step cannot be
            rolled back. Nothing has changed.
        """
        if not hasattr(self, "_arguments"):
            super().add_param_group(param_group)  # type: ignore[misc]
            return
        self._refuse_accumulated("a group is added")
        self._settle("add_param_group() is called")
        super().add_param_group(param_group)  # type: ignore[misc]
        added = self.param_groups[-1]["params"]
        owners = self._owners_of(added)
        try:
            check_new_group(self.param_groups[-1], len(self.param_groups) - 1, self._arguments)
            self._check_params()
            self._record_names()
            self._watch()
        except BaseException:
            self.param_groups.pop()
            self._unwatch(added, owners)
            raise
        self._forget()

    def _settle(self, event: str) -> None:
        """Rolls back the step that backward() began. Gradients stay, and step() starts over. event: for the error."""
        if self._open is not None:
            with delayed_signals:
                self._abandon(event)
                self._overlaps = True

    def flush(self) -> None:
        """Publish all weights now (zenflow).

        Waits for deferred updates of the last window and copies weights that are behind their masters. Call it before
        evaluation, before weights are saved or written by others, and at the end of training. Does nothing without
        zenflow.

        Notes
        -----
        flush() changes the bits of later steps.
        """
        if self._zenflow is not None:
            with delayed_signals:
                self._zenflow.flush(self)

    def take_weights(self) -> None:
        """Copy the current weights to masters and host copies.

        Call it after writes through `param.data` with masters, offload, zenflow, track_changes or params on a GPU:
        torch records no such write. With track_changes, marks all weights as changed. With zenflow, deferred updates
        that are not published are dropped from the weights.
        """
        self._versions.clear()
        if self._changes is not None:
            self._changes.mark_all()
        if self._zenflow is not None:
            with delayed_signals:
                self._zenflow.take_weights(self)

    def changed_weights(self, clear: bool = True) -> List[ChangedWeights]:
        """Return the weights that have changed since the last call, for every param.

        Weights that others write are among them: at the first call and after load_state_dict() or take_weights() all
        weights, after a write that torch records all weights of the param. Weights that changed and changed back may be
        listed. A step that is skipped or rolled back changes nothing. Requires `track_changes=True`.

        Parameters
        ----------
        clear : bool, default True
            The next call returns later changes only. False: it returns these, too.

        Returns
        -------
        list of ChangedWeights
            `param`, `name`, `indices` in the flattened whole param and `values`. A DTensor's are those of the local
            shard. Indices ascend for params that are contiguous in memory. For params of other dtypes than float32,
            bfloat16 and float16, which no step can change, `indices` is empty.

        Raises
        ------
        adamant.InvalidArgument
            The optimizer does not track changes; or with overlap, a step has begun in backward() and cannot be rolled
            back.
        """
        if self._changes is None:
            raise InvalidArgument("cannot collect changed weights: the optimizer does not track them. Pass "
                                  "track_changes=True")
        self._settle("changed_weights() is called")
        with delayed_signals:
            return self._changes.collect(self, clear)


_traceable_step = Steps.step
