# SPDX-License-Identifier: Apache-2.0
"""Binds the optimizer's threads to cores of their own and all other threads of the process to the rest."""

from __future__ import annotations

import os
from typing import Optional, Set

import torch

from ._library import InvalidArgument
from .executor import (Cores, Executor, allowed_pus, pus_of, pus_text, select_cores, shared_executor,
                       threads_within_quota)

_apart: Set[int] = set()  # the executors whose cores the others were moved from


def _threads() -> Set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def executor_apart(cores: Optional[Cores], cpuadam_cores_perc: Optional[float], threads: int) -> Executor:
    """An executor on these cores, or on its share of the rank's; the first time, torch's threads are bound to the
    others, and are as many as these."""
    before = set(pus_of(allowed_pus()))
    if cores is not None:
        adam, host = pus_text(cores), before - set(pus_of(pus_text(cores)))
    else:
        split = select_cores(cpuadam_cores_perc)
        adam, host = split.adam, set(pus_of(split.host))
    others = _threads()
    executor = shared_executor(cores=adam, threads=threads)
    if id(executor) not in _apart:
        if not host:
            raise InvalidArgument(f"the optimizer is to have the cores {adam}, which are all of the process's: none are "
                                  "left for torch. Leave some out, or give no cores, so that both use all")
        for thread in others:
            try:
                os.sched_setaffinity(thread, host)
            except ProcessLookupError:  # it has ended
                pass
        torch.set_num_threads(threads_within_quota(len(host)))
        _apart.add(id(executor))
    return executor
