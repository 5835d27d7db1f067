# SPDX-License-Identifier: Apache-2.0
"""Loads extension modules from this package or from the folder of libadamant_c."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any


def load_extension(name: str) -> Any:
    folders = [Path(__file__).parent]
    if os.environ.get("ADAMANT_C_LIBRARY"):
        folders.append(Path(os.environ["ADAMANT_C_LIBRARY"]).resolve().parent)
    for folder in folders:
        path = folder / f"{name}.abi3.so"
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"adamant.{name}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"cannot load adamant.{name}: {' or '.join(map(str, folders))} has no {name}.abi3.so. Install "
                      "the package with pip, or build the target adamant_python")
