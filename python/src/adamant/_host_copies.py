# SPDX-License-Identifier: Apache-2.0
"""Host copies of params on a GPU: gradients are copied through a ring of pinned host memory, and weights are uploaded as each
shard is done, on separate streams. For CPU tensors the same works by copy_()."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from ._library import InvalidArgument

_alignment = 64  # bytes
_idle_seconds = 1.0  # after which a copy_thread without work ends: its optimizer may be gone
_ring_bytes = 64 << 20  # of a ring whose slots are used again within a step, where gradients are not larger


def _rounded(size: int) -> int:
    return max(1, -(-size // _alignment)) * _alignment


def probe_allocation(tensor: Tensor) -> bool:
    """Whether the elements have memory, which resize_() of a storage may have freed."""
    if tensor.numel() == 0:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check_memory(tensor: Tensor, what: str) -> None:
    own = local(tensor)
    if not probe_allocation(own):
        raise InvalidArgument(f"{what} has a storage of {own.untyped_storage().nbytes()} bytes, which is too few for its "
                              f"{own.numel()} elements: its memory was freed. Restore it before step()")


def flat(tensor: Tensor) -> Tensor:
    """All elements in the order in which they lie."""
    return tensor.as_strided((tensor.numel(),), (1,))


def local(tensor: Tensor) -> Tensor:
    """A DTensor's shard of this rank; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are contiguous and distinct, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


class HostLane:
    """Copies in order, for tensors in host memory: each is done when copy() returns."""

    def follow_caller(self) -> None:
        """Orders later copies after all work of the caller's stream."""

    def copy(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        """Begins a copy; what this returns waits until it is done."""
        to.copy_(source)
        return lambda: None

    def caller_follows(self) -> None:
        """Orders later work of the caller's stream after these copies."""


class CudaLane(HostLane):
    """The same on a stream of its own."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def follow_caller(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done.synchronize

    def caller_follows(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def new_stream(device: torch.device) -> HostLane:
    if device.type == "cpu":
        return HostLane()
    if device.type == "cuda":
        return CudaLane(device)
    raise InvalidArgument(f"a param is on {device}, but must be in host memory or on a GPU of CUDA or ROCm")


class Ring:
    """Slots in one buffer, taken in turn and given back in any order. Thread-safe."""

    def __init__(self, size: int, pinned: bool):
        self.buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._taken: Deque[List[Any]] = deque()  # [begin, end, whether it is still in use], the oldest first
        self._changed = threading.Condition()
        self._broken = False

    def _room(self, size: int) -> Optional[int]:
        """Offset with that many free bytes, after the last slot or from the beginning; with the lock."""
        if not self._taken:
            return 0
        first, last = self._taken[0][0], self._taken[-1][1]
        if last > first:
            if last + size <= len(self.buffer):
                return last
            return 0 if size < first else None
        return last if last + size < first else None

    def take(self, size: int) -> Tuple[Tensor, List[Any]]:
        """A slot of that size, which must not exceed the buffer's. Waits until there is one."""
        size = _rounded(size)
        with self._changed:
            while (begin := self._room(size)) is None and not self._broken:
                self._changed.wait()
            if begin is None:
                raise InvalidArgument("a copy has failed; the step is abandoned")
            slot = [begin, begin + size, True]
            self._taken.append(slot)
        return self.buffer[begin:begin + size], slot

    def give_back(self, slot: List[Any]) -> None:
        with self._changed:
            slot[2] = False
            while self._taken and not self._taken[0][2]:
                self._taken.popleft()
            self._changed.notify_all()

    def give_back_all(self) -> None:
        with self._changed:
            self._taken.clear()
            self._broken = False
            self._changed.notify_all()

    def fail(self) -> None:
        """Wakes threads that wait for a slot."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class HostCopies:
    """Host memory of a step group whose params are on another device.

    mirrors: of all params of the optimizer, by id; those that are missing are made. consumes: a gradient is not needed
    any more once its weights are ready, so that the ring may be smaller than all gradients.
    """

    new_stream = staticmethod(new_stream)  # tests have another

    def __init__(self, params: List[Tensor], gradient_types: List[torch.dtype], mirrors: Dict[int, Any],
                 consumes: bool):
        if any(hasattr(param, "to_local") and param.device.type != "cpu" for param in params):
            raise InvalidArgument("a param is a DTensor on a GPU, but must be in host memory: use FSDP2's "
                                  "CPUOffloadPolicy")
        self._params = params
        self._flats: Dict[int, Tensor] = {}  # of a step, so that memory is not kept alive between steps
        devices = {param.device for param in params}
        self._down = {device: self.new_stream(device) for device in devices}
        self._up = {device: self.new_stream(device) for device in devices}
        self._mirrors = []
        with torch.no_grad():
            for param in params:
                own = local(param)
                known = mirrors.get(id(param))
                if known is None or known[0] is not param or (
                        (known[1].dtype, known[1].shape, known[1].stride()) != (own.dtype, own.shape, own.stride())):
                    mirrors[id(param)] = param, torch.empty_like(own, device="cpu", pin_memory=param.device.type != "cpu",
                                                          memory_format=torch.preserve_format).detach()
                self._mirrors.append(mirrors[id(param)][1])
        sizes = [param.numel() * kind.itemsize for param, kind in zip(params, gradient_types)]
        # One slot more than all of them, so that the last one is never where the first one begins.
        whole = sum(map(_rounded, sizes)) + _alignment
        some = max(2 * _rounded(max(sizes)) + _alignment, _ring_bytes)
        self._consumes = consumes
        pinned = any(device.type != "cpu" for device in devices)
        self.ring = Ring(min(whole, some) if consumes else whole, pinned)
        self._passing = lambda: Ring(min(whole, some), pinned)  # for gradients that are accumulated as they come
        self._passing_ring: Optional[Ring] = None
        self._slots: Dict[int, List[Any]] = {}
        self._jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._hiring = threading.Lock()
        self._copy_thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None

    def _flat(self, number: int) -> Tensor:
        """The param's elements, with a version counter of their own: copies of ours are no writes of others."""
        found = self._flats.get(number)
        if found is None:
            own = local(self._params[number].detach()).data
            found = self._flats[number] = flat(own) if is_dense(own) else own
        return found

    def mirror(self, number: int) -> Tensor:
        return self._mirrors[number]

    def room(self, elements: int, kind: torch.dtype) -> Tensor:
        """Memory of that size, to be known by until there is a gradient."""
        return self.ring.buffer[:elements * kind.itemsize].view(kind)

    def bring_weights(self, number: int) -> Tensor:
        """Copies weights that others have written into their mirror."""
        self._mirrors[number].copy_(self._flat(number).as_strided(self._mirrors[number].shape,
                                                                    self._mirrors[number].stride()))
        return self._mirrors[number]

    def bring(self, number: int, grad: Tensor, then: Callable[[int, int], None], frees: bool = False) -> None:
        """Begins to copy a gradient down, and calls then(number, address) once it is there, in the copy_thread's thread.
        frees: its memory is not needed after that."""
        source = flat(grad.detach())
        if source.numel() == 0:  # the library will not say that it is done with it
            return self._give_job((lambda: None, then, number, self.ring.buffer.data_ptr(), None, source))
        down = self._down[grad.device]
        if frees and self._passing_ring is None:
            self._passing_ring = self._passing()
        ring = self._passing_ring if frees else self.ring
        assert ring is not None
        slot, taken = ring.take(source.numel() * source.element_size())
        to = slot[:source.numel() * source.element_size()].view(source.dtype)
        down.follow_caller()
        wait = down.copy(to, source)
        if self._consumes and not frees:
            self._slots[number] = taken
        # The gradient is kept until it has been copied.
        self._give_job((wait, then, number, to.data_ptr(), taken if frees else None, source))

    def _give_job(self, job: Any) -> None:
        with self._hiring:
            self._jobs.put(job)
            if self._copy_thread is None:
                self._copy_thread = threading.Thread(target=self._carry, name="adamant copy_thread", daemon=True)
                self._copy_thread.start()

    def _carry(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_idle_seconds)
            except queue.Empty:
                with self._hiring:
                    if not self._jobs.empty():
                        continue
                    if self._copy_thread is threading.current_thread():
                        self._copy_thread = None
                    return
            if job is None:
                return
            wait, then, number, address, taken, _ = job
            if self._error is None:
                try:
                    wait()
                    then(number, address)
                except BaseException as error:
                    self._error = error
                    self.ring.fail()
            if taken is not None and self._passing_ring is not None:
                self._passing_ring.give_back(taken)
            del job, wait, _

    def send(self, number: int, begin: int, end: int) -> None:
        """Begins to copy weights up; called by the library, in its threads."""
        try:
            param = self._flat(number)
            self._up[param.device].copy(param[begin:end], flat(self._mirrors[number])[begin:end])
        except BaseException as error:
            self._error = self._error or error
        taken = self._slots.pop(number, None)
        if taken is not None:
            self.ring.give_back(taken)

    def settle(self) -> None:
        """Waits until all that was to be brought has been, and raises what went wrong. The copy_thread's thread ends."""
        with self._hiring:
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

    def end(self) -> None:
        """The step is over: all slots are free, and what reads params from now on reads the new weights."""
        self._slots.clear()
        self._flats.clear()
        self.ring.give_back_all()
        for stream in self._up.values():
            stream.caller_follows()
        self._raise()

    def drop(self) -> None:
        """Like settle(), after an error."""
        try:
            self.settle()
        except BaseException:
            pass
