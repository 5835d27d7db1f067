# SPDX-License-Identifier: Apache-2.0
"""Hooks that run in backward(): gradient accumulation and the overlapped step."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._host_copies import align_gradient, gradient_version, local, local_memory, record_writes, write_count
from .._library import InvalidArgument, Report, Unavailable
from .._quantized8 import moments
from .._signals import delayed_signals
from .._signature_module import CHANGED, HYPER_CHANGED
from .._split_masters import masters
from .._step_group import StepGroup

_state_tensors = (*moments, *masters)
# By the param's id, the optimizer whose hooks are active: the newest one that has this param.
_owners: "weakref.WeakValueDictionary[int, Backward]" = weakref.WeakValueDictionary()
_accumulating: "weakref.WeakSet[Backward]" = weakref.WeakSet()  # optimizers that accumulate gradients
_creations = 0


def next_creation() -> int:
    """The number of an optimizer that is created now."""
    global _creations
    _creations += 1
    return _creations


def _can_require_grad(param: Tensor) -> bool:
    return param.requires_grad or (param.is_leaf and not param.is_inference() and (
        param.is_floating_point() or param.is_complex()))


class OpenStep:
    """A step that backward() has begun, with the submitted gradients and their versions."""

    def __init__(self, step_group: StepGroup):
        self.step_group = step_group
        self.submitted: Dict[int, Tuple[Tensor, int, int]] = {}  # by shard: gradient, version and address
        self.versions: Dict[int, Any] = {}  # of params and states at submission, by shard
        self.storages: List[Any] = []  # storages that libadamant_c uses, with their addresses
        self.hyper_changed = False  # at any time since the step began
        self.fits = True  # every gradient so far could be used in place


class Backward:
    """The part of Adam and AdamW that runs in backward()."""

    # Hooks

    def _watch(self, claims_all: bool = True) -> None:
        """Adds missing hooks. claims_all: this optimizer was just created or got new params, so that it is newest."""
        claimed = [param for _, param in self._all_params() if claims_all or self._may_claim(param)]
        for param in claimed:
            owner = _owners.get(id(param))
            if owner is not None and owner is not self and owner._has_accumulated(param):
                raise InvalidArgument(f"cannot add {self._name(param)}: another optimizer has accumulated its "
                                      "gradients, and p.grad is only the last one. Call that optimizer's step() or "
                                      "zero_grad() first")
        if not self._arguments.overlap and self._arguments.accumulate == 1:
            for param in claimed:
                _owners[id(param)] = self
            return
        if self._arguments.accumulate > 1:
            _accumulating.add(self)
        reference = weakref.ref(self)

        def gradient_hook(key: int) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                optimizer = reference()
                if optimizer is not None and optimizer._is_active(key):
                    with delayed_signals, optimizer._lock:
                        if key in optimizer._watched:
                            optimizer._before_gradient(optimizer._watched[key])
            return hook

        def accumulated_hook(param: Tensor) -> None:
            optimizer = reference()
            if optimizer is not None and optimizer._is_active(id(param)):
                with delayed_signals, optimizer._lock:
                    if id(param) in optimizer._watched:
                        optimizer._after_gradient(param)
        if self._watched:
            current = {id(param) for _, param in self._all_params()}
            for key in [key for key in self._watched if key not in current]:
                del self._watched[key]
        for param in claimed:
            if id(param) in self._watched or not _can_require_grad(param):
                continue
            self._remove_hooks(id(param))  # of a param that left and is back, or that had this id before
            is_frozen = not param.requires_grad
            handles = self._handles[id(param)] = []
            try:
                param.requires_grad_()  # a frozen param may get gradients later
                # Compiled autograd would trace hooks that are not disabled.
                handles.append(param.register_hook(torch.compiler.disable(gradient_hook(id(param)))))
                handles.append(param.register_post_accumulate_grad_hook(torch.compiler.disable(accumulated_hook)))
            except RuntimeError:
                if not is_frozen:
                    raise
                self._remove_hooks(id(param))  # its class permits no gradients
                continue
            finally:
                if is_frozen:
                    param.requires_grad_(False)
            self._watched[id(param)] = param
            self._may_be_averaged = True
            _owners[id(param)] = self

    def _remove_hooks(self, key: int) -> None:
        for handle in self._handles.pop(key, ()):
            handle.remove()

    @staticmethod
    def _owners_of(params: List[Tensor]) -> Dict[int, Optional["Backward"]]:
        return {id(param): _owners.get(id(param)) for param in params}

    def _unwatch(self, params: List[Tensor], owners: Dict[int, Optional["Backward"]]) -> None:
        """Undoes _watch() for params of a group that was not added. owners: those before."""
        for key, owner in owners.items():
            self._remove_hooks(key)
            self._watched.pop(key, None)
            if owner is not None:
                _owners[key] = owner
            elif _owners.get(key) is self:
                del _owners[key]

    def _restore_hooks(self, after_backward: bool) -> None:
        """Adds hooks to new params, and attaches those of params whose memory torch has swapped without them.

        after_backward: gradients are of this step, so that those without a record were made without hooks.
        """
        if self._arguments.overlap or self._arguments.accumulate > 1:
            for key, param in self._watched.items() if after_backward else ():
                if key not in self._made and param.grad is not None and self._is_active(key):
                    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                        setattr(param, hooks, getattr(param, hooks))
            keys = [id(param) for group in self.param_groups for param in group["params"]]
            if keys != self._keys:
                self._keys = keys
                self._watch(claims_all=False)

    def _refuse_accumulated_by_others(self) -> None:
        """Raises InvalidArgument if gradients of these params are in another optimizer's accumulators."""
        if self._arguments.accumulate > 1 and self._created != _creations:
            for _, param in self._all_params():
                if _owners.get(id(param)) is not self and param.grad is not None and not self._may_claim(param):
                    raise InvalidArgument(f"cannot step {self._name(param)} with accumulate: a newer optimizer has "
                                          "this param, so its gradients were not accumulated in float32. Delete the "
                                          "newer optimizer, or step that one")
        for other in list(_accumulating) if _accumulating else ():
            if other is self or not any(step_group.accumulated for step_group in other._step_groups or []):
                continue
            for _, param in self._all_params():
                if other._has_accumulated(param):
                    raise InvalidArgument(f"cannot step {self._name(param)}: another optimizer has accumulated its "
                                          "gradients, and p.grad is only the last one. Call that optimizer's step() or "
                                          "zero_grad() first")

    def _may_claim(self, param: Tensor) -> bool:
        """Whether no newer optimizer has the param."""
        owner = _owners.get(id(param))
        return owner is None or owner is self or owner._created < self._created or not any(
            other is param for _, other in owner._all_params())

    def _is_active(self, key: int) -> bool:
        if key not in _owners and key in self._watched:  # the newer optimizer is gone
            _owners[key] = self
        return _owners.get(key) is self

    def _refuse_averaging(self) -> None:
        """Raises InvalidArgument for DistributedDataParallel, which averages gradients after these hooks have run."""
        self._may_be_averaged = False
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        parallel = torch.nn.parallel.DistributedDataParallel
        for candidate in gc.get_objects():
            if issubclass(type(candidate), parallel) and any(id(param) in self._watched
                                                             for param in candidate.parameters()):
                self._may_be_averaged = True
                raise InvalidArgument("cannot use overlap=True or accumulate: a param belongs to a "
                                      "DistributedDataParallel, which averages gradients after they are used in "
                                      "backward(). Leave these arguments out, or shard the model with FSDP2")

    def _refuse_compiled_autograd(self) -> None:
        """Raises InvalidArgument if compiled autograd runs backward(): it reads p.grad before a hook moves it."""
        module = sys.modules.get("torch._dynamo.compiled_autograd")
        if getattr(module, "in_compiled_autograd_region", False):
            raise InvalidArgument(f"cannot accumulate gradients with accumulate={self._arguments.accumulate}: backward() "
                                  "runs under compiled autograd, which would add earlier gradients twice. Set "
                                  "torch._dynamo.config.compiled_autograd = False, or accumulate=1")

    def _begin_gradients(self) -> None:
        self._backwards.clear()
        self._made.clear()
        self._moved.clear()

    def _before_gradient(self, param: Tensor) -> None:
        """Runs before backward() sets or adds to a gradient. FSDP2 sets gradients without calling this."""
        if not self._backwards:
            self._restore_hooks(after_backward=False)  # params may have joined or left a group
            if id(param) not in self._watched:
                return
        if self._may_be_averaged:
            self._refuse_averaging()
        if self._open is not None and self._open.step_group.number.get(id(param)) in self._open.submitted:
            self._refuse_second_backward()
        if self._arguments.accumulate > 1:
            self._refuse_compiled_autograd()
            with torch.no_grad():
                self._check_accumulator(param)
                if param.grad is not None:
                    self._accumulate(param)

    def _after_gradient(self, param: Tensor) -> None:
        """Runs after backward() has set or added to a gradient."""
        mesh = getattr(param, "device_mesh", None)
        if mesh is not None and mesh.device_type == "cuda" and param.device.type == "cpu":
            # FSDP2's CPUOffloadPolicy: some versions of torch call hooks while the gradient is still being copied.
            torch.cuda.current_stream().synchronize()
        self._refuse_sparse(param)
        align_gradient(param)
        if param.grad is not None:
            self._made[id(param)] = (local(param.grad).data_ptr(), gradient_version(param.grad))
        self._moved.discard(id(param))
        self._backwards[id(param)] = self._backwards.get(id(param), 0) + 1
        if self._arguments.overlap and self._overlaps and self._backwards[id(param)] >= self._arguments.accumulate:
            self._on_gradient(param)

    def _refuse_second_backward(self) -> None:
        # The forward pass may have read params of before or after the step.
        self._abandon("backward() is called once more")
        calls = f"{self._arguments.accumulate} backward() calls" if self._arguments.accumulate > 1 else "one backward()"
        raise InvalidArgument(f"backward() is called again before step(), but with overlap=True the step began after "
                              f"{calls}. It was rolled back, and its gradients are invalid. Call step() before, or set "
                              "overlap=False to accumulate gradients. checkpoint(use_reentrant=True) calls backward() "
                              "internally; use_reentrant=False does not")

    def _refuse_scaler(self) -> None:
        """Raises InvalidArgument if a GradScaler steps this optimizer, which sets the attribute `found_inf`."""
        if not hasattr(self, "found_inf"):
            return
        for name in ("grad_scale", "found_inf"):
            if hasattr(self, name):
                delattr(self, name)
        if self._open is not None:
            self._refuse_changed("a GradScaler unscales gradients after backward()")
        arguments = self._arguments
        reason = ("accumulates gradients, but the scaler unscales and checks only the last one"
                  if arguments.accumulate > 1 else "steps gradients in backward(), before the scaler unscales them")
        raise InvalidArgument(f"a GradScaler steps this optimizer, which {reason}. Scale the loss by hand, use "
                              "bfloat16, or set accumulate=1 and overlap=False")

    # Gradient accumulation

    def _check_accumulated(self) -> None:
        for step_group in self._step_groups or []:
            for number in sorted(step_group.accumulated):
                param = step_group.params[number]
                self._check_accumulator(param)
                # autograd.grad() after the last backward() moves the gradient and sets none.
                if param.grad is None and number in step_group.accumulated:
                    param.grad = torch.zeros_like(param, dtype=step_group.dtypes[number])

    def _check_accumulator(self, param: Tensor) -> None:
        """Raises InvalidArgument if the last gradient was changed, because it is only a part of the sum.

        Clears all accumulators if all gradients are None, as after zero_grad() of a model.
        """
        step_group = self._step_group_of(param)
        if step_group is None or step_group.number[id(param)] not in step_group.accumulated:
            return
        if param.grad is None:
            if id(param) in self._moved:
                return
            dropped = [other.grad is None and id(other) not in self._moved for group in self._step_groups or []
                       for other in (group.params[number] for number in group.accumulated)]
            if not all(dropped):
                raise InvalidArgument(f"the gradient of {self._name(param)} was set to None while gradients "
                                      "accumulate, and others were not. Call the optimizer's zero_grad() to drop all "
                                      "gradients")
            self._clear_accumulators()
        elif (local(param.grad).data_ptr(), gradient_version(param.grad)) != self._made.get(id(param)):
            raise InvalidArgument(f"the gradient of {self._name(param)} was changed after backward() had set it, but "
                                  "with accumulate it is only the last part of a sum. Set max_norm to clip, or "
                                  "accumulate=1 to change gradients")

    def _clear_accumulators(self) -> None:
        for step_group in self._step_groups or []:
            step_group.clear_accumulators()
        if self._is_stale:
            self._refresh_groups()
        self._begin_gradients()

    def _accumulate(self, param: Tensor) -> None:
        """Adds the current gradient to the param's float32 accumulator."""
        step_groups = self._step_groups
        if step_groups is None or not all(step_group.is_usable for step_group in step_groups) or (
                not any(step_group.accumulated for step_group in step_groups) and self._check_early() & CHANGED):
            self._step_groups = self._regroup()
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
            self._step_groups = self._regroup()  # raises if gradients were accumulated
            return self._accumulate(param)
        step_group.accumulate(number, local(grad))
        param.grad = None
        self._moved.add(id(param))

    def _has_accumulated(self, param: Tensor) -> bool:
        step_group = self._step_group_of(param)
        return step_group is not None and step_group.number[id(param)] in step_group.accumulated and (
            param.grad is not None or id(param) in self._moved)

    def _step_group_of(self, param: Tensor) -> Optional[StepGroup]:
        return next((step_group for step_group in self._step_groups or [] if id(param) in step_group.number), None)

    def _join(self) -> None:
        """Adds step groups for params with their first gradient to this step."""
        if self._check_early() & CHANGED:  # _record() would hide the change
            self._step_groups = self._regroup()  # raises if gradients were accumulated
            return
        self._add_step_groups()

    def _add_step_groups(self) -> None:
        with torch.no_grad():
            new = [(g, param) for g, param in self._all_params()
                   if param.grad is not None and self._step_group_of(param) is None]
            assert self._step_groups is not None
            self._step_groups += self._new_step_groups(new)
        self._record(self._step_groups)

    def _on_gradient(self, param: Tensor) -> None:
        """Submits a gradient that backward() has just set."""
        if self._open is None:
            step_groups = self._step_groups
            if not step_groups or len(step_groups) != 1 or not step_groups[0].is_usable:
                return  # step() runs the first step, and a step of params that have joined
            number = step_groups[0].number.get(id(param))
            if number is None:
                return
            if self._check_early() & CHANGED or not self._is_as_recorded(step_groups[0], number):
                self._overlaps = False  # step() steps all gradients
                return
            step_groups[0].take_hypers(self)
            step_groups[0].begin(self)
            self._open = OpenStep(step_groups[0])
        step = self._open
        number = step.step_group.number.get(id(param))
        grad = local(param.grad) if param.grad is not None else None
        if number is None:
            return  # its first gradient, see _finish()
        if number in step.submitted:  # FSDP2 has added to the gradient
            self._refuse_second_backward()
        if grad is None or not self._is_as_recorded(step.step_group, number):
            step.fits = False
            return
        self._submit(step, number, param)

    def _submit(self, step: OpenStep, number: int, param: Tensor) -> None:
        assert param.grad is not None
        storages = [local_memory(tensor).untyped_storage()
                    for tensor in (param, param.grad, *self._tensors_of(param))]
        step.storages += [(storage, storage.data_ptr()) for storage in storages]
        step.step_group.native.keep(storages)
        step.step_group.submit(self, number, local(param.grad))
        # If backward() still needs these weights, as after a use of param.detach(), autograd raises an error.
        record_writes([param])
        step.versions[number] = self._versions_of(param)
        step.submitted[number] = (param.grad, gradient_version(param.grad), local(param.grad).data_ptr())

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
        return [state[name] for name in _state_tensors if name in state] if isinstance(state, dict) else []

    def _versions_of(self, param: Tensor) -> Any:
        # Without values, which the open step writes.
        return [(write_count(tensor), local_memory(tensor).data_ptr())
                for tensor in (param, *self._tensors_of(param))]

    def _abandon(self, event: str) -> None:
        step = self._open
        assert step is not None
        changed = self._changed_since_submitted(step, gradients=False)
        if changed is not None:  # a rollback would overwrite parts of the change
            self._refuse_changed(changed)
        try:
            if step.submitted and not self._can_abandon:
                raise Unavailable  # before copies of gradients are dropped, which step() needs
            step.step_group.abandon()
        except Unavailable:
            raise InvalidArgument(f"{event}, but with overlap=True backward() has begun a step, which cannot be rolled "
                                  "back "
                                  'without max_norm or on_nonfinite="skip". Call step() first, with the '
                                  'hyperparameters that it '
                                  "began with; it steps all params with gradients. Or set overlap=False") from None
        self._open = None
        self._overlaps = False

    def _refuse_changed(self, change: str) -> None:
        """Ends the open step after a change to its params, states or groups, and raises InvalidArgument."""
        step, self._open = self._open, None
        assert step is not None
        self._step_groups = None
        if all(storage.data_ptr() == address for storage, address in step.storages):
            try:
                step.step_group.abandon()
            except Unavailable:
                pass
            step.step_group.close()
        else:  # close() would roll back into freed memory
            step.step_group.native.leak()
        raise InvalidArgument(f"cannot finish the step that backward() began: {change}, but with overlap=True params "
                              "and states are written in backward(), and may be of before or after the step. Load a "
                              "state. Change params, gradients, groups and states before backward() or after step(), "
                              "or set overlap=False")

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
            grad, *submitted = step.submitted[number]
            if gradients and (param.grad is not grad or [gradient_version(grad), local(grad).data_ptr()] != submitted):
                return (f"the gradient of {self._name(param)} was changed after backward() had set it (to clip "
                        "gradients, set max_norm)")
            if self._versions_of(param) != step.versions[number]:
                return f"{self._name(param)} or its state was changed"
        return None

    def _finish(self) -> Optional[Report]:
        step = self._open
        assert step is not None
        step_group = step.step_group
        changed = self._changed_since_submitted(step)
        present = {id(param) for _, param in self._all_params()}
        waiting = [number for number, param in enumerate(step_group.params)
                   if changed is None and number not in step.submitted and param.grad is not None
                   and id(param) in present]
        bits = self._check() if waiting else 0  # takes the numbers of changed hyperparameters
        for number in waiting:
            param = step_group.params[number]
            align_gradient(param)
            if self._is_as_recorded(step_group, number):
                self._submit(step, number, param)
            else:
                step.fits = False
        has_new_params = any(param.grad is not None and id(param) not in step_group.number
                             for _, param in self._all_params())
        bits |= self._check()
        self._hyper_is_taken = False
        if changed is not None:
            self._refuse_changed(changed)
        if bits & CHANGED or not step.fits:
            if not self._can_abandon:
                self._refuse_changed("params, groups, states or gradient dtypes have changed")
            self._abandon("params have changed")
            return self._step_all()
        step.hyper_changed = step.hyper_changed or bool(bits & HYPER_CHANGED)
        if has_new_params and self._needs_norm or step.hyper_changed and not step_group.has_hypers(self):
            self._abandon("hyperparameters have changed since backward() began the step")
            return self._step_all()
        skipped = [number for number in range(len(step_group.params)) if number not in step.submitted]
        step_groups = [step_group]
        if has_new_params:
            try:
                self._add_step_groups()
                step_groups = self._step_groups or []
                for other in step_groups[1:]:
                    other.check_gradients()
            except InvalidArgument as error:
                cause = str(error).rstrip(".")
                raise InvalidArgument(f"{cause}. The step that backward() began is still open: repair this, or set the "
                                      "gradient of the param to None, and call step() again") from None
        self._open = None  # if finish() fails, it abandons the step
        reports = [step_group.finish(skipped, self), *(other.step(self, skips=True) for other in step_groups[1:])]
        if has_new_params:
            self._step_groups = None  # the next step makes one of them
        return self._joined(reports, step_groups)
