# SPDX-License-Identifier: Apache-2.0
"""Updates of single tensors for DeepSpeed, and their records for rollback."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._arrays import ArrayInfo, array_info
from ._library import InvalidArgument, Unavailable, whole_number
from .executor import Executor
from .lists import native
from .optimizer import Optimizer


# lr, beta1, beta2, eps, weight_decay, an adamant_decay, bias_correction: as the extension module's step() takes them.
Hyper = Tuple[float, float, float, float, float, int, bool]

_float16_chunk = 1 << 20
# Small tensors keep records of several updates.
_deep_elements, _deep_records = 1 << 16, 8


class Adam:
    def __init__(self, decoupled: bool):
        self.decay = 1 if decoupled else 2
        self.records: Dict[int, Records] = {}  # by the address of the first moment
        self.executor: Optional[Executor] = None


adams: Dict[int, Adam] = {}


def known(optimizer_id: int) -> Adam:
    if optimizer_id not in adams:
        raise InvalidArgument(f"cannot use optimizer {optimizer_id}: it does not exist. Call create_adam() first, and "
                              "destroy_adam() last")
    return adams[optimizer_id]


def _array_infos(arrays: Sequence[Any]) -> List[ArrayInfo]:
    infos = [array_info(array, name) for array, name in zip(arrays, ("params", "grads", "exp_avg", "exp_avg_sq"))]
    if len({info.elements for info in infos}) != 1:
        raise InvalidArgument("cannot update: params, grads, exp_avg and exp_avg_sq have "
                              f"{', '.join(str(info.elements) for info in infos)} elements, but must have the same "
                              "number")
    return infos


def _has_float16_moments(arrays: Sequence[Any]) -> bool:
    return any(str(getattr(moment, "dtype", "")) == "torch.float16" for moment in arrays[2:])


def update(executor: Executor, hyper: Hyper, step: int, arrays: Sequence[Any]) -> None:
    """One update of (params, grads, exp_avg, exp_avg_sq), in place."""
    param, grad, exp_avg, exp_avg_sq = arrays
    try:
        # The zeros round to nearest, as DeepSpeed does. Stochastic rounding needs the parameter's name, which
        # DeepSpeed's interface does not pass.
        native().step(executor.pointer, (param,), (grad,), (exp_avg,), (exp_avg_sq,), None, step, *hyper, 0, 0, 0, 1.0)
        return
    except InvalidArgument:
        if not _has_float16_moments(arrays):
            raise
    # libadamant_c does not support float16 moments.
    elements, torch = _array_infos(arrays)[0].elements, sys.modules["torch"]
    scratch = torch.empty(2, min(elements, _float16_chunk), dtype=torch.float32)
    for begin in range(0, elements, _float16_chunk):
        parts = [array.view(-1)[begin:begin + _float16_chunk] for array in arrays]
        moments = [buffer[:parts[0].numel()].copy_(part) for buffer, part in zip(scratch, parts[2:])]
        update(executor, hyper, step, parts[:2] + moments)
        for part, values in zip(parts[2:], moments):
            part.copy_(values)


def _written(arrays: Sequence[Any]) -> List[Any]:
    return [arrays[0], *arrays[2:]]


class _Record(Optimizer):
    hyper: Optional[Hyper] = None  # of group 0


class Records:
    """Records of updates of one set of tensors, which are rolled back last to first.

    A record is an optimizer with keep_last_step, or for float16 moments a copy of the tensors.
    """

    def __init__(self, executor: Executor, arrays: Sequence[Any]):
        self._executor = executor
        self._arrays = _written(arrays)
        self._types = [(info.elements, info.dtype) for info in _array_infos(arrays)]
        self._copies = _has_float16_moments(arrays)
        self._depth = _deep_records if self._types[0][0] <= _deep_elements else 1
        self._done: List[Tuple[int, Any]] = []
        self._free: List[Any] = []

    def matches(self, arrays: Sequence[Any], any_address: bool = False) -> bool:
        return self._types == [(info.elements, info.dtype) for info in _array_infos(arrays)] and (
            any_address or not self._moved(arrays))

    def _moved(self, arrays: Sequence[Any]) -> List[Tuple[Any, Any]]:
        return [(known, array) for known, array in zip(self._arrays, _written(arrays))
                if known.data_ptr() != array.data_ptr()]

    def _new_record(self, grad: Any) -> Any:
        if len(self._done) >= self._depth:
            return self._done.pop(0)[1]
        if self._free:
            return self._free.pop()
        if self._copies:
            return [array.clone() for array in self._arrays]
        record = _Record(self._executor, on_nonfinite="apply", keep_last_step=True)
        group = record.add_group("all", exp_avg_sq_rounding="nearest")
        record.add_shard(group, "params", self._arrays[0], grad, *self._arrays[1:])
        return record

    def update(self, hyper: Hyper, step: int, arrays: Sequence[Any]) -> None:
        whole_number(step, "step", minimum=1)
        record = self._new_record(arrays[1])
        if self._copies:
            for copy, array in zip(record, self._arrays):
                copy.copy_(array)
            update(self._executor, hyper, step, arrays)
        else:
            if record.hyper != hyper:
                lr, beta1, beta2, eps, weight_decay, decay, bias_correction = hyper
                record.set_hyperparameters(0, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay,
                                           decoupled=decay == 1, bias_correction=bias_correction)
                record.hyper = hyper
            record.steps = step - 1
            record.step([arrays[1]])
            record.release_gradients()  # roll_back() passes it again
        self._done.append((step, record))

    def roll_back(self, step: int, arrays: Sequence[Any]) -> None:
        if not self._done or self._done[-1][0] != step or not self.matches(arrays, any_address=True):
            raise Unavailable(f"cannot roll back step {step}: the records are of steps "
                              f"{[number for number, _ in self._done]}, at most {self._depth}. Roll back the last "
                              "update, with the same tensors")
        record = self._done[-1][1]
        if self._copies:
            for copy, array in zip(record, _written(arrays)):
                array.copy_(copy)
        else:
            # Tensors of another process may be mapped at another address than at the update.
            moved = self._moved(arrays)
            before = [known.clone() for known, _ in moved]
            for known, array in moved:
                known.copy_(array)
            try:
                record.set_gradient(0, arrays[1])
                record.rollback()
            except BaseException:
                for (known, _), values in zip(moved, before):
                    known.copy_(values)
                raise
            finally:
                record.release_gradients()
            for known, array in moved:
                array.copy_(known)
        self._free.append(self._done.pop()[1])
