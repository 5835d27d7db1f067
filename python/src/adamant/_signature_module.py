# SPDX-License-Identifier: Apache-2.0
"""Loads the extension module `_signature` from this package or from the folder of libadamant_c."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch


def _load() -> Any:
    folders = [Path(__file__).parent]
    if os.environ.get("ADAMANT_C_LIBRARY"):
        folders.append(Path(os.environ["ADAMANT_C_LIBRARY"]).resolve().parent)
    for folder in folders:
        path = folder / "_signature.abi3.so"
        if path.exists():
            spec = importlib.util.spec_from_file_location("adamant._signature", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"cannot import adamant.torch: {' or '.join(map(str, folders))} has no _signature.abi3.so. "
                      "Install the package with pip, or build the target adamant_signature")


_module = _load()
CHANGED, HYPER_CHANGED = _module.CHANGED, _module.HYPER_CHANGED
NEW_GRADIENT, NO_GRADIENT = _module.NEW_GRADIENT, _module.NO_GRADIENT


def new_signature(by_methods: bool = False) -> Any:
    """Creates a signature. by_methods: read tensors by their methods, as with torch before 2.10."""
    exchange = None if by_methods else getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    return _module.Signature(exchange, (torch.float32, torch.float64, torch.int64), (torch.Tensor, torch.nn.Parameter))
