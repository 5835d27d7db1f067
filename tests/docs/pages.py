# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation as blocks of code and output, with the comments that say how each one is checked.

Every fenced block needs a check. Its language, and a comment in the line before it, say which:

    cpp, c     a whole program (it has a main) is compiled and run
               <!-- example: NAME -->           it is examples/NAME.cpp, as it is
    cpp        <!-- compiles: with NAME -->     a fragment, put into contexts/NAME.cpp, compiled and run
    python     a whole program, which is run
    cmake      a whole CMakeLists.txt, which is configured and built by tests/all
    sh         <!-- runs -->                    is run
               <!-- runs, in tests/all -->      is run there
               <!-- train -->, <!-- tests -->   README.md's two commands; .ci/run runs the second word for word
               <!-- not run: REASON -->         the presets, options and files that it names are looked up
    json       <!-- file: NAME -->              is written to the folder that everything else runs in
    any        <!-- lines of: FILE -->          each line is one of that file, in the same order
    none       output, see outputs.py

A fragment may begin with #include lines; they go to the top of the file that it is compiled in.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTEXTS = pathlib.Path(__file__).resolve().parent / "contexts"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
MAIN = re.compile(r"^int main\(", re.MULTILINE)


class Block:
    def __init__(self, page, line, language, comment, number):
        self.page, self.line, self.language, self.comment, self.number = page, line, language, comment, number
        self.lines = []

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}, line {self.line}"

    @property
    def context(self):
        """The name of a fragment's context, or None."""
        if self.language != "cpp" or not (self.comment or "").startswith("compiles: with "):
            return None
        return self.comment.removeprefix("compiles: with ")

    @property
    def is_program(self):
        if self.context or (self.comment or "").startswith("lines of: "):
            return False
        return self.language == "python" or (self.language in ("c", "cpp") and bool(MAIN.search(self.text)))

    @property
    def example(self):
        """The name of the example that this program is said to be, or None."""
        comment = self.comment or ""
        return comment.removeprefix("example: ") if comment.startswith("example: ") else None

    @property
    def name(self):
        """Of the program or function that is made of it: the page, and its number among the page's blocks."""
        folder = "benchmarks_" if self.page.parent.name == "benchmarks" else ""
        return f"docs_{folder}{self.page.stem.lower()}_{self.number}"


def blocks_of(page):
    """All fenced blocks of a page, in order."""
    found, block, comment = [], None, None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if block is not None:
            if line == "```":
                found.append(block)
                block = None
            else:
                block.lines.append(line)
        elif line.startswith("```"):
            block = Block(page, number, line[3:], comment, len(found) + 1)
            comment = None
        else:
            only = re.fullmatch(r"<!-- (.*) -->", line)
            comment = only[1] if only else None
    if block is not None:
        raise SystemExit(f"{block.place}: this block does not end")
    return found


def all_blocks():
    return [block for page in PAGES for block in blocks_of(page)]


def prose_of(page):
    """(line number, text) of the lines outside of blocks."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line
