# SPDX-License-Identifier: Apache-2.0
"""Runs code on the ranks of a process group, each in a process of its own.

The processes are forked from one that has imported torch, because importing it takes most of such a test's time.
"""
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.device_mesh",
                                "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor",
                                "adamant.torch"])


def _run(code, arguments, output):
    for stream, suffix in ((1, ".out"), (2, ".err")):
        with open(output + suffix, "w") as file:
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(code, "rank", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush(), sys.stderr.flush()


def on_ranks(count, code, folder, *arguments):
    """Runs code with sys.argv[1:] = [rank, count, folder, *arguments], and returns what each rank printed."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the process that forks, when it starts
    outputs = [f"{folder}/output-{count}-{rank}" for rank in range(count)]
    ranks = [context.Process(target=_run, args=(code, [str(it) for it in (rank, count, folder, *arguments)], output))
             for rank, output in enumerate(outputs)]
    try:
        for rank in ranks:
            rank.start()
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
    for rank in ranks:
        rank.join(600)
        rank.kill()
        rank.join()
    out, err = ([Path(output + suffix).read_text() for output in outputs] for suffix in (".out", ".err"))
    assert all(rank.exitcode == 0 for rank in ranks), (out, err)
    return out
