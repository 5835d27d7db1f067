#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what README.md shows the output of, and compares.

    readme_output.py README.md FOLDER...      (of the programs)

A fenced block without a language is output. Its commands stand in it, after "$ ", or before it in a comment, which is
not to be seen where the page is read:

    <!-- prints: adamant verify -->

Before an inline piece of code, in one line with it, that means the piece. What is shown must be printed, in this order
and with nothing between; a line "..." stands for any lines. More may be said, in this order:

    <!-- prints, on 2 cores, exit status 1, with --rounds 6: adamant tune | REGEX | REGEX -->

"on N cores": it is left out where there are fewer; "exit status N": besides 0; "with OPTIONS": beside those that are
shown, to have it done sooner. What a REGEX matches is this machine's and not compared, neither here nor there; a line
of which nothing is left stands for any lines.
"""
import os
import re
import shlex
import subprocess
import sys
import textwrap

MARKER = re.compile(r"<!-- prints(?:, on (?P<cores>\d+) cores)?(?:, exit status (?P<status>\d+))?"
                    r"(?:, with (?P<options>[^:|]*?))?(?:: (?P<command>[^|]*?))?(?P<masks>(?: \| .*?)*) -->")


def fail(where, why):
    sys.exit(f"README.md, line {where}: {why}")


def pieces(lines):
    """(line number, marker or None, shown lines) of each piece of output."""
    fence, marker, begin = None, None, 0
    for number, line in enumerate(lines, 1):
        if fence is not None:
            if line == "```":
                if fence == "":
                    yield begin, marker, lines[begin:number - 1]
                elif marker:
                    fail(begin, "only a block without a language is output")
                fence, marker = None, None
        elif line.startswith("```"):
            fence, begin = line[3:], number
        elif found := MARKER.search(line):
            if marker:
                fail(number, "a comment before this one has nothing that it is about")
            inline = re.match(r"`([^`]+)`", line[found.end():])
            if inline:
                yield number, found, [inline[1]]
            else:
                marker = found
        elif "<!-- prints" in line:
            fail(number, "this comment is not understood; tests/readme/readme_output.py says how it is written")
        elif marker and line:
            fail(number, "after the comment no block follows")
    if marker:
        fail(len(lines), "after the last comment no block follows")


def commands(where, marker, shown):
    """(command, lines of its output), of one piece."""
    if marker and marker["command"]:
        return [(marker["command"], shown)]
    if not shown or not shown[0].startswith("$ "):
        fail(where, "output of what? Put <!-- prints: COMMAND --> before the block, or begin it with a line \"$ COMMAND\"")
    found = []
    for line in shown:
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def program(where, name, folders):
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    fail(where, f"there is no program {name} in {' '.join(folders)}")


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


def compare(where, marker, command, shown, folders):
    while shown and not shown[-1]:
        shown = shown[:-1]
    words = shlex.split(command)
    words[0] = program(where, words[0], folders)
    words += shlex.split(marker["options"] or "") if marker else []
    masks = [mask for mask in (marker["masks"].split(" | ")[1:] if marker else [])]
    ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    good = ran.returncode in (0, int((marker and marker["status"]) or 0))
    if good and matches(shown, ran.stdout.splitlines(), masks):
        print(f"line {where}: {command}: as shown")
        return True
    print(f"README.md, line {where}: {command}: " + ("prints something else" if good else f"exit status {ran.returncode}"))
    print("--- shown", *shown, "--- printed", ran.stdout + ran.stderr, sep="\n")
    return False


def main():
    if len(sys.argv) < 3:
        sys.exit(textwrap.dedent(__doc__))
    with open(sys.argv[1]) as file:
        lines = file.read().splitlines()
    cores, count, wrong = len(os.sched_getaffinity(0)), 0, 0
    for where, marker, shown in pieces(lines):
        for command, output in commands(where, marker, shown):
            if marker and int(marker["cores"] or 0) > cores:
                print(f"line {where}: {command}: left out, for want of {marker['cores']} cores")
            else:
                wrong += not compare(where, marker, command, output, sys.argv[2:])
            count += 1
    if wrong or count == 0:
        sys.exit(f"of {count} outputs in README.md {wrong} are others")


main()
