# SPDX-License-Identifier: Apache-2.0
"""Modules that scripts need beside the package's own requirements."""
import importlib
import os
import sys


def required(name, remedy):
    """Imports a module, or ends the script with status 2 and a message."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{os.path.basename(sys.argv[0])}: cannot import {name}: {error}. {remedy}", file=sys.stderr)
        sys.exit(2)
