# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: HybridDeviceOptimizer steps its params in host memory with adamant.torch.

    import adamant.integrations.megatron
    adamant.integrations.megatron.install(state_format="bfloat16")  # before Megatron creates the optimizer

Checkpoints stay Megatron's: with or without install(), each loads the other's. 8-bit moments are saved as floats in
distributed checkpoints; state_dict() keeps them, and Megatron's class cannot load that.
"""

from __future__ import annotations

import functools
import sys
from itertools import chain
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._library import InvalidArgument
from .._quantized8 import dequantized, is_quantized, moments, quantized
from ..torch import Adam, AdamW
from ..torch import _installed as _installed_classes
from ..torch._arguments import formats
from ..torch._stepping import torch_adam, torch_adamw

_name = "HybridDeviceOptimizer"
_refused = {"max_norm": "Megatron clips gradients itself", "on_nonfinite": "Megatron skips such steps itself",
            "overlap": "gradients arrive after backward()", "accumulate": "Megatron accumulates gradients itself",
            "zenflow": "Megatron reads params and states between steps",
            "process_group": "only a norm needs it, and Megatron computes the norm",
            "master": "HybridDeviceOptimizer has the masters",
            **dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "Megatron's own arguments set it for each group")}
_installed: Optional[Tuple[type, type]] = None  # Megatron's class and ours


@torch.no_grad()
def _converted(state: Dict[str, Any], param: Tensor, dtype: torch.dtype) -> Dict[str, Any]:
    """The state with moments of this dtype; uint8 is quantized8."""
    if dtype == torch.uint8:
        return state if is_quantized(state["exp_avg"]) else quantized(state)
    return {key: value.to(dtype) if key in moments else value for key, value in dequantized(state, param).items()}


def _subclass(base: Any, options: Dict[str, Any]) -> Any:
    state_format = options.get("state_format")

    class Kind(type(base)):  # type: ignore[misc]
        """isinstance() and issubclass() answer as for Megatron's class, also about optimizers made before install()."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base) if cls is HybridDeviceOptimizer else super().__instancecheck__(instance)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, base) if cls is HybridDeviceOptimizer else super().__subclasscheck__(other)

    class HybridDeviceOptimizer(base, metaclass=Kind):  # type: ignore[misc]
        _bucket_elems = 1 << 24
        _saved: Dict[int, Dict[str, Any]] = {}  # states that load_state_dict() loads, by the param's id

        def _init_sub_optimizers(self) -> None:
            # The class in `defaults`, which checkpoints contain, stays the caller's.
            for kinds, ours in (((torch_adamw, AdamW, _installed_classes.AdamW), AdamW),
                                ((torch_adam, Adam, _installed_classes.Adam), Adam)):
                if self.defaults["cpu_optimizer_cls"] in kinds:
                    self.cpu_optimizer_cls = functools.partial(ours, **options)
            super()._init_sub_optimizers()
            self._versions = {param: param._version for param in self.param_to_inner_param}

        @classmethod
        def build_cpu_optimizer_list(cls, cpu_optimizer_cls: Any, cpu_param_groups: List[Dict[str, Any]]) -> List[Any]:
            # One optimizer for each bucket of params, so that transfers overlap with steps and calls are few.
            buckets: List[List[Dict[str, Any]]] = []
            elems = cls._bucket_elems + 1  # of the last bucket: the first param begins one
            for group in cpu_param_groups:
                params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
                is_new = True
                for param in params:
                    elems += param.numel()
                    if elems > cls._bucket_elems:
                        buckets.append([])
                        elems, is_new = param.numel(), True
                    if is_new:
                        buckets[-1].append({**group, "params": []})
                        is_new = False
                    buckets[-1][-1]["params"].append(param)
            if getattr(cpu_optimizer_cls, "func", None) not in (Adam, AdamW):
                return [cpu_optimizer_cls(groups) for groups in buckets]
            # Params without names have their index in the bucket in place of one, so that seeds must differ.
            seed = options.get("rounding_seed", 0)
            return [cpu_optimizer_cls(groups, rounding_seed=(seed + number) % 2**64) for number, groups in enumerate(buckets)]

        def step(self, closure: Any = None) -> None:
            self._take_written_weights()
            super().step(closure)

        def _move_new_state_to_right_device(self) -> None:
            # Megatron's class takes torch's AdamW on a GPU for an optimizer in host memory.
            for optimizer in self.sub_optimizers:
                device = "cuda" if optimizer is self.gpu_optimizer else "cpu"
                for state in optimizer.state.values():  # the dictionaries are those of self.state
                    state.update({key: value.to(device) for key, value in state.items() if isinstance(value, Tensor)})

        @torch.no_grad()
        def _take_written_weights(self) -> None:
            """Copies weights that others have written since the last step into the copies that are stepped."""
            for param, inner in self.param_to_inner_param.items():
                if param is not inner and param._version != self._versions.get(param):
                    self._versions[param] = param._version
                    weight = param.to(inner.device)
                    changed = inner.to(weight.dtype) != weight
                    if bool(changed.any()):  # other elements keep the bits that the param's dtype lacks
                        inner.data[changed] = weight[changed].to(inner.dtype)

        def update_fp32_param_by_new_param(self) -> None:
            """Copy the current weights into all copies that are stepped, as reload_model_params() requests."""
            super().update_fp32_param_by_new_param()
            for param, inner in self.param_to_inner_param.items():
                if param is not inner:
                    inner.data.copy_(param)
                self._versions[param] = param._version

        def _update_fp32_params_by_new_state(self) -> None:
            for param, inner in self.param_to_inner_param.items():
                if param in self.param_to_fp32_param:
                    inner.data.copy_(self.state.get(param, {}).get("master_param", inner))
                elif param is not inner:  # a copy of the same dtype
                    inner.data.copy_(param)
                self._versions[param] = param._version

        def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
            # torch would cast moments to the params' dtype.
            numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
            params = chain.from_iterable(group["params"] for group in self.param_groups)
            self._saved = {id(param): state_dict["state"].get(number, {}) for number, param in zip(numbers, params)}
            try:
                super().load_state_dict(state_dict)
            finally:
                self._saved = {}

        def _take_loaded_states(self, groups: List[Dict[str, Any]]) -> None:
            """Takes the states that Megatron has put in place of its own, and the step number of the param groups."""
            steps = {int(group["step"]) for group in groups if "step" in group}
            for state in self.state.values():
                if steps and "step" in state:
                    state["step"] = torch.tensor(float(max(steps)))
            self._sync_hdo_state_to_sub_optimizers()

        def _sync_hdo_state_to_sub_optimizers(self) -> None:
            for param, state in self.state.items():
                inner = self.param_to_inner_param[param]
                if inner.is_cuda or not all(moment in state for moment in moments):
                    continue
                saved = self._saved.get(id(param), {})
                state.update({key: saved[key].to("cpu", copy=True) for key in moments if key in saved})
                if state_format is not None:
                    state.update(_converted(state, inner, formats[state_format][1]))
            super()._sync_hdo_state_to_sub_optimizers()

    HybridDeviceOptimizer.__module__ = base.__module__
    return HybridDeviceOptimizer


def _replace(old: type, new: type) -> None:
    for key, module in list(sys.modules.items()):
        # The class's own module keeps it: its methods call super() by this name.
        if key != old.__module__ and getattr(module, "__dict__", {}).get(_name) is old:
            setattr(module, _name, new)


def _is_ours(hybrid: Any) -> bool:
    return hasattr(hybrid, "_take_written_weights")


def _copy_model_params(original: Any) -> Any:
    @functools.wraps(original)
    def _copy_model_params_to_main_params(self: Any, state_dict: Any = None) -> None:
        hybrid = self.optimizer
        if not _is_ours(hybrid) or self.ddp_config.use_megatron_fsdp:
            return original(self, state_dict)
        # With HybridDeviceOptimizer Megatron copies no model params to main params, from which `hybrid` copies.
        self.optimizer = None
        try:
            original(self, state_dict)
        finally:
            self.optimizer = hybrid
        hybrid.update_fp32_param_by_new_param()
    return _copy_model_params_to_main_params


def _get_states(original: Any) -> Any:
    @functools.wraps(original)
    def _get_main_param_and_optimizer_states(self: Any, model_param: Any) -> Dict[str, Tensor]:
        tensors: Dict[str, Tensor] = original(self, model_param)
        if not _is_ours(self.optimizer):
            return tensors
        # Distributed checkpoints cut states where they cut params, and 8-bit moments have groups. All params need one
        # dtype, and moments on a GPU are float32. When loaded, floats become the same 8-bit codes again.
        tensors = dequantized(tensors, tensors["param"])
        is_mixed = self.optimizer.gpu_optimizer is not None
        return {key: value.float() if is_mixed and key in moments else value for key, value in tensors.items()}
    return _get_main_param_and_optimizer_states


def _load(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Dict[str, Any]) -> None:
        original(self, state_dict)
        if _is_ours(self.optimizer) and "param_state" in state_dict:
            self.optimizer._take_loaded_states(state_dict["optimizer"]["param_groups"])
    return load_state_dict


_patches = {"_copy_model_params_to_main_params": _copy_model_params,
            "_get_main_param_and_optimizer_states": _get_states, "load_state_dict": _load}


def install(**options: Any) -> None:
    """Make Megatron's HybridDeviceOptimizer use adamant.torch.AdamW, or Adam, for its params in host memory.

    Parameters
    ----------
    options : dict
        Arguments of `adamant.torch.AdamW` in addition to torch's: `state_format` (float32, bfloat16 or quantized8),
        `threads`, `cores` and others.

    Raises
    ------
    ImportError
        megatron-core is not installed.
    InvalidArgument
        Megatron does the option's work itself: max_norm, on_nonfinite, overlap, accumulate, zenflow, process_group,
        master, lr, betas, eps and weight_decay.

    Notes
    -----
    Call it before Megatron creates the optimizer. Existing optimizers, and other classes than torch's Adam and AdamW,
    are unchanged. A second call replaces the options. Not thread-safe. Compared with Megatron's class:

    - Moments keep their storage format when a state is loaded. With `state_format`, loaded moments are converted to it.
    - Loading a distributed checkpoint takes its masters and its step number. Megatron's class keeps those of before
      when it loads a `dp_reshardable` one.
    - With overlap_cpu_optimizer_d2h_h2d one call steps all params of a bucket of 16.8 million elements, instead of one
      param; without it, one call steps all params.
    - Weights that were written under torch.no_grad(), and those of reload_model_params(), reach the copies that are
      stepped. Call update_fp32_param_by_new_param() after a write through `param.data`.
    """
    global _installed
    for option in options:
        if option in _refused:
            raise InvalidArgument(f"cannot use {option} in Megatron: {_refused[option]}. Leave it out")
    AdamW([torch.nn.Parameter(torch.empty(0))], **options)  # raises if an option is invalid
    state_format = options.get("state_format")
    if state_format is not None and formats[state_format][0]:
        raise InvalidArgument(f"cannot use state_format={state_format!r} in Megatron: {_refused['master']}. Use one of "
                              "float32, bfloat16 and quantized8")
    try:
        from megatron.core.optimizer import cpu_offloading, distrib_optimizer
    except ModuleNotFoundError as error:
        raise ImportError(f"cannot install adamant in Megatron: {error}. Install megatron-core") from error
    uninstall()
    original = cpu_offloading.HybridDeviceOptimizer
    _installed = (original, _subclass(original, options))
    _replace(*_installed)
    optimizer = distrib_optimizer.DistributedOptimizer
    for name, patch in _patches.items():
        setattr(optimizer, name, patch(getattr(optimizer, name)))


def uninstall() -> None:
    """Undo install(). Does nothing if it was not called. Existing optimizers are unchanged."""
    global _installed
    if _installed is None:
        return
    _replace(_installed[1], _installed[0])
    optimizer: Any = sys.modules["megatron.core.optimizer.distrib_optimizer"].DistributedOptimizer
    for name in _patches:
        setattr(optimizer, name, getattr(optimizer, name).__wrapped__)
    _installed = None
