# SPDX-License-Identifier: Apache-2.0
"""The module that DeepSpeed's CPUAdamBuilder loads, on this library: `import adamant.deepspeed` before the optimizer is
made, or the environment variable ADAMANT_DEEPSPEED=1 for jobs whose code nobody edits; 0 keeps DeepSpeed's own op.

Importing it, before DeepSpeed or after, replaces load() of every CPUAdamBuilder, and nothing else. It sets the variable
for child processes: a line in the wheel's .pth file imports this module where the variable is set, so the workers that
SuperOffload and ZenFlow spawn have it, too. Without the wheel they have it where the main script imports it at its top.

Differences to DeepSpeed's own op:
- adam_rollback() restores every bit, for all types, infinities and NaNs included. It needs the update's gradients, and
  a record: about 2 bytes for each element, and with it the update takes two to three times as long (with float16
  moments it is a copy of everything). So updates from DeepSpeedCPUAdam.step(), which nothing can take back, leave none.
  Records keep the tensors alive until destroy_adam(). A rollback without one is an error.
  ADAMANT_DEEPSPEED_ROLLBACK=0: there are no records.
- Gradients may have another type than the params. Params and moments that are not contiguous are an error, where
  DeepSpeed's own op loses the update.
- Moments in float16 are computed in float32 and rounded once, a chunk at a time.
- Threads: one on each core of this rank's part, or what "cpuadam_cores_perc" in the JSON's offload_optimizer says. A
  process that was bound to cores, as DeepSpeed does with its workers, keeps to those. "ratio" needs nothing here:
  DeepSpeed itself hands over only that share of the params.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.abc
import importlib.util
import json
import os
import re
import sys
import time
from ctypes import byref, c_double, c_int32, c_int64, c_long, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._arrays import Place, place_of
from ._library import CoreOptions, InvalidArgument, Shard, Unavailable, check, library
from .executor import CoreSplit, Cores, Executor, select_cores, shared_executor
from .optimizer import Optimizer, hyperparameters

_float16_chunk = 1 << 20
# More than the last update can be taken back where records take next to nothing.
_deep_elements, _deep_records = 1 << 16, 8


# Updates

class _Adam:
    def __init__(self, decoupled: bool):
        self.decoupled = decoupled
        self.records: Dict[int, _Records] = {}  # by the address of the first moment
        self.executor: Optional[Executor] = None


_adams: Dict[int, _Adam] = {}
_configured: Optional[str] = None


def _known(optimizer_id: int) -> _Adam:
    if optimizer_id not in _adams:
        raise InvalidArgument(f"optimizer {optimizer_id} is used, but create_adam() was not called for it, or "
                              "destroy_adam() was")
    return _adams[optimizer_id]


def _executor_of(adam: _Adam) -> Executor:
    if adam.executor is None:
        adam.executor = shared_executor(cores=_configured or _cores_of_rank(_share_in_engine()))
    return adam.executor


def _places(arrays: Sequence[Any]) -> List[Place]:
    places = [place_of(array, name) for array, name in zip(arrays, ("params", "grads", "exp_avg", "exp_avg_sq"))]
    if len({place.elements for place in places}) != 1:
        raise InvalidArgument("params, grads, exp_avg and exp_avg_sq have "
                              f"{', '.join(str(place.elements) for place in places)} elements, but need as many each")
    return places


def _step(executor: Executor, hyper: Any, step: int, arrays: Sequence[Any]) -> None:
    places = _places(arrays)
    shard = Shard.initialised(elements=places[0].elements)
    for name, place in zip(("param", "grad", "exp_avg", "exp_avg_sq"), places):
        setattr(shard, name, place.address or None)
        setattr(shard, name + "_dtype", place.dtype)
    check(library().adamant_step_shard(executor.pointer, byref(shard), byref(hyper), step, 1.0, 1.0, None))


def _has_float16_moments(arrays: Sequence[Any]) -> bool:
    return any(str(moment.dtype) == "torch.float16" for moment in arrays[2:])


def _update(executor: Executor, hyper: Any, step: int, arrays: Sequence[Any]) -> None:
    """One update of (params, grads, exp_avg, exp_avg_sq), in place."""
    if not _has_float16_moments(arrays):
        _step(executor, hyper, step, arrays)
        return
    # The library has no such moments.
    elements, torch = _places(arrays)[0].elements, sys.modules["torch"]
    scratch = torch.empty(2, min(elements, _float16_chunk), dtype=torch.float32)
    for begin in range(0, elements, _float16_chunk):
        parts = [array.view(-1)[begin:begin + _float16_chunk] for array in arrays]
        wide = [one[:parts[0].numel()].copy_(part) for one, part in zip(scratch, parts[2:])]
        _step(executor, hyper, step, parts[:2] + wide)
        for part, values in zip(parts[2:], wide):
            part.copy_(values)


def _written(arrays: Sequence[Any]) -> List[Any]:
    return [arrays[0], *arrays[2:]]


class _Records:
    """Takes back updates of one set of tensors, the last one first. An optimizer keeps one step's record; for float16
    moments a copy takes its place."""

    def __init__(self, executor: Executor, arrays: Sequence[Any]):
        self._executor = executor
        self._arrays = _written(arrays)
        self._types = [(place.elements, place.dtype) for place in _places(arrays)]
        self._copies = _has_float16_moments(arrays)
        self._depth = _deep_records if self._types[0][0] <= _deep_elements else 1
        self._done: List[Tuple[int, Any]] = []
        self._free: List[Any] = []

    def are_for(self, arrays: Sequence[Any], anywhere: bool = False) -> bool:
        return self._types == [(place.elements, place.dtype) for place in _places(arrays)] and (
            anywhere or not self._moved(arrays))

    def _moved(self, arrays: Sequence[Any]) -> List[Tuple[Any, Any]]:
        return [(known, array) for known, array in zip(self._arrays, _written(arrays))
                if known.data_ptr() != array.data_ptr()]

    def _one(self, grad: Any) -> Any:
        if len(self._done) >= self._depth:
            return self._done.pop(0)[1]
        if self._free:
            return self._free.pop()
        if self._copies:
            return [array.clone() for array in self._arrays]
        one = Optimizer(self._executor, on_nonfinite="apply", keep_last_step=True)
        one.add_shard(one.add_group("all"), "params", self._arrays[0], grad, *self._arrays[1:])
        return one

    def update(self, hyper: Any, step: int, arrays: Sequence[Any]) -> None:
        one = self._one(arrays[1])
        if self._copies:
            for copy, array in zip(one, self._arrays):
                copy.copy_(array)
            _update(self._executor, hyper, step, arrays)
        else:
            one.set_hyperparameters(0, lr=hyper.lr, betas=(hyper.beta1, hyper.beta2), eps=hyper.eps,
                                    weight_decay=hyper.weight_decay, decoupled=hyper.decay == 1,
                                    bias_correction=bool(hyper.bias_correction))
            one.steps = step - 1
            one.step([arrays[1]])
        self._done.append((step, one))

    def take_back(self, step: int, arrays: Sequence[Any]) -> None:
        if not self._done or self._done[-1][0] != step or not self.are_for(arrays, anywhere=True):
            raise Unavailable(f"adam_rollback() is called for step {step}, but the records are of steps "
                              f"{[known for known, _ in self._done]}, at most {self._depth} of them; take back the "
                              "last update, with the same tensors")
        one = self._done[-1][1]
        if self._copies:
            for copy, array in zip(one, _written(arrays)):
                array.copy_(copy)
        else:
            # Params that came from another process may be mapped elsewhere than they were at the update.
            moved = self._moved(arrays)
            for known, array in moved:
                known.copy_(array)
            one.set_gradient(0, arrays[1])
            one.rollback()
            for known, array in moved:
                array.copy_(known)
        self._free.append(self._done.pop()[1])


def _nothing_takes_back(caller: Any) -> bool:
    # rollback_subgroup() takes back only what step_subgroup() did. Any other caller counts as one that may want to.
    return os.environ.get("ADAMANT_DEEPSPEED_ROLLBACK") == "0" or (
        caller.f_code.co_name in ("step", "_sequential_step")
        and caller.f_globals.get("__name__", "").startswith("deepspeed.ops.adam."))


def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999, eps: float = 1e-8,
                weight_decay: float = 0.0, adamw_mode: bool = True, should_log: bool = False) -> int:
    """Makes an optimizer; adamw_mode says how weight_decay acts. Every update says the other values itself."""
    _adams[optimizer_id] = _Adam(bool(adamw_mode))
    if should_log:
        print(f"Adam optimizer {optimizer_id} is adamant's, of {library()._name}: lr {alpha}, betas ({betta1}, "
              f"{betta2}), weight_decay {weight_decay}, {'AdamW' if adamw_mode else 'Adam'}")
    return 0


def destroy_adam(optimizer_id: int) -> int:
    """Forgets an optimizer and its records."""
    _adams.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                exp_avg_sq: Any) -> int:
    """One update of these tensors, in place. Steps count from 1; any number may come again, for the same tensors or for
    others."""
    adam = _known(optimizer_id)
    executor = _executor_of(adam)
    hyper = hyperparameters(lr, (beta1, beta2), epsilon, weight_decay, adam.decoupled, bool(bias_correction))
    arrays = (params.detach(), grads.detach().contiguous(), exp_avg.detach(), exp_avg_sq.detach())
    if _nothing_takes_back(sys._getframe(1)):
        _update(executor, hyper, step, arrays)
        return 0
    records = adam.records.get(exp_avg.data_ptr())
    if records is None or not records.are_for(arrays):
        records = adam.records[exp_avg.data_ptr()] = _Records(executor, arrays)
    records.update(hyper, step, arrays)
    return 0


def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                  weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                  exp_avg_sq: Any) -> int:
    """Takes back the last update of these tensors, which had this step number and these gradients, to the bit."""
    records = _known(optimizer_id).records.get(exp_avg.data_ptr())
    if records is None:
        raise Unavailable(f"adam_rollback() is called for step {step} of optimizer {optimizer_id}, but there is no "
                          "record of an update of these tensors; updates by DeepSpeedCPUAdam.step(), or with "
                          "ADAMANT_DEEPSPEED_ROLLBACK=0 in the environment, leave none")
    records.take_back(step, (params.detach(), grads.detach().contiguous(), exp_avg.detach(), exp_avg_sq.detach()))
    return 0


# ZenFlow: the training process and the optimizer's share a block of memory with two semaphores

_max_groups = 1024
_worker_here = 0x6164616D


class _Control(ctypes.Structure):
    # The zeros come first: a worker that has DeepSpeed's own op waits there for ever, and touches nothing.
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


class _ZenFlow:
    def __init__(self, optimizer_id: int, cores: Optional[Cores]):
        self.optimizer_id = optimizer_id
        self.executor = shared_executor(cores=cores)
        self.groups: List[Tuple[Any, Any, Any, Any, Any]] = []

    def step(self, control: _Control) -> None:
        decoupled = _known(self.optimizer_id).decoupled
        for (param, grads, exp_avgs, exp_avg_sqs, stale), values in zip(self.groups, control.hyper):
            lr, beta1, beta2, eps, weight_decay, bias_correction = values
            hyper = hyperparameters(lr, (beta1, beta2), eps, weight_decay, decoupled, bool(bias_correction))
            at = control.state
            _update(self.executor, hyper, control.step, (param, grads[at], exp_avgs[at], exp_avg_sqs[at]))
            if stale is not None:
                stale.copy_(param)


_zenflows: Dict[int, _ZenFlow] = {}


def zenflow_adam_create(optimizer_id: int, zf_affinity: Sequence[int]) -> int:
    """Makes a team on these cores for an optimizer, and returns its handle."""
    handle = max(_zenflows, default=-1) + 1
    _zenflows[handle] = _ZenFlow(optimizer_id, tuple(zf_affinity) or None)
    return handle


def zenflow_adam_register_group(handle: int, param: Any, grad0: Any, grad1: Any, exp_avg0: Any, exp_avg1: Any,
                                exp_avg_sq0: Any, exp_avg_sq1: Any, stale: Any) -> None:
    """Adds a group, with two sets of gradients and moments that take turns. Each step copies param to stale."""
    _zenflows[handle].groups.append((param, (grad0, grad1), (exp_avg0, exp_avg1), (exp_avg_sq0, exp_avg_sq1), stale))


def zenflow_adam_destroy(handle: int) -> None:
    _zenflows.pop(handle, None)


def zenflow_adam_ctrl_size() -> int:
    return ctypes.sizeof(_Control)


def zenflow_adam_ctrl_init(control_ptr: int, num_groups: int) -> None:
    if num_groups > _max_groups:
        raise InvalidArgument(f"ZenFlow has {num_groups} param groups, but at most {_max_groups} are possible")
    ctypes.memset(control_ptr, 0, ctypes.sizeof(_Control))
    control = _control_at(control_ptr)
    control.groups = num_groups
    for semaphore in (control.ready, control.done):
        if _libc.sem_init(byref(semaphore), 1, 0) != 0:
            raise Unavailable(f"a semaphore cannot be made: {os.strerror(ctypes.get_errno())}")


def zenflow_adam_run_worker(handle: int, control_ptr: int) -> None:
    """Does the steps that are submitted, in the worker, until it is told to leave or its parent has gone."""
    control, parent = _control_at(control_ptr), os.getppid()
    control.worker = _worker_here
    while True:
        while not _wait(control.ready, 5.0):
            if os.getppid() != parent:
                return
        if control.leave:
            return
        if len(_zenflows[handle].groups) != control.groups:
            raise InvalidArgument(f"{len(_zenflows[handle].groups)} groups are registered, but {control.groups} were "
                                  "announced")
        _zenflows[handle].step(control)
        _libc.sem_post(byref(control.done))


def zenflow_adam_submit(control_ptr: int, now_state: int, step: int, lr: Sequence[float], beta1: Sequence[float],
                        beta2: Sequence[float], eps: Sequence[float], weight_decay: Sequence[float],
                        bias_correction: Sequence[int]) -> None:
    control = _control_at(control_ptr)
    if len(lr) != control.groups:
        raise InvalidArgument(f"a step has {len(lr)} groups, but {control.groups} were announced")
    for values, group in zip(control.hyper, zip(lr, beta1, beta2, eps, weight_decay, bias_correction)):
        values[:] = group
    control.state, control.step = now_state, step
    _libc.sem_post(byref(control.ready))


def zenflow_adam_wait(control_ptr: int, timeout_s: float) -> bool:
    """Whether the worker finished a step in that time."""
    control = _control_at(control_ptr)
    if _wait(control.done, timeout_s):
        return True
    if timeout_s >= 10 and control.worker != _worker_here:
        raise Unavailable(f"ZenFlow's worker has not come in {timeout_s} seconds: it has probably loaded DeepSpeed's "
                          "own op. Install adamant's wheel, whose .pth file serves spawned processes, or import "
                          "adamant.deepspeed at the top of the main script, outside of `if __name__ == '__main__'`")
    return False


def zenflow_adam_ctrl_exit(control_ptr: int) -> None:
    control = _control_at(control_ptr)
    control.leave = 1
    _libc.sem_post(byref(control.ready))


# Cores

def configure(ds_config: Union[Dict[str, Any], str, "os.PathLike[str]"]) -> CoreSplit:
    """Binds the team to what DeepSpeed's configuration says: a dictionary, or the path of a JSON file. Needed only
    where no DeepSpeed engine calls the updates, as an engine's own configuration is found.

    Returns the optimizer's hardware threads, and those left to the framework. Raises InvalidArgument for values that
    cannot be, and Unavailable for more than the machine has.
    """
    global _configured
    whole = ds_config if isinstance(ds_config, dict) else json.loads(Path(ds_config).read_text())
    # Only what decides the cores: other keys may still say "auto", which DeepSpeed's callers fill in.
    zero = whole.get("zero_optimization") or {}
    text = json.dumps({"zero_optimization": {key: zero[key] for key in ("stage", "offload_optimizer", "zenflow")
                                             if key in zero}}).encode()
    calls, parsed = library(), c_void_p()
    check(calls.adamant_deepspeed_parse(text, len(text), byref(parsed)))
    try:
        options = CoreOptions.initialised()
        check(calls.adamant_deepspeed_apply(parsed, None, None, None, None, byref(options)))
    finally:
        calls.adamant_deepspeed_free(parsed)
    split = _select(options.cpuadam_cores_perc or 1 - options.pt_reserved_cores_perc)
    _configured = split.adam
    for adam in _adams.values():
        adam.executor = None
    return split


def _is_bound() -> bool:
    # Launchers bind each rank, and DeepSpeed each worker, to cores of its own, so they differ from the parent's. Ranks
    # that nobody bound share what the launcher may use.
    try:
        return os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        return True


def _select(share: float) -> CoreSplit:
    # DeepSpeed's launcher says LOCAL_SIZE where torchrun says LOCAL_WORLD_SIZE.
    rank, ranks = os.environ.get("LOCAL_RANK"), os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    if _is_bound() or (rank and not ranks):
        return select_cores(share, ranks=1)
    return select_cores(share, ranks=int(ranks), rank=int(rank)) if rank and ranks else select_cores(share)


def _cores_of_rank(share: Optional[float]) -> Optional[str]:
    if share is not None:
        return _select(share).adam
    try:
        return None if _is_bound() else ",".join(filter(None, _select(1.0)))
    except Unavailable:
        return None  # more ranks than cores


def _share_in_engine() -> Optional[float]:
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


# Installation

_builders = re.compile(r"(deepspeed\.ops\.)?op_builder(\.\w+)?\.cpu_adam")


def _replace(module: ModuleType) -> None:
    builder = getattr(module, "CPUAdamBuilder", None)
    if builder is not None:
        builder.load = lambda self, verbose=False: sys.modules[__name__]


class _Finder(importlib.abc.MetaPathFinder):
    """Replaces load() in builders that are imported later."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not _builders.fullmatch(name):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and not isinstance(finder, _Finder) else None
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module: ModuleType) -> None:
                    run(module)
                    _replace(module)

                spec.loader.exec_module = exec_module  # type: ignore
                return spec
        return None


def install() -> None:
    """Makes every CPUAdamBuilder().load() return this module, in this process and, by the environment, in those that it
    spawns. Importing this module does so."""
    os.environ["ADAMANT_DEEPSPEED"] = "1"
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, module in list(sys.modules.items()):
        if _builders.fullmatch(name):
            _replace(module)


def _forget_parents() -> None:
    # Threads are not forked with a process: it needs a team of its own, and the parent's records are not its own.
    for adam in _adams.values():
        adam.executor = None
        adam.records.clear()
    _zenflows.clear()


os.register_at_fork(after_in_child=_forget_parents)
if os.environ.get("ADAMANT_DEEPSPEED") != "0":
    install()
