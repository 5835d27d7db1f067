#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that what the documentation refers to is there: files and headings that it links to, files and functions that it
names in code. Links to other sites are not looked at."""
import re
import sys

from pages import PAGES, ROOT, prose_of

LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:hpp|ipp|inl|cuh|cu|h|cpp|c|py|cmake|md|svg|inc)$")
CALL = re.compile(r"(?:[\w]+(?:::|\.))*(\w+)\(\)")
FOLDERS = ["", "include/adamant", "include", "include/adamant/detail", "include/adamant/detail/kernels", "examples", "tools/adamant", "tools/train_text", "tools/hybrid", "tests", "tests/docs", "benchmarks", "cmake"]


def anchors_of(page):
    """As GitHub makes them of headings."""
    found = {}
    for _, line in prose_of(page):
        if heading := re.match(r"#+ +(.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = found.setdefault(anchor, 0)
            found[anchor] += 1
            if count:
                found[f"{anchor}-{count}"] = 1
    return set(found)


def main():
    problems, links, names = [], 0, 0
    sources = "".join(file.read_text() for folder in ("include", "examples", "tools", "python", "benchmarks", "tests/support")
                      for file in sorted((ROOT / folder).rglob("*")) if file.suffix in
                      (".hpp", ".ipp", ".inl", ".cuh", ".h", ".cpp", ".c", ".py", ".cmake"))
    words = set(re.findall(r"\w+", sources)) | {"main"}
    for page in PAGES:
        lines = dict(prose_of(page))
        text = "\n".join(lines.get(number, "") for number in range(1, max(lines) + 1))
        place = lambda found: f"{page.relative_to(ROOT)}, line {text.count(chr(10), 0, found.start(1)) + 1}"
        for found in LINK.finditer(text):
            if re.match(r"[a-z]+:", found[1]):
                continue
            links += 1
            path, _, anchor = found[1].partition("#")
            to = (page.parent / path).resolve() if path else page
            if not to.exists():
                problems.append(f"{place(found)}: there is no {path}")
            elif anchor and (to.suffix != ".md" or anchor not in anchors_of(to)):
                problems.append(f"{place(found)}: {to.relative_to(ROOT)} has no heading for #{anchor}")
        for found in CODE.finditer(text):
            if FILE.match(found[1]) and not found[1].startswith("X."): # X.hpp stands for any header
                names += 1
                if not any((ROOT / folder / found[1]).exists() for folder in FOLDERS):
                    problems.append(f"{place(found)}: there is no file {found[1]}")
            for call in CALL.findall(found[1]):
                names += 1
                if call not in words:
                    problems.append(f"{place(found)}: no source has {call}()")
    # The path of a gradient: each function is defined in the file that its row names.
    walk = [line for _, line in prose_of(ROOT / "docs/design.md") if re.match(r"\| `[a-z/_.]+` \| `", line)]
    for row in walk:
        file, functions = (cell.strip() for cell in row.split("|")[1:3])
        source = (ROOT / "include/adamant" / file.strip("`")).read_text()
        for name in CALL.findall(functions):
            if not re.search(rf"^(?!.*return)[^=]*\b{name}\(", source, re.MULTILINE):
                problems.append(f"docs/design.md: {file} has no {name}()")
    # It reaches a kernel through at most six files.
    files = [row.split("|")[1].strip(" `") for row in walk]
    to_kernel = list(dict.fromkeys(files[:next(i for i, file in enumerate(files) if "/kernels/" in file)]))
    if len(to_kernel) > 6:
        problems.append(f"docs/design.md: a gradient goes through {len(to_kernel)} files: {', '.join(to_kernel)}")
    if len(walk) < 15:
        problems.append(f"only {len(walk)} rows of a gradient's path were found: this test looks in the wrong place")
    # The page on C has every function.
    page = (ROOT / "docs/languages.md").read_text()
    declared = {name for file in [ROOT / "include/adamant/adamant.h"]
                for name in re.findall(r"ADAMANT_C_API [^;(]*?\b(adamant_\w+)\(", file.read_text())}
    for name in sorted(declared):
        if not name.endswith("_init") and f"`{name}()`" not in page:
            problems.append(f"docs/languages.md does not name {name}()")
    if len(declared) < 50:
        problems.append(f"only {len(declared)} functions of C were found: this test looks in the wrong place")
    if links < 20 or names < 20:
        problems.append(f"only {links} links and {names} names were found: this test looks in the wrong place")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{links} links and {names} names of files and functions lead somewhere")


if __name__ == "__main__":
    main()
