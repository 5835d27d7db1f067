#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes what. Each room of include/adamant/detail/ includes only the rooms that the table in CONTRIBUTING.md
allows, and the public headers of those rooms. Programs of users (examples, tools, docs) include no header of detail/."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include/adamant"
INCLUDE = re.compile(r"^ *# *include <adamant/([^>]+)>", re.MULTILINE)
# Tools may include a header of detail/ that has no place in the public interface.
EXCEPTIONS = {"tools/adamant/output_file.hpp": {"detail/io/durable_file.hpp"}}  # replaces a file as a checkpoint does


def read_table():
    """{room: (rooms that it may include, its public headers)} from CONTRIBUTING.md."""
    rooms = {}
    for row in re.findall(r"^\| `(\w+)/` \|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE):
        cells = [re.findall(r"`([\w.]+)`", cell) for cell in row[1].split("|")]
        rooms[row[0]] = (set(cells[1]), set(cells[2]))
    return rooms


def main():
    rooms = read_table()
    owner = {header: room for room, (_, headers) in rooms.items() for header in headers}
    problems = [f"CONTRIBUTING.md has no room for the public header {path.name}" for path in HEADERS.iterdir()
                if path.is_file() and path.name not in owner and path.name not in ("adamant.hpp", "adamant.h", "src.hpp")]
    problems += [f"CONTRIBUTING.md names {header}, which does not exist" for header in owner if not (HEADERS / header).exists()]

    # A tree has no cycle: whatever a room reaches, it is not reached from there.
    def reach(room, seen):
        for other in rooms[room][0] - seen:
            seen.add(other)
            reach(other, seen)
        return seen
    problems += [f"the rooms {room} and {other} include each other" for room in rooms for other in reach(room, set())
                 if room in reach(other, set())]

    checked = 0
    for path in sorted(HEADERS.rglob("*.*")):
        name = path.relative_to(HEADERS).as_posix()
        room = path.parent.name if name.startswith("detail/") else owner.get(name)
        if room is None:
            continue  # the umbrella
        if room not in rooms:
            problems.append(f"{name}: CONTRIBUTING.md has no room '{room}'")
            continue
        for other in INCLUDE.findall(path.read_text()):
            checked += 1
            other_room = other.split("/")[1] if other.startswith("detail/") else owner.get(other, "c" if other == "adamant.h" else "src")
            if other_room != room and other_room not in rooms[room][0]:
                problems.append(f"{name} may not include {other}: '{room}' may not include '{other_room}'")
    users = [path for folder in ("examples", "tools", "docs", "python/src") for path in sorted((ROOT / folder).rglob("*.*"))]
    for path in [ROOT / "README.md", *users]:
        if path.suffix in (".hpp", ".cpp", ".h", ".c", ".cu", ".md", ".py"):
            name = path.relative_to(ROOT).as_posix()
            problems += [f"{name} may not include {other}, which is internal" for other in INCLUDE.findall(path.read_text())
                         if other.startswith("detail/") and other not in EXCEPTIONS.get(name, ())]
    if checked < 100:
        problems.append(f"found only {checked} includes: this test looks in the wrong place")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{checked} includes follow the table")


if __name__ == "__main__":
    main()
