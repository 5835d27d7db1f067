# SPDX-License-Identifier: Apache-2.0
"""Arguments, results and errors of the benchmarks' scripts. The types of arguments refuse a wrong path before anything
is measured."""
import argparse
import contextlib
import json
import pathlib
import sys
import tempfile


def fail(text):
    """Ends the script with status 2 and a message."""
    print(f"{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(2)


def reason(error):
    return getattr(error, "strerror", None) or str(error)


# -------------------------------------------------------------------------------------------------- types of arguments


def positive(text):
    """A number of rounds, threads or processes."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"value is {text}, but must be a whole number above 0")
    return int(text)


def writable(text):
    """A file that is written later."""
    path = pathlib.Path(text)
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {path}: {reason(error)}. Choose another file.") from error
    return path


def folder(text):
    """A folder to write to, which is made."""
    path = pathlib.Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to folder {path}: {reason(error)}. Choose another.") from error
    return path


def page(begin, end):
    """A page for put(), with these two lines."""
    def checked(text):
        try:
            around(pathlib.Path(text), begin, end)
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"cannot edit {text}: {reason(error)}. Choose another file.") from error
        return writable(text)
    return checked


# ------------------------------------------------------------------------------------------------------------- results


def around(path, begin, end):
    """The text before the line `begin` and after the line `end`."""
    before, *rest = path.read_text().split(begin)
    _, *after = "".join(rest).split(end)
    if len(rest) != 1 or len(after) != 1:
        raise ValueError(f"it must contain the line {begin} once and then the line {end} once")
    return before, after[0]


def replace(path, text):
    """Replaces a file by this text. If it cannot be written, the old file stays and OSError is raised."""
    if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout, a pipe or a terminal
        path.write_text(text)
        return
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def put(path, begin, end, text):
    """Replaces the text between two lines of a page, or prints it if that fails now."""
    try:
        before, after = around(path, begin, end)
        replace(path, f"{before}{begin}\n\n{text}\n{end}{after}")
    except (OSError, ValueError) as error:
        print(text)
        fail(f"cannot write the results above into {path}: {reason(error)}.")


def read(path, writer, use):
    """Returns use(content) of a JSON file that `writer` has written. Ends the script if use() fails."""
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {reason(error)}. Give a file of {writer}.")
    try:
        return use(json.loads(text))
    except (argparse.ArgumentTypeError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
            ValueError) as error:
        fail(f"cannot use {path}: it is not a file of {writer} ({error!r}). Choose another file.")
