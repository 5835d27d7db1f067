# SPDX-License-Identifier: Apache-2.0
"""prime-rl: its CPU offload with clipping of steps that overlap with backward.

In setup_optimizer() of src/prime_rl/trainer/optim/__init__.py, where config.max_norm must stay:

    from adamant.integrations.prime_rl_clipping import clipping
    optimizer = clipping(FullCPUOffloadOptimizer)(optimizer, ...)  # the arguments as before
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, distributed

from .._library import SQUARES_WORDS, InvalidArgument
from .._ranks import norm_of
from ..executor import shared_executor
from ..optimizer import Optimizer
from ..torch._state import steps_of
from . import prime_rl


def _hyper(group: Dict[str, Any]) -> Dict[str, float]:
    return {"lr": float(group["lr"]), "beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
            "eps": float(group["eps"]), "weight_decay": float(group["weight_decay"])}


def clipping(base: Any) -> Any:
    """Return prime-rl's FullCPUOffloadOptimizer with clipping of steps that overlap with backward.

    Chunks are stepped during backward, before the norm is known. Once all gradients are measured,
    `gradient_manager.clip_grad_norm_(max_norm)` rolls the steps back exactly and repeats them if the norm exceeds
    max_norm; weights and states then have the bits of a step that waited for the norm. Records take about 2 bytes for
    each element.

    Parameters
    ----------
    base : type
        FullCPUOffloadOptimizer of prime_rl.trainer.optim.offload.

    Returns
    -------
    type
        A class with base's arguments, for AdamW with the backend "native". clip_grad_norm_() raises InvalidArgument if
        the norm is not finite: params and states are then those before the step.
    """

    class ClippingOffloadOptimizer(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **more: Any):
            self._records: Dict[int, Any] = {}
            self._stepped: Dict[int, List[Optional[Tensor]]] = {}  # gradients, by chunk
            self._words = torch.zeros(SQUARES_WORDS, dtype=torch.int64)
            super().__init__(*arguments, **more)
            if not self._native_cpu_adamw:
                raise InvalidArgument("cannot clip steps during backward: the optimizer is not AdamW with "
                                      'cpu_optimizer_backend "native". Use FullCPUOffloadOptimizer')
            self._clip_after_backward = self._gradient_manager.clip_grad_norm_
            self._gradient_manager.clip_grad_norm_ = self._clip_grad_norm

        def _step_native_cpu_adamw_chunk(self, chunk_idx: int, gradients: List[Optional[Tensor]],
                                         compute_params: List[Tensor]) -> None:
            if self._gradient_manager.optimizer_overlapped:
                self._step_recorded(chunk_idx, gradients)
            else:
                self._step_chunk_of(chunk_idx, gradients, self._gradient_manager.gradient_scale)
            for param, output in zip(self._chunks[chunk_idx], compute_params):
                output.copy_(param.detach())

        def _entries(self, chunk: int, gradients: List[Optional[Tensor]]) -> List[Any]:
            """Group number, param, state and gradient of each param of the chunk."""
            grads = {id(param): grad for param, grad in zip(self._chunks[chunk], gradients)}
            return [(number, param.detach(), self.optimizer.state[param], grads[id(param)])
                    for number, (_, params) in enumerate(self._chunk_groups[chunk]) for param in params]

        def _step_chunk_of(self, chunk: int, gradients: List[Optional[Tensor]], scale: float) -> None:
            entries = [entry for entry in self._entries(chunk, gradients) if entry[3] is not None]
            for number, (group, _) in enumerate(self._chunk_groups[chunk]):
                own = [entry[1:] for entry in entries if entry[0] == number]
                prime_rl.adamw_step(
                    [param for param, _, _ in own], [grad for _, _, grad in own],
                    *[[state[key] for _, state, _ in own] for key in ("exp_avg", "exp_avg_sq", "step")],
                    **_hyper(group), gradient_scale=scale)

        @torch.no_grad()
        def _step_recorded(self, chunk: int, gradients: List[Optional[Tensor]]) -> None:
            entries = self._entries(chunk, gradients)
            steps = {steps_of(state["step"], f"a param of chunk {chunk}") for _, _, state, grad in entries
                     if grad is not None}
            if len(steps) > 1:
                raise InvalidArgument(f"cannot step chunk {chunk}: its params have taken {sorted(steps)} steps, but "
                                      "steps that are rolled back need equal counts. Use FullCPUOffloadOptimizer")
            self._stepped[chunk] = gradients
            if not steps:
                return
            record = self._record_of(chunk, entries)
            for number, (group, _) in enumerate(self._chunk_groups[chunk]):
                hyper = _hyper(group)
                betas = hyper.pop("beta1"), hyper.pop("beta2")
                record.set_hyperparameters(number, betas=betas, exp_avg_sq_rounding="nearest", **hyper)
            record.steps = steps.pop()
            record.step([grad for *_, grad in entries], loss_scale=1.0 / self._gradient_manager.gradient_scale)
            for _, _, state, grad in entries:
                if grad is not None:
                    state["step"] += 1

        def _record_of(self, chunk: int, entries: List[Any]) -> Optimizer:
            """The optimizer of the chunk's tensors, which can roll back its last step."""
            key = [tensor.data_ptr() for _, param, state, _ in entries
                   for tensor in (param, state["exp_avg"], state["exp_avg_sq"])]
            known = self._records.get(chunk)
            if known is None or known[0] != key:
                record = Optimizer(shared_executor(), max_norm=sys.float_info.max, on_nonfinite="apply",
                                   speculate="always", keep_last_step=True, reduce=self._add_words)
                for number in range(len(self._chunk_groups[chunk])):
                    record.add_group(str(number), exp_avg_sq_rounding="nearest")
                for i, (number, param, state, grad) in enumerate(entries):
                    record.add_shard(number, str(i), param, torch.empty_like(param) if grad is None else grad,
                                     state["exp_avg"], state["exp_avg_sq"])
                known = self._records[chunk] = (key, record)
            return known[1]

        def _add_words(self, words: Any) -> None:
            self._words += torch.frombuffer(words, dtype=torch.int64)

        @torch.no_grad()
        def _clip_grad_norm(self, max_norm: float) -> Tensor:
            manager = self._gradient_manager
            if not manager.optimizer_overlapped:
                return self._clip_after_backward(max_norm)
            manager.wait_for_optimizer()
            words = self._words.to(next(iter(self._master_weights.values())).model_param.device, copy=True)
            if distributed.is_initialized():
                distributed.all_reduce(words)
            norm = norm_of(words.cpu()) / manager._dp_replicate ** 0.5 * manager.gradient_scale
            coefficient = max_norm / (norm + 1e-6)  # as prime-rl clips
            if not coefficient >= 1.0:
                self._roll_back()
                if coefficient == coefficient:
                    for chunk, gradients in self._stepped.items():
                        self._step_chunk_of(chunk, gradients, manager.gradient_scale * coefficient)
                self.finish_checkpoint_load()  # uploads the weights of all masters
            self._forget()
            if coefficient != coefficient:
                raise InvalidArgument(f"cannot clip gradients to {max_norm}: their norm is {norm}. Params and states "
                                      "are those before the step")
            return torch.tensor(norm, dtype=torch.float32, device=words.device)

        def _roll_back(self) -> None:
            for chunk, gradients in self._stepped.items():
                entries = [entry for entry in self._entries(chunk, gradients) if entry[3] is not None]
                if entries:
                    self._records[chunk][1].rollback()
                for _, _, state, _ in entries:
                    state["step"] -= 1

        def _forget(self) -> None:
            for _, record in self._records.values():
                record.release_gradients()
            self._stepped.clear()
            self._words.zero_()

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self._forget()

    return ClippingOffloadOptimizer
