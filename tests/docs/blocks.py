#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that every block of the documentation has a check, and does the checks that run nothing: see pages.py.

    blocks.py FOLDER...      the folders have the programs
"""
import json
import os
import re
import shlex
import subprocess
import sys

from pages import CONTEXTS, PAGES, ROOT, all_blocks, prose_of

problems = []


def problem(place, text):
    problems.append(f"{place}: {text}")


def presets(kind):
    return {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())[kind]}


def help_of(program, folders, subcommand):
    for folder in folders:
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK):
            return subprocess.run([path, *subcommand, "--help"], stdout=subprocess.PIPE, text=True).stdout
    return None


def check_command(place, words, folders):
    """A command that is not run: what it names has to be there."""
    program = words[0]
    if program in ("cmake", "ctest"):
        kind = {"--preset": "testPresets" if program == "ctest" else "configurePresets"}
        if "--build" in words:
            kind = {"--preset": "buildPresets"}
        for option, value in zip(words, words[1:]):
            if option in kind and value not in presets(kind[option]):
                problem(place, f"there is no preset '{value}' for {program}")
        return
    if program == "mpiexec": # and its options; what it starts may not be built, so its source says what it knows
        started = next((at for at, word in enumerate(words) if re.match(r"build/release/(?:examples|tools)/\w+$", word)), None)
        source = started and ROOT / f"tools/train_text/{words[started].rpartition('/')[2]}.cpp"
        if not source or not source.is_file():
            problem(place, "mpiexec starts no example")
            return
        for argument in words[started + 1:]:
            if argument.startswith("--") and f"\n  {argument} " not in source.read_text():
                problem(place, f"{source.name} does not know {argument}")
        return
    arguments = [word for word in words[1:] if word.startswith("--")]
    built = re.match(r"build/(?:release|test|benchmark)/(?:examples|tools)/(\w+)$", program)
    if built or program == "adamant":
        name = built[1] if built else program
        text = help_of(name, folders, words[1:2] if name == "adamant" and words[1:] else [])
        if text is None:
            problem(place, f"there is no program {name}")
        for argument in arguments:
            if text and not re.search(rf"{re.escape(argument.split('=')[0])}\b", text):
                problem(place, f"{name} does not know {argument}")
    elif program == "build/benchmark/benchmarks/adamant_benchmark":
        source = "".join(file.read_text() for file in (ROOT / "benchmarks").glob("*.cpp"))
        for argument in arguments:
            name = argument.split("=")[0]
            if not name.startswith("--benchmark_") and name not in source:
                problem(place, f"the benchmarks do not know {name}")
    else:
        if program == "export": # as the test of what is installed sets it
            for name in (word.split("=")[0] for word in words[1:]):
                if f"{name}=" not in (ROOT / "tests/docs/installed.py").read_text():
                    problem(place, f"tests/docs/installed.py does not set {name}")
            return
        package = next((word for word in words if word == "." or word.startswith("./")), None) # that pip builds
        if program.rpartition("/")[2] == "pip" and package:
            if not (ROOT / package / "pyproject.toml").is_file():
                problem(place, f"there is no package {package}")
            return
        words = words[2:] if words[1:2] == ["-m"] else words # as python -m pytest does
        script = next((word for word in words if re.match(r"(benchmarks|tests|examples|python|docs)/[\w./]+$", word)), None)
        if script is None:
            if program not in ("sudo", "apt-get", "python3", ".", "pip", "build/peers/bin/pip", "cp", "$(command"):
                problem(place, f"nothing is known of the command '{program}'; see tests/docs/blocks.py")
            return
        if not (ROOT / script).is_file():
            problem(place, f"there is no file {script}")
            return
        text = (ROOT / script).read_text()
        for argument in words[words.index(script) + 1:]:
            if argument == "--":
                break
            if argument.startswith("--") and argument.split("=")[0] not in text:
                problem(place, f"{script} does not know {argument}")


def check_commands(block, folders):
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        for part in line.split("&&"):
            if words := shlex.split(part, comments=True):
                check_command(block.place, words, folders)


def check_lines(block, name):
    path = ROOT / name
    if not path.is_file():
        problem(block.place, f"there is no file {name}")
        return
    lines = [line.strip() for line in path.read_text().splitlines()]
    at = 0
    for line in filter(None, map(str.strip, block.lines)):
        if line not in lines[at:]:
            problem(block.place, f"'{line}' is no line of {name}, or not in this order")
        else:
            at = lines.index(line, at) + 1


def check(block, folders):
    """Whether the block has a check; those that run nothing are done."""
    comment = block.comment or ""
    if comment.startswith("lines of: "):
        check_lines(block, comment.removeprefix("lines of: "))
    elif block.example is not None:
        path = ROOT / f"examples/{block.example}.{block.language}"
        if not path.is_file() or path.read_text() != block.text:
            problem(block.place, f"this is not {path.relative_to(ROOT)} as it is")
    elif block.language in ("cpp", "c"):
        return block.is_program or block.context is not None
    elif block.language == "python":
        pass # a whole program, which outputs.py runs
    elif block.language == "cmake":
        return "project(" in block.text
    elif block.language == "sh":
        if comment in ("train", "tests") or comment.startswith("not run: "):
            check_commands(block, folders)
        else:
            return comment in ("runs", "runs, in tests/all")
    elif block.language == "json":
        json.loads(block.text)
        return comment.startswith("file: ")
    else:
        return block.language == ""
    return True


def main():
    blocks = all_blocks()
    for block in blocks:
        if not check(block, sys.argv[1:]):
            problem(block.place, f"nothing checks this block of '{block.language}' (<!-- {block.comment} -->); "
                                 "see tests/docs/pages.py")
    # A comment that no block follows checks nothing.
    used = {(block.page, block.comment) for block in blocks if block.comment}
    kinds = ("compiles:", "example:", "runs", "lines of:", "not run:", "file:", "prints")
    for page in PAGES:
        for number, line in prose_of(page):
            only = re.fullmatch(r"<!-- (.*) -->", line)
            if only and only[1].startswith(kinds) and (page, only[1]) not in used:
                problem(f"{page.relative_to(ROOT)}, line {number}", "after this comment no block follows")
            if re.match(r"( {4}|\t)\S", line):
                problem(f"{page.relative_to(ROOT)}, line {number}", "code that is indented is not checked; put it in a "
                                                                    "fence")
    contexts = {block.context for block in blocks}
    for file in CONTEXTS.glob("*.cpp"):
        if file.stem not in contexts:
            problem(file.relative_to(ROOT), "no block is compiled with this context")
    if len(blocks) < 20:
        problem("pages", f"only {len(blocks)} blocks were found: this test looks in the wrong place")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(blocks)} blocks on {len(PAGES)} pages have a check")


if __name__ == "__main__":
    main()
