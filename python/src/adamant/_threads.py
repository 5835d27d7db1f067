# SPDX-License-Identifier: Apache-2.0
"""Binds the optimizer's threads to their cores, and all other threads of the process to the remaining cores."""

from __future__ import annotations

import os
import weakref
from typing import Optional, Set

import torch

from ._library import InvalidArgument
from .executor import (Cores, Executor, allowed_pus, pus_of, pus_text, select_cores, shared_executor,
                       threads_within_quota)

# Executors whose cores the other threads were moved from. A forked process gets new ones.
_bound: "weakref.WeakSet[Executor]" = weakref.WeakSet()


def _threads() -> Set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def dedicated_executor(cores: Optional[Cores], cpuadam_cores_perc: Optional[float], threads: int) -> Executor:
    """Returns an executor on these cores, or on this share of the rank's cores.

    The first call binds all other threads to the remaining cores, and gives torch one thread for each of them.
    """
    allowed = set(pus_of(allowed_pus()))
    if cores is not None:
        optimizer_pus, host_pus = pus_text(cores), allowed - set(pus_of(pus_text(cores)))
    else:
        split = select_cores(cpuadam_cores_perc)
        optimizer_pus, host_pus = split.adam, set(pus_of(split.host))
    other_threads = _threads()
    executor = shared_executor(cores=optimizer_pus, threads=threads)
    if executor not in _bound:
        if not host_pus:
            raise InvalidArgument(f"cannot bind the optimizer to the cores {optimizer_pus}: these are all cores of the "
                                  "process. Leave some to torch, or omit cores to share all of them")
        for thread in other_threads:
            try:
                os.sched_setaffinity(thread, host_pus)
            except ProcessLookupError:  # the thread has ended
                pass
        torch.set_num_threads(threads_within_quota(len(host_pus)))
        _bound.add(executor)
    return executor
