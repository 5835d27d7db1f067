#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the programs and fragments of the documentation (see pages.py) as sources, and prints their names.

    snippets.py FOLDER

Each whole program is a file of its own. All fragments are one file: each is a namespace, made of its context with the
fragment in the place of the line "// fragment". A compiler's messages name the page and the line.
Files that the pages show ("file: NAME") are written to the same folder, for all of them to be run in. A file that is
already as it should be keeps its time.
"""
import pathlib
import re
import sys
import textwrap

from pages import CONTEXTS, all_blocks

INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def fragment(block):
    """(includes, namespace) of a fragment."""
    path = CONTEXTS / f"{block.context}.cpp"
    if not path.exists():
        raise SystemExit(f"{block.place}: there is no context {path.name} in {CONTEXTS}")
    lines = path.read_text().splitlines()
    places = [i for i, line in enumerate(lines) if line.strip() == "// fragment"]
    if len(places) != 1:
        raise SystemExit(f"{path}: a context has one line \"// fragment\", but this has {len(places)}")
    at = places[0]
    includes = [line for line in lines + block.lines if INCLUDE.match(line)]
    blank = lambda part: "\n".join("" if INCLUDE.match(line) else line for line in part)
    return includes, (f'namespace {block.name} {{\n#line 1 "{path}"\n{blank(lines[:at])}\n'
                      f'#line {block.line + 1} "{block.page}"\n{blank(block.lines)}\n'
                      f'#line {at + 2} "{path}"\n{blank(lines[at + 1:])}\n}}\n')


def fragments(blocks):
    includes, bodies, calls = ["#include <cstdio>"], [], []
    for block in blocks:
        more, body = fragment(block)
        includes += [line for line in more if line not in includes]
        bodies.append(body)
        calls.append(f'    std::puts("{block.place}");\n    std::fflush(stdout);\n    {block.name}::context();\n')
    return ("\n".join(includes) + "\n\n" + "\n".join(bodies) + '#line 1 "fragments.cpp"\nint main()\n{\n' +
            "".join(calls) + "}\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(textwrap.dedent(__doc__))
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for block in all_blocks():
        if block.is_program and block.language != "python" and block.example is None:
            name = f"{block.name}.{block.language}"
            write(folder / name, f'#line {block.line + 1} "{block.page}"\n{block.text}')
            names.append(name)
        if (block.comment or "").startswith("file: "):
            write(folder / block.comment.removeprefix("file: "), block.text)
    write(folder / "fragments.cpp", fragments([block for block in all_blocks() if block.context]))
    print(";".join([*names, "fragments.cpp"]), end="")


if __name__ == "__main__":
    main()
