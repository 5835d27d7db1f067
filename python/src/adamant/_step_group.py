# SPDX-License-Identifier: Apache-2.0
"""Step groups: params of a torch optimizer, stepped together."""

from __future__ import annotations

import atexit
import ctypes
import math
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from ._arrays import GROUP_BYTES, array_info, group_count
from ._host_copies import HostCopies, check_memory, flat, is_dense, local, memory_version, record_writes, same_order
from ._library import Error, InvalidArgument, Report, Unavailable, counted, weakly
from ._quantized8 import is_quantized, moments
from ._split_masters import joined, master_key
from .optimizer import Optimizer as Native

if TYPE_CHECKING:
    from .torch._stepping import Steps as _Steps

_copying: "weakref.WeakSet[StepGroup]" = weakref.WeakSet()


@atexit.register
def _end_copies() -> None:
    # A copy thread that returns to an interpreter that has ended would abort the process.
    for step_group in list(_copying):
        if step_group.is_usable:
            assert step_group.copies is not None
            step_group.copies.discard()
            step_group.close()


def first_element(param: Tensor) -> int:
    """Index of this rank's first element in a DTensor that is sharded along its first dimension.

    Otherwise as if the ranks' shards followed one another: ranks then have different random numbers for stochastic
    rounding.
    """
    if not hasattr(param, "to_local") or not param.dim():
        return 0
    if param.device_mesh.get_coordinate() is None:  # a rank outside the mesh
        return 0
    sizes, first = list(param.shape), 0
    # _StridedShard divides what later dimensions of the mesh have divided.
    for dimension, placement in sorted(enumerate(param.placements), key=lambda each: "Strided" in type(each[1]).__name__):
        ranks = param.device_mesh.size(dimension)
        if placement.is_replicate() or ranks == 1:
            continue
        d = getattr(placement, "dim", None)
        if d is None:
            return 0
        size_per_rank = -(-sizes[d] // ranks)
        begin = min(sizes[d], size_per_rank * param.device_mesh.get_local_rank(dimension))
        first += begin * (math.prod(sizes) // max(1, sizes[d]))
        sizes[d] = min(size_per_rank, sizes[d] - begin)
    return first if sizes == list(local(param).shape) else 0


def check_readable(tensor: Tensor, name: str) -> None:
    """Raises InvalidArgument if the tensor's memory does not hold its elements."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return
    if tensor.is_neg() or tensor.is_conj():
        raise InvalidArgument(f"cannot use {name}: its elements are stored negated (is_neg()). Call resolve_neg()")
    if tensor.numel() and tensor.data_ptr() == 0:
        reason = "It is a zero tensor, or a collective has not completed. Pass a clone()"
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            reason = f"Its elements are in other tensors of its class, {type(tensor).__name__}. Step plain tensors"
        raise InvalidArgument(f"cannot use {name}: it has {counted(tensor.numel(), 'element')}, but no allocated "
                              f"memory. {reason}")


def check_tracked(param: Tensor, name: str) -> None:
    """Raises InvalidArgument if the param has no version counter, by which writes to its weights are detected."""
    if param.is_inference():
        raise InvalidArgument(f"cannot step {name}: it is an inference tensor without a version counter, so writes to "
                              "it cannot be copied to its master or host copy. Make it outside of "
                              "torch.inference_mode(), or step it without masters, offload and zenflow")


def check_array(tensor: Tensor, name: str, role: str = "") -> None:
    """Raises InvalidArgument if a tensor cannot be used in place. Any order of its dimensions is supported."""
    check_readable(tensor, name)
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and is_dense(tensor)
    array_info(flat(tensor) if dense else tensor, name, role=role)


def check_groups(groups: Tensor, name: str, param: Tensor) -> None:
    """Raises InvalidArgument if the tensor is not a quantized8 moment of this param."""
    if not param.is_contiguous():
        raise InvalidArgument(f"cannot step {name}: quantized8 groups are those of row-major order, but the param has "
                              f"shape {tuple(param.shape)} and strides {param.stride()}. Make the param contiguous, or "
                              "give its "
                              'group another "state_format"')
    if groups.shape != (group_count(param.numel()), GROUP_BYTES) or not groups.is_contiguous():
        raise InvalidArgument(f"cannot step {name}: it has shape {tuple(groups.shape)}, but groups of "
                              f"{counted(param.numel(), 'element')} have shape "
                              f"{(group_count(param.numel()), GROUP_BYTES)}, contiguous")


@contextmanager
def error_context(subject: str) -> Iterator[None]:
    """Prefixes errors of libadamant_c with the param or parameter group."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"cannot step {subject}: {str(error).removeprefix('adamant: ')}") from None


def set_changed_hypers(optimizer: "_Steps", native: Any, native_groups: Dict[int, int],
                       hypers: Dict[int, Dict[str, Any]]) -> None:
    """Passes the hyperparameters of groups that have changed since the last call to the C library.

    Parameters
    ----------
    optimizer : _Steps
        The optimizer whose param groups are read.
    native : object
        The optimizer of the C library.
    native_groups : dict
        Number of each param group in `native`.
    hypers : dict
        The hyperparameters that `native` has, by param group. Updated.
    """
    for group, known in hypers.items():
        hyper = optimizer._hyper(group)
        if hyper != known:
            with error_context(f"parameter group {group}"):
                native.set_hyperparameters(native_groups[group], **hyper)
            hypers[group] = hyper


class _Identity:
    """Compares objects by identity. Keeps its object alive."""

    def __init__(self, target: Any):
        self.target = target

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and self.target is other.target

    __hash__ = None  # type: ignore[assignment]


class StepGroup:
    """Params that are stepped by one optimizer of libadamant_c.

    Each has a step count of its own: params without a gradient are skipped, and keep their counts. For params on a GPU,
    or with `offload`, gradients are copied to host memory and weights back, see HostCopies.

    Parameters
    ----------
    members : list of (int, Tensor)
        Params with the number of their group.
    grad_dtypes : dict
        Dtypes of the last gradients of params that have none now, by id.
    """

    def __init__(self, optimizer: "_Steps", members: List[Tuple[int, Tensor]], grad_dtypes: Dict[int, torch.dtype]):
        arguments = optimizer._arguments
        self.params = [param for _, param in members]
        self.names = [optimizer._name(param) for param in self.params]
        self.distributed = [param for param in self.params if hasattr(param, "placements")]
        states = [optimizer.state[param] for param in self.params]
        self.first_slot = 0
        self.signature = optimizer._signature
        self._submitted: List[int] = []  # params of the open step
        self.accumulates = arguments.accumulate > 1
        self.accumulated: Set[int] = set()  # shards with gradients in their accumulators
        self.accumulators: List[Tensor] = []
        keys = [master_key(param, state) for param, state in zip(self.params, states)]
        self.master_tensors = [None if key is None else state[key] for key, state in zip(keys, states)]
        self.mastered = [i for i, master in enumerate(self.master_tensors) if master is not None]
        self.dtypes = [grad_dtypes.get(id(param), param.dtype) if param.grad is None else param.grad.dtype
                       for param in self.params]
        self.copies: Optional[HostCopies] = None
        for number, param in enumerate(self.params):
            if (arguments.offload or arguments.track_changes or param.device.type != "cpu" or
                    self.master_tensors[number] is not None):
                check_tracked(param, self.names[number])
        if arguments.offload or any(param.device.type != "cpu" for param in self.params):
            if arguments.offload:
                self._refuse_shared_memory(optimizer)
            # Without a norm, and without accumulation, a gradient is read once.
            reads_once = not (optimizer._needs_norm or optimizer._process_group or self.accumulates)
            self.copies = HostCopies(self.params, self.dtypes, optimizer._mirrors, reads_once)
        # With accumulate, more params may join before the step, in step groups of their own.
        reduces = optimizer._needs_norm and (optimizer._process_group or self.accumulates)
        self.native = Native(
            optimizer._executor(), on_nonfinite=arguments.on_nonfinite, max_norm=arguments.library_max_norm,
            reduce=weakly(optimizer._reduce) if reduces else None,
            weights_ready=self.copies.weights_ready if self.copies is not None else None)
        self.native.names = self.names
        if self.copies is not None:
            _copying.add(self)
        self.hypers = {group: optimizer._hyper(group) for group in sorted({group for group, _ in members})}
        self.native_groups: Dict[int, int] = {}  # libadamant_c's group numbers by the optimizer's
        for group, hyper in self.hypers.items():
            with error_context(f"parameter group {group}"):
                self.native_groups[group] = self.native.add_group(
                    f"group{group}", maximize=bool(optimizer.param_groups[group]["maximize"]), **hyper)
        self.addresses: List[int] = []
        self.strides: List[Tuple[int, ...]] = []
        self.versions = optimizer._versions
        self.changes = optimizer._changes
        self.states = states
        for number, ((group, param), state) in enumerate(zip(members, states)):
            self._add(self.names[number], number, self.native_groups[group], param, state)
        counts = [int(state["step"]) for state in states]
        self.native.steps = max(counts)
        self._all_step = min(counts) == max(counts)  # so far, all params have had equal counts
        self.native.keep_only(self._kept)
        self.number = {id(param): i for i, param in enumerate(self.params)}

    def _refuse_shared_memory(self, optimizer: "_Steps") -> None:
        ranges = sorted((local(param).data_ptr(), local(param).numel() * param.element_size(), i)
                        for i, param in enumerate(self.params) if local(param).numel())
        for (begin, size, i), (next_begin, _, j) in zip(ranges, ranges[1:]):
            if next_begin < begin + size:
                raise InvalidArgument(f"cannot step {optimizer._name(self.params[i])} and "
                                      f"{optimizer._name(self.params[j])}: they share memory. Pass one of them to the "
                                      "optimizer")

    def _add(self, name: str, number: int, group: int, param: Tensor, state: Dict[str, Tensor]) -> None:
        shard = local(param.detach())
        grad_dtype = self.dtypes[number]
        arrays = {"param": shard, **{moment: local(state[moment]) for moment in moments}}
        if self.copies is not None:
            arrays["param"] = self.copies.mirror(number)
        master = master_key(param, state)
        if master is not None:
            arrays["weight_out"], arrays["param"] = arrays["param"], local(state[master])
        if master == "master_low" and (shard.dtype, arrays["param"].dtype) != (torch.bfloat16, torch.int16):
            raise InvalidArgument(f"cannot step {name}: it is {shard.dtype} and its master_low "
                                  f"{arrays['param'].dtype}, but split master weights are torch.bfloat16 and "
                                  "torch.int16. Load a complete state")
        if param.grad is not None:
            arrays["grad"] = local(param.grad)
        for field, array in arrays.items():
            is_copied = field == "grad" and self.copies is not None
            role = "moment" if field in moments else "master" if field == "param" and master == "master_low" else ""
            title = f"{field} of {name}"
            if is_copied:
                check_memory(array, f"cannot step {name}: its gradient")
            else:
                check_array(array, title, role)
            if role == "moment" and is_quantized(array):
                check_groups(array, title, shard)
                continue
            if array.shape != shard.shape:
                raise InvalidArgument(f"cannot step {title}: it has shape {tuple(array.shape)}, but the param has "
                                      f"{tuple(shard.shape)}")
            if not same_order(array, shard):
                raise InvalidArgument(f"cannot step {title}: it has strides {array.stride()}, but the param has "
                                      f"{shard.stride()}. Elements must be in the same order in memory, because they "
                                      "are used in place")
        fields = {field: flat(array) for field, array in arrays.items()}
        # A placeholder until there is a gradient.
        if self.copies is not None:
            fields["grad"] = self.copies.placeholder(shard.numel(), grad_dtype)
        elif param.grad is None:
            fields["grad"] = torch.empty(shard.numel(), dtype=grad_dtype, device="cpu")
        if self.accumulates:
            fields["accumulator"] = torch.empty(shard.numel(), dtype=torch.float32, device="cpu")
            self.accumulators.append(fields["accumulator"])
        self.addresses.append(shard.data_ptr())
        self.strides.append(shard.stride())
        # Stochastic rounding depends on the element's index in the whole param.
        position = {"shape": param.shape, "begin": first_element(param)} if hasattr(param, "to_local") else {}
        if self.changes is not None:
            position["changed"] = self.changes.bits(param)
        with error_context(name):
            self.native.add_shard(group, name, **fields, **position)

    @property
    def _kept(self) -> List[Any]:
        """What libadamant_c may use until it is closed."""
        return [*self.accumulators, self.copies]

    # Changes since the last step

    def fits(self, number: int, grad: Tensor) -> bool:
        """Whether the shard can be stepped with this gradient in place."""
        param = self.params[number]
        return (local(param).data_ptr() == self.addresses[number] and grad.dtype == self.dtypes[number] and
                (grad.stride() == self.strides[number] or same_order(grad, local(param))))

    def take_hypers(self, optimizer: "_Steps") -> None:
        """Applies changed hyperparameters."""
        set_changed_hypers(optimizer, self.native, self.native_groups, self.hypers)

    def has_hypers(self, optimizer: "_Steps") -> bool:
        """Whether libadamant_c has the current hyperparameters of all groups."""
        return all(group < len(optimizer.param_groups) and optimizer._hyper(group) == known
                   for group, known in self.hypers.items())

    def _take_weights(self, optimizer: "_Steps", number: int) -> None:
        """If others have written the weights, copies them into the master and the mirror, and marks them as changed.

        Only before the param is stepped: the states of other params stay as they are, as in a run that is resumed here.
        """
        if self.changes is not None:
            self.changes.mark_written(self.params[number], self.states[number])
        if self._has_copy(number):
            version = self._version(number)
            if self.versions.get(id(self.params[number])) != version:
                self._copy_weights(optimizer, number)
                self.versions[id(self.params[number])] = version

    def _has_copy(self, number: int) -> bool:
        return self.copies is not None or self.master_tensors[number] is not None

    def _version(self, number: int) -> Tuple[Any, ...]:
        """Identity and version of the weights and the master. See memory_version()."""
        param, master = self.params[number], self.master_tensors[number]
        master_version = () if master is None else (_Identity(master), local(master).data_ptr())
        known = self.versions.get(id(param))
        return (_Identity(param), memory_version(param, known and known[1]), *master_version)

    def _copy_weights(self, optimizer: "_Steps", number: int) -> None:
        weight = local(self.params[number].detach())
        if self.copies is not None:
            weight = self.copies.refresh_mirror(number)
        state = optimizer.state[self.params[number]]
        key = master_key(self.params[number], state)
        if key == "master_param":
            master = local(state["master_param"])
            changed = master.to(weight.dtype) != weight
            if bool(changed.any()):  # other masters keep the bits that the param's dtype lacks
                master[changed] = weight[changed].to(master.dtype)
                if self.changes is not None and bool(weight.isnan().any()):
                    # The step compares rounded masters, which does not show that it changes the bits of a NaN.
                    self.changes.mark(self.params[number])
        elif key == "master_low":
            # It is unknown which weights were written. All keep their low bits, unless the pair represents no master.
            low = local(state["master_low"])
            low.masked_fill_(joined(weight, low).isnan(), 0)

    # Steps

    def begin(self, optimizer: "_Steps", has_gradients: bool = False) -> None:
        """Opens a step whose gradients are submitted one by one. has_gradients: all of them are there."""
        self._submitted.clear()
        if self.copies is not None:
            self.copies.finish_gradients()
            self.copies.begin_step(has_gradients)
        try:
            self.native.begin_step_at(self._next_steps, len(self.params))
        except BaseException:
            if self.copies is not None:
                self.copies.end_uploads()
            raise

    def submit(self, optimizer: "_Steps", number: int, grad: Tensor) -> None:
        self._take_weights(optimizer, number)
        self._submitted.append(number)
        if self.copies is not None:
            self.copies.copy_gradient(number, grad, self.native.submit_at)
        else:
            self.native.submit_at(number, grad.data_ptr())

    def accumulate(self, number: int, grad: Tensor) -> None:
        """Adds a gradient to the shard's accumulator. The gradient is not read afterwards."""
        self.accumulated.add(number)
        if self.copies is not None:
            self.copies.copy_gradient(number, grad, self.native.accumulate_at, accumulates=True)
        else:
            self.native.accumulate_at(number, grad.data_ptr())

    def total_gradient(self, number: int, grad: Tensor) -> Tensor:
        """The gradient of the step in host memory: this gradient and the accumulated ones."""
        if self.copies is not None:
            self.copies.finish_gradients()
        host_grad = flat(grad.detach()).to("cpu")
        return self.accumulators[number] + host_grad.to(torch.float32) if number in self.accumulated else host_grad

    def clear_accumulators(self) -> None:
        if self.accumulated:
            if self.copies is not None:
                self.copies.finish_gradients()
            self.native.clear_accumulators()
            self.accumulated.clear()

    @property
    def _next_steps(self) -> int:
        return self.signature.next_steps + 8 * self.first_slot

    def check_gradients(self) -> None:
        """Raises InvalidArgument if the memory of a gradient that is copied was freed."""
        for number, param in enumerate(self.params) if self.copies is not None else ():
            grad = local(param.grad) if param.grad is not None else None
            if grad is not None and grad.untyped_storage().nbytes() < grad.numel() * grad.element_size():
                check_memory(grad, f"cannot step {self.names[number]}: its gradient")

    def step(self, optimizer: "_Steps", skips: bool) -> Report:
        """Steps all params. skips: params without a gradient, which are skipped, may exist."""
        skipped = [number for number, param in enumerate(self.params) if param.grad is None] if skips else []
        if self.copies is not None:
            self.begin(optimizer, has_gradients=True)
            with self._abandon_on_error():
                for number, param in enumerate(self.params):
                    if param.grad is not None:
                        self.submit(optimizer, number, local(param.grad))
            return self.finish(skipped, optimizer)
        numbers: Sequence[int] = range(len(self.params))
        if skipped:
            left_out = set(skipped)
            numbers = [number for number in numbers if number not in left_out]
        if self.changes is not None or self.mastered:
            for number in numbers:
                self._take_weights(optimizer, number)
        report = self.native.step_at(self.signature.addresses + 8 * self.first_slot, len(self.params),
                                     self._next_steps)
        self._end_step(report, numbers, skipped, optimizer)
        return report

    def finish(self, skipped: List[int], optimizer: "_Steps") -> Report:
        """Ends the open step. skipped: numbers of the params that were not submitted."""
        with self._abandon_on_error():
            if self.copies is not None:
                self.copies.finish_gradients()
            for number in skipped:
                self.native.skip(number)
            report = self.native.finish()
        if self.copies is not None:
            self.copies.end_step()
        self._end_step(report, self._submitted, skipped, optimizer)
        return report

    @contextmanager
    def _abandon_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            try:
                self.abandon()
            except Unavailable:
                self.close()
                raise Error("cannot roll back the failed step: some params are updated already, others are not. Load a "
                            'state. Steps with max_norm or on_nonfinite="skip" can be rolled back. '
                            f"The step failed: {error}") from error
            raise

    @property
    def is_usable(self) -> bool:
        return self.native.is_in_own_process and self.native.pointer is not None

    def close(self) -> None:
        self.native.close()
        if self.copies is not None:
            self.copies.end_uploads()

    def abandon(self) -> None:
        """Rolls back the open step. Raises Unavailable if it cannot be rolled back."""
        if self.copies is not None:
            self.copies.discard()
        self.native.abandon()
        if self.copies is not None:
            self.copies.end_step()
        self._end_write(self._submitted)

    def _end_step(self, report: Report, stepped: Sequence[int], skipped: List[int], optimizer: "_Steps") -> None:
        self.accumulated.clear()
        self._end_write(stepped, writes=not report.skipped)
        self._all_step = self._all_step and not skipped
        if stepped and not self._all_step:
            # libadamant_c has counted its own steps, not those of these params.
            numbers = (ctypes.c_uint64 * len(self.params)).from_address(self._next_steps)
            report.step = max(numbers[number] for number in stepped)
        if not report.skipped:
            for entry in self.signature.advance(self.first_slot, len(self.params), skipped):
                optimizer._widen_count(entry)

    def _end_write(self, stepped: Sequence[int], writes: bool = True) -> None:
        """Records the library's writes to these params. writes: False if their bits are those of before."""
        self.native.keep_only(self._kept)
        if writes:
            record_writes(self.params if len(stepped) == len(self.params) else
                          [self.params[number] for number in stepped])
        if self.changes is None and self.copies is None and not self.mastered:
            return
        for number in stepped:
            if self._has_copy(number):
                self.versions[id(self.params[number])] = self._version(number)
            if self.changes is not None:
                self.changes.settle(self.params[number], self.states[number])
