# SPDX-License-Identifier: Apache-2.0
"""The command-line tool: `adamant verify`, `cores`, `plan`, `roofline`, `tune`; `adamant help` lists them."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    tool = Path(__file__).parent / "adamant"
    if not tool.exists():
        sys.exit(f"adamant: there is no {tool}; install the package with pip")
    os.execv(tool, ["adamant", *sys.argv[1:]])


if __name__ == "__main__":
    main()
