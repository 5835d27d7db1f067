# SPDX-License-Identifier: Apache-2.0
"""`python -m adamant`: runs the command-line tool of the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    tool = Path(__file__).parent / "adamant"
    if not tool.exists():
        sys.exit(f"adamant: cannot run {tool}: the file does not exist. Install the package with pip")
    os.execv(tool, ["adamant", *sys.argv[1:]])


if __name__ == "__main__":
    main()
