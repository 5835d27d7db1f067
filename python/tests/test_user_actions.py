# SPDX-License-Identifier: Apache-2.0
"""User actions between steps: every step uses the current param_groups and state, in every mode."""
import copy
import gc
import pickle
import random
import sys
import types
from collections import defaultdict

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.torch import Adam, AdamW  # noqa: E402

from optimizer_modes import (FLOAT32_MODES, MODES, Run, alive, assert_close, assert_follows,  # noqa: E402
                             assert_same_bits, bits, storage_refs, values)
from processes import run as run_code  # noqa: E402

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
    """A new param takes the state of the old one, as with FSDP and torch's swap_tensors()."""
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
    param.data = values(77, param.shape, param.dtype).to(param.device)


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
    # With zenflow states are complete only after state_dict().
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
    """moved_moments: ms-swift #7844, DeepSpeed #6596. Overwrites the old memory, so stale addresses change results."""
    for param in run.params:
        for value in kept_tensors(run, param).values():
            old, value.data = value.data, value.data.clone()
            old.untyped_storage().fill_(85)


@action
def moved_moments_storage_released_and_back(run):
    """Frameworks for reinforcement learning offload states this way."""
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
    """Frees a tensor's memory and moves its values to new memory."""
    storage = tensor.untyped_storage()
    kept, size = storage.clone(), storage.nbytes()
    storage.resize_(0)
    held = torch.full((max(1, size),), 85, dtype=torch.uint8, device=tensor.device)  # occupies the old memory, if reused
    storage.resize_(size)
    storage.copy_(kept)
    del held


def counted(run, param):
    """The state of a param with its counts. With zenflow state_dict() adds one count for each column."""
    if "zenflow" in run.options:
        run.optimizer.state_dict()
    return run.optimizer.state[param]


def replace_counts(run, param, steps):
    state = counted(run, param)
    if "updates" in state:
        state["updates"] = torch.full_like(state["updates"], steps)
    state["step"] = torch.tensor(float(steps))


def fill_counts(run, param, steps):
    state = counted(run, param)
    for name in ("updates", "step"):
        if name in state:
            state[name].fill_(steps)


@action
def step_count_replaced(run):
    replace_counts(run, run.params[0], 100)


@action
def step_count_filled(run):
    fill_counts(run, run.params[1], 100)


@action
def step_counts_differ(run):
    for number, param in enumerate(run.params):
        replace_counts(run, param, 10 + number)


@action
def step_count_set_to_zero(run):
    """Keeps the moments. Only the bias correction restarts."""
    fill_counts(run, run.params[3], 0)


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
    if run.options.get("overlap") or "accumulate" in run.options or "max_norm" in run.options:
        pytest.skip("gradients must stay as they are after backward, and torch's are clipped before the hook")

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


# With overlap threads may write params and states between backward() and step(), so these actions must not run then:
# they read params or states, or free their memory.
reading_or_resizing = ("params_moved_in_memory", "moved_moments_storage_released_and_back",
                       "stale_params_one_replaced_with_its_state")


def hooked(run):
    return "_hook_that_" in run


@pytest.mark.parametrize("name", [name for name in actions if not hooked(name)])
@pytest.mark.parametrize("mode", MODES)
def test_after_an_action_steps_equal_those_of_a_new_optimizer(mode, name):
    run = Run(mode)
    for _ in range(3):
        run.step()
    if mode == "zenflow" and name.startswith("param"):
        run.optimizer.flush()  # writing unpublished weights is an error
    actions[name](run)
    assert_follows(run)


@pytest.mark.parametrize("name", actions)
@pytest.mark.parametrize("mode", FLOAT32_MODES)
def test_actions_have_the_effect_of_torchs_class(mode, name):
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
@pytest.mark.parametrize("name", [name for name in actions if not hooked(name) and name not in reading_or_resizing])
def test_changes_between_backward_and_step_take_effect_or_raise(mode, name):
    """The result has the bits of a new optimizer, or an error is raised."""
    run = Run(mode)
    for _ in range(3):
        run.step()
    twin = run.fresh()  # its first step does not overlap
    for each in (run, twin):
        each.zero_grad()
        each.backward()
    removed = [(param, bits(param)) for param in twin.known]
    actions[name](twin)
    try:
        actions[name](run)
        run.finish()
    except adamant.Error as error:
        assert "group" in str(error) or "overlap" in str(error)
        run.optimizer.state.clear()
        try:
            run.finish()  # the step may still be open, and its states have changed
        except adamant.InvalidArgument:
            pass
        run.step()
        run.step()
        return
    twin.finish()
    assert_same_bits(run, twin)
    left = {param.number for param in run.params}
    assert all(bits(run.known[param.number]) == before for param, before in removed if param.number not in left)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("mode", ["overlap", "overlap_max_norm", "accumulate"])
def test_grad_scalers_are_refused_with_overlap_and_accumulate(mode, begun, by_hand):
    run, scaler = Run(mode), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3 if begun else 0):
        run.step()
    run.zero_grad()
    sum(scaler.scale((param * 2).sum()) for param in run.params).backward()
    with pytest.raises(adamant.InvalidArgument, match="GradScaler"):
        scaler.unscale_(run.optimizer) if by_hand else None
        scaler.step(run.optimizer)
    run.step()


@pytest.mark.parametrize("seed", range(5))
def test_names_follow_params(seed):
    """A param keeps the name that it had in a list of names when the list was new. Without one its name is its index."""
    draw = random.Random(seed)
    run = Run("plain")
    names = {}
    for _ in range(200):
        groups = run.optimizer.param_groups
        params = draw.choice(groups)["params"]
        kind = draw.randrange(5)
        if kind == 0 and params:
            params.pop(draw.randrange(len(params)))
        elif kind == 1 and sum(len(group["params"]) for group in groups) < 12:
            params.insert(draw.randrange(len(params) + 1), run.new_param((5,)))
        elif kind == 2:
            draw.shuffle(params)
        elif kind == 3:
            draw.shuffle(groups)
        else:
            group = draw.choice(groups)
            group["params"] = list(group["params"])
            group.pop("param_names", None)
            if draw.random() < 0.5:
                group["param_names"] = [f"n{draw.random()}" for _ in group["params"]]
                names.update(zip(map(id, group["params"]), group["param_names"]))
        for param in run.known:
            expected = [f"group{g}.{names.get(id(param), i)}"
                        for g, group in enumerate(groups) for i, other in enumerate(group["params"]) if other is param]
            assert run.optimizer._name(param) == (expected or ["param"])[0]


def trained(mode="plain", steps=2):
    run = Run(mode)
    for _ in range(steps):
        run.step()
    return run


@pytest.mark.parametrize("mode", MODES)
def test_invalid_hyperparameters_are_refused_by_name(mode):
    for name in ("amsgrad", "differentiable"):
        run = trained(mode)
        before = [bits(param) for param in run.known]
        run.optimizer.param_groups[1][name] = True
        with pytest.raises(adamant.InvalidArgument, match=name):
            run.step()
        assert [bits(param) for param in run.known] == before
        run.optimizer.param_groups[1][name] = False


@pytest.mark.parametrize("what", ["param", *moments, "master_param", "master_low"])
@pytest.mark.parametrize("mode", [mode for mode, (_, options) in MODES.items() if not options.get("overlap")])
def test_moved_moments_released_memory_is_an_error(mode, what):
    """ms-swift #7844: a step while states are offloaded."""
    run = trained(mode)
    if what != "param" and what not in run.optimizer.state[run.params[0]]:
        pytest.skip("the mode has none")
    if mode == "zenflow":
        run.optimizer.flush()
    tensor = run.params[0].data if what == "param" else run.optimizer.state[run.params[0]][what]
    run.zero_grad()
    run.backward()
    kept = bytes(tensor.untyped_storage())
    others = [(param, bits(param)) for param in run.params[1:]]
    tensor.untyped_storage().resize_(0)
    with pytest.raises((adamant.Error, RuntimeError)) as raised:
        run.finish()
    tensor.untyped_storage().resize_(len(kept))
    tensor.untyped_storage().copy_(torch.frombuffer(bytearray(kept), dtype=torch.uint8).untyped_storage())
    assert "group0.0" in str(raised.value)
    assert all(bits(param) == before for param, before in others)


@pytest.mark.parametrize("mode", MODES)
def test_param_data_of_another_shape_is_an_error(mode):
    run = trained(mode)
    if mode == "zenflow":
        run.optimizer.flush()
    run.params[2].data = torch.ones(80, 2, dtype=run.dtype)  # also another number of 8-bit groups
    before = [bits(param) for param in run.known]
    with pytest.raises((adamant.Error, RuntimeError), match="group1.0"):
        run.zero_grad()
        run.params[2].grad = None
        run.backward(), run.backward()
        run.finish()
    if mode != "overlap":
        assert [bits(param) for param in run.known] == before


# default_device: pytorch #113758, deepmd-kit #3307

@pytest.mark.parametrize("mode", MODES)
def test_default_device_changes_nothing(mode):
    runs = [Run(mode), Run(mode)]
    for t in range(4):
        for i, run in enumerate(runs):
            if i == 1:
                torch.set_default_device("meta")
            try:
                if t == 2:
                    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
                    run.optimizer = pickle.loads(pickle.dumps(run.optimizer))
                    run.known = [param for param in run.params]
                    for number, param in enumerate(run.known):
                        param.number = number
                run.step()
            finally:
                torch.set_default_device(None)
    assert_same_bits(*runs)
    assert all(value.device.type == "cpu" for state in runs[1].optimizer.state.values() for value in state.values()
               if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("mode", MODES)
def test_default_dtype_changes_nothing(mode):
    runs = [Run(mode), Run(mode)]
    for t in range(3):
        for i, run in enumerate(runs):
            torch.set_default_dtype(torch.float64 if i else torch.float32)
            try:
                run.step()
                if t == 1:
                    run.optimizer.load_state_dict(run.optimizer.state_dict())
            finally:
                torch.set_default_dtype(torch.float32)
    assert_same_bits(*runs)


# State dicts

@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "zenflow"])
def test_state_dict_is_live(mode):
    run = trained(mode)
    kept = run.optimizer.state_dict()
    run.step()
    for number, param in enumerate(run.params):
        for name, value in run.optimizer.state[param].items():
            assert bits(kept["state"][number][name]) == bits(value), name
        assert float(kept["state"][number]["step"]) == 3


def test_state_dict_with_zenflow_is_a_snapshot():
    """A kept state_dict is a consistent snapshot, or live, or refused."""
    for copied in (copy.deepcopy, lambda it: it):
        run = trained("zenflow", 3)
        kept = copied(run.optimizer.state_dict())
        ends = []
        for steps in range(3):
            if steps:
                run.step()
            twin = run.fresh()
            ends.append(twin.state())
        last = run.fresh()
        try:
            last.optimizer.load_state_dict(kept)
        except adamant.InvalidArgument:
            assert copied is not copy.deepcopy
            continue
        found = last.state()
        same = [all(bits(found[number][name]) == bits(end[number][name]) for number in end for name in end[number]
                    if name in ("updates", "step", "exp_avg", "exp_avg_sq")) for end in ends]
        assert any(same)


@pytest.mark.parametrize("mode", MODES)
def test_hooks_of_load_state_dict_get_torchs_arguments(mode):
    run, seen = trained(mode), []
    saved = copy.deepcopy(run.optimizer.state_dict())
    other = Run(mode)
    other.optimizer.register_load_state_dict_pre_hook(
        lambda optimizer, given: seen.append(("pre", len(given["state"]), len(optimizer.state))))
    other.optimizer.register_load_state_dict_pre_hook(
        lambda optimizer, given: {**given, "param_groups": [{**g, "lr": 0.125} for g in given["param_groups"]]})
    other.optimizer.register_load_state_dict_post_hook(
        lambda optimizer: seen.append(("post", len(optimizer.state), float(optimizer.state[other.params[0]]["step"]))))
    other.optimizer.load_state_dict(saved)
    assert seen == [("pre", 4, 0), ("post", 4, 2.0)]
    assert {group["lr"] for group in other.optimizer.param_groups} == {0.125}


@pytest.mark.parametrize("mode", MODES)
def test_hooks_of_state_dict_and_user_keys(mode):
    run = trained(mode)
    run.optimizer.state["run"] = 1
    run.optimizer.state[run.params[0]]["mine"] = "kept"
    run.optimizer.register_state_dict_pre_hook(lambda optimizer: optimizer.state.update(when=2))
    run.optimizer.register_state_dict_post_hook(lambda optimizer, made: made.update(note="here"))
    run.step()
    saved = copy.deepcopy(run.optimizer.state_dict())
    assert saved["state"]["run"] == 1 and saved["state"]["when"] == 2 and saved["note"] == "here"
    assert saved["state"][0]["mine"] == "kept"
    other = Run(mode)
    for p, q in zip(run.known, other.known):
        q.data.copy_(p.data)
    other.optimizer.load_state_dict(saved)
    assert other.optimizer.state["run"] == 1 and other.optimizer.state[other.params[0]]["mine"] == "kept"
    other.time = run.time
    for each in (run, other):
        each.step()
    assert all(bits(p) == bits(q) for p, q in zip(run.known, other.known))


# step_2_24: ao #4915

@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "zenflow"])
@pytest.mark.parametrize("begin", [2 ** 24 - 2, 2 ** 24, 2 ** 24 + 1, 2 ** 31 + 1])
def test_step_2_24_counts_are_exact(mode, begin):
    run = trained(mode)
    for param in run.params:
        run.optimizer.state[param]["step"] = torch.tensor(float(begin), dtype=torch.float64)
    for steps in range(1, 5):
        run.step()
        assert {int(run.optimizer.state[param]["step"]) for param in run.params} == {begin + steps}
        if begin + steps <= 2 ** 24:
            saved = run.optimizer.state_dict()["state"]
            assert {state["step"].dtype for state in saved.values()} <= {torch.float32, torch.float64}


@pytest.mark.parametrize("kind, options", [(torch.bfloat16, {"param_rounding": "stochastic"}),
                                           (torch.float32, {"state_format": "quantized8"}),
                                           (torch.float32, {"state_format": "bfloat16"})], ids=str)
def test_step_2_24_a_resumed_run_rounds_with_the_same_bits(kind, options):
    def made(start):
        param = torch.nn.Parameter(start.clone())
        return param, AdamW([param], lr=0.01, betas=(0.9, 0.99), **options)

    def steps(param, optimizer, begin, count):
        for t in range(begin, begin + count):
            param.grad = values(t, param.shape, kind)
            optimizer.step()
    param, optimizer = made(values(0, (3, 64), kind))
    steps(param, optimizer, 0, 1)
    optimizer.state[param]["step"] = torch.tensor(float(2 ** 24 - 2))
    ends = []
    for resumes in (False, True):
        p, o = made(param.detach())
        o.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for t in range(6):
            steps(p, o, t, 1)
            if resumes:
                saved = pickle.loads(pickle.dumps(o.state_dict()))
                p, o = made(p.detach())
                o.load_state_dict(saved)
        ends.append((bits(p), *(bits(o.state[p][name]) for name in moments), int(o.state[p]["step"])))
    assert ends[0] == ends[1] and ends[0][-1] == 2 ** 24 + 4


def test_step_2_24_states_of_torch_with_a_saturated_count_load():
    param = torch.nn.Parameter(torch.ones(3))
    theirs = torch.optim.AdamW([param])
    param.grad = torch.ones(3)
    theirs.step()
    theirs.state[param]["step"].fill_(2 ** 24)
    mine = AdamW([param])
    mine.load_state_dict(theirs.state_dict())
    mine.step()
    assert int(mine.state[param]["step"]) == 2 ** 24 + 1


# Arrays, tied params

@pytest.mark.parametrize("kind", [">f4", ">f2"])
def test_big_endian_array_is_refused_by_name(kind):
    """safetensors #75."""
    other = np.ones(4, kind)
    for place in ("param", "grad", "exp_avg", "exp_avg_sq"):
        arrays = {name: np.ones(4, np.float32) for name in ("param", "grad", "exp_avg", "exp_avg_sq")}
        arrays[place] = other
        optimizer = adamant.Optimizer(adamant.Executor(threads=1, bind="none"))
        group = optimizer.add_group("g", lr=0.1)
        with pytest.raises(adamant.InvalidArgument, match="byte order|endian"):
            optimizer.add_shard(group, "w", **arrays)


def test_masked_arrays_are_refused_by_name():
    masked = np.ma.masked_array(np.ones(4, np.float32), mask=[0, 1, 0, 0])
    optimizer = adamant.Optimizer(adamant.Executor(threads=1, bind="none"))
    group = optimizer.add_group("g", lr=0.1)
    with pytest.raises(adamant.InvalidArgument, match="mask"):
        optimizer.add_shard(group, "w", masked, *(np.ones(4, np.float32) for _ in range(3)))


@pytest.mark.parametrize("mode", MODES)
def test_params_given_twice_are_stepped_once_or_refused(mode):
    """torch warns about duplicates, and its classes step such a param twice."""
    dtype, options = MODES[mode]
    param, alone = (torch.nn.Parameter(values(1, (64, 2), dtype)) for _ in range(2))
    try:
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = AdamW([param, param], lr=0.1, **options)
        other = AdamW([alone], lr=0.1, **options)
        for p, o in ((param, optimizer), (alone, other)):
            for _ in range(options.get("accumulate", 1)):
                (p * values(2, p.shape, dtype)).sum().backward()
            o.step()
    except adamant.InvalidArgument as error:
        assert "group0" in str(error)
        return
    assert bits(param) == bits(alone)


@pytest.mark.parametrize("mode", MODES)
def test_params_tied_in_memory_are_refused(mode):
    """Two params with the same memory would be stepped twice."""
    dtype, options = MODES[mode]
    one = torch.nn.Parameter(values(1, (64, 2), dtype))
    two = torch.nn.Parameter(one.data)
    before = bits(one)
    with pytest.raises(adamant.InvalidArgument, match="group0.1|group0.0"):
        optimizer = AdamW([one, two], lr=0.1, **options)
        for _ in range(options.get("accumulate", 1)):
            (one.sum() + two.sum()).backward()
        optimizer.step()
    assert bits(one) == before


# Construction

@pytest.mark.parametrize("options, said", [
    ({"amsgrad": True}, "amsgrad"), ({"differentiable": True}, "differentiable"), ({"cores": "banana"}, "banana"),
    ({"cores": [99999]}, "99999"), ({"threads": -1}, "threads"), ({"threads": "two"}, "threads"),
    ({"cpuadam_cores_perc": 2}, "cpuadam_cores_perc"), ({"cpuadam_cores_perc": -0.5}, "cpuadam_cores_perc"),
    ({"master": "no"}, "master"), ({"accumulate": True}, "accumulate"), ({"overlap": "yes"}, "overlap"),
    ({"offload": 1.5}, "offload"), ({"process_group": "gloo"}, "process_group"), ({"max_norm": "1"}, "max_norm"),
    ({"max_norm": float("nan")}, "max_norm"), ({"rounding_seed": "x"}, "rounding_seed"),
    ({"rounding_seed": -1}, "rounding_seed"), ({"rounding_seed": 1.5}, "rounding_seed"),
    ({"on_nonfinite": None}, "on_nonfinite"), ({"state_format": 8}, "state_format")], ids=str)
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_invalid_arguments_are_refused_at_construction_by_name(kind, options, said):
    with pytest.raises((adamant.InvalidArgument, adamant.Unavailable), match=said):
        kind([torch.nn.Parameter(torch.ones(3))], **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_unsupported_dtypes_are_refused_at_construction_by_name(dtype):
    params = [("first", torch.nn.Parameter(torch.ones(3))), ("second", torch.nn.Parameter(torch.ones(3, dtype=dtype)))]
    with pytest.raises(adamant.InvalidArgument, match="second.*" + str(dtype).split(".")[1]):
        AdamW(params)
    optimizer = AdamW(params[:1])
    with pytest.raises(adamant.InvalidArgument, match="(second|group1).*" + str(dtype).split(".")[1]):
        optimizer.add_param_group({"params": params[1:]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("mode", ["plain", "overlap", "accumulate", "offload", "master", "split", "quantized8", "zenflow"])
def test_infinite_max_norm_measures_only(mode):
    dtype, options = MODES[mode]
    runs = [Run(mode), Run(mode)]
    runs[0].optimizer = AdamW(runs[0].optimizer.param_groups, **options, max_norm=float("inf"))
    for run in runs:
        for _ in range(3):
            run.step()
    assert float(runs[0].norm) > 0
    assert all(bits(p) == bits(q) for p, q in zip(runs[0].known, runs[1].known))


def test_repr_shows_our_arguments():
    optimizer = AdamW([torch.nn.Parameter(torch.ones(3))], max_norm=0.25, overlap=True, state_format="bfloat16")
    for said in ("AdamW", "max_norm", "0.25", "overlap", "state_format", "bfloat16", "lr"):
        assert said in repr(optimizer)


@pytest.mark.parametrize("mode", MODES)
def test_torchs_classes_replaced_by_ours(mode, monkeypatch):
    """Regression test of a RecursionError."""
    monkeypatch.setattr(torch.optim, "AdamW", AdamW)
    monkeypatch.setattr(torch.optim, "Adam", Adam)
    runs = [trained(mode)]
    monkeypatch.undo()
    runs.append(trained(mode))
    assert_same_bits(*runs)
    monkeypatch.setattr(torch.optim, "AdamW", AdamW)
    for copied in (copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        assert repr(copied(runs[0].optimizer))


# Processes

def ended(code):
    return run_code(code, OMP_NUM_THREADS="1")


every_mode_at_module_level = """
import torch
from adamant.torch import AdamW
kept = []
for dtype, options in [(torch.float32, {}), (torch.float32, {"max_norm": 1.0}), (torch.float32, {"overlap": True}),
                       (torch.float32, {"accumulate": 2}), (torch.float32, {"offload": True}), (torch.bfloat16, {"master": True}),
                       (torch.float32, {"offload": True, "overlap": True, "max_norm": 1.0}),
                       (torch.float32, {"zenflow": {"topk_ratio": 0.5}})]:
    p = torch.nn.Parameter(torch.ones(64, 2, dtype=dtype))
    optimizer = AdamW([p], **options)
    for _ in range(3):
        p.sum().backward()
        optimizer.step()
        p.grad = None
    kept.append((p, optimizer))
"""


def test_exit_without_output_at_the_end_of_a_script():
    done = ended(every_mode_at_module_level)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_exit_without_output_during_an_open_step():
    done = ended(every_mode_at_module_level + """
for p, optimizer in kept:
    p.sum().backward()
import sys
sys.exit(3)
""")
    assert (done.returncode, done.stderr, done.stdout) == (3, "", "")


def test_no_hang_after_fork_during_an_open_step():
    """The child process may use the optimizer or get an error, but must not hang."""
    done = ended(every_mode_at_module_level + """
import os, sys
for p, optimizer in kept:
    p.sum().backward()
child = os.fork()
if child == 0:
    for p, optimizer in kept:
        try:
            optimizer.zero_grad()
            p.sum().backward()
            optimizer.step()
        except (ValueError, RuntimeError) as error:
            pass
    sys.exit(5)
assert os.waitpid(child, 0)[1] == 5 << 8
for p, optimizer in kept:
    if optimizer._own["accumulate"] > 1 if hasattr(optimizer, "_own") else False:
        p.sum().backward()
    optimizer.step()
print("ended")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("mode", MODES)
def test_memory_that_the_caller_releases_is_freed(mode):
    """Gradients after zero_grad(), also those of the first step; states that load_state_dict() replaces; and all of it
    after the optimizer."""
    run, gradients = Run(mode), []
    for _ in range(3):
        run.step()
        gradients += storage_refs(param.grad for param in run.known)
    assert gradients
    run.zero_grad()
    assert alive(gradients) == 0
    saved = copy.deepcopy(run.optimizer.state_dict())
    states = storage_refs(value for state in run.optimizer.state.values() for value in state.values()
                          if isinstance(value, torch.Tensor) and value.numel())
    run.optimizer.load_state_dict(saved)
    run.step()
    run.zero_grad()
    assert alive(states) == 0
    everything = storage_refs(run.known)
    del run, saved
    gc.collect()
    assert alive(everything) == 0


@pytest.mark.parametrize("module, engine", [("deepspeed.runtime", "DeepSpeed"), ("colossalai.zero", "ColossalAI")])
@pytest.mark.parametrize("argument", [{"max_norm": 1.0}, {"on_nonfinite": "skip"}, {"overlap": True}, {"accumulate": 2},
                                      {"zenflow": {"topk_ratio": 0.1}}, {"track_changes": True}, {}, {"master": True},
                                      {"state_format": "quantized8", "on_nonfinite": "zero"}], ids=str)
def test_engines_that_partition_params(module, engine, argument, monkeypatch):
    """Arguments that such an engine would make wrong, or leave without effect, are refused before the first step."""
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    in_engine = {"__name__": f"{module}.optimizer"}
    exec("def step(optimizer):\n    return optimizer.step()", in_engine)
    partition = torch.nn.Parameter(torch.ones(256))
    optimizer = AdamW([partition], lr=0.1, **argument)
    partition.grad = torch.ones(256)
    before = partition.detach().clone()
    name = next(iter(argument), "")
    if argument and name in ("master", "state_format") or not argument:
        in_engine["step"](optimizer)
        assert not torch.equal(partition, before)
        return
    for _ in range(2):
        with pytest.raises(adamant.InvalidArgument, match=f"cannot use {name} in {engine}: .*{engine}.* Leave it out"):
            in_engine["step"](optimizer)
    assert torch.equal(partition, before) and not optimizer.state
