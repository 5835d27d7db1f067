# SPDX-License-Identifier: Apache-2.0
"""ctypes bindings of libadamant_c: functions, structs and errors. Every call releases the GIL."""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import weakref
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Type

from ._extension import package_folders
from ._signals import delayed_signals

C_VERSION = 1


class Error(Exception):
    """Base of all errors of adamant. The message names the request, the reason and the remedy."""


class InvalidArgument(Error, ValueError):
    """The request is invalid on every machine."""


class Unavailable(Error, RuntimeError):
    """The request is valid, but this machine, file system or build does not support it."""


class OutOfMemory(Error, MemoryError):
    """Memory is short. Nothing has changed."""


class Corrupted(Error, RuntimeError):
    """A file, or a state in memory, is damaged."""


class ReduceFailed(Error, RuntimeError):
    """The reduction over ranks has failed. Nothing has changed."""


class Internal(Error, RuntimeError):
    """A defect of the library."""


class DeviceFailed(Error, RuntimeError):
    """An operation of a device has failed or timed out."""


_errors: Dict[int, Type[Error]] = {
    1: InvalidArgument,
    2: Unavailable,
    3: OutOfMemory,
    4: Corrupted,
    5: ReduceFailed,
    6: Internal,
    7: DeviceFailed,
}


def is_bool(value: Any) -> bool:
    """Whether the value is a boolean of Python, NumPy or torch. All three convert to numbers."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def whole_number(value: Any, name: str, maximum: int = 2**64 - 1, minimum: int = 0) -> int:
    """Converts to an integer in range; ctypes would truncate it silently.

    Raises InvalidArgument for any other value, and for booleans.
    """
    if type(value) is int and minimum <= value <= maximum:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if is_bool(value) or not minimum <= number <= maximum:
        raise InvalidArgument(f"{name} is {value!r}, but must be a whole number from {minimum} to {maximum}")
    return number


_numbers = (c_double, c_int32, c_uint32, c_uint64, c_size_t)
_unsigned_fields = {c_uint32: 2**32 - 1, c_uint64: 2**64 - 1, c_size_t: 2 ** (8 * ctypes.sizeof(c_size_t)) - 1}


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, as a function that does not keep its object alive. Other callables unchanged."""
    if not hasattr(method, "__self__"):
        return method
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        known = reference()
        assert known is not None  # the object has made this call
        return known(*arguments)
    return call


class Struct(ctypes.Structure):
    """A struct with its size in the first field. initialised() returns one with libadamant_c's defaults.

    Setting a field raises InvalidArgument for a value of another type, or that is out of an unsigned field's range.
    """

    name_in_c: str
    _maxima: Dict[str, int] = {}  # of unsigned fields
    _enumerators: Dict[str, Tuple[str, ...]] = {}  # of fields that name a choice, from 0, for __repr__()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._maxima = {name: _unsigned_fields[kind] for name, kind in cls._fields_ if kind in _unsigned_fields}

    def __setattr__(self, name: str, value: Any) -> None:
        maximum = self._maxima.get(name)
        try:
            super().__setattr__(name, value if maximum is None else whole_number(value, name, maximum))
        except (ArithmeticError, TypeError):
            raise InvalidArgument(f"{name} is {value!r}, but must be a number") from None

    def __repr__(self) -> str:  # without pointers, whose targets may be gone
        def text(name: str) -> str:
            value = getattr(self, name)
            return self._enumerators[name][value] if name in self._enumerators else repr(value)

        values = (f"{name}={text(name)}" for name, kind in self._fields_[1:] if kind in _numbers)
        return f"{type(self).__name__}({', '.join(values)})"

    @classmethod
    def initialised(cls, **values: Any) -> Any:
        fields = [name for name, _ in cls._fields_]
        for name in values.keys() - set(fields):
            raise InvalidArgument(f"{name} is no field of {cls.name_in_c}, which has {', '.join(fields[1:])}")
        struct = cls()
        check(getattr(library(), cls.name_in_c + "_init")(ctypes.byref(struct), ctypes.sizeof(cls)))
        for name, value in values.items():
            setattr(struct, name, value)
        return struct


_size = ("struct_bytes", c_size_t)


class CoreOptions(Struct):
    name_in_c = "adamant_core_options"
    _fields_ = [_size, ("cpuadam_cores_perc", c_double), ("pt_reserved_cores_perc", c_double),
                ("cpuadam_cores", c_uint32), ("pt_reserved_cores", c_uint32), ("ranks", c_uint32), ("rank", c_uint32),
                ("pus", c_char_p), ("machine", c_char_p), ("every_pu_of_cores", c_int32),
                ("fast_cores_to_host", c_int32), ("allowed", c_char_p), ("masks", POINTER(c_char_p)),
                ("mask_count", c_size_t), ("gpus", POINTER(c_char_p)), ("gpu_count", c_size_t), ("cpu_quota", c_double)]


class ExecutorOptions(Struct):
    name_in_c = "adamant_executor_options"
    _fields_ = [_size, ("isa", c_char_p), ("pus", c_char_p), ("threads", c_uint32), ("bind", c_int32),
                ("min_slice_elems", c_size_t), ("max_chunk_elems", c_size_t), ("prefetch_bytes", c_size_t),
                ("team", c_void_p)]


class TeamOptions(Struct):
    name_in_c = "adamant_team_options"
    _fields_ = [_size, ("pus", c_char_p), ("spin_ns", c_uint64), ("threads", c_uint32), ("bind", c_int32)]


class LossScaling(Struct):
    name_in_c = "adamant_loss_scaling"
    _fields_ = [_size, ("initial_scale", c_double), ("growth_factor", c_double), ("backoff_factor", c_double),
                ("min_scale", c_double), ("max_scale", c_double), ("growth_interval", c_uint32),
                ("hysteresis", c_uint32)]


class OptimizerOptions(Struct):
    name_in_c = "adamant_optimizer_options"
    _fields_ = [_size, ("max_norm", c_double), ("max_abs_grad", c_double), ("on_nonfinite", c_int32),
                ("speculate", c_int32), ("loss_scaling", POINTER(LossScaling)), ("journal_budget_bytes", c_size_t),
                ("keep_last_step", c_int32), ("reduce", c_void_p), ("reduce_user", c_void_p),
                ("device_timeout_s", c_double), ("device_records", c_int32), ("weights_ready", c_void_p),
                ("weights_ready_user", c_void_p)]


class Hyperparameters(Struct):
    name_in_c = "adamant_hyperparameters"
    _fields_ = [_size, ("lr", c_double), ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
                ("weight_decay", c_double), ("decay", c_int32), ("bias_correction", c_int32),
                ("exp_avg_sq_rounding", c_int32), ("param_rounding", c_int32), ("rounding_seed", c_uint64)]


class Shard(Struct):
    name_in_c = "adamant_shard"
    _fields_ = [_size, ("elements", c_size_t), ("param", c_void_p), ("grad", c_void_p), ("exp_avg", c_void_p),
                ("exp_avg_sq", c_void_p), ("weight_out", c_void_p), ("accumulator", c_void_p),
                ("param_dtype", c_int32), ("grad_dtype", c_int32), ("exp_avg_dtype", c_int32),
                ("exp_avg_sq_dtype", c_int32), ("weight_out_dtype", c_int32), ("accumulator_dtype", c_int32),
                ("shape", POINTER(c_size_t)), ("dims", c_size_t), ("begin", c_size_t), ("rounding_stream", c_uint64),
                ("changed", c_void_p)]


class TrackedWeights(Struct):
    name_in_c = "adamant_tracked_weights"
    _fields_ = [_size, ("changed", c_void_p), ("elements", c_size_t), ("weights", c_void_p), ("dtype", c_int32)]


class StepItem(Struct):
    name_in_c = "adamant_step_item"
    _fields_ = [_size, ("shard", POINTER(Shard)), ("hyper", POINTER(Hyperparameters)), ("step_number", c_uint64),
                ("grad_scale", c_double)]


class SumItem(Struct):
    name_in_c = "adamant_sum_item"
    _fields_ = [_size, ("elements", c_size_t), ("sum", c_void_p), ("grad", c_void_p), ("sum_dtype", c_int32),
                ("grad_dtype", c_int32), ("replace", c_int32)]


class StepValues(Struct):
    name_in_c = "adamant_step_values"
    _fields_ = [_size, ("has_loss_scale", c_int32), ("has_max_norm", c_int32), ("has_max_abs_grad", c_int32),
                ("loss_scale", c_double), ("max_norm", c_double), ("max_abs_grad", c_double),
                ("lr", POINTER(c_double)), ("lr_count", c_size_t), ("shard_steps", c_void_p),
                ("shard_step_count", c_size_t)]


class Report(Struct):
    """Report of a step. Fields are those of adamant_report in adamant/adamant.h.

    If `measured` is 0, global_norm is NaN and nonfinite_grads is 0.
    """

    name_in_c = "adamant_report"
    _fields_ = [_size, ("step", c_uint64), ("outcome", c_int32), ("speculated", c_int32), ("rolled_back", c_int32),
                ("has_first_nonfinite", c_int32), ("first_nonfinite_shard", c_size_t),
                ("first_nonfinite_index", c_size_t), ("nonfinite_grads", c_uint64), ("loss_scale", c_double),
                ("global_norm", c_double), ("clip_coefficient", c_double), ("elements", c_size_t),
                ("shards_waited", c_size_t), ("journal_bytes", c_size_t), ("seconds", c_double),
                ("gradients_seconds", c_double), ("update_seconds", c_double), ("gradients_bytes", c_size_t),
                ("update_bytes", c_size_t), ("threads", c_uint32), ("isa", c_char_p), ("pus", c_char_p),
                ("ratio", c_double), ("cpu_busy_seconds", c_double), ("device_work_seconds", c_double),
                ("device_up_seconds", c_double), ("device_down_seconds", c_double), ("device_elements", c_size_t),
                ("device_work_bytes", c_size_t), ("device_up_bytes", c_size_t), ("device_down_bytes", c_size_t),
                ("measured", c_int32), ("cpu_quota", c_double)]

    _enumerators = {"outcome": ("applied", "skipped")}
    # The report of deferred updates, for an optimizer with zenflow.
    zenflow: Optional["ZenFlowReport"] = None

    def join(self, other: "Report", first_shard: int, same_gradients: bool) -> None:
        """Adds the report of other shards in the same step.

        Parameters
        ----------
        first_shard : int
            Number of the first of them among all.
        same_gradients : bool
            Both have measured the gradients of all shards.
        """
        for name, _ in self._fields_[1:]:
            if name.endswith(("seconds", "bytes", "elements", "shards_waited")):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        if not same_gradients:
            self.nonfinite_grads += other.nonfinite_grads
        if other.has_first_nonfinite and not self.has_first_nonfinite:
            self.has_first_nonfinite, self.first_nonfinite_index = 1, other.first_nonfinite_index
            self.first_nonfinite_shard = first_shard + other.first_nonfinite_shard
        for name in ("speculated", "rolled_back", "measured"):
            setattr(self, name, getattr(self, name) | getattr(other, name))
        self.step = max(self.step, other.step)

    @property
    def skipped(self) -> bool:
        """Whether the step changed nothing because a gradient was not finite."""
        return self.outcome == 1


class ZenFlowOptions(Struct):
    name_in_c = "adamant_zenflow_options"
    _fields_ = [_size, ("topk_ratio", c_double), ("select_interval", c_size_t), ("update_interval", c_size_t),
                ("auto_ratio", c_double), ("max_deferred", c_size_t), ("full_warm_up_rounds", c_size_t),
                ("score", c_int32), ("scope", c_int32), ("overlap", c_int32), ("reduce_columns", c_void_p),
                ("reduce_columns_user", c_void_p)]


class ZenFlowReport(Struct):
    """Report of deferred updates. Fields are those of adamant_zenflow_report in adamant/adamant.h."""

    name_in_c = "adamant_zenflow_report"
    _fields_ = [_size, ("warm_up", c_int32), ("selected", c_int32), ("columns_moved", c_size_t), ("deferred", c_size_t),
                ("window_ended", c_int32), ("deferred_skipped", c_int32), ("deferred_stepped", c_size_t),
                ("waited_seconds", c_double), ("publish_seconds", c_double), ("sums_seconds", c_double),
                ("deferred_seconds", c_double)]


class ZenFlowPosition(Struct):
    name_in_c = "adamant_zenflow_position"
    _fields_ = [_size, ("steps", c_uint64), ("since_selection", c_uint64), ("in_window", c_uint64),
                ("has_selection", c_int32), ("has_loss_scaler", c_int32), ("loss_scale", c_double),
                ("good_steps", c_uint32), ("hysteresis_left", c_uint32), ("done_squares", c_double),
                ("deferred_norm", c_double)]


class ZenFlowParam(Struct):
    name_in_c = "adamant_zenflow_param"
    _fields_ = [_size, ("name", c_char_p), ("columns", c_size_t), ("all_rows", c_size_t), ("first_row", c_size_t),
                ("rows", c_size_t), ("param", c_void_p), ("exp_avg", c_void_p), ("exp_avg_sq", c_void_p),
                ("weight_out", c_void_p), ("weights", c_void_p), ("counts", c_void_p), ("selected", c_void_p),
                ("publishing", c_void_p), ("sums", c_void_p), ("summed", c_uint64), ("param_dtype", c_int32),
                ("exp_avg_dtype", c_int32), ("exp_avg_sq_dtype", c_int32), ("weight_out_dtype", c_int32)]


SQUARES_WORDS = 21
Reduce = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_int64), c_size_t)
ReduceColumns = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_int64), c_size_t, c_int32)
WeightsReady = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_size_t, c_size_t)

_p = c_void_p
_functions: Dict[str, List[Any]] = {
    "adamant_select_cores": [_p, c_char_p, c_size_t, c_char_p, c_size_t],
    "adamant_allowed_pus": [c_char_p, c_size_t],
    "adamant_cpu_quota": [_p, c_char_p, c_size_t],
    "adamant_executor_create": [_p, _p],
    "adamant_executor_describe": [_p, POINTER(c_char_p), POINTER(c_uint32), POINTER(c_char_p)],
    "adamant_step_shard": [_p, _p, _p, c_uint64, c_double, c_double, _p],
    "adamant_step_list": [_p, _p, c_size_t, _p],
    "adamant_accumulate_list": [_p, _p, c_size_t],
    "adamant_count_changed": [_p, _p, POINTER(c_size_t)],
    "adamant_changed_weights": [_p, _p, c_uint64, c_size_t, _p, _p, _p, c_int32, POINTER(c_size_t)],
    "adamant_changed_mask": [_p, _p, _p, c_int32],
    "adamant_mark_changed": [_p, c_size_t, c_size_t],
    "adamant_split_masters": [_p, c_size_t, _p, _p],
    "adamant_join_masters": [_p, _p, c_size_t, _p],
    "adamant_sum_of_squares": [_p, _p, c_int32, c_size_t, POINTER(c_double), POINTER(c_uint64)],
    "adamant_add_squares": [_p, _p, c_int32, c_size_t, _p],
    "adamant_round_squares": [_p, POINTER(c_double), POINTER(c_uint64)],
    "adamant_optimizer_create": [_p, _p, _p],
    "adamant_add_group": [_p, c_char_p, _p, c_int32, POINTER(c_size_t)],
    "adamant_set_hyperparameters": [_p, c_size_t, _p],
    "adamant_get_hyperparameters": [_p, c_size_t, _p],
    "adamant_group_count": [_p, POINTER(c_size_t)],
    "adamant_add_shard": [_p, c_size_t, c_char_p, _p, POINTER(c_size_t)],
    "adamant_shard_count": [_p, POINTER(c_size_t)],
    "adamant_set_gradient": [_p, c_size_t, _p],
    "adamant_memory_bytes": [_p, c_int32, POINTER(c_size_t)],
    "adamant_prepare": [_p, c_int32],
    "adamant_steps": [_p, POINTER(c_uint64)],
    "adamant_set_steps": [_p, c_uint64],
    "adamant_loss_scale": [_p, POINTER(c_double)],
    "adamant_step": [_p, _p, _p],
    "adamant_step_gradients": [_p, _p, c_size_t, _p, _p],
    "adamant_begin_step": [_p, _p],
    "adamant_submit": [_p, c_size_t],
    "adamant_submit_gradient": [_p, c_size_t, _p],
    "adamant_skip": [_p, c_size_t],
    "adamant_finish": [_p, _p],
    "adamant_abandon": [_p],
    "adamant_rollback": [_p],
    "adamant_accumulate": [_p, c_size_t],
    "adamant_clear_accumulators": [_p],
    "adamant_cuda_device_create": [c_int32, _p],
    "adamant_cuda_device_wait_event": [_p, _p],
    "adamant_deepspeed_parse": [c_char_p, c_size_t, _p],
    "adamant_deepspeed_apply": [_p, _p, _p, _p, _p, _p],
    "adamant_save_safetensors": [_p, c_char_p],
    "adamant_check_can_save": [c_char_p],
    "adamant_load_safetensors": [_p, POINTER(c_char_p), c_size_t],
    "adamant_zenflow_create": [_p, _p, _p, _p],
    "adamant_zenflow_add_group": [_p, c_char_p, _p, c_int32, POINTER(c_size_t)],
    "adamant_zenflow_set_hyperparameters": [_p, c_size_t, _p],
    "adamant_zenflow_add_param": [_p, c_size_t, c_char_p, _p, c_size_t, _p, POINTER(c_size_t)],
    "adamant_zenflow_memory_bytes": [_p, POINTER(c_size_t)],
    "adamant_zenflow_prepare": [_p],
    "adamant_zenflow_step_gradients": [_p, _p, c_size_t, _p, _p, _p],
    "adamant_zenflow_set_gradient": [_p, c_size_t, _p],
    "adamant_zenflow_begin_step": [_p, _p],
    "adamant_zenflow_submit": [_p, c_size_t],
    "adamant_zenflow_skip": [_p, c_size_t],
    "adamant_zenflow_finish": [_p, _p, _p],
    "adamant_zenflow_abandon": [_p],
    "adamant_zenflow_set_device_arrays": [_p, c_size_t, c_uint64, c_uint64],
    "adamant_zenflow_place": [_p, _p],
    "adamant_zenflow_flush": [_p],
    "adamant_zenflow_loss_scale": [_p, POINTER(c_double)],
    "adamant_zenflow_get_position": [_p, _p],
    "adamant_zenflow_get_param": [_p, c_size_t, _p],
    "adamant_zenflow_load": [_p, _p, _p, c_size_t],
    "adamant_zenflow_save_safetensors": [_p, c_char_p],
    "adamant_zenflow_load_safetensors": [_p, POINTER(c_char_p), c_size_t],
}
_frees = ["adamant_executor_free", "adamant_optimizer_free", "adamant_deepspeed_free", "adamant_device_free",
          "adamant_zenflow_free"]

_loaded: Optional[Any] = None


def library_path() -> Path:
    """The path of libadamant_c: the environment variable ADAMANT_C_LIBRARY, or the library in this package."""
    configured = os.environ.get("ADAMANT_C_LIBRARY")
    if configured:
        return Path(configured)
    folders = package_folders()
    libraries = [file for folder in folders for file in sorted(folder.glob("libadamant_c.so*"))]
    if not libraries:
        raise Unavailable(f"cannot load libadamant_c.so: {' or '.join(map(str, folders))} does not contain it. Install "
                          "the package with pip, or set ADAMANT_C_LIBRARY to the path of the library")
    return libraries[0]


def library() -> Any:
    """Returns libadamant_c. The first call loads it."""
    global _loaded
    if _loaded is None:
        path = library_path()
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unavailable(f"cannot load {path}: {error}") from None
        if not hasattr(loaded, "adamant_c_version"):
            raise Unavailable(f"cannot use {path}: it is another library than libadamant_c. Unset ADAMANT_C_LIBRARY, "
                              "or set it to the path of libadamant_c.so")
        loaded.adamant_c_version.restype = c_uint32
        if loaded.adamant_c_version() != C_VERSION:
            raise Unavailable(f"cannot use {path}: it has version {loaded.adamant_c_version()} of the C interface, but "
                              f"this package needs version {C_VERSION}. Install both from the same sources")
        inits = [struct.name_in_c + "_init" for struct in Struct.__subclasses__()]
        missing = [name for name in [*inits, *_functions, *_frees] if not hasattr(loaded, name)]
        if missing:
            raise Unavailable(f"cannot use {path}: it is an older libadamant_c, without {missing[0]}(). Install the "
                              "package and the library from the same sources")
        loaded.adamant_last_error.restype = c_char_p
        loaded.adamant_version.restype = c_char_p
        for name in inits:
            getattr(loaded, name).argtypes = [c_void_p, c_size_t]
        for name, arguments in _functions.items():
            getattr(loaded, name).argtypes = arguments
            getattr(loaded, name).restype = c_int32
        for name in _frees:
            getattr(loaded, name).argtypes = [c_void_p]
            getattr(loaded, name).restype = None
        _loaded = loaded
    return _loaded


def check(status: int) -> None:
    """Raises the error of a call's status, with libadamant_c's message."""
    if status != 0:
        text = library().adamant_last_error().decode("utf-8", "replace")
        raise _errors.get(status, Error)(text)


def counted(number: int, noun: str) -> str:
    """A number and a noun: "1 shard", "2 shards"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_leaked: "List[Handle]" = []


class Handle:
    """Owns an object of libadamant_c. A forked process does not free the objects of its parent."""

    free_function: str

    def __init__(self, create: Callable[[Any], int]):
        self._pid = os.getpid()
        created = c_void_p()
        self.pointer: Optional[int] = None
        with delayed_signals:
            check(create(ctypes.byref(created)))
            self.pointer = created.value

    @property
    def is_in_own_process(self) -> bool:
        """Whether this is the process that created the object."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Free the object. Repeated calls do nothing. A forked process does not free objects of its parent."""
        pointer, self.pointer = getattr(self, "pointer", None), None
        if pointer and self.is_in_own_process and _loaded is not None:
            getattr(_loaded, self.free_function)(pointer)

    def leak(self) -> None:
        """Drops the handle without freeing the object, whose destructor would access freed memory.

        The object's threads may still use what this handle owns, so the handle lives as long as the process.
        """
        self.pointer = None
        _leaked.append(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # at exit, globals of this module may be gone
            self.close()


def c_text(value: Any, name: str) -> bytes:
    """Encodes a string for C. Raises InvalidArgument for other values, and for a NUL character, where C would stop."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}, but must be a string")
    return _without_nul(value.encode("utf-8", "surrogatepass"), value, name)


def c_path(value: Any) -> bytes:
    """Encodes a path for C: a string, bytes or an object with __fspath__()."""
    return _without_nul(os.fsencode(value), value, "the path")


def _without_nul(text: bytes, value: Any, name: str) -> bytes:
    if b"\0" in text:
        raise InvalidArgument(f"{name} is {value!r}, but must not contain a NUL character")
    return text


def c_strings(values: Iterable[bytes]) -> Any:
    """An array of char* for C."""
    texts = list(values)
    return (c_char_p * len(texts))(*texts)
