# SPDX-License-Identifier: Apache-2.0
"""The gradient norm over the ranks of a process group. Replicated gradients count once.

Placements of DTensors tell which ranks hold replicas. A plain tensor is either replicated, as with
fully_shard(ignored_params=...), or a shard of its rank. The param group's "replicated" tells which. If it is None, the
first gradients are compared over the ranks by param name. Gradients of replicated params are compared at every step, so
a wrong decision raises an error and never yields a wrong norm.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from ctypes import byref, c_double, c_int64, c_uint64
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ._library import SQUARES_WORDS, InvalidArgument, check, library
from .executor import Executor
from .optimizer import add_squares

_word_bits = 32
_hash_bits = 62  # the sum of one rank's hash and the zeros of the others fits an int64


class Gradient(NamedTuple):
    """A gradient of this rank.

    values: the gradient in host memory, or None. replicated: the param group's value.
    """

    name: str
    param: Tensor
    values: Optional[Tensor]
    replicated: Optional[bool]


class Squares(NamedTuple):
    """The exact sum of squares of the finite elements, and the number of nonfinite elements."""

    total: int
    nonfinite: int


def _from_words(words: Tensor) -> Squares:
    values = words.tolist()
    return Squares(sum(word << (_word_bits * i) for i, word in enumerate(values[:-1])), values[-1])


def _to_words(squares: Squares) -> List[int]:
    mask = (1 << _word_bits) - 1
    words = [squares.total >> (_word_bits * i) & mask for i in range(SQUARES_WORDS - 1)]
    words[-1] = squares.total >> (_word_bits * (SQUARES_WORDS - 2))
    return [*words, squares.nonfinite]


def norm_of(words: Tensor) -> float:
    """The norm of a sum of squares in words."""
    total, nonfinite = c_double(), c_uint64()
    numbers = (c_int64 * SQUARES_WORDS)(*words.tolist())
    check(library().adamant_round_squares(numbers, byref(total), byref(nonfinite)))
    return float("nan") if nonfinite.value else total.value ** 0.5


def zero_redundancy_group() -> Optional[Any]:
    """The process group of the ZeroRedundancyOptimizer that is creating this optimizer, or None.

    ZeroRedundancyOptimizer assigns whole params to ranks. Its process_group argument hides ours, so it cannot be
    passed.
    """
    optimizers = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if optimizers is None:
        return None
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_init_local_optimizer" and isinstance(frame.f_locals.get("self"),
                                                                         optimizers.ZeroRedundancyOptimizer):
            return frame.f_locals["self"].process_group
        frame = frame.f_back  # type: ignore[assignment]
    return None


def unknown_shards(param: Any, group: Optional[Any]) -> Optional[str]:
    """Why a process group may lack shards of a param, or None if it has all shards of this rank's replica.

    FullyShardedDataParallel's params do not say which ranks have shards, so any group is accepted for them.
    """
    if group is None and getattr(param, "_fsdp_flattened", False) and torch.distributed.get_world_size() > 1:
        return "FullyShardedDataParallel may have shards of it on other ranks, and process_group is None"
    placements = getattr(param, "placements", ())
    sharded = [not placement.is_replicate() and param.device_mesh.size(dimension) > 1
               for dimension, placement in enumerate(placements)]
    if not any(sharded):
        return None
    coordinate = param.device_mesh.get_coordinate()
    if coordinate is None:  # this rank is outside the mesh and has no elements
        return None
    index = tuple(slice(None) if is_sharded else place for is_sharded, place in zip(sharded, coordinate))
    needed = set(param.device_mesh.mesh[index].flatten().tolist())
    if group is None:
        return f"it is sharded over {len(needed)} ranks, and process_group is None"
    known = needed.intersection(torch.distributed.get_process_group_ranks(group))
    return None if known == needed else (
        f"it is sharded over {len(needed)} ranks, and process_group has {len(known)} of them")


def partitioning_engine() -> Optional[str]:
    """The engine that is stepping this optimizer over its own flat partitions of the params, or None."""
    engines = {"deepspeed.runtime": "DeepSpeed", "colossalai.zero": "ColossalAI"}
    if not any(module in sys.modules for module in engines):
        return None
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for module, engine in engines.items():
            if name.startswith(module + "."):
                return engine
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Ranks:
    """The ranks that share gradients, and the params that they replicate.

    Every rank calls reduce_squares() once a step.
    """

    def __init__(self, group: Any):
        self.group = group
        self._executor: Optional[Executor] = None
        # Decisions from the first gradients, by the param's name: the ranks that replicate it; () for a shard.
        self._decisions: Dict[str, Tuple[Any, Tuple[int, ...]]] = {}
        self._sets: List[Tuple[int, ...]] = [tuple(range(self.count))]  # sets of ranks that replicate a param

    @property
    def count(self) -> int:
        return torch.distributed.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank(self.group)

    def reduce(self, numbers: Tensor, operation: str = "SUM") -> None:
        """Replaces int64 numbers in host memory by their reduction over all ranks."""
        reduce_op = getattr(torch.distributed.ReduceOp, operation)
        if torch.distributed.get_backend(self.group) == "nccl":
            device_numbers = numbers.cuda()
            torch.distributed.all_reduce(device_numbers, reduce_op, group=self.group)
            numbers.copy_(device_numbers)
        else:
            torch.distributed.all_reduce(numbers, reduce_op, group=self.group)

    def reduce_squares(self, words: Tensor, gradients: List[Gradient]) -> None:
        """Replaces the words of this rank's sum of squares by those of all ranks' gradients, each counted once.

        Raises InvalidArgument on every rank if it is unknown which gradients are replicated.
        """
        if self.count == 1:
            return
        own_squares, surplus = _from_words(words), Squares(0, 0)
        plain: List[Tuple[Gradient, Squares]] = []
        for gradient in gradients:
            if hasattr(gradient.param, "to_local"):
                if gradient.values is not None and not self._counts_here(gradient):
                    surplus = _sum(surplus, self._squares(gradient))
            elif gradient.replicated is None or gradient.replicated:
                if gradient.replicated is None and self._decision(gradient) == ():
                    continue  # already known to be a shard
                plain.append((gradient, self._squares(gradient)))
        is_undecided = any(gradient.replicated is None and self._decision(gradient) is None and squares != (0, 0)
                           for gradient, squares in plain)
        reduced = self._reduced(own_squares, surplus, plain, is_undecided)
        if reduced[SQUARES_WORDS]:
            self._decide([gradient for gradient in gradients if not hasattr(gradient.param, "to_local")])
            reduced = self._reduced(own_squares, surplus, plain, False)
        self._check_replicas(reduced, plain)
        words.copy_(torch.tensor(reduced[:SQUARES_WORDS], dtype=torch.int64, device="cpu"))

    # This rank's part

    def _squares(self, gradient: Gradient) -> Squares:
        if gradient.values is None or gradient.values.numel() == 0:
            return Squares(0, 0)
        if self._executor is None:  # a separate executor: the optimizer's may have an open step
            self._executor = Executor(threads=1, bind="none")
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64, device="cpu")
        add_squares(gradient.values, words, self._executor)
        return _from_words(words)

    def _counts_here(self, gradient: Gradient) -> bool:
        """Whether this rank is the first in the process group with this shard of a DTensor."""
        param: Any = gradient.param
        group_ranks = set(torch.distributed.get_process_group_ranks(self.group))
        own_rank = torch.distributed.get_rank()
        for dimension, placement in enumerate(param.placements):
            if placement.is_replicate():
                replicas = torch.distributed.get_process_group_ranks(param.device_mesh.get_group(dimension))
                if min(group_ranks.intersection(replicas), default=own_rank) != own_rank:
                    return False
        return True

    def _decision(self, gradient: Gradient) -> Optional[Tuple[int, ...]]:
        if gradient.replicated is not None:
            return self._sets[0] if gradient.replicated else ()
        param, decision = self._decisions.get(gradient.name, (lambda: None, ()))
        return decision if param() is gradient.param else None

    # Collectives

    def _reduced(self, own_squares: Squares, surplus: Squares, plain: List[Tuple[Gradient, Squares]],
                 is_undecided: bool) -> List[int]:
        """The words of all ranks, the number of ranks with an undecided param, and hashes of replicated gradients."""
        hashes = [hashlib.sha256() for _ in self._sets]
        for gradient, squares in plain:
            replicas = self._decision(gradient)
            if not replicas:
                continue
            if self.rank != replicas[0]:
                surplus = _sum(surplus, squares)
            hashes[self._sets.index(replicas)].update(f"{gradient.name} {squares.total} {squares.nonfinite}\n".encode())
        counted = Squares(own_squares.total - surplus.total, own_squares.nonfinite - surplus.nonfinite)
        slots = [0] * (self.count * len(self._sets))
        for i, digest in enumerate(hashes):
            slots[i * self.count + self.rank] = int.from_bytes(digest.digest()[:8], "little") >> (64 - _hash_bits)
        numbers = torch.tensor([*_to_words(counted), int(is_undecided), *slots], dtype=torch.int64, device="cpu")
        self.reduce(numbers)
        return numbers.tolist()

    def _gathered(self, value: Any) -> List[Any]:
        gathered: List[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, value, group=self.group)
        return gathered

    def _decide(self, plain: List[Gradient]) -> None:
        """Compares plain gradients over the ranks. Every rank gets the same result."""
        table = {gradient.name: (tuple(gradient.param.shape), *self._squares(gradient)) for gradient in plain
                 if gradient.replicated is None}
        tables = self._gathered(table)
        decided: Dict[str, Tuple[int, ...]] = {}
        for name in sorted({name for table in tables for name in table}):
            owners = [rank for rank, table in enumerate(tables) if name in table]
            nonzero = [rank for rank in owners if tables[rank][name][1:] != (0, 0)]
            distinct = {tables[rank][name] for rank in nonzero}
            if len(nonzero) < 2 and len(owners) > 1:
                continue  # it counts once in either case; a later step decides
            if len(distinct) == len(nonzero):
                decided[name] = ()
            elif len(distinct) == 1 and nonzero == owners:
                decided[name] = tuple(owners)
            else:
                raise InvalidArgument(
                    f"cannot tell whether {name} is replicated over process_group: some of its ranks have the same "
                    "gradient, and others do not. Give the param's group \"replicated\": True or False, and all-reduce "
                    "gradients of replicated params before step()")
        for gradient in plain:
            if gradient.name in decided and gradient.replicated is None:
                self._decisions[gradient.name] = (weakref.ref(gradient.param), decided[gradient.name])
        everyone = tuple(range(self.count))
        known = self._gathered(sorted({decision for _, decision in self._decisions.values() if decision}))
        self._sets = [everyone, *sorted({ranks for sets in known for ranks in sets} - {everyone})]

    def _check_replicas(self, reduced: List[int], plain: List[Tuple[Gradient, Squares]]) -> None:
        slots = reduced[SQUARES_WORDS + 1:]
        for i, replicas in enumerate(self._sets):
            if len({slots[i * self.count + rank] for rank in replicas}) > 1:
                break
        else:
            return
        gathered = self._gathered({gradient.name: squares for gradient, squares in plain if self._decision(gradient)})
        names = sorted({name for table in gathered for name in table})
        name = next((name for name in names if len({table.get(name) for table in gathered}) > 1), "a param")
        self._decisions.clear()  # the next step decides again
        raise InvalidArgument(
            f"cannot compute the norm over process_group: the gradient of {name} is replicated, but differs between "
            "ranks. All-reduce gradients of replicated params before step(). If the ranks hold different shards, "
            "give the param's "
            'group "replicated": False')


def _sum(a: Squares, b: Squares) -> Squares:
    return Squares(a.total + b.total, a.nonfinite + b.nonfinite)
