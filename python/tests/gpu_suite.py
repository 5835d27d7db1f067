# SPDX-License-Identifier: Apache-2.0
"""ZenFlow with params on a GPU has the bits of params in host memory.

Runs without a GPU over the CUDA imitation of libadamant_c_on_host:

    ADAMANT_C_LIBRARY=build/test/tests/device/libadamant_c_on_host.so python -m pytest gpu_suite.py
"""
import copy
import ctypes
import gc
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant import _library, _zenflow_device, _zenflow_steps  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

from optimizer_modes import position_of  # noqa: E402

from test_zenflow import (bf16, bits, draw, each_format, f32, masters_of, raw, same, same_bits, shapes,  # noqa: E402
                          steps, window)

library = _library.library()
if not hasattr(library, "on_host_stream"):
    pytest.skip("the library has no imitation of CUDA: see above", allow_module_level=True)
for name in ("on_host_stream", "on_host_event", "on_host_pinned"):
    getattr(library, name).restype = ctypes.c_void_p
for name in ("on_host_launches", "on_host_used_bytes"):
    getattr(library, name).restype = ctypes.c_uint64
library.on_host_event.argtypes = library.on_host_wait.argtypes = library.on_host_forget.argtypes = [ctypes.c_void_p]
library.on_host_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
library.on_host_pinned.argtypes = [ctypes.c_size_t]
library.on_host_fail_copy.argtypes = [ctypes.c_uint32]
library.on_host_set_device.argtypes = [ctypes.c_size_t, ctypes.c_int32]
library.adamant_device_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)]

gpu = _zenflow_device.CudaDevice(0)
allocations = []  # begin and end of memory on the imitated GPU
stream = library.on_host_stream()  # the caller's


def tensor_at(address, shape, kind):
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer((ctypes.c_uint8 * (count * kind.itemsize)).from_address(address), dtype=kind).view(shape)


def on_gpu(values):
    """A copy of the tensor in the imitated GPU's memory. The memory is never freed."""
    address = ctypes.c_uint64()
    size = values.numel() * values.element_size()
    _library.check(library.adamant_device_allocate(gpu.pointer, size, ctypes.byref(address)))
    allocations.append((address.value, address.value + size))
    return tensor_at(address.value, values.shape, values.dtype).copy_(values)


def is_there(tensor):
    return not tensor.numel() or any(begin <= tensor.data_ptr() < end for begin, end in allocations)


class DeviceOnHost(_zenflow_device.ZenFlowDevice):
    made = []

    def __init__(self, device):
        super().__init__(device)
        self.made.append(self)
        self.events, self.kept = [], []

    def empty(self, shape, kind):
        return on_gpu(torch.full(tuple(shape), 7, dtype=kind))

    def empty_pinned(self, shape, kind):
        count = torch.Size(shape).numel()
        return tensor_at(library.on_host_pinned(max(1, count * kind.itemsize)), tuple(shape), kind)

    def can_use(self, tensor):
        return super().can_use(tensor) and is_there(tensor)

    def copy(self, target, source):
        """Copies asynchronously, as on a stream of a GPU."""
        source = source.contiguous()
        self.kept = self.kept[-100:] + [source]
        if target.is_contiguous():
            library.on_host_copy(stream, target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
        else:
            self.wait_for_caller()
            target.copy_(source)

    def record_event(self):
        self.events.append(library.on_host_event(stream))
        return self.events[-1]

    def wait_for_caller(self):
        library.on_host_wait(stream)

    def release_cache(self):
        pass


def gpu_of(params):
    kinds = {is_there(p) for p in params if p.numel()}
    if True not in kinds:
        return None, ""
    return (torch.device("cuda", 0), "") if kinds == {True} else (None, "params are here and there")


@pytest.fixture(autouse=True)
def imitated(monkeypatch):
    monkeypatch.setattr(_zenflow_steps.ZenFlowSteps, "new_device", DeviceOnHost)
    monkeypatch.setattr(_zenflow_steps.ZenFlowSteps, "find_gpu", staticmethod(gpu_of))
    DeviceOnHost.made.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    library.on_host_restart()
    library.on_host_set_device(1 << 30, 1)


def params_of(kind=f32, seed=0, sizes=shapes, on=True):
    made = torch.Generator().manual_seed(seed)
    values = [torch.randn(size, generator=made).to(kind) for size in sizes]
    return [torch.nn.Parameter(on_gpu(value) if on else value) for value in values]


def pair(kind=f32, sizes=shapes, **options):
    made = {"lr": 0.01, "max_norm": 1.0, "zenflow": window, **options}
    runs = [params_of(kind, sizes=sizes, on=on) for on in (False, True)]
    return [(params, AdamW(params, **made)) for params in runs]


def step(runs, t, change=lambda params: None):
    for params, optimizer in runs:
        draw(params, t)
        change(params)
        optimizer.step()
    assert all(map(same_bits, *(params for params, _ in runs))), t
    return [optimizer.last_report for _, optimizer in runs]


@each_format
@pytest.mark.parametrize("more", [{}, {"update_interval": "auto", "max_deferred": 3, "overlap": False},
                                  {"full_warm_up_rounds": 2}], ids=str)
def test_gpu_params_have_the_bits_of_host_params(kind, options, more):
    runs = pair(kind, zenflow={**window, **more}, on_nonfinite="skip", **options)
    moved = 0
    for t in range(16):
        def change(params):
            if t % 5 == 3:
                params[t % 3].grad = None
            if t == 7:
                params[0].grad[3, 5] = float("nan")
        here, away = step(runs, t, change)
        for name in ("outcome", "elements", "global_norm", "nonfinite_grads", "clip_coefficient"):
            assert getattr(here, name) == getattr(away, name), name
        for name in ("warm_up", "selected", "columns_moved", "deferred", "window_ended", "deferred_stepped"):
            assert getattr(here.zenflow, name) == getattr(away.zenflow, name), name
        assert here.device_elements == 0 and away.skipped == (t == 7)
        if away.zenflow.warm_up:  # a plain step of all elements; the device steps only vectors
            assert 0 < away.device_elements < away.elements
        else:
            assert away.device_elements == away.elements and away.ratio == (1 if t == 7 else 0)
        assert away.device_down_bytes > 0
        moved += away.zenflow.columns_moved
        if t % 6 == 5:
            assert same(*(bits(*run) for run in runs)), t
    assert moved > 5 + 3 + 2
    for _, optimizer in runs:
        optimizer.flush()
    assert same(*(bits(*run) for run in runs))


@each_format
def test_a_run_goes_on_from_its_states_there_here_and_back(kind, options):
    (params, first), (others, second) = pair(kind, **options)
    for t in range(14):
        step([(params, first), (others, second)], t)
        model = pickle.loads(pickle.dumps([p.detach() for p in others]))
        saved = pickle.loads(pickle.dumps(second.state_dict()))
        others = params_of(kind, seed=t, on=t % 3 != 1)
        second = AdamW(others, lr=1.0, max_norm=1.0, zenflow=window, **options)
        with torch.no_grad():
            for p, q in zip(others, model):
                p.copy_(q)
        second.load_state_dict(saved)
        assert same(bits(params, first), bits(others, second)), t


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_copies_go_on_in_host_memory(copied):
    params = params_of(bf16)
    first = AdamW(params, lr=0.01, master=True, zenflow=window)
    steps(params, first, 0, 5)
    others, second = copied((params, first))  # copies of the imitated GPU's tensors are in host memory
    steps(params, first, 5, 12)
    steps(others, second, 5, 12)
    assert same(bits(params, first), bits(others, second))
    assert first.last_report.device_elements and not second.last_report.device_elements


@each_format
def test_weights_written_by_others_reach_the_masters(kind, options):
    runs = pair(kind, weight_decay=0, zenflow={**window, "overlap": False}, **options)
    for t in range(12):
        if t % 4 == 2:
            with torch.no_grad():
                for params, _ in runs:
                    params[t % 3].view(-1)[:7] = 0.375 * t
                    params[0][5] = 0.25
        step(runs, t)
    states = [optimizer.state_dict()["state"] for _, optimizer in runs]
    for i, (p, q) in enumerate(zip(*(params for params, _ in runs))):
        assert torch.equal(masters_of(states[0][i], p), masters_of(states[1][i], q))
    assert same(*(bits(*run) for run in runs))


def test_weights_written_before_publishing_are_refused():
    params = params_of(bf16)
    optimizer = AdamW(params, lr=0.01, master=True, zenflow=window)
    steps(params, optimizer, 0, 4)
    with torch.no_grad():
        params[0][3] = 1.0
    draw(params, 4)
    with pytest.raises(adamant.InvalidArgument, match=r"weights of group0.0: .*written while.*flush\(\) before"):
        optimizer.step()
    optimizer.take_weights()
    optimizer.step()
    assert optimizer.last_report.device_elements
    assert not optimizer.state_dict()["state"][0]["publishing"].any()


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "master_param"])
@pytest.mark.parametrize("how", ["replaced", "in place", "data"])
def test_states_written_while_the_gpu_has_newer_ones_are_refused(how, name):
    runs = pair(bf16, master=True, zenflow={**window, "overlap": False})
    for t in range(6):
        step(runs, t)
    params, optimizer = runs[1]
    state = optimizer.state[params[0]]
    if how == "replaced":
        state[name] = state[name].clone()
    elif how == "in place":
        state[name].mul_(3)
    else:
        state[name].data = state[name].data.clone()
    before = [raw(p).clone() for p in params]
    draw(params, 6)
    with pytest.raises(adamant.InvalidArgument, match=f"state of group0.0: {name} cannot be written now.*state_dict"):
        optimizer.step()
    assert same(before, [raw(p) for p in params])
    optimizer.state_dict()
    state[name] = state[name].clone()
    optimizer.step()


@pytest.mark.parametrize("what", ["param", "exp_avg", "exp_avg in place", "master_param", "gradients", "group"])
def test_replaced_tensors_are_detected(what):
    runs = pair(bf16, master=True, zenflow={**window, "overlap": False})
    for t in range(12):
        for params, optimizer in runs if t == 5 else ():
            p = params[0]
            state = optimizer.state_dict() and optimizer.state[p]
            if what == "param":
                p.data = on_gpu(p.detach() * 2) if is_there(p) else p.detach() * 2
            elif what == "exp_avg":
                state["exp_avg"] = state["exp_avg"] * 3
            elif what == "exp_avg in place":
                state["exp_avg"].mul_(3)
            elif what == "master_param":
                state["master_param"].add_(0.25)
            elif what == "group":
                optimizer.param_groups[0]["lr"] = 0.5

        def change(params):
            for p in params:
                if what == "gradients" and t > 5:
                    p.grad_dtype = None
                    p.grad = p.grad.float()
        step(runs, t, change)
    assert same(*(bits(*run) for run in runs))


def test_params_in_any_memory_order_and_alignment():
    runs = pair(bf16, sizes=[(64, 20), (6, 8, 64), (21,)], master=True)
    params = runs[1][0]
    params[1].data = on_gpu(params[1].detach().permute(2, 0, 1).contiguous()).permute(1, 2, 0)
    params[2].data = on_gpu(torch.cat([torch.zeros(1, dtype=bf16), params[2].detach()]))[1:]
    assert params[2].data_ptr() % 16 == 2 and not params[1].is_contiguous()
    for t in range(12):
        for of, optimizer in runs:
            draw(of, t)
            optimizer.step()
            library.on_host_wait(stream)
        assert all(map(same_bits, *(of for of, _ in runs))), t
    assert same(*(bits(*run) for run in runs))


def test_steps_wait_for_gradients_on_the_callers_stream():
    """Gradients arrive late on the caller's stream."""
    runs = pair(f32, sizes=[(640, 40), (300,)])
    for t in range(30):
        step(runs, t)
    assert len(runs[1][1]._zenflow.device.events) == 30
    assert same(*(bits(*run) for run in runs))


def test_device_memory_is_freed():
    gc.collect()
    params = params_of(f32)
    optimizer = AdamW(params, zenflow=window)
    before, known = library.on_host_used_bytes(), len(allocations)
    steps(params, optimizer, 0, 5)
    of_tensors = sum(end - begin for begin, end in allocations[known:])
    assert library.on_host_used_bytes() > before + of_tensors + sum(p.numel() for p in params) * 4
    native = optimizer._zenflow.native  # a traceback may also hold a reference
    optimizer.load_state_dict(optimizer.state_dict())
    assert native.pointer is None and library.on_host_used_bytes() == before + of_tensors
    steps(params, optimizer, 5, 9)
    of_tensors = sum(end - begin for begin, end in allocations[known:])
    del optimizer
    gc.collect()
    assert library.on_host_used_bytes() == before + of_tensors


def test_short_gpu_memory_falls_back_to_host_memory_with_a_warning():
    runs = pair(f32, sizes=[(640, 400), (300,)])
    library.on_host_set_device(library.on_host_used_bytes() + 2 * 640 * 400 * 4, 1)
    fallback = "params are on a GPU, but zenflow steps them in host memory: .*bytes"
    with pytest.warns(RuntimeWarning, match=fallback) as seen:
        step(runs, 0)
    assert len(seen) == 1
    for t in range(1, 8):
        reports = step(runs, t)
    assert reports[1].device_elements == 0
    assert same(*(bits(*run) for run in runs))


def test_a_selection_that_finds_no_memory_fails_and_the_run_goes_on():
    runs = pair(f32, sizes=[(640, 40), (300,)])
    for t in range(6):
        step(runs, t)
    (here, first), (params, optimizer) = runs
    before = bits(params, optimizer)
    library.on_host_set_device(library.on_host_used_bytes() - 640 * 10 * 4, 1)
    draw(params, 6)
    for _ in range(2):
        with pytest.raises(adamant.Unavailable, match="bytes"):
            optimizer.step()
    assert same(before, bits(params, optimizer))
    library.on_host_set_device(1 << 30, 1)
    for t in range(6, 14):
        step(runs, t)
    assert same(*(bits(*run) for run in runs))


@pytest.mark.parametrize("why", ["no GPU", "here and there", "offload"])
def test_where_a_gpu_cannot_be_had_a_warning_says_so_once(why, monkeypatch):
    runs = pair(f32, offload=why == "offload")
    if why == "no GPU":
        library.on_host_set_device(1 << 30, 0)
    if why == "here and there":
        params = params_of(f32)
        params[1] = torch.nn.Parameter(params[1].detach().clone())
        runs[1] = (params, AdamW(params, lr=0.01, max_norm=1.0, zenflow=window))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for t in range(6):
            reports = step(runs, t)
        runs[1][1].load_state_dict(runs[1][1].state_dict())
        step(runs, 6)
    texts = [str(each.message) for each in seen]
    assert reports[1].device_elements == 0 and not DeviceOnHost.made
    if why == "offload":  # host memory was requested
        assert not texts
    else:
        assert len(texts) == 1 and "in host memory: " in texts[0]
        reason = "cannot use CUDA device 0: there is none" if why == "no GPU" else "params are here and there"
        assert reason in texts[0]
    assert same(*(bits(*run) for run in runs))


def test_a_failed_step_changes_nothing(monkeypatch):
    runs = pair(bf16, master=True)
    for t in range(5):
        step(runs, t)
    params, optimizer = runs[1]
    before = bits(params, optimizer)
    native = optimizer._zenflow.native
    call, failed = native._call, []

    def failing(function, *arguments):
        if function == "adamant_zenflow_submit" and arguments[0] == 2:
            failed.append(function)
            raise RuntimeError("a submit that fails")
        return call(function, *arguments)
    monkeypatch.setattr(native, "_call", failing)
    draw(params, 5)
    with pytest.raises(RuntimeError, match="a submit that fails"):
        optimizer.step()
    monkeypatch.setattr(native, "_call", call)
    assert failed and same(before, bits(params, optimizer))
    for t in range(5, 12):
        step(runs, t)
    assert same(*(bits(*run) for run in runs))


@pytest.mark.parametrize("seed", range(4))
def test_a_failed_gpu_leaves_the_previous_step_and_the_run_continues(seed):
    runs = pair(bf16, sizes=[(64, 20), (21,), (128, 6)], master=True)
    (here, first), (params, optimizer) = runs
    failures = 0

    def steps_taken():
        for _ in range(20):
            try:
                return position_of(optimizer)["steps"]
            except adamant.DeviceFailed:  # raised by background work
                pass
        raise AssertionError("the device keeps failing")
    for t in range(24):
        draw(here, t)
        draw(params, t)
        first.step()
        if t >= 2:
            library.on_host_fail_copy(1 + (5 * t + 7 * seed) % 23)
        for attempt in range(4):
            try:
                optimizer.step()
            except adamant.DeviceFailed:
                failures += 1
            if steps_taken() == t + 1:
                break
        assert steps_taken() == t + 1
        if t % 3 == 2:
            assert same(*(bits(*run) for run in runs)), t
    assert failures > 4


def test_find_gpu(monkeypatch):
    class On:
        def __init__(self, name, count=1):
            self.device, self.count = torch.device(name), count

        def numel(self):
            return self.count
    of = _zenflow_device.find_gpu
    assert of([On("cpu"), On("cpu")]) == (None, "") and of([]) == (None, "")
    assert of([On("cuda:1"), On("cpu", 0)]) == (torch.device("cuda", 1), "")
    assert of([On("cuda:1"), On("cpu")]) == (None, "params are on cpu and cuda:1, but must all be on one GPU")
    assert "cuda:0 and cuda:1" in of([On("cuda:1"), On("cuda:0")])[1]
    assert of([On("xpu:0")]) == (None, "adamant supports CUDA devices only")
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert of([On("cuda:1")]) == (None, "adamant supports CUDA devices only")
