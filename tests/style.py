#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps words out that the field has better ones for, and prepositions out of names: CONTRIBUTING.md, "Language"."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["include", "python/src", "tools", "examples", "docs", "cmake", "benchmarks"]
SUFFIXES = {".hpp", ".ipp", ".inl", ".cuh", ".cu", ".h", ".cpp", ".c", ".py", ".md", ".cmake", ".txt"}
WORDS = re.compile(r"\b(puts? off|putting \w+ off|put_off|by[ _]chance|oracles?|tamed?|taken? back|take_back|takes back|way back|"
                   r"errands?|ledgers?|cohorts?|couriers?|whoever|nobody|somebody|so many|(?<!each )(?<!none )(?<!some )(?<!all )(?<!first )(?<!minutes )of which|but where|comes home|leave_out|"
                   r"lay_out|(?:two|lower|upper) halves|landing|landed|degrades? in silence|gives? away|(?:device_)?lanes?|"
                   r"as many \w+ as there|at once|c[ao]m(?:e|es|ing) down|(?:go|goes|went|going) up|copied (?:up|down))\b", re.IGNORECASE)
# Right where they are: a lane is one of a vector, and a half is half of a word, in the kernels and in what defines them.
ALLOWED = {
    "include/adamant/detail/kernels/": {"lane", "lanes", "lower halves", "upper halves"},
    "include/adamant/detail/cuda/gpu_": {"lane", "lanes"},
    "include/adamant/reference.hpp": {"lane", "lanes"},
    "include/adamant/detail/numerics/": {"lane", "lanes"},
    "benchmarks/": {"lane", "lanes"},
    "docs/numerics.md": {"lane", "lanes"},
}

# A declaration whose name is a preposition or a pronoun.
NAMES = re.compile(r"[\w>*&\]] +(?:about|at|by|from|here|his|in|into|of|on|them|there|theirs|to|what|with)_?"
                   r"(?= *(?:[=;,){\[]|:[^:]))")
NAME_FOLDERS = ("include/", "tools/", "examples/")
NOT_CODE = re.compile(r'R"\(.*?\)"|"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def declared_prepositions(text):
    """Yields the number of the line, and the declaration."""
    code = NOT_CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in NAMES.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, found[0]


def main():
    problems, read = [], 0
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))] + [ROOT / "README.md"]
    for path in files:
        if path.suffix not in SUFFIXES:
            continue
        name = path.relative_to(ROOT).as_posix()
        allowed = set().union(*(words for start, words in ALLOWED.items() if name.startswith(start)))
        text = path.read_text()
        if name.startswith(NAME_FOLDERS) and path.suffix not in {".py", ".md", ".cmake", ".txt"}:
            problems += [f"{name}:{number}: the name '{found}'" for number, found in declared_prepositions(text)]
        for number, line in enumerate(text.splitlines(), 1):
            read += 1
            problems += [f"{name}:{number}: '{found[0]}'" for found in WORDS.finditer(line) if found[0].lower() not in allowed]
    if read < 10000:
        problems.append(f"read only {read} lines: this test looks in the wrong place")
    if problems:
        sys.exit("\n".join([*problems, f"{len(problems)} words that CONTRIBUTING.md replaces"]))
    print(f"{read} lines speak the field's language")


if __name__ == "__main__":
    main()
