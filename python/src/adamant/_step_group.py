# SPDX-License-Identifier: Apache-2.0
"""A step group: params of a torch optimizer with the same step count."""

from __future__ import annotations

import atexit
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import Tensor

from ._arrays import GROUP_BYTES, group_count, place_of
from ._host_copies import HostCopies, flat, is_dense, local
from ._library import Error, InvalidArgument, Report, Unavailable
from ._quantized8 import is_quantized, moments
from ._split_masters import joined, masters
from .optimizer import Optimizer as Native

if TYPE_CHECKING:
    from .torch._stepping import Steps as _Steps

_copying: "weakref.WeakSet[StepGroup]" = weakref.WeakSet()


@atexit.register
def _end_copies() -> None:
    # A thread that comes back to the interpreter when that has ended would end the process.
    for step_group in list(_copying):
        if step_group.is_usable:
            assert step_group.copies is not None
            step_group.copies.drop()
            step_group.native.close()


def first_element(param: Tensor) -> int:
    """Index of the first element of this rank's shard in a DTensor that is sharded along its first dimension, else 0."""
    if not hasattr(param, "to_local"):
        return 0
    rows, first = param.shape[0] if param.dim() else 1, 0
    for dimension, how in enumerate(param.placements):
        if how.is_replicate():
            continue
        if type(how).__name__ != "Shard" or how.dim != 0:
            return 0
        each = -(-rows // param.device_mesh.size(dimension))
        begin = min(rows, each * param.device_mesh.get_local_rank(dimension))
        first, rows = first + begin, min(each, rows - begin)
    return first * (param.numel() // max(1, param.shape[0])) if rows == local(param).shape[0] else 0


def check_readable(tensor: Tensor, what: str) -> None:
    """Raises InvalidArgument if the tensor's memory does not hold its elements."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return
    if tensor.is_neg() or tensor.is_conj():
        raise InvalidArgument(f"cannot use {what}: its elements are stored negated (is_neg()). Call resolve_neg()")
    if tensor.numel() and tensor.data_ptr() == 0:
        raise InvalidArgument(f"cannot use {what}: it has {tensor.numel()} elements, but no allocated memory: it is a zero tensor, "
                              "or a collective has not completed. Pass a clone()")


def check_tracked(param: Tensor, name: str) -> None:
    """Raises InvalidArgument if the param has no version counter that shows writes to its weights."""
    if param.is_inference():
        raise InvalidArgument(f"cannot step {name}: it is an inference tensor, which has no version counter, and its weights are "
                              "kept elsewhere, too. Make it outside of torch.inference_mode(), or step it without masters, "
                              "offload and zenflow")


def check_place(tensor: Tensor, what: str, part: str = "") -> None:
    """Raises InvalidArgument if a tensor cannot be taken as it lies, in whichever order of its dimensions."""
    check_readable(tensor, what)
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and is_dense(tensor)
    place_of(flat(tensor) if dense else tensor, what, part=part)


def check_groups(groups: Tensor, what: str, param: Tensor) -> None:
    """Raises InvalidArgument if these cannot be a moment of quantized8 of this param."""
    if not param.is_contiguous():
        raise InvalidArgument(f"{what} is quantized8, but the param has shape {tuple(param.shape)} and strides "
                              f"{param.stride()}: its groups are those of row-major order. Make the param contiguous, or "
                              'give its group another "state_format"')
    if groups.shape != (group_count(param.numel()), GROUP_BYTES) or not groups.is_contiguous():
        raise InvalidArgument(f"{what} has shape {tuple(groups.shape)}, but {param.numel()} elements have groups of shape "
                              f"{(group_count(param.numel()), GROUP_BYTES)}, contiguous")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Prefixes errors of the library with the param or parameter group that they are about."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"cannot step {what}: {str(error).removeprefix('adamant: ')}") from None


class _Same:
    """Equal where the object is the same, which it keeps alive."""

    def __init__(self, what: Any):
        self.what = what

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Same) and self.what is other.what

    __hash__ = None  # type: ignore[assignment]


class StepGroup:
    """Params that have taken equally many steps: one optimizer of the library's, and one tensor that counts for all.

    Where a param is on a GPU, or `offload` is asked for, gradients come to host memory and weights go back, see
    HostCopies; everything else is the same.
    """

    def __init__(self, of: "_Steps", steps: int, members: List[Tuple[int, Tensor]], alone: bool):
        own = of._arguments
        self.params = [param for _, param in members]
        self.names = [of._name(param) for param in self.params]
        states = [of.state[param] for param in self.params]
        self.first_slot = 0
        self.signature = of._signature
        self.last_skipped: List[int] = []
        self.accumulates = own.accumulate > 1
        self.summed: Set[int] = set()  # whose sums hold something
        self.sums: List[Tensor] = []
        self.master_of = [next((state[name] for name in masters if name in state), None) for state in states]
        self.masters = [i for i, master in enumerate(self.master_of) if master is not None]
        self.copies: Optional[HostCopies] = None
        for number, param in enumerate(self.params):
            if own.offload or param.device.type != "cpu" or self.master_of[number] is not None:
                check_tracked(param, self.names[number])
        if own.offload or any(param.device.type != "cpu" for param in self.params):
            forgets = not (of._needs_norm or of._process_group or not alone)
            if own.offload:
                self._refuse_shared_memory(of)
            self.copies = HostCopies(self.params, [self._gradient_type(param) for param in self.params], of._mirrors,
                                     forgets and not self.accumulates)
        self.native = Native(of._executor(), on_nonfinite=own.on_nonfinite, max_norm=own.library_max_norm,
                             reduce=of._reduce if of._needs_norm and (of._process_group or not alone) else None,
                             weights_ready=self.copies.send if self.copies is not None else None)
        self.native.names = self.names
        if self.copies is not None:
            _copying.add(self)
        self.hypers = {group: of._hyper(group) for group in sorted({group for group, _ in members})}
        self.number_of: Dict[int, int] = {}
        for group, hyper in self.hypers.items():
            with named(f"parameter group {group}"):
                self.number_of[group] = self.native.add_group(f"group{group}", maximize=of.param_groups[group]["maximize"], **hyper)
        self.at: List[int] = []
        self.strides: List[Tuple[int, ...]] = []
        self.dtypes: List[torch.dtype] = []
        self.in_order = True  # all of them in row-major order
        self.versions = of._versions
        for number, ((group, param), state) in enumerate(zip(members, states)):
            self._add(self.names[number], number, self.number_of[group], param, state)
        self.native.steps = steps
        self.native.keep_only(self.sums)
        self.number = {id(param): i for i, param in enumerate(self.params)}

    def _refuse_shared_memory(self, of: "_Steps") -> None:
        places = sorted((local(param).data_ptr(), local(param).numel() * param.element_size(), i)
                        for i, param in enumerate(self.params) if local(param).numel())
        for (begin, size, i), (after, _, j) in zip(places, places[1:]):
            if after < begin + size:
                raise InvalidArgument(f"cannot step {of._name(self.params[i])} and {of._name(self.params[j])}: they share memory. "
                                      "Pass one of them to the optimizer")

    @staticmethod
    def _gradient_type(param: Tensor) -> torch.dtype:
        return param.dtype if param.grad is None else param.grad.dtype

    def _add(self, name: str, number: int, group: int, param: Tensor, state: Dict[str, Tensor]) -> None:
        mine = local(param.detach())
        kind = self._gradient_type(param)
        arrays = {"param": mine, **{moment: local(state[moment]) for moment in moments}}
        if self.copies is not None:
            arrays["param"] = self.copies.mirror(number)
        master = next((name for name in masters if name in state), None)
        if master is not None:
            arrays["weight_out"], arrays["param"] = arrays["param"], local(state[master])
        if master == "master_low" and (mine.dtype, arrays["param"].dtype) != (torch.bfloat16, torch.int16):
            raise InvalidArgument(f"{name} is {mine.dtype} and its master_low {arrays['param'].dtype}, but the halves of a "
                                  "master are torch.bfloat16 and torch.int16; load a state that is whole")
        if param.grad is not None:
            arrays["grad"] = local(param.grad)
        for what, array in arrays.items():
            is_copied = what == "grad" and self.copies is not None
            part = "moment" if what in moments else "master" if what == "param" and master == "master_low" else ""
            what = f"{what} of {name}"
            if not is_copied:
                check_place(array, what, part)
            if part == "moment" and is_quantized(array):
                check_groups(array, what, mine)
                continue
            if array.shape != mine.shape:
                raise InvalidArgument(f"{what} has shape {tuple(array.shape)}, but the param has {tuple(mine.shape)}")
            if array.stride() != mine.stride() and array.numel() > 1:
                raise InvalidArgument(f"{what} has strides {array.stride()}, but the param has {mine.stride()}: the "
                                      "elements of all must lie in the same order, as nothing is copied here")
        given = {what: flat(array) for what, array in arrays.items()}
        if self.copies is not None:  # where it is until it has come
            given["grad"] = self.copies.room(mine.numel(), kind)
        elif param.grad is None:
            given["grad"] = torch.empty(mine.numel(), dtype=kind, device="cpu")
        if self.accumulates:
            given["accumulator"] = torch.empty(mine.numel(), dtype=torch.float32, device="cpu")
            self.sums.append(given["accumulator"])
        self.at.append(mine.data_ptr())
        self.strides.append(mine.stride())
        self.dtypes.append(kind)
        self.in_order = self.in_order and mine.is_contiguous()
        # stochastic rounding goes by the element's place in the whole param.
        of_whole = {"shape": param.shape, "begin": first_element(param)} if hasattr(param, "to_local") else {}
        with named(name):
            self.native.add_shard(group, name, **given, **of_whole)

    # What has changed since

    def fits(self, number: int, grad: Tensor) -> bool:
        """Whether the shard can use this gradient in place."""
        param = self.params[number]
        return (local(param).data_ptr() == self.at[number] and grad.dtype == self.dtypes[number] and
                (grad.stride() == self.strides[number] or grad.numel() <= 1))

    def take_hypers(self, of: "_Steps") -> None:
        for group, known in self.hypers.items():
            now = of._hyper(group)
            if now != known:
                with named(f"parameter group {group}"):
                    self.native.set_hyperparameters(self.number_of[group], **now)
                self.hypers[group] = now

    def has_hypers(self, of: "_Steps") -> bool:
        """Whether the library has the current hyperparameters of all groups."""
        return all(group < len(of.param_groups) and of._hyper(group) == known for group, known in self.hypers.items())

    def take_weights(self, of: "_Steps") -> None:
        """Takes over what others have written to params whose weights are elsewhere, too: in masters and in mirrors."""
        if not self.masters and self.copies is None:
            return
        for number in self.masters if self.copies is None else range(len(self.params)):
            now = self._version(number)
            if self.versions.get(id(self.params[number])) != now:
                self._take_weight(of, number)
                self.versions[id(self.params[number])] = now

    def _version(self, number: int) -> Tuple[Any, ...]:
        """Identity and version of the weights and the master. Writes through `param.data` do not change it."""
        param, master = self.params[number], self.master_of[number]
        own = () if master is None else (_Same(master), local(master).data_ptr())
        return (_Same(param), param._version, local(param).data_ptr(), *own)

    def _take_weight(self, of: "_Steps", number: int) -> None:
        weight = local(self.params[number].detach())
        if self.copies is not None:
            weight = self.copies.bring_weights(number)
        state = of.state[self.params[number]]
        if "master_param" in state:
            master = local(state["master_param"])
            changed = master.to(weight.dtype) != weight
            if bool(changed.any()):  # the others keep the bits that a param has no room for
                master[changed] = weight[changed].to(master.dtype)
        elif "master_low" in state:
            # Which weights have changed is not known. All keep their residuals, unless no master has such a pair.
            low = local(state["master_low"])
            low.masked_fill_(joined(weight, low).isnan(), 0)

    # Steps

    def begin(self, of: "_Steps") -> None:
        """Opens a step whose gradients are submitted one by one."""
        self.take_weights(of)
        if self.copies is not None:
            self.copies.settle()
        self.native.begin_step()

    def submit(self, number: int, grad: Tensor) -> None:
        if self.copies is not None:
            self.copies.bring(number, grad, self.native.submit_at)
        else:
            self.native.submit_at(number, grad.data_ptr())

    def accumulate(self, number: int, grad: Tensor) -> None:
        """Adds a gradient to the shard's accumulator; it is not needed any more then."""
        self.summed.add(number)
        if self.copies is not None:
            self.copies.bring(number, grad, self.native.accumulate_at, frees=True)
        else:
            self.native.accumulate_at(number, grad.data_ptr())

    def whole_gradient(self, number: int, grad: Tensor) -> Tensor:
        """The gradient of the step: in host memory, with accumulated gradients."""
        if self.copies is not None:
            self.copies.settle()
        here = flat(grad.detach()).to("cpu")
        return self.sums[number] + here.to(torch.float32) if number in self.summed else here

    def forget_sums(self) -> None:
        if self.summed:
            if self.copies is not None:
                self.copies.settle()
            self.native.clear_accumulators()
            self.summed.clear()

    def step(self, of: "_Steps") -> Report:
        """A whole step; params without a gradient are left out."""
        skipped = [number for number, param in enumerate(self.params) if param.grad is None] if self.accumulates else []
        if self.copies is not None:
            self.begin(of)
            with self._given_up_where_it_fails():
                for number, param in enumerate(self.params):
                    if param.grad is not None:
                        self.submit(number, local(param.grad))
            return self.finish(skipped, of)
        self.take_weights(of)
        report = self.native.step_at(self.signature.addresses + 8 * self.first_slot, len(self.params))
        self._stepped(report, skipped, of)
        return report

    def finish(self, skipped: List[int], of: "_Steps") -> Report:
        """Ends the step that is open. skipped: those that were not submitted."""
        with self._given_up_where_it_fails():
            if self.copies is not None:
                self.copies.settle()
            for number in skipped:
                self.native.skip(number)
            report = self.native.finish()
        if self.copies is not None:
            self.copies.end()
        self._stepped(report, skipped, of)
        return report

    @contextmanager
    def _given_up_where_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            try:
                self.abandon()
            except Unavailable:
                self.native.close()
                raise Error("a step has failed that cannot be rolled back without max_norm: some params are of before it, "
                            f"others of after it. Load a state. What failed: {error}") from error
            raise

    @property
    def is_usable(self) -> bool:
        return self.native.here and self.native.pointer is not None

    def abandon(self) -> None:
        """Gives up the step that is open. Raises Unavailable where that cannot be."""
        if self.copies is not None:
            self.copies.drop()
        self.native.abandon()
        if self.copies is not None:
            self.copies.end()
        self._written()

    def _stepped(self, report: Report, skipped: List[int], of: "_Steps") -> None:
        self.summed.clear()
        self.last_skipped = skipped
        self._written()
        if not report.skipped:
            gone = set(skipped)
            taking_part = [self.first_slot + number for number in range(len(self.params)) if number not in gone]
            for entry in self.signature.advance(taking_part):
                of._widen_count(entry)

    def _written(self) -> None:
        self.native.keep_only(self.sums)
        # Autograd then sees that what it has saved was changed.
        torch.autograd.graph.increment_version(self.params)
        for number in self.masters if self.copies is None else range(len(self.params)):
            self.versions[id(self.params[number])] = self._version(number)
