# SPDX-License-Identifier: Apache-2.0
"""Updates of single tensors for DeepSpeed, and the records for their rollback."""

from __future__ import annotations

import sys
from ctypes import byref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._arrays import Place, place_of
from ._library import InvalidArgument, Shard, Unavailable, check, library
from .executor import Executor
from .optimizer import Optimizer

# As DeepSpeed rounds: its interface does not say which parameter a tensor is of, which stochastic rounding goes by.
rounding: Dict[str, Any] = {"exp_avg_sq_rounding": "nearest"}

_float16_chunk = 1 << 20
# More than the last update can be rolled back where records take next to nothing.
_deep_elements, _deep_records = 1 << 16, 8


class Adam:
    def __init__(self, decoupled: bool):
        self.decoupled = decoupled
        self.records: Dict[int, Records] = {}  # by the address of the first moment
        self.executor: Optional[Executor] = None


adams: Dict[int, Adam] = {}


def known(optimizer_id: int) -> Adam:
    if optimizer_id not in adams:
        raise InvalidArgument(f"optimizer {optimizer_id} is used, but create_adam() was not called for it, or "
                              "destroy_adam() was")
    return adams[optimizer_id]


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


def update(executor: Executor, hyper: Any, step: int, arrays: Sequence[Any]) -> None:
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


class Records:
    """Rolls back updates of one set of tensors, the last one first. An optimizer keeps one step's record; for float16
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
        one.add_shard(one.add_group("all", **rounding), "params", self._arrays[0], grad, *self._arrays[1:])
        return one

    def update(self, hyper: Any, step: int, arrays: Sequence[Any]) -> None:
        one = self._one(arrays[1])
        if self._copies:
            for copy, array in zip(one, self._arrays):
                copy.copy_(array)
            update(self._executor, hyper, step, arrays)
        else:
            one.set_hyperparameters(0, lr=hyper.lr, betas=(hyper.beta1, hyper.beta2), eps=hyper.eps,
                                    weight_decay=hyper.weight_decay, decoupled=hyper.decay == 1,
                                    bias_correction=bool(hyper.bias_correction))
            one.steps = step - 1
            one.step([arrays[1]])
        self._done.append((step, one))

    def roll_back(self, step: int, arrays: Sequence[Any]) -> None:
        if not self._done or self._done[-1][0] != step or not self.are_for(arrays, anywhere=True):
            raise Unavailable(f"adam_rollback() is called for step {step}, but the records are of steps "
                              f"{[known for known, _ in self._done]}, at most {self._depth} of them; roll back the "
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
