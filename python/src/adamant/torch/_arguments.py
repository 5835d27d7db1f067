# SPDX-License-Identifier: Apache-2.0
"""Arguments of Adam and AdamW that torch's classes do not have, and their checks."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from .._library import InvalidArgument
from .._zenflow_optimizer import ZenFlow
from ..executor import Cores, allowed_pus, pus_of, pus_text, select_cores

_moment_types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "quantized8": torch.uint8}
# By name: whether master weights are split, and the dtype of new moments.
formats: Dict[str, Tuple[bool, torch.dtype]] = {
    **{name: (False, kind) for name, kind in _moment_types.items()},
    **{"split_float32" + (f"+{name}" if name != "float32" else ""): (True, kind) for name, kind in _moment_types.items()}}
param_types = (torch.float32, torch.bfloat16, torch.float16)


def check_format(given: Any) -> None:
    if given is not None and given not in formats:
        raise InvalidArgument(f"state_format is {given!r}, but must be one of {', '.join(formats)}, or None")


def check_group(group: Dict[str, Any], number: int) -> None:
    """Raises InvalidArgument where a param group has an option that is not supported."""
    for name in ("amsgrad", "differentiable"):
        if group.get(name):
            raise InvalidArgument(f"{name} is set for parameter group {number}, but is not supported. Leave it out, or use "
                                  "torch.optim's class")
    check_format(group.get("state_format"))
    if group.get("replicated") not in (None, True, False) or isinstance(group.get("replicated"), (int, float)) and not isinstance(
            group["replicated"], bool):
        raise InvalidArgument(f"replicated is {group['replicated']!r} for parameter group {number}, but must be True, False or "
                              "None")


def check_param(param: Tensor, name: str) -> None:
    if param.dtype not in param_types and (param.requires_grad or param.grad is not None):
        raise InvalidArgument(f"{name} has dtype {param.dtype}, but must be float32, bfloat16 or float16. Convert the model, or "
                              "give this param to torch.optim's class")


def _check_number(name: str, value: Any, least: float, most: float, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)) or not least <= float(value) <= most:
        raise InvalidArgument(f"{name} is {value!r}, but must be {what}")


def _check_count(name: str, value: Any, least: int, most: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(f"{name} is {value!r}, but must be {what}")


def _check_process_group(group: Any) -> None:
    if group is None:
        return
    if not torch.distributed.is_available() or not isinstance(group, torch.distributed.ProcessGroup):
        raise InvalidArgument(f"process_group is {group!r}, but must be a torch.distributed.ProcessGroup or None. Pass "
                              "torch.distributed.group.WORLD, or what new_group() or DeviceMesh.get_group() returns")


@dataclass
class Arguments:
    """The arguments that torch's classes do not have, except `process_group`, which cannot be copied."""

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

    def check(self, process_group: Any) -> None:
        """Raises InvalidArgument for any value that no step can use. Nothing is bound or started."""
        check_format(self.state_format)
        for name in ("exp_avg_sq_rounding", "param_rounding"):
            if getattr(self, name) not in ("nearest", "stochastic"):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, but must be nearest or stochastic")
        if self.on_nonfinite not in ("apply", "skip", "zero"):
            raise InvalidArgument(f"on_nonfinite is {self.on_nonfinite!r}, but must be apply, skip or zero")
        for name in ("overlap", "master", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, but must be True or False")
        if self.max_norm is not None:
            _check_number("max_norm", self.max_norm, sys.float_info.min, math.inf, "above 0, inf to measure the norm only, or "
                          "None for no clipping")
            self.max_norm = float(self.max_norm)
        _check_count("accumulate", self.accumulate, 1, 1 << 31, "a number of backward() calls, from 1")
        _check_count("rounding_seed", self.rounding_seed, 0, (1 << 64) - 1, "an integer from 0 to 2**64 - 1")
        self._check_cores()
        _check_process_group(process_group)
        self.zenflow = ZenFlow.parse(self.zenflow)
        if self.zenflow is not None and self.overlap:
            raise InvalidArgument("zenflow overlaps deferred updates with the next steps, so overlap=True cannot be "
                                  "combined with it; "
                                  "leave that out")
        if self.zenflow is not None and self.accumulate > 1:
            raise InvalidArgument("zenflow accumulates gradients over windows, so accumulate cannot be combined "
                                  "with it; leave accumulate out "
                                  "and let backward() add to p.grad")

    def _check_cores(self) -> None:
        if self.cores is not None and self.cpuadam_cores_perc is not None:
            raise InvalidArgument("both cores and cpuadam_cores_perc are given; choose one")
        _check_count("threads", self.threads, 0, 1 << 16, "a number of threads, or 0 for one on each core")
        if self.cpuadam_cores_perc is not None:
            _check_number("cpuadam_cores_perc", self.cpuadam_cores_perc, sys.float_info.min, 1.0, "above 0 and at most 1")
            self.cpuadam_cores_perc = float(self.cpuadam_cores_perc)
            select_cores(self.cpuadam_cores_perc)
        if self.cores is None:
            return
        try:
            if not isinstance(self.cores, str):
                self.cores = tuple(self.cores)
            wanted = set(pus_of(pus_text(self.cores)))
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"cores is {self.cores!r}, but must be hardware threads such as \"0-3,8\" or [0, 1]") from None
        allowed = set(pus_of(allowed_pus()))
        if not wanted <= allowed:
            raise InvalidArgument(f"cores is {self.cores!r}, but this process may use {allowed_pus()} only")
        if wanted == allowed and len(allowed) > 0:
            raise InvalidArgument(f"the optimizer is to have the cores {pus_text(self.cores)}, which are all of the process's: "
                                  "none are left for torch. Leave some out, or give no cores, so that both use all")

    @property
    def measures_only(self) -> bool:
        return self.max_norm == math.inf

    @property
    def library_max_norm(self) -> float:
        """max_norm as the C library takes it: always finite, 0 for no clipping."""
        return 0.0 if self.max_norm is None else min(self.max_norm, sys.float_info.max)

    @property
    def needs_norm(self) -> bool:
        return self.max_norm is not None or self.on_nonfinite == "skip"

    def given(self) -> Dict[str, Any]:
        """The arguments that differ from their defaults."""
        return {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) != field.default}
