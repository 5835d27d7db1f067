# SPDX-License-Identifier: Apache-2.0
"""The extension module `_signature`."""

from __future__ import annotations

from typing import Any

import torch

from ._extension import load_extension

_module = load_extension("_signature")
CHANGED, HYPER_CHANGED = _module.CHANGED, _module.HYPER_CHANGED
NEW_GRADIENT, NO_GRADIENT = _module.NEW_GRADIENT, _module.NO_GRADIENT


def new_signature(by_methods: bool = False) -> Any:
    """Creates a signature. by_methods: read tensors by their methods, as with torch before 2.10."""
    exchange = None if by_methods else getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    return _module.Signature(exchange, (torch.float32, torch.float64, torch.int64), torch.Tensor, torch.nn.Parameter,
                             torch.empty(0, device="cpu").is_neg)
