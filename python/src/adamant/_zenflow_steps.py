# SPDX-License-Identifier: Apache-2.0
"""ZenFlow for the torch optimizers: states by columns, and one ZenFlow optimizer of libadamant_c for all params.

Between steps libadamant_c holds counts, flags and sums. save() copies them to the states for state_dict() and copies of
the optimizer. The next step removes them from the states, because they are stale then.
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
from ._host_copies import (align_gradient, as_dtensor, check_memory, flat, has_allocation, is_dense, local,
                           memory_version, record_writes, write_count)
from ._library import InvalidArgument, Report, counted, weakly
from ._quantized8 import is_quantized, moments
from ._ranks import unknown_shards
from ._split_masters import joined, master_key, masters
from ._step_group import (check_array, check_groups, check_readable, check_tracked, error_context, first_element,
                          set_changed_hypers)
from ._zenflow_device import ZenFlowDevice, device_errors, find_gpu
from ._zenflow_optimizer import ZenFlow, ZenFlowOptimizer, position_fields

if TYPE_CHECKING:
    from .torch._stepping import Steps as _Steps

# Values that libadamant_c holds between steps. States have them from save() to the next step.
library_keys = ("step", "updates", "selected", "publishing", "sums", "summed", "window")
# State tensors that libadamant_c reads and writes in place.
tensor_keys = (*moments, "by_columns", *masters)

_natives: "weakref.WeakSet[ZenFlowOptimizer]" = weakref.WeakSet()


@atexit.register
def _end_background() -> None:
    # Background threads work on tensors that the interpreter frees at exit.
    for native in list(_natives):
        native.close()


def _layout(tensor: Tensor) -> Tuple[Any, ...]:
    """Address, dtype, shape and strides of a tensor."""
    shard = local(tensor)
    return shard.data_ptr(), shard.dtype, shard.shape, shard.stride()


def column_count(param: Tensor) -> int:
    """The number of columns of a matrix; 0 for a vector, which is stepped every step."""
    return param.shape[-1] if param.dim() > 1 and param.numel() else 0


def _empty_by_columns(shape: Any, dtype: torch.dtype, **options: Any) -> Tensor:
    return torch.empty((shape[-1], *shape[:-1]), dtype=dtype, **options).movedim(0, -1)


def _by_columns(values: Tensor) -> Tensor:
    """Returns the tensor in column order in memory: unchanged if it has that order, else a copy."""
    if values.movedim(-1, 0).is_contiguous():
        return values
    return _empty_by_columns(values.shape, values.dtype, device="cpu").copy_(values)


def _as_dtensor(param: Tensor, values: Tensor, is_by_columns: bool) -> Tensor:
    """Wraps values of this rank's shard in a DTensor if the param is one."""
    if not hasattr(param, "to_local"):
        return values
    like = _empty_by_columns(param.shape, values.dtype, device="meta") if is_by_columns else param
    return as_dtensor(param, values, param.shape, like.stride())


def _differ(a: Tensor, b: Tensor) -> Tensor:
    return (a != b).logical_and_((a.isnan() & b.isnan()).logical_not_())


def _copy_from(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """Copies elements at an address to a new tensor."""
    if count == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address), dtype=dtype).clone()


def _check_matrix(optimizer: "_Steps", name: str, group: int, param: Tensor) -> None:
    """Raises InvalidArgument if zenflow does not support the shards or the moments of a matrix."""
    shard = local(param)
    placements = getattr(param, "placements", ())
    sharding = [placement for dimension, placement in enumerate(placements)
                if not placement.is_replicate() and param.device_mesh.size(dimension) > 1]  # type: ignore[attr-defined]
    group_has_ranks = (optimizer._process_group is not None and
                       torch.distributed.get_world_size(optimizer._process_group) > 1)
    if any(type(placement).__name__ != "Shard" or placement.dim != 0 for placement in sharding):
        raise InvalidArgument(f"cannot step {name} with zenflow: its placements are {placements}, but each rank must "
                              "have whole rows. Shard it along its first dimension, or leave zenflow out")
    lacking = unknown_shards(param, optimizer._process_group)
    if lacking is not None:
        raise InvalidArgument(f"cannot step {name} with zenflow: {lacking}, but columns are selected by the gradients "
                              "of all ranks. Pass a process_group of all these ranks")
    if group_has_ranks and not sharding:
        raise InvalidArgument(f"cannot step {name} with zenflow and process_group: it is not a sharded DTensor, so "
                              "this rank's rows are unknown. Shard it with FSDP2, or make a DTensor with "
                              "DTensor.from_local(). If every rank has the full gradient, leave process_group out")
    is_8_bit = (is_quantized(optimizer.state[param]["exp_avg"]) if "exp_avg" in optimizer.state[param]
                else "quantized8" in (optimizer._format_of(optimizer.param_groups[group]) or ""))
    rows = shard.numel() // shard.shape[-1]
    if is_8_bit and (sharding or rows % GROUP_ELEMS):
        reason = "it is sharded over ranks" if sharding else (
            f"its shape is {tuple(param.shape)}, and a column of {counted(rows, 'row')} is no multiple of "
            f"{GROUP_ELEMS} elements")
        raise InvalidArgument(f"cannot use quantized8 moments for {name} with zenflow: {reason}. Put it into a group "
                              "with "
                              'the "state_format" "float32", "bfloat16", "split_float32" or "split_float32+bfloat16"')


class _TrackedParam:
    """A param as libadamant_c knows it: the addresses and layouts of its arrays, and its state.

    Parameters
    ----------
    device : ZenFlowDevice or None
        The GPU that holds the param and steps its selected columns. None: everything is stepped in host memory.
    """

    def __init__(self, optimizer: "_Steps", group: int, param: Tensor, device: Optional[ZenFlowDevice]):
        self.group, self.param, self.columns, self.device = group, param, column_count(param), device
        self.name = optimizer._name(param)
        if self.columns and optimizer._process_group is not None and any(
                placement.is_replicate() for placement in getattr(param, "placements", ())):
            raise InvalidArgument(f"cannot step {self.name} with zenflow and process_group: it is replicated, but "
                                  "scores of columns are summed over process_group. Shard it, or step it with a "
                                  "separate optimizer")
        if self.columns and isinstance(optimizer.state[param], dict):
            _check_matrix(optimizer, self.name, group, param)
        check_tracked(param, self.name)
        check_readable(local(param), f"param of {self.name}")
        optimizer._init_state(group, param)
        self.state: Dict[str, Any] = optimizer.state[param]
        self.shard = local(param.detach())
        if hasattr(param, "to_local") and self.shard.device.type != "cpu":
            raise InvalidArgument(f"cannot step {self.name}: it is a DTensor on a GPU, but must be in host memory. Use "
                                  "FSDP2's CPUOffloadPolicy")
        self.grad_dtype = param.dtype if param.grad is None else param.grad.dtype
        # Weights by rows, which libadamant_c writes: the param itself, or a copy in host memory.
        self.weights = self.shard
        if device is not None:
            self.weights = device.empty_pinned(self.shard.shape, self.shard.dtype).copy_(self.shard)
            # The device needs fixed addresses, so gradients are copied to a buffer. Weights are used in place if their
            # layout permits it. libadamant_c has finished with both when a step returns.
            self.device_grad = device.empty(self.shard.shape, self.grad_dtype)
            self.device_weights = (self.shard if device.can_use(self.shard)
                                   else device.empty(self.shard.shape, self.shard.dtype))
        elif optimizer._arguments.offload or self.shard.device.type != "cpu" or not self.shard.is_contiguous():
            self.weights = torch.empty(self.shard.shape, dtype=self.shard.dtype, device="cpu",
                                       pin_memory=self.shard.device.type != "cpu")
            self.weights.copy_(self.shard)
        self.master = master_key(param, self.state)
        self._build_layout()
        zenflow = optimizer._zenflow
        # A param that joins between selections: with a ratio of 1 none of its columns is deferred.
        self._complete_state(zenflow.options.topk_ratio == 1 and bool(zenflow.position.get("has_selection")))
        self.tensors = {name: self.state[name] for name in tensor_keys
                        if name in self.state and (name not in masters or name == self.master)}
        self.layouts = {name: _layout(value) for name, value in self.tensors.items()}
        self.layout = _layout(param)
        self.saved_versions: Dict[str, Any] = {}
        self.tensor_versions: Dict[str, Any] = {}
        self.version: Any = None
        self.version = self.current_version()

    @property
    def is_copied(self) -> bool:
        return self.weights is not self.shard

    def current_version(self) -> Tuple[Any, ...]:
        """See memory_version()."""
        return memory_version(self.param, self.version)

    def is_unchanged(self, optimizer: "_Steps", group: int, param: Tensor) -> bool:
        """Whether the param, its group and its arrays are those that libadamant_c knows."""
        return (param is self.param and group == self.group and _layout(param) == self.layout and
                self.has_same_tensors(optimizer) and (param.grad is None or param.grad.dtype == self.grad_dtype))

    def has_same_tensors(self, optimizer: "_Steps") -> bool:
        """Whether the state has the same tensors in the same memory."""
        state = optimizer.state.get(self.param)
        return (state is self.state and {name for name in tensor_keys if name in state} == self.tensors.keys() and
                all([state[name] is value and _layout(value) == self.layouts[name]
                     for name, value in self.tensors.items()]))

    def _state_versions(self) -> Dict[str, Any]:
        return {name: (id(value), write_count(value), _layout(value)) if isinstance(value, Tensor) else value
                for name, value in self.state.items() if name in tensor_keys or name in library_keys}

    def _tensor_versions(self) -> Dict[str, Any]:
        return {name: (id(value), write_count(value), local(value).data_ptr()) if isinstance(value, Tensor) else value
                for name, value in self.state.items() if name in tensor_keys}

    def record_tensors(self) -> None:
        """Records the state tensors at the end of a step, whose values on a device are newer than these."""
        self.tensor_versions = self._tensor_versions()

    def check_tensors(self, optimizer: "_Steps") -> None:
        """Raises InvalidArgument if a state tensor was replaced or written while the device has newer values."""
        if optimizer.state.get(self.param) is not self.state:
            return  # a new state has no values of this one
        versions = self._tensor_versions()
        written = [name for name in versions if versions[name] != self.tensor_versions.get(name)]
        if written:
            raise InvalidArgument(f"cannot use the state of {self.name}: {' and '.join(written)} cannot be written "
                                  "now, because with zenflow the GPU has newer values until state_dict(). Call "
                                  "state_dict(), write them and step()")

    def record_versions(self) -> None:
        self.saved_versions = self._state_versions()

    def is_as_saved(self) -> bool:
        """Whether the state is unchanged since save()."""
        return self.saved_versions == self._state_versions()

    # Set-up

    def _build_layout(self) -> None:
        """Replaces state tensors of another layout by copies in the layout that libadamant_c needs."""
        for name in (*moments, self.master, "by_columns"):
            if name is None or name not in self.state or name in moments and is_quantized(self.state[name]):
                continue
            values = local(self.state[name])
            if values.shape != self.shard.shape:
                raise InvalidArgument(f"cannot step {self.name}: {name} has shape {tuple(values.shape)}, but the param "
                                      f"has {tuple(self.shard.shape)}")
            ordered = _by_columns(values) if self.columns else values.contiguous()
            if ordered is not values:
                self.state[name] = _as_dtensor(self.param, ordered, bool(self.columns))
        if self.master == "master_low" and (self.shard.dtype, local(self.state["master_low"]).dtype) != (
                torch.bfloat16, torch.int16):
            raise InvalidArgument(f"cannot step {self.name}: it is {self.shard.dtype} and its master_low "
                                  f"{self.state['master_low'].dtype}, but split master weights are torch.bfloat16 and "
                                  "torch.int16. Load a complete state")
        if not self.columns:
            return
        if "by_columns" not in self.state:
            by_columns = _empty_by_columns(self.shard.shape, self.shard.dtype, device="cpu").copy_(self.weights)
            self.state["by_columns"] = _as_dtensor(self.param, by_columns, True)
            if self.master == "master_low":
                self._clear_invalid_low(by_columns)
        if self.state["by_columns"].dtype != self.shard.dtype:
            raise InvalidArgument(f"cannot step {self.name}: by_columns is {self.state['by_columns'].dtype}, but the "
                                  f"param is {self.shard.dtype}. Load a complete state")

    def _complete_state(self, selects_all: bool) -> None:
        """Adds ZenFlow's keys to a new state or to a state of an optimizer without zenflow."""
        state, count = self.state, max(1, self.columns)
        if "updates" not in state:
            state["updates"] = torch.full((count,), int(state["step"]), dtype=torch.int64, device="cpu")
            state["summed"] = torch.tensor(0, device="cpu")
            if self.columns:
                state["selected"] = torch.full((count,), selects_all, device="cpu")
                state["publishing"] = torch.zeros(count, dtype=torch.bool, device="cpu")

    def arrays(self) -> Dict[str, Tensor]:
        """Flat arrays in memory order, by the names of a shard's fields."""
        weights = local(self.state["by_columns"]) if self.columns else self.weights
        # The gradient's array is a placeholder in host memory, and with a device the target of its copies.
        grad = (torch.empty(self.shard.numel(), dtype=self.grad_dtype, device="cpu") if self.device is None
                else self.device.empty_pinned((self.shard.numel(),), self.grad_dtype))
        fields = {"param": weights if self.master is None else local(self.state[self.master]), "grad": grad,
                  **{name: local(self.state[name]) for name in moments}}
        if self.master is not None:
            fields["weight_out"] = weights
        for field, values in fields.items():
            is_residual = field == "param" and self.master == "master_low"
            role = "moment" if field in moments else "master" if is_residual else ""
            check_array(values, f"{field} of {self.name}", role)
            if role == "moment" and is_quantized(values):
                check_groups(values, f"{field} of {self.name}", self.weights)
        return {field: flat(values) for field, values in fields.items()}

    # Weights that others write

    def _rounded_masters(self) -> Tensor:
        """The weights that correspond to the masters."""
        if self.master == "master_param":
            return local(self.state["master_param"]).to(self.shard.dtype)
        return local(self.state["by_columns"])

    def _clear_invalid_low(self, weight: Tensor) -> None:
        """Sets master_low to 0 for pairs of weight and master_low that represent no master."""
        low = local(self.state["master_low"])
        low.masked_fill_(joined(weight, low).isnan(), 0)

    @torch.no_grad()
    def take_weights(self, as_loaded: bool) -> None:
        """Copies weights that differ from the masters into the masters.

        Parameters
        ----------
        as_loaded : bool
            Ignore differences in columns whose updates are not published yet.
        """
        weight = local(self.param.detach()).to("cpu")
        if not self.columns:
            if self.is_copied:
                self.weights.copy_(weight)
            if self.master == "master_low":
                self._clear_invalid_low(weight)
                return
            if self.master is None:
                return
        if self.columns and self.is_copied and not as_loaded:
            changed = _differ(weight, self.weights)
        else:
            changed = _differ(weight, self._rounded_masters())
            if self.columns:
                changed.logical_and_(self.state["publishing"].logical_not())
        if self.is_copied:
            self.weights.copy_(weight)
        if not bool(changed.any()):
            return  # masters keep their low bits
        if self.columns:
            local(self.state["by_columns"])[changed] = weight[changed]
        if self.master == "master_param":
            local(self.state["master_param"])[changed] = weight[changed].float()
        elif self.master == "master_low":
            local(self.state["master_low"])[changed] = 0

    # Steps

    def host_grad(self) -> Optional[Tensor]:
        """The gradient by rows in host memory, or None."""
        grad = self.param.grad
        if grad is None:
            return None
        self._check_gradient(local(grad))
        return local(grad.detach()).to("cpu").contiguous()

    def _check_gradient(self, grad: Tensor) -> None:
        check_readable(grad, f"grad of {self.name}")
        if grad.shape != self.shard.shape:
            raise InvalidArgument(f"cannot step {self.name}: its gradient has shape {tuple(grad.shape)}, but the param "
                                  f"has {tuple(self.shard.shape)}")
        check_memory(grad, f"cannot step {self.name}: its gradient")

    def copy_grad_to_device(self) -> bool:
        """Copies the gradient to the device's buffer. Returns whether the param has a gradient."""
        if self.param.grad is None:
            return False
        assert self.device is not None
        self._check_gradient(self.param.grad)
        self.device.copy(self.device_grad, self.param.grad.detach())
        return True

    def write_param(self) -> None:
        """Copies new weights to the param."""
        if self.device is not None:
            if self.device_weights is not self.shard:
                self.device.copy(self.shard, self.device_weights)
        elif self.is_copied:
            self.shard.copy_(self.weights)

    # State

    def save(self, native: ZenFlowOptimizer, number: int, window: Tensor) -> None:
        """Copies the values of libadamant_c to the state."""
        values, count, state = native.param(number), max(1, self.columns), self.state
        state["updates"] = _copy_from(values.counts, count, torch.int64)
        steps = state["updates"].max()
        state["step"] = steps.float() if int(steps) < 1 << 24 else steps.double()
        state["summed"] = torch.tensor(int(values.summed), device="cpu")
        state["window"] = window.clone()
        if self.columns:
            for name in ("selected", "publishing"):
                state[name] = _copy_from(getattr(values, name), count, torch.uint8).bool()
            # Always present: checkpoints of torch.distributed load only the keys that a new optimizer has.
            has_sums = values.summed and not bool(state["selected"].all())
            sums = (_copy_from(values.sums, self.shard.numel(), torch.float32).view(self.shard.shape) if has_sums
                    else torch.zeros(self.shard.shape, device="cpu", dtype=torch.float32))
            state["sums"] = _as_dtensor(self.param, sums, False)
        self.record_versions()

    def load_arguments(self) -> Tuple[Dict[str, Any], List[Tensor]]:
        """Values for ZenFlowOptimizer.load(), and the tensors that own their memory."""
        state = self.state
        steps = int(state["updates"].max())
        if "step" in state and int(state["step"]) != steps:
            raise InvalidArgument(f"cannot use the state of {self.name}: step is {int(state['step'])}, but the largest "
                                  f"column count in updates is {steps}. Set both")
        owners = [state["updates"].to(torch.int64).contiguous()]
        values = {"counts": owners[0].data_ptr(), "summed": int(state["summed"])}
        for name in ("selected", "publishing") if self.columns else ():
            owners.append(state[name].to(torch.uint8).contiguous())
            values[name] = owners[-1].data_ptr()
        if self.columns and values["summed"]:
            # A state without sums has all columns selected.
            sums = local(state["sums"]) if "sums" in state else torch.zeros(self.shard.shape, device="cpu")
            owners.append(sums.float().contiguous())
            values["sums"] = owners[-1].data_ptr() or None
        return values, owners


class ZenFlowSteps:
    """Steps of a torch optimizer with zenflow.

    If all params are on one GPU and libadamant_c supports CUDA, selected columns and vectors are stepped on that GPU.
    Otherwise everything is stepped in host memory, and a warning gives the reason once.
    """

    new_device, find_gpu = ZenFlowDevice, staticmethod(find_gpu)  # replaced in tests

    def __init__(self, options: ZenFlow):
        self.options = options
        self.native: Optional[ZenFlowOptimizer] = None  # until the first step, and after forget()
        self.params: List[_TrackedParam] = []
        self.changes: Optional[Any] = None  # bits of changed weights
        self.hypers: Dict[int, Dict[str, Any]] = {}
        self.maximize: Dict[int, bool] = {}  # by group
        self.native_groups: Dict[int, int] = {}  # libadamant_c's group numbers by the optimizer's
        self.position: Dict[str, Any] = {}
        self.device: Optional[ZenFlowDevice] = None
        self.fallback_reason = ""
        self.is_saved = False  # states and position are equal to those of libadamant_c
        self.forget(())

    def forget(self, states: Iterable[Any]) -> None:
        """Discards the optimizer of libadamant_c and continues from these states."""
        if self.native is not None:
            self.native.close()
        self.native = None
        self.params = []
        self._read_position(states)

    def _read_position(self, states: Iterable[Any]) -> None:
        """Reads the position of the run from the states. States without zenflow have taken plain steps only."""
        self.position = dict.fromkeys(position_fields, 0)
        for state in states:
            if isinstance(state, dict) and "window" in state:
                values = dict(zip(position_fields, state["window"].tolist()))
                self.position = {name: value if name.endswith(("squares", "norm")) else int(value)
                                 for name, value in values.items()}
            elif isinstance(state, dict) and "step" in state and "updates" not in state:
                self.position["steps"] = max(self.position["steps"], int(state["step"]))

    def _check_process(self) -> None:
        if self.native is not None and not self.native.is_in_own_process:
            raise InvalidArgument(f"cannot use the optimizer in process {os.getpid()}: it was forked from the "
                                  "optimizer's process, which holds the deferred gradients. Call load_state_dict() "
                                  "here")

    # Set-up of steps

    def _find_device(self, optimizer: "_Steps", params: List[Tensor]) -> Optional[ZenFlowDevice]:
        device, reason = (None, "") if optimizer._arguments.offload else self.find_gpu(params)
        if device is None or self.fallback_reason:
            self._fall_back(reason)
            return None
        if self.device is None or self.device.device != device or not self.device.handle.is_in_own_process:
            try:
                self.device = self.new_device(device)
            except device_errors as error:
                self._fall_back(str(error))
                return None
        return self.device

    def _fall_back(self, reason: str) -> None:
        if reason and not self.fallback_reason:
            self.fallback_reason = reason
            warnings.warn(f"params are on a GPU, but zenflow steps them in host memory: {reason}", RuntimeWarning,
                          stacklevel=2)

    def _rebuild(self, optimizer: "_Steps", members: List[Tuple[int, Tensor]]) -> None:
        """Creates an optimizer of libadamant_c for these groups and params, which continues from their states."""
        self.save()
        if self.native is not None:
            self.native.close()  # ends its background work and frees the device for the next optimizer
        self.native, self.params = None, []
        self._read_position(optimizer.state.values())
        device = self._find_device(optimizer, [param for _, param in members])
        if device is not None:
            try:
                self._build(optimizer, members, device)
                return
            except device_errors as error:
                self._fall_back(str(error))
        self._build(optimizer, members, None)

    def _build(self, optimizer: "_Steps", members: List[Tuple[int, Tensor]], device: Optional[ZenFlowDevice]) -> None:
        self.changes = optimizer._changes
        if device is not None:
            device.wait_for_caller()
        params = [_TrackedParam(optimizer, group, param, device) for group, param in members]
        has_ranks = optimizer._process_group is not None
        native = ZenFlowOptimizer(
            optimizer._executor(), self.options, max_norm=optimizer._arguments.library_max_norm,
            on_nonfinite=optimizer._arguments.on_nonfinite,
            reduce=(weakly(optimizer._reduce) if has_ranks and (optimizer._needs_norm or self.options.is_automatic)
                    else None),
            reduce_columns=weakly(optimizer._reduce_columns) if has_ranks else None)
        _natives.add(native)
        native.names = [param.name for param in params]
        hypers = {group: optimizer._hyper(group) for group in sorted({group for group, _ in members})}
        native_groups: Dict[int, int] = {}
        for group, hyper in hypers.items():
            with error_context(f"parameter group {group}"):
                native_groups[group] = native.add_group(
                    f"group{group}", maximize=bool(optimizer.param_groups[group]["maximize"]), **hyper)
        arrays = [param.arrays() for param in params]
        for param, fields in zip(params, arrays):
            # Stochastic rounding depends on the element's index in the whole param.
            shape = tuple(param.param.shape) if param.columns or hasattr(param.param, "to_local") else ()
            with error_context(param.name):
                native.add_param(native_groups[param.group], param.name, fields, param.columns, param.weights, shape,
                                 first_element(param.param),
                                 None if self.changes is None else self.changes.bits(param.param, by_rows=True))
        for param in params:
            param.take_weights(as_loaded=True)
        self._load(native, params)
        if device is not None:
            for number, param in enumerate(params):
                if param.shard.numel():
                    native.set_device_arrays(number, param.device_grad, param.device_weights)
            device.wait_for_caller()
            device.release_cache()
            native.place(device.handle)
        self.native, self.params, self.device = native, params, device
        self.hypers, self.native_groups, self.is_saved = hypers, native_groups, True
        self.maximize = self._current_maximize(optimizer)

    def _load(self, native: ZenFlowOptimizer, params: List[_TrackedParam]) -> None:
        """Loads the position and the states into libadamant_c."""
        arguments = [param.load_arguments() for param in params]
        native.load(self.position, [values for values, _ in arguments])
        for param in params:
            param.record_versions()

    def _prepare(self, optimizer: "_Steps") -> ZenFlowOptimizer:
        """Applies everything that has changed since the last step."""
        self._check_process()
        optimizer._refuse_groups()
        distinct: Dict[int, Tuple[int, Tensor]] = {}  # a param that is listed twice is stepped once
        for member in optimizer._all_params():
            distinct.setdefault(id(member[1]), member)
        members = [(group, param) for group, param in distinct.values()
                   if param.requires_grad or param.grad is not None or param in optimizer.state]
        for _, param in members:
            if param.device.type == "meta":
                raise InvalidArgument(f"cannot step {optimizer._name(param)}: it is on the meta device, which has no "
                                      "values. Materialize it with to_empty() before the step")
            is_stepped = param.grad is not None or param in optimizer.state
            if param.layout != torch.strided or (not is_dense(local(param)) and (is_stepped or 0 in param.stride())):
                raise InvalidArgument(f"cannot step {optimizer._name(param)}: its elements are not dense in memory. "
                                      "Step a contiguous tensor, or set its requires_grad to False")
            if not has_allocation(local(param)):
                check_memory(param, f"cannot step {optimizer._name(param)}: it")
        if self.native is not None:
            for param in self.params if self.changes is not None else ():
                self.changes.mark_written(param.param, param.state)
            self._take_written_weights(optimizer)
        if self.native is None or self._has_changed(optimizer) or len(members) != len(self.params) or not all(
                [param.is_unchanged(optimizer, *member) for param, member in zip(self.params, members)]):
            self._rebuild(optimizer, members)
        assert self.native is not None
        set_changed_hypers(optimizer, self.native, self.native_groups, self.hypers)
        return self.native

    def _has_changed(self, optimizer: "_Steps") -> bool:
        """Whether `maximize` of a group or saved state values have changed."""
        if self.is_saved:
            return (self.maximize != self._current_maximize(optimizer)) or not all(
                [param.is_as_saved() for param in self.params])
        for param in self.params:
            written = [name for name in library_keys if name in param.state]
            if written and optimizer.state.get(param.param) is param.state:
                raise InvalidArgument(f"cannot use the state of {param.name}: {' and '.join(written)} cannot be "
                                      "written now, because with zenflow states have counts and sums only from "
                                      "state_dict() to the next step(). Call state_dict(), write them and step()")
            if self.device is not None:
                param.check_tensors(optimizer)
        return self.maximize != self._current_maximize(optimizer)

    def _current_maximize(self, optimizer: "_Steps") -> Dict[int, bool]:
        return {group: bool(optimizer.param_groups[group]["maximize"]) for group in self.hypers
                if group < len(optimizer.param_groups)}

    def _take_written_weights(self, optimizer: "_Steps") -> None:
        """Takes weights that others have written since the last step."""
        written = [param for param in self.params if param.version != param.current_version() and
                   _layout(param.param)[1:3] == param.layout[1:3]]  # another dtype or shape raises an error later
        if not written:
            return
        self.save()
        for param in written:
            is_shared = not param.is_copied or self.device is not None
            if param.columns and is_shared and bool(param.state["publishing"].any()):
                raise InvalidArgument(f"cannot use the weights of {param.name}: they were written while updates of "
                                      "some of its columns are not published. Call flush() before weights are written, "
                                      "or take_weights() now to keep all weights as they are and drop these updates, "
                                      "or load_state_dict()")
        if self.device is not None:  # a rebuild also copies the weights to the masters on the device
            assert self.native is not None
            self.native.close()
            self.native = None
            return
        for param in written:
            param.take_weights(as_loaded=False)
            if self.changes is not None and bool(local(param.param.detach()).isnan().any()):
                self.changes.mark(param.param)  # as _copy_weights() of a StepGroup
            param.version = param.current_version()

    # Steps

    def step(self, optimizer: "_Steps") -> Optional[Report]:
        tensors = [param for _, param in optimizer._all_params()]
        for tensor in tensors:
            optimizer._refuse_sparse(tensor)
            align_gradient(tensor)
        if optimizer._process_group is None and all(tensor.grad is None for tensor in tensors):
            return None
        native = self._prepare(optimizer)
        if self.device is not None:
            return self._step_on_device(native, self.device)
        grads = [param.host_grad() for param in self.params]
        report = native.step_at(packed("Q", [0 if grad is None else grad.data_ptr() for grad in grads]))
        if not report.skipped:
            self._end_write()
        return report

    def _step_on_device(self, native: ZenFlowOptimizer, device: ZenFlowDevice) -> Report:
        with torch.no_grad():
            present = [param.copy_grad_to_device() for param in self.params]
        try:
            report = native.step_on_device(device.record_event(), present)
        except BaseException:  # the failed step may have published weights
            self._end_write()
            raise
        if not report.skipped:
            self._end_write()
        return report

    def _end_write(self) -> None:
        """Removes stale values from the states and copies new weights to the params."""
        for param in self.params if self.is_saved else ():
            if "window" in param.state:  # marks an earlier state_dict(), which shares the moments, as stale
                param.state["window"].fill_(-1)
            for name in library_keys:
                param.state.pop(name, None)
        self.is_saved = False
        with torch.no_grad():
            for param in self.params:
                param.write_param()
            record_writes([param.param for param in self.params])
        for param in self.params:
            param.version = param.current_version()
            if self.changes is not None:
                self.changes.settle(param.param, param.state)
            if self.device is not None:
                param.record_tensors()

    def flush(self, optimizer: "_Steps") -> None:
        if self.native is None and not any(isinstance(state, dict) and "updates" in state
                                           for state in optimizer.state.values()):
            return
        native = self._prepare(optimizer)
        if self.device is not None:
            self.device.wait_for_caller()  # the caller's stream may still read the weights
        native.flush()
        self._end_write()

    def take_weights(self, optimizer: "_Steps") -> None:
        self._check_process()
        self.save()
        self.forget(optimizer.state.values())
        for state in optimizer.state.values():
            if isinstance(state, dict) and "publishing" in state:
                state["publishing"] = torch.zeros_like(state["publishing"])

    # State

    def save(self) -> None:
        """Copies counts, flags, sums and the position from libadamant_c to the states."""
        if self.native is None:
            return
        # After a first step that was skipped or failed, new states lack the position.
        unsaved = [number for number, param in enumerate(self.params)
                   if not self.is_saved or "window" not in param.state and param.is_as_saved()]
        if not unsaved:
            return
        self._check_process()
        if self.device is not None:
            self.device.wait_for_caller()
        self.position = self.native.position()
        window = torch.tensor([float(self.position[name]) for name in position_fields], dtype=torch.float64,
                              device="cpu")
        for number in unsaved:
            param = self.params[number]
            if any(name in param.state for name in param.tensors):  # a cleared state starts from zero
                param.save(self.native, number, window)
        self.is_saved = True

    def without_copies(self, states: Dict[Any, Dict[str, Any]]) -> Dict[Any, Dict[str, Any]]:
        """Returns the states for state_dict(): without "by_columns" if it can be rounded from "master_param"."""
        return {key: {name: value for name, value in state.items()
                      if name != "by_columns" or "master_param" not in state or value.dtype == torch.float32}
                if isinstance(state, dict) else state for key, state in states.items()}

    def check(self, optimizer: "_Steps", state_dict: Dict[str, Any]) -> None:
        """Raises InvalidArgument if no step can continue from this state_dict."""
        params = optimizer._params_by_number(state_dict)
        windows: List[Tensor] = []
        for number, state in state_dict["state"].items():
            if number not in params:
                continue
            name, param = optimizer._name(params[number]), params[number]
            columns = column_count(param)
            prefix = f"cannot use the state of {name}:"
            if "updates" not in state:
                if columns and any(is_quantized(state.get(moment)) for moment in moments):
                    raise InvalidArgument(f"{prefix} its quantized8 moments are in groups of rows, but zenflow needs "
                                          "groups of columns. Convert the states in state_dict['state'] by "
                                          "adamant.torch.dequantized(state, param), and set the group's "
                                          '"state_format" to "float32"')
                continue
            flags = ("selected", "publishing") if columns else ()
            missing = [key for key in ("step", "summed", "window", "exp_avg", "exp_avg_sq", *flags) if key not in state]
            dtypes = {"updates": torch.int64, "summed": torch.int64, "window": torch.float64, "selected": torch.bool,
                      "publishing": torch.bool, "sums": torch.float32, "by_columns": param.dtype}
            for key, dtype in dtypes.items():
                value = state.get(key)
                if value is not None and not (isinstance(value, Tensor) and value.layout == torch.strided and
                                              value.device.type != "meta" and value.dtype == dtype):
                    raise InvalidArgument(f"{prefix} {key} is {value!r}, but must be a dense tensor of dtype {dtype}")
            if not missing and columns and int(state["summed"]) and "sums" not in state:
                missing = [] if bool(state["selected"].all()) else ["sums"]
            if missing:
                raise InvalidArgument(f"{prefix} it has no {' and no '.join(missing)}. Load a complete state")
            if columns and "by_columns" not in state and master_key(param, state) != "master_param":
                raise InvalidArgument(f"{prefix} it has no by_columns and no master_param. Load a complete state")
            for key in ("updates", *flags):
                if state[key].numel() != max(1, columns):
                    raise InvalidArgument(f"{prefix} {key} has {counted(state[key].numel(), 'column')}, but the param "
                                          f"has {max(1, columns)}")
            for key, numel in (("summed", 1), ("window", len(position_fields))):
                if state[key].numel() != numel:
                    raise InvalidArgument(f"{prefix} {key} has {counted(state[key].numel(), 'element')}, but must "
                                          f"have {numel}")
            if float(state["window"].min()) < 0:
                raise InvalidArgument(f"cannot load the state of {name}: steps since state_dict() have changed its "
                                      "moments. Call state_dict() when it is needed, or keep a copy.deepcopy() of it")
            if int(state["updates"].min()) < 0 or int(state["summed"]) < 0 or not bool(
                    state["window"].isfinite().all()):
                raise InvalidArgument(f"{prefix} updates, summed and window must be 0 or more")
            windows.append(state["window"])
            if not torch.equal(windows[0], state["window"]):
                raise InvalidArgument(f"{prefix} its window, which is the position of the run, is "
                                      f"{state['window'].tolist()}, but that of other params is {windows[0].tolist()}. "
                                      "Load states that were saved together")
            if "sums" in state and state["sums"].shape != param.shape:
                raise InvalidArgument(f"{prefix} sums has shape {tuple(state['sums'].shape)}, but the param has "
                                      f"{tuple(param.shape)}")


def refuse_zenflow_states(state_dict: Dict[str, Any]) -> None:
    """Raises InvalidArgument if a state has ZenFlow's keys. For optimizers without zenflow."""
    if any(isinstance(state, dict) and "updates" in state for state in state_dict["state"].values()):
        raise InvalidArgument("cannot load the state: it is of an optimizer with zenflow, and its columns have "
                              "different step counts and may have deferred gradients. Load it into an optimizer with "
                              "zenflow=ZenFlow(...); with topk_ratio=1 that optimizer steps all columns in every step "
                              "after its next selection")
