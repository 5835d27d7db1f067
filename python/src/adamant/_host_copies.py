# SPDX-License-Identifier: Apache-2.0
"""Copies between params on another device and their mirrors in host memory.

Gradients are copied to a ring of pinned host memory, and new weights to the device as soon as they are final, on
separate streams. Small tensors are copied in batches, because a copy of its own costs more than a small step.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ._extension import load_extension
from ._library import InvalidArgument, counted
from .optimizer import NativeCallback

ReadyQueue = load_extension("_ready_queue").ReadyQueue

_alignment_bytes = 64
_idle_seconds = 1.0  # an idle copy thread ends after this time, because its optimizer may be gone
_ring_bytes = 64 << 20  # minimum size of a ring whose slots are reused within a step
_batch_bytes = 16 << 20  # maximum size of gradients that are copied together
_upload_elements = 8 << 20  # minimum number of new weights that are copied together, except at the end of a step
_sampled_elements = 256  # of a DTensor
_batches = 16  # of a step, at least, if they have a megabyte: while one is copied, earlier ones are stepped


def _round_up(size: int) -> int:
    return max(1, -(-size // _alignment_bytes)) * _alignment_bytes


def has_allocation(tensor: Tensor) -> bool:
    """Whether the storage is large enough for the elements; resize_() may have freed it."""
    if tensor.numel() == 0:
        return True
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check_memory(tensor: Tensor, subject: str) -> None:
    """Raises InvalidArgument if the tensor's memory was freed. subject: the beginning of the message."""
    shard = local(tensor)
    if not has_allocation(shard):
        raise InvalidArgument(f"{subject} has a storage of {shard.untyped_storage().nbytes()} bytes, which is too few "
                              f"for its {counted(shard.numel(), 'element')}: its memory was freed. Restore it before "
                              "step()")


def flat(tensor: Tensor) -> Tensor:
    """All elements in memory order, as a vector."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


_plain_types = (Tensor, torch.nn.Parameter)


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor; any other tensor unchanged."""
    if type(tensor) in _plain_types:
        return tensor  # a missing attribute takes longer
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class _Sample:
    """Compares the bits of some elements."""

    def __init__(self, elements: Tensor):
        self._bits = elements.contiguous().view(torch.uint8)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Sample) and torch.equal(self._bits, other._bits)

    __hash__ = None  # type: ignore[assignment]


_versions_take_lists = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5)


def record_writes(tensors: Sequence[Tensor]) -> None:
    """Tells autograd that the library has written these tensors, so that backward() refuses values saved before."""
    if _versions_take_lists:
        torch.autograd.graph.increment_version(tensors)
    else:
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)


def write_count(tensor: Tensor) -> Tuple[Any, ...]:
    """Changes with every write that torch records: not with writes through `.data` and collectives in place."""
    try:
        return tensor._version, None if type(tensor) in _plain_types else _shard_of(tensor)._version
    except RuntimeError:  # a tensor of inference_mode() has no version
        return None, None


def _shard_of(tensor: Tensor) -> Tensor:
    """The shard of a DTensor itself: to_local() of a param is another tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def write_version(tensor: Tensor) -> Tuple[Any, ...]:
    """As write_count(), and changes with other values of some elements of a DTensor in host memory.

    torch records no write of `torch._foreach_...` (clip_grad_norm_()) and of distributed checkpoints to a DTensor.
    """
    if type(tensor) in _plain_types:
        return write_count(tensor)
    return (*write_count(tensor), _sampled(_shard_of(tensor)))


def _sampled(shard: Tensor) -> Optional[_Sample]:
    if shard.device.type != "cpu" or not has_allocation(shard) or not is_dense(shard):
        return None
    with torch.no_grad():
        return _Sample(flat(shard)[::-(-shard.numel() // _sampled_elements) or 1].clone())


def gradient_version(grad: Tensor) -> Tuple[Any, ...]:
    """As write_version(), for gradients that may share their memory, and with it torch's count of writes.

    Gradients of an FSDP2 unit do, and so do views of a flat buffer. Of these only some elements are compared, and on
    another device none.
    """
    shard = _shard_of(grad)
    if shard.untyped_storage().nbytes() <= shard.numel() * shard.element_size():
        return write_version(grad)
    return (_sampled(shard),)


def memory_version(tensor: Tensor, known: Any = None) -> Tuple[Any, ...]:
    """As write_version(), and changes with other memory. No other storage is equal while this value exists.

    known: an earlier value. If the storage is the same, its reference is used again, which is faster.
    """
    shard = local_memory(tensor)
    storage = shard.untyped_storage()
    reference = known[-1] if known is not None and known[-1].cdata == storage._cdata else StorageWeakRef(storage)
    return (*write_version(tensor), shard.data_ptr(), reference)


def local_memory(tensor: Tensor) -> Tensor:
    """As local(), for its address and storage only: may require gradients."""
    return tensor if type(tensor) in _plain_types else local(tensor.detach())


def align_gradient(param: Tensor) -> None:
    """Redistributes a DTensor's gradient if its placements are not the param's, as torch's optimizers do.

    Tensor parallelism has partial sums as gradients of replicated params. Collective then.
    """
    grad = param.grad
    if hasattr(grad, "placements") and hasattr(param, "placements") and grad.placements != param.placements:
        with torch.no_grad():
            param.grad = grad.redistribute(param.device_mesh, param.placements)


def as_dtensor(param: Tensor, values: Tensor, shape: torch.Size, stride: Tuple[int, ...]) -> Tensor:
    """Wraps this rank's values, in host memory, in a DTensor with the mesh and the placements of the param.

    Parameters
    ----------
    shape, stride
        Of the whole tensor.
    """
    def wrapped(local_values: Tensor) -> Any:
        return type(param).from_local(  # type: ignore[attr-defined]
            local_values, param.device_mesh, param.placements, run_check=False, shape=shape, stride=stride)
    if param.device_mesh.device_type == "cpu":  # type: ignore[attr-defined]
        return wrapped(values)
    # from_local() would move the values to the mesh's devices.
    made = torch.empty_like(wrapped(torch.empty_like(values, device="meta")), device="cpu")
    local(made).copy_(values)
    return made


def same_order(first: Tensor, second: Tensor) -> bool:
    """Whether the elements of two dense tensors of one shape are in the same order in memory."""
    return first.numel() <= 1 or all(
        size == 1 or stride == other for size, stride, other in zip(first.shape, first.stride(), second.stride()))


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are contiguous in memory for some order of the dimensions."""
    if tensor.is_contiguous():
        return True
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

    def caller(self) -> Any:
        """The caller's stream."""

    def wait_for(self, caller: Any) -> None:
        """Orders later copies after all work on the caller's stream."""

    def copy(self, targets: List[Tensor], sources: List[Tensor]) -> Callable[[], None]:
        """Starts copies. Returns a function that waits for their end."""
        with torch.no_grad():
            for target, source in zip(targets, sources):
                target.copy_(source)
        return lambda: None

    def block_caller(self) -> None:
        """Orders later work on the caller's stream after all copies."""


class CudaStream(HostStream):
    """A CUDA stream of asynchronous copies."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def caller(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def wait_for(self, caller: Any) -> None:
        self._stream.wait_stream(caller)

    def copy(self, targets: List[Tensor], sources: List[Tensor]) -> Callable[[], None]:
        with torch.cuda.stream(self._stream), torch.no_grad():
            torch._foreach_copy_(targets, sources, non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # does not spin on a core that the step could use
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
    """A ring buffer whose slots are acquired in order and freed in any order. Thread-safe."""

    def __init__(self, size: int, pinned: bool):
        size += -size % _alignment_bytes  # a multiple of every dtype's size
        self.buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._typed: Dict[torch.dtype, Tensor] = {}
        self._taken: Deque[List[int]] = deque()  # [begin, end, number of users], oldest first
        self._changed = threading.Condition()
        self._broken = False

    def typed(self, dtype: torch.dtype) -> Tensor:
        """The buffer as elements of a dtype."""
        if dtype not in self._typed:
            self._typed[dtype] = self.buffer.view(dtype)
        return self._typed[dtype]

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

    def has_room(self, size: int) -> bool:
        with self._changed:
            return self._free_offset(_round_up(size)) is not None

    def acquire(self, size: int, users: int, before_wait: Callable[[], None]) -> List[int]:
        """Waits for a free slot of `size` bytes, at most the buffer's size. If there is none yet, it first calls
        before_wait(). The slot begins at byte slot[0], and is free after `users` calls of release()."""
        size = _round_up(size)
        with self._changed:
            if self._free_offset(size) is None:
                before_wait()
            while (begin := self._free_offset(size)) is None and not self._broken:
                self._changed.wait()
            if begin is None:
                raise InvalidArgument("cannot copy a gradient: an earlier copy has failed. The step is abandoned")
            slot = [begin, begin + size, users]
            self._taken.append(slot)
        return slot

    def release(self, slot: List[int]) -> None:
        with self._changed:
            slot[2] -= 1
            if slot[2]:
                return
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


class _Worker:
    """A thread that passes its queued jobs to a method, in order. The first job starts it.

    Only queued jobs keep the method's object alive.
    """

    def __init__(self, name: str, run: Callable[[Any], None]):
        self._name, self._run = name, weakref.WeakMethod(run)
        self._jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def put(self, job: Any) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()  # may raise, if the system allows no more threads
                self._thread = thread
            self._jobs.put((self._run(), job))

    def end(self) -> None:
        """Waits until all jobs have run, and ends the thread. Not concurrently with put()."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_idle_seconds)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
            if job is None:
                return
            run, argument = job
            run(argument)
            del job, argument, run  # the last may free what the others use


class _Batch:
    """Gradients on one device that are copied together."""

    def __init__(self, device: torch.device, caller: Any, accumulates: bool):
        self.key, self.accumulates = (device, caller, accumulates), accumulates
        self.items: List[Tuple[int, Tensor, Callable[[int, int], None]]] = []  # shard, gradient, callback
        self.bytes = 0


def _upload_until_end(copies: "weakref.ref[HostCopies]", ready: Any) -> None:
    """Runs in the upload thread, which keeps no reference to its owner while it waits."""
    while not ready.ended:
        ranges, failure = [], None
        try:
            ranges = ready.take(_idle_seconds)
        except MemoryError as error:
            failure = error
        owner = copies()
        if owner is None:
            return
        if failure is not None:
            return owner.fail(failure)
        owner.upload(ranges)
        del owner, ranges


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
        self._params = params
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
        sizes = [local(param).numel() * dtype.itemsize for param, dtype in zip(params, gradient_types)]
        # The extra slot keeps the end of the newest slot different from the begin of the oldest.
        full_bytes = sum(map(_round_up, sizes)) + _alignment_bytes
        small_bytes = max(2 * _round_up(max(sizes)) + _alignment_bytes, _ring_bytes)
        self._reuses_slots = reuses_slots
        pinned = any(device.type != "cpu" for device in devices)
        self.ring = Ring(min(full_bytes, small_bytes) if reuses_slots else full_bytes, pinned)
        batch_bytes = min(_batch_bytes, small_bytes // 2, max(full_bytes // _batches, 1 << 20))
        # A batch may have gradients of several backward() calls.
        self._new_accumulation_ring = lambda: Ring(max(min(full_bytes, small_bytes), 2 * batch_bytes), pinned)
        self._batch_bytes = batch_bytes
        self._accumulation_ring: Optional[Ring] = None  # for gradients that are accumulated on arrival
        self._slots: Dict[int, Tuple[List[int], int]] = {}  # by shard: its slot, and its elements without new weights
        self._pending: Optional[_Batch] = None
        self._waits_in_caller = False
        self._in_flight: Deque[Any] = deque()  # batches for which the caller waits
        self._downloads = _Worker("adamant download thread", self._download)
        self._ready = ReadyQueue()
        elements = sum(local(param).numel() for param in params)
        self._upload_elements = min(_upload_elements, max(elements // _batches, 1 << 19))
        # Otherwise all weights are uploaded at the end of the step.
        self._uploads_in_step = elements >= 2 * self._upload_elements or len(self.ring.buffer) < full_bytes
        self._upload_thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None

    def mirror(self, number: int) -> Tensor:
        return self._mirrors[number]

    def placeholder(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory that stands for a gradient until one arrives."""
        return self.ring.buffer[:elements * dtype.itemsize].view(dtype)

    def refresh_mirror(self, number: int) -> Tensor:
        """Copies the param's weights to its mirror, after a write by others."""
        self._mirrors[number].copy_(local(self._params[number].detach()))
        return self._mirrors[number]

    def copy_gradient(self, number: int, grad: Tensor, callback: Callable[[int, int], None],
                      accumulates: bool = False) -> None:
        """Copies a gradient to host memory, in a batch. A thread then calls callback(number, address).

        Parameters
        ----------
        accumulates : bool
            The callback does not return before it has read the gradient.
        """
        key = grad.device, self._d2h[grad.device].caller(), accumulates
        size = _round_up(grad.numel() * grad.element_size())
        batch = self._pending
        if batch is not None and (batch.key != key or batch.bytes + size > self._batch_bytes):
            self._start_batch()
            batch = None
        if batch is None:
            batch = self._pending = _Batch(*key)
        batch.items.append((number, grad.detach(), callback))
        batch.bytes += size

    def _start_batch(self) -> None:
        """Starts the copies of the pending gradients."""
        batch, self._pending = self._pending, None
        if batch is None:
            return
        try:
            self._start(batch)
        except BaseException:
            if batch.accumulates:
                self._pending = batch  # part of a sum, so the next attempt needs it
            raise

    def _start(self, batch: _Batch) -> None:
        device, caller, accumulates = batch.key
        if accumulates and self._accumulation_ring is None:
            self._accumulation_ring = self._new_accumulation_ring()
        ring = self._accumulation_ring if accumulates else self.ring
        assert ring is not None
        # libadamant_c calls weights_ready for no empty shard.
        filled = {number: source.numel() for number, source, _ in batch.items if source.numel()}
        slot: Optional[List[int]] = None
        offset = 0
        if filled:
            while self._in_flight and not ring.has_room(batch.bytes):
                self._download(self._in_flight.popleft())
            slot = ring.acquire(batch.bytes, 1 if accumulates else len(filled), lambda: self._ready.begin(1))
            offset = slot[0]
        stream, sources = self._d2h[device], [source for _, source, _ in batch.items]
        targets, calls, begin = [], [], ring.buffer.data_ptr()
        for number, source, callback in batch.items:
            item_bytes = source.element_size()
            targets.append(ring.typed(source.dtype).as_strided(source.shape, source.stride(), offset // item_bytes))
            calls.append((callback, number, begin + offset))
            offset += _round_up(source.numel() * item_bytes)
        stream.wait_for(caller)
        if self._reuses_slots and not accumulates and slot is not None:
            self._slots.update({number: (slot, elements) for number, elements in filled.items()})
        try:
            # The job keeps the gradients alive until they are copied.
            job = stream.copy(targets, sources), calls, slot if accumulates else None, sources
            if not self._waits_in_caller:
                return self._downloads.put(job)
        except BaseException:
            if accumulates and slot is not None:
                ring.release(slot)  # the end of a step frees the slots of the other ring only
            raise
        self._in_flight.append(job)
        if len(self._in_flight) > 2:
            self._download(self._in_flight.popleft())

    def _download(self, job: Any) -> None:
        """Waits for the copies of a batch of gradients, and calls the callbacks."""
        wait, calls, slot, _ = job
        if self._error is None:
            try:
                wait()
                for callback, number, address in calls:
                    callback(number, address)
            except BaseException as error:
                self.fail(error)
        if slot is not None and self._accumulation_ring is not None:
            self._accumulation_ring.release(slot)

    @property
    def weights_ready(self) -> NativeCallback:
        """Callback of libadamant_c."""
        return NativeCallback(self._ready.callback, self._ready.user, self._ready)

    def begin_step(self, waits_in_caller: bool) -> None:
        """Lets new weights be copied to the device as soon as there are enough of them.

        Parameters
        ----------
        waits_in_caller : bool
            The caller waits for copies of gradients, because all gradients exist. A thread would compete with it for
            the GIL.
        """
        self._waits_in_caller = waits_in_caller
        self._ready.begin(self._upload_elements)
        if self._uploads_in_step:
            thread = threading.Thread(target=_upload_until_end, args=(weakref.ref(self), self._ready),
                                      name="adamant upload thread", daemon=True)
            thread.start()
            self._upload_thread = thread

    def upload(self, ranges: List[Tuple[int, int, int]]) -> None:
        """Starts to copy new weights to their devices. ranges: shard, begin and end."""
        try:
            copies: Dict[torch.device, Tuple[List[Tensor], List[Tensor]]] = {}
            for number, begin, end in ranges:
                slot, left = self._slots.get(number, (None, 0))
                if slot is not None and left > end - begin:
                    self._slots[number] = slot, left - (end - begin)
                elif slot is not None:
                    del self._slots[number]
                    self.ring.release(slot)
                # Through .data, so that version counters do not count our copies as writes of others.
                target, source = local(self._params[number]).data, self._mirrors[number]
                targets, sources = copies.setdefault(target.device, ([], []))
                is_whole = end - begin == source.numel()
                targets.append(target if is_whole else flat(target)[begin:end])
                sources.append(source if is_whole else flat(source)[begin:end])
            for device, (targets, sources) in copies.items():
                self._h2d[device].copy(targets, sources)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Makes the step raise this error, unless an earlier one was recorded."""
        self._error = self._error or error
        self.ring.fail()

    def finish_gradients(self) -> None:
        """Waits for all copies of gradients and their callbacks. Raises the first error."""
        self._start_batch()
        while self._in_flight:
            self._download(self._in_flight.popleft())
        self._waits_in_caller = False
        self._downloads.end()
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end_uploads(self) -> None:
        """Starts to copy all new weights that are left, and ends the thread that does so."""
        self._ready.end()
        thread, self._upload_thread = self._upload_thread, None
        if thread is not None:
            thread.join()
        try:
            self.upload(self._ready.take(0.0))
        except MemoryError as error:
            self.fail(error)

    def end_step(self) -> None:
        """Frees all slots and orders later work on the caller's stream after the copies of new weights."""
        self.end_uploads()
        self._slots.clear()
        self.ring.release_all()
        for stream in self._h2d.values():
            stream.block_caller()
        self._raise()

    def discard(self) -> None:
        """Drops pending gradients, waits for those that are copied, and ignores errors."""
        self._pending, self._waits_in_caller = None, False
        try:
            for wait, *_ in self._in_flight:
                wait()
        except BaseException:
            pass
        self._in_flight.clear()
        self._downloads.end()
        self._error = None
