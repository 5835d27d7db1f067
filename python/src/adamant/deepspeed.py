# SPDX-License-Identifier: Apache-2.0
"""Replacement of DeepSpeed's CPU Adam op.

Import this module before the optimizer is created, or set the environment variable ADAMANT_DEEPSPEED=1 for jobs whose
code is not edited. ADAMANT_DEEPSPEED=0 keeps DeepSpeed's own op.

The import, before or after DeepSpeed's, replaces load() of every CPUAdamBuilder, and nothing else. It sets the
environment variable for child processes: the wheel's .pth file imports this module if the variable is set, so workers
that SuperOffload and ZenFlow spawn use it. Without the wheel, workers use it if the main script imports it at the top.

Differences from DeepSpeed's own op:

- adam_rollback() restores every bit, for all dtypes, infinities and NaNs. It needs the update's gradients and a record.
  A record of float32 tensors takes about 2 bytes for each element, and of 16-bit params with float32 moments about 4
  in tensors of 4 million elements and more; other records are copies of params and moments. With a record the update
  takes 1.1 to 1.8 times as long. Updates by DeepSpeedCPUAdam.step(), which are never rolled back, have no record.
  Records keep params and moments alive until destroy_adam(). A rollback without a record is an error.
  ADAMANT_DEEPSPEED_ROLLBACK=0 disables records.
- Gradients may have another dtype than the params. Noncontiguous params and moments are an error; DeepSpeed's own op
  loses the update.
- float16 moments are updated in float32 and rounded once, in chunks.
- Threads: one on each core of this rank, or on the share "cpuadam_cores_perc" of the JSON's offload_optimizer. In a
  process that is bound to cores, as DeepSpeed binds its workers, one on each of these cores. "ratio" needs no support
  here: DeepSpeed passes only that share of the params.
"""

from __future__ import annotations

import importlib.abc
import os
import re
import sys
import warnings
from types import ModuleType
from typing import Any, Dict, Optional, Union

from ._deepspeed_adam import Adam, Records, adams, known, update
from ._deepspeed_cores import cores_of_rank, share_in_engine, split_of
from ._library import Unavailable, library
from ._deepspeed_zenflow import *  # noqa: F401,F403
from .executor import CoreSplit, Executor, default_threads, shared_executor

_configured: Optional[str] = None


def _executor_of(adam: Adam) -> Executor:
    if adam.executor is None:
        cores = _configured or cores_of_rank(share_in_engine())
        adam.executor = shared_executor(cores=cores, threads=default_threads(cores))
    return adam.executor


_plain_callers: Dict[Any, bool] = {}  # by code: whether it is a function of DeepSpeed that never rolls back


def _is_never_rolled_back(caller: Any) -> bool:
    # rollback_subgroup() rolls back only updates of step_subgroup(). Assume that all unknown callers may roll back.
    # Asking the environment takes as long as the rest of a small update.
    is_plain = _plain_callers.get(caller.f_code)
    if is_plain is None:
        is_plain = _plain_callers[caller.f_code] = (
            caller.f_code.co_name in ("step", "_sequential_step")
            and caller.f_globals.get("__name__", "").startswith("deepspeed.ops.adam."))
    return is_plain or os.environ.get("ADAMANT_DEEPSPEED_ROLLBACK") == "0"


def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999, eps: float = 1e-8,
                weight_decay: float = 0.0, adamw_mode: bool = True, should_log: bool = False) -> int:
    """Create an optimizer.

    Parameters
    ----------
    optimizer_id : int
        Number of the optimizer in all other functions.
    adamw_mode : bool, default True
        Apply weight decay to params directly (AdamW).
    should_log : bool, default False
        Print the optimizer's values.

    Notes
    -----
    All other hyperparameters are arguments of adam_update(), and ignored here.
    """
    adams[optimizer_id] = Adam(bool(adamw_mode))
    if should_log:
        print(f"Adam optimizer {optimizer_id} uses adamant from {library()._name}: lr {alpha}, betas ({betta1}, "
              f"{betta2}), weight_decay {weight_decay}, {'AdamW' if adamw_mode else 'Adam'}")
    return 0


def destroy_adam(optimizer_id: int) -> int:
    """Destroy an optimizer and its records."""
    adams.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                exp_avg_sq: Any) -> int:
    """Update params and moments in place.

    Parameters
    ----------
    step : int
        Step number for the bias correction, from 1. Numbers may repeat, for the same or for other tensors.
    params, grads, exp_avg, exp_avg_sq : Tensor
        Tensors in host memory, with the same number of elements.

    Raises
    ------
    InvalidArgument
        The optimizer does not exist, or a tensor cannot be used in place.
    """
    adam = adams.get(optimizer_id) or known(optimizer_id)
    executor = adam.executor or _executor_of(adam)
    hyper = lr, beta1, beta2, epsilon, weight_decay, adam.decay, bool(bias_correction)
    if not grads.is_contiguous():
        grads = grads.contiguous()
    if _is_never_rolled_back(sys._getframe(1)):
        update(executor, hyper, step, (params, grads, exp_avg, exp_avg_sq))
        return 0
    arrays = (params.detach(), grads.detach(), exp_avg.detach(), exp_avg_sq.detach())
    records = adam.records.get(exp_avg.data_ptr())
    if records is None or not records.matches(arrays):
        records = adam.records[exp_avg.data_ptr()] = Records(executor, arrays)
    records.update(hyper, step, arrays)
    return 0


def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                  weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                  exp_avg_sq: Any) -> int:
    """Roll back the last update of these tensors exactly. It had this step number and these gradients.

    Raises
    ------
    InvalidArgument
        The optimizer does not exist, a tensor cannot be used in place, or the gradients have changed.
    Unavailable
        There is no record of that update.
    """
    records = known(optimizer_id).records.get(exp_avg.data_ptr())
    if records is None:
        raise Unavailable(f"cannot roll back step {step} of optimizer {optimizer_id}: there is no record of an update "
                          "of these tensors. Updates by DeepSpeedCPUAdam.step(), or with ADAMANT_DEEPSPEED_ROLLBACK=0 "
                          "in the environment, have no record")
    records.roll_back(step, (params.detach(), grads.detach().contiguous(), exp_avg.detach(), exp_avg_sq.detach()))
    return 0


def configure(ds_config: Union[Dict[str, Any], str, "os.PathLike[str]"]) -> CoreSplit:
    """Bind the optimizer's threads to the cores of a DeepSpeed configuration.

    Needed only if adam_update() is not called by a DeepSpeed engine; the configuration of an engine is found
    automatically.

    Parameters
    ----------
    ds_config : dict or path
        DeepSpeed's configuration, or the path of its JSON file.

    Returns
    -------
    CoreSplit
        Hardware threads of the optimizer and of the framework.

    Raises
    ------
    InvalidArgument
        A value is out of range, or the file is no JSON object.
    OSError
        The file cannot be read.
    Unavailable
        The machine has fewer cores than requested.
    """
    global _configured
    split = split_of(ds_config)
    _configured = split.adam
    for adam in adams.values():
        adam.executor = None
    return split


# Installation

_builders = re.compile(r"(deepspeed\.ops\.)?op_builder(\.\w+)?\.cpu_adam")


def _replace(module: ModuleType) -> None:
    builder = getattr(module, "CPUAdamBuilder", None)
    if builder is not None:
        builder.load = lambda self, verbose=False: sys.modules[__name__]


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that replaces load() in builders that are imported later."""

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
    """Make every CPUAdamBuilder().load() return this module, in this process and in processes that it spawns.

    Importing this module calls install(). Warns with RuntimeWarning if DeepSpeed has loaded its own op: optimizers that
    exist keep it.
    """
    os.environ["ADAMANT_DEEPSPEED"] = "1"
    for name in ("deepspeed.ops.op_builder.builder", "op_builder.builder"):
        if "cpu_adam" in getattr(getattr(sys.modules.get(name), "OpBuilder", None), "_loaded_ops", ()):
            warnings.warn("cannot replace CPU Adam in optimizers that exist: DeepSpeed has loaded its own op. Import "
                          "adamant.deepspeed before deepspeed.initialize().", RuntimeWarning, stacklevel=2)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, module in list(sys.modules.items()):
        if _builders.fullmatch(name):
            _replace(module)


def _forget_parents() -> None:
    # A fork copies no threads, so the child needs a new team, and cannot use the parent's records.
    for adam in adams.values():
        adam.executor = None
        adam.records.clear()


os.register_at_fork(after_in_child=_forget_parents)
if os.environ.get("ADAMANT_DEEPSPEED") != "0":
    install()
