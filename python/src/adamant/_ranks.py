# SPDX-License-Identifier: Apache-2.0
"""The gradient norm over the ranks of a process group. Replicated gradients count once.

Placements of DTensors tell which ranks hold replicas. A plain tensor is either replicated, as with
fully_shard(ignored_params=...), or a shard of its rank. The param group's "replicated" tells which. If it is None, the first
gradients are compared over the ranks by param name. Gradients of replicated params are compared at every step, so a wrong
decision raises an error and never yields a wrong norm.
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
_hash_bits = 62  # a sum of one rank's and of others' zeros fits an int64


class Gradient(NamedTuple):
    """A gradient of this rank. values: in host memory, or None. replicated: the param group's value."""

    name: str
    param: Tensor
    values: Optional[Tensor]
    replicated: Optional[bool]


class Squares(NamedTuple):
    """An exact sum of squares of the finite elements, and the number of the others."""

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
    """The norm that these words have."""
    total, nonfinite = c_double(), c_uint64()
    given = (c_int64 * SQUARES_WORDS)(*words.tolist())
    check(library().adamant_round_squares(given, byref(total), byref(nonfinite)))
    return float("nan") if nonfinite.value else total.value ** 0.5


def zero_redundancy_group() -> Optional[Any]:
    """The process group of the ZeroRedundancyOptimizer whose constructor is making an optimizer, if there is one.

    It assigns whole params to ranks. Its own process_group argument hides ours.
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


class Ranks:
    """The ranks that share gradients, and which params they replicate. Every rank calls add_up() once a step."""

    def __init__(self, group: Any):
        self.group = group
        self._executor: Optional[Executor] = None
        # What the first gradients have shown, by the param's name: the ranks that replicate it; () for a shard.
        self._verdicts: Dict[str, Tuple[Any, Tuple[int, ...]]] = {}
        self._sets: List[Tuple[int, ...]] = [tuple(range(self.count))]  # of ranks that replicate some param

    @property
    def count(self) -> int:
        return torch.distributed.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank(self.group)

    def reduce(self, numbers: Tensor, how: str = "SUM") -> None:
        """Replaces int64 numbers in host memory by their sum over all ranks, or another reduction."""
        operation = getattr(torch.distributed.ReduceOp, how)
        if torch.distributed.get_backend(self.group) == "nccl":
            there = numbers.cuda()
            torch.distributed.all_reduce(there, operation, group=self.group)
            numbers.copy_(there)
        else:
            torch.distributed.all_reduce(numbers, operation, group=self.group)

    def add_up(self, words: Tensor, gradients: List[Gradient]) -> None:
        """Replaces the words of this rank's sum of squares by those of all ranks' gradients, each counted once.

        Raises InvalidArgument on every rank where it is not known what counts once.
        """
        if self.count == 1:
            return
        mine, surplus = _from_words(words), Squares(0, 0)
        plain: List[Tuple[Gradient, Squares]] = []
        for gradient in gradients:
            if hasattr(gradient.param, "to_local"):
                if gradient.values is not None and not self._counts_here(gradient):
                    surplus = _sum(surplus, self._squares(gradient))
            elif gradient.replicated is None or gradient.replicated:
                if gradient.replicated is None and self._verdict(gradient) == ():
                    continue  # a shard, as was found before
                plain.append((gradient, self._squares(gradient)))
        wants = any(gradient.replicated is None and self._verdict(gradient) is None and squares != (0, 0)
                    for gradient, squares in plain)
        reduced = self._reduced(mine, surplus, plain, wants)
        if reduced[SQUARES_WORDS]:
            self._decide([gradient for gradient in gradients if not hasattr(gradient.param, "to_local")])
            reduced = self._reduced(mine, surplus, plain, False)
        self._check_replicas(reduced, plain)
        words.copy_(torch.tensor(reduced[:SQUARES_WORDS], dtype=torch.int64, device="cpu"))

    # This rank's part

    def _squares(self, gradient: Gradient) -> Squares:
        if gradient.values is None or gradient.values.numel() == 0:
            return Squares(0, 0)
        if self._executor is None:  # a separate one: the optimizer's may have an open step
            self._executor = Executor(threads=1, bind="none")
        words = torch.zeros(SQUARES_WORDS, dtype=torch.int64, device="cpu")
        add_squares(gradient.values, words, self._executor)
        return _from_words(words)

    def _counts_here(self, gradient: Gradient) -> bool:
        """Whether this rank is the first in the process group that has this shard of a DTensor."""
        param: Any = gradient.param
        here = set(torch.distributed.get_process_group_ranks(self.group))
        mine = torch.distributed.get_rank()
        for dimension, placement in enumerate(param.placements):
            if placement.is_replicate():
                replicas = torch.distributed.get_process_group_ranks(param.device_mesh.get_group(dimension))
                if min(here.intersection(replicas), default=mine) != mine:
                    return False
        return True

    def _verdict(self, gradient: Gradient) -> Optional[Tuple[int, ...]]:
        if gradient.replicated is not None:
            return self._sets[0] if gradient.replicated else ()
        param, verdict = self._verdicts.get(gradient.name, (lambda: None, ()))
        return verdict if param() is gradient.param else None

    # Collectives

    def _reduced(self, mine: Squares, surplus: Squares, plain: List[Tuple[Gradient, Squares]], wants: bool) -> List[int]:
        """The words of all ranks, whether a rank has an undecided param, and hashes of replicated gradients."""
        hashes = [hashlib.sha256() for _ in self._sets]
        for gradient, squares in plain:
            replicas = self._verdict(gradient)
            if not replicas:
                continue
            if self.rank != replicas[0]:
                surplus = _sum(surplus, squares)
            hashes[self._sets.index(replicas)].update(f"{gradient.name} {squares.total} {squares.nonfinite}\n".encode())
        counted = Squares(mine.total - surplus.total, mine.nonfinite - surplus.nonfinite)
        slots = [0] * (self.count * len(self._sets))
        for i, made in enumerate(hashes):
            slots[i * self.count + self.rank] = int.from_bytes(made.digest()[:8], "little") >> (64 - _hash_bits)
        numbers = torch.tensor([*_to_words(counted), int(wants), *slots], dtype=torch.int64, device="cpu")
        self.reduce(numbers)
        return numbers.tolist()

    def _gathered(self, own: Any) -> List[Any]:
        gathered: List[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, own, group=self.group)
        return gathered

    def _decide(self, plain: List[Gradient]) -> None:
        """Compares plain gradients over the ranks. Every rank gets the same result."""
        own = {gradient.name: (tuple(gradient.param.shape), *self._squares(gradient)) for gradient in plain
               if gradient.replicated is None}
        gathered = self._gathered(own)
        found: Dict[str, Tuple[int, ...]] = {}
        for name in sorted({name for table in gathered for name in table}):
            having = [rank for rank, table in enumerate(gathered) if name in table]
            grown = [rank for rank in having if gathered[rank][name][1:] != (0, 0)]
            different = {gathered[rank][name] for rank in grown}
            if len(grown) < 2 and len(having) > 1:
                continue  # it counts once in either case; a later step decides
            if len(different) == len(grown):
                found[name] = ()
            elif len(different) == 1 and grown == having:
                found[name] = tuple(having)
            else:
                raise InvalidArgument(
                    f"cannot tell whether {name} is replicated over process_group: some of its ranks have the same gradient, and "
                    'others do not. Give the param\'s group "replicated": True or False; all-reduce gradients of replicated '
                    "params before step()")
        for gradient in plain:
            if gradient.name in found and gradient.replicated is None:
                self._verdicts[gradient.name] = (weakref.ref(gradient.param), found[gradient.name])
        everyone = tuple(range(self.count))
        known = self._gathered(sorted({verdict for _, verdict in self._verdicts.values() if verdict}))
        self._sets = [everyone, *sorted({each for some in known for each in some} - {everyone})]

    def _check_replicas(self, reduced: List[int], plain: List[Tuple[Gradient, Squares]]) -> None:
        slots = reduced[SQUARES_WORDS + 1:]
        for i, replicas in enumerate(self._sets):
            if len({slots[i * self.count + rank] for rank in replicas}) > 1:
                break
        else:
            return
        gathered = self._gathered({gradient.name: squares for gradient, squares in plain if self._verdict(gradient)})
        names = sorted({name for table in gathered for name in table})
        name = next((name for name in names if len({table.get(name) for table in gathered}) > 1), "a param")
        self._verdicts.clear()  # the next step looks again
        raise InvalidArgument(
            f"cannot clip by the norm over process_group: the gradient of {name}, which is replicated, differs between its ranks. "
            "All-reduce gradients of replicated params before step(). If the ranks hold different shards, give the param's "
            'group "replicated": False')


def _sum(a: Squares, b: Squares) -> Squares:
    return Squares(a.total + b.total, a.nonfinite + b.nonfinite)
