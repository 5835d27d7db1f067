# SPDX-License-Identifier: Apache-2.0
"""Cores of the optimizer under DeepSpeed: from its JSON, or all cores of the rank."""

from __future__ import annotations

import json
import os
import sys
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

from ._library import CoreOptions, InvalidArgument, Unavailable, check, library
from .executor import CoreSplit, launcher_number, select_cores


def _is_bound() -> bool:
    # A launcher binds each rank, and DeepSpeed each worker, to a part of the parent's cores. Ranks that are not bound
    # share all cores of the launcher.
    try:
        return os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        return True


def select(share: float) -> CoreSplit:
    # DeepSpeed's launcher sets LOCAL_SIZE, torchrun LOCAL_WORLD_SIZE.
    if _is_bound():
        return select_cores(share, ranks=1)
    ranks = launcher_number("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    if ranks is None:
        return select_cores(share, ranks=1) if os.environ.get("LOCAL_RANK") else select_cores(share)
    rank = launcher_number("LOCAL_RANK")
    return select_cores(share) if rank is None else select_cores(share, ranks=ranks, rank=rank)


def cores_of_rank(share: Optional[float]) -> Optional[str]:
    if share is not None:
        return select(share).adam
    try:
        return None if _is_bound() else ",".join(filter(None, select(1.0)))
    except Unavailable:
        return None  # there are more ranks than cores


def share_in_engine() -> Optional[float]:
    """cpuadam_cores_perc of the DeepSpeed engine in the call stack, if its JSON has that key."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("deepspeed."):
            config = getattr(frame.f_locals.get("self"), "_config", None)
            offload = getattr(getattr(config, "zero_config", None), "offload_optimizer", None)
            if "cpuadam_cores_perc" in getattr(offload, "model_fields_set", ()):
                return offload.cpuadam_cores_perc or None  # type: ignore
        frame = frame.f_back
    return None


def _unique_keys(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key} appears twice; keep one of them")
    return dict(pairs)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _read_config(path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
    """Reads a DeepSpeed configuration as strictly as the C library does."""
    try:
        config = json.loads(Path(path).read_bytes().decode("utf-8-sig"), object_pairs_hook=_unique_keys,
                            parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise InvalidArgument(f"cannot read the DeepSpeed configuration {os.fspath(path)}: {error}") from None
    if not isinstance(config, dict):
        raise InvalidArgument(f"cannot read the DeepSpeed configuration {os.fspath(path)}: it is no JSON object")
    return config


def split_of(ds_config: Union[Dict[str, Any], str, "os.PathLike[str]"]) -> CoreSplit:
    """The cores in DeepSpeed's configuration."""
    config = ds_config if isinstance(ds_config, dict) else _read_config(ds_config)
    # Parse only keys that decide the cores: others may still be "auto", which DeepSpeed's callers fill in.
    zero = config.get("zero_optimization") or {}
    if isinstance(zero, dict):
        zero = {key: zero[key] for key in ("stage", "offload_optimizer", "zenflow") if key in zero}
    text = json.dumps({"zero_optimization": zero}).encode()
    calls, parsed = library(), c_void_p()
    check(calls.adamant_deepspeed_parse(text, len(text), byref(parsed)))
    try:
        options = CoreOptions.initialised()
        check(calls.adamant_deepspeed_apply(parsed, None, None, None, None, byref(options)))
    finally:
        calls.adamant_deepspeed_free(parsed)
    return select(options.cpuadam_cores_perc or 1 - options.pt_reserved_cores_perc)
