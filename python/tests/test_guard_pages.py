# SPDX-License-Identifier: Apache-2.0
"""Params, gradients and states next to guard pages: any access beyond them is a SIGSEGV."""
import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from adamant.torch import AdamW  # noqa: E402

from optimizer_modes import MODES, bits, values  # noqa: E402

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
no_access = 0


def guarded(tensor, at_end):
    """Copies a tensor between two guard pages, in the same memory order. The memory is never freed."""
    size = tensor.numel() * tensor.element_size()
    inner = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    begin = libc.mmap(None, inner + 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE,
                      mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert begin != ctypes.c_void_p(-1).value
    for guard in (begin, begin + mmap.PAGESIZE + inner):
        assert libc.mprotect(guard, mmap.PAGESIZE, no_access) == 0
    address = begin + mmap.PAGESIZE + (inner - size if at_end else 0)
    if size == 0:
        return tensor.clone()
    flat = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=tensor.dtype)
    return torch.as_strided(flat, tensor.shape, tensor.stride()).copy_(tensor)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "begin"])
@pytest.mark.parametrize("mode", MODES)
def test_steps_access_no_memory_beyond_the_elements(mode, at_end):
    dtype, options = MODES[mode]
    shapes = [(1,), (63,), (67,), (1000,), (64, 3), (64, 33)]

    def run(place):
        params = [torch.nn.Parameter(place(values(number, shape, dtype))) for number, shape in enumerate(shapes)]
        optimizer = AdamW(params, lr=0.01, **options)
        for step in range(5):
            for param in params:
                param.grad = None
            for part in range(options.get("accumulate", 1)):
                sum((param * values(10 * step + part, param.shape, dtype)).sum() for param in params).backward()
                if not options.get("overlap") and "accumulate" not in options:
                    for param in params:
                        param.grad = place(param.grad)
            optimizer.step()
            if step == 1:
                optimizer.state_dict()
                for state in optimizer.state.values():
                    for name, value in state.items():
                        if name not in ("step", "window"):
                            state[name] = place(value)
        return [bits(param) for param in params] + [
            bits(value) for _, state in sorted(optimizer.state_dict()["state"].items()) for _, value in sorted(state.items())]
    assert run(lambda tensor: guarded(tensor.detach(), at_end)) == run(lambda tensor: tensor)


def test_guard_pages_raise_a_segfault():
    code = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_guard_pages import guarded
import ctypes
tensor = guarded(torch.ones(67), True)
ctypes.memset(tensor.data_ptr() + 67 * 4 - 1, 0, 1)
print("written", flush=True)
ctypes.memset(tensor.data_ptr() + 67 * 4, 0, 1)
print("beyond")
"""
    environment = {**os.environ, "ASAN_OPTIONS": "handle_segv=0:detect_leaks=0"}  # it reports signals otherwise
    done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True,
                          timeout=600, env=environment)
    assert done.returncode == -11 and done.stdout == "written\n"
