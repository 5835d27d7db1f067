# SPDX-License-Identifier: Apache-2.0
"""adamant.Optimizer: Adam and AdamW over NumPy arrays and torch tensors of the caller."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from array import array as packed
from ctypes import addressof, byref, c_double, c_size_t, c_uint64
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._arrays import DTYPES, GROUP_BYTES, QUANTIZED8, SPLIT_FLOAT32, array_info, group_count
from ._library import (Handle, Hyperparameters, InvalidArgument, LossScaling, OptimizerOptions, Reduce, Report, Shard,
                       StepValues, WeightsReady, ZenFlowReport, c_path, c_strings, c_text, check, counted, library,
                       weakly, whole_number)
from ._signals import delayed_signals
from .changes import words_address
from .executor import Executor, shared_executor

nonfinite_policies = {"skip": 0, "zero": 1, "apply": 2}
roundings = {"nearest": 0, "stochastic": 1}
_speculate = {"automatic": 0, "always": 1, "never": 2}
_set_field = ctypes.Structure.__setattr__  # Struct's checks take longer
_roles = {"param": "master", "exp_avg": "moment", "exp_avg_sq": "moment"}


def enum_value(name: str, value: str, names: Dict[str, int]) -> int:
    if not isinstance(value, str) or value not in names:
        raise InvalidArgument(f"{name} is {value!r}, but must be one of {', '.join(names)}")
    return names[value]


def _pair(betas: Any) -> Tuple[Any, Any]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise InvalidArgument(f"betas is {betas!r}, but must be two numbers") from None
    return beta1, beta2


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise InvalidArgument(f"{name} is {value!r}, but must be callable or None")


def hyperparameters(lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
                    weight_decay: float = 0.0, decoupled: bool = True, bias_correction: bool = True,
                    exp_avg_sq_rounding: str = "stochastic", param_rounding: str = "nearest",
                    rounding_seed: int = 0) -> Hyperparameters:
    """Return the hyperparameters of a group.

    Parameters
    ----------
    lr : float, default 1e-3
        Learning rate.
    betas : sequence of two floats, default (0.9, 0.999)
        Decay rates of the first and the second moment.
    eps : float, default 1e-8
        Term added to the denominator.
    weight_decay : float, default 0.0
        Weight decay coefficient.
    decoupled : bool, default True
        Apply weight decay to params directly (AdamW). False: add it to gradients (Adam).
    bias_correction : bool, default True
        Correct the bias of the moments in early steps.
    exp_avg_sq_rounding : {"stochastic", "nearest"}, default "stochastic"
        Rounding of bfloat16 second moments, and of both moments if they are quantized8.
    param_rounding : {"nearest", "stochastic"}, default "nearest"
        Rounding of bfloat16 params.
    rounding_seed : int, default 0
        Seed of stochastic rounding. The random bits are a function of the seed, the step, the param's name and the
        element.

    Raises
    ------
    InvalidArgument
        A rounding is unknown, or the seed is not an integer from 0 to 2**64 - 1. All other values are checked by the
        function that uses them.
    """
    beta1, beta2 = _pair(betas)
    return Hyperparameters.initialised(
        lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, decay=1 if decoupled else 2,
        bias_correction=int(bias_correction),
        exp_avg_sq_rounding=enum_value("exp_avg_sq_rounding", exp_avg_sq_rounding, roundings),
        param_rounding=enum_value("param_rounding", param_rounding, roundings), rounding_seed=rounding_seed)


def _numbers(pointer: Any, count: int) -> Any:
    """Wraps int64 numbers in a writable array, of NumPy or else of ctypes."""
    try:
        import numpy
        return numpy.ctypeslib.as_array(pointer, shape=(count,))
    except ImportError:
        return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int64 * count)).contents


class NativeCallback(NamedTuple):
    """A C function and its `user` argument, by address, and the object that owns it. It runs without the GIL."""

    function: int
    user: int
    owner: Any


class OptimizerHandle(Handle):
    """Owns an optimizer of libadamant_c.

    If a Python callback raises, the call of libadamant_c that ran the callback raises the same exception.
    """

    _raised: Optional[BaseException] = None
    names: Sequence[str] = ()  # names that replace shard numbers in errors

    def __init__(self, executor: Executor, create: Callable[[Any], int]):
        self.executor = executor
        self._new_report = Report.initialised()
        self._pus = executor.pus.encode()
        super().__init__(create)

    def _call_for_report(self, function: str, *arguments: Any, zenflow: Optional[ZenFlowReport] = None) -> Report:
        """Calls a function whose last arguments are a report and, for ZenFlow, a second one."""
        report = Report.from_buffer_copy(self._new_report)
        self._call(function, *arguments, byref(report), *(() if zenflow is None else (byref(zenflow),)))
        if zenflow is not None:
            report.zenflow = zenflow
        _set_field(report, "pus", self._pus)  # the text in C ends with the optimizer
        return report

    def _status_of(self, callback: Callable[..., None], pointer: Any, count: int, *arguments: Any) -> int:
        """Calls a callback with `count` numbers and returns its status for libadamant_c."""
        try:
            callback(_numbers(pointer, count), *arguments)
            return 0
        except BaseException as error:  # an exception must not propagate through C
            self._raised = error
            return 1

    def _reducer(self, reduce: Callable[[Any], None]) -> Any:
        status_of = weakly(self._status_of)  # the handle keeps the callback
        return Reduce(lambda user, words, count: status_of(reduce, words, count))

    def _check(self, status: int) -> None:
        error, self._raised = self._raised, None
        try:
            check(status)
        except Exception as library_error:
            if error is not None:
                raise error from library_error
            if self.names:
                library_error.args = (re.sub(r"\bshard (\d+)\b", self._name_of, str(library_error)),)
            raise

    def _name_of(self, match: "re.Match[str]") -> str:
        number = int(match[1])
        return self.names[number] if number < len(self.names) else match[0]

    def _call(self, function: str, *arguments: Any) -> None:
        if not self.is_in_own_process:
            raise InvalidArgument(f"cannot call {function[8:]}() in process {os.getpid()}: it was forked from the "
                                  "optimizer's process. Make another optimizer here")
        if self.pointer is None:
            raise InvalidArgument(f"cannot call {function[8:]}(): the optimizer was closed. Make another one")
        self._check(getattr(library(), function)(self.pointer, *arguments))


def make_shard(name: str, arrays: Dict[str, Any], shape: Sequence[int] = (), begin: int = 0) -> Shard:
    """Describes a shard for libadamant_c. See Optimizer.add_shard().

    Parameters
    ----------
    arrays : dict
        Arrays by the names of the struct's fields.

    Raises
    ------
    InvalidArgument
        Sizes or dtypes of the arrays do not match.
    """
    shard = Shard.initialised()
    elements = None
    for field, array in arrays.items():
        info = array_info(array, f"{field} of '{name}'", field != "grad", _roles.get(field, ""))
        if info.dtype == QUANTIZED8:
            if info.elements != group_count(elements or 0) * GROUP_BYTES:
                raise InvalidArgument(f"{field} of '{name}' has {info.elements} bytes, but must have the shape "
                                      f"[{group_count(elements or 0)}, {GROUP_BYTES}] for {elements or 0} elements")
        elif elements is not None and info.elements != elements:
            raise InvalidArgument(f"{field} of '{name}' has {counted(info.elements, 'element')}, but its param has "
                                  f"{elements}")
        else:
            elements = info.elements
        setattr(shard, field, info.address or None)
        setattr(shard, field + "_dtype", info.dtype)
    sizes = tuple(shape) or tuple(getattr(arrays.get("param"), "shape", ()))
    if sizes:
        checked = [whole_number(size, f"a size in the shape of '{name}'") for size in sizes]
        shard.shape, shard.dims = (c_size_t * len(sizes))(*checked), len(sizes)
    shard.elements, shard.begin = elements or 0, begin
    return shard


class Optimizer(OptimizerHandle):
    """Adam and AdamW over shards: params, gradients and moments in arrays of the caller, without copies.

    Results have the same bits for any instruction set and number of threads, and for any shard boundaries (with
    max_norm, at multiples of 4096 elements).

    Parameters
    ----------
    executor : Executor or None, default None
        Threads and instruction set. None: the process's shared executor, with one thread on each core.
    max_norm : float, default 0.0
        Clip the gradients of all shards together to this norm. 0: no clipping.
    max_abs_grad : float, default 0.0
        Clamp every gradient element to this magnitude. 0: no clamping. Excludes `max_norm`.
    on_nonfinite : {"skip", "zero", "apply"}, default "skip"
        What a step does with infinities and NaNs in gradients: "skip" changes nothing, "zero" replaces these elements
        by zero, "apply" uses them.
    speculate : {"automatic", "always", "never"}, default "automatic"
        Whether submitted shards are stepped before the norm is known. Does not change any bit.
    loss_scaling : dict or None, default None
        Options of dynamic loss scaling by name, see adamant_loss_scaling in adamant/adamant.h; {} for the defaults.
        None: step() takes the scale, 1 by default.
    keep_last_step : bool, default False
        Keep the records that rollback() needs.
    journal_budget_bytes : int or None, default None
        Maximum size of the records for rollback, in bytes. None: chosen by libadamant_c.
    reduce : callable or None, default None
        Called once a step with 21 int64 words, a writable NumPy array or, without NumPy, a ctypes array. Replaces them
        by their sums over all ranks. The step raises the exception of this function.
    weights_ready : callable or None, default None
        Called with a shard's number and the begin and end of elements that have new weights, in threads of
        libadamant_c. An element may be reported several times in a step; its last call has the final weights. It must
        not raise and must not call the optimizer.

    Attributes
    ----------
    executor : Executor
        The executor of the optimizer.

    Raises
    ------
    InvalidArgument
        An argument is out of range.

    Notes
    -----
    The optimizer keeps references to all arrays; of gradients, to the last ones. Their memory must not move while the
    optimizer exists.

    submit(), skip() and set_gradient() may be called from several threads at the same time, all other methods from one
    thread at a time. Calls release the GIL.

    autograd does not notice writes to torch tensors: call backward() before a step that writes what it needs.
    adamant.torch.AdamW tells autograd.

    close() waits, rolls back an open step if abandon() can, and frees the optimizer. All other methods raise
    InvalidArgument in a forked process and after close().
    """

    free_function = "adamant_optimizer_free"

    def __init__(self, executor: Optional[Executor] = None, *, max_norm: float = 0.0, max_abs_grad: float = 0.0,
                 on_nonfinite: str = "skip", speculate: str = "automatic",
                 loss_scaling: Optional[Dict[str, Any]] = None, keep_last_step: bool = False,
                 journal_budget_bytes: Optional[int] = None, reduce: Optional[Callable[[Any], None]] = None,
                 weights_ready: Union[None, Callable[[int, int, int], None], NativeCallback] = None):
        options = OptimizerOptions.initialised(
            max_norm=max_norm, max_abs_grad=max_abs_grad, speculate=enum_value("speculate", speculate, _speculate),
            on_nonfinite=enum_value("on_nonfinite", on_nonfinite, nonfinite_policies),
            keep_last_step=int(keep_last_step))
        if journal_budget_bytes is not None:
            options.journal_budget_bytes = journal_budget_bytes
        if loss_scaling is not None:
            if not isinstance(loss_scaling, dict):
                raise InvalidArgument(f"loss_scaling is {loss_scaling!r}, but must be a dict or None")
            scaling = LossScaling.initialised(**loss_scaling)
            options.loss_scaling = ctypes.pointer(scaling)
        if reduce is not None:
            _check_callable("reduce", reduce)
            self._reduce = self._reducer(reduce)
            options.reduce = ctypes.cast(self._reduce, ctypes.c_void_p)
        if isinstance(weights_ready, NativeCallback):
            options.weights_ready, options.weights_ready_user, self._weights_ready = weights_ready
        elif weights_ready is not None:
            _check_callable("weights_ready", weights_ready)
            callback = weights_ready
            self._weights_ready = WeightsReady(lambda user, shard, begin, end: callback(shard, begin, end))
            options.weights_ready = ctypes.cast(self._weights_ready, ctypes.c_void_p)
        executor = shared_executor() if executor is None else executor
        if not isinstance(executor, Executor):
            raise InvalidArgument(f"executor is {executor!r}, but must be an adamant.Executor or None")
        self._kept: List[Any] = []
        self._gradients: List[Any] = []  # of each shard; None after release_gradients()
        self._gradient_types: List[Any] = []  # dtype and elements of each
        self._interrupted: List[Any] = []  # gradients that libadamant_c may use after an interrupted or failed call
        self._step_values = StepValues.initialised()  # of steps with the optimizer's own values
        super().__init__(executor, lambda pointer: library().adamant_optimizer_create(
            executor.pointer, byref(options), pointer))

    # Groups and shards

    def add_group(self, name: str, *, maximize: bool = False, **hyper: Any) -> int:
        """Add a group with these hyperparameters, see hyperparameters(). Returns its number.

        Raises
        ------
        InvalidArgument
            The name is taken, a hyperparameter is out of range, or a step is open.
        """
        number = c_size_t()
        self._call("adamant_add_group", c_text(name, "a group's name"), byref(hyperparameters(**hyper)),
                   int(maximize), byref(number))
        return number.value

    def set_hyperparameters(self, group: int, **hyper: Any) -> None:
        """Change the named hyperparameters from the next step on, see hyperparameters(). Raises as add_group() does."""
        known = self.hyperparameters_of(group)
        values = {"lr": known.lr, "betas": (known.beta1, known.beta2), "eps": known.eps,
                  "weight_decay": known.weight_decay, "decoupled": known.decay != 2,
                  "bias_correction": bool(known.bias_correction),
                  "exp_avg_sq_rounding": list(roundings)[known.exp_avg_sq_rounding],
                  "param_rounding": list(roundings)[known.param_rounding], "rounding_seed": known.rounding_seed,
                  **hyper}
        self._call("adamant_set_hyperparameters", whole_number(group, "group"), byref(hyperparameters(**values)))

    def hyperparameters_of(self, group: int) -> Hyperparameters:
        """Return the current hyperparameters of a group."""
        hyper = Hyperparameters.initialised()
        self._call("adamant_get_hyperparameters", whole_number(group, "group"), byref(hyper))
        return hyper

    def add_shard(self, group: int, name: str, param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any,
                  weight_out: Any = None, accumulator: Any = None, *, shape: Sequence[int] = (),
                  begin: int = 0, changed: Any = None) -> int:
        """Add a shard: consecutive elements of a parameter. Returns its number.

        Parameters
        ----------
        group : int
            Number of the group.
        name : str
            Name of the parameter.
        param : array
            Params, read and written: float32, bfloat16 or float16. Or int16: the residuals of split masters, whose
            weights are `weight_out`, see split_masters().
        grad : array
            Gradient, read by steps: float32, bfloat16 or float16.
        exp_avg, exp_avg_sq : array
            Moments, zeros before the first step: float32 or bfloat16, or both quantized8, which is uint8 of shape
            [groups, 68] with a group for each 64 elements; the last group may be partial.
        weight_out : array or None, default None
            Receives the new weights, rounded: bfloat16 or float16 with a float32 param. For int16 params it is bfloat16
            and also read.
        accumulator : array or None, default None
            Sum of the gradients of accumulate(): float32 or bfloat16.
        shape : sequence of int, default ()
            Shape of the whole parameter, for checkpoints. (): the shape of `param`.
        begin : int, default 0
            Index of the shard's first element in the whole parameter.
        changed : array or None, default None
            Bits of changed weights: changed_words(elements) of uint64 or int64. A step sets the bits of the elements
            whose weight (weight_out, or param without one) it changes; see changed_weights(). A step that is skipped,
            abandoned or rolled back leaves them as they were. Loading a state sets all.

        Raises
        ------
        InvalidArgument
            An array cannot be used in place, or sizes or dtypes do not match.

        Notes
        -----
        All arrays are contiguous and in host memory. Except for quantized8 moments they have the same number of
        elements. A written array overlaps no other array.
        """
        arrays = {"param": param, "grad": grad, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq,
                  "weight_out": weight_out, "accumulator": accumulator}
        arrays = {field: array for field, array in arrays.items() if array is not None}
        text = c_text(name, "a shard's name")
        shard = make_shard(name, arrays, shape, begin)
        if changed is not None:
            shard.changed = words_address(changed, shard.elements, f"changed of '{name}'") or None
        number = c_size_t()
        gradient_type = (DTYPES["float32"], 0) if grad is None else array_info(grad, "grad")[1:3]
        with delayed_signals:
            self._call("adamant_add_shard", whole_number(group, "group"), text, byref(shard), byref(number))
            self._kept.append([array for field, array in arrays.items() if field != "grad"] + [changed])
            self._gradients.append(grad)
            self._gradient_types.append(gradient_type)
        return number.value

    def _gradient_address(self, shard: int, grad: Any) -> int:
        if whole_number(shard, "shard") >= len(self._gradients):
            raise InvalidArgument(f"cannot use shard {shard}: the optimizer has "
                                  f"{counted(len(self._gradients), 'shard')}")
        info = array_info(grad, f"the gradient of shard {shard}")
        if info[1:3] != self._gradient_types[shard]:
            dtype, elements = self._gradient_types[shard]
            raise InvalidArgument(f"the gradient of shard {shard} has {counted(info.elements, 'element')} of dtype "
                                  f"{info.dtype}, but must have {elements} of dtype {dtype}, as passed to add_shard()")
        return info.address

    def _call_with_gradient(self, function: str, shard: int, grad: Any) -> None:
        address, previous = self._gradient_address(shard, grad), self._gradients[shard]
        try:
            self._gradients[shard] = grad
            self._call(function, shard, address)
        except BaseException:
            self._interrupted.append(previous)
            raise

    def set_gradient(self, shard: int, grad: Any) -> None:
        """Use this array as the shard's gradient from now on. It has the size and dtype of the previous array.

        Raises
        ------
        InvalidArgument
            The array cannot be used, or the shard was submitted or skipped in the open step.
        """
        self._call_with_gradient("adamant_set_gradient", shard, grad)

    def prepare(self, with_journal: bool = False) -> None:
        """Allocate the memory of steps now instead of in the first step. with_journal: also for begin_step().

        Raises
        ------
        InvalidArgument
            A written array overlaps another one, or a step is open.
        Unavailable, OutOfMemory
            Memory is short.
        """
        self._call("adamant_prepare", int(with_journal))

    # Steps

    @staticmethod
    def _values(loss_scale: Optional[float], max_norm: Optional[float], max_abs_grad: Optional[float],
                lr: Union[None, float, Sequence[float]], groups: int,
                shard_steps: Optional[Sequence[int]] = None) -> Any:
        values = StepValues.initialised()
        for name, value in (("loss_scale", loss_scale), ("max_norm", max_norm), ("max_abs_grad", max_abs_grad)):
            if value is not None:
                setattr(values, "has_" + name, 1)
                setattr(values, name, value)
        if lr is not None:
            is_number = not hasattr(lr, "__len__") or getattr(lr, "ndim", 1) == 0
            try:
                rates = [float(lr)] * groups if is_number else [float(rate) for rate in lr]  # type: ignore
            except (ArithmeticError, TypeError, ValueError):
                raise InvalidArgument(f"lr is {lr!r}, but must be a number, or one number for each group") from None
            values.lr, values.lr_count = (c_double * len(rates))(*rates), len(rates)
        if shard_steps is not None:
            numbers = [whole_number(number, f"shard_steps[{i}]", minimum=1) for i, number in enumerate(shard_steps)]
            values.steps_array = (c_uint64 * len(numbers))(*numbers)  # keeps it alive
            values.shard_steps, values.shard_step_count = addressof(values.steps_array), len(numbers)
        return values

    def _groups(self) -> int:
        count = c_size_t()
        self._call("adamant_group_count", byref(count))
        return count.value

    def step(self, gradients: Optional[Sequence[Any]] = None, *, loss_scale: Optional[float] = None,
             max_norm: Optional[float] = None, max_abs_grad: Optional[float] = None,
             lr: Union[None, float, Sequence[float]] = None, shard_steps: Optional[Sequence[int]] = None) -> Report:
        """Perform one step.

        Parameters
        ----------
        gradients : sequence of arrays or None, default None
            New gradients, one for each shard in the order of add_shard(). None for a shard: it is skipped. By default
            the current gradients are used.
        loss_scale : float or None, default None
            The factor that the loss was multiplied by.
        max_norm, max_abs_grad : float or None, default None
            Override the optimizer's values in this step.
        lr : float, sequence of float or None, default None
            Learning rate of all groups, or of each group.
        shard_steps : sequence of int or None, default None
            Number of this step for each shard, from 1, for engines that count the steps of each param themselves.
            None: the optimizer's.

        Returns
        -------
        Report

        Raises
        ------
        InvalidArgument
            An argument cannot be used, a step is open, or `reduce` returned invalid words.
        Unavailable, OutOfMemory
            Memory is short.

        Notes
        -----
        Raises the exception of `reduce`, too. After an error the state is as before; with `gradients`, some shards may
        use their new gradient already.
        """
        values = self._values(loss_scale, max_norm, max_abs_grad, lr, self._groups(), shard_steps)
        if gradients is None:
            return self._call_for_report("adamant_step", byref(values))
        if len(gradients) != len(self._gradients):
            raise InvalidArgument(f"cannot step with {counted(len(gradients), 'gradient')}, but "
                                  f"{counted(len(self._gradients), 'shard')}: pass one gradient or None for each shard")
        addresses = packed("Q", [0 if grad is None else self._gradient_address(i, grad)
                                 for i, grad in enumerate(gradients)])
        previous = self._gradients
        try:
            self._gradients = [old if new is None else new for old, new in zip(previous, gradients)]
            report = self._call_for_report("adamant_step_gradients", addresses.buffer_info()[0], len(addresses),
                                           byref(values))
        except BaseException:
            self._interrupted.append(previous)
            raise
        if all(addresses):
            self._interrupted.clear()
        return report

    def step_at(self, addresses: int, count: int, next_steps: int = 0) -> Report:
        """Perform one step with gradients by address, for engines that have checked them and keep them alive.

        Parameters
        ----------
        addresses : int
            Address of `count` addresses, one for each shard. 0 skips a shard.
        next_steps : int, default 0
            Address of `count` step numbers, one for each shard. 0: the optimizer's.

        Notes
        -----
        Raises as step() does.
        """
        values = self._values_at(next_steps, count) if next_steps else None
        return self._call_for_report("adamant_step_gradients", addresses, count, values)

    def keep(self, arrays: List[Any]) -> None:
        """Keep these objects alive until keep_only()."""
        self._kept.extend(arrays)

    def keep_only(self, arrays: List[Any]) -> None:
        """Keep only these objects alive, and no gradient, for engines that pass all addresses in every step."""
        self._kept[:] = arrays
        self.release_gradients()

    def release_gradients(self) -> None:
        """Drop the references to gradients, so that their memory can be freed, for engines that pass new gradients to every
        later call that reads them."""
        self._gradients = [None] * len(self._gradients)

    def _values_at(self, next_steps: int, count: int) -> Any:
        self._step_values.shard_steps, self._step_values.shard_step_count = next_steps, count
        return byref(self._step_values)

    def begin_step(self, *, loss_scale: Optional[float] = None, max_norm: Optional[float] = None,
                   max_abs_grad: Optional[float] = None, lr: Union[None, float, Sequence[float]] = None,
                   shard_steps: Optional[Sequence[int]] = None) -> None:
        """Open a step whose gradients arrive one by one, see submit(), skip(), finish() and abandon().

        The arguments are those of step().

        Raises
        ------
        InvalidArgument
            An argument cannot be used, or a step is open.
        Unavailable, OutOfMemory
            Memory is short.
        """
        self._call("adamant_begin_step", byref(self._values(loss_scale, max_norm, max_abs_grad, lr, self._groups(),
                                                            shard_steps)))

    def begin_step_at(self, next_steps: int, count: int) -> None:
        """begin_step() with the address of `count` step numbers, one for each shard."""
        self._call("adamant_begin_step", self._values_at(next_steps, count))

    def submit(self, shard: int, grad: Any = None) -> None:
        """Submit a shard's gradient. Returns immediately. The gradient must not change before finish() has returned.

        Raises
        ------
        InvalidArgument
            The gradient cannot be used, no step is open, or the shard was submitted or skipped already.
        """
        if grad is None:
            self._call("adamant_submit", whole_number(shard, "shard"))
        else:
            self._call_with_gradient("adamant_submit_gradient", shard, grad)

    def submit_at(self, shard: int, address: int) -> None:
        """submit() with an address, for engines that have checked the gradient and keep it alive."""
        self._call("adamant_submit_gradient", whole_number(shard, "shard"), address)

    def skip(self, shard: int) -> None:
        """Skip a shard that has no gradient in this step. The shard does not change. Raises as submit() does."""
        self._call("adamant_skip", whole_number(shard, "shard"))

    def finish(self) -> Report:
        """Wait for the submitted shards and complete the step.

        Raises
        ------
        InvalidArgument
            No step is open, a shard was neither submitted nor skipped, or `reduce` returned invalid words.

        Notes
        -----
        Raises the exception of `reduce`, too. After an error the step stays open: call finish() again, or abandon().
        """
        return self._call_for_report("adamant_finish")

    def abandon(self) -> None:
        """Roll back the open step exactly. Accumulated gradients stay.

        Raises
        ------
        InvalidArgument
            No step is open.
        Unavailable
            Shards were submitted to a step without records: it needs no norm (no `max_norm`, no `reduce`, and
            `on_nonfinite` is not "skip"), and keep_last_step is not set or the journal's budget was too small. The step
            stays open.
        """
        self._call("adamant_abandon")

    def rollback(self) -> None:
        """Roll back the last step exactly. Needs keep_last_step.

        Raises
        ------
        InvalidArgument
            There is no step to roll back, its gradients have changed, or a step is open. Nothing has changed.
        Unavailable
            The journal's budget was too small.
        """
        self._call("adamant_rollback")

    def accumulate(self, shard: int) -> None:
        """Add the shard's gradient to its accumulator, in every micro-step except the last.

        Raises
        ------
        InvalidArgument
            The shard has no accumulator, or was submitted or skipped in the open step.
        Unavailable, OutOfMemory
            Memory is short.
        """
        self._call("adamant_accumulate", whole_number(shard, "shard"))

    def accumulate_at(self, shard: int, address: int) -> None:
        """accumulate() with an address. The gradient is not read afterwards."""
        self._call("adamant_set_gradient", whole_number(shard, "shard"), address)
        self._call("adamant_accumulate", shard)

    def clear_accumulators(self) -> None:
        """Drop accumulated gradients. Raises InvalidArgument if a step is open."""
        self._call("adamant_clear_accumulators")

    # State

    @property
    def steps(self) -> int:
        """Number of steps that have been applied. Engines that restore their own count may set it."""
        count = c_uint64()
        self._call("adamant_steps", byref(count))
        return count.value

    @steps.setter
    def steps(self, count: int) -> None:
        self._call("adamant_set_steps", whole_number(count, "steps"))

    @property
    def loss_scale(self) -> float:
        """Loss scale for the next backward pass."""
        scale = c_double()
        self._call("adamant_loss_scale", byref(scale))
        return scale.value

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write the state to a safetensors file, atomically.

        Raises
        ------
        InvalidArgument
            A step is open, or the path is empty.
        Unavailable
            The file cannot be written; an old file is unchanged.

        Warns
        -----
        RuntimeWarning
            The file is complete, but the file system cannot sync its folder or set its permission bits.
        """
        self._call("adamant_save_safetensors", c_path(path))
        if note := library().adamant_last_error().decode("utf-8", "replace"):
            warnings.warn(note, RuntimeWarning, stacklevel=2)

    def load(self, *paths: Union[str, "os.PathLike[str]"]) -> None:
        """Load a state that save() wrote on one or several ranks, for any sharding.

        Raises
        ------
        InvalidArgument
            A part is missing, or has another shape or dtype; or a step is open.
        Corrupted
            A file is damaged. If another program changed it during the call, steps are refused until a load succeeds.
        Unavailable
            A file cannot be read.
        """
        self._call("adamant_load_safetensors", c_strings(map(c_path, paths)), len(paths))


def sum_of_squares(grad: Any, executor: Optional[Executor] = None) -> float:
    """Return the sum of squares of the finite elements of an array. Bit-reproducible on every machine.

    Raises
    ------
    InvalidArgument
        The array cannot be used in place, or has no dtype of gradients.
    """
    info = array_info(grad, "the gradient")
    total = c_double()
    check(library().adamant_sum_of_squares((executor or shared_executor()).pointer, info.address or None, info.dtype,
                                           info.elements, byref(total), None))
    return total.value


def add_squares(grad: Any, words: Any, executor: Optional[Executor] = None) -> None:
    """Add the sum of squares of an array to an exact total.

    Parameters
    ----------
    grad : array
        The gradient.
    words : array
        The total: 21 contiguous int64 of NumPy or torch, initially zero. It may be summed over ranks.

    Raises
    ------
    InvalidArgument
        As in sum_of_squares(); or the words are no total. Nothing has been added.

    Notes
    -----
    The total is independent of the order of the arrays, and of sharding at multiples of 4096 elements.
    """
    info = array_info(grad, "the gradient")
    words_address = words.data_ptr() if hasattr(words, "data_ptr") else words.ctypes.data
    check(library().adamant_add_squares((executor or shared_executor()).pointer, info.address or None, info.dtype,
                                        info.elements, words_address))


def _check_masters(master: Any, weight: Any, low: Any, writes_master: bool) -> Tuple[Any, Any, Any, int]:
    """Addresses of the three arrays, and their number of elements."""
    infos = []
    for array, name, role, dtype, written in ((master, "master", "", DTYPES["float32"], writes_master),
                                              (weight, "weight", "", DTYPES["bfloat16"], not writes_master),
                                              (low, "low", "master", SPLIT_FLOAT32, not writes_master)):
        infos.append(array_info(array, name, written, role))
        if infos[-1].dtype != dtype or infos[-1].elements != infos[0].elements:
            raise InvalidArgument(f"{name} is {array.dtype} of {counted(infos[-1].elements, 'element')}, but master, "
                                  "weight and low must be float32, bfloat16 and int16, and have the same number of "
                                  "elements")
    return (*[info.address or None for info in infos], infos[0].elements)


def split_masters(master: Any, weight: Any, low: Any) -> None:
    """Split float32 masters into bfloat16 weights and 16-bit residuals, losslessly.

    Parameters
    ----------
    master : array of float32
        Read.
    weight : array of bfloat16
        Receives the masters rounded to nearest, ties away from zero.
    low : array of int16
        Receives the residuals: the master's bits are (weight << 16) + low.

    Raises
    ------
    InvalidArgument
        Dtypes or sizes differ from these.

    Notes
    -----
    Arrays are contiguous, have the same number of elements and do not overlap. NaNs become the canonical NaN.
    """
    from_master, to_weight, to_low, elements = _check_masters(master, weight, low, False)
    check(library().adamant_split_masters(from_master, elements, to_weight, to_low))


def join_masters(weight: Any, low: Any, master: Any) -> None:
    """Join split masters: the inverse of split_masters(). Writes `master`. Raises as split_masters() does."""
    to_master, from_weight, from_low, elements = _check_masters(master, weight, low, True)
    check(library().adamant_join_masters(from_weight, from_low, elements, to_master))
