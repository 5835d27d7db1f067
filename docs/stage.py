# SPDX-License-Identifier: Apache-2.0
"""Stages the sources of the documentation site: pages, the reference that Doxygen made, and every file that pages link to.

Pages link to files of the repository, so that links work where it is browsed. In the site, links to public headers lead to
their page in the reference, and links to other files to a copy."""
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build/site-source"
PAGES = {ROOT / "README.md": "index.md", ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "CHANGELOG.md": "changelog.md",
         ROOT / "benchmarks/README.md": "benchmarks.md",
         **{page: page.name for page in (ROOT / "docs").glob("*.md")}}
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(\))")


def target_in_site(page, link):
    if re.match(r"[a-z]+:", link) or link.startswith("#"):
        return link
    path, hash_sign, anchor = link.partition("#")
    target = (page.parent / path).resolve()
    if not target.exists():
        sys.exit(f"{page.relative_to(ROOT)}: cannot link to {path}: it does not exist")
    if target in PAGES:
        return PAGES[target] + hash_sign + anchor
    inside = target.relative_to(ROOT)
    if target.parent == ROOT / "include/adamant" and target.is_file():
        reference = f"api/{target.name.replace('_', '__').replace('.', '_8')}.html"
        if (STAGE / reference).exists():
            return reference
    if target.is_dir():
        inside = inside / "README.md" if (target / "README.md").exists() else None
        if inside is None:
            return "index.md"
    copy = STAGE / "files" / f"{inside}{'.txt' if inside.suffix not in ('.svg', '.png') else ''}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / inside, copy)
    return copy.relative_to(STAGE).as_posix()


def main():
    reference = ROOT / "build/doxygen/html"
    if not reference.is_dir():
        sys.exit(f"cannot stage the site: {reference} does not exist. Run docs/build, which runs Doxygen.")
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(reference, STAGE / "api")
    for page, name in PAGES.items():
        text = LINK.sub(lambda found: found[1] + target_in_site(page, found[2]) + found[3], page.read_text())
        (STAGE / name).write_text(text)


if __name__ == "__main__":
    main()
