# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW for PyTorch: torch.optim's classes with a native step in one pass over memory.

    from adamant.torch import AdamW
    optimizer = AdamW(model.parameters(), lr=1e-4, max_norm=1.0)

Params are dense tensors of float32, bfloat16 or float16, in host memory or on a GPU, or DTensors (FSDP2).
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

from torch import Tensor

from .._quantized8 import dequantized, quantized
from .._split_masters import joined_master, split_master
from .._zenflow_optimizer import ZenFlow
from ..executor import Cores
from ._arguments import Arguments
from ._changes import ChangedWeights
from ._stepping import Steps, torch_adam, torch_adamw

__all__ = ["Adam", "AdamW", "ChangedWeights", "ZenFlow", "dequantized", "install", "joined_master", "quantized", "split_master",
           "uninstall"]


class Adam(Steps, torch_adam):
    """torch.optim.Adam whose step runs in native code, in one pass over memory.

    The arguments of `torch.optim.Adam` keep their meaning. All others, and everything else, are those of AdamW.

    Parameters
    ----------
    weight_decay : float, default 0
        Coefficient of the L2 penalty, which is added to gradients.
    decoupled_weight_decay : bool, default False
        Apply weight decay to params directly, as AdamW does, instead of adding it to gradients.
    """

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: Optional[bool] = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, decoupled_weight_decay: bool = False,
                 max_norm: Optional[float] = None, on_nonfinite: str = "apply", overlap: bool = False,
                 accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False, cores: Optional[Cores] = None,
                 cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None, track_changes: bool = False):
        options = {"decoupled_weight_decay": True} if decoupled_weight_decay else {}
        torch_adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach,
                            maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused,
                            **options)
        self._set_up(process_group, Arguments(
            max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate,
            state_format=state_format, exp_avg_sq_rounding=exp_avg_sq_rounding, param_rounding=param_rounding,
            rounding_seed=rounding_seed, master=master, offload=offload, cores=cores,
            cpuadam_cores_perc=cpuadam_cores_perc, threads=threads, zenflow=zenflow, track_changes=track_changes))


class AdamW(Steps, torch_adamw):
    """torch.optim.AdamW whose step runs in native code, in one pass over memory.

    The arguments of `torch.optim.AdamW` keep their meaning. All others are keyword-only. `param_groups` and `state`
    are read at every step, as torch reads them.

    Parameters
    ----------
    params : iterable
        Params, named params, or dictionaries that define param groups. Params are dense tensors of float32, bfloat16 or
        float16, in host memory or on a GPU, or DTensors (FSDP2), whose local shard is stepped. A group may set
        "state_format" and "replicated" (see Notes) in addition to torch's keys.
    lr : float or Tensor, default 1e-3
        Learning rate.
    betas : tuple of two floats, default (0.9, 0.999)
        Decay rates of the first and the second moment.
    eps : float, default 1e-8
        Term added to the denominator.
    weight_decay : float, default 1e-2
        Weight decay coefficient.
    amsgrad : bool, default False
        Must be False.
    maximize : bool, default False
        Maximize the objective instead of minimizing it.
    foreach, fused : bool or None, default None
        Accepted and ignored: they choose among torch's own implementations.
    capturable : bool, default False
        Accepted and ignored, like `foreach`.
    differentiable : bool, default False
        Must be False.
    max_norm : float or None, default None
        Clip all gradients together to this norm, as `torch.nn.utils.clip_grad_norm_` does, but within the step and
        from an exact sum of the finite gradients. step() then returns the norm before clipping, or NaN if a gradient
        is not finite. `float("inf")` measures the norm and clips nothing. None does neither.
    on_nonfinite : {"apply", "skip", "zero"}, default "apply"
        What a step does with infinities and NaNs in gradients: "apply" uses them, as torch does; "skip" changes
        nothing; "zero" replaces these elements by zero.
    overlap : bool, default False
        Step each param during backward, as soon as its gradient is complete; exact also with `max_norm`. See Notes.
    accumulate : int, default 1
        Number of backward() calls whose gradients are accumulated in float32 for one step, whatever the dtype of the
        gradients. step() may come after fewer calls. The sum is not divided: scale the loss. `p.grad` holds the last
        gradient only. Not under compiled autograd.
    state_format : str or None, default None
        Format of new moments: "float32", "bfloat16" or "quantized8" (8-bit moments). "split_float32",
        "split_float32+bfloat16" and "split_float32+quantized8" have the same moments and split master weights for
        bfloat16 params. None: the dtype of the param, as in torch, and float32 if the param is float16 or has a
        master. A group's "state_format" takes precedence.
    exp_avg_sq_rounding : {"stochastic", "nearest"}, default "stochastic"
        Rounding of bfloat16 second moments, and of both moments with "quantized8". Rounded to nearest, bfloat16 second
        moments do not decrease if 1 - betas[1] is below 0.002.
    param_rounding : {"nearest", "stochastic"}, default "nearest"
        Rounding of bfloat16 params. Rounded to nearest, a param without a master ignores updates below half a unit in
        its last place.
    rounding_seed : int, default 0
        Seed of stochastic rounding. The random bits are a function of the seed, the step, the element, the number of
        the param's group and the param's name, or its index in the group if it has no name. They also depend on the
        sharding of DTensors that are sharded along another dimension than the first.
    master : bool, default False
        Keep float32 master weights of bfloat16 and float16 params, in `state[p]["master_param"]`. If `state_format`
        splits masters, bfloat16 params have split masters instead.
    process_group : torch.distributed.ProcessGroup or None, default None
        The ranks that shard gradients (FSDP2, ZeRO). The norm is over all of them; replicated params count once. The
        norm has the same bits for any number of ranks that shard params at multiples of 4096 elements.
    offload : bool, default False
        Step params in host memory by the same copies that params on a GPU need, to test this path without a GPU.
    cores : str, iterable of int or None, default None
        Hardware threads of the optimizer, such as "0-3,8" or [0, 1]. All other threads of the process are bound to its
        remaining cores. None: one thread on each core of the rank, and no other thread is bound.
    cpuadam_cores_perc : float or None, default None
        The same as a share of the rank's cores, above 0 and at most 1. Excludes `cores`.
    threads : int, default 0
        Number of threads; 0: one for each core.
    zenflow : ZenFlow, dict or None, default None
        Deferred updates: important columns of each matrix are stepped every step, the others once in a window of steps.
        A dictionary holds the arguments of ZenFlow. Excludes `overlap` and `accumulate`. See Notes.
    track_changes : bool, default False
        Mark the weights that change, for changed_weights(). Takes an eighth of a byte for each element.

    Attributes
    ----------
    last_report : adamant.Report or None
        Measurements of the last step: norm, clip coefficient, threads, bytes, seconds.

    Raises
    ------
    adamant.InvalidArgument
        An argument or a param that no step can use. It is a ValueError, and its message names the argument or the
        param.
    ValueError, RuntimeError
        As raised by `torch.optim.AdamW` for its own arguments.

    Notes
    -----
    Not thread-safe, like torch's optimizers. Bits do not depend on the number of threads. A forked process starts new
    threads at its first step.

    **Weights written by others.** Writes under `torch.no_grad()`, such as `load_state_dict()` of a model, reach masters
    at the next step with a gradient of the param. torch records no write through `param.data` and none of a collective
    in place, such as `dist.broadcast(param, 0)`. Such a write is effective if the param is stepped in place; with
    masters, `offload`, `zenflow`, `track_changes` or params on a GPU, call take_weights() after it. torch also records
    no write of `torch._foreach_` operators and distributed checkpoints to a DTensor. In host memory it is detected by
    comparing some elements; on a GPU call take_weights().

    **overlap.** Call backward() once for each step, or `accumulate` times. From the last backward() to step(), do not
    read params, do not change gradients, params, states or groups, and do not resize their memory. step() raises
    InvalidArgument for changes that it detects. Of gradients that share their memory, as FSDP2's do, it compares 256
    elements, and on a GPU none; with `accumulate`, too. A use of `param.detach()` in the model may need the param after
    its gradient is complete: autograd then raises RuntimeError, but recomputation by `torch.utils.checkpoint` would
    read the new weights. A step that has begun can be rolled back only with `max_norm` or `on_nonfinite="skip"`. Do not
    use it with a GradScaler. DistributedDataParallel is refused, also with `accumulate`, because it averages gradients
    later.

    **Params on a GPU.** States are in host memory, as with ZeRO-Offload. Gradients are copied to pinned memory, and
    weights back, on separate streams. After step() the new weights are ready on the caller's current stream.

    **State formats.** Split masters: the bfloat16 param is the float32 master rounded to nearest, with ties away from
    zero, and `state[p]["master_low"]` (int16) the residual: the master's bits are `(param << 16) + low`. They equal
    those of `master=True` after every step. 8-bit moments are uint8 tensors of
    shape [groups, 68]: each group of 64 elements, in row-major order, has 64 codes, `t[:, :64]`, and a float32 scale,
    `t[:, 64:].contiguous().view(torch.float32)`. A DTensor needs the same number of whole groups on each rank.
    dequantized(), quantized(), joined_master() and split_master() convert states.

    **replicated.** With `process_group`, a plain tensor may be a shard or a replica. A group's "replicated": True or
    False states it. None, the default, compares the first nonzero gradients over the ranks, by names of params.
    DTensors state it by their placements. Gradients of replicated params must be equal on all ranks; if they differ,
    step() raises on every rank and changes nothing.

    **zenflow.** Params of two or more dimensions are matrices, whose columns are the last dimension. Their states keep
    the param's shape with `t.movedim(-1, 0)` contiguous; "by_columns" is a copy of the weights in that order. 8-bit
    moments need a multiple of 64 rows. Background threads work on states after step() returns, so read states from
    state_dict(), which waits. "step", "updates" and the other counts are in states from state_dict() to the next
    step(). Call flush() before weights are evaluated, exported or written. A checkpoint needs no flush(), and
    flush() changes the bits of later steps.

    Examples
    --------
    >>> import torch
    >>> from adamant.torch import AdamW
    >>> model = torch.nn.Linear(16, 4)
    >>> optimizer = AdamW(model.parameters(), lr=1e-3, max_norm=1.0)
    >>> model(torch.randn(8, 16)).square().mean().backward()
    >>> norm = optimizer.step()
    >>> optimizer.zero_grad()

    bfloat16 matrices with split masters and 8-bit moments, norms with float32 moments:

    >>> matrices = [torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))]
    >>> norms = [torch.nn.Parameter(torch.ones(64))]
    >>> optimizer = AdamW([{"params": matrices}, {"params": norms, "state_format": "float32"}],
    ...                   state_format="split_float32+quantized8")
    """

    def __init__(self, params: Any, lr: Union[float, Tensor] = 1e-3, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, capturable: bool = False, differentiable: bool = False,
                 fused: Optional[bool] = None, max_norm: Optional[float] = None, on_nonfinite: str = "apply",
                 overlap: bool = False, accumulate: int = 1, state_format: Optional[str] = None,
                 exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest", rounding_seed: int = 0,
                 master: bool = False, process_group: Any = None, offload: bool = False,
                 cores: Optional[Cores] = None, cpuadam_cores_perc: Optional[float] = None, threads: int = 0,
                 zenflow: Union[None, ZenFlow, Dict[str, Any]] = None, track_changes: bool = False):
        torch_adamw.__init__(self, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
                             foreach=foreach, capturable=capturable, differentiable=differentiable, fused=fused)
        self._set_up(process_group, Arguments(
            max_norm=max_norm, on_nonfinite=on_nonfinite, overlap=overlap, accumulate=accumulate,
            state_format=state_format, exp_avg_sq_rounding=exp_avg_sq_rounding, param_rounding=param_rounding,
            rounding_seed=rounding_seed, master=master, offload=offload, cores=cores,
            cpuadam_cores_perc=cpuadam_cores_perc, threads=threads, zenflow=zenflow, track_changes=track_changes))


from ._installed import install, uninstall  # noqa: E402  (it needs the classes)
