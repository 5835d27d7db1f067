# SPDX-License-Identifier: Apache-2.0
"""`python -m adamant`: runs the command-line tool of the package, or prints where its C++ headers are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_package = Path(__file__).parent
# For C++: -Dadamant_DIR=$(python -m adamant --cmake-dir), or -I$(python -m adamant --include-dir).
_folders = {"--cmake-dir": _package / "share" / "cmake" / "adamant", "--include-dir": _package / "include"}


def _fail(message: str) -> None:
    sys.exit(f"adamant: {message}: the file does not exist. Install the package with pip")


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in _folders:
        folder = _folders[sys.argv[1]]
        if not folder.exists():
            _fail(f"cannot find {folder}")
        print(folder)
        return
    tool = _package / "adamant"
    if not tool.exists():
        _fail(f"cannot run {tool}")
    os.execv(tool, ["adamant", *sys.argv[1:]])


if __name__ == "__main__":
    main()
