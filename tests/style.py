#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps words out that the field has better ones for: CONTRIBUTING.md, "Language", lists them. Prints file and line of each."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["include", "python", "tools", "examples", "docs", "cmake", "benchmarks"]
SUFFIXES = {".hpp", ".ipp", ".inl", ".cuh", ".cu", ".h", ".cpp", ".c", ".py", ".md", ".cmake", ".txt"}
# Replacement: words. "_" stands for itself and a space, so identifiers are read, too.
WORDS = {
    "defer": r"puts?_off|putting_(?:\w+_)?off",
    "immediately, in one piece, concurrently": r"at once",
    "publish": r"landings?|landed|lands",
    "roll back": r"takes?_back|taken_back|taking_back|took_back|way_back",
    "stochastically": r"by_chance",
    "reference": r"oracles?",
    "in range, clamp": r"tamed?|taming",
    "vec128": r"quads?",
    "stream (CUDA), queue (work), row (chart)": r"lanes?",
    "work item, enter": r"errands?|comes?_in|coming_in|came_in",
    "table, step group, copy thread": r"ledgers?|cohorts?|couriers?",
    "copy back": r"comes?_home|came_home",
    "split masters: weight and residual": r"(?:two|lower|upper)_halves|halves",
    "skip": r"leaves?_out|left_out|leaving_out",
    "build the layout": r"lays?_out|laid_out|laying_out",
    "the number": r"so_many|as_many_\w+_as_there",
    "a sentence of its own": r"of_which|but_where",
    "the actor: caller, worker, reader": r"whoever|nobody|somebody",
    "no silent fallbacks": r"degrades?_in_silence|gives?_away",
}
WORD = re.compile("|".join(rf"(?<![a-zA-Z0-9])(?P<w{i}>{pattern.replace('_', '[ _]')})(?![a-zA-Z0-9])"
                           for i, pattern in enumerate(WORDS.values())), re.IGNORECASE)
# Right where they are.
SIMD = {"lane", "lanes", "halves", "lower halves", "upper halves", "two halves"}  # of a vector, of a word
ALLOWED = {
    "include/adamant/detail/kernels/": SIMD,
    "include/adamant/detail/cuda/gpu_": SIMD,
    "include/adamant/reference.hpp": SIMD, # partial sums are defined as lanes
    "include/adamant/detail/numerics/": SIMD,
    "benchmarks/": SIMD, # loops of vectors
    "docs/numerics.md": {"lane", "lanes"},
    "include/adamant/cores.hpp": {"halves"},                        # of a core
    "include/adamant/detail/core/checksum.hpp": {"halves"},         # of a product
    "include/adamant/detail/zenflow/zenflow_model.hpp": {"halves"}, # of a double buffer
}
ENGLISH = re.compile(r"\b(?:each|none|some|all|first|both|many|most|half|minutes) of which\b", re.IGNORECASE)


def glossary(lines):
    """Numbers of the lines of CONTRIBUTING.md's table, which names the words."""
    begin = lines.index("| not this | this |")
    return set(range(begin + 1, next(i for i in range(begin, len(lines)) if not lines[i].startswith("|")) + 1))


def main():
    problems, read = [], 0
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        if path.suffix not in SUFFIXES:
            continue
        name = path.relative_to(ROOT).as_posix()
        allowed = set().union(*(words for start, words in ALLOWED.items() if name.startswith(start)))
        lines = path.read_text().splitlines()
        skipped = glossary(lines) if name == "CONTRIBUTING.md" else ()
        for number, line in enumerate(lines, 1):
            read += 1
            for found in () if number in skipped else WORD.finditer(ENGLISH.sub("", line)):
                if found[0].lower().replace("_", " ") not in allowed:
                    problems.append(f"{name}:{number}: '{found[0]}', better: {list(WORDS)[int(found.lastgroup[1:])]}")
    if read < 10000:
        problems.append(f"read only {read} lines: this test looks in the wrong place")
    if problems:
        sys.exit("\n".join([*problems, f"{len(problems)} words that CONTRIBUTING.md replaces"]))
    print(f"{read} lines speak the field's language")


if __name__ == "__main__":
    main()
