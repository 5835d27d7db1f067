# SPDX-License-Identifier: Apache-2.0
"""The module that DeepSpeed's CPUAdamBuilder loads, on this library: `import adamant.deepspeed` before the optimizer is
made, or the environment variable ADAMANT_DEEPSPEED=1 for jobs whose code is not edited; 0 keeps DeepSpeed's own op.

Importing it, before DeepSpeed or after, replaces load() of every CPUAdamBuilder, and nothing else. It sets the variable
for child processes: a line in the wheel's .pth file imports this module where the variable is set, so the workers that
SuperOffload and ZenFlow spawn have it, too. Without the wheel they have it where the main script imports it at its top.

Differences to DeepSpeed's own op:
- adam_rollback() restores every bit, for all types, infinities and NaNs included. It needs the update's gradients, and
  a record: about 2 bytes for each element, and with it the update takes two to three times as long (with float16
  moments it is a copy of everything). So updates from DeepSpeedCPUAdam.step(), which nothing can roll back, leave none.
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

import importlib.abc
import os
import re
import sys
from types import ModuleType
from typing import Any, Dict, Optional, Union

from ._deepspeed_adam import Adam, Records, adams, known, rounding, update
from ._deepspeed_cores import cores_of_rank, share_in_engine, split_of
from ._library import InvalidArgument, Unavailable, library
from ._zenflow import *  # noqa: F401,F403
from .executor import CoreSplit, Executor, default_threads, shared_executor
from .optimizer import hyperparameters

_configured: Optional[str] = None


def _executor_of(adam: Adam) -> Executor:
    if adam.executor is None:
        cores = _configured or cores_of_rank(share_in_engine())
        adam.executor = shared_executor(cores=cores, threads=default_threads(cores))
    return adam.executor


def _nothing_rolls_back(caller: Any) -> bool:
    # rollback_subgroup() rolls back only what step_subgroup() did. Any other caller counts as one that may want to.
    return os.environ.get("ADAMANT_DEEPSPEED_ROLLBACK") == "0" or (
        caller.f_code.co_name in ("step", "_sequential_step")
        and caller.f_globals.get("__name__", "").startswith("deepspeed.ops.adam."))


def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999, eps: float = 1e-8,
                weight_decay: float = 0.0, adamw_mode: bool = True, should_log: bool = False) -> int:
    """Makes an optimizer; adamw_mode says how weight_decay acts. Every update says the other values itself."""
    adams[optimizer_id] = Adam(bool(adamw_mode))
    if should_log:
        print(f"Adam optimizer {optimizer_id} is adamant's, of {library()._name}: lr {alpha}, betas ({betta1}, "
              f"{betta2}), weight_decay {weight_decay}, {'AdamW' if adamw_mode else 'Adam'}")
    return 0


def destroy_adam(optimizer_id: int) -> int:
    """Forgets an optimizer and its records."""
    adams.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                exp_avg_sq: Any) -> int:
    """One update of these tensors, in place. Steps count from 1; any number may come again, for the same tensors or for
    others."""
    adam = known(optimizer_id)
    executor = _executor_of(adam)
    hyper = hyperparameters(lr, (beta1, beta2), epsilon, weight_decay, adam.decoupled, bool(bias_correction), **rounding)
    arrays = (params.detach(), grads.detach().contiguous(), exp_avg.detach(), exp_avg_sq.detach())
    if _nothing_rolls_back(sys._getframe(1)):
        update(executor, hyper, step, arrays)
        return 0
    records = adam.records.get(exp_avg.data_ptr())
    if records is None or not records.are_for(arrays):
        records = adam.records[exp_avg.data_ptr()] = Records(executor, arrays)
    records.update(hyper, step, arrays)
    return 0


def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                  weight_decay: float, bias_correction: bool, params: Any, grads: Any, exp_avg: Any,
                  exp_avg_sq: Any) -> int:
    """Rolls back the last update of these tensors, which had this step number and these gradients, to the bit."""
    records = known(optimizer_id).records.get(exp_avg.data_ptr())
    if records is None:
        raise Unavailable(f"adam_rollback() is called for step {step} of optimizer {optimizer_id}, but there is no "
                          "record of an update of these tensors; updates by DeepSpeedCPUAdam.step(), or with "
                          "ADAMANT_DEEPSPEED_ROLLBACK=0 in the environment, leave none")
    records.roll_back(step, (params.detach(), grads.detach().contiguous(), exp_avg.detach(), exp_avg_sq.detach()))
    return 0


def configure(ds_config: Union[Dict[str, Any], str, "os.PathLike[str]"]) -> CoreSplit:
    """Binds the team to what DeepSpeed's configuration says: a dictionary, or the path of a JSON file. Needed only
    where no DeepSpeed engine calls the updates, as an engine's own configuration is found.

    Returns the optimizer's hardware threads, and those left to the framework. Raises InvalidArgument for values that
    cannot be, and Unavailable for more than the machine has.
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
    for adam in adams.values():
        adam.executor = None
        adam.records.clear()


os.register_at_fork(after_in_child=_forget_parents)
if os.environ.get("ADAMANT_DEEPSPEED") != "0":
    install()
