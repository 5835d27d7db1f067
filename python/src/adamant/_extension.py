# SPDX-License-Identifier: Apache-2.0
"""Finds compiled files, and loads extension modules from this package or from the folder of libadamant_c."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, List


def package_folders() -> List[Path]:
    """The folders of this package. An editable install has two: the sources, and what was compiled from them."""
    return [Path(folder) for folder in sys.modules["adamant"].__path__]


def load_extension(name: str) -> Any:
    folders = package_folders()
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
