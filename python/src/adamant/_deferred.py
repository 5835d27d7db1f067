# SPDX-License-Identifier: Apache-2.0
"""ZenFlow for torch optimizers: column-major states of matrices, and one ZenFlow optimizer of the library over all params.

Between steps the library has counts, flags and sums. save() writes them into the states for load() and copies; the next step
removes them, because it makes them stale.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import warnings
import weakref
from array import array as packed
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

from ._arrays import GROUP_ELEMS
from ._step_group import check_groups, check_place, check_readable, check_tracked, first_element, named
from ._host_copies import check_memory, flat, local
from ._library import InvalidArgument, Report
from ._deferred_device import Home, home_of, refusals
from ._deferred_native import DeferredOptimizer, ZenFlow, position_fields
from ._quantized8 import is_quantized, moments
from ._split_masters import joined, masters

if TYPE_CHECKING:
    from .torch._stepping import Steps as _Steps

# What the library knows, and states have when they were asked for.
known_to_library = ("step", "updates", "selected", "publishing", "sums", "summed", "window")
# State tensors that the library reads and writes in place.
kept_tensors = (*moments, "by_columns", *masters)

_natives: "weakref.WeakSet[DeferredOptimizer]" = weakref.WeakSet()


@atexit.register
def _end_background() -> None:
    # The tensors that threads work on in the background go when the interpreter ends.
    for native in list(_natives):
        native.close()


def _layout(tensor: Tensor) -> Tuple[Any, ...]:
    """Address, dtype, shape and strides of a tensor."""
    own = local(tensor)
    return own.data_ptr(), own.dtype, own.shape, own.stride()


def columns_of(param: Tensor) -> int:
    """The columns of a matrix; 0: it is a vector, which is updated every step."""
    return param.shape[-1] if param.dim() > 1 and param.numel() else 0


def _new_by_columns(shape: Any, kind: torch.dtype, **more: Any) -> Tensor:
    return torch.empty((shape[-1], *shape[:-1]), dtype=kind, **more).movedim(0, -1)


def _by_columns(values: Tensor) -> Tensor:
    """These, or a copy, with all rows of the first column before those of the next in memory."""
    if values.movedim(-1, 0).is_contiguous():
        return values
    return _new_by_columns(values.shape, values.dtype, device="cpu").copy_(values)


def _as_cut(param: Tensor, values: Tensor, lies_by_columns: bool) -> Tensor:
    """The tensor of a state: a DTensor if the param is one."""
    if not hasattr(param, "to_local"):
        return values
    like = _new_by_columns(param.shape, values.dtype, device="meta") if lies_by_columns else param
    return type(param).from_local(values, param.device_mesh, param.placements, run_check=False,  # type: ignore[attr-defined]
                                  shape=param.shape, stride=like.stride())


def _differ(a: Tensor, b: Tensor) -> Tensor:
    return (a != b).logical_and_((a.isnan() & b.isnan()).logical_not_())


def _copied(address: int, count: int, kind: torch.dtype) -> Tensor:
    """A tensor with what lies in the library's memory there."""
    if count == 0:
        return torch.empty(0, dtype=kind, device="cpu")
    return torch.frombuffer((ctypes.c_uint8 * (count * kind.itemsize)).from_address(address), dtype=kind).clone()


def _check_matrix(of: "_Steps", name: str, group: int, param: Tensor) -> None:
    """Raises InvalidArgument if the library cannot have a matrix so."""
    own = local(param)
    placements = getattr(param, "placements", ())
    cut = [how for at, how in enumerate(placements)
           if not how.is_replicate() and param.device_mesh.size(at) > 1]  # type: ignore[attr-defined]
    joined_ranks = of._process_group is not None and torch.distributed.get_world_size(of._process_group) > 1
    if any(type(how).__name__ != "Shard" or how.dim != 0 for how in cut):
        raise InvalidArgument(f"{name} is cut by {placements}, but with zenflow a matrix is cut along its first dimension, "
                              "so that each rank has whole rows; shard it so, or leave zenflow out")
    if cut and of._process_group is None:
        raise InvalidArgument(f"{name} is cut over ranks, but zenflow selects by the gradient's columns on all ranks; give "
                              "the ranks as process_group")
    if joined_ranks and not cut:
        raise InvalidArgument(f"{name} is no DTensor that is cut over ranks, but there is a process_group, and zenflow has to "
                              "know which rows of the matrix a rank has; shard it with FSDP2, or make a DTensor of it with "
                              "DTensor.from_local(). Where every rank has all of the gradient, leave process_group out")
    eight = (is_quantized(of.state[param]["exp_avg"]) if "exp_avg" in of.state[param]
             else "quantized8" in (of._format_of(of.param_groups[group]) or ""))
    rows = own.numel() // own.shape[-1]
    if eight and (cut or rows % GROUP_ELEMS):
        why = "but that is for matrices that no ranks share" if cut else (
            f"but its columns have {rows} rows, and groups of {GROUP_ELEMS} of a column must be whole")
        raise InvalidArgument(f"{name} has shape {tuple(param.shape)} and with zenflow moments of quantized8, {why}. Put it "
                              'into a group with another "state_format", "float32", "bfloat16" or one of these with halves '
                              "of masters")


class _Member:
    """A param as the library has it: where its arrays lie, and its deferred gradients in its state.

    home: the GPU that it is on, if what is updated every step is to be stepped there.
    """

    def __init__(self, of: "_Steps", group: int, param: Tensor, home: Optional[Home]):
        self.group, self.param, self.columns, self.home = group, param, columns_of(param), home
        self.name = of._name(param)
        if self.columns and of._process_group is not None and any(
                placement.is_replicate() for placement in getattr(param, "placements", ())):
            raise InvalidArgument(f"{self.name} is replicated, but zenflow reduces the columns of matrices over process_group. Shard "
                                  "it, or step it with a separate optimizer")
        if self.columns and isinstance(of.state[param], dict):
            _check_matrix(of, self.name, group, param)
        check_tracked(param, self.name)
        check_readable(local(param), f"param of {self.name}")
        of._init_state(group, param)
        self.state: Dict[str, Any] = of.state[param]
        self.mine = local(param.detach())
        if hasattr(param, "to_local") and self.mine.device.type != "cpu":
            raise InvalidArgument(f"{self.name} is a DTensor on a GPU, but must be in host memory: use FSDP2's "
                                  "CPUOffloadPolicy")
        self.kind = param.dtype if param.grad is None else param.grad.dtype
        # The weights by rows, which the library writes: the param's own, or a copy in host memory.
        self.weights = self.mine
        if home is not None:
            self.weights = home.host_room(self.mine.shape, self.mine.dtype).copy_(self.mine)
            # What the device works on: gradients come to this place, which does not move, and weights may lie where they
            # are. The library has read and written both when a step is over.
            self.grad_there = home.room(self.mine.shape, self.kind)
            self.weights_there = self.mine if home.takes(self.mine) else home.room(self.mine.shape, self.mine.dtype)
        elif of._arguments.offload or self.mine.device.type != "cpu" or not self.mine.is_contiguous():
            self.weights = torch.empty(self.mine.shape, dtype=self.mine.dtype, device="cpu",
                                       pin_memory=self.mine.device.type != "cpu")
            self.weights.copy_(self.mine)
        self.master = next((name for name in masters if name in self.state), None)
        self._build_layout()
        self._complete()
        self.known = {name: self.state[name] for name in kept_tensors if name in self.state}
        self.layouts = {name: _layout(value) for name, value in self.known.items()}
        self.layout = _layout(param)
        self.saved_as: Dict[str, Any] = {}
        self.version = self.version_now()

    @property
    def is_copied(self) -> bool:
        return self.weights is not self.mine

    def version_now(self) -> Tuple[int, int]:
        """Changes with the weights, by any writer, unless it is by way of `param.data`."""
        return self.param._version, local(self.param).data_ptr()

    def is_as_known(self, of: "_Steps", group: int, param: Tensor) -> bool:
        """Whether the library has this param, group and arrays."""
        return (param is self.param and group == self.group and _layout(param) == self.layout and self.has_its_state(of) and
                (param.grad is None or param.grad.dtype == self.kind))

    def has_its_state(self, of: "_Steps") -> bool:
        """Whether the state has the same tensors in the same memory."""
        state = of.state.get(self.param)
        return (state is self.state and {name for name in kept_tensors if name in state} == self.known.keys() and
                all([state[name] is value and _layout(value) == self.layouts[name] for name, value in self.known.items()]))

    def _saved_now(self) -> Dict[str, Any]:
        return {name: (id(value), local(value)._version, _layout(value)) if isinstance(value, Tensor) else value
                for name, value in self.state.items() if name in kept_tensors or name in known_to_library}

    def note_versions(self) -> None:
        self.saved_as = self._saved_now()

    def is_as_saved(self) -> bool:
        """Whether the state is unchanged since save()."""
        return self.saved_as == self._saved_now()

    # Set-up

    def _build_layout(self) -> None:
        """Has all arrays of the state lie as the library wants them. What lies otherwise is copied."""
        for name in (*moments, *masters, "by_columns"):
            if name not in self.state or name in moments and is_quantized(self.state[name]):
                continue
            values = local(self.state[name])
            if values.shape != self.mine.shape:
                raise InvalidArgument(f"{name} of {self.name} has shape {tuple(values.shape)}, but the param has "
                                      f"{tuple(self.mine.shape)}")
            laid = _by_columns(values) if self.columns else values.contiguous()
            if laid is not values:
                self.state[name] = _as_cut(self.param, laid, bool(self.columns))
        if self.master == "master_low" and (self.mine.dtype, local(self.state["master_low"]).dtype) != (
                torch.bfloat16, torch.int16):
            raise InvalidArgument(f"{self.name} is {self.mine.dtype} and its master_low {self.state['master_low'].dtype}, but "
                                  "the halves of a master are torch.bfloat16 and torch.int16; load a state that is whole")
        if not self.columns:
            return
        if "by_columns" not in self.state:
            made = _new_by_columns(self.mine.shape, self.mine.dtype, device="cpu").copy_(self.weights)
            self.state["by_columns"] = _as_cut(self.param, made, True)
            if self.master == "master_low":
                self._drop_halves_of_none(made)
        if self.state["by_columns"].dtype != self.mine.dtype:
            raise InvalidArgument(f"by_columns of {self.name} is {self.state['by_columns'].dtype}, but the param is "
                                  f"{self.mine.dtype}; load a state that is whole")

    def _complete(self) -> None:
        """Creates the tensors that a new state, or one of another optimizer, lacks."""
        state, count = self.state, max(1, self.columns)
        if "updates" not in state:
            state["updates"] = torch.full((count,), int(state["step"]), dtype=torch.int64, device="cpu")
            state["summed"] = torch.tensor(0, device="cpu")
            for name in ("selected", "publishing") if self.columns else ():
                state[name] = torch.zeros(count, dtype=torch.bool, device="cpu")

    def arrays(self) -> Dict[str, Tensor]:
        """By the names of a shard's fields, in the order in which they lie."""
        weights = local(self.state["by_columns"]) if self.columns else self.weights
        made = {"param": weights if self.master is None else local(self.state[self.master]),
                "grad": (torch.empty(self.mine.numel(), dtype=self.kind, device="cpu") if self.home is None  # until there is one
                         else self.home.host_room((self.mine.numel(),), self.kind)),  # where it comes down
                **{name: local(self.state[name]) for name in moments}}
        if self.master is not None:
            made["weight_out"] = weights
        for what, values in made.items():
            part = "moment" if what in moments else "master" if what == "param" and self.master == "master_low" else ""
            check_place(values, f"{what} of {self.name}", part)
            if part == "moment" and is_quantized(values):
                check_groups(values, f"{what} of {self.name}", self.weights)
        return {what: flat(values) for what, values in made.items()}

    # Weights that others write

    def _upper(self) -> Tensor:
        """The weights that the masters stand for."""
        if self.master == "master_param":
            return local(self.state["master_param"]).to(self.mine.dtype)
        return local(self.state["by_columns"])

    def _drop_halves_of_none(self, weight: Tensor) -> None:
        """Drops residuals that no master has beside its weight."""
        low = local(self.state["master_low"])
        low.masked_fill_(joined(weight, low).isnan(), 0)

    @torch.no_grad()
    def take_weights(self, as_loaded: bool) -> None:
        """Takes over what differs from the masters. as_loaded: columns that have yet to be published do not differ."""
        weight = local(self.param.detach()).to("cpu")
        if not self.columns:
            if self.is_copied:
                self.weights.copy_(weight)
            if self.master == "master_low":
                self._drop_halves_of_none(weight)
                return
            if self.master is None:
                return
        if self.columns and self.is_copied and not as_loaded:
            changed = _differ(weight, self.weights)
        else:
            changed = _differ(weight, self._upper())
            if self.columns:
                changed.logical_and_(self.state["publishing"].logical_not())
        if self.is_copied:
            self.weights.copy_(weight)
        if not bool(changed.any()):
            return  # masters keep the bits that a param has no room for
        if self.columns:
            local(self.state["by_columns"])[changed] = weight[changed]
        if self.master == "master_param":
            local(self.state["master_param"])[changed] = weight[changed].float()
        elif self.master == "master_low":
            local(self.state["master_low"])[changed] = 0

    # Steps

    def gradient(self) -> Optional[Tensor]:
        """By rows in host memory; None: there is none in this step."""
        grad = self.param.grad
        if grad is None:
            return None
        check_readable(local(grad), f"grad of {self.name}")
        return local(grad.detach()).to("cpu").contiguous()

    def bring_there(self) -> bool:
        """The same for arrays on the device. Returns whether there is one."""
        if self.param.grad is None:
            return False
        assert self.home is not None
        self.home.copy(self.grad_there, self.param.grad.detach())
        return True

    def bring_up(self) -> None:
        if self.home is not None:
            if self.weights_there is not self.mine:
                self.home.copy(self.mine, self.weights_there)
        elif self.is_copied:
            self.mine.copy_(self.weights)

    # State

    def save(self, native: DeferredOptimizer, number: int, window: Tensor) -> None:
        found, count, state = native.param(number), max(1, self.columns), self.state
        state["updates"] = _copied(found.counts, count, torch.int64)
        counted = state["updates"].max()
        state["step"] = counted.float() if int(counted) < 1 << 24 else counted.double()
        state["summed"] = torch.tensor(int(found.summed), device="cpu")
        state["window"] = window.clone()
        if self.columns:
            for name in ("selected", "publishing"):
                state[name] = _copied(getattr(found, name), count, torch.uint8).bool()
            # Always present: checkpoints of torch.distributed load only the keys that a new optimizer has.
            sums = (_copied(found.sums, self.mine.numel(), torch.float32).view(self.mine.shape)
                    if found.summed and not bool(state["selected"].all()) else torch.zeros(self.mine.shape, device="cpu",
                                                                                         dtype=torch.float32))
            state["sums"] = _as_cut(self.param, sums, False)
        self.note_versions()

    def values(self) -> Tuple[Dict[str, Any], List[Tensor]]:
        """The struct for load(), and the tensors that it points to."""
        state = self.state
        counted = int(state["updates"].max())
        if "step" in state and int(state["step"]) != counted:
            raise InvalidArgument(f"cannot use the state of {self.name}: step is {int(state['step'])}, but the largest column "
                                  f"count in updates is {counted}. Set both")
        kept = [state["updates"].to(torch.int64).contiguous()]
        made = {"counts": kept[0].data_ptr(), "summed": int(state["summed"])}
        for name in ("selected", "publishing") if self.columns else ():
            kept.append(state[name].to(torch.uint8).contiguous())
            made[name] = kept[-1].data_ptr()
        if self.columns and made["summed"]:
            sums = local(state["sums"]) if "sums" in state else torch.zeros(self.mine.shape, device="cpu")  # where all are selected
            kept.append(sums.float().contiguous())
            made["sums"] = kept[-1].data_ptr() or None
        return made, kept


class Deferred:
    """ZenFlow of an optimizer.

    Where all params are on one GPU and the library has CUDA, what is updated every step is stepped there. Otherwise
    everything is in host memory, and a warning says so once.
    """

    new_home, home_of = Home, staticmethod(home_of)  # tests have others

    def __init__(self, options: ZenFlow):
        self.options = options
        self.native: Optional[DeferredOptimizer] = None  # until the first step, and after load()
        self.members: List[_Member] = []
        self.hypers: Dict[int, Dict[str, Any]] = {}
        self.flags: Dict[int, bool] = {}  # which groups maximize
        self.number_of: Dict[int, int] = {}
        self.position: Dict[str, Any] = {}
        self.home: Optional[Home] = None
        self.why_not_there = ""
        self.is_saved = False  # states and position are those of the library
        self.forget(())

    def forget(self, states: Iterable[Any]) -> None:
        """Discards the library's optimizer and continues from these states."""
        if self.native is not None:
            self.native.close()
        self.native = None
        self.members = []
        self._take_position(states)

    def _take_position(self, states: Iterable[Any]) -> None:
        """Reads the position of the run from the states. States of other optimizers have taken plain steps only."""
        self.position = dict.fromkeys(position_fields, 0)
        for state in states:
            if isinstance(state, dict) and "window" in state:
                found = dict(zip(position_fields, state["window"].tolist()))
                self.position = {name: value if name.endswith(("squares", "norm")) else int(value)
                                 for name, value in found.items()}
            elif isinstance(state, dict) and "step" in state and "updates" not in state:
                self.position["steps"] = max(self.position["steps"], int(state["step"]))

    def _check_here(self) -> None:
        if self.native is not None and not self.native.here:
            raise InvalidArgument(f"process {os.getpid()} was forked from the optimizer's, which has the deferred gradients; load a "
                                  "state_dict() here")

    # What is known of params

    def _find_home(self, of: "_Steps", params: List[Tensor]) -> Optional[Home]:
        device, why = (None, "") if of._arguments.offload else self.home_of(params)
        if device is None or self.why_not_there:
            self._stays_away(why)
            return None
        if self.home is None or self.home.device != device or not self.home.handle.here:
            try:
                self.home = self.new_home(device)
            except refusals as error:
                self._stays_away(str(error))
                return None
        return self.home

    def _stays_away(self, why: str) -> None:
        if why and not self.why_not_there:
            self.why_not_there = why
            warnings.warn("params are on a GPU, but zenflow has what it updates every step, and everything else, stepped in "
                          f"host memory: {why}", RuntimeWarning, stacklevel=2)

    def _make(self, of: "_Steps", wanted: List[Tuple[int, Tensor]]) -> None:
        """Makes an optimizer of the library's over these params, which goes on from their states."""
        self.save()
        if self.native is not None:
            self.native.close()  # and what it has in the background is done, and the device free for the next
        self.native, self.members = None, []
        self._take_position(of.state.values())
        home = self._find_home(of, [param for _, param in wanted])
        if home is not None:
            try:
                self._make_at(of, wanted, home)
                return
            except refusals as error:
                self._stays_away(str(error))
        self._make_at(of, wanted, None)

    def _make_at(self, of: "_Steps", wanted: List[Tuple[int, Tensor]], home: Optional[Home]) -> None:
        if home is not None:
            home.wait_for_caller()
        members = [_Member(of, group, param, home) for group, param in wanted]
        spread = of._process_group is not None
        native = DeferredOptimizer(
            of._executor(), self.options, max_norm=of._arguments.library_max_norm, on_nonfinite=of._arguments.on_nonfinite,
            reduce=of._reduce if spread and (of._needs_norm or self.options.is_automatic) else None,
            reduce_columns=of._reduce_columns if spread else None)
        _natives.add(native)
        native.names = [member.name for member in members]
        hypers = {group: of._hyper(group) for group in sorted({group for group, _ in wanted})}
        number_of: Dict[int, int] = {}
        for group, hyper in hypers.items():
            with named(f"parameter group {group}"):
                number_of[group] = native.add_group(f"group{group}", maximize=of.param_groups[group]["maximize"], **hyper)
        arrays = [member.arrays() for member in members]
        for member, given in zip(members, arrays):
            # Stochastic rounding depends on the element's index in the whole param.
            shape = tuple(member.param.shape) if member.columns or hasattr(member.param, "to_local") else ()
            with named(member.name):
                native.add_param(number_of[member.group], member.name, given, member.columns, member.weights, shape,
                                 first_element(member.param))
        for member in members:
            member.take_weights(as_loaded=True)
        self._load(native, members)
        if home is not None:
            for number, member in enumerate(members):
                if member.mine.numel():
                    native.set_device_arrays(number, member.grad_there, member.weights_there)
            home.wait_for_caller()
            home.make_room()
            native.place(home.handle)
        self.native, self.members, self.home = native, members, home
        self.hypers, self.number_of, self.is_saved = hypers, number_of, True
        self.flags = self._flags_of(of)

    def _load(self, native: DeferredOptimizer, members: List[_Member]) -> None:
        """Has the library go on from the states."""
        values = [member.values() for member in members]
        native.load(self.position, [made for made, _ in values])
        for member in members:
            member.note_versions()

    def _get_ready(self, of: "_Steps") -> DeferredOptimizer:
        """Sees what has changed since the last step."""
        self._check_here()
        of._refuse_groups()
        wanted = [(group, param) for group, param in of._all_params()
                  if param.requires_grad or param.grad is not None or param in of.state]
        for _, param in wanted:
            check_memory(param, f"cannot step {of._name(param)}: it")
        if self.native is not None:
            self._take_written(of)
        if self.native is None or len(wanted) != len(self.members) or self._is_otherwise(of) or not all(
                [member.is_as_known(of, *each) for member, each in zip(self.members, wanted)]):
            self._make(of, wanted)
        assert self.native is not None
        for group, known in self.hypers.items():
            now = of._hyper(group)
            if now != known:
                with named(f"parameter group {group}"):
                    self.native.set_hyperparameters(self.number_of[group], **now)
                self.hypers[group] = now
        return self.native

    def _is_otherwise(self, of: "_Steps") -> bool:
        """Whether group flags or saved state values have changed."""
        if self.is_saved:
            return (self.flags != self._flags_of(of)) or not all([member.is_as_saved() for member in self.members])
        for member in self.members:
            written = [name for name in known_to_library if name in member.state]
            if written and of.state.get(member.param) is member.state:
                raise InvalidArgument(f"cannot use the state of {member.name}: {' and '.join(written)} cannot be "
                                      "written now, because with zenflow states have counts and sums only from state_dict() to "
                                      "the next step(). Call state_dict(), write them and step()")
        return self.flags != self._flags_of(of)

    def _flags_of(self, of: "_Steps") -> Dict[int, bool]:
        return {group: bool(of.param_groups[group]["maximize"]) for group in self.hypers if group < len(of.param_groups)}

    def _take_written(self, of: "_Steps") -> None:
        """Takes over weights that others have written since the last step."""
        written = [member for member in self.members if member.version != member.version_now() and
                   _layout(member.param)[1:3] == member.layout[1:3]]  # another dtype or shape is refused later
        if not written:
            return
        self.save()
        for member in written:
            if member.columns and (not member.is_copied or self.home is not None) and bool(member.state["publishing"].any()):
                raise InvalidArgument(f"the weights of {member.name} were written while some of its columns have yet to be published, "
                                      "and which of their elements are new is unknown. Call the optimizer's flush() before "
                                      "weights are written; or take_weights() now, with which all weights count as they are, "
                                      "and those that have yet to be published do not; or load a state_dict()")
        if self.home is not None:  # whose masters are to know of it, too
            assert self.native is not None
            self.native.close()
            self.native = None
            return
        for member in written:
            member.take_weights(as_loaded=False)
            member.version = member.version_now()

    # Steps

    def step(self, of: "_Steps") -> Optional[Report]:
        params = [param for _, param in of._all_params()]
        for param in params:
            of._refuse_sparse(param)
        if of._process_group is None and all(param.grad is None for param in params):
            return None
        native = self._get_ready(of)
        if self.home is not None:
            return self._step_there(native, self.home)
        given = [member.gradient() for member in self.members]
        report = native.step_at(packed("Q", [0 if grad is None else grad.data_ptr() for grad in given]))
        if not report.skipped:
            self._written()
        return report

    def _step_there(self, native: DeferredOptimizer, home: Home) -> Report:
        with torch.no_grad():
            present = [member.bring_there() for member in self.members]
        try:
            report = native.step_there(home.event(), present)
        except BaseException:  # weights may have published all the same
            self._written()
            raise
        if not report.skipped:
            self._written()
        return report

    def _written(self) -> None:
        for member in self.members if self.is_saved else ():
            if "window" in member.state:  # marks an earlier state_dict(), which shares the moments, as stale
                member.state["window"].fill_(-1)
            for name in known_to_library:
                member.state.pop(name, None)
        self.is_saved = False
        with torch.no_grad():
            for member in self.members:
                member.bring_up()
            # Autograd then sees that what it has saved was changed.
            torch.autograd.graph.increment_version([member.param for member in self.members])
        for member in self.members:
            member.version = member.version_now()

    def flush(self, of: "_Steps") -> None:
        if self.native is None and not any(isinstance(state, dict) and "updates" in state
                                           for state in of.state.values()):
            return
        native = self._get_ready(of)
        if self.home is not None:
            self.home.wait_for_caller()  # who may still read the weights
        native.flush()
        self._written()

    def take_weights(self, of: "_Steps") -> None:
        self._check_here()
        self.save()
        self.forget(of.state.values())
        for state in of.state.values():
            if isinstance(state, dict) and "publishing" in state:
                state["publishing"] = torch.zeros_like(state["publishing"])

    # State

    def save(self) -> None:
        """Copies counts, flags, sums and the position from the library to the states."""
        if self.native is None or self.is_saved:
            return
        self._check_here()
        if self.home is not None:
            self.home.wait_for_caller()
        self.position = self.native.position()
        window = torch.tensor([float(self.position[name]) for name in position_fields], dtype=torch.float64, device="cpu")
        for number, member in enumerate(self.members):
            if all(name in member.state for name in member.known):  # a cleared state starts from zero
                member.save(self.native, number, window)
        self.is_saved = True

    def saved(self, states: Dict[Any, Dict[str, Any]]) -> Dict[Any, Dict[str, Any]]:
        """The entries of a state_dict(): without weights that equal the rounded masters."""
        return {key: {name: value for name, value in state.items() if name != "by_columns" or "master_param" not in state}
                if isinstance(state, dict) else state for key, state in states.items()}

    def check(self, of: "_Steps", state_dict: Dict[str, Any]) -> None:
        """Raises InvalidArgument if this is no state to go on from."""
        params = of._params_by_number(state_dict)
        windows: List[Tensor] = []
        for number, state in state_dict["state"].items():
            if number not in params:
                continue
            name, param = of._name(params[number]), params[number]
            columns = columns_of(param)
            if "updates" not in state:
                if columns and any(is_quantized(state.get(moment)) for moment in moments):
                    raise InvalidArgument(f"the state of {name} has moments of quantized8 in groups of rows, but with zenflow "
                                          "groups are of columns; make float32 moments of them by "
                                          "adamant.torch.dequantized(state, param), for each state of state_dict['state'], and "
                                          'give the group the "state_format" "float32"')
                continue
            flags = ("selected", "publishing") if columns else ()
            missing = [each for each in ("step", "summed", "window", "exp_avg", "exp_avg_sq", *flags) if each not in state]
            kinds = {"updates": torch.int64, "summed": torch.int64, "window": torch.float64, "selected": torch.bool,
                     "publishing": torch.bool, "sums": torch.float32, "by_columns": param.dtype}
            for each, kind in kinds.items():
                value = state.get(each)
                if value is not None and not (isinstance(value, Tensor) and value.layout == torch.strided and
                                              value.device.type != "meta" and value.dtype == kind):
                    raise InvalidArgument(f"cannot use the state of {name}: {each} is {value!r}, but must be a dense tensor of "
                                          f"dtype {kind}")
            if not missing and columns and int(state["summed"]) and not bool(state["selected"].all()) and "sums" not in state:
                missing = ["sums"]
            if missing:
                raise InvalidArgument(f"the state of {name} has no {' and no '.join(missing)}; load a state that is whole")
            if columns and not any(each in state for each in ("by_columns", "master_param")):
                raise InvalidArgument(f"the state of {name} has no by_columns and no master_param; load a state that is whole")
            for each in ("updates", *flags):
                if state[each].numel() != max(1, columns):
                    raise InvalidArgument(f"{each} of {name} has {state[each].numel()} columns, but the param has "
                                          f"{max(1, columns)}")
            for each, numel in (("summed", 1), ("window", len(position_fields))):
                if state[each].numel() != numel:
                    raise InvalidArgument(f"cannot use the state of {name}: {each} has {state[each].numel()} elements, but must have "
                                          f"{numel}")
            if float(state["window"].min()) < 0:
                raise InvalidArgument(f"cannot load the state of {name}: steps since state_dict() have changed its moments. Call "
                                      "state_dict() when it is wanted, or keep copy.deepcopy() of it")
            if int(state["updates"].min()) < 0 or int(state["summed"]) < 0 or not bool(
                    state["window"].isfinite().all()):
                raise InvalidArgument(f"cannot use the state of {name}: updates, summed and window must be 0 or more")
            windows.append(state["window"])
            if not torch.equal(windows[0], state["window"]):
                raise InvalidArgument(f"cannot use the state of {name}: its window, which is the position of the run, is "
                                      f"{state['window'].tolist()}, but that of other params is {windows[0].tolist()}. Load states "
                                      "that were saved together")
            if "sums" in state and state["sums"].shape != param.shape:
                raise InvalidArgument(f"sums of {name} have shape {tuple(state['sums'].shape)}, but the param has "
                                      f"{tuple(param.shape)}")


def refuse_without(state_dict: Dict[str, Any]) -> None:
    """Raises InvalidArgument if a state has put something off, for an optimizer that cannot."""
    if any(isinstance(state, dict) and "updates" in state for state in state_dict["state"].values()):
        raise InvalidArgument("the state is one of zenflow: its columns have taken different numbers of steps, and some of "
                              "them have deferred gradients. Load it into an optimizer with zenflow=ZenFlow(...); with "
                              "topk_ratio=1 that updates all columns every step from its next selection on")
