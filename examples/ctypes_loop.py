#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training loop of c_loop.c in Python with ctypes only. Prints the same digest.

Run: ctypes_loop.py [LIBADAMANT_C]. The default is the environment variable ADAMANT_C_LIBRARY, or libadamant_c.so.1.
"""
import ctypes
import os
import sys
import tempfile
from ctypes import (POINTER, byref, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint16, c_uint32, c_uint64,
                    c_void_p)

INPUTS, OUTPUTS, SAMPLES, STEPS = 8, 2, 32, 200
FLOAT32, BFLOAT16, DECAY_DECOUPLED, C_VERSION = 1, 2, 1, 1


class LossScaling(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("initial_scale", c_double), ("growth_factor", c_double),
                ("backoff_factor", c_double), ("min_scale", c_double), ("max_scale", c_double),
                ("growth_interval", c_uint32), ("hysteresis", c_uint32)]


class OptimizerOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("max_norm", c_double), ("max_abs_grad", c_double),
                ("on_nonfinite", c_int32), ("speculate", c_int32), ("loss_scaling", POINTER(LossScaling)),
                ("journal_budget_bytes", c_size_t), ("keep_last_step", c_int32), ("reduce", c_void_p),
                ("reduce_user", c_void_p)]


class Hyperparameters(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("lr", c_double), ("beta1", c_double), ("beta2", c_double),
                ("eps", c_double), ("weight_decay", c_double), ("decay", c_int32), ("bias_correction", c_int32)]


class Shard(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("elements", c_size_t), ("param", c_void_p), ("grad", c_void_p),
                ("exp_avg", c_void_p), ("exp_avg_sq", c_void_p), ("weight_out", c_void_p), ("accumulator", c_void_p),
                ("param_dtype", c_int32), ("grad_dtype", c_int32), ("exp_avg_dtype", c_int32),
                ("exp_avg_sq_dtype", c_int32), ("weight_out_dtype", c_int32), ("accumulator_dtype", c_int32),
                ("shape", POINTER(c_size_t)), ("dims", c_size_t), ("begin", c_size_t)]


class StepValues(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("has_loss_scale", c_int32), ("has_max_norm", c_int32),
                ("has_max_abs_grad", c_int32), ("loss_scale", c_double), ("max_norm", c_double),
                ("max_abs_grad", c_double), ("lr", POINTER(c_double)), ("lr_count", c_size_t)]


def load(path):
    try:
        library = ctypes.CDLL(path)
        library.adamant_c_version.restype = c_uint32
    except (OSError, AttributeError) as error:
        sys.exit(f"cannot load libadamant_c: {error}. Give its path.")
    library.adamant_last_error.restype = c_char_p
    library.adamant_version.restype = c_char_p
    library.adamant_optimizer_free.argtypes = library.adamant_executor_free.argtypes = [c_void_p]
    library.adamant_optimizer_free.restype = library.adamant_executor_free.restype = None
    if library.adamant_c_version() != C_VERSION:
        sys.exit(f"cannot use {path}: it has version {library.adamant_c_version()} of the C interface, but this "
                 f"program needs version {C_VERSION}")
    return library


adamant = None


def check(status):
    if status != 0:
        raise RuntimeError(adamant.adamant_last_error().decode())


def initialised(kind, name):
    struct = kind()
    check(getattr(adamant, f"adamant_{name}_init")(byref(struct), c_size_t(ctypes.sizeof(struct))))
    return struct


def make_samples():
    """Inputs and targets. The same double operations in the same order as in c_loop.c."""
    state, x, y = 1, [], []
    for _ in range(SAMPLES):
        row = []
        for _ in range(INPUTS):
            state = (state * 1664525 + 1013904223) % 2**32
            row.append((state >> 22) / 512.0 - 1.0)
        x.append(row)
        y.append([])
        for o in range(OUTPUTS):
            total = 0.5 - o
            for i in range(INPUTS):
                total += row[i] * ((i + 3 * o) % 9 - 4) / 8.0
            y[-1].append(total)
    return x, y


class Model:
    """A linear model: the arrays of its two tensors, weight and bias, initially zero."""

    def __init__(self):
        self.shapes = [(OUTPUTS, INPUTS), (OUTPUTS, 1)]
        sizes = [rows * columns for rows, columns in self.shapes]
        self.param, self.grad, self.exp_avg, self.exp_avg_sq = ([(c_float * n)() for n in sizes] for _ in range(4))
        self.weight_out = [(c_uint16 * n)() for n in sizes]

    def forward(self, x, y):
        self.error, loss = [], 0.0
        for s in range(SAMPLES):
            self.error.append([])
            for o in range(OUTPUTS):
                total = self.param[1][o]
                for i in range(INPUTS):
                    total += x[s][i] * self.param[0][o * INPUTS + i]
                self.error[s].append(total - y[s][o])
                loss += self.error[s][o] * self.error[s][o]
        return loss / (SAMPLES * OUTPUTS)

    def backward(self, t, x, scale):
        for o in range(OUTPUTS):
            for i in range(INPUTS if t == 0 else 1):
                total = 0.0
                for s in range(SAMPLES):
                    total += self.error[s][o] * (x[s][i] if t == 0 else 1.0)
                self.grad[t][o * INPUTS + i if t == 0 else o] = total * 2.0 / (SAMPLES * OUTPUTS) * scale

    def digest(self):
        value = 0xCBF29CE484222325
        for t in range(2):
            for array in (self.param[t], self.exp_avg[t], self.exp_avg_sq[t], self.weight_out[t]):
                for byte in bytes(array):
                    value = (value ^ byte) * 0x100000001B3 % 2**64
        return value


def make_optimizer(cpu, model):
    scaling = initialised(LossScaling, "loss_scaling")
    scaling.initial_scale, scaling.growth_interval = 1024, 50
    options = initialised(OptimizerOptions, "optimizer_options")
    options.max_norm, options.loss_scaling = 0.25, ctypes.pointer(scaling)
    optimizer = c_void_p()
    check(adamant.adamant_optimizer_create(cpu, byref(options), byref(optimizer)))
    hyper = initialised(Hyperparameters, "hyperparameters")
    hyper.decay = DECAY_DECOUPLED
    for t, (group_name, name) in enumerate([(b"weights", b"layer.weight"), (b"biases", b"layer.bias")]):
        hyper.weight_decay = 0.001 if t == 0 else 0
        group = c_size_t()
        check(adamant.adamant_add_group(optimizer, group_name, byref(hyper), c_int32(0), byref(group)))
        shard = initialised(Shard, "shard")
        shard.elements, shard.dims = len(model.param[t]), 2
        shard.shape = (c_size_t * 2)(*model.shapes[t])
        for array in ("param", "grad", "exp_avg", "exp_avg_sq", "weight_out"):
            setattr(shard, array, ctypes.addressof(getattr(model, array)[t]))
        shard.weight_out_dtype = BFLOAT16
        check(adamant.adamant_add_shard(optimizer, group, name, byref(shard), None))
    check(adamant.adamant_prepare(optimizer, c_int32(1)))
    return optimizer


def train(optimizer, model, x, y, first, last):
    values = initialised(StepValues, "step_values")
    scale, loss = c_double(), 0.0
    for step in range(first, last):
        lr = 0.1 * (STEPS - step) / STEPS
        values.lr, values.lr_count = (c_double * 2)(lr, lr), 2
        check(adamant.adamant_loss_scale(optimizer, byref(scale)))
        loss = model.forward(x, y)
        check(adamant.adamant_begin_step(optimizer, byref(values)))
        for t in (1, 0):
            model.backward(t, x, scale.value)
            check(adamant.adamant_submit(optimizer, c_size_t(t)))
        check(adamant.adamant_finish(optimizer, None))
    return loss


def main():
    global adamant
    adamant = load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ADAMANT_C_LIBRARY", "libadamant_c.so.1"))
    x, y = make_samples()
    cpu = c_void_p()
    check(adamant.adamant_executor_create(None, byref(cpu)))
    one, two = Model(), Model()
    first, second = make_optimizer(cpu, one), make_optimizer(cpu, two)
    adamant.adamant_executor_free(cpu)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.safetensors").encode()
        train(first, one, x, y, 0, STEPS // 2)
        check(adamant.adamant_save_safetensors(first, path))
        loss = train(first, one, x, y, STEPS // 2, STEPS)
        check(adamant.adamant_load_safetensors(second, (c_char_p * 1)(path), c_size_t(1)))
    steps = c_uint64()
    check(adamant.adamant_steps(second, byref(steps)))
    train(second, two, x, y, steps.value, STEPS)
    adamant.adamant_optimizer_free(first)
    adamant.adamant_optimizer_free(second)
    print(f"adamant {adamant.adamant_version().decode()}: digest {one.digest():016x}")
    if one.digest() != two.digest() or steps.value != STEPS // 2 or not loss < 1e-4:
        sys.exit(f"resumed at step {steps.value} to {two.digest():016x}; the loss is {loss}")
    print(f"resumed at step {steps.value}: the same bits")


if __name__ == "__main__":
    main()
