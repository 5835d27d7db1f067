# SPDX-License-Identifier: Apache-2.0
"""ZenFlow's optimizer process for DeepSpeed, controlled by shared memory with two semaphores."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from ctypes import byref, c_double, c_int32, c_int64, c_long
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._deepspeed_adam import known, update
from ._library import InvalidArgument, Unavailable, counted
from .executor import Cores, shared_executor

__all__ = ["zenflow_adam_create", "zenflow_adam_ctrl_exit", "zenflow_adam_ctrl_init", "zenflow_adam_ctrl_size",
           "zenflow_adam_destroy", "zenflow_adam_register_group", "zenflow_adam_run_worker", "zenflow_adam_submit",
           "zenflow_adam_wait"]

_max_groups = 1024
_worker_magic = 0x6164616D


class _Control(ctypes.Structure):
    # Zeros come first: a worker with DeepSpeed's own op waits on them forever and writes nothing.
    _fields_ = [("zeros", c_long * 32), ("ready", c_long * 8), ("done", c_long * 8), ("worker", c_int32),
                ("leave", c_int32), ("groups", c_int32), ("state", c_int32), ("step", c_int64),
                ("hyper", c_double * 6 * _max_groups)]


class _Time(ctypes.Structure):
    _fields_ = [("seconds", c_long), ("nanoseconds", c_long)]


_libc = ctypes.CDLL(None, use_errno=True)


def _control_at(address: int) -> _Control:
    return _Control.from_address(address)


def _wait(semaphore: Any, timeout_s: float) -> bool:
    until = time.time() + timeout_s
    deadline = _Time(int(until), int(until % 1 * 1e9))
    while _libc.sem_timedwait(byref(semaphore), byref(deadline)) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True


class _Worker:
    def __init__(self, optimizer_id: int, cores: Optional[Cores]):
        self.optimizer_id = optimizer_id
        self.executor = shared_executor(cores=cores)
        self.groups: List[Tuple[Any, Any, Any, Any, Any]] = []

    def step(self, control: _Control) -> None:
        decay = known(self.optimizer_id).decay
        for (param, grads, exp_avgs, exp_avg_sqs, stale), values in zip(self.groups, control.hyper):
            lr, beta1, beta2, eps, weight_decay, bias_correction = values
            hyper = lr, beta1, beta2, eps, weight_decay, decay, bool(bias_correction)
            i = control.state
            update(self.executor, hyper, control.step, (param, grads[i], exp_avgs[i], exp_avg_sqs[i]))
            if stale is not None:
                stale.copy_(param)


_workers: Dict[int, _Worker] = {}


def zenflow_adam_create(optimizer_id: int, zf_affinity: Sequence[int]) -> int:
    """Create a worker on these cores for an optimizer. Returns its handle."""
    handle = max(_workers, default=-1) + 1
    _workers[handle] = _Worker(optimizer_id, tuple(zf_affinity) or None)
    return handle


def zenflow_adam_register_group(handle: int, param: Any, grad0: Any, grad1: Any, exp_avg0: Any, exp_avg1: Any,
                                exp_avg_sq0: Any, exp_avg_sq1: Any, stale: Any) -> None:
    """Add a group with two alternating sets of gradients and moments. Each step copies param to stale."""
    _workers[handle].groups.append((param, (grad0, grad1), (exp_avg0, exp_avg1), (exp_avg_sq0, exp_avg_sq1), stale))


def zenflow_adam_destroy(handle: int) -> None:
    _workers.pop(handle, None)


def zenflow_adam_ctrl_size() -> int:
    return ctypes.sizeof(_Control)


def zenflow_adam_ctrl_init(control_ptr: int, num_groups: int) -> None:
    if num_groups > _max_groups:
        raise InvalidArgument(f"cannot run ZenFlow with {num_groups} param groups: at most {_max_groups} are supported")
    ctypes.memset(control_ptr, 0, ctypes.sizeof(_Control))
    control = _control_at(control_ptr)
    control.groups = num_groups
    for semaphore in (control.ready, control.done):
        if _libc.sem_init(byref(semaphore), 1, 0) != 0:
            raise Unavailable(f"cannot create a semaphore: {os.strerror(ctypes.get_errno())}")


def zenflow_adam_run_worker(handle: int, control_ptr: int) -> None:
    """Perform submitted steps in the worker process, until zenflow_adam_ctrl_exit() or the parent process ends."""
    control, parent = _control_at(control_ptr), os.getppid()
    control.worker = _worker_magic
    while True:
        while not _wait(control.ready, 5.0):
            if os.getppid() != parent:
                return
        if control.leave:
            return
        if len(_workers[handle].groups) != control.groups:
            raise InvalidArgument(f"cannot step {len(_workers[handle].groups)} registered groups: "
                                  f"zenflow_adam_ctrl_init() was called for {control.groups}")
        _workers[handle].step(control)
        _libc.sem_post(byref(control.done))


def zenflow_adam_submit(control_ptr: int, now_state: int, step: int, lr: Sequence[float], beta1: Sequence[float],
                        beta2: Sequence[float], eps: Sequence[float], weight_decay: Sequence[float],
                        bias_correction: Sequence[int]) -> None:
    control = _control_at(control_ptr)
    if len(lr) != control.groups:
        raise InvalidArgument(f"cannot step {counted(len(lr), 'group')}: zenflow_adam_ctrl_init() was called for "
                              f"{control.groups}")
    for values, group in zip(control.hyper, zip(lr, beta1, beta2, eps, weight_decay, bias_correction)):
        values[:] = group
    control.state, control.step = now_state, step
    _libc.sem_post(byref(control.ready))


def zenflow_adam_wait(control_ptr: int, timeout_s: float) -> bool:
    """Wait for a step of the worker. Returns whether it finished in time."""
    control = _control_at(control_ptr)
    if _wait(control.done, timeout_s):
        return True
    if timeout_s >= 10 and control.worker != _worker_magic:
        raise Unavailable(f"cannot reach ZenFlow's worker in {timeout_s} seconds: it has probably loaded DeepSpeed's "
                          "own op. Install adamant's wheel, whose .pth file serves spawned processes, or import "
                          "adamant.deepspeed at the top of the main script, outside of `if __name__ == '__main__'`")
    return False


def zenflow_adam_ctrl_exit(control_ptr: int) -> None:
    control = _control_at(control_ptr)
    control.leave = 1
    _libc.sem_post(byref(control.ready))


os.register_at_fork(after_in_child=_workers.clear)
