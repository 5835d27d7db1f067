# SPDX-License-Identifier: Apache-2.0
"""Bit-reproducible CPU Adam for offloaded LLM training.

adamant.torch has AdamW and Adam for PyTorch. adamant.Optimizer steps NumPy arrays and torch tensors.
"""

from ._library import (Corrupted, DeviceFailed, Error, Internal, InvalidArgument, OutOfMemory, ReduceFailed, Report,
                       Unavailable, library)
from .changes import changed_mask, changed_weights, changed_words, count_changed, mark_changed
from .executor import CoreSplit, Executor, allowed_pus, select_cores
from .lists import accumulate, step
from .optimizer import Optimizer, add_squares, hyperparameters, join_masters, split_masters, sum_of_squares

__all__ = ["CoreSplit", "Corrupted", "DeviceFailed", "Error", "Executor", "Internal", "InvalidArgument", "Optimizer",
           "OutOfMemory", "ReduceFailed", "Report", "Unavailable", "accumulate", "add_squares", "allowed_pus",
           "changed_mask", "changed_weights", "changed_words", "count_changed", "hyperparameters", "join_masters",
           "mark_changed", "select_cores", "split_masters", "step", "sum_of_squares"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        return library().adamant_version().decode()
    raise AttributeError(f"module 'adamant' has no attribute {name!r}")
