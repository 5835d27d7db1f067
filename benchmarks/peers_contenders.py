# SPDX-License-Identifier: Apache-2.0
"""Who is measured by peers.py, and on what: the arrays, which all contenders of a job share, and one function for each
contender that makes a call of its step.

A step is AdamW with decoupled weight decay and bias correction, without clipping and without a look for infinities. A
contender's function takes a Job and returns (step, note), or raises Missing. Peers get the arrays as their own tensors,
moments put into their optimizer's state, so that no one has better memory than another.
"""
import ctypes
import functools
import gc
import itertools
import math
import mmap
import os
import sys
import time
from collections import namedtuple
from ctypes import byref, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
import ctypes_loop  # the structs of the C interface

ARRAYS = ("param", "grad", "exp_avg", "exp_avg_sq", "weight_out")
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(np.int16)  # PyTorch takes bfloat16 from NumPy as int16 only
Types = namedtuple("Types", ("number",) + ARRAYS + ("tolerance",))  # number: as in peers_native.cpp
# tolerance: of the check against a step in double precision; where bfloat16 is stored, its rounding.
TYPES = {
    "f32": Types(0, FLOAT32, FLOAT32, FLOAT32, FLOAT32, None, 1e-4),
    "bf16_f32": Types(1, BFLOAT16, BFLOAT16, FLOAT32, FLOAT32, None, 2**-7),
    "mixed": Types(2, FLOAT32, BFLOAT16, FLOAT32, FLOAT32, BFLOAT16, 1e-4),
    "bf16": Types(3, BFLOAT16, BFLOAT16, BFLOAT16, BFLOAT16, None, 2**-5),
}
BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.01
GRAD_SCALE = 1e-3


class Missing(Exception):
    """Why a contender does not take part."""


def bytes_per_element(types):
    """What a step must read and write; as shard::bytes_per_element()."""
    t = TYPES[types]
    rewritten = t.param.itemsize + t.exp_avg.itemsize + t.exp_avg_sq.itemsize
    return 2 * rewritten + t.grad.itemsize + (t.weight_out.itemsize if t.weight_out else 0)


def array_bytes_per_element(types):
    """Of the arrays of a Job."""
    return sum(dtype.itemsize for dtype in TYPES[types][1:6] if dtype) + (4 if types == "mixed" else 0)


def narrow(x):
    """float32 to bfloat16, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(BFLOAT16)


def widen(x):
    return x if x.dtype == FLOAT32 else (x.view(np.uint16).astype(np.uint32) << 16).view(FLOAT32)


def stored(x, dtype):
    x = np.ascontiguousarray(x, dtype=np.float32)
    return x if dtype == FLOAT32 else narrow(x)


# ------------------------------------------------------------------------------------------------------------- memory

HUGE_PAGE = 2 << 20


def allocate(native, dtype, n, threads, pages, which):
    """n elements in fresh memory, touched by the threads that use them. Arrays begin at a cache line, and at different
    offsets in their pages, as a program's do: at equal offsets each load would wait for the store of another array."""
    size = n * dtype.itemsize
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE" if pages == "2M" else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        try:
            memory.madvise(advice)
        except OSError:
            pass  # a kernel without huge pages; huge_pages_share() shows it
    bytes_ = np.frombuffer(memory, dtype=np.uint8)
    begin = -bytes_.ctypes.data % HUGE_PAGE + which * 1088
    array = bytes_[begin:begin + size].view(dtype)
    native.peers_touch(c_void_p(array.ctypes.data), c_size_t(size), c_int32(threads))
    return array


def huge_pages_share(job):
    """Of the job's arrays, as the kernel says; None where it says nothing."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            huge = next(int(line.split()[1]) * 1024 for line in file if line.startswith("AnonHugePages:"))
    except (OSError, StopIteration):
        return None
    return min(1.0, huge / (job.n * array_bytes_per_element(job.types)))


# ---------------------------------------------------------------------------------------------------------------- job


class Library:
    """adamant's C interface, with an executor of the given number of threads."""

    def __init__(self, path, threads):
        class ExecutorOptions(ctypes.Structure):
            _fields_ = [("struct_bytes", c_size_t), ("isa", c_char_p), ("pus", c_char_p), ("threads", c_uint32),
                        ("bind", c_int32), ("min_slice_elems", c_size_t)]

        ctypes_loop.adamant = self.c = ctypes_loop.load(path)
        options = ctypes_loop.initialised(ExecutorOptions, "executor_options")
        options.threads = threads
        self.executor = c_void_p()
        ctypes_loop.check(self.c.adamant_executor_create(byref(options), byref(self.executor)))
        isa, count, pus = c_char_p(), c_uint32(), c_char_p()
        ctypes_loop.check(self.c.adamant_executor_describe(self.executor, byref(isa), byref(count), byref(pus)))
        self.isa, self.threads = isa.value.decode(), count.value
        self.version = self.c.adamant_version().decode()

    def free(self):
        self.c.adamant_executor_free(self.executor)


class Coefficients(ctypes.Structure):
    """Of plain.hpp."""
    _fields_ = [(name, c_float) for name in ("beta1", "beta2", "inv_sqrt_bias2", "eps", "step_size", "decay")]


class Job:
    """The arrays of one combination of types and one size, and what steps over them have in common."""

    def __init__(self, library, native, types, n, threads, lr, pages="4K", kernel_only=False):
        self.library, self.native, self.types, self.n, self.threads = library, native, types, n, threads
        self.lr, self.pages, self.kernel_only = lr, pages, kernel_only
        self.steps = 0  # taken before contenders are made
        self.random = np.random.default_rng(1)
        self.cleanups = []
        t = TYPES[types]
        for which, name in enumerate(ARRAYS):
            dtype = getattr(t, name)
            setattr(self, name, allocate(native, dtype, n, threads, pages, which) if dtype else None)
        self.wide = allocate(native, FLOAT32, n, threads, pages, len(ARRAYS)) if types == "mixed" else None
        pool = self.random.standard_normal((1 << 20) + 12345, dtype=np.float32)
        pool[np.abs(pool) < 1e-4] = 1e-4  # moments of elements whose gradient stays zero would end as subnormals
        self.pool = pool
        self.grad_pool = stored(GRAD_SCALE * pool, t.grad)
        self.fill(self.param, stored(0.05 * pool, t.param))
        self.draw_gradients()

    def fill(self, array, pool):
        block = 1 << 19
        for begin in range(0, self.n, block):
            part = array[begin:begin + block]
            at = self.random.integers(pool.size - part.size)
            part[:] = pool[at:at + part.size]

    def draw_gradients(self):
        self.fill(self.grad, self.grad_pool)

    def pointers(self):
        arrays = [getattr(self, name) for name in ARRAYS]
        return (c_void_p * 5)(*[None if a is None else a.ctypes.data for a in arrays])

    def coefficients(self, t):
        return Coefficients(BETA1, BETA2, 1 / math.sqrt(1 - BETA2**t), EPS, self.lr / (1 - BETA1**t),
                            1 - self.lr * WEIGHT_DECAY)

    def close(self):
        for cleanup in reversed(self.cleanups):
            cleanup()
        self.__dict__.clear()
        gc.collect()  # optimizers hold their tensors in cycles


# --------------------------------------------------------------------------------------------------- the limits and us


def memory_limits(job):
    """{name: step} of every loop that moves the bytes and does no arithmetic."""
    limits, pointers = {}, job.pointers()
    for stores, what in enumerate(("cached stores", "weight_out streamed", "all stores streamed")):
        for ahead in (0, 1024, 2048, 4096):
            for bound, whose in enumerate(("OpenMP's threads", "bound threads")):
                def move(stores=stores, ahead=ahead, bound=bound):
                    return job.native.peers_limit(c_int32(TYPES[job.types].number), pointers, c_size_t(job.n),
                                                  c_int32(job.threads), c_size_t(ahead), c_int32(stores),
                                                  c_int32(bound))
                if move() == 0:
                    limits[f"{what}, prefetch {ahead}, {whose}"] = move
    return limits


def divider_limit(job, repeats):
    """{name: step}, where the arrays lie in cache: `repeats` times one square root and one division an element."""
    floats = []
    for which, array in ((2, job.exp_avg), (3, job.exp_avg_sq)):
        if array.dtype != FLOAT32:
            moments, array = array, allocate(job.native, FLOAT32, job.n, job.threads, job.pages, which)
            array[:] = widen(moments)
        floats.append(array)

    def divide():
        at = [c_void_p(array.ctypes.data) for array in floats]
        job.native.peers_divide(*at, c_size_t(job.n), c_int32(job.threads), c_int32(repeats))
    return {"one square root and one division": divide}


OURS = "adamant optimizer::step()"  # through the C interface, as an engine calls it; what others are compared with
OURS_PLAIN = "adamant step()"  # without an optimizer


def adamant_optimizer(job):
    c = job.library.c
    options = ctypes_loop.initialised(ctypes_loop.OptimizerOptions, "optimizer_options")
    options.on_nonfinite = 2  # apply: the peers do not look for infinities either
    optimizer = c_void_p()
    ctypes_loop.check(c.adamant_optimizer_create(job.library.executor, byref(options), byref(optimizer)))
    job.cleanups.append(lambda: c.adamant_optimizer_free(optimizer))
    hyper = ctypes_loop.initialised(ctypes_loop.Hyperparameters, "hyperparameters")
    hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay = job.lr, BETA1, BETA2, EPS, WEIGHT_DECAY
    hyper.decay = ctypes_loop.DECAY_DECOUPLED
    group = c_size_t()
    ctypes_loop.check(c.adamant_add_group(optimizer, b"all", byref(hyper), c_int32(0), byref(group)))
    shard = ctypes_loop.initialised(ctypes_loop.Shard, "shard")
    shard.elements = job.n
    for name in ARRAYS:
        array = getattr(job, name)
        if array is not None:
            setattr(shard, name, array.ctypes.data)
            setattr(shard, name + "_dtype",
                    ctypes_loop.FLOAT32 if array.dtype == FLOAT32 else ctypes_loop.BFLOAT16)
    ctypes_loop.check(c.adamant_add_shard(optimizer, group, b"all", byref(shard), None))
    ctypes_loop.check(c.adamant_prepare(optimizer, c_int32(0)))

    def step():
        if c.adamant_step(optimizer, None, None) != 0:
            raise RuntimeError(c.adamant_last_error().decode())
    return step, job.library.isa


class StepValues(ctypes.Structure):
    """Of peers_native.cpp."""
    _fields_ = [(name, c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]


def adamant_step(job):
    values, pointers = StepValues(job.lr, BETA1, BETA2, EPS, WEIGHT_DECAY), job.pointers()
    count = itertools.count(job.steps + 1)

    def step():
        if job.native.peers_step(c_int32(TYPES[job.types].number), pointers, c_size_t(job.n), c_int32(job.threads),
                                 byref(values), c_uint64(next(count))) != 0:
            raise RuntimeError("adamant::step() has thrown")
    return step, "from C++"


def counted(job, call):
    """call(coefficients of the next step)"""
    count = itertools.count(job.steps + 1)
    return lambda: call(job.coefficients(next(count)))


def plain_loop(job):
    if job.types not in ("f32", "bf16_f32"):
        raise Missing("has no such types")
    pointers = job.pointers()
    return counted(job, lambda c: job.native.peers_plain(
        c_int32(TYPES[job.types].number), pointers, c_size_t(job.n), c_int32(job.threads),
        byref(c))), "-O3 -march=native -ffast-math"


def separate_passes(job):
    if job.types != "mixed":
        raise Missing("there is nothing to separate where gradients and weights have the params' type")
    pointers, wide = job.pointers(), c_void_p(job.wide.ctypes.data)
    return counted(job, lambda c: job.native.peers_separate(
        c_int32(TYPES[job.types].number), pointers, wide, c_size_t(job.n), c_int32(job.threads),
        byref(c))), "widen, plain loop, round"


# -------------------------------------------------------------------------------------------------------------- peers


@functools.lru_cache(maxsize=None)  # what is said when an import is tried again says less
def import_failure(module):
    """Why it cannot be imported; empty if it can."""
    try:
        __import__(module)
    except ModuleNotFoundError as e:
        return f"{e.name} is not installed"
    except Exception as e:  # an installed package may fail in many ways to find what it needs
        return f"cannot be imported: {last_line(e)}"
    return ""


def imported(module):
    if import_failure(module):
        raise Missing(import_failure(module))
    return sys.modules[module]


def last_line(e):
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[-1][:200]}" if lines else type(e).__name__


class Tensors:
    """The job's arrays as PyTorch's, and a param with its gradient. Of mixed types, which no peer has, the gradient is
    a widened copy."""

    def __init__(self, job):
        torch = imported("torch")
        torch.set_num_threads(job.threads)

        def tensor(array):
            if array is None:
                return None
            t = torch.from_numpy(array)
            return t if array.dtype == FLOAT32 else t.view(torch.bfloat16)
        self.torch = torch
        self.arrays = {name: tensor(getattr(job, name)) for name in ARRAYS}
        self.wide = tensor(job.wide)
        self.exp_avg, self.exp_avg_sq = self.arrays["exp_avg"], self.arrays["exp_avg_sq"]
        self.param = torch.nn.Parameter(self.arrays["param"])
        self.param.grad = self.arrays["grad"] if self.wide is None else self.wide

    def with_casts(self, step):
        """The step, with what mixed types need around it; and what to say about that."""
        if self.wide is None:
            return step, ""

        def cast_and_step():
            self.wide.copy_(self.arrays["grad"])
            step()
            self.arrays["weight_out"].copy_(self.arrays["param"])
        return cast_and_step, "with separate casts"


def joined(*notes):
    return ", ".join(note for note in notes if note)


def torch_adamw(job, **kind):
    t = Tensors(job)
    optimizer = t.torch.optim.AdamW([t.param], lr=job.lr, betas=(BETA1, BETA2), eps=EPS, weight_decay=WEIGHT_DECAY,
                                    **kind)
    count = t.torch.tensor(float(job.steps))
    optimizer.state[t.param] = {"step": count, "exp_avg": t.exp_avg, "exp_avg_sq": t.exp_avg_sq}
    step, note = t.with_casts(optimizer.step)
    if not (job.kernel_only and "fused" in kind):
        return step, note
    # What step() ends in. Private, but 65536 elements take less time than the Python before it.
    fused, param, grad = t.torch._fused_adamw_, t.param.detach(), t.param.grad

    def kernel():
        count.add_(1)
        fused([param], [grad], [t.exp_avg], [t.exp_avg_sq], [], [count], amsgrad=False, lr=job.lr, beta1=BETA1,
              beta2=BETA2, weight_decay=WEIGHT_DECAY, eps=EPS, maximize=False)
    step, note = t.with_casts(kernel)
    return step, joined(note, "without the Python of step()")


def torch_fused(job):
    return torch_adamw(job, fused=True)


def torch_foreach(job):
    return torch_adamw(job, foreach=True)


build_seconds = {}  # of what a peer compiles on its first use, or loads then


def deepspeed_cpu_adam(job):
    t = Tensors(job)
    imported("deepspeed")
    start = time.perf_counter()
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder import CPUAdamBuilder
        CPUAdamBuilder().load()
    except Exception as e:
        raise Missing(f"its op cannot be built: {last_line(e)}") from e
    build_seconds.setdefault("DeepSpeed CPUAdam", time.perf_counter() - start)
    optimizer = DeepSpeedCPUAdam([t.param], lr=job.lr, betas=(BETA1, BETA2), eps=EPS, weight_decay=WEIGHT_DECAY,
                                 adamw_mode=True, fp32_optimizer_states=job.types != "bf16")
    optimizer.state[t.param] = {"step": job.steps, "exp_avg": t.exp_avg, "exp_avg_sq": t.exp_avg_sq}
    step, note = t.with_casts(optimizer.step)
    if not job.kernel_only:
        return step, note
    update, grad, count = optimizer.ds_opt_adam.adam_update, t.param.grad, itertools.count(job.steps + 1)
    step, note = t.with_casts(lambda: update(optimizer.opt_id, next(count), job.lr, BETA1, BETA2, EPS, WEIGHT_DECAY,
                                             True, t.param.data, grad, t.exp_avg, t.exp_avg_sq))
    return step, joined(note, "without the Python of step()")


def bitsandbytes_adamw(job):
    if job.types == "bf16":
        raise Missing("has no such types: its moments are float32 or 8 bits")
    t = Tensors(job)
    optimizer = imported("bitsandbytes").optim.AdamW([t.param], lr=job.lr, betas=(BETA1, BETA2), eps=EPS,
                                                     weight_decay=WEIGHT_DECAY, optim_bits=32)
    optimizer.state[t.param] = {"step": job.steps, "state1": t.exp_avg, "state2": t.exp_avg_sq}
    return t.with_casts(optimizer.step)


# In the order of the table. The first is warmed up with.
CONTENDERS = {
    OURS: adamant_optimizer,
    OURS_PLAIN: adamant_step,
    "plain loop": plain_loop,
    "separate passes": separate_passes,
    "DeepSpeed CPUAdam": deepspeed_cpu_adam,
    "PyTorch AdamW, fused": torch_fused,
    "PyTorch AdamW, foreach": torch_foreach,
    "bitsandbytes AdamW": bitsandbytes_adamw,
}

# What cannot take part whatever is installed.
NEVER = {"torchao": "its optimizers have moments of 8 or 4 bits; its CPUOffloadOptimizer needs a GPU, and steps by "
                    "PyTorch's fused AdamW"}
