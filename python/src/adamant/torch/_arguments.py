# SPDX-License-Identifier: Apache-2.0
"""Arguments of Adam and AdamW in addition to torch's, and their checks."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from .._library import InvalidArgument, is_bool
from .._zenflow_optimizer import ZenFlow
from ..executor import Cores, allowed_pus, pus_of, pus_text, select_cores

_moment_types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "quantized8": torch.uint8}
# By name: whether master weights are split, and the dtype of new moments.
formats: Dict[str, Tuple[bool, torch.dtype]] = {
    **{name: (False, dtype) for name, dtype in _moment_types.items()},
    **{"split_float32" + (f"+{name}" if name != "float32" else ""): (True, dtype)
       for name, dtype in _moment_types.items()}}
param_types = (torch.float32, torch.bfloat16, torch.float16)


# Options of a parameter group that torch's optimizers do not have.
own_group_options = {"state_format", "replicated"}


def check_format(state_format: Any) -> None:
    if state_format is not None and state_format not in formats:
        raise InvalidArgument(f"state_format is {state_format!r}, but must be one of {', '.join(formats)}, or None")


def check_new_group(group: Dict[str, Any], number: int, arguments: "Arguments") -> None:
    """As check_group(), for a group of the caller. Refuses other values for arguments of the whole optimizer, too."""
    check_group(group, number)
    for field in fields(Arguments):
        if field.name in group and field.name not in own_group_options:
            value, known = group[field.name], getattr(arguments, field.name)
            try:  # as check() converts them. ZeroRedundancyOptimizer writes all arguments into the groups
                value = (ZenFlow.parse(value) if field.name == "zenflow" else
                         tuple(value) if isinstance(known, tuple) else value)
                is_same = bool(value == known)
            except (RuntimeError, TypeError, ValueError):  # an array, for example
                is_same = False
            if not is_same:
                raise InvalidArgument(f"cannot use parameter group {number}: {field.name} is an argument of the whole "
                                      "optimizer, not of a group. Pass it to the constructor only")


def check_group(group: Dict[str, Any], number: int) -> None:
    """Raises InvalidArgument if a param group has an unsupported option."""
    for name in ("amsgrad", "differentiable"):
        if group.get(name):
            raise InvalidArgument(f"cannot use parameter group {number}: {name} is not supported. Set it to False, or "
                                  "use torch.optim's class")
    check_format(group.get("state_format"))
    replicated = group.get("replicated")
    is_number = isinstance(replicated, (int, float)) and not isinstance(replicated, bool)
    if replicated not in (None, True, False) or is_number:
        raise InvalidArgument(f"replicated is {replicated!r} for parameter group {number}, but must be True, False or "
                              "None")


def check_param(param: Tensor, name: str) -> None:
    if param.dtype not in param_types and (param.requires_grad or param.grad is not None):
        raise InvalidArgument(f"{name} has dtype {param.dtype}, but must be float32, bfloat16 or float16. Convert the "
                              "model, or give this param to torch.optim's class")


def _check_number(name: str, value: Any, minimum: float, maximum: float, expected: str) -> None:
    try:
        number = float(value) if isinstance(value, (Real, Tensor)) and not is_bool(value) else math.nan
    except (ArithmeticError, RuntimeError, ValueError):  # a number of any size, or a tensor of many
        number = math.nan
    if not minimum <= number <= maximum:
        raise InvalidArgument(f"{name} is {value!r}, but must be {expected}")


def _check_count(name: str, value: Any, minimum: int, maximum: int, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not minimum <= value <= maximum:
        raise InvalidArgument(f"{name} is {value!r}, but must be {expected}")


def _check_process_group(group: Any) -> None:
    if group is None:
        return
    if not torch.distributed.is_available() or not isinstance(group, torch.distributed.ProcessGroup):
        raise InvalidArgument(f"process_group is {group!r}, but must be a torch.distributed.ProcessGroup or None. Pass "
                              "torch.distributed.group.WORLD, or the result of new_group() or DeviceMesh.get_group()")


@dataclass
class Arguments:
    """Arguments in addition to torch's, except `process_group`, which cannot be copied."""

    max_norm: Optional[float] = None
    on_nonfinite: str = "apply"
    overlap: bool = False
    accumulate: int = 1
    state_format: Optional[str] = None
    exp_avg_sq_rounding: str = "stochastic"
    param_rounding: str = "nearest"
    rounding_seed: int = 0
    master: bool = False
    offload: bool = False
    cores: Optional[Cores] = None
    cpuadam_cores_perc: Optional[float] = None
    threads: int = 0
    zenflow: Union[None, ZenFlow, Dict[str, Any]] = None
    track_changes: bool = False

    def check(self, process_group: Any) -> None:
        """Raises InvalidArgument for values that no step can use. Binds and starts nothing."""
        check_format(self.state_format)
        for name in ("exp_avg_sq_rounding", "param_rounding"):
            if str(getattr(self, name)) not in ("nearest", "stochastic"):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, but must be nearest or stochastic")
        if self.on_nonfinite not in ("apply", "skip", "zero"):
            raise InvalidArgument(f"on_nonfinite is {self.on_nonfinite!r}, but must be apply, skip or zero")
        for name in ("overlap", "master", "offload", "track_changes"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, but must be True or False")
        if self.max_norm is not None:
            _check_number("max_norm", self.max_norm, sys.float_info.min, math.inf,
                          "above 0, inf to measure the norm only, or None for no clipping")
            self.max_norm = float(self.max_norm)
        _check_count("accumulate", self.accumulate, 1, 1 << 31, "a number of backward() calls, from 1")
        _check_count("rounding_seed", self.rounding_seed, 0, (1 << 64) - 1, "an integer from 0 to 2**64 - 1")
        self._check_cores()
        _check_process_group(process_group)
        self.zenflow = ZenFlow.parse(self.zenflow)
        if self.zenflow is not None and self.overlap:
            raise InvalidArgument("cannot combine zenflow with overlap=True: zenflow overlaps deferred updates with "
                                  "the next steps. Leave overlap out")
        if self.zenflow is not None and self.accumulate > 1:
            raise InvalidArgument("cannot combine zenflow with accumulate: zenflow accumulates gradients over windows. "
                                  "Leave accumulate out, and let backward() add to p.grad")

    def _check_cores(self) -> None:
        if self.cores is not None and self.cpuadam_cores_perc is not None:
            raise InvalidArgument("cannot use both cores and cpuadam_cores_perc. Pass one of them")
        _check_count("threads", self.threads, 0, 1 << 16, "a number of threads, or 0 for one on each core")
        if self.cpuadam_cores_perc is not None:
            _check_number("cpuadam_cores_perc", self.cpuadam_cores_perc, sys.float_info.min, 1.0,
                          "above 0 and at most 1")
            self.cpuadam_cores_perc = float(self.cpuadam_cores_perc)
            select_cores(self.cpuadam_cores_perc)
        if self.cores is None:
            return
        try:
            if not isinstance(self.cores, str):
                self.cores = tuple(self.cores)
            requested = set(pus_of(pus_text(self.cores)))
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"cores is {self.cores!r}, but must be hardware threads such as \"0-3,8\" or "
                                  "[0, 1]") from None
        allowed = set(pus_of(allowed_pus()))
        if not requested <= allowed:
            raise InvalidArgument(f"cores is {self.cores!r}, but this process may use {allowed_pus()} only")
        if requested == allowed and len(allowed) > 0:
            raise InvalidArgument(f"cannot bind the optimizer to the cores {pus_text(self.cores)}: these are all cores "
                                  "of the process. Leave some to torch, or omit cores to share all of them")

    @property
    def measures_only(self) -> bool:
        return self.max_norm == math.inf

    @property
    def library_max_norm(self) -> float:
        """max_norm for libadamant_c: always finite, 0 for no clipping."""
        return 0.0 if self.max_norm is None else min(self.max_norm, sys.float_info.max)

    @property
    def needs_norm(self) -> bool:
        return self.max_norm is not None or self.on_nonfinite == "skip"

    def non_defaults(self) -> Dict[str, Any]:
        """The arguments that differ from their defaults."""
        return {field.name: getattr(self, field.name) for field in fields(self)
                if getattr(self, field.name) != field.default}
