# SPDX-License-Identifier: Apache-2.0
"""The optimizer over arrays that the caller owns, NumPy's or torch's."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from array import array as packed
from ctypes import byref, c_double, c_size_t, c_uint64
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ._arrays import DTYPES, GROUP_BYTES, QUANTIZED8, SPLIT_FLOAT32, group_count, place_of
from ._library import (Handle, Hyperparameters, InvalidArgument, LossScaling, OptimizerOptions, Reduce, Report, Shard,
                       StepValues, WeightsReady, check, library, texts, whole_number)
from ._signals import whole
from .executor import Executor, shared_executor

nonfinite_policies = {"skip": 0, "zero": 1, "apply": 2}
_rounding = {"nearest": 0, "stochastic": 1}
_speculate = {"automatic": 0, "always": 1, "never": 2}
_parts = {"param": "master", "exp_avg": "moment", "exp_avg_sq": "moment"}


def chosen(what: str, value: str, names: Dict[str, int]) -> int:
    if value not in names:
        raise InvalidArgument(f"{what} is {value!r}, but must be one of {', '.join(names)}")
    return names[value]


def hyperparameters(lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
                    weight_decay: float = 0.0, decoupled: bool = True, bias_correction: bool = True,
                    exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest",
                    rounding_seed: int = 0) -> Hyperparameters:
    """Hyperparameters of a group: AdamW's, or Adam's where `decoupled` is false. Checked where they are used.

    Args:
        exp_avg_sq_rounding, param_rounding: how second moments and params of bfloat16 are rounded, "nearest" or
            "stochastic": stochastically, which depends on rounding_seed, the step, the param's name and the element alone.
            exp_avg_sq_rounding is of both moments' codes where they are quantized8.
    """
    return Hyperparameters.initialised(lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay,
                                       decay=1 if decoupled else 2, bias_correction=int(bias_correction),
                                       exp_avg_sq_rounding=chosen("exp_avg_sq_rounding", exp_avg_sq_rounding, _rounding),
                                       param_rounding=chosen("param_rounding", param_rounding, _rounding),
                                       rounding_seed=rounding_seed)


def _numbers(at: Any, count: int) -> Any:
    """int64 values as a writable array: NumPy's, or ctypes' where there is no NumPy."""
    try:
        import numpy
        return numpy.ctypeslib.as_array(at, shape=(count,))
    except ImportError:
        return ctypes.cast(at, ctypes.POINTER(ctypes.c_int64 * count)).contents


class Calls(Handle):
    """A handle to an optimizer of the library's, which may call functions of Python's: what these raise, the call of
    the library that they were called in raises."""

    _raised: Optional[BaseException] = None
    names: Sequence[str] = ()  # names that replace shard numbers in errors

    def _status_of(self, function: Callable[..., None], at: Any, count: int, *more: Any) -> int:
        """Converts what a reduce function returned for the library."""
        try:
            function(_numbers(at, count), *more)
            return 0
        except BaseException as error:  # no exception may pass through C
            self._raised = error
            return 1

    def _reducer(self, reduce: Callable[[Any], None]) -> Any:
        return Reduce(lambda user, words, count: self._status_of(reduce, words, count))

    def _check(self, status: int) -> None:
        error, self._raised = self._raised, None
        try:
            check(status)
        except Exception as seen:
            if error is not None:
                raise error from seen
            if self.names:
                seen.args = (re.sub(r"\bshard (\d+)\b", self._name_of, str(seen)),)
            raise

    def _name_of(self, found: "re.Match[str]") -> str:
        number = int(found[1])
        return self.names[number] if number < len(self.names) else found[0]

    def _call(self, function: str, *arguments: Any) -> None:
        if not self.here:
            raise InvalidArgument(f"{function[8:]}() is called in process {os.getpid()}, which was forked from the "
                                  "optimizer's; make another optimizer here")
        if self.pointer is None:
            raise InvalidArgument("the optimizer was closed; make another")
        self._check(getattr(library(), function)(self.pointer, *arguments))


def shard_of(name: str, arrays: Dict[str, Any], shape: Sequence[int] = (), begin: int = 0) -> Shard:
    """The library's description of a shard; arrays are named as its fields. Raises InvalidArgument where they do not go
    together. See Optimizer.add_shard()."""
    shard = Shard.initialised()
    elements = None
    for field, given in arrays.items():
        place = place_of(given, f"{field} of '{name}'", field != "grad", _parts.get(field, ""))
        if place.dtype == QUANTIZED8:
            if place.elements != group_count(elements or 0) * GROUP_BYTES:
                raise InvalidArgument(f"{field} of '{name}' has {place.elements} bytes, but must have the shape "
                                      f"[{group_count(elements or 0)}, {GROUP_BYTES}] for {elements} elements")
        elif elements is not None and place.elements != elements:
            raise InvalidArgument(f"{field} of '{name}' has {place.elements} elements, but its param has {elements}")
        else:
            elements = place.elements
        setattr(shard, field, place.address or None)
        setattr(shard, field + "_dtype", place.dtype)
    sizes = tuple(shape) or tuple(getattr(arrays.get("param"), "shape", ()))
    if sizes:
        checked = [whole_number(size, f"a size in the shape of '{name}'") for size in sizes]
        shard.shape, shard.dims = (c_size_t * len(sizes))(*checked), len(sizes)
    shard.elements, shard.begin = elements or 0, begin
    return shard


class Optimizer(Calls):
    """Adam and AdamW over shards: params, gradients and moments in arrays that the caller owns and that are never
    copied. Same bits for any instruction set, number of threads and cut.

    Args:
        executor: where it works; by default one with a thread on each core, which optimizers of this process share.
        max_norm: gradients of all shards together are scaled down to this norm; 0: they are not.
        max_abs_grad: every element is limited to this; 0: it is not. Not together with max_norm.
        on_nonfinite: what becomes of a step with infinities or NaNs: "skip" changes nothing, "zero" has those elements
            count as zeros, "apply" takes them as they are.
        speculate: whether shards that are submitted are stepped before the norm is known: "automatic", "always" or
            "never". Changes no bit.
        loss_scaling: options of dynamic loss scaling by name (see adamant/adamant.h), {} for the defaults; None:
            every step says its scale, or it is 1.
        keep_last_step: whether rollback() can roll back the last step.
        journal_budget_bytes: a bound on the records that a step is rolled back with; None: the library's choice.
        reduce: is called once a step with 21 words, a writable NumPy array of int64 or where there is no NumPy a ctypes
            array, and replaces them by their sums over all ranks. What it raises, the step raises.
        weights_ready: is called with a shard's number and two elements, begin and end, whenever those between have new
            weights; the last call before a step is over has those that stay. In the library's threads; must not raise,
            nor call the optimizer.

    All arrays must stay where they are while the optimizer lives; it keeps references to them. Threads: submit(),
    skip() and set_gradient() from several concurrently, everything else from one at a time. The GIL is free during
    calls.
    """

    free_function = "adamant_optimizer_free"

    def __init__(self, executor: Optional[Executor] = None, *, max_norm: float = 0.0, max_abs_grad: float = 0.0,
                 on_nonfinite: str = "skip", speculate: str = "automatic",
                 loss_scaling: Optional[Dict[str, Any]] = None, keep_last_step: bool = False,
                 journal_budget_bytes: Optional[int] = None, reduce: Optional[Callable[[Any], None]] = None,
                 weights_ready: Optional[Callable[[int, int, int], None]] = None):
        options = OptimizerOptions.initialised(
            max_norm=max_norm, max_abs_grad=max_abs_grad, speculate=chosen("speculate", speculate, _speculate),
            on_nonfinite=chosen("on_nonfinite", on_nonfinite, nonfinite_policies), keep_last_step=int(keep_last_step))
        if journal_budget_bytes is not None:
            options.journal_budget_bytes = journal_budget_bytes
        if loss_scaling is not None:
            scaling = LossScaling.initialised(**loss_scaling)
            options.loss_scaling = ctypes.pointer(scaling)
        if reduce is not None:
            self._reduce = self._reducer(reduce)
            options.reduce = ctypes.cast(self._reduce, ctypes.c_void_p)
        if weights_ready is not None:
            given = weights_ready
            self._weights_ready = WeightsReady(lambda user, shard, begin, end: given(shard, begin, end))
            options.weights_ready = ctypes.cast(self._weights_ready, ctypes.c_void_p)
        self.executor = executor or shared_executor()
        self._kept: List[Any] = []
        self._gradients: List[Any] = []
        self._perhaps: List[Any] = []  # gradients that the library may know, as a call was cut short or failed
        self._new_report = Report.initialised()
        super().__init__(lambda made: library().adamant_optimizer_create(self.executor.pointer, byref(options), made))

    # Groups and shards

    def add_group(self, name: str, *, maximize: bool = False, **hyper: Any) -> int:
        """Adds a group with these hyperparameters (see hyperparameters()), and returns its number."""
        number = c_size_t()
        self._call("adamant_add_group", name.encode(), byref(hyperparameters(**hyper)), int(maximize), byref(number))
        return number.value

    def set_hyperparameters(self, group: int, **hyper: Any) -> None:
        """Changes those that are named, from the next step on; `betas` changes both, and `decoupled` is how
        weight_decay acts."""
        now = self.hyperparameters_of(group)
        wanted = {"lr": now.lr, "betas": (now.beta1, now.beta2), "eps": now.eps, "weight_decay": now.weight_decay,
                  "decoupled": now.decay != 2, "bias_correction": bool(now.bias_correction),
                  "exp_avg_sq_rounding": list(_rounding)[now.exp_avg_sq_rounding],
                  "param_rounding": list(_rounding)[now.param_rounding], "rounding_seed": now.rounding_seed, **hyper}
        self._call("adamant_set_hyperparameters", whole_number(group, "group"), byref(hyperparameters(**wanted)))

    def hyperparameters_of(self, group: int) -> Hyperparameters:
        hyper = Hyperparameters.initialised()
        self._call("adamant_get_hyperparameters", whole_number(group, "group"), byref(hyper))
        return hyper

    def add_shard(self, group: int, name: str, param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
                  weight_out: Any = None, accumulator: Any = None, *, shape: Sequence[int] = (),
                  begin: int = 0) -> int:
        """Adds a shard and returns its number: consecutive elements of the parameter `name`.

        Args:
            param: read and written; float32, bfloat16 or float16. Or int16: the residuals of split float32 masters, whose
                upper ones are weight_out; see split_masters().
            grad: read in steps; the same types.
            exp_avg, exp_avg_sq: the moments, zeros before the first step; float32 or bfloat16, or both quantized8:
                uint8 of shape [groups, 68], a group for each 64 elements and one for what is left.
            weight_out: where the new weights go, rounded; bfloat16 or float16 with a float32 param, or None. With lower
                halves it is bfloat16, and read, too.
            accumulator: where accumulate() adds gradients up; float32, bfloat16, or None.
            shape, begin: of the whole parameter, and where the shard begins in it, for checkpoints; by default the
                shard is all of it.

        Every other array has as many elements. All are contiguous and in host memory, and none that is written overlaps
        another.
        """
        arrays = {"param": param, "grad": grad, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq,
                  "weight_out": weight_out, "accumulator": accumulator}
        arrays = {field: given for field, given in arrays.items() if given is not None}
        shard = shard_of(name, arrays, shape, begin)
        number = c_size_t()
        with whole:
            self._call("adamant_add_shard", whole_number(group, "group"), name.encode(), byref(shard), byref(number))
            self._kept.append(list(arrays.values()))
            self._gradients.append(grad)
        return number.value

    def _gradient_place(self, shard: int, grad: Any) -> int:
        if whole_number(shard, "shard") >= len(self._gradients):
            raise InvalidArgument(f"there is no shard {shard}; there are {len(self._gradients)}")
        known = place_of(self._gradients[shard], "the gradient")
        place = place_of(grad, f"the gradient of shard {shard}")
        if place[1:3] != known[1:3]:
            raise InvalidArgument(f"the gradient of shard {shard} has {place.elements} elements of dtype {place.dtype}, "
                                  f"but was added with {known.elements} of dtype {known.dtype}")
        return place.address

    def _call_with_gradient(self, function: str, shard: int, grad: Any) -> None:
        address, before = self._gradient_place(shard, grad), self._gradients[shard]
        try:
            self._gradients[shard] = grad
            self._call(function, shard, address)
        except BaseException:
            self._perhaps.append(before)
            raise

    def set_gradient(self, shard: int, grad: Any) -> None:
        """From now on the shard's gradient is this array, of the same size and type as before."""
        self._call_with_gradient("adamant_set_gradient", shard, grad)

    def prepare(self, with_journal: bool = False) -> None:
        """Allocates what steps need; otherwise the first step does. with_journal: for begin_step(), too."""
        self._call("adamant_prepare", int(with_journal))

    # Steps

    @staticmethod
    def _values(loss_scale: Optional[float], max_norm: Optional[float], max_abs_grad: Optional[float],
                lr: Union[None, float, Sequence[float]], groups: int) -> Any:
        values = StepValues.initialised()
        for name, value in (("loss_scale", loss_scale), ("max_norm", max_norm), ("max_abs_grad", max_abs_grad)):
            if value is not None:
                setattr(values, "has_" + name, 1)
                setattr(values, name, value)
        if lr is not None:
            rates = [float(lr)] * groups if not hasattr(lr, "__len__") else [float(rate) for rate in lr]  # type: ignore
            values.lr, values.lr_count = (c_double * len(rates))(*rates), len(rates)
        return values

    def _groups(self) -> int:
        count = c_size_t()
        self._call("adamant_group_count", byref(count))
        return count.value

    def step(self, gradients: Optional[Sequence[Any]] = None, *, loss_scale: Optional[float] = None,
             max_norm: Optional[float] = None, max_abs_grad: Optional[float] = None,
             lr: Union[None, float, Sequence[float]] = None) -> Report:
        """A whole step.

        Args:
            gradients: new arrays for this step, one for each shard in the order they were added, None where a shard has
                none and stays as it is; by default they are where they were.
            loss_scale: what the loss was multiplied by.
            max_norm, max_abs_grad: in place of the optimizer's.
            lr: one learning rate for all groups, or one for each.

        Returns what happened. Raises InvalidArgument with nothing changed.
        """
        values = self._values(loss_scale, max_norm, max_abs_grad, lr, self._groups())
        report = Report.initialised()
        if gradients is None:
            self._call("adamant_step", byref(values), byref(report))
            return report
        if len(gradients) != len(self._gradients):
            raise InvalidArgument(f"there are {len(gradients)} gradients, but {len(self._gradients)} shards")
        at = packed("Q", [0 if grad is None else self._gradient_place(i, grad) for i, grad in enumerate(gradients)])
        before = self._gradients
        try:
            self._gradients = [old if new is None else new for old, new in zip(before, gradients)]
            self._call("adamant_step_gradients", at.buffer_info()[0], len(at), byref(values), byref(report))
        except BaseException:
            self._perhaps.append(before)
            raise
        if all(at):
            self._perhaps.clear()
        return report

    def step_at(self, addresses: int, count: int) -> Report:
        """step() over `count` gradients whose addresses lie at `addresses`, one for each shard, 0 where a shard has none: for
        an engine that has looked at them. They are not kept alive."""
        report = Report.from_buffer_copy(self._new_report)
        self._call("adamant_step_gradients", addresses, count, None, byref(report))
        return report

    def keep(self, arrays: List[Any]) -> None:
        """Keeps these objects alive until keep_only() is called."""
        self._kept.extend(arrays)

    def keep_only(self, arrays: List[Any]) -> None:
        """Keeps these alive, and no others: for an engine that looks where they are in every step."""
        self._kept[:] = arrays

    def begin_step(self, *, loss_scale: Optional[float] = None, max_norm: Optional[float] = None,
                   max_abs_grad: Optional[float] = None, lr: Union[None, float, Sequence[float]] = None) -> None:
        """Opens a step whose gradients arrive one by one; see submit(), skip(), finish(), abandon()."""
        self._call("adamant_begin_step", byref(self._values(loss_scale, max_norm, max_abs_grad, lr, self._groups())))

    def submit(self, shard: int, grad: Any = None) -> None:
        """This shard's gradient is there; returns immediately. It must not change until finish() has returned."""
        if grad is None:
            self._call("adamant_submit", whole_number(shard, "shard"))
        else:
            self._call_with_gradient("adamant_submit_gradient", shard, grad)

    def submit_at(self, shard: int, address: int) -> None:
        """submit() of a gradient by its address, for an engine that has looked at it and keeps it alive."""
        self._call("adamant_submit_gradient", whole_number(shard, "shard"), address)

    def skip(self, shard: int) -> None:
        """This shard has no gradient in this step, and stays as it is."""
        self._call("adamant_skip", whole_number(shard, "shard"))

    def finish(self) -> Report:
        """Waits for what was submitted and completes the step."""
        report = Report.initialised()
        self._call("adamant_finish", byref(report))
        return report

    def abandon(self) -> None:
        """Gives up the step that is open: all bits are as before it."""
        self._call("adamant_abandon")

    def rollback(self) -> None:
        """Rolls back the last step, to the bit; with keep_last_step."""
        self._call("adamant_rollback")

    def accumulate(self, shard: int) -> None:
        """Adds the shard's gradient to its accumulator: for every micro-step but the last."""
        self._call("adamant_accumulate", whole_number(shard, "shard"))

    def accumulate_at(self, shard: int, address: int) -> None:
        """accumulate() of a gradient by its address, which is not needed afterwards."""
        self._call("adamant_set_gradient", whole_number(shard, "shard"), address)
        self._call("adamant_accumulate", shard)

    def clear_accumulators(self) -> None:
        """Forgets what was accumulated."""
        self._call("adamant_clear_accumulators")

    # State

    @property
    def steps(self) -> int:
        """How many steps have been applied; may be set, by an engine that restores its own count."""
        count = c_uint64()
        self._call("adamant_steps", byref(count))
        return count.value

    @steps.setter
    def steps(self, count: int) -> None:
        self._call("adamant_set_steps", whole_number(count, "steps"))

    @property
    def loss_scale(self) -> float:
        """Loss scale to use for the next backward pass."""
        scale = c_double()
        self._call("adamant_loss_scale", byref(scale))
        return scale.value

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the state to a safetensors file, which is there whole or not at all.

        Warns where the file is complete, but the file system cannot sync its folder or set its permission bits.
        """
        self._call("adamant_save_safetensors", os.fsencode(path))
        if note := library().adamant_last_error().decode("utf-8", "replace"):
            warnings.warn(note, RuntimeWarning, stacklevel=2)

    def load(self, *paths: Union[str, "os.PathLike[str]"]) -> None:
        """Loads what save() wrote, on one rank or on several, however it was cut."""
        self._call("adamant_load_safetensors", texts(tuple(os.fspath(path) for path in paths)), len(paths))


def sum_of_squares(grad: Any, executor: Optional[Executor] = None) -> float:
    """The sum of squares of an array's finite elements, the same bits everywhere."""
    place = place_of(grad, "the gradient")
    total = c_double()
    check(library().adamant_sum_of_squares((executor or shared_executor()).pointer, place.address or None, place.dtype,
                                           place.elements, byref(total), None))
    return total.value


def add_squares(grad: Any, words: Any, executor: Optional[Executor] = None) -> None:
    """Adds an array's sum of squares to a total: 21 contiguous 64-bit integers, NumPy's or torch's, zeros at first, which
    may be accumulated over ranks. The same total for any order of arrays, however they are cut at multiples of 4096
    elements."""
    place = place_of(grad, "the gradient")
    at = words.data_ptr() if hasattr(words, "data_ptr") else words.ctypes.data
    check(library().adamant_add_squares((executor or shared_executor()).pointer, place.address or None, place.dtype,
                                        place.elements, at))


def _master_places(master: Any, weight: Any, low: Any, writes_master: bool) -> Tuple[Any, Any, Any, int]:
    places = []
    for array, what, part, dtype, written in ((master, "master", "", DTYPES["float32"], writes_master),
                                              (weight, "weight", "", DTYPES["bfloat16"], not writes_master),
                                              (low, "low", "master", SPLIT_FLOAT32, not writes_master)):
        places.append(place_of(array, what, written, part))
        if places[-1].dtype != dtype or places[-1].elements != places[0].elements:
            raise InvalidArgument(f"{what} is {array.dtype} of {places[-1].elements} elements, but master, weight and low must "
                                  "be float32, bfloat16 and int16, and have equally many")
    return (*[place.address or None for place in places], places[0].elements)


def split_masters(master: Any, weight: Any, low: Any) -> None:
    """Splits float32 masters: weight, of bfloat16, is the master rounded to nearest, ties away from zero,
    and low, of int16, what is left: the master's bits are (weight << 16) + low. NaNs become the canonical one.
    Contiguous arrays of equally many elements, which do not overlap."""
    from_master, to_weight, to_low, elements = _master_places(master, weight, low, False)
    check(library().adamant_split_masters(from_master, elements, to_weight, to_low))


def join_masters(weight: Any, low: Any, master: Any) -> None:
    """The inverse: writes masters, with every bit."""
    to_master, from_weight, from_low, elements = _master_places(master, weight, low, True)
    check(library().adamant_join_masters(from_weight, from_low, elements, to_master))
