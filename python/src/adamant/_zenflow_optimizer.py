# SPDX-License-Identifier: Apache-2.0
"""ZenFlow's options, and the ZenFlow optimizer of libadamant_c: its calls and state."""

from __future__ import annotations

import ctypes
from array import array as packed
from ctypes import byref, c_size_t
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from ._library import (Error, Handle, InvalidArgument, OptimizerOptions, ReduceColumns, Report, ZenFlowOptions,
                       ZenFlowParam, ZenFlowPosition, ZenFlowReport, c_text, check, library, weakly)
from ._signals import delayed_signals
from .executor import Executor
from .optimizer import OptimizerHandle, enum_value, hyperparameters, make_shard, nonfinite_policies

_scores = {"magnitude": 0, "square": 1}
_scopes = {"each_param": 0, "all_params": 1}
# The position of a run in its schedule, in the order of a state's "window".
position_fields = ("steps", "since_selection", "in_window", "has_selection", "done_squares", "deferred_norm")


@dataclass(frozen=True)
class ZenFlow:
    """Options of deferred updates (ZenFlow).

    Important columns of each matrix are stepped every step. Gradients of the other columns are accumulated over a
    window of steps, and their mean is stepped once, in the background of the next window.

    Parameters
    ----------
    topk_ratio : float, default 0.1
        Share of the columns that are important ("selected"), from 0 to 1. With 1 no gradient is deferred.
    select_interval : int, default 16
        Number of steps between selections. A selection happens at the first step of a window only.
    update_interval : int or "auto", default 4
        Steps in a window. "auto": the window ends when the squared norm of the deferred gradients is at least
        `auto_ratio` times the sum of the squared norms of the applied gradients, or after `max_deferred` steps.
    auto_ratio : float, default 1.0
        Factor for `update_interval="auto"`.
    max_deferred : int, default 64
        Maximum steps in a window for `update_interval="auto"`.
    full_warm_up_rounds : int, default 0
        Number of plain steps of all columns at the beginning of training.
    score : {"magnitude", "square"}, default "magnitude"
        Score of a column: the sum of the magnitudes or of the squares of its gradient. Gradients below 2**-23 of the
        matrix's largest count as 0, with "square" those below 2**-11.5.
    scope : {"each_param", "all_params"}, default "each_param"
        "each_param" selects the share within each matrix. "all_params" selects among the columns of all matrices, for
        one share of all elements.
    overlap : bool, default True
        Run deferred updates in the background of the next window, and publish their weights at its end. False: run and
        publish them in the step that ends the window.

    Raises
    ------
    adamant.InvalidArgument
        A value is out of range.
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
        for name, minimum in (("select_interval", 1), ("update_interval", 1), ("max_deferred", 1),
                              ("full_warm_up_rounds", 0)):
            value = getattr(self, name)
            if name == "update_interval" and value == "auto":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or not minimum <= value < 2**64:
                raise InvalidArgument(f"zenflow's {name} is {value!r}, but must be a number of steps, from {minimum}"
                                      f"{', or auto' if name == 'update_interval' else ''}")
        for name, maximum, limits in (("topk_ratio", 1, "from 0 to 1"), ("auto_ratio", 1e300, "finite and at least 0")):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value <= maximum:
                raise InvalidArgument(f"zenflow's {name} is {value!r}, but must be {limits}")
        if not isinstance(self.overlap, bool):
            raise InvalidArgument(f"zenflow's overlap is {self.overlap!r}, but must be True or False")
        enum_value("zenflow's score", self.score, _scores)
        enum_value("zenflow's scope", self.scope, _scopes)

    @classmethod
    def parse(cls, value: Any) -> Optional["ZenFlow"]:
        """Converts the argument `zenflow` of an optimizer: None, a ZenFlow, or a dictionary of its arguments."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise InvalidArgument(f"zenflow is {value!r}, but must be adamant.torch.ZenFlow(...), a dictionary with "
                                  "its arguments, or None")
        unknown = sorted(map(str, set(value) - set(cls.__dataclass_fields__)))
        if unknown:
            raise InvalidArgument(f"zenflow has {', '.join(unknown)}, but may have "
                                  f"{', '.join(cls.__dataclass_fields__)}")
        return cls(**value)

    @property
    def is_automatic(self) -> bool:
        return self.update_interval == "auto"

    def to_c(self) -> ZenFlowOptions:
        values = {**asdict(self), "update_interval": 0 if self.is_automatic else self.update_interval,
                  "score": _scores[self.score], "scope": _scopes[self.scope], "overlap": int(self.overlap)}
        return ZenFlowOptions.initialised(**values)


class ZenFlowOptimizer(OptimizerHandle):
    """A ZenFlow optimizer of libadamant_c.

    Keeps the arrays of its params alive, but not the gradients.

    Parameters
    ----------
    reduce : callable, optional
        As for adamant.Optimizer.
    reduce_columns : callable, optional
        Called with a writable array of int64 and "SUM" or "MAX". Replaces the numbers by their reduction over all
        ranks.
    """

    free_function = "adamant_zenflow_free"

    def __init__(self, executor: Executor, zenflow: ZenFlow, *, max_norm: float, on_nonfinite: str,
                 reduce: Optional[Callable[[Any], None]] = None,
                 reduce_columns: Optional[Callable[[Any, str], None]] = None):
        zenflow_options = zenflow.to_c()
        options = OptimizerOptions.initialised(
            max_norm=max_norm, on_nonfinite=enum_value("on_nonfinite", on_nonfinite, nonfinite_policies))
        if reduce is not None:
            self._reduce = self._reducer(reduce)
            options.reduce = ctypes.cast(self._reduce, ctypes.c_void_p)
        if reduce_columns is not None:
            callback, status_of = reduce_columns, weakly(self._status_of)
            operations = ("SUM", "MAX")
            self._reduce_columns = ReduceColumns(
                lambda user, numbers, count, kind: count and status_of(callback, numbers, count, operations[kind]))
            zenflow_options.reduce_columns = ctypes.cast(self._reduce_columns, ctypes.c_void_p)
        self._kept: List[Any] = []
        self._names: List[bytes] = []
        self._device: Optional[Handle] = None
        super().__init__(executor, lambda pointer: library().adamant_zenflow_create(
            executor.pointer, byref(zenflow_options), byref(options), pointer))

    def add_group(self, name: str, *, maximize: bool, **hyper: Any) -> int:
        number = c_size_t()
        self._call("adamant_zenflow_add_group", c_text(name, "a group's name"), byref(hyperparameters(**hyper)),
                   int(maximize), byref(number))
        return number.value

    def set_hyperparameters(self, group: int, **hyper: Any) -> None:
        self._call("adamant_zenflow_set_hyperparameters", group, byref(hyperparameters(**hyper)))

    def add_param(self, group: int, name: str, arrays: Dict[str, Any], columns: int, weights: Any,
                  shape: Sequence[int], begin: int, changed: Any = None) -> None:
        """Adds a matrix, or with columns=0 a vector.

        Parameters
        ----------
        arrays : dict
            Flat arrays in memory order, by the names of a shard's fields.
        weights : Tensor
            Weights of a matrix by rows, which the library writes. Ignored for a vector.
        changed : Tensor or None
            Bits of changed weights, by rows.
        """
        text = c_text(name, "a param's name")
        shard = make_shard(name, arrays, shape, begin)
        if changed is not None:
            shard.changed = changed.data_ptr() or None
        weights_address = weights.data_ptr() or None if columns else None
        with delayed_signals:
            self._kept.append((weights, changed, *[values for field, values in arrays.items() if field != "grad"]))
            self._call("adamant_zenflow_add_param", group, text, byref(shard), columns,
                       weights_address, None)
            self._names.append(text)

    def step_at(self, addresses: "packed[int]") -> Report:
        """Steps with the gradients at these addresses, one for each param; 0 skips a param. The returned report has the
        attribute `zenflow`."""
        return self._call_for_report("adamant_zenflow_step_gradients", addresses.buffer_info()[0], len(addresses), None,
                                     zenflow=ZenFlowReport.initialised())

    def step_on_device(self, event: int, present: Sequence[bool]) -> Report:
        """Waits for the caller's event and steps with the gradients that were passed to set_device_arrays()."""
        assert self._device is not None
        check(library().adamant_cuda_device_wait_event(self._device.pointer, event))
        self._call("adamant_zenflow_begin_step", None)
        try:
            for number, is_present in enumerate(present):
                self._call("adamant_zenflow_submit" if is_present else "adamant_zenflow_skip", number)
            return self._call_for_report("adamant_zenflow_finish", zenflow=ZenFlowReport.initialised())
        except BaseException:
            try:
                self._call("adamant_zenflow_abandon")
            except Error:  # the step has ended, or the device has failed
                pass
            raise

    def set_device_arrays(self, number: int, grad: Any, weights: Any) -> None:
        """Sets the gradient and the weights of a param on the device, both by rows. Call it before place()."""
        with delayed_signals:
            self._kept.append((grad, weights))
            self._call("adamant_zenflow_set_device_arrays", number, grad.data_ptr(), weights.data_ptr())

    def place(self, device: Handle) -> None:
        """Steps selected columns and vectors on the device from now on."""
        self._call("adamant_zenflow_place", device.pointer)
        self._device = device

    def flush(self) -> None:
        self._call("adamant_zenflow_flush")

    # State

    def position(self) -> Dict[str, Any]:
        """Waits for background work and returns the position of the run in its schedule."""
        position = ZenFlowPosition.initialised()
        self._call("adamant_zenflow_get_position", byref(position))
        return {**{name: getattr(position, name) for name in position_fields},
                "has_selection": bool(position.has_selection)}

    def param(self, number: int) -> ZenFlowParam:
        """Returns the state of a param. Its arrays stay valid until the next call other than param()."""
        state = ZenFlowParam.initialised()
        self._call("adamant_zenflow_get_param", number, byref(state))
        return state

    def load(self, position: Dict[str, Any], values: Sequence[Dict[str, Any]]) -> None:
        """Continues from a position, with the current contents of the params' arrays.

        Parameters
        ----------
        values : sequence of dict
            For each param the addresses of counts, selected, publishing and sums, and the number `summed`.
        """
        params = (ZenFlowParam * len(values))()
        for number, fields in enumerate(values):
            param = self.param(number)
            param.name = self._names[number]  # loading frees the library's copy of the name
            for name, value in fields.items():
                setattr(param, name, value)
            params[number] = param
        self._call("adamant_zenflow_load", byref(ZenFlowPosition.initialised(**position)), params, len(params))
