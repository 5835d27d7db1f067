# SPDX-License-Identifier: Apache-2.0
"""Changed weights of a torch optimizer's params: their bits, and writes by others that mark them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor

from .._host_copies import flat, is_dense, local, memory_version
from .._library import InvalidArgument, TrackedWeights
from .._split_masters import masters
from ..changes import changed_words, collect, words_address
from ..executor import Executor
from ._arguments import param_types

if TYPE_CHECKING:
    from ._stepping import Steps


class ChangedWeights(NamedTuple):
    """Changed weights of a param."""

    param: Tensor  #: the param
    name: str  #: number of its group, and its name or index
    indices: Tensor  #: ascending indices in the flattened whole param, int32 or int64, in host memory
    values: Tensor  #: the weights with these indices, in the dtype of the param, in host memory


def _origin(param: Tensor, name: str) -> Tuple[int, ...]:
    """Index of this rank's first element of a DTensor in each dimension of the whole param."""
    sizes, origin = list(param.shape), [0] * param.dim()
    for mesh_dimension, placement in enumerate(getattr(param, "placements", ())):
        if placement.is_replicate() or param.device_mesh.get_coordinate() is None:  # type: ignore[attr-defined]
            continue  # None: a rank outside the mesh, which has no elements
        if type(placement).__name__ != "Shard":
            raise InvalidArgument(f"cannot collect the changed weights of {name}: it is sharded by {placement}, whose "
                                  "elements have no offset in the whole param. Use Shard or Replicate")
        d = placement.dim
        each = -(-sizes[d] // param.device_mesh.size(mesh_dimension))  # type: ignore[attr-defined]
        begin = min(sizes[d], each * param.device_mesh.get_local_rank(mesh_dimension))  # type: ignore[attr-defined]
        origin[d], sizes[d] = origin[d] + begin, min(each, sizes[d] - begin)
    return tuple(origin)


def _whole_indices(indices: Tensor, param: Tensor, name: str, by_rows: bool) -> Tensor:
    """Turns indices of the local shard, by rows or in memory order, into indices of the flattened whole param."""
    shard, shape = local(param.detach()), tuple(param.shape)
    if by_rows:
        shard = torch.empty(shard.shape, device="meta")
    origin = _origin(param, name)
    kind = torch.int64 if param.numel() > 2**31 else torch.int32
    if shard.is_contiguous() and tuple(shard.shape[1:]) == shape[1:]:
        offset = origin[0] * (param.numel() // shape[0]) if shape and shape[0] else 0
        return indices.to(torch.int64).add_(offset).to(kind) if offset else indices.to(kind)
    left, whole = indices.to(torch.int64), torch.zeros_like(indices, dtype=torch.int64)
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    for d in sorted(range(shard.dim()), key=lambda d: -shard.stride(d)):
        if shard.shape[d] == 1:
            position = torch.zeros_like(left)
        else:
            position = left // shard.stride(d)
            left = left - position * shard.stride(d)
        whole += (position + origin[d]) * strides[d]
    return whole.to(kind)


def _version_of(tensor: Tensor, known: Any) -> Tuple[Any, ...]:
    return id(tensor), memory_version(tensor, known and known[1])


class Changes:
    """Bits of changed weights by param. A param that was never collected has changed everywhere."""

    def __init__(self) -> None:
        self._bits: Dict[int, Tuple[Tensor, Tensor]] = {}  # by id: the param and its words
        self._versions: Dict[int, Tuple[Any, Any]] = {}
        self._by_rows: Set[int] = set()  # params whose bits are in row-major order, whatever that of their memory

    def bits(self, param: Tensor, by_rows: bool = False) -> Tensor:
        """The words of a param, in the order of its memory or by rows."""
        if by_rows != (id(param) in self._by_rows):
            self._by_rows ^= {id(param)}
            self._bits.pop(id(param), None)
        shard = local(param.detach())
        known = self._bits.get(id(param))
        if known is None or known[1].numel() != changed_words(shard.numel()):
            words = torch.full((changed_words(shard.numel()),), -1, dtype=torch.int64, device="cpu")
            known = self._bits[id(param)] = (param, words)
        return known[1]

    def _has_rows(self, param: Tensor) -> bool:
        """Whether bits and weights are in row-major order, as of a param with gaps in memory, which no step uses."""
        return id(param) in self._by_rows or not is_dense(local(param.detach()))

    def mark(self, param: Tensor) -> None:
        self.bits(param, id(param) in self._by_rows).fill_(-1)

    def mark_all(self) -> None:
        for _, words in self._bits.values():
            words.fill_(-1)

    def _version(self, param: Tensor, state: Dict[str, Any]) -> Tuple[Any, Any]:
        """Versions of the weights and of the master."""
        known = self._versions.get(id(param), (None, None))
        master = next((state[key] for key in masters if isinstance(state.get(key), Tensor)), None)
        return _version_of(param, known[0]), None if master is None else _version_of(master, known[1])

    def mark_written(self, param: Tensor, state: Dict[str, Any]) -> None:
        """Marks a param whose weights or master were written since settle()."""
        if self._versions.get(id(param)) != self._version(param, state):
            self.mark(param)

    def settle(self, param: Tensor, state: Dict[str, Any], published: bool = True) -> None:
        """Records that the bits cover all writes so far: to the param and, if it is published, to its master."""
        weights, master = self._version(param, state)
        self._versions[id(param)] = (weights, master if published else self._versions.get(id(param), (None, None))[1])

    def collect(self, optimizer: "Steps", clear: bool) -> List[ChangedWeights]:
        """Changed weights of all params. Forgets params that the optimizer no longer has."""
        found: List[ChangedWeights] = []
        params = {id(param): param for _, param in optimizer._all_params()}
        for key in self._bits.keys() - params.keys():
            del self._bits[key]
            self._versions.pop(key, None)
            self._by_rows.discard(key)
        for param in params.values():
            if param.dtype in param_types and (param.layout != torch.strided or param.device.type == "meta"):
                raise InvalidArgument(f"cannot collect the changed weights of {optimizer._name(param)}: it is "
                                      f"{'sparse' if param.device.type != 'meta' else 'on the meta device'}. Give such "
                                      "params to another optimizer")
        executor = optimizer._executor()
        cleared: List[Tensor] = []
        try:
            for param in params.values():
                self.mark_written(param, optimizer.state.get(param, {}))
                if clear:
                    cleared.append(param)
                indices, values = self._collect(param, clear, executor)
                name = optimizer._name(param)
                by_rows = self._has_rows(param)
                indices = _whole_indices(indices, param, name, by_rows)
                if not by_rows and not local(param.detach()).is_contiguous():
                    indices, order = indices.sort()
                    values = values[order]
                found.append(ChangedWeights(param, name, indices, values))
        except BaseException:  # the caller does not get what was collected
            for param in cleared:
                self.mark(param)
            raise
        for param in cleared:  # the next step publishes a master that others have written
            self.settle(param, optimizer.state.get(param, {}), published=False)
        return found

    def _collect(self, param: Tensor, clear: bool, executor: Executor) -> Tuple[Tensor, Tensor]:
        shard = local(param.detach())
        words = self.bits(param, id(param) in self._by_rows)
        weights = shard.contiguous().view(-1) if self._has_rows(param) else flat(shard)
        if shard.dtype not in param_types:  # such a param is never stepped
            return torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=shard.dtype)
        dtypes = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
        on_host: Optional[Tensor] = weights if shard.device.type == "cpu" else None
        described = TrackedWeights.initialised(
            changed=words_address(words, shard.numel(), "changed") or None, elements=shard.numel(),
            weights=on_host.data_ptr() or None if on_host is not None else None, dtype=dtypes[shard.dtype])
        wide = shard.numel() > 2**31

        def empty(count: int, is_index: bool) -> Tensor:
            dtype = shard.dtype if not is_index else torch.int64 if wide else torch.int32
            return torch.empty(count, dtype=dtype, device="cpu")
        indices, values = collect(described, 0, clear, executor, empty, with_values=on_host is not None)
        if on_host is None:
            values = weights[indices.to(shard.device, torch.int64)].cpu()
        return indices, values
