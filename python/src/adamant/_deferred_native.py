# SPDX-License-Identifier: Apache-2.0
"""The ZenFlow optimizer of the library (adamant/adamant.h): options, calls and state."""

from __future__ import annotations

import ctypes
from array import array as packed
from ctypes import byref, c_size_t
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from ._library import (Error, Handle, InvalidArgument, OptimizerOptions, ReduceColumns, Report, ZenFlowOptions,
                       ZenFlowParam, ZenFlowPosition, ZenFlowReport, check, library)
from ._signals import whole
from .executor import Executor
from .optimizer import Calls, chosen, hyperparameters, nonfinite_policies, shard_of

_scores = {"magnitude": 0, "square": 1}
_scopes = {"each_param": 0, "all_params": 1}
# What a state has of where a run is in its schedule.
position_fields = ("steps", "since_selection", "in_window", "has_selection", "done_squares", "deferred_norm")


@dataclass(frozen=True)
class ZenFlow:
    """How gradients are deferred: a few columns of each matrix are updated every step, the others once in a window of steps,
    with the mean of their gradients, while the next window goes on.

    Args:
        topk_ratio: the share of the columns that is updated every step ("selected"), from 0 to 1. 1: nothing is deferred.
        select_interval: a window's first step selects anew once that many steps were taken since the last selection.
        update_interval: steps in a window. "auto": it ends when the squared norm of the deferred gradients is at least
            auto_ratio times the sum of the squared norms of what was stepped, at the latest after max_deferred steps.
        full_warm_up_rounds: number of plain steps before ZenFlow begins.
        score: what columns are selected by, the sum of their gradients' magnitudes, "magnitude", or "square".
        scope: "each_param": each matrix has its own share; "all_params": columns of all matrices compete for one share
            of all elements.
        overlap: the deferred gradients of a window are applied while the next one goes on, and its weights are there at the end
            of that. False: they are at once.
    """

    topk_ratio: float = 0.1
    select_interval: int = 16
    update_interval: Union[int, str] = 4
    auto_ratio: float = 1.0
    max_deferred: int = 64
    full_warm_up_rounds: int = 0
    score: str = "magnitude"
    scope: str = "each_param"
    overlap: bool = True

    def __post_init__(self) -> None:
        for name, least in (("select_interval", 1), ("update_interval", 1), ("max_deferred", 1), ("full_warm_up_rounds", 0)):
            value = getattr(self, name)
            if name == "update_interval" and value == "auto":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(f"zenflow's {name} is {value!r}, but must be a number of steps, from {least}"
                                      f"{', or auto' if name == 'update_interval' else ''}")
        if not 0 <= self.topk_ratio <= 1:
            raise InvalidArgument(f"zenflow's topk_ratio is {self.topk_ratio}, but must be from 0 to 1")
        if not 0 <= self.auto_ratio <= 1e300:
            raise InvalidArgument(f"zenflow's auto_ratio is {self.auto_ratio}, but must be finite and at least 0")
        chosen("zenflow's score", self.score, _scores)
        chosen("zenflow's scope", self.scope, _scopes)

    @classmethod
    def of(cls, given: Any) -> Optional["ZenFlow"]:
        """Converts the argument zenflow: None, options, or a dictionary of them."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, dict):
            raise InvalidArgument(f"zenflow is {given!r}, but must be adamant.torch.ZenFlow(...), a dictionary with its "
                                  "arguments, or None")
        unknown = sorted(map(str, set(given) - set(cls.__dataclass_fields__)))
        if unknown:
            raise InvalidArgument(f"zenflow has {', '.join(unknown)}, but may have {', '.join(cls.__dataclass_fields__)}")
        return cls(**given)

    @property
    def is_automatic(self) -> bool:
        return self.update_interval == "auto"

    def in_c(self) -> ZenFlowOptions:
        values = {**asdict(self), "update_interval": 0 if self.is_automatic else self.update_interval,
                  "score": _scores[self.score], "scope": _scopes[self.scope], "overlap": int(self.overlap)}
        return ZenFlowOptions.initialised(**values)


class DeferredOptimizer(Calls):
    """One such optimizer. The arrays of its params are kept alive; gradients are not.

    Args:
        reduce: as adamant.Optimizer's.
        reduce_columns: is called with numbers, a writable array of int64, and "SUM" or "MAX", and replaces them by
            their sums over all ranks, or by the largest.
    """

    free_function = "adamant_zenflow_free"

    def __init__(self, executor: Executor, zenflow: ZenFlow, *, max_norm: float, on_nonfinite: str,
                 reduce: Optional[Callable[[Any], None]] = None,
                 reduce_columns: Optional[Callable[[Any, str], None]] = None):
        more = zenflow.in_c()
        options = OptimizerOptions.initialised(max_norm=max_norm,
                                               on_nonfinite=chosen("on_nonfinite", on_nonfinite, nonfinite_policies))
        if reduce is not None:
            self._reduce = self._reducer(reduce)
            options.reduce = ctypes.cast(self._reduce, ctypes.c_void_p)
        if reduce_columns is not None:
            given = reduce_columns
            self._reduce_columns = ReduceColumns(
                lambda user, numbers, count, how: count and self._status_of(given, numbers, count, ("SUM", "MAX")[how]))
            more.reduce_columns = ctypes.cast(self._reduce_columns, ctypes.c_void_p)
        self._kept: List[Any] = []
        self._names: List[bytes] = []
        self._device: Optional[Handle] = None
        super().__init__(lambda made: library().adamant_zenflow_create(executor.pointer, byref(more), byref(options), made))

    def add_group(self, name: str, *, maximize: bool, **hyper: Any) -> int:
        number = c_size_t()
        self._call("adamant_zenflow_add_group", name.encode(), byref(hyperparameters(**hyper)), int(maximize), byref(number))
        return number.value

    def set_hyperparameters(self, group: int, **hyper: Any) -> None:
        self._call("adamant_zenflow_set_hyperparameters", group, byref(hyperparameters(**hyper)))

    def add_param(self, group: int, name: str, arrays: Dict[str, Any], columns: int, weights: Any,
                  shape: Sequence[int], begin: int) -> None:
        """arrays: by the names of a shard's fields, flat, in the order in which they lie. columns: 0 for a vector, which
        has no weights beside."""
        shard = shard_of(name, arrays, shape, begin)
        at = weights.data_ptr() or None if columns else None
        with whole:
            self._kept.append((weights, *[values for field, values in arrays.items() if field != "grad"]))
            self._call("adamant_zenflow_add_param", group, name.encode(), byref(shard), columns, at, None)
            self._names.append(name.encode())

    def step_at(self, addresses: "packed[int]") -> Report:
        """A step with the gradients at these addresses, one for each param, 0 where a param takes no part. The report's
        `zenflow` says more."""
        report, more = Report.initialised(), ZenFlowReport.initialised()
        self._call("adamant_zenflow_step_gradients", addresses.buffer_info()[0], len(addresses), None, byref(report),
                   byref(more))
        report.zenflow = more
        return report

    def step_there(self, event: int, present: Sequence[bool]) -> Report:
        """The same with gradients in the arrays of set_device_arrays(), after the caller's event."""
        report, more = Report.initialised(), ZenFlowReport.initialised()
        assert self._device is not None
        check(library().adamant_cuda_device_wait_event(self._device.pointer, event))
        self._call("adamant_zenflow_begin_step", None)
        try:
            for number, takes_part in enumerate(present):
                self._call("adamant_zenflow_submit" if takes_part else "adamant_zenflow_skip", number)
            self._call("adamant_zenflow_finish", byref(report), byref(more))
        except BaseException:
            try:
                self._call("adamant_zenflow_abandon")
            except Error:  # it is over, or the device has failed
                pass
            raise
        report.zenflow = more
        return report

    def set_device_arrays(self, number: int, grad: Any, weights: Any) -> None:
        """Tensors on the device that place() is given next: the param's gradient and its weights, by rows."""
        with whole:
            self._kept.append((grad, weights))
            self._call("adamant_zenflow_set_device_arrays", number, grad.data_ptr(), weights.data_ptr())

    def place(self, device: Handle) -> None:
        """Moves selected columns and vectors to the device."""
        self._call("adamant_zenflow_place", device.pointer)
        self._device = device

    def flush(self) -> None:
        self._call("adamant_zenflow_flush")

    # State

    def position(self) -> Dict[str, Any]:
        """Position in the schedule. Finishes background work."""
        at = ZenFlowPosition.initialised()
        self._call("adamant_zenflow_get_position", byref(at))
        return {**{name: getattr(at, name) for name in position_fields}, "has_selection": bool(at.has_selection)}

    def param(self, number: int) -> ZenFlowParam:
        """A param's state, in arrays that hold until the next call but this."""
        found = ZenFlowParam.initialised()
        self._call("adamant_zenflow_get_param", number, byref(found))
        return found

    def load(self, position: Dict[str, Any], values: Sequence[Dict[str, Any]]) -> None:
        """Goes on from there with the params' arrays as they are. values: of each param, what is not in these: counts,
        selected, publishing and sums by their addresses, and summed."""
        params = (ZenFlowParam * len(values))()
        for number, of_param in enumerate(values):
            found = self.param(number)
            found.name = self._names[number]  # the library's own goes when it loads
            for name, value in of_param.items():
                setattr(found, name, value)
            params[number] = found
        self._call("adamant_zenflow_load", byref(ZenFlowPosition.initialised(**position)), params, len(params))
