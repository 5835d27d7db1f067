# SPDX-License-Identifier: Apache-2.0
"""Offload, gradient accumulation and weights written by others: same bits as plain steps in host memory."""
import copy
import ctypes
import gc
import math
import queue
import random
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant import _host_copies  # noqa: E402
from adamant.torch import Adam, AdamW  # noqa: E402

from processes import words  # noqa: E402


splits = ["split_float32", "split_float32+bfloat16", "split_float32+quantized8"]


class SlowStream(_host_copies.HostStream):
    """Delayed copies in order, in a thread, as on a stream of a GPU."""
    streams = []

    def __init__(self, device=None):
        self.jobs = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        self.streams.append(self)
        self.copies = 0

    def work(self):
        while (job := self.jobs.get()) is not None:
            time.sleep(random.random() * 3e-4)
            targets, sources, done = job
            super().copy(targets, sources)
            done.set()

    def copy(self, targets, sources):
        done = threading.Event()
        self.jobs.put((targets, sources, done))
        self.copies += len(targets)
        return done.wait

    def block_caller(self):
        probe = torch.zeros(1)
        self.copy([probe], [probe.clone()])()


class BrokenStream(_host_copies.HostStream):
    fails = False

    def copy(self, targets, sources):
        if BrokenStream.fails:
            raise RuntimeError("the copy failed")
        return super().copy(targets, sources)


@pytest.fixture(params=["host", "slow"])
def streams(request, monkeypatch):
    if request.param == "slow":
        monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(SlowStream))
    yield request.param
    for stream in SlowStream.streams:
        stream.jobs.put(None)
        stream.thread.join()
    SlowStream.streams.clear()


def params_of(sizes, kind, seed):
    made = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, generator=made).to(kind)) for size in sizes]


def gradients(sizes, kind, seed, scale):
    made = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, generator=made) * scale).to(kind) for size in sizes]


def backward(params, grads):
    """Sets these gradients by autograd. None: the param has no gradient."""
    used = [(p, g) for p, g in zip(params, grads) if g is not None]
    torch.autograd.backward([(p * 1.0) for p, _ in used], [g.clone() for _, g in used])


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.detach().contiguous().view(-1).view(torch.uint8),
                                              b.detach().contiguous().view(-1).view(torch.uint8))


def check_same(params, first, others, second, what):
    for i, (p, q) in enumerate(zip(params, others)):
        assert same_bits(p, q), f"{what}: param {i}"
        for name, value in first.state[p].items():
            assert same_bits(value, second.state[q][name]), f"{what}: {name} of param {i}"


def run(seed, ways):
    """Random steps of two optimizers. The second steps float32 sums of torch in host memory."""
    choose = random.Random(seed)
    sizes = [(choose.choice([1, 3, 64, 5000, 20000]),) for _ in range(choose.randint(1, 7))]
    kind = choose.choice([torch.float32, torch.bfloat16, torch.float16])
    formats = [None, None, "quantized8"] + (splits if kind == torch.bfloat16 else [])
    options = {"lr": 0.01, "weight_decay": 0.1, "on_nonfinite": choose.choice(["apply", "skip", "zero"]),
               "max_norm": choose.choice([None, 1.0, 1e6]), "master": kind != torch.float32 and choose.random() < 0.6,
               "threads": choose.choice([1, 2]), "state_format": choose.choice(formats)}
    mine = choose.choice([Adam, AdamW])
    params, others = params_of(sizes, kind, seed), params_of(sizes, kind, seed)
    for q in others:
        q.grad_dtype = torch.float32 if ways.get("accumulate") else kind
    first, second = mine(params, **options, **ways), mine(others, **options)
    for t in range(8):
        what = f"seed {seed}, step {t}, {options}"
        micro_steps = choose.randint(1, ways["accumulate"]) if "accumulate" in ways else 1
        sums = [None] * len(sizes)
        for micro in range(micro_steps):
            grads = gradients(sizes, kind, 100 * seed + 10 * t + micro, choose.choice([1e-3, 1.0]))
            if choose.random() < 0.1 and options["on_nonfinite"] != "apply":
                grads[0][0] = float("inf")
            for i in range(len(grads)):
                if choose.random() < 0.1:
                    grads[i] = None
            if any(g is not None for g in grads):
                backward(params, grads)
            if "accumulate" in ways:
                grads = [None if g is None else g.float() for g in grads]
            sums = [s if g is None else g if s is None else s + g for s, g in zip(sums, grads)]
        for q, g in zip(others, sums):
            q.grad = g
        norm, expected = first.step(), second.step()
        if options["max_norm"] is not None:
            assert norm.item() == expected.item() or norm.isnan() and expected.isnan(), what
        check_same(params, first, others, second, what)
        if choose.random() < 0.5:
            first.zero_grad()
        for p in params:
            p.grad = None
        if choose.random() < 0.2:  # others write weights
            with torch.no_grad():
                i = choose.randrange(len(sizes))
                for of in (params, others):
                    of[i][: 1 + sizes[i][0] // 2] = 0.375
        if choose.random() < 0.1:
            for of in (first, second):
                of.load_state_dict(of.state_dict())


@pytest.mark.parametrize("ways", [{"offload": True}, {"offload": True, "overlap": True}, {"overlap": True},
                                  {"accumulate": 3}, {"accumulate": 3, "overlap": True},
                                  {"accumulate": 2, "offload": True}, {"accumulate": 3, "offload": True, "overlap": True}],
                         ids=lambda ways: "+".join(ways))
def test_random_runs_have_the_bits_of_a_run_in_host_memory(ways, streams):
    if streams == "slow" and "offload" not in ways:
        pytest.skip("nothing is copied")
    for seed in range(25 if streams == "host" else 8):
        run(seed, ways)


def master_of(p, state):
    """The float32 masters of a split state, by integer arithmetic."""
    assert state["master_low"].dtype == torch.int16
    return ((p.detach().view(torch.int16).to(torch.int32) << 16) + state["master_low"]).view(torch.float32)


def away_from_zero(master):
    return (master.view(torch.int32) + 0x8000 >> 16).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("name", splits)
@pytest.mark.parametrize("ways", [{}, {"overlap": True}, {"accumulate": 3}, {"offload": True}, {"offload": True, "overlap": True},
                                  {"accumulate": 3, "offload": True, "overlap": True}], ids=lambda ways: "+".join(ways))
def test_split_masters_have_the_bits_of_float32_masters(ways, name, streams):
    if streams == "slow" and "offload" not in ways:
        pytest.skip("nothing is copied")
    sizes, kind = [(5000,), (1,), (3, 50), (64,), (0,), (20001,)], torch.bfloat16
    micro_steps, ties = ways.get("accumulate", 1), 0
    for seed, mine in enumerate((Adam, AdamW)):
        options = {"lr": 0.01, "weight_decay": 0.1, "max_norm": (1.0, None)[seed], "on_nonfinite": ("skip", "apply")[seed]}
        params, others = params_of(sizes, kind, seed), params_of(sizes, kind, seed)
        for q in others:
            q.grad_dtype = torch.float32 if "accumulate" in ways else kind
        first = mine(params, **options, **ways, state_format=name)
        second = mine(others, **options, master=True, state_format=name.removeprefix("split_float32").lstrip("+") or "float32")
        for t in range(6):
            made = [gradients(sizes, kind, 100 * seed + 10 * t + micro, 10.0 ** -(t % 3)) for micro in range(micro_steps)]
            if t == 3 and seed == 0:
                made[0][0][7] = float("inf")
            if t == 4:  # all masters of one param are ties
                low, full = first.state[params[0]]["master_low"], second.state[others[0]]["master_param"]
                low.fill_(-0x8000)
                full.copy_(master_of(params[0], first.state[params[0]]))
                others[0].detach().copy_(full)
                ties += int((params[0] != others[0]).sum())
            for p in params:
                p.grad = None
            for grads in made:
                backward(params, grads)
            for q, *grads in zip(others, *made):
                q.grad = sum(g.float() for g in grads) if "accumulate" in ways else grads[0]
            norm, expected = first.step(), second.step()
            assert norm is None or norm.item() == expected.item() or norm.isnan() and expected.isnan()
            for i, (p, q) in enumerate(zip(params, others)):
                split, full = first.state[p], second.state[q]
                what = f"{mine.__name__}, step {t}, param {i}"
                assert set(split) ^ set(full) == {"master_low", "master_param"}, what
                assert same_bits(master_of(p, split), full["master_param"]), what
                assert same_bits(p, away_from_zero(full["master_param"])) and same_bits(q, full["master_param"].to(kind)), what
                assert all(same_bits(split[key], full[key]) for key in ("step", "exp_avg", "exp_avg_sq")), what
    assert ties > 0


@pytest.mark.parametrize("offload", [False, True])
def test_an_abandoned_step_restores_split_masters(offload):
    sizes = [(5000,), (3, 50), (20001,)]
    for name in splits:
        params = params_of(sizes, torch.bfloat16, 1)
        optimizer = AdamW(params, lr=0.01, state_format=name, max_norm=1.0, overlap=True, offload=offload)

        def all_bits():
            return [t.clone() for p in params for t in (p.detach(), *optimizer.state[p].values())]
        for t in range(2):
            backward(params, gradients(sizes, torch.bfloat16, t, 1.0))
            optimizer.step()
            optimizer.zero_grad()
        before = all_bits()
        backward(params, gradients(sizes, torch.bfloat16, 3, 1.0))
        assert optimizer._open is not None
        optimizer.zero_grad()
        assert all(same_bits(a, b) for a, b in zip(before, all_bits()))
        for t in (3, 4):
            backward(params, gradients(sizes, torch.bfloat16, 3, 1.0))
            optimizer.step()
            optimizer.zero_grad()
        assert not same_bits(before[1], optimizer.state[params[0]]["master_low"]), "the run goes on"


def test_a_ring_smaller_than_all_gradients_wraps_around(monkeypatch, streams):
    monkeypatch.setattr(_host_copies, "_ring_bytes", 1 << 10)
    for seed in range(10):
        for overlap in (False, True):
            sizes = [(n,) for n in (4000, 1, 5000, 70, 4999, 3000, 20, 5000)]
            params, others = params_of(sizes, torch.float32, seed), params_of(sizes, torch.float32, seed)
            first, second = AdamW(params, lr=0.01, offload=True, overlap=overlap), AdamW(others, lr=0.01)
            for t in range(3):
                for of in (params, others):
                    for p in of:
                        p.grad = None
                    backward(of, gradients(sizes, torch.float32, 10 * seed + t, 1.0))
                first.step()
                second.step()
            assert len(first._step_groups[0].copies.ring.buffer) < 3 * 5000 * 4
            check_same(params, first, others, second, f"seed {seed}")


def test_weights_are_sent_once_a_step(monkeypatch):
    monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(SlowStream))
    params = params_of([(5000,)] * 6, torch.bfloat16, 1)
    optimizer = AdamW(params, lr=0.01, offload=True, master=True)
    backward(params, gradients([(5000,)] * 6, torch.bfloat16, 1, 1.0))
    for t in range(3):
        optimizer.step()
    up = optimizer._step_groups[0].copies._h2d[torch.device("cpu")]
    assert up.copies == 3 * (6 + 1)  # and one for which the caller waits


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"max_norm": 1e9, "overlap": True}, {"accumulate": 2}], ids=str)
def test_small_tensors_are_copied_together(monkeypatch, options):
    calls = []

    class Counting(_host_copies.HostStream):
        def copy(self, targets, sources):
            calls.append(len(targets))
            return super().copy(targets, sources)

    monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(lambda device: Counting()))
    sizes = [(64,)] * 300
    params = params_of(sizes, torch.float32, 1)
    optimizer = AdamW(params, lr=0.01, offload=True, **options)
    for t in range(4):
        calls.clear()
        for part in range(options.get("accumulate", 1)):
            backward(params, gradients(sizes, torch.float32, t, 1.0))
        optimizer.step()
        for p in params:
            p.grad = None
    assert sum(calls) == 300 * (1 + options.get("accumulate", 1))
    assert len(calls) <= 8


def test_gradients_of_several_streams_are_not_copied_together(monkeypatch):
    """Autograd runs each node on the stream of its forward, and a copy waits for the stream of its gradients."""
    waits = []

    class TwoStreams(_host_copies.HostStream):
        number = 0

        def caller(self):
            TwoStreams.number += 1
            return TwoStreams.number // 4

        def wait_for(self, caller):
            waits.append(caller)

    monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(lambda device: TwoStreams()))
    sizes = [(64,)] * 7
    params = params_of(sizes, torch.float32, 1)
    optimizer = AdamW(params, lr=0.01, offload=True)
    backward(params, gradients(sizes, torch.float32, 0, 1.0))
    optimizer.step()
    assert waits == [0, 1]


class TestReadyQueue:
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)

    def made(self, least):
        made = _host_copies.ReadyQueue()
        made.begin(least)
        add = self.callback(made.callback)
        return made, lambda *of: add(made.user, *of)

    def test_take_returns_ranges_in_order(self):
        made, add = self.made(10)
        add(3, 0, 4), add(1, 7, 20)
        assert made.take(0.0) == [(3, 0, 4), (1, 7, 20)]
        assert made.take(0.0) == []

    def test_take_waits_for_enough_elements(self):
        made, add = self.made(10)
        taken = []
        thread = threading.Thread(target=lambda: taken.append(made.take(600.0)))
        thread.start()
        add(0, 0, 9)
        thread.join(0.05)
        assert thread.is_alive()
        add(1, 5, 6)
        thread.join()
        assert taken == [[(0, 0, 9), (1, 5, 6)]]

    def test_take_returns_what_there_is_after_its_time_and_after_end(self):
        made, add = self.made(10)
        add(0, 0, 1)
        assert made.take(0.01) == [(0, 0, 1)]
        thread = threading.Thread(target=lambda: (time.sleep(0.05), add(2, 0, 1), made.end()))
        assert not made.ended
        thread.start()
        assert made.take(600.0) == [(2, 0, 1)] and made.ended
        thread.join()
        assert made.take(600.0) == []
        made.begin(1)
        assert not made.ended

    def test_ranges_of_many_threads_arrive_once(self):
        made, add = self.made(50)
        threads = [threading.Thread(target=lambda t=t: [add(t, i, i + 1) for i in range(2000)]) for t in range(4)]
        for thread in threads:
            thread.start()
        taken = []
        while len(taken) < 8000:
            taken += made.take(600.0 if len(taken) < 7900 else 0.01)
        for thread in threads:
            thread.join()
        assert all([begin for shard, begin, _ in taken if shard == t] == list(range(2000)) for t in range(4))

    def test_arguments_are_checked(self):
        made, _ = self.made(1)
        for call in (lambda: made.begin(-1), lambda: made.begin("a")):
            with pytest.raises((OverflowError, TypeError)):
                call()
        with pytest.raises(TypeError):
            made.take("a")


def test_a_failed_copy_rolls_back_the_step_and_the_next_one_works(monkeypatch):
    monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(lambda device: BrokenStream()))
    sizes = [(5000,), (3,)]
    params = params_of(sizes, torch.float32, 1)
    optimizer = AdamW(params, lr=0.01, offload=True, max_norm=1.0)
    backward(params, gradients(sizes, torch.float32, 1, 1.0))
    optimizer.step()
    before = [p.detach().clone() for p in params]
    BrokenStream.fails = True
    try:
        with pytest.raises(RuntimeError, match="the copy failed"):
            optimizer.step()
    finally:
        BrokenStream.fails = False
    assert all(same_bits(p, q) for p, q in zip(params, before))
    assert optimizer.state[params[0]]["step"] == 1
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 2 and not same_bits(params[0], before[0])


@pytest.mark.parametrize("name", ["download", "upload"])
@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"max_norm": 1.0, "overlap": True}, {"accumulate": 2}], ids=str)
def test_a_system_without_threads_harms_no_later_step(monkeypatch, name, options):
    """RLIMIT_NPROC or a cgroup's pids.max is reached."""
    sizes, parts = [(3 << 20,), (70,)], options.get("accumulate", 1)
    params, others = params_of(sizes, torch.float32, 1), params_of(sizes, torch.float32, 1)
    first = AdamW(params, lr=0.01, offload=True, **options)
    second = AdamW(others, lr=0.01, **{key: value for key, value in options.items() if key != "overlap"})
    start = threading.Thread.start

    def refuse(thread):
        if name in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    def train(of, optimizer, t):
        optimizer.zero_grad()
        for part in range(parts):
            backward(of, gradients(sizes, torch.float32, 10 * t + part, 1.0))
        optimizer.step()

    for t in range(4):
        train(others, second, t)
        if t == 2:
            before = [p.detach().clone() for p in params]
            monkeypatch.setattr(threading.Thread, "start", refuse)
            try:
                train(params, first, t)
            except RuntimeError as error:
                assert "can't start new thread" in str(error)
                assert all(same_bits(p, q) for p, q in zip(params, before))
                monkeypatch.setattr(threading.Thread, "start", start)
                train(params, first, t)
            monkeypatch.setattr(threading.Thread, "start", start)
        else:
            train(params, first, t)
        check_same(params, first, others, second, f"step {t}")


@pytest.mark.parametrize("elements", [5000, 3 << 20])
def test_new_weights_that_cannot_be_listed_are_an_error(monkeypatch, elements):
    """In a large step the upload thread finds that memory ended, in a small one the caller."""
    new_queue = _host_copies.ReadyQueue

    class NoMemory:
        ended_memory = False

        def __init__(self):
            self.queue = new_queue()

        def __getattr__(self, name):
            return getattr(self.queue, name)

        def take(self, seconds):
            ranges = self.queue.take(seconds)
            if NoMemory.ended_memory:
                raise MemoryError("no memory for the list")
            return ranges

    monkeypatch.setattr(_host_copies, "ReadyQueue", NoMemory)
    params, others = params_of([(elements,)], torch.float32, 1), params_of([(elements,)], torch.float32, 1)
    first, second = AdamW(params, lr=0.01, offload=True), AdamW(others, lr=0.01)
    for p, q, g in zip(params, others, gradients([(elements,)], torch.float32, 1, 1.0)):
        p.grad, q.grad = g, g
    first.step(), second.step()
    state = copy.deepcopy(first.state_dict())
    before = [p.detach().clone() for p in params]
    NoMemory.ended_memory = True
    # If the upload thread fails before the step ends, the step fails, and cannot be rolled back without max_norm.
    with pytest.raises((MemoryError, adamant.Error), match="no memory for the list"):
        first.step()
    NoMemory.ended_memory = False
    with torch.no_grad():
        params[0].copy_(before[0])
    first.load_state_dict(state)
    first.step(), second.step()
    check_same(params, first, others, second, "after the error")


def test_a_failed_copy_in_a_step_without_rollback_is_an_error(monkeypatch):
    monkeypatch.setattr(_host_copies.HostCopies, "new_stream", staticmethod(lambda device: BrokenStream()))
    params = params_of([(5000,), (3,)], torch.float32, 1)
    optimizer = AdamW(params, lr=0.01, offload=True)
    backward(params, gradients([(5000,), (3,)], torch.float32, 1, 1.0))
    optimizer.step()
    state = optimizer.state_dict()
    native = optimizer._step_groups[0].native
    submit = native.submit_at
    monkeypatch.setattr(native, "submit_at", lambda number, at: submit(number, at) if number == 0 else 1 / 0)
    with pytest.raises(adamant.Error, match="some params are updated already, others are not. Load a state. .*"
                                            "The step failed: division by zero"):
        optimizer.step()
    optimizer.load_state_dict(state)
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 2


def test_steps_leave_no_threads():
    params = params_of([(5000,)] * 3, torch.float32, 1)
    optimizer = AdamW(params, lr=0.01, offload=True)
    backward(params, gradients([(5000,)] * 3, torch.float32, 1, 1.0))
    optimizer.step()
    assert not [thread for thread in threading.enumerate() if "adamant" in thread.name]


@pytest.mark.parametrize("offload", [False, True])
def test_a_loaded_model_reaches_masters_and_unchanged_elements_keep_their_bits(offload):
    params = params_of([(5000,)], torch.bfloat16, 1)
    optimizer = AdamW(params, lr=1e-3, master=True, offload=offload)
    for t in range(3):
        params[0].grad = gradients([(5000,)], torch.bfloat16, t, 1.0)[0]
        optimizer.step()
    master = optimizer.state[params[0]]["master_param"].clone()
    with torch.no_grad():
        params[0][:10] = 3.0
    params[0].grad = torch.zeros_like(params[0])
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    now = optimizer.state[params[0]]["master_param"]
    assert torch.equal(now[:10], torch.full((10,), 3.0)) and torch.equal(now[10:], master[10:])
    assert torch.equal(params[0][:10].detach(), torch.full((10,), 3.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("offload", [False, True])
def test_weights_written_by_others_keep_the_low_bits_of_masters(offload):
    """Unchanged masters keep every bit; written ones equal the new weight to half a unit. No pair becomes NaN."""
    params = params_of([(5000,)], torch.bfloat16, 1)
    p = params[0]
    optimizer = AdamW(params, lr=1e-3, state_format="split_float32", offload=offload)

    def step():
        optimizer.step()
        return master_of(p, optimizer.state[p])
    for t in range(3):
        p.grad = gradients([(5000,)], torch.bfloat16, t, 1.0)[0]
        before = step()
    p.grad = torch.zeros_like(p)
    optimizer.param_groups[0].update(lr=0.0)
    low = optimizer.state[p]["master_low"].clone()
    assert (low[:1000] > 0).any() and (low[:1000] < 0).any() and (low[1000:] != 0).any()
    inf = float("inf")
    for weight in (3.0, -1e-3, 0.0, -0.0, inf, -inf, 3.38e38):
        with torch.no_grad():
            p[:1000] = weight
        now = step()
        assert same_bits(now[1000:], before[1000:])
        assert torch.equal(p[:1000], torch.full((1000,), weight, dtype=torch.bfloat16)), weight
        assert same_bits(away_from_zero(now), p)
        if weight in (3.0, -1e-3, 3.38e38):
            unit = 2.0 ** -7 * 2.0 ** math.floor(math.log2(abs(weight)))
            assert ((now[:1000] - p[:1000].float()).abs() <= unit / 2).all()
            assert same_bits(optimizer.state[p]["master_low"], low)
        elif weight == 0.0:
            assert (now[:1000].abs() < 1e-40).all()
        with torch.no_grad():  # writing the same weights loses no bit
            p.copy_(away_from_zero(before))
            optimizer.state[p]["master_low"][:1000] = low[:1000]
        assert same_bits(step(), before)
    with torch.no_grad():
        p.fill_(3.0)
        p.copy_(away_from_zero(before))
    assert same_bits(step(), before)
    p.data = torch.full_like(p, 2.0)
    assert same_bits(away_from_zero(step()), torch.full((5000,), 2.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("options", [{}, {"master": True}, {"state_format": "split_float32"}], ids=str)
def test_a_run_continues_from_an_earlier_state(options):
    params = params_of([(5000,), (3,)], torch.bfloat16, 1)
    optimizer = AdamW(params, lr=1e-3, offload=True, **options)

    def train(first, last):
        for t in range(first, last):
            for p, g in zip(params, gradients([(5000,), (3,)], torch.bfloat16, t, 1.0)):
                p.grad = g
            optimizer.step()
        return [t.clone() for p in params for t in (p.detach(), *optimizer.state[p].values())]
    train(0, 3)
    state = copy.deepcopy(optimizer.state_dict())
    weights = [p.detach().clone() for p in params]
    expected = train(3, 6)
    with torch.no_grad():
        for p, weight in zip(params, weights):
            p.copy_(weight)
    optimizer.load_state_dict(state)
    assert all(same_bits(a, b) for a, b in zip(train(3, 6), expected))


def test_removed_params_are_forgotten():
    params = params_of([(500,), (30,)], torch.bfloat16, 1)
    optimizer = AdamW(params, lr=1e-3, offload=True)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    del optimizer.state[params[1]], optimizer.param_groups[0]["params"][1]
    optimizer.step()
    assert set(optimizer._mirrors) == set(optimizer._versions) == {id(params[0])}


def test_zero_grad_drops_accumulated_gradients_and_changes_are_refused():
    sizes = [(500,), (30,)]
    params, others = params_of(sizes, torch.float32, 1), params_of(sizes, torch.float32, 1)
    first, second = AdamW(params, lr=0.01, accumulate=2), AdamW(others, lr=0.01)
    grads = [gradients(sizes, torch.float32, t, 1.0) for t in range(4)]
    backward(params, grads[0])
    backward(params, grads[1])
    assert torch.equal(params[0].grad, grads[1][0])  # the last gradient only
    first.zero_grad()
    backward(params, grads[2])
    backward(params, grads[3])
    for q, g, h in zip(others, grads[2], grads[3]):
        q.grad = g + h
    first.step()
    second.step()
    check_same(params, first, others, second, "after zero_grad()")
    backward(params, grads[0])  # adds to grads[3], as in torch without zero_grad()
    first.state[params[0]]["exp_avg"] = first.state[params[0]]["exp_avg"].clone()
    with pytest.raises(adamant.InvalidArgument, match="were accumulated, but params, states or gradient dtypes"):
        first.step()
    first.zero_grad()
    backward(params, grads[0])
    first.step()


def test_accumulated_gradients_are_dropped_after_a_step_also_for_the_norm():
    sizes = [(500,), (30,)]
    params, others = params_of(sizes, torch.float32, 1), params_of(sizes, torch.float32, 1)
    first, second = AdamW(params, lr=0.01, accumulate=2, max_norm=1.0), AdamW(others, lr=0.01, max_norm=1.0)
    grads = [gradients(sizes, torch.float32, t, 1.0) for t in range(3)]
    backward(params, [grads[0][0], None])
    backward(params, [grads[1][0], None])
    others[0].grad = grads[0][0] + grads[1][0]
    assert first.step() == second.step()
    params[0].grad = None
    backward(params, grads[2])  # the first gradient of the second param
    for q, g in zip(others, grads[2]):
        q.grad = g
    assert first.step() == second.step()
    check_same(params, first, others, second, "after two steps")


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None])
def test_accumulate_must_be_a_number_of_calls(bad):
    with pytest.raises(adamant.InvalidArgument, match="accumulate is .*, but must be a number of backward"):
        AdamW(params_of([(3,)], torch.float32, 1), accumulate=bad)


@pytest.mark.parametrize("ways", [{"overlap": True}, {"accumulate": 2}], ids=str)
def test_distributed_data_parallel_is_refused(ways, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        optimizer = AdamW(model.parameters(), **ways)
        with pytest.raises(adamant.InvalidArgument, match="belongs to a DistributedDataParallel"):
            model(torch.ones(1, 3)).sum().backward()
        other = torch.nn.Linear(3, 2)  # without an optimizer
        optimizer = AdamW(other.parameters(), **ways)
        other(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        del model
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()


# Other changes of gradients with accumulate and overlap

SIZES = [(1000,), (50, 20)]


def summing(**ways):
    params = params_of(SIZES, torch.float32, 0)
    return params, AdamW(params, lr=0.01, **{"accumulate": 2, **ways})


def back(params, *seeds):
    for seed in seeds:
        backward(params, gradients([p.shape for p in params], params[0].dtype, seed, 1.0))


def check_is_step_of(params, *seeds):
    others = params_of(SIZES, torch.float32, 0)
    back(others, *seeds)
    AdamW(others, lr=0.01).step()
    assert all(same_bits(p, q) for p, q in zip(params, others))


def test_accumulated_gradients_survive_a_missing_last_gradient():
    params, optimizer = summing()
    back(params, 1, 2)
    torch.autograd.grad(sum(p.square().sum() for p in params), params)  # runs hooks and sets no gradient
    optimizer.step()
    check_is_step_of(params, 1, 2)
    params, optimizer = summing()
    back(params, 1)

    def fails(grad):
        raise ValueError
    handle = params[0].register_hook(fails)
    with pytest.raises(ValueError):
        back(params, 2)
    handle.remove()
    optimizer.step()
    check = params_of(SIZES, torch.float32, 0)
    back(check, 1)
    AdamW(check[:1], lr=0.01).step()
    assert same_bits(params[0], check[0])


def test_a_models_zero_grad_drops_accumulated_gradients():
    params, optimizer = summing()
    back(params, 5, 6)
    for p in params:
        p.grad = None
    back(params, 1, 2)
    optimizer.step()
    check_is_step_of(params, 1, 2)
    params, optimizer = summing()
    back(params, 5, 6)
    params[0].grad = None
    with pytest.raises(adamant.InvalidArgument, match="set to None while gradients accumulate, and others were not"):
        back(params, 1)


def test_a_changed_last_gradient_is_refused():
    for change in (lambda p: p.grad.mul_(0.5), lambda p: setattr(p, "grad", p.grad * 0.5)):
        params, optimizer = summing()
        back(params, 1, 2)
        before = [p.detach().clone() for p in params]
        kept = [p.grad for p in params]  # keeps the addresses in use
        change(params[0])
        with pytest.raises(adamant.InvalidArgument, match="but with accumulate it is only the last part of a sum"):
            optimizer.step()
        assert all(same_bits(p, q) for p, q in zip(params, before)) and len(kept) == 2
    params, optimizer = summing()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in (1, 2):
        grads = gradients(SIZES, torch.float32, seed, 1.0)
        scaler.scale(sum((p * g).sum() for p, g in zip(params, grads))).backward()
    with pytest.raises(adamant.InvalidArgument, match="a GradScaler steps this optimizer"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    back(params, 1, 2)
    optimizer.step()
    check_is_step_of(params, 1, 2)


def test_groups_and_states_do_not_change_while_accumulating():
    params, optimizer = summing()
    state = copy.deepcopy(optimizer.state_dict())
    back(params, 1, 2)
    with pytest.raises(adamant.InvalidArgument, match="accumulated, but a group is added. Call step"):
        optimizer.add_param_group({"params": params_of([(3,)], torch.float32, 1)})
    with pytest.raises(adamant.InvalidArgument, match="accumulated, but a state is loaded. Call step"):
        optimizer.load_state_dict(state)
    optimizer.step()
    check_is_step_of(params, 1, 2)


@pytest.mark.parametrize("ways", [{"accumulate": 2}, {"overlap": True}, {}], ids=str)
def test_the_last_of_two_optimizers_over_the_same_params_gets_gradients(ways):
    params = params_of(SIZES, torch.float32, 0)
    old = AdamW(params, lr=0.5, overlap=True)
    old_too = AdamW(params, lr=0.5, accumulate=2)
    new = AdamW(params, lr=0.01, **ways)
    back(params, 1, 2) if "overlap" not in ways else back(params, 1)
    new.step()
    check_is_step_of(params, 1, 2) if "overlap" not in ways else check_is_step_of(params, 1)
    assert old.last_report is old_too.last_report is None


@pytest.mark.parametrize("ways", [{"overlap": True}, {"overlap": True, "max_norm": 1e9}, {"accumulate": 2},
                                  {"accumulate": 2, "offload": True},
                                  {"accumulate": 2, "offload": True, "overlap": True}], ids="+".join)
def test_hooks_run_in_several_threads(ways):
    sizes = [(3000,)] * 30
    params, others = params_of(sizes, torch.float32, 0), params_of(sizes, torch.float32, 0)
    first, second = AdamW(params, lr=0.01, **ways), AdamW(others, lr=0.01, max_norm=ways.get("max_norm"))
    for t in range(12):
        for micro in range(ways.get("accumulate", 1)):
            grads = gradients(sizes, torch.float32, 10 * t + micro, 1.0)
            threads = [threading.Thread(target=backward, args=(params[i::2], grads[i::2])) for i in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            backward(others, grads)
        first.step()
        second.step()
        check_same(params, first, others, second, f"step {t}")
        first.zero_grad()
        second.zero_grad()


@pytest.mark.parametrize("ways", [{"master": True}, {"offload": True}, {"master": True, "offload": True}], ids="+".join)
@pytest.mark.parametrize("how", ["data", "after load"])
def test_replaced_param_data_is_detected(ways, how):
    params = params_of([(500,)], torch.bfloat16, 1)
    optimizer = AdamW(params, lr=0.5, **ways)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    if how == "data":
        params[0].data = torch.full((500,), 7.0, dtype=torch.bfloat16)
    else:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with torch.no_grad():
            params[0].fill_(7.0)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert 6 < params[0].float().mean() < 7


def test_params_that_require_gradients_later_accumulate_in_float32():
    frozen, free = params_of([(500,), (30,)], torch.bfloat16, 1)
    frozen.requires_grad_(False)
    optimizer = AdamW([frozen, free], lr=0.01, accumulate=16, state_format="float32")
    frozen.requires_grad_(True)
    total = torch.zeros(500)
    for seed in range(16):
        grads = gradients([(500,), (30,)], torch.bfloat16, seed, 1.0)
        backward([frozen, free], grads)
        total += grads[0].float()
    optimizer.step()
    assert torch.allclose(optimizer.state[frozen]["exp_avg"], 0.1 * total, rtol=1e-6)


def test_empty_params_do_not_stop_the_ring(monkeypatch):
    monkeypatch.setattr(_host_copies, "_ring_bytes", 1 << 10)
    sizes = [(0,), *[(4000,)] * 8, (0,)]
    params, others = params_of(sizes, torch.float32, 1), params_of(sizes, torch.float32, 1)
    first, second = AdamW(params, lr=0.01, offload=True), AdamW(others, lr=0.01)
    for t in range(2):
        for p, q, g in zip(params, others, gradients(sizes, torch.float32, t, 1.0)):
            p.grad, q.grad = g, g
        first.step()
        second.step()
    check_same(params, first, others, second, "a small ring")


def test_distributed_data_parallel_is_searched_once(monkeypatch, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        params, optimizer = summing()
        looks = []
        monkeypatch.setattr(gc, "get_objects", lambda: looks.append(1) or [])
        for t in range(3):
            back(params, 1, 2)
            optimizer.step()
            optimizer.zero_grad()
        assert len(looks) == 1
    finally:
        torch.distributed.destroy_process_group()


def test_fsdp2_overlaps_and_refuses_a_second_backward(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        for layer in (model[0], model[1], model):
            fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
        optimizer = AdamW(model.parameters(), lr=0.01, overlap=True, max_norm=1.0)
        for t in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            assert (optimizer._open is not None) == (t > 0)
            optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(adamant.InvalidArgument, match="called again before step"):
            model(torch.ones(2, 64)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_copy_threads_and_hooks_end_with_their_optimizer(monkeypatch):
    monkeypatch.setattr(_host_copies, "_idle_seconds", 0.05)
    params = params_of(SIZES, torch.float32, 0)
    for _ in range(3):
        optimizer = AdamW(params, lr=0.01, offload=True, accumulate=3)
        back(params, 1, 1)
        del optimizer
        gc.collect()
        assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in params)
    until = time.monotonic() + 20
    while any("adamant" in thread.name for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any("adamant" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("ways", [{"accumulate": 3}, {"overlap": True}], ids=str)
def test_a_process_may_exit_during_a_step(ways):
    script = f"""
import torch
from adamant.torch import AdamW
params = [torch.nn.Parameter(torch.ones(1 << 20)) for _ in range(4)]
optimizer = AdamW(params, offload=True, **{ways})
for t in range(2):
    sum(p.square().sum() for p in params).backward()
    if t == 0 and {ways.get("accumulate", 1)} == 1:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert words(script) == []


def test_an_ended_copy_thread_is_replaced(monkeypatch):
    monkeypatch.setattr(_host_copies, "_idle_seconds", 0.01)
    params, optimizer = summing(offload=True)
    for seed in (1, 2):
        back(params, seed)
        time.sleep(0.1)
    optimizer.step()
    check_is_step_of(params, 1, 2)


def test_modules_with_hooks_can_be_converted():
    model = torch.nn.Linear(4, 4)
    optimizer = AdamW(model.parameters(), lr=0.01, overlap=True, accumulate=2)
    for param in model.parameters():
        torch.utils.swap_tensors(param, torch.nn.Parameter(param.detach().clone()))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("kind,how", [(torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"master": True}),
                                      (torch.float16, {"master": True}), (torch.bfloat16, {"state_format": "split_float32"})])
def test_gpu_params_have_the_bits_of_host_params(kind, how, max_norm, overlap):
    sizes = [(3, 1000), (5,), (2000, 70), (1,)]
    params = [torch.nn.Parameter(p.detach().cuda()) for p in params_of(sizes, kind, 1)]
    others = params_of(sizes, kind, 1)
    options = {"lr": 0.01, "max_norm": max_norm, **how}
    first, second = AdamW(params, overlap=overlap, **options), AdamW(others, **options)
    for t in range(5):
        grads = gradients(sizes, kind, t, 1.0)
        first.zero_grad()
        backward(params, [g.cuda() for g in grads])
        for q, g in zip(others, grads):
            q.grad = g
        first.step()
        second.step()
        check_same([torch.nn.Parameter(p.detach().cpu()) for p in params], _Renamed(first, params), others, second,
                   f"step {t}")
    assert all(value.device.type == "cpu" for state in first.state.values() for value in state.values())
    if not how and kind != torch.float16:  # torch converts masters to the dtype of params
        loaded = torch.optim.AdamW(params, lr=0.01)
        loaded.load_state_dict(first.state_dict())
        first.load_state_dict(loaded.state_dict())
    assert all(value.device.type == "cpu" for state in first.state.values() for value in state.values())


class _Renamed:
    """An optimizer's states by other params in the same order."""

    def __init__(self, of, params):
        self.states = [of.state[p] for p in params]
        self.next = iter(self.states)
        self.state = self

    def __getitem__(self, param):
        return next(self.next)
