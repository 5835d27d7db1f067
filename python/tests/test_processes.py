# SPDX-License-Identifier: Apache-2.0
"""Signals, forked, spawned and killed processes, threads, and short memory."""
import contextlib
import faulthandler
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant import deepspeed as op, lists  # noqa: E402
from adamant._library import library  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

import deepspeed_suite  # noqa: E402
from processes import words  # noqa: E402


@pytest.fixture(autouse=True)
def guard():
    """Aborts a hanging test and prints tracebacks."""
    faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def threads():
    return len(os.listdir("/proc/self/task"))


def gone(pid):
    """Whether a process has ended. A zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition):
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def params(seed=0, sizes=(3000, 17, 5000)):
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size)) for size in sizes]


def backward(of, step):
    torch.manual_seed(1000 + step)
    sum((p * torch.randn_like(p)).sum() for p in of if p.requires_grad).backward()


def train(of, optimizer, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        backward(of, step)
        optimizer.step()


def counts(optimizer):
    return {int(state["step"]) for state in optimizer.state_dict()["state"].values()}


def bits(of, optimizer):
    state = optimizer.state_dict()["state"]
    return [p.detach().clone().view(torch.int32) for p in of] + [
        state[i][name].clone().view(torch.int32) for i in sorted(state) for name in ("exp_avg", "exp_avg_sq")]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


# Ctrl-C. Python runs signal handlers after a library call returns.

@contextlib.contextmanager
def interrupted(function, call=1):
    """Sends the signal during the call-th call of this function of the library."""
    calls, seen = library(), []
    real = getattr(calls, function)

    def wrapper(*arguments):
        status = real(*arguments)
        seen.append(status)
        if len(seen) == call:
            signal.raise_signal(signal.SIGINT)
        return status
    setattr(calls, function, wrapper)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        setattr(calls, function, real)
    assert len(seen) >= call


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_interrupt_in_a_long_step(max_norm):
    def made():
        p = torch.nn.Parameter(torch.ones(12_000_000))
        p.grad = torch.full_like(p, 0.5)
        return p, AdamW([p], max_norm=max_norm)
    p, optimizer = made()
    optimizer.step()
    calls, within, came = library(), threading.Event(), []
    real = calls.adamant_step_gradients

    def wrapper(*arguments):
        within.set()
        try:
            return real(*arguments)
        finally:
            within.clear()

    def send():
        within.wait()
        came.append(within.is_set())
        os.kill(os.getpid(), signal.SIGINT)
    sender = threading.Thread(target=send)
    sender.start()
    calls.adamant_step_gradients = wrapper
    try:
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
            sender.join()
    finally:
        calls.adamant_step_gradients = real
        sender.join()
    assert came == [True]
    assert counts(optimizer) == {2}
    optimizer.step()
    q, other = made()
    for _ in range(3):
        other.step()
    assert same(bits([p], optimizer), bits([q], other)) and counts(optimizer) == {3}


@pytest.mark.parametrize("late", [False, True])
def test_interrupt_in_a_step_completes_it(late):
    """late: a param has taken fewer steps, so there are two step groups."""
    runs = []
    for interrupt in (True, False):
        of = params()
        optimizer = AdamW(of, lr=0.1, max_norm=1.0)
        of[1].requires_grad_(not late)
        train(of, optimizer, 0, 2)
        of[1].requires_grad_(True)
        train(of, optimizer, 2, 3)
        with interrupted("adamant_step_gradients") if interrupt else contextlib.nullcontext():
            train(of, optimizer, 3, 4)
        assert counts(optimizer) == ({4, 2} if late else {4})
        runs.append([bits(of, optimizer)])
        train(of, optimizer, 4, 6)
        runs[-1].append(bits(of, optimizer))
    assert all(map(same, *runs))


@pytest.mark.parametrize("function, call", [("adamant_step_gradients", 1), ("adamant_optimizer_create", 1),
                                            ("adamant_executor_create", 1), ("adamant_add_shard", 2),
                                            ("adamant_add_group", 1), ("adamant_set_steps", 1)])
def test_interrupt_in_the_first_step(function, call):
    adamant.executor._shared.pop((None, 0), None)
    of, other = params(), params()
    optimizer, reference = AdamW(of, lr=0.1), AdamW(other, lr=0.1)
    backward(of, 0)
    with interrupted(function, call):
        optimizer.step()
    done = max(counts(optimizer), default=0)
    train(of, optimizer, 1, 3)
    train(other, reference, 0 if done else 1, 3)
    assert same(bits(of, optimizer), bits(other, reference)) and counts(optimizer) == {2 + done}


@pytest.mark.parametrize("function, call, applied", [("adamant_begin_step", 1, 0), ("adamant_submit_gradient", 1, 0),
                                                     ("adamant_submit_gradient", 2, 0), ("adamant_finish", 1, 1)])
def test_interrupt_with_overlap(function, call, applied):
    of, other = params(), params()
    optimizer = AdamW(of, lr=0.1, max_norm=1.0, overlap=True)
    reference = AdamW(other, lr=0.1, max_norm=1.0)
    train(of, optimizer, 0, 2)
    train(other, reference, 0, 2 + applied)
    with interrupted(function, call):
        train(of, optimizer, 2, 3)
    assert counts(optimizer) == {2 + applied}
    assert same(bits(of, optimizer), bits(other, reference))
    train(of, optimizer, 3, 5)
    train(other, reference, 3, 5)
    assert same(bits(of, optimizer), bits(other, reference))


@pytest.mark.parametrize("function, call", [("adamant_begin_step", 1), ("adamant_submit_gradient", 2)])
def test_interrupt_in_backward_without_a_norm_leaves_a_completable_step(function, call):
    of = params()
    optimizer = AdamW(of, lr=0.1, overlap=True)
    train(of, optimizer, 0, 2)
    with interrupted(function, call):
        train(of, optimizer, 2, 3)
    optimizer.step()
    train(of, optimizer, 3, 4)
    assert max(counts(optimizer)) == 4 and all(p.isfinite().all() for p in of)


def test_interrupt_while_ranks_reduce_changes_nothing():
    values, grad = torch.ones(1000), torch.ones(1000)

    def reduce(words):
        if interrupt:
            signal.raise_signal(signal.SIGINT)
    optimizer = adamant.Optimizer(max_norm=1.0, reduce=reduce)
    optimizer.add_shard(optimizer.add_group("g"), "w", values, grad, torch.zeros(1000), torch.zeros(1000))
    interrupt = True
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.steps == 0 and torch.equal(values, torch.ones(1000))
    interrupt = False
    optimizer.step()
    assert optimizer.steps == 1 and (values < 1).all()




@pytest.mark.parametrize("function, way", [
    ("adamant_step_gradients", lambda it, grad: it.step([grad])),
    ("adamant_set_gradient", lambda it, grad: it.set_gradient(0, grad)),
    ("adamant_submit_gradient", lambda it, grad: (it.begin_step(), it.submit(0, grad))),
])
def test_gradients_in_use_are_kept_after_an_interrupt(function, way):
    import weakref
    old, new = torch.ones(1000), torch.ones(1000)
    optimizer = adamant.Optimizer()
    optimizer.add_shard(optimizer.add_group("g"), "w", torch.ones(1000), old, torch.zeros(1000), torch.zeros(1000))
    known = weakref.ref(new)
    with interrupted(function):
        way(optimizer, new)
    del new
    assert known() is not None


def test_an_added_shard_is_kept_after_an_interrupt():
    import weakref
    grad = torch.ones(1000)
    optimizer = adamant.Optimizer()
    group, known = optimizer.add_group("g"), weakref.ref(grad)
    with interrupted("adamant_add_shard"):
        optimizer.add_shard(group, "w", torch.ones(1000), grad, torch.zeros(1000), torch.zeros(1000))
    del grad
    assert known() is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_delayed_and_handlers_are_restored(number):
    from adamant._signals import delayed_signals

    def handler(*_):
        seen.append(done)
        raise KeyError
    before, seen, done = signal.signal(number, handler), [], False
    try:
        for _ in range(2):
            done = False
            with pytest.raises(KeyError):
                with delayed_signals:
                    with delayed_signals:
                        signal.raise_signal(number)
                    done = True
            assert signal.getsignal(number) is handler
            with pytest.raises(KeyError):
                signal.raise_signal(number)
        assert seen == [True] * 4
    finally:
        signal.signal(number, before)


def test_a_process_forked_in_a_step_handles_signals():
    """By another thread, as a server of checkpoints or data may: the child has none of the step's delays."""
    for child in words("""
import os, signal, sys, threading, time
from adamant._signals import delayed_signals
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
def fork():
    in_step.wait()
    pid = os.fork()
    if pid == 0:
        with delayed_signals:
            pass
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
in_step, statuses = threading.Event(), []
thread = threading.Thread(target=fork)
thread.start()
with delayed_signals:
    in_step.set()
    thread.join()
print(statuses == [7])
"""):
        assert child == "True"


def test_a_process_forked_while_an_executor_is_created_creates_its_own():
    assert words("""
import os, threading
import adamant
from adamant import executor
def fork():
    pid = os.fork()
    if pid == 0:
        print(adamant.executor.shared_executor(threads=1).threads, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
with executor._lock:
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
""", timeout=60) == ["1"]


def test_a_fork_of_the_main_thread_in_a_step_stays_in_it():
    assert words("""
import os, signal
from adamant._signals import delayed_signals
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
with delayed_signals:
    pid = os.fork()
    os.kill(os.getpid(), signal.SIGTERM)
    within = list(seen)
print(within, seen, flush=True)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
""") == ["[]", "[1]"] * 2


def test_delayed_signals_leave_what_is_registered_in_c(tmp_path):
    """A handler in C that calls Python's, and flags. Each runs once for a signal, whether it arrives in a step or not."""
    assert words("""
import asyncio, ctypes, faulthandler, os, signal, sys
from adamant._signals import delayed_signals
seen, dumps = [], open(sys.argv[1], "w")
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append((number, frame.f_code.co_name)))
faulthandler.register(signal.SIGUSR1, file=dumps, chain=True)
signal.signal(signal.SIGUSR2, lambda *_: None)
signal.siginterrupt(signal.SIGUSR2, False)
def flags():
    action = (ctypes.c_char * 256)()
    ctypes.CDLL(None).sigaction(signal.SIGUSR2, None, action)
    return int.from_bytes(action[136:140], "little")
def arrives():
    os.kill(os.getpid(), signal.SIGUSR1)
before, counts = flags(), []
for delays in (False, True, False):
    if delays:
        with delayed_signals:
            arrives()
    else:
        arrives()
    counts.append((open(sys.argv[1]).read().count("most recent call first"), len(seen)))
print(counts == [(1, 1), (2, 2), (3, 3)], flags() == before, {name for _, name in seen} == {"arrives"})
async def main():
    calls = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, calls.append, 1)
    for count in (1, 2):
        if count == 2:
            with delayed_signals:
                os.kill(os.getpid(), signal.SIGHUP)
        else:
            os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        print(len(calls) == count)
asyncio.run(main())
""", tmp_path / "dumps") == ["True"] * 5


def test_a_handler_may_use_adamant_while_others_are_replaced_or_restored(monkeypatch):
    """It may run between any two of them, and raise."""
    from adamant import _signals
    from adamant._signals import delayed_signals
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]
    calls, raises = [], False

    def handler(number, frame):
        with delayed_signals:
            calls.append(number)
        if raises:
            raise KeyError(number)

    before = {number: signal.signal(number, handler) for number in numbers}
    known = [signal.getsignal(number) for number in _signals._signals]
    set_handler, replace = _signals.signal, _signals._replace
    cases = itertools.product((False, True), (("signal", set_handler), ("_replace", replace)), range(1, 12), numbers)
    try:
        for raises, (name, original), moment, number in cases:
            count = 0

            def interrupted(*arguments):
                nonlocal count
                done = original(*arguments)
                count += 1
                if count == moment:
                    signal.raise_signal(number)
                return done

            monkeypatch.setattr(_signals, name, interrupted)
            calls.clear()
            has_raised = False
            try:
                with delayed_signals:
                    pass
            except KeyError:
                has_raised = True
            monkeypatch.setattr(_signals, name, original)
            assert calls == ([number] if count >= moment else [])
            assert has_raised == (raises and count >= moment)
            assert delayed_signals._depth == 0 and not delayed_signals._seen
            assert [signal.getsignal(each) for each in _signals._signals] == known
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


# Killed

ranks = """
import datetime, os, signal, sys
import torch
import torch.distributed as dist
from adamant.torch import AdamW
torch.set_num_threads(1)
folder, when = sys.argv[1:]

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=60))
    p = torch.nn.Parameter(torch.ones(50000))
    # Both ranks' shards have equal values.
    optimizer = AdamW([{"params": [p], "replicated": False}], lr=0.1, max_norm=1.0, process_group=dist.group.WORLD,
                      overlap=when == "overlap")
    def step():
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
    step(), step()
    real = dist.all_reduce
    def all_reduce(*arguments, **more):
        if when == "after":
            real(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        dist.all_reduce = all_reduce
    kept = [(p.detach().clone(), 2)]
    twin = torch.nn.Parameter(torch.ones(50000))
    alone = AdamW([twin], lr=0.1, max_norm=1.0)
    for _ in range(3):
        alone.zero_grad(); (twin * twin * 2 ** 0.5).sum().backward(); alone.step()
    error = "none"
    try:
        step()
        kept = [(p.detach().clone(), 3)]  # both ranks had completed the reduction
        assert not torch.equal(kept[0][0], torch.ones(50000))
        step()
    except RuntimeError as seen:
        error = type(seen).__name__
    state = optimizer.state_dict()["state"][0]
    assert torch.equal(p, kept[0][0]) and int(state["step"]) == kept[0][1], (p, kept, state)
    print(error, int(state["step"]), flush=True)
    os._exit(0)

for rank in (0, 1):
    if os.fork() == 0:
        work(rank)
print(*sorted(os.wait()[1] for _ in range(2)))
"""


@pytest.mark.parametrize("when, steps", [("before", 2), ("after", 3), ("overlap", 2)])
def test_a_killed_rank_fails_the_other_ranks_step_without_changes(when, steps, tmp_path):
    assert words(ranks, tmp_path, when) == ["RuntimeError", str(steps), "0", "9"]


def zenflow(killed):
    """Forks a worker and submits a step. killed: kill the worker during that step."""
    op.create_adam(0, adamw_mode=True)
    size = 4_000_000
    arrays = [torch.ones(size).share_memory_() for _ in range(8)]
    control = torch.zeros(op.zenflow_adam_ctrl_size(), dtype=torch.uint8).share_memory_()
    op.zenflow_adam_ctrl_init(control.data_ptr(), 1)
    worker = os.fork()
    if worker == 0:
        torch.set_num_threads(1)  # torch's threads cannot be used after a fork
        handle = op.zenflow_adam_create(0, [])
        op.zenflow_adam_register_group(handle, *arrays)
        if killed:
            real, within = lists.native(), threading.Event()

            def step(*arguments):
                within.set()
                return real.step(*arguments)
            lists._native = types.SimpleNamespace(step=step)
            threading.Thread(target=lambda: (within.wait(), os.kill(os.getpid(), signal.SIGKILL))).start()
        op.zenflow_adam_run_worker(handle, control.data_ptr())
        os._exit(0)
    return worker, control, arrays


def submit(control):
    op.zenflow_adam_submit(control.data_ptr(), 0, 1, [0.1], [0.9], [0.99], [1e-8], [0.0], [1])


def test_a_killed_zenflow_worker_is_detected():
    worker, control, arrays = zenflow(killed=True)
    submit(control)
    assert op.zenflow_adam_wait(control.data_ptr(), 0.5) is False
    assert os.waitpid(worker, 0)[1] == signal.SIGKILL
    assert op.zenflow_adam_wait(control.data_ptr(), 0.0) is False
    assert torch.equal(arrays[7], torch.ones_like(arrays[7]))  # training reads the weights of before the step
    op.zenflow_adam_ctrl_exit(control.data_ptr())
    op.destroy_adam(0)


def test_a_zenflow_worker_exits_when_its_parent_is_killed():
    code = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_processes as tests
worker, control, _ = tests.zenflow(killed=False)
tests.submit(control)
print(worker if tests.op.zenflow_adam_wait(control.data_ptr(), 20) else -1, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent)], stdout=subprocess.PIPE,
                          text=True) as parent:
        worker = int(parent.stdout.readline())
        assert parent.wait() == -signal.SIGKILL and worker > 0
    until(lambda: gone(worker))


superoffload = """
import os, signal, time
import torch
from deepspeed.runtime.superoffload.superoffload_utils import SuperOffloadCPUOptimizer
if __name__ == "__main__":
    group = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, amsgrad=False)
    worker = SuperOffloadCPUOptimizer([group], cpuadam_cores_perc=0.5, max_grad_numel=1000, pin_memory=False)
    param, grad = torch.ones(1000), torch.ones(1000)
    def step():
        worker.async_step(0, 0, param, grad)
        result = None
        while result is None:
            result = worker.get_result()
            time.sleep(0.001)
    step()
    worker.async_step(0, 0, param, grad)
    os.kill(worker.cpuadam_process.pid, signal.SIGKILL)
    worker.cpuadam_process.join()
    print(">", worker.cpuadam_process.exitcode)
    try:
        step()
    except RuntimeError as error:
        print(">", error)
    worker.close()
"""


def test_a_killed_superoffload_worker_is_detected_at_the_next_step(tmp_path):
    pytest.importorskip("deepspeed")
    script = tmp_path / "script.py"
    script.write_text(superoffload)
    done = subprocess.run([sys.executable, str(script)], env=deepspeed_suite.environment(tmp_path), text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line[0] == ">"] == ["> -9", "> Worker process is not alive"]


# Forked, spawned, and several threads of one process

def spawned(queue):
    of = params()
    optimizer = AdamW(of, lr=0.1)
    train(of, optimizer, 0, 3)
    queue.put([p.detach().numpy() for p in of])


def test_a_spawned_worker_steps_independently():
    of = params()
    optimizer = AdamW(of, lr=0.1)
    train(of, optimizer, 0, 2)
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=spawned, args=(queue,))
    worker.start()
    train(of, optimizer, 2, 3)
    assert all(torch.equal(p, torch.from_numpy(q)) for p, q in zip(of, queue.get()))
    worker.join()
    assert worker.exitcode == 0


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((5,), float(i))


@pytest.mark.parametrize("method, workers", [("fork", 2), ("spawn", 1)])
def test_data_loader_workers_beside_a_team(method, workers):
    of = params()
    optimizer = AdamW(of, lr=0.1)
    train(of, optimizer, 0, 1)
    rows = 0
    loader = torch.utils.data.DataLoader(Rows(), batch_size=3, num_workers=workers, multiprocessing_context=method)
    for batch in loader:
        rows += len(batch)
        train(of, optimizer, rows, rows + 1)
    assert rows == 12 and counts(optimizer) == {5}


def test_a_forked_process_exits_normally():
    code = """
import os, sys
import torch
from adamant.torch import AdamW
torch.set_num_threads(1)  # torch's threads cannot be used after a fork
def stepped():
    p = torch.nn.Parameter(torch.ones(300000))
    p.grad = torch.ones_like(p)
    optimizer = AdamW([p], threads=2, max_norm=1.0)
    optimizer.step()
    return p, optimizer
p, optimizer = stepped()
for own in (False, True):
    child = os.fork()
    if child == 0:
        mine = stepped() if own else None
        del p, optimizer
        sys.exit(7)  # runs exit handlers of Python and the library
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
optimizer.step()
"""
    assert words(code) == ["7", "7"]


def test_two_threads_step_two_optimizers_on_one_team():
    def work(seed, results):
        with torch_lock:
            of = params(seed)
        optimizer = AdamW(of, lr=0.1, max_norm=1.0)
        for _ in range(50):
            with torch_lock:
                optimizer.zero_grad()
                backward(of, seed)
            optimizer.step()
        results[seed] = bits(of, optimizer)
    torch_lock = threading.Lock()  # torch has one global generator
    together, alone = {}, {}
    both = [threading.Thread(target=work, args=(seed, together)) for seed in (1, 2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for seed in (1, 2):
        work(seed, alone)
        assert same(together[seed], alone[seed])


def test_threads_end_with_their_executor():
    def round():
        executor = adamant.Executor(threads=3, bind="none")
        optimizer = adamant.Optimizer(executor)
        values = [torch.ones(100000) for _ in range(4)]
        optimizer.add_shard(optimizer.add_group("g"), "w", *values)
        optimizer.step()
        optimizer.close()
        executor.close()

    def rounds():
        round()
        before = threads()
        for _ in range(20):
            round()
        until(lambda: threads() <= before)
    rounds()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            rounds()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# Short memory

def limited(by):
    """Limits the address space to the current size plus this. Returns a function that lifts the limit."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + by, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, before)


def test_too_little_memory_for_the_records_of_a_step():
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
import test_processes as tests
from test_processes import *
torch.set_num_threads(1)
def made():
    executor = adamant.Executor(threads=2, bind="none")
    optimizer = adamant.Optimizer(executor, max_norm=1.0, keep_last_step=True, speculate="always",
                                  journal_budget_bytes=1 << 40)
    arrays = [torch.ones(20_000_000), torch.full((20_000_000,), 0.5), *torch.zeros(2, 20_000_000)]
    optimizer.add_shard(optimizer.add_group("g", lr=0.1), "w", *arrays)
    return optimizer, arrays
optimizer, arrays = made()
copy = [array.clone() for array in arrays]
rollback = limited(by=1 << 20)
seen = []
for call in (lambda: optimizer.prepare(with_journal=True), optimizer.begin_step, optimizer.step):
    try:
        call()
    except adamant.Error as error:
        seen.append("memory" in str(error))
rollback()
print(seen, optimizer.steps, all(map(torch.equal, arrays, copy)))
optimizer.step()
other, twins = made()
other.step()
print(optimizer.steps, all(map(torch.equal, arrays, twins)))
"""
    out = " ".join(words(code, Path(__file__).parent))
    assert out == "[True, True, True] 0 True 1 True"


def test_too_little_memory_for_threads():
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_processes import *
adamant.Executor(threads=2, bind="none")
before = threads()
rollback = limited(by=100 << 20)
try:
    adamant.Executor(threads=200, bind="none")
except adamant.Error as error:
    print("error", "the system allows only" in str(error))
rollback()
until(lambda: threads() <= before)
print(adamant.Executor(threads=200, bind="none").threads)
"""
    assert words(code, Path(__file__).parent) == ["error", "True", "200"]


def test_too_little_memory_for_moments():
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_processes import *
torch.set_num_threads(1)
p = torch.nn.Parameter(torch.ones(30_000_000))
p.grad = torch.ones_like(p)
optimizer = AdamW([p], lr=0.1)
library()
for room in (1 << 20, 180 << 20):  # room for none and for one of the two moments
    rollback, seen = limited(by=room), None
    try:
        optimizer.step()
    except (RuntimeError, MemoryError) as error:
        seen = str(error)
    rollback()
    print("memory" in seen, bool((p == 1).all()))
optimizer.step()
print(counts(optimizer), bool((p < 1).all()))
"""
    assert words(code, Path(__file__).parent) == ["True", "True"] * 2 + ["{1}", "True"]
