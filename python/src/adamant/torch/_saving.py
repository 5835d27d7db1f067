# SPDX-License-Identifier: Apache-2.0
"""state_dict(), load_state_dict(), copies and pickles of Adam and AdamW."""

from __future__ import annotations

import copy
from collections import defaultdict
from itertools import chain
from typing import Any, Dict

import torch
from torch import Tensor

from .._library import InvalidArgument
from .._quantized8 import is_quantized, moments
from .._signals import delayed_signals
from .._zenflow_steps import library_keys, refuse_zenflow_states, tensor_keys
from ._arguments import check_format, check_group, formats, own_group_options
from ._state import check_hyper, check_state, count_tensor, loaded_state, steps_of

_tensor_names = {*tensor_keys, *library_keys}


def _without_missing(values: Any) -> Any:
    """A state without the tensors that a flattened checkpoint lacks: torch.distributed.checkpoint sets these to {}."""
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items()
            if not (name in _tensor_names and isinstance(value, dict) and not value)}


class Saving:
    """Saving, loading and copying of Adam and AdamW."""

    def state_dict(self) -> Dict[str, Any]:
        """Return the state, as torch's state_dict() does.

        Returns
        -------
        dict
            torch's keys, live; "master_param" or "master_low" in addition with masters. With zenflow, each
            state also has its counts, selection, deferred gradients and position ("window"), of this moment: keep a
            copy.deepcopy() if training goes on.

        Raises
        ------
        adamant.InvalidArgument
            With overlap, a step has begun and cannot be rolled back.
        """
        self._settle("state_dict() is called")
        if self._zenflow is None:
            return super().state_dict()  # type: ignore[misc]
        zenflow = self._zenflow
        with delayed_signals:
            zenflow.save()

        def remove_copies(_: Any, state_dict: Dict[str, Any]) -> Dict[str, Any]:
            return {**state_dict, "state": zenflow.without_copies(state_dict["state"])}
        handle = self.register_state_dict_post_hook(remove_copies, prepend=True)  # type: ignore[attr-defined]
        try:
            return super().state_dict()  # type: ignore[misc]
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load a state, all or nothing. Dtypes of saved states are kept.

        Parameters
        ----------
        state_dict : dict
            Returned by state_dict() of this class or of torch's.

        Raises
        ------
        adamant.InvalidArgument
            A value does not fit its param or state_format; a state of zenflow without zenflow; a kept state of zenflow
            that training has changed; accumulated gradients are pending; or a begun step cannot be rolled back. Nothing
            has changed.
        ValueError
            The number of groups or params differs. Nothing has changed.
        """
        self._refuse_accumulated("a state is loaded")
        self._settle("load_state_dict() is called")
        incoming = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():  # type: ignore[attr-defined]
            replaced = hook(self, incoming)
            if replaced is not None:
                incoming = replaced
        incoming = {**incoming, "state": {key: _without_missing(values) for key, values in incoming["state"].items()}}
        # torch's class saves no options of ours. They describe this optimizer, so they stay.
        saved = copy.deepcopy(incoming["param_groups"])
        for group, new in zip(self.param_groups, saved):
            for option in own_group_options & group.keys() - new.keys() if isinstance(new, dict) else ():
                new[option] = group[option]
        incoming = {**incoming, "param_groups": saved}
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for g, group in enumerate(saved):
            check_hyper(group, g)
            if len(group["params"]) != len(self.param_groups[g]["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of "
                                 "optimizer's group")
            check_group(group, g)
        param_of = self._params_by_number(incoming)
        for key, values in incoming["state"].items():
            if key in param_of:
                check_state(self._name(param_of[key]), param_of[key], values)
        self._check_formats(incoming)
        if self._zenflow is None:
            refuse_zenflow_states(incoming)
        else:
            self._zenflow.check(self, incoming)
        states: Any = defaultdict(dict)
        for key, values in incoming["state"].items():
            param = param_of.get(key)
            states[key if param is None else param] = (copy.deepcopy(values) if param is None else
                                                       loaded_state(values, param, self._name(param)))
        groups = []
        for group, new in zip(self.param_groups, saved):
            names = {"param_names": group["param_names"]} if "param_names" in group and "param_names" not in new else {}
            groups.append({**new, **names, "params": group["params"]})
        self.__setstate__({"state": states, "param_groups": groups})
        if self._zenflow is not None:
            self._zenflow.forget(self.state.values())
        self._versions.clear()
        if self._changes is not None:
            self._changes.mark_all()
        self._forget()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():  # type: ignore[attr-defined]
            post_hook(self)

    def _params_by_number(self, state_dict: Dict[str, Any]) -> Dict[Any, Tensor]:
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        return dict(zip(numbers, (param for _, param in self._all_params())))

    def _check_formats(self, incoming: Dict[str, Any]) -> None:
        """Raises InvalidArgument if the storage format of a state differs from state_format."""
        params = iter([param for _, param in self._all_params()])
        for g, group in enumerate(incoming["param_groups"]):
            state_format = self._format_of(group)
            check_format(state_format)
            for i, number in enumerate(group["params"]):
                param, state = next(params, None), incoming["state"].get(number, {})
                if state_format is None or param is None:  # torch raises an error for surplus params
                    continue
                splits, dtype = formats[state_format]
                is_8_bit = dtype == torch.uint8
                other = next((value for name, value in state.items()
                              if name in moments and is_quantized(value) != is_8_bit), None)
                if other is not None:
                    actual = f"moments of {other.dtype}{'' if is_8_bit else ', which is quantized8'}"
                    conversion = "quantized(state)" if is_8_bit else "dequantized(state, param)"
                elif "master_low" in state and not splits:
                    actual, conversion = "split master weights", "joined_master(state, param)"
                elif "master_param" in state and splits and param.dtype == torch.bfloat16:
                    actual, conversion = "a float32 master", "split_master(state, param)"
                else:
                    continue
                raise InvalidArgument(f"cannot load the state of group{g}.{i}: it has {actual}, but state_format is "
                                      f"{state_format}. Leave state_format out to keep the formats of the states, or "
                                      f"convert each state in state_dict['state'] by adamant.torch.{conversion}")

    def __getstate__(self) -> Dict[str, Any]:
        if self._process_group is not None:
            raise InvalidArgument("cannot copy or pickle an optimizer with a process_group: the group cannot be "
                                  "copied. Save its state_dict()")
        self._refuse_accumulated("a copy would not include them")
        self._settle("a copy is made")
        extra: Dict[str, Any] = {"_arguments": self._arguments}
        if self._zenflow is not None:
            self._zenflow.save()
        return {**super().__getstate__(), **extra}  # type: ignore[misc]

    def __setstate__(self, state: Dict[str, Any]) -> None:
        for values in state["state"].values():
            # torch would convert a number to a tensor on the default device.
            if isinstance(values, dict) and isinstance(values.get("step"), (int, float)):
                values["step"] = count_tensor(steps_of(values["step"], "a param"))
        super().__setstate__(state)  # type: ignore[misc]
        if "_arguments" in state:  # a copy of an optimizer, not a loaded state
            self._process_group = None
            self._begin()
            if self._zenflow is not None:
                self._zenflow.forget(self.state.values())
