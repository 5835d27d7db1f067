# SPDX-License-Identifier: Apache-2.0
"""`python -m adamant`: runs the command-line tool of the package, or prints where its C++ headers are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ._extension import package_folders

# For C++: -Dadamant_DIR=$(python -m adamant --cmake-dir), or -I$(python -m adamant --include-dir).
_folders = {"--cmake-dir": "share/cmake/adamant", "--include-dir": "include"}


def _installed(name: str, verb: str) -> Path:
    paths = [folder / name for folder in package_folders()]
    for path in paths:
        if path.exists():
            return path
    tried = " or ".join(map(str, paths))
    sys.exit(f"adamant: cannot {verb} {tried}: the file does not exist. Install the package with pip")


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in _folders:
        print(_installed(_folders[sys.argv[1]], "find"))
        return
    tool = _installed("adamant", "run")
    try:
        os.execv(tool, ["adamant", *sys.argv[1:]])
    except OSError as error:  # its permissions, or a file system that is mounted noexec
        sys.exit(f"adamant: cannot run {tool}: {error.strerror}. Install the package where programs may be executed")


if __name__ == "__main__":
    main()
