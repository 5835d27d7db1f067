# SPDX-License-Identifier: Apache-2.0
"""The cores of the team under DeepSpeed: those of its JSON, or the rank's part."""

from __future__ import annotations

import json
import os
import sys
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any, Dict, Optional, Union

from ._library import CoreOptions, Unavailable, check, library
from .executor import CoreSplit, select_cores


def _is_bound() -> bool:
    # Launchers bind each rank, and DeepSpeed each worker, to cores of its own, so they differ from the parent's. Ranks
    # that are not bound share what the launcher may use.
    try:
        return os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        return True


def select(share: float) -> CoreSplit:
    # DeepSpeed's launcher says LOCAL_SIZE where torchrun says LOCAL_WORLD_SIZE.
    rank, ranks = os.environ.get("LOCAL_RANK"), os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    if _is_bound() or (rank and not ranks):
        return select_cores(share, ranks=1)
    return select_cores(share, ranks=int(ranks), rank=int(rank)) if rank and ranks else select_cores(share)


def cores_of_rank(share: Optional[float]) -> Optional[str]:
    if share is not None:
        return select(share).adam
    try:
        return None if _is_bound() else ",".join(filter(None, select(1.0)))
    except Unavailable:
        return None  # more ranks than cores


def share_in_engine() -> Optional[float]:
    """cpuadam_cores_perc, where the update is called by a DeepSpeed engine whose JSON has it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("deepspeed."):
            config = getattr(frame.f_locals.get("self"), "_config", None)
            offload = getattr(getattr(config, "zero_config", None), "offload_optimizer", None)
            if "cpuadam_cores_perc" in getattr(offload, "model_fields_set", ()):
                return offload.cpuadam_cores_perc or None  # type: ignore
        frame = frame.f_back
    return None


def split_of(ds_config: Union[Dict[str, Any], str, "os.PathLike[str]"]) -> CoreSplit:
    """The cores that DeepSpeed's configuration says."""
    everything = ds_config if isinstance(ds_config, dict) else json.loads(Path(ds_config).read_text())
    # Only what decides the cores: other keys may still say "auto", which DeepSpeed's callers fill in.
    zero = everything.get("zero_optimization") or {}
    text = json.dumps({"zero_optimization": {key: zero[key] for key in ("stage", "offload_optimizer", "zenflow")
                                             if key in zero}}).encode()
    calls, parsed = library(), c_void_p()
    check(calls.adamant_deepspeed_parse(text, len(text), byref(parsed)))
    try:
        options = CoreOptions.initialised()
        check(calls.adamant_deepspeed_apply(parsed, None, None, None, None, byref(options)))
    finally:
        calls.adamant_deepspeed_free(parsed)
    return select(options.cpuadam_cores_perc or 1 - options.pt_reserved_cores_perc)
