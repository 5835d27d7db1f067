# SPDX-License-Identifier: Apache-2.0
"""Hooks that run in backward(): gradient accumulation, and the overlapped step."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._step_group import StepGroup
from .._host_copies import local
from .._library import InvalidArgument, Report, Unavailable
from .._quantized8 import moments
from .._signals import whole
from .._signature_module import CHANGED, HYPER_CHANGED
from .._split_masters import masters

# Whose hooks count, by the param's id: those of the optimizer that was made last.
_owners: "weakref.WeakValueDictionary[int, Backward]" = weakref.WeakValueDictionary()


class OpenStep:
    """A step that backward has begun: which gradients were submitted, and as which version."""

    def __init__(self, step_group: StepGroup):
        self.step_group = step_group
        self.submitted: Dict[int, Tuple[Tensor, int, int]] = {}  # by the shard's number: gradient, its version and address
        self.versions: Dict[int, Any] = {}  # of params and states, when they were submitted
        self.kept: List[Any] = []  # storages that the library works on
        self.hyper_changed = False  # at any time since the step began
        self.fits = True  # every gradient so far could be taken as it lies

class Backward:
    """The part of Adam and AdamW that runs in backward()."""

    # Gradients that backward brings

    def _watch(self) -> None:
        for _, param in self._all_params():
            before = _owners.get(id(param))
            if before is not None and before is not self and before._has_sum(param):
                raise InvalidArgument(f"cannot take {self._name(param)}: another optimizer has accumulated its gradients, and "
                                      "p.grad is only the last of them. Call that optimizer's step() or zero_grad() first")
        if not self._arguments.overlap and self._arguments.accumulate == 1:
            for _, param in self._all_params():
                _owners[id(param)] = self
            return
        me = weakref.ref(self)

        def before(number: int) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                it = me()
                if it is not None and _owners.get(number) is it:
                    with whole, it._lock:
                        if number in it._watched:
                            it._before_gradient(it._watched[number])
            return hook

        def after(param: Tensor) -> None:
            it = me()
            if it is not None and _owners.get(id(param)) is it:
                with whole, it._lock:
                    if id(param) in it._watched:
                        it._after_gradient(param)
        if self._watched:
            current = {id(param) for _, param in self._all_params()}
            for number in [number for number in self._watched if number not in current]:
                del self._watched[number]
        for _, param in self._all_params():
            if param.requires_grad and id(param) not in self._watched:
                self._watched[id(param)] = param
                self._may_be_averaged = True
                _owners[id(param)] = self
                self._handles += [param.register_hook(before(id(param))),
                                  param.register_post_accumulate_grad_hook(after)]

    def _refuse_to_be_averaged(self) -> None:
        """DistributedDataParallel averages gradients when these hooks have seen them."""
        self._may_be_averaged = False
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        parallel = torch.nn.parallel.DistributedDataParallel
        for each in gc.get_objects():
            if issubclass(type(each), parallel) and any(id(param) in self._watched for param in each.parameters()):
                self._may_be_averaged = True
                raise InvalidArgument("a param belongs to a DistributedDataParallel, which averages gradients after "
                                      "backward has made them, but overlap=True and accumulate take them before; leave "
                                      "these out, or shard the model with FSDP2")

    def _begin_gradients(self) -> None:
        self._backwards.clear()
        self._made.clear()
        self._moved.clear()

    def _before_gradient(self, param: Tensor) -> None:
        """Before backward adds to a param's gradient, or sets it. FSDP2 does so without calling this."""
        if not self._backwards:
            self._watch()  # params may have gained requires_grad or left their group
            if id(param) not in self._watched:
                return
        if self._may_be_averaged:
            self._refuse_to_be_averaged()
        if self._open is not None and self._open.step_group.number.get(id(param)) in self._open.submitted:
            self._refuse_one_more()
        if self._arguments.accumulate > 1:
            with torch.no_grad():
                self._check_sum(param)
                if param.grad is not None:
                    self._add_up(param)

    def _after_gradient(self, param: Tensor) -> None:
        """When backward has set a param's gradient, or added to it."""
        if param.grad is not None:
            self._made[id(param)] = (local(param.grad).data_ptr(), param.grad._version)
        self._moved.discard(id(param))
        self._backwards[id(param)] = self._backwards.get(id(param), 0) + 1
        if self._arguments.overlap and self._overlaps and self._backwards[id(param)] >= self._arguments.accumulate:
            self._on_gradient(param)

    def _refuse_one_more(self) -> None:
        # The forward pass may have read params from before or after the step.
        self._abandon("backward() is called once more")
        often = f"{self._arguments.accumulate} backward() calls" if self._arguments.accumulate > 1 else "one backward()"
        raise InvalidArgument(f"backward() is called again before step(), but with overlap=True the step began after "
                              f"{often}. Params and moments are as before it again, and this step's gradients are of "
                              "no use. Call step() in time, or set overlap=False to add gradients up. "
                              "checkpoint(use_reentrant=True) calls backward() by itself; False does not")

    def _refuse_scaler(self) -> None:
        """Raises InvalidArgument if a GradScaler steps this optimizer. GradScaler sets `found_inf` to say so."""
        if not hasattr(self, "found_inf"):
            return
        for name in ("grad_scale", "found_inf"):
            if hasattr(self, name):
                delattr(self, name)
        if self._open is not None:
            self._refuse_changed("a GradScaler unscales gradients after backward()")
        own = self._arguments
        what = ("accumulates gradients, but the scaler unscales and checks only the last one" if own.accumulate > 1 else
                "steps gradients in backward(), before the scaler unscales them")
        raise InvalidArgument(f"a GradScaler steps this optimizer, which {what}. Scale the loss by hand, use bfloat16, or set "
                              "accumulate=1 and overlap=False")

    # Sums of gradients

    def _check_sums(self) -> None:
        for step_group in self._step_groups or []:
            for number in sorted(step_group.summed):
                param = step_group.params[number]
                self._check_sum(param)
                if param.grad is None and number in step_group.summed:  # autograd.grad() has come after the last gradient
                    param.grad = torch.zeros_like(param, dtype=step_group.dtypes[number])

    def _check_sum(self, param: Tensor) -> None:
        """Raises InvalidArgument if the last gradient was changed, which is a part of the sum. Discards all sums if all
        gradients are None, as after zero_grad() of a model."""
        step_group = self._step_group_of(param)
        if step_group is None or step_group.number[id(param)] not in step_group.summed:
            return
        if param.grad is None:
            if id(param) in self._moved:
                return
            dropped = [p.grad is None and id(p) not in self._moved for c in self._step_groups or []
                       for p in (c.params[number] for number in c.summed)]
            if not all(dropped):
                raise InvalidArgument(f"the gradient of {self._name(param)} was set to None while gradients accumulate, "
                                      "and others were not; call the optimizer's zero_grad() to begin anew")
            self._forget_sums()
        elif (local(param.grad).data_ptr(), param.grad._version) != self._made.get(id(param)):
            raise InvalidArgument(f"the gradient of {self._name(param)} was changed after backward() had made it, but with "
                                  "accumulate it is only the last part of a sum. To clip, set max_norm; to change "
                                  "gradients, set accumulate=1")

    def _forget_sums(self) -> None:
        for step_group in self._step_groups or []:
            step_group.forget_sums()
        self._begin_gradients()

    def _add_up(self, param: Tensor) -> None:
        """Adds the current gradient to the param's float32 accumulator."""
        step_groups = self._step_groups
        if step_groups is None or not all(step_group.is_usable for step_group in step_groups) or (
                not any(step_group.summed for step_group in step_groups) and self._check_early() & CHANGED):
            self._step_groups = self._look()
        step_group = self._step_group_of(param)
        if step_group is None:
            self._join()
            step_group = self._step_group_of(param)
        grad = param.grad
        assert grad is not None
        if step_group is None:
            return  # the param was removed from its group
        number = step_group.number[id(param)]
        if not step_group.fits(number, local(grad)):
            self._step_groups = self._look()  # raises if gradients were accumulated
            return self._add_up(param)
        step_group.accumulate(number, local(grad))
        param.grad = None
        self._moved.add(id(param))

    def _has_sum(self, param: Tensor) -> bool:
        step_group = self._step_group_of(param)
        return step_group is not None and step_group.number[id(param)] in step_group.summed and (
            param.grad is not None or id(param) in self._moved)

    def _step_group_of(self, param: Tensor) -> Optional[StepGroup]:
        return next((step_group for step_group in self._step_groups or [] if id(param) in step_group.number), None)

    def _join(self) -> None:
        """Params that have their first gradient go with the others into this step."""
        if self._check_early() & CHANGED:  # _record() would hide the change
            self._step_groups = self._look()  # raises if gradients were accumulated
            return
        with torch.no_grad():
            new = [(g, param) for g, param in self._all_params()
                   if param.grad is not None and self._step_group_of(param) is None]
            assert self._step_groups is not None
            self._step_groups += self._step_groups_of(new)
        self._record(self._step_groups)

    def _on_gradient(self, param: Tensor) -> None:
        """Submits the gradient that backward has just made."""
        if self._open is None:
            step_groups = self._step_groups
            if not step_groups or len(step_groups) != 1 or not step_groups[0].is_usable:
                return  # the first step, and steps of params that have not been stepped equally often, wait
            number = step_groups[0].number.get(id(param))
            if number is None:
                return
            if self._check_early() & CHANGED or not self._is_as_recorded(step_groups[0], number):
                self._overlaps = False  # step() takes all of them
                return
            step_groups[0].take_hypers(self)
            step_groups[0].begin(self)
            self._open = OpenStep(step_groups[0])
        step = self._open
        number = step.step_group.number.get(id(param))
        grad = local(param.grad) if param.grad is not None else None
        if number is None:
            return  # has its first gradient, see _finish()
        if number in step.submitted:  # FSDP2 has added to it
            self._refuse_one_more()
        if grad is None or not self._is_as_recorded(step.step_group, number):
            step.fits = False
            return
        self._submit(step, number, param)

    def _submit(self, step: OpenStep, number: int, param: Tensor) -> None:
        step.versions[number] = self._versions_of(param)
        assert param.grad is not None
        storages = [local(tensor.detach()).untyped_storage() for tensor in (param, param.grad, *self._tensors_of(param))]
        step.kept += [(storage, storage.data_ptr()) for storage in storages]
        step.step_group.native.keep(storages)
        step.step_group.submit(number, local(param.grad))
        step.submitted[number] = (param.grad, param.grad._version, local(param.grad).data_ptr())

    def _check_early(self) -> int:
        """Runs _check() before step(). step() still has to apply changed hyperparameters."""
        bits = self._check()
        self._signature.release()
        self._hyper_is_taken = False
        return bits

    def _is_as_recorded(self, step_group: StepGroup, number: int) -> bool:
        return self._signature.check_one(self._groups(), self.state, self._entry[step_group.first_slot + number])

    def _tensors_of(self, param: Tensor) -> List[Tensor]:
        state = self.state.get(param)
        return [state[name] for name in (*moments, *masters) if name in state] if isinstance(state, dict) else []

    def _versions_of(self, param: Tensor) -> Any:
        return [(tensor._version, local(tensor.detach()).data_ptr()) for tensor in (param, *self._tensors_of(param))]

    def _abandon(self, why: str) -> None:
        step = self._open
        assert step is not None
        changed = self._changed_since_submitted(step, gradients=False)
        if changed is not None:  # a rollback would overwrite part of what was written
            self._refuse_changed(changed)
        try:
            step.step_group.abandon()
        except Unavailable:
            raise InvalidArgument(f"{why}, but with overlap=True backward() has begun a step, which cannot be rolled back "
                                  'without max_norm or on_nonfinite="skip". Call step() first, with the hyperparameters that it '
                                  "began with; it steps what has a gradient. Or set overlap=False") from None
        self._open = None
        self._overlaps = False

    def _refuse_changed(self, what: str) -> None:
        """Ends the open step after a change to its params, states or groups, and raises InvalidArgument."""
        step, self._open = self._open, None
        assert step is not None
        self._step_groups = None
        if all(storage.data_ptr() == address for storage, address in step.kept):
            try:
                step.step_group.abandon()
            except Unavailable:
                pass
            step.step_group.native.close()
        else:  # close() would roll back into freed memory
            step.step_group.native.leak()
        raise InvalidArgument(f"cannot finish the step that backward() began: {what}, but with overlap=True params and states are "
                              "written from backward() on, and may be of before the step or of after it. Load a state. Change "
                              "params, gradients, groups and states before backward() or after step(), or set overlap=False")

    @property
    def _can_abandon(self) -> bool:
        """Whether the library can roll back the open step."""
        return self._needs_norm

    def _changed_since_submitted(self, step: OpenStep, gradients: bool = True) -> Optional[str]:
        """Describes the first change to a submitted param, its state or its gradient. None: no change."""
        present = {id(param) for _, param in self._all_params()}
        for number in step.submitted:
            param = step.step_group.params[number]
            if id(param) not in present:
                if not self._can_abandon:
                    return f"{step.step_group.names[number]} is in no group now"
                continue
            grad, *known = step.submitted[number]
            if gradients and (param.grad is not grad or [grad._version, local(grad).data_ptr()] != known):
                return (f"the gradient of {self._name(param)} was changed after backward() had made it (to clip gradients, set "
                        "max_norm)")
            if self._versions_of(param) != step.versions[number]:
                return f"{self._name(param)} or its state was changed"
        return None

    def _finish(self) -> Optional[Report]:
        step = self._open
        assert step is not None
        step_group = step.step_group
        changed = self._changed_since_submitted(step)
        present = {id(param) for _, param in self._all_params()}
        for number, param in enumerate(step_group.params):
            if changed is None and number not in step.submitted and param.grad is not None and id(param) in present:
                if self._is_as_recorded(step_group, number):
                    self._submit(step, number, param)
                else:
                    step.fits = False
        newcomers = any(param.grad is not None and id(param) not in step_group.number for _, param in self._all_params())
        bits = self._check()
        self._hyper_is_taken = False
        if changed is not None:
            self._refuse_changed(changed)
        if bits & CHANGED or not step.fits:
            if not self._can_abandon:
                self._refuse_changed("params, groups, states or gradient dtypes have changed")
            self._abandon("params have changed")
            return self._step_all()
        step.hyper_changed = step.hyper_changed or bool(bits & HYPER_CHANGED)
        if newcomers and self._needs_norm or step.hyper_changed and not step_group.has_hypers(self):
            self._abandon("hyperparameters are others than when backward began the step")
            return self._step_all()
        skipped = [number for number in range(len(step_group.params)) if number not in step.submitted]
        self._open = None  # finish() gives it up where it fails
        report = step_group.finish(skipped, self)
        if newcomers:
            self._join()
            for other in (self._step_groups or [])[1:]:
                report = other.step(self)
        if skipped or newcomers:
            self._step_groups = None  # params with equal step counts form one group from now on
        return report
