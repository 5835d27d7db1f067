# SPDX-License-Identifier: Apache-2.0
"""The instruction set and the threads that do the work, and the cores they are bound to."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_char_p, c_uint32
from typing import Dict, Iterable, NamedTuple, Optional, Tuple, Union

from . import _library
from ._library import (CoreOptions, ExecutorOptions, Handle, InvalidArgument, Unavailable, check, library, texts,
                       whole_number)

_list_bytes = 1 << 16

Cores = Union[str, Iterable[int]]


def pus_text(cores: Cores) -> str:
    """A list of hardware threads in the library's words: "0-3,8" as it is, and numbers joined by commas."""
    text = cores if isinstance(cores, str) else ",".join(str(whole_number(core, "a core")) for core in cores)
    if not text:  # the library would take all of them
        raise InvalidArgument("a list of cores is empty; name at least one, or give None for all")
    return text


def pus_of(text: str) -> Tuple[int, ...]:
    """The numbers in a list such as "0-3,8"."""
    numbers = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


class CoreSplit(NamedTuple):
    """Hardware threads as lists: the optimizer's, and those that are left to the framework."""

    adam: str
    host: str


def select_cores(cpuadam_cores_perc: Optional[float] = None, *, cores: Optional[int] = None,
                 pus: Optional[Cores] = None, ranks: int = 0, rank: int = 0,
                 masks: Iterable[str] = ()) -> CoreSplit:
    """Chooses the cores of one rank.

    Args:
        cpuadam_cores_perc: the optimizer's share of the rank's cores, above 0 and at most 1 (0.8 without `cores`).
        cores: the number of the optimizer's cores, in place of a share.
        pus: only these hardware threads, "0-3,8" or numbers; all that the process may use by default.
        ranks, rank: how many ranks there are on this host, and which one this is; 0 ranks: from the launcher's
            environment (torchrun, DeepSpeed, Slurm, Open MPI, Intel MPI).
        masks: the affinity that each rank was started with, as lists; see adamant/adamant.h.

    Raises:
        InvalidArgument, Unavailable: the request is none, or asks for more than the machine has.
    """
    if cores is not None:  # to the library 0 is that none is given
        whole_number(cores, "cores", 2**32 - 1, 1)
    options = CoreOptions.initialised(cpuadam_cores_perc=cpuadam_cores_perc or 0, cpuadam_cores=cores or 0,
                                      ranks=ranks, rank=rank)
    if pus is not None:
        options.pus = pus_text(pus).encode()
    given = tuple(masks)
    if given:
        options.masks, options.mask_count = texts(given), len(given)
    adam, host = ctypes.create_string_buffer(_list_bytes), ctypes.create_string_buffer(_list_bytes)
    check(library().adamant_select_cores(byref(options), adam, _list_bytes, host, _list_bytes))
    return CoreSplit(adam.value.decode(), host.value.decode())


def allowed_pus() -> str:
    """The hardware threads that this process may use, by its affinity and cgroup, as a list."""
    pus = ctypes.create_string_buffer(_list_bytes)
    check(library().adamant_allowed_pus(pus, _list_bytes))
    return pus.value.decode()


def threads_within_quota(threads: int) -> int:
    """How many of these threads this rank's part of the CPU quota of its container keeps busy; at least one."""
    quota = ctypes.c_double()
    check(library().adamant_cpu_quota(byref(quota), None, 0))
    ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return min(threads, max(1, int(quota.value / max(1, int(ranks))))) if quota.value > 0 else threads


def default_threads(cores: Optional[str]) -> int:
    """For `threads` of an executor on all cores of a rank: 0, or fewer than cores where the CPU quota is less."""
    count = 0 if cores is None else len(pus_of(cores))
    within = threads_within_quota(count)
    return within if within < count else 0


def cores_of_rank() -> Optional[str]:
    """The hardware threads of this rank alone, where a launcher such as torchrun has started several on this host; None
    where there is one rank, or fewer cores than ranks."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < 2:
        return None
    try:
        split = select_cores(cores=1)
    except Unavailable:
        return None
    return ",".join(filter(None, split))


class Executor(Handle):
    """An instruction set and a team of threads, which optimizers share and take turns on.

    Args:
        isa: "scalar", "generic", "avx2", "avx512" or "avx512_bf16"; by default what the environment variable
            ADAMANT_ISA says, else the best that this CPU has. Changes no bit of a result.
        cores: the hardware threads that get one thread each, "0-3,8" or numbers; by default one of each core that the
            process may use.
        threads: how many threads; 0: one on each of `cores`. 1 without `cores`: the caller.
        bind: whether a thread that cannot be bound is an error ("required"), stays where the system puts it
            ("if_possible"), or none is bound ("none").

    Used and freed in the process that made it only. Thread-safe.
    """

    free_function = "adamant_executor_free"
    _binds = {"default": 0, "required": 1, "if_possible": 2, "none": 3}

    def __init__(self, isa: Optional[str] = None, cores: Optional[Cores] = None, threads: int = 0,
                 bind: str = "default"):
        if bind not in self._binds:
            raise InvalidArgument(f"bind is {bind!r}, but must be one of {', '.join(self._binds)}")
        options = ExecutorOptions.initialised(threads=threads, bind=self._binds[bind])
        if isa is not None:
            options.isa = isa.encode()
        if cores is not None:
            options.pus = pus_text(cores).encode()
        super().__init__(lambda made: library().adamant_executor_create(byref(options), made))
        found_isa, found_threads, found_pus = c_char_p(), c_uint32(), c_char_p()
        check(library().adamant_executor_describe(self.pointer, byref(found_isa), byref(found_threads),
                                                  byref(found_pus)))
        self.isa: str = found_isa.value.decode()
        self.threads: int = found_threads.value
        self.pus: str = found_pus.value.decode()

    def __repr__(self) -> str:
        where = f" on hardware threads {self.pus}" if self.pus else ""
        return f"<adamant.Executor: {self.isa}, {self.threads} thread{'s' * (self.threads != 1)}{where}>"


_shared: Dict[tuple, Executor] = {}
_lock = threading.Lock()


def shared_executor(cores: Optional[Cores] = None, threads: int = 0) -> Executor:
    """One executor for all that ask for the same cores and threads in this process: optimizers then share its team. A
    forked process gets one of its own. Without cores and threads it has those of this rank, within the CPU quota."""
    threads = whole_number(threads, "threads", 2**32 - 1)
    if cores is None and threads == 0:
        cores = cores_of_rank()
        threads = default_threads(cores)
    key = (None if cores is None else pus_text(cores), threads)
    with _lock:
        found = _shared.get(key)
        if found is None or not found.here:
            found = _shared[key] = Executor(cores=key[0], threads=threads)
        return found
