#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs and commands that the documentation shows, and compares what they print with what it shows.

    outputs.py SCRATCH LIBADAMANT_C FOLDER...      the folders have the programs

pages.py says which blocks are run. A block without a language is output: of the program or sh block before it, or of
commands. These stand in it after "$ ", or in a comment in the line before:

    <!-- prints: adamant verify -->

Such a comment in one line with an inline piece of code, before it, means that piece. What is shown must be printed, in
this order and with nothing between; a line "..." stands for any lines. A comment may say more, in this order:

    <!-- prints, on 2 cores, exit status 1, with --rounds 6: adamant tune | REGEX | REGEX -->

"on N cores": left out where there are fewer; "exit status N": allowed besides 0; "with OPTIONS": added to the command
that is shown, so that it takes less time. What a REGEX matches depends on the machine, and is removed from both before
they are compared; a line of which nothing is left stands for any lines.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

from pages import PAGES, ROOT, blocks_of, prose_of

MARKER = re.compile(r"prints(?:, on (?P<cores>\d+) cores)?(?:, exit status (?P<status>\d+))?"
                    r"(?:, with (?P<options>[^:|]*?))?(?:: (?P<command>[^|]*?))?(?P<masks>(?: \| .*?)*)")
INLINE = re.compile(r"<!-- (prints[^>]*?) -->`([^`]+)`")


class Run:
    """One command, with what it is to print."""

    def __init__(self, place, words, shown, marker=None, script=None):
        self.place, self.words, self.shown, self.script = place, words, list(shown), script
        self.cores = int(marker["cores"] or 0) if marker else 0
        self.status = int(marker["status"] or 0) if marker else 0
        self.masks = marker["masks"].split(" | ")[1:] if marker else []
        if marker:
            self.words += shlex.split(marker["options"] or "")


def fail(place, why):
    sys.exit(f"{place}: {why}")


def marker_of(place, comment):
    if comment is None or not comment.startswith("prints"):
        return None
    return MARKER.fullmatch(comment) or fail(place, f"<!-- {comment} --> is not understood; see tests/docs/outputs.py")


def runs_of(page):
    """What a page has run, in order."""
    runs, program = [], None
    for block in blocks_of(page):
        if block.is_program:
            words = [block.example or block.name]
            if block.language == "python":
                words = ["python3", "-c", block.text]
            program = Run(block.place, words, [])
            runs.append(program)
        elif block.language == "sh":
            program = Run(block.place, None, [], script=block.text) if block.comment == "runs" else None
            runs += [program] if program else []
        elif block.language == "":
            marker = marker_of(block.place, block.comment)
            if marker and marker["command"]:
                runs.append(Run(block.place, shlex.split(marker["command"]), block.lines, marker))
            elif block.lines and block.lines[0].startswith("$ "):
                for line in block.lines:
                    if line.startswith("$ "):
                        runs.append(Run(block.place, shlex.split(line[2:]), [], marker))
                    else:
                        runs[-1].shown.append(line)
            elif program:
                runs.remove(program)
                runs.append(Run(block.place, program.words, block.lines, marker, program.script))
            else:
                fail(block.place, "output of what? Put <!-- prints: COMMAND --> before the block, or begin it with "
                                  "a line \"$ COMMAND\"")
            program = None
        elif block.language != "json":
            program = None
    for number, line in prose_of(page):
        for found in INLINE.finditer(line):
            place = f"{page.relative_to(ROOT)}, line {number}"
            marker = marker_of(place, found[1])
            runs.append(Run(place, shlex.split(marker["command"]), [found[2]], marker))
    return runs


def masked(lines, masks):
    for mask in masks:
        lines = [re.sub(mask, "", line) for line in lines]
    return [line.rstrip() for line in lines]


def matches(shown, printed, masks):
    pattern = "(?:^|\n)"
    for before, line in zip(shown, masked(shown, masks)):
        anything = before == "..." or (before.strip() and not line.strip())
        pattern += r"(?:.*\n)*" if anything else re.escape(line) + r"\n"
    return re.search(pattern, "\n".join(masked(printed, masks)) + "\n")


def execute(run, scratch, environment):
    """Whether it printed what is shown, and said so."""
    while run.shown and not run.shown[-1]:
        run.shown.pop()
    words = ["bash", "-euo", "pipefail", "-c", run.script] if run.script else run.words
    what = run.script.strip() if run.script else " ".join(words) if words[0] != "python3" else "python3"
    try:
        ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=scratch,
                             env=environment)
    except FileNotFoundError:
        fail(run.place, f"there is no program {words[0]}")
    good = ran.returncode in (0, run.status)
    if good and matches(run.shown, ran.stdout.splitlines(), run.masks):
        print(f"{run.place}: {what}: {'as shown' if run.shown else 'runs'}", flush=True)
        return True
    print(f"{run.place}: {what}: " + ("prints something else" if good else f"exit status {ran.returncode}"))
    print("--- shown", *run.shown, "--- printed", ran.stdout + ran.stderr, sep="\n", flush=True)
    return False


def main():
    if len(sys.argv) < 4:
        sys.exit(textwrap.dedent(__doc__))
    scratch = pathlib.Path(sys.argv[1])
    scratch.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, PATH=os.pathsep.join([*sys.argv[3:], os.environ["PATH"]]),
                       ADAMANT_C_LIBRARY=sys.argv[2])
    cores, wrong = len(os.sched_getaffinity(0)), 0
    runs = [run for page in PAGES for run in runs_of(page)]
    for run in runs:
        if run.cores > cores:
            print(f"{run.place}: {' '.join(run.words)}: left out, as it needs {run.cores} cores")
        else:
            wrong += not execute(run, scratch, environment)
    if wrong or not runs:
        sys.exit(f"of {len(runs)} programs and commands {wrong} failed or printed something else")


if __name__ == "__main__":
    main()
