# SPDX-License-Identifier: Apache-2.0
"""Scripts refuse wrong arguments and files with a message, not a traceback, before they measure or train."""
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from processes import run, run_script

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
TABLES, PEERS, ENGINES = "benchmarks/tables.py", "benchmarks/peers.py", "benchmarks/engines.py"
COMPILE_TIME, MODEL, ARM = "benchmarks/compile_time.py", "benchmarks/hand_over_model.py", "benchmarks/arm_model.py"
RUN, ZENFLOW, PICTURES = (f"benchmarks/training/{name}.py" for name in ("run", "zenflow", "pictures"))
CHANGED, APPLY = "benchmarks/training/changed_weights.py", "examples/apply_delta.py"
FILES = {
    "text": "no JSON", "list.json": "[]", "other.json": '{"x": 1}', "none.json": '{"runs": {}}',
    "key.json": '{"runs": {"x": {"curve": [], "loss": 1}}}',
    "strange.json": '{"runs": {"text/float32/0": {"y": 1}, "text/torch/0": {"y": 1}}}',
    "lone.json": '{"runs": {"text/float32/0": {"curve": [[0, 1], [9, 2]], "loss": 1}}}',
    "reversed.md": "<!-- end of tables -->\n<!-- tables -->\n",
    "page.md": "<!-- tables -->\n<!-- end of tables -->\n",
}
# Runs a script once for each of its other arguments. Prints [exit status, output] of each as JSON.
RUNS = """
import contextlib, json, os, runpy, sys, tempfile, traceback
script, *lines = sys.argv[1:]
sys.path.insert(0, os.path.dirname(script))
ends = []
for line in lines:
    sys.argv, status = [script, *line.split()], 0
    with tempfile.TemporaryFile("w+") as file:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as end:
                status = end.code
            except BaseException:
                traceback.print_exc()
        file.seek(0)
        ends.append([status, file.read()])
print(json.dumps(ends))
"""
# A script, its arguments, and a part of its message. {f} is a folder with these files.
REFUSED = [
    (TABLES, "{f}/missing", "cannot run"),
    (TABLES, "{f}/text", "cannot run"),
    (TABLES, "/bin/false", "cannot read"),
    (TABLES, "/bin/false --save {f}/missing/rows.json", "cannot write"),
    (TABLES, "/bin/false --save {f}", "cannot write"),
    *((TABLES, f"--from {{f}}/{name}", "cannot use") for name in ("text", "list.json", "other.json")),
    (TABLES, "--from {f}/missing", "cannot read"),
    (TABLES, "--from {f}", "cannot read"),
    *((TABLES, f"/bin/false --into {{f}}/{name}", "cannot edit") for name in ("", "missing", "text", "reversed.md")),
    (MODEL, "--into {f}/missing", "cannot edit"),
    (MODEL, "--into {f}", "cannot edit"),
    (MODEL, "--into {f}/page.md", "must contain the line <!-- hand-over model -->"),
    (ARM, "--into {f}/page.md", "must contain the line <!-- arm model -->"),
    (COMPILE_TIME, "--rounds 0", "must be a whole number above 0"),
    (COMPILE_TIME, "--compiler {f}/missing", "cannot run"),
    (COMPILE_TIME, "--compiler /bin/true", "cannot compile"),
    *((PEERS, f"--from-json {{f}}/{name}", "cannot use") for name in ("text", "list.json", "other.json")),
    (PEERS, "--from-json {f}/missing", "cannot read"),
    (PEERS, "--json {f}/missing/rows.json", "cannot write"),
    (PEERS, "--plot {f}/picture.bmp", "cannot draw"),
    (PEERS, "--threads 1,none", "must be a whole number above 0"),
    (PEERS, "--rounds 0", "must be a whole number above 0"),
    (PEERS, "--rest-ms -1", "must be at least 0"),
    (PEERS, "--library {f}/text", "cannot load"),
    (ENGINES, "--library {f}/text", "cannot load"),
    (ENGINES, "--library {f}/missing", "cannot load"),
    (ENGINES, "--json {f}", "cannot write"),
    (ENGINES, "--rounds 0", "must be a whole number above 0"),
    *((PICTURES, f"{{f}}/{name}", "cannot use") for name in
      ("text", "list.json", "other.json", "key.json", "strange.json")),
    (PICTURES, "{f}/missing", "cannot read"),
    (PICTURES, "{f}/none.json", "cannot draw"),
    (PICTURES, "{f}/lone.json", "cannot draw"),
    (PICTURES, "{f}/none.json --into {f}/text", "cannot write to folder"),
    *((RUN, f"--cache {{f}} --out {{f}}/{name}", "cannot use") for name in
      ("text", "list.json", "other.json", "key.json", "strange.json")),
    (RUN, "--cache {f} --out {f}", "cannot write"),
    (RUN, "--cache {f}/text --out {f}/new.json", "cannot write to folder"),
    *((RUN, f"--cache {{f}} --out {{f}}/new.json --format {name}", f"cannot train with {name}") for name in
      ("nosuch", "adamant:nosuch", "adamant:float32:nosuch", "adamant:float32:int8")),
    (RUN, "--cache {f} --out {f}/new.json --format torch", "cannot get texts"),
    *((ZENFLOW, f"--cache {{f}} --out {{f}}/{name}", "cannot use") for name in
      ("text", "list.json", "other.json", "key.json", "strange.json")),
    (ZENFLOW, "--cache {f} --out {f}", "cannot write"),
    *((ZENFLOW, f"--cache {{f}} --out {{f}}/new.json --variant {name}", f"cannot train {name}") for name in
      ("nosuch", "exact:x", "adamant:7")),
    (ZENFLOW, "--cache {f} --out {f}/new.json --picture {f}/new.svg --variant", "cannot draw"),
    (ZENFLOW, "--cache {f} --out {f}/new.json --picture {f}/new.svg --variant adamw", "cannot draw"),
    (CHANGED, "--rounds 0", "must be a whole number above 0"),
    (APPLY, "", "cannot run"),
    (APPLY, "{f}/missing {f}/missing", "cannot run"),
    (APPLY, "{f}/text {f}/text", "cannot run"),
    ("examples/ctypes_loop.py", "{f}/missing", "cannot load"),
    ("examples/ctypes_loop.py", "libc.so.6", "cannot load"),
    ("examples/send_changed_weights.py", "--folder {f}/text", "cannot make the folder"),
    ("python/tests/deepspeed_train.py", "2", "cannot import deepspeed"),
    ("python/tests/deepspeed_superoffload.py", "", "cannot import deepspeed"),
    ("python/tests/megatron_checkpoint.py", "{f}", "cannot import megatron.core"),
]


@pytest.mark.parametrize("name", list(dict.fromkeys(name for name, _, _ in REFUSED)))
def test_wrong_arguments_get_a_message(name, tmp_path):
    script, rows = ROOT / name, [row[1:] for row in REFUSED if row[0] == name]
    if not script.exists():
        pytest.skip(f"{name} is not here")
    needed = re.match(r"cannot import (\w+)", rows[0][1])
    if needed and importlib.util.find_spec(needed[1]):
        pytest.skip(f"{needed[1]} is installed")
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    environment = {"RANK": "0", "LOSSES": str(tmp_path / "losses"), "PATH": ""}  # finds no apt-get
    done = run(RUNS, script, *(arguments.format(f=tmp_path) for arguments, _ in rows), **environment)
    assert done.returncode == 0, done.stderr
    for (arguments, message), (status, output) in zip(rows, json.loads(done.stdout)):
        output += status if isinstance(status, str) else ""
        assert status and message in output and "Traceback" not in output, f"{name} {arguments}: {status}, {output}"
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == FILES


def test_the_site_needs_doxygen(tmp_path):
    source = ROOT / "docs" / "stage.py"
    if not source.exists():
        pytest.skip("the documentation is not here")
    (tmp_path / "docs").mkdir()
    shutil.copy(source, tmp_path / "docs")
    done = run_script(tmp_path / "docs" / "stage.py")
    assert done.returncode == 1 and done.stderr.startswith("cannot stage the site: "), done.stderr


def test_a_page_that_loses_its_lines_does_not_lose_results(tmp_path):
    if not (ROOT / TABLES).exists():
        pytest.skip("the benchmarks are not here")
    texts = ("date", "cpu", "num_cpus", "adamant_threads", "adamant_isa", "limit_vector_bytes", "system", "compiler")
    context = {"caches": [], "memory": "1 kB", "bytes_out_of_cache": "1", "rounds": "1", **dict.fromkeys(texts, "")}
    row = {"name": "step/f32/elems:64", "time_us": 7}
    rows, page, program = tmp_path / "rows.json", tmp_path / "page.md", tmp_path / "program"
    rows.write_text(json.dumps({"benchmarks": [row], "context": context}))
    page.write_text(f"before\n{FILES['page.md']}after\n")
    assert run_script(ROOT / TABLES, "--from", rows, "--into", page).returncode == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- tables -->\n") and text.endswith("<!-- end of tables -->\nafter\n")
    assert "| 7.00 |" in text
    (tmp_path / "page.md.new").mkdir()  # as on a full disk: the new page cannot be written
    done = run_script(ROOT / TABLES, "--from", rows, "--into", page)
    assert done.returncode == 2 and "| 7.00 |" in done.stdout and "Traceback" not in done.stderr, done.stderr
    assert page.read_text() == text
    program.write_text(f'#!/bin/sh\n: > {page}\ncp {rows} "${{1#*=}}"\n')
    program.chmod(0o755)
    done = run_script(ROOT / TABLES, program, "--into", page)
    assert done.returncode == 2 and "| 7.00 |" in done.stdout and "Traceback" not in done.stderr, done.stderr
