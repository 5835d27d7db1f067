# SPDX-License-Identifier: Apache-2.0
"""What users do to optimizers between steps: param_groups and state are what is stepped, in every mode."""
import copy
import os
import pickle
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.torch import Adam, AdamW  # noqa: E402

from optimizer_modes import (FLOAT32_MODES, MODES, Run, assert_close, assert_follows, assert_same_bits, bits,  # noqa: E402
                             values)

moments = ("exp_avg", "exp_avg_sq")
actions = {}


def action(function):
    actions[function.__name__] = function
    return function


# Params and groups. stale_params: accelerate #3394, lightning #19955, ms-swift #7821

@action
def stale_params_list_replaced(run):
    group = run.optimizer.param_groups[0]
    group["params"] = [run.new_param(param.shape) for param in group["params"]]


@action
def stale_params_list_replaced_and_old_states_dropped(run):
    stale_params_list_replaced(run)
    run.forget_removed()


@action
def stale_params_list_changed_in_place(run):
    params = run.optimizer.param_groups[1]["params"]
    params[:] = [run.new_param(param.shape) for param in params]


@action
def stale_params_one_replaced(run):
    run.optimizer.param_groups[0]["params"][1] = run.new_param((5,))


@action
def stale_params_one_replaced_with_its_state(run):
    """As FSDP and torch's swap of params do: a new param has the old one's state."""
    params, state = run.optimizer.param_groups[0]["params"], run.optimizer.state
    new = run.new_param(params[0].shape)
    new.data.copy_(params[0].data)
    state[new] = state.pop(params[0])
    params[0] = new


@action
def stale_params_one_removed(run):
    del run.optimizer.param_groups[0]["params"][0]


@action
def stale_params_group_removed(run):
    del run.optimizer.param_groups[0]


@action
def stale_params_group_emptied(run):
    run.optimizer.param_groups[1]["params"].clear()


@action
def stale_params_one_appended(run):
    run.optimizer.param_groups[1]["params"].append(run.new_param((3, 4)))


@action
def param_moved_to_another_group(run):
    first, second = (group["params"] for group in run.optimizer.param_groups)
    second.append(first.pop(0))


@action
def params_of_one_shape_exchanged_between_groups(run):
    first, second = (group["params"] for group in run.optimizer.param_groups)
    first[1], second[1] = second[1], first[1]


@action
def params_of_groups_exchanged(run):
    first, second = run.optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


@action
def params_reordered_in_a_group(run):
    run.optimizer.param_groups[0]["params"].reverse()


@action
def groups_reversed(run):
    run.optimizer.param_groups.reverse()


@action
def groups_replaced_by_copies(run):
    run.optimizer.param_groups = [{**group, "params": list(group["params"]), "lr": group["lr"] * 3}
                                  for group in run.optimizer.param_groups]


@action
def group_split_in_two(run):
    group = run.optimizer.param_groups[0]
    run.optimizer.param_groups.append({**group, "params": [group["params"].pop()], "lr": 0.1})


@action
def group_added(run):
    run.optimizer.add_param_group({"params": [run.new_param((5,)), run.new_param((2, 6))], "lr": 0.02})


@action
def param_data_replaced(run):
    param = run.params[0]
    param.data = values(77, param.shape, param.dtype)


@action
def param_data_replaced_by_a_copy(run):
    for param in run.params:
        param.data = param.data.clone()


@action
def params_moved_in_memory(run):
    for param in run.params:
        move_storage(param.data)


@action
def params_written(run):
    with torch.no_grad():
        for param in run.params:
            param.mul_(0.5)


@action
def params_of_vectors_exchange_their_memory(run):
    first, second = (group["params"][1] for group in run.optimizer.param_groups)
    first.data, second.data = second.data, first.data


@action
def param_without_gradients(run):
    run.params[1].requires_grad_(False)


# Hyperparameters

def hyper(name, value):
    def change(run):
        run.optimizer.param_groups[1][name] = value
    actions[f"{name}_changed"] = change


hyper("lr", 0.2)
hyper("betas", (0.5, 0.7))
hyper("eps", 0.1)
hyper("weight_decay", 0.5)
hyper("maximize", True)


@action
def lr_changed_to_a_tensor(run):
    run.optimizer.param_groups[0]["lr"] = torch.tensor(0.25)


@action
def hyperparameters_exchanged_between_groups(run):
    first, second = run.optimizer.param_groups
    for name in ("lr", "betas", "weight_decay"):
        first[name], second[name] = second[name], first[name]


# State

@action
def state_cleared(run):
    run.optimizer.state.clear()


@action
def state_replaced_by_an_empty_one(run):
    run.optimizer.state = defaultdict(dict)


@action
def state_replaced_by_a_copy(run):
    # zenflow's states are complete only when they were asked for.
    if "zenflow" in run.options:
        run.optimizer.state_dict()
    run.optimizer.state = defaultdict(dict, {param: dict(state) for param, state in run.optimizer.state.items()})


@action
def state_of_a_param_deleted(run):
    del run.optimizer.state[run.params[0]]


@action
def state_of_a_param_emptied(run):
    run.optimizer.state[run.params[2]] = {}


@action
def state_of_a_param_cleared_in_place(run):
    run.optimizer.state[run.params[1]].clear()


@action
def state_of_a_param_copied(run):
    if "zenflow" in run.options:
        run.optimizer.state_dict()
    state = run.optimizer.state
    state[run.params[0]] = copy.deepcopy(state[run.params[0]])


@action
def states_of_params_exchanged(run):
    if "zenflow" in run.options:
        run.optimizer.state_dict()
    first, second = (group["params"][1] for group in run.optimizer.param_groups)
    state = run.optimizer.state
    state[first], state[second] = state[second], state[first]


def kept_tensors(run, param):
    """Tensors of a param's state that a step writes."""
    return {name: value for name, value in run.optimizer.state[param].items()
            if name in (*moments, "master_param", "master_low", "by_columns")}


@action
def moments_replaced(run):
    state = run.optimizer.state[run.params[0]]
    for name in moments:
        state[name] = state[name].clone() if state[name].dtype == torch.uint8 else state[name] * 2


@action
def moments_written(run):
    for name in moments:
        moment = run.optimizer.state[run.params[2]][name]
        moment.zero_() if moment.dtype == torch.uint8 else moment.mul_(3)


@action
def moved_moments_tensors_replaced_by_copies(run):
    for param in run.params:
        state = run.optimizer.state[param]
        state.update({name: value.clone() for name, value in kept_tensors(run, param).items()})


@action
def moved_moments_data_replaced(run):
    """moved_moments: ms-swift #7844, DeepSpeed #6596. Old memory is overwritten, so whoever still uses it is seen."""
    for param in run.params:
        for value in kept_tensors(run, param).values():
            old, value.data = value.data, value.data.clone()
            old.view(torch.uint8).fill_(85)


@action
def moved_moments_storage_released_and_back(run):
    """As frameworks for reinforcement learning offload states."""
    for param in run.params:
        for value in kept_tensors(run, param).values():
            move_storage(value)


@action
def moved_moments_set_to_other_storage(run):
    for param in run.params[:2]:
        for value in kept_tensors(run, param).values():
            with torch.no_grad():
                value.set_(value.clone())


def move_storage(tensor):
    """Gives a tensor's memory back, and puts the values somewhere else."""
    storage = tensor.untyped_storage()
    kept, size = bytes(storage), storage.nbytes()
    storage.resize_(0)
    held = torch.full((max(1, size),), 85, dtype=torch.uint8)  # takes the old memory, where the allocator gives that again
    storage.resize_(size)
    storage.copy_(torch.frombuffer(bytearray(kept), dtype=torch.uint8).untyped_storage()) if size else None
    del held


@action
def step_count_replaced(run):
    count = run.optimizer.state[run.params[0]]
    if "zenflow" in run.options:  # which has a count for each column
        run.optimizer.state_dict()
        count["updates"] = torch.full_like(count["updates"], 100)
    count["step"] = torch.tensor(100.0)


@action
def step_count_filled(run):
    count = run.optimizer.state[run.params[1]]
    if "zenflow" in run.options:
        run.optimizer.state_dict()
        count["updates"].fill_(100)
    count["step"].fill_(100)


@action
def step_counts_differ(run):
    for number, param in enumerate(run.params):
        state = run.optimizer.state[param]
        if "zenflow" in run.options:
            run.optimizer.state_dict()
            state["updates"] = torch.full_like(state["updates"], 10 + number)
        state["step"] = torch.tensor(10.0 + number)


@action
def step_count_set_to_zero(run):
    """Moments stay: the bias correction alone begins anew."""
    count = run.optimizer.state[run.params[3]]
    if "zenflow" in run.options:
        run.optimizer.state_dict()
        count["updates"].fill_(0)
    count["step"].zero_()


# Loads and saves

@action
def own_state_dict_loaded(run):
    run.optimizer.load_state_dict(run.optimizer.state_dict())


@action
def own_state_dict_copied_and_loaded(run):
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


@action
def state_dict_of_another_lr_loaded(run):
    saved = copy.deepcopy(run.optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.3
    run.optimizer.load_state_dict(saved)


# Hooks

@action
def pre_hook_that_halves_gradients(run):
    if run.is_ours and (run.options.get("overlap") or "accumulate" in run.options):
        pytest.skip("gradients must stay as they are after backward")

    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.mul_(0.5)
    run.optimizer.register_step_pre_hook(halve)


@action
def pre_hook_that_changes_hyperparameters(run):
    if run.options.get("overlap") and "max_norm" not in run.options:
        pytest.skip("a step that backward has begun has its hyperparameters")

    def change(optimizer, args, kwargs):
        optimizer.param_groups[0]["lr"] *= 1.5
    run.optimizer.register_step_pre_hook(change)


@action
def post_hook_that_clears_the_state(run):
    run.optimizer.register_step_post_hook(lambda optimizer, args, kwargs: optimizer.state.clear())


def hooked(run):
    return "_hook_that_" in run


@pytest.mark.parametrize("name", [name for name in actions if not hooked(name)])
@pytest.mark.parametrize("mode", MODES)
def test_from_then_on_it_is_as_a_new_optimizer_with_these_groups_and_states(mode, name):
    run = Run(mode)
    for _ in range(3):
        run.step()
    actions[name](run)
    assert_follows(run)


@pytest.mark.parametrize("name", actions)
@pytest.mark.parametrize("mode", FLOAT32_MODES)
def test_torchs_class_does_the_same(mode, name):
    mine, theirs = Run(mode), Run(mode, torch.optim.AdamW)
    for run in (mine, theirs):
        for _ in range(3):
            run.step()
        if run is theirs and name == "moments_replaced":
            for each in ("exp_avg", "exp_avg_sq"):
                run.optimizer.state[run.params[0]][each].mul_(2)
        else:
            actions[name](run)
    for _ in range(3):
        for run in (mine, theirs):
            run.step()
        assert_close(mine, theirs, f"in step {mine.time}")


@pytest.mark.parametrize("mode", [mode for mode, (_, options) in MODES.items() if options.get("overlap")])
@pytest.mark.parametrize("name", [name for name in actions if not hooked(name)])
def test_what_changes_between_backward_and_step_is_honoured_or_an_error(mode, name):
    """The same bits as a new optimizer, or an error that says so; never something else."""
    run = Run(mode)
    for _ in range(3):
        run.step()
    run.zero_grad()
    run.backward()
    try:
        actions[name](run)
        if "loaded" in name:  # which gives the step up
            run.time += 1
            return assert_follows(run)
        twin = run.fresh()
        removed = [(param, bits(param)) for param in run.removed]
        run.finish()
    except adamant.Error as error:
        assert "group" in str(error) or "overlap" in str(error)
        run.optimizer.state.clear()
        run.optimizer.param_groups[0]["lr"] = 0.01
        try:
            run.zero_grad()
        except adamant.InvalidArgument:
            run.finish()  # a step that cannot be given up without max_norm
        return
    twin.time = run.time - 1
    twin.zero_grad()
    twin.backward()
    for p, q in zip(run.known, twin.known):
        if p.grad is None and id(p) in {id(param) for param in run.params}:
            q.grad = None
    twin.finish()
    assert_same_bits(run, twin)
    assert all(bits(param) == before for param, before in removed)
