# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW for PyTorch: torch.optim's classes, whose step the library does in one pass over memory.

    from adamant.torch import AdamW
    optimizer = AdamW(model.parameters(), lr=1e-4, max_norm=1.0)

Params are dense tensors of float32, bfloat16 or float16, in host memory or on a GPU; DTensors (FSDP2) by their local
shards.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

from torch import Tensor

from .._put_off_native import ZenFlow
from .._quantized8 import dequantized, quantized
from .._split_masters import joined_master, split_master
from ..executor import Cores
from ._arguments import Arguments
from ._stepping import Steps, torch_adam, torch_adamw

__all__ = ["Adam", "AdamW", "ZenFlow", "dequantized", "joined_master", "quantized", "split_master"]

_documentation = """
    The arguments of torch.optim.{name} mean what they mean there. `foreach`, `fused` and `capturable` are accepted and
    change nothing: they choose among torch's own ways to step. `amsgrad` and `differentiable` are refused.

    More arguments, by name only:
        max_norm: all gradients together are scaled down to this norm, exactly, within the step. step() then returns the
            norm that they had, and `last_report` has the coefficient. None: they are not.
        on_nonfinite: what becomes of a step with infinities or NaNs: "apply" takes them as they are, as torch does,
            "skip" changes nothing, "zero" has those elements count as zeros.
        overlap: each param is submitted while backward goes on, as soon as its gradient is there. Also with max_norm,
            exactly. For one backward() a step, or the last of those that `accumulate` says. From then to step()
            gradients must stay as they are, which step() checks, and params are those of before or after the step, so
            nothing may read them. Not under DistributedDataParallel, which changes gradients after backward has made
            them.
        accumulate: of how many backward() calls a step takes the sum. It is made in float32, whatever the type of the
            gradients; p.grad has the last one alone, so what changes it, as a GradScaler or clipping do, is an error.
            step() may come after fewer. Not under DistributedDataParallel; under FSDP2 torch itself adds up.
        offload: params in host memory are stepped as those on a GPU are, by copies; to try that without a GPU.
        zenflow: a ZenFlow(...), or a dictionary of its arguments: a few columns of each matrix are stepped at once, the
            others once in a window of steps. Params of two or more dimensions are matrices; columns are the last one.
            Their states lie by columns: moments and masters have the param's shape, and the first column's elements
            come first in memory; "by_columns" is a copy of the weights that lies so, which is stepped where the param
            has no master. quantized8 moments want a multiple of 64 rows, whose groups are of columns. Threads work on
            states after step() has returned; state_dict() waits for them, and has counts, sums and the position of the
            window, so that a loaded run goes on with the same bits. last_report.zenflow has more about a step. Weights
            may be behind their masters: see land(). Params that are all on one NVIDIA GPU are stepped at once there, where
            the library was built with CUDA, and the states of these are out of date until state_dict() is called; where
            that cannot be, a warning says so once. Not with overlap, which is backward's, nor with accumulate.
        state_format: the type of new moments, "float32", "bfloat16" or "quantized8". None: the param's, as torch has
            it, and float32 where the param is float16 or has a master. A group's own goes before it, as in
            {{"params": norms, "state_format": "float32"}}. "split_float32", "split_float32+bfloat16" and
            "split_float32+quantized8" are the same moments, and give bfloat16 params masters in two halves: the param
            is the upper one, and the state has the lower one, "master_low", of int16: the bits of the float32 master
            are (param << 16) + low. They are those of master=True in every step; the param is rounded with ties away
            from zero. float32 params have the moments alone; float16 params are refused without master=True. Moments
            of quantized8 are tensors of uint8 of the shape [groups, 68]: a group for each 64 elements of the param in
            row-major order, and one for what is left, has 64 codes, t[:, :64], and a float32 scale,
            t[:, 64:].contiguous().view(torch.float32). dequantized() reads them. DTensors have them where each rank's
            shard has whole groups, equally many.
        exp_avg_sq_rounding, param_rounding: how second moments and params of bfloat16 are rounded, "nearest" or
            "stochastic"; the first is of both moments' codes with quantized8. Rounded to nearest, second moments do not
            come down where 1 - betas[1] is below 0.002, and params do not move by less than half a unit. Chance depends
            on rounding_seed, the step, the param's place in its group (or its name, where it has one) and the element
            alone.
        master: bfloat16 and float16 params get float32 masters, state "master_param", which are stepped and then
            rounded to the params. Where state_format has them in two halves, bfloat16 params have these instead.
        process_group: gradients are cut over these ranks, as ZeRO and FSDP2 do, and the norm is over all of them. The
            same bits for any number of ranks that cut params at multiples of 4096 elements.
        cores: the hardware threads of the optimizer, "0-3" or numbers; cpuadam_cores_perc: its share of the rank's
            cores instead. torch's threads are bound to the others of the process's. By default the optimizer has a
            thread on each core of the rank's, and torch's are left alone.
        threads: how many threads; by default one for each of the cores.

    Params on a GPU have their states in host memory, as ZeRO-Offload has it: gradients are copied down into pinned
    memory, and weights up as each param is stepped, on streams of their own. What step() returns to has the new
    weights on the caller's stream. Weights that somebody else has written, as load_state_dict() of a model does, are
    taken over by the next step, into masters, too. Of a master in two halves the lower one stays as it is: elements
    that have not changed keep every bit, and the master of one that has is half a unit of the param off at most.

    state_dict() has torch's keys, and goes into torch's class and back at any step, in the types that it was saved in.
    With quantized8 and "master_low", which torch's class has not, it goes back only. dequantized() and quantized(),
    joined_master() and split_master() change states.
    Not thread-safe, as torch's optimizers. Works in the process that first called step(); a forked one gets threads of
    its own.
    """


class Adam(Steps, torch_adam):
    __doc__ = "torch.optim.Adam, stepped by adamant.\n" + _documentation.format(name="Adam")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: Optional[bool] = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, decoupled_weight_decay: bool = False,
                 max_norm: Optional[float] = None, on_nonfinite: str = "apply", overlap: bool = False,
                 accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False, cores: Optional[Cores] = None,
                 cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None):
        more = {"decoupled_weight_decay": True} if decoupled_weight_decay else {}
        torch_adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach,
                                  maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused,
                                  **more)
        self._set_up(process_group, Arguments(
            max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate, state_format=state_format,
            exp_avg_sq_rounding=exp_avg_sq_rounding, param_rounding=param_rounding, rounding_seed=rounding_seed,
            master=master, offload=offload, cores=cores, cpuadam_cores_perc=cpuadam_cores_perc, threads=threads,
            zenflow=zenflow))


class AdamW(Steps, torch_adamw):
    __doc__ = "torch.optim.AdamW, stepped by adamant.\n" + _documentation.format(name="AdamW")

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, max_norm: Optional[float] = None, on_nonfinite: str = "apply",
                 overlap: bool = False, accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False,
                 cores: Optional[Cores] = None, cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None):
        torch_adamw.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
                                   foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused)
        self._set_up(process_group, Arguments(
            max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate, state_format=state_format,
            exp_avg_sq_rounding=exp_avg_sq_rounding, param_rounding=param_rounding, rounding_seed=rounding_seed,
            master=master, offload=offload, cores=cores, cpuadam_cores_perc=cpuadam_cores_perc, threads=threads,
            zenflow=zenflow))
