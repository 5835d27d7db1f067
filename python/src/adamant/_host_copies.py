# SPDX-License-Identifier: Apache-2.0
"""Copies between params on another device and their mirrors in host memory.

Gradients are copied to a ring of pinned host memory, and each shard's new weights to the device as soon as they are
final, on separate streams. For CPU tensors the copies are synchronous.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from ._library import InvalidArgument

_alignment_bytes = 64
_idle_seconds = 1.0  # an idle copy thread ends after this time, because its optimizer may be gone
_ring_bytes = 64 << 20  # minimum size of a ring whose slots are reused within a step


def _round_up(size: int) -> int:
    return max(1, -(-size // _alignment_bytes)) * _alignment_bytes


def has_allocation(tensor: Tensor) -> bool:
    """Whether the storage is large enough for the elements; resize_() may have freed it."""
    if tensor.numel() == 0:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check_memory(tensor: Tensor, subject: str) -> None:
    """Raises InvalidArgument if the tensor's memory was freed. subject: the beginning of the message."""
    shard = local(tensor)
    if not has_allocation(shard):
        raise InvalidArgument(f"{subject} has a storage of {shard.untyped_storage().nbytes()} bytes, which is too few "
                              f"for its {shard.numel()} elements: its memory was freed. Restore it before step()")


def flat(tensor: Tensor) -> Tensor:
    """All elements in memory order, as a vector."""
    return tensor.as_strided((tensor.numel(),), (1,))


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are contiguous in memory for some order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


class HostStream:
    """A stream of copies between tensors in host memory. copy() is synchronous."""

    def wait_for_caller(self) -> None:
        """Orders later copies after all work on the caller's stream."""

    def copy(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        """Starts a copy. Returns a function that waits for its end."""
        target.copy_(source)
        return lambda: None

    def block_caller(self) -> None:
        """Orders later work on the caller's stream after all copies."""


class CudaStream(HostStream):
    """A CUDA stream of asynchronous copies."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def wait_for_caller(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return event.synchronize

    def block_caller(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def new_stream(device: torch.device) -> HostStream:
    if device.type == "cpu":
        return HostStream()
    if device.type == "cuda":
        return CudaStream(device)
    raise InvalidArgument(f"cannot step a param on {device}: it must be in host memory or on a CUDA or ROCm GPU")


class Ring:
    """A ring buffer whose slots are acquired in order and released in any order. Thread-safe."""

    def __init__(self, size: int, pinned: bool):
        self.buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._taken: Deque[List[Any]] = deque()  # [begin, end, is in use], oldest first
        self._changed = threading.Condition()
        self._broken = False

    def _free_offset(self, size: int) -> Optional[int]:
        """Offset of `size` free bytes after the newest slot or at the beginning, or None. The caller holds the lock."""
        if not self._taken:
            return 0
        first, last = self._taken[0][0], self._taken[-1][1]
        if last > first:
            if last + size <= len(self.buffer):
                return last
            return 0 if size < first else None
        return last if last + size < first else None

    def acquire(self, size: int) -> Tuple[Tensor, List[Any]]:
        """Waits for a free slot of `size` bytes, at most the buffer's size. Returns its memory and the slot."""
        size = _round_up(size)
        with self._changed:
            while (begin := self._free_offset(size)) is None and not self._broken:
                self._changed.wait()
            if begin is None:
                raise InvalidArgument("cannot copy a gradient: an earlier copy has failed. The step is abandoned")
            slot = [begin, begin + size, True]
            self._taken.append(slot)
        return self.buffer[begin:begin + size], slot

    def release(self, slot: List[Any]) -> None:
        with self._changed:
            slot[2] = False
            while self._taken and not self._taken[0][2]:
                self._taken.popleft()
            self._changed.notify_all()

    def release_all(self) -> None:
        with self._changed:
            self._taken.clear()
            self._broken = False
            self._changed.notify_all()

    def fail(self) -> None:
        """Makes acquire() raise InvalidArgument in all waiting threads."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class HostCopies:
    """Host copies of a step group whose params are on another device.

    Parameters
    ----------
    mirrors : dict
        For each param of the optimizer, by id: the param and its weights in host memory. Missing entries are added.
    reuses_slots : bool
        A gradient's slot is free as soon as the param's new weights are ready, so the ring may be smaller than all
        gradients.
    """

    new_stream = staticmethod(new_stream)  # replaced in tests

    def __init__(self, params: List[Tensor], gradient_types: List[torch.dtype], mirrors: Dict[int, Any],
                 reuses_slots: bool):
        if any(hasattr(param, "to_local") and param.device.type != "cpu" for param in params):
            raise InvalidArgument("cannot step a DTensor on a GPU: it must be in host memory. Use FSDP2's "
                                  "CPUOffloadPolicy")
        self._params = params
        self._flats: Dict[int, Tensor] = {}  # of the current step: between steps, memory of params is not kept alive
        devices = {param.device for param in params}
        self._d2h = {device: self.new_stream(device) for device in devices}
        self._h2d = {device: self.new_stream(device) for device in devices}
        self._mirrors = []
        with torch.no_grad():
            for param in params:
                shard = local(param)
                known = mirrors.get(id(param))
                if known is None or known[0] is not param or (known[1].dtype, known[1].shape, known[1].stride()) != (
                        shard.dtype, shard.shape, shard.stride()):
                    mirror = torch.empty_like(shard, device="cpu", pin_memory=param.device.type != "cpu",
                                              memory_format=torch.preserve_format).detach()
                    mirrors[id(param)] = param, mirror
                self._mirrors.append(mirrors[id(param)][1])
        sizes = [param.numel() * dtype.itemsize for param, dtype in zip(params, gradient_types)]
        # The extra slot keeps the end of the newest slot different from the begin of the oldest.
        full_bytes = sum(map(_round_up, sizes)) + _alignment_bytes
        small_bytes = max(2 * _round_up(max(sizes)) + _alignment_bytes, _ring_bytes)
        self._reuses_slots = reuses_slots
        pinned = any(device.type != "cpu" for device in devices)
        self.ring = Ring(min(full_bytes, small_bytes) if reuses_slots else full_bytes, pinned)
        self._new_accumulation_ring = lambda: Ring(min(full_bytes, small_bytes), pinned)
        self._accumulation_ring: Optional[Ring] = None  # for gradients that are accumulated on arrival
        self._slots: Dict[int, List[Any]] = {}
        self._jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread_lock = threading.Lock()
        self._copy_thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None

    def _flat(self, number: int) -> Tensor:
        """The param's elements as a vector, with a version counter that does not count our copies as writes."""
        values = self._flats.get(number)
        if values is None:
            shard = local(self._params[number].detach()).data
            values = self._flats[number] = flat(shard) if is_dense(shard) else shard
        return values

    def mirror(self, number: int) -> Tensor:
        return self._mirrors[number]

    def placeholder(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory that stands for a gradient until one arrives."""
        return self.ring.buffer[:elements * dtype.itemsize].view(dtype)

    def refresh_mirror(self, number: int) -> Tensor:
        """Copies the param's weights to its mirror, after a write by others."""
        self._mirrors[number].copy_(self._flat(number).as_strided(self._mirrors[number].shape,
                                                                    self._mirrors[number].stride()))
        return self._mirrors[number]

    def copy_gradient(self, number: int, grad: Tensor, callback: Callable[[int, int], None],
                      frees_slot: bool = False) -> None:
        """Starts to copy a gradient to host memory. The copy thread then calls callback(number, address).

        Parameters
        ----------
        frees_slot : bool
            The gradient's slot is free when the callback returns.
        """
        source = flat(grad.detach())
        if source.numel() == 0:  # libadamant_c calls weights_ready for no empty shard, so it needs no slot
            return self._enqueue((lambda: None, callback, number, self.ring.buffer.data_ptr(), None, source))
        stream = self._d2h[grad.device]
        if frees_slot and self._accumulation_ring is None:
            self._accumulation_ring = self._new_accumulation_ring()
        ring = self._accumulation_ring if frees_slot else self.ring
        assert ring is not None
        memory, slot = ring.acquire(source.numel() * source.element_size())
        target = memory[:source.numel() * source.element_size()].view(source.dtype)
        stream.wait_for_caller()
        wait = stream.copy(target, source)
        if self._reuses_slots and not frees_slot:
            self._slots[number] = slot
        # The job keeps the gradient alive until it is copied.
        self._enqueue((wait, callback, number, target.data_ptr(), slot if frees_slot else None, source))

    def _enqueue(self, job: Any) -> None:
        with self._thread_lock:
            self._jobs.put(job)
            if self._copy_thread is None:
                self._copy_thread = threading.Thread(target=self._run_jobs, name="adamant copy thread", daemon=True)
                self._copy_thread.start()

    def _run_jobs(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_idle_seconds)
            except queue.Empty:
                with self._thread_lock:
                    if not self._jobs.empty():
                        continue
                    if self._copy_thread is threading.current_thread():
                        self._copy_thread = None
                    return
            if job is None:
                return
            wait, callback, number, address, slot, _ = job
            if self._error is None:
                try:
                    wait()
                    callback(number, address)
                except BaseException as error:
                    self._error = error
                    self.ring.fail()
            if slot is not None and self._accumulation_ring is not None:
                self._accumulation_ring.release(slot)
            del job, wait, _

    def send(self, number: int, begin: int, end: int) -> None:
        """Starts to copy new weights to the device. Callback of libadamant_c, in its threads."""
        try:
            param = self._flat(number)
            self._h2d[param.device].copy(param[begin:end], flat(self._mirrors[number])[begin:end])
        except BaseException as error:
            self._error = self._error or error
        slot = self._slots.pop(number, None)
        if slot is not None:
            self.ring.release(slot)

    def finish_gradients(self) -> None:
        """Waits for all copies of gradients and ends the copy thread. Raises the first error of a copy or callback."""
        with self._thread_lock:
            copy_thread, self._copy_thread = self._copy_thread, None
            if copy_thread is not None:
                self._jobs.put(None)
        if copy_thread is not None:
            copy_thread.join()
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end_step(self) -> None:
        """Frees all slots and orders later work on the caller's stream after the copies of new weights."""
        self._slots.clear()
        self._flats.clear()
        self.ring.release_all()
        for stream in self._h2d.values():
            stream.block_caller()
        self._raise()

    def discard(self) -> None:
        """As finish_gradients(), but ignores errors."""
        try:
            self.finish_gradients()
        except BaseException:
            pass
