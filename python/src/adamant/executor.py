# SPDX-License-Identifier: Apache-2.0
"""Executors: an instruction set and a team of threads, and the cores that they are bound to."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_char_p, c_uint32
from typing import Dict, Iterable, NamedTuple, Optional, Tuple, Union

from ._library import (CoreOptions, ExecutorOptions, Handle, InvalidArgument, Unavailable, c_strings, c_text, check,
                       library, whole_number)

_list_bytes = 1 << 16

Cores = Union[str, Iterable[int]]


def pus_text(cores: Cores) -> str:
    """A list of hardware threads as libadamant_c takes it, such as "0-3,8"."""
    text = cores if isinstance(cores, str) else ",".join(str(whole_number(core, "a core")) for core in cores)
    if not text:  # libadamant_c would take all of them
        raise InvalidArgument("cannot select cores: the list is empty. Name at least one, or pass None for all")
    return text


def pus_of(text: str) -> Tuple[int, ...]:
    """The numbers in a list such as "0-3,8"."""
    numbers = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


class CoreSplit(NamedTuple):
    """Hardware threads as lists such as "0-3,8".

    Attributes
    ----------
    adam : str
        Hardware threads of the optimizer.
    host : str
        Hardware threads that remain for the framework.
    """

    adam: str
    host: str


def select_cores(cpuadam_cores_perc: Optional[float] = None, *, cores: Optional[int] = None,
                 pus: Optional[Cores] = None, ranks: int = 0, rank: int = 0,
                 masks: Iterable[str] = ()) -> CoreSplit:
    """Select the cores of one rank.

    Parameters
    ----------
    cpuadam_cores_perc : float or None, default None
        The optimizer's share of the rank's cores, above 0 and at most 1. None: 0.8, unless `cores` is set.
    cores : int or None, default None
        The number of the optimizer's cores. Excludes `cpuadam_cores_perc`.
    pus : str, iterable of int or None, default None
        Hardware threads to choose from, such as "0-3,8" or [0, 1]. None: all that the process may use.
    ranks : int, default 0
        Number of ranks on this host. 0: from the launcher's environment (torchrun, DeepSpeed, Slurm, Open MPI, Intel
        MPI).
    rank : int, default 0
        Number of this rank on this host.
    masks : iterable of str, default ()
        The affinity that each rank was started with, as lists; see adamant/adamant.h.

    Returns
    -------
    CoreSplit

    Raises
    ------
    InvalidArgument
        A value is out of range, or values exclude each other.
    Unavailable
        The machine has fewer cores than requested.
    """
    if cores is not None:  # libadamant_c reads 0 as not set
        whole_number(cores, "cores", 2**32 - 1, 1)
    options = CoreOptions.initialised(cpuadam_cores_perc=cpuadam_cores_perc or 0, cpuadam_cores=cores or 0,
                                      ranks=ranks, rank=rank)
    if pus is not None:
        options.pus = c_text(pus_text(pus), "pus")
    mask_list = [c_text(mask, "a mask") for mask in masks]
    if mask_list:
        options.masks, options.mask_count = c_strings(mask_list), len(mask_list)
    optimizer_pus, host_pus = (ctypes.create_string_buffer(_list_bytes) for _ in range(2))
    check(library().adamant_select_cores(byref(options), optimizer_pus, _list_bytes, host_pus, _list_bytes))
    return CoreSplit(optimizer_pus.value.decode(), host_pus.value.decode())


def allowed_pus() -> str:
    """Return the hardware threads that this process may use by its affinity and cgroup, such as "0-3,8"."""
    pus = ctypes.create_string_buffer(_list_bytes)
    check(library().adamant_allowed_pus(pus, _list_bytes))
    return pus.value.decode()


def launcher_number(*variables: str) -> Optional[int]:
    """The number in the first of these environment variables that is set, not empty and not negative.

    Raises InvalidArgument if it is not a whole number.
    """
    for variable in variables:
        value = os.environ.get(variable)
        try:
            number = int(value or -1)  # -1 is a usual value in programs that no launcher has started
        except ValueError:
            raise InvalidArgument(f"{variable} is {value!r}, but must be a whole number. Unset it, or set it to the "
                                  "number that the launcher sets") from None
        if number >= 0:
            return number
    return None


def threads_within_quota(threads: int) -> int:
    """The number of these threads that this rank's part of the container's CPU quota keeps busy; at least 1."""
    quota = ctypes.c_double()
    check(library().adamant_cpu_quota(byref(quota), None, 0))
    ranks = launcher_number("LOCAL_WORLD_SIZE", "LOCAL_SIZE") or 1
    return min(threads, max(1, int(quota.value / ranks))) if quota.value > 0 else threads


def default_threads(cores: Optional[str]) -> int:
    """`threads` for an executor on these cores: 0 (one for each core), or fewer if the CPU quota is lower."""
    count = 0 if cores is None else len(pus_of(cores))
    within = threads_within_quota(count)
    return within if within < count else 0


def cores_of_rank() -> Optional[str]:
    """The hardware threads of this rank, if a launcher such as torchrun has started several ranks on this host.

    None if there is one rank, or if there are fewer cores than ranks.
    """
    if (launcher_number("LOCAL_WORLD_SIZE") or 1) < 2:
        return None
    try:
        split = select_cores(cores=1)
    except Unavailable:
        return None
    return ",".join(filter(None, split))


class Executor(Handle):
    """An instruction set and a team of threads. Optimizers that share an executor take turns.

    Parameters
    ----------
    isa : {"scalar", "neon", "avx2", "avx512", "avx512_bf16"} or None, default None
        Instruction set. Does not change any bit of a result. None: the environment variable ADAMANT_ISA, or the best
        of this CPU.
    cores : str, iterable of int or None, default None
        Hardware threads that get one thread each, such as "0-3,8" or [0, 1]. None: one of each core that the process
        may use.
    threads : int, default 0
        Number of threads. 0: one on each of `cores`. 1 without `cores` is the calling thread.
    bind : {"default", "required", "if_possible", "none"}, default "default"
        "required": a thread that cannot be bound is an error. "if_possible": such a thread stays unbound. "none": no
        thread is bound.

    Attributes
    ----------
    isa : str
        The instruction set.
    threads : int
        The number of threads.
    pus : str
        The hardware threads that threads are bound to, or "".

    Raises
    ------
    InvalidArgument
        An argument is out of range.
    Unavailable
        This machine lacks the instruction set or the cores.

    Notes
    -----
    Thread-safe. A forked process cannot use the executor of its parent. After close(), optimizers that use the executor
    keep its threads, and new ones refuse it.
    """

    free_function = "adamant_executor_free"
    _binds = {"default": 0, "required": 1, "if_possible": 2, "none": 3}

    def __init__(self, isa: Optional[str] = None, cores: Optional[Cores] = None, threads: int = 0,
                 bind: str = "default"):
        if bind not in self._binds:
            raise InvalidArgument(f"bind is {bind!r}, but must be one of {', '.join(self._binds)}")
        options = ExecutorOptions.initialised(threads=threads, bind=self._binds[bind])
        if isa is not None:
            options.isa = c_text(isa, "isa")
        if cores is not None:
            options.pus = c_text(pus_text(cores), "cores")
        super().__init__(lambda pointer: library().adamant_executor_create(byref(options), pointer))
        actual_isa, actual_threads, actual_pus = c_char_p(), c_uint32(), c_char_p()
        check(library().adamant_executor_describe(self.pointer, byref(actual_isa), byref(actual_threads),
                                                  byref(actual_pus)))
        self.isa: str = actual_isa.value.decode()
        self.threads: int = actual_threads.value
        self.pus: str = actual_pus.value.decode()

    def __repr__(self) -> str:
        binding = f" on hardware threads {self.pus}" if self.pus else ""
        return f"<adamant.Executor: {self.isa}, {self.threads} thread{'s' * (self.threads != 1)}{binding}>"


_shared: Dict[tuple, Executor] = {}
_defaults: Dict[tuple, Tuple[Optional[str], int]] = {}  # cores and threads, by what a launcher has set
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may have held it


def _default_cores_and_threads() -> Tuple[Optional[str], int]:
    # Reading the CPU quota takes longer than a small step.
    launched = tuple(map(os.environ.get, ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "LOCAL_RANK")))
    known = _defaults.get(launched)
    if known is None:
        cores = cores_of_rank()
        known = _defaults[launched] = (cores, default_threads(cores))
    return known


def shared_executor(cores: Optional[Cores] = None, threads: int = 0) -> Executor:
    """Returns the process's executor for these cores and threads; optimizers share its team.

    A forked process gets a new executor. Without cores and threads the executor has those of this rank, within the CPU
    quota.
    """
    threads = whole_number(threads, "threads", 2**32 - 1)
    if cores is None and threads == 0:
        cores, threads = _default_cores_and_threads()
    key = (None if cores is None else pus_text(cores), threads)
    with _lock:
        executor = _shared.get(key)
        if executor is None or not executor.is_in_own_process:
            executor = _shared[key] = Executor(cores=key[0], threads=threads)
        return executor
