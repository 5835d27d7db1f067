# SPDX-License-Identifier: Apache-2.0
"""What a script has measured goes into a page, in place of what was there."""


def put(path, begin, end, text):
    """Replaces what stands between the lines `begin` and `end` of the file. RuntimeError: there are no such two."""
    whole = path.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise RuntimeError(f"{path} has no line {begin} and {end} to put the results between")
    before, rest = whole.split(begin)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")
