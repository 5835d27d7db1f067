# SPDX-License-Identifier: Apache-2.0
"""half_loaded (pytorch #192224): load_state_dict() checks all values first, and errors name the param."""
import copy

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402

from optimizer_modes import MODES, Run, assert_same_bits, bits  # noqa: E402

damages = {}


def damage(*names):
    """Registers a damage of these entries in the state of param 1, a vector, the second param of the first group."""
    def keep(function):
        for name in names:
            damages[f"{name}-{function.__name__}"] = (name, function)
        return function
    return keep


tensors = ("exp_avg", "exp_avg_sq", "master_param", "master_low", "by_columns")


@damage("step", *tensors)
def missing(state, name):
    del state[name]


@damage("step", *tensors)
def none(state, name):
    state[name] = None


@damage("step", *tensors)
def text(state, name):
    state[name] = "7x"


@damage("step")
def text_of_a_number(state, name):
    state[name] = "7"


@damage("step")
def a_list(state, name):
    state[name] = [7.0]


@damage(*tensors)
def a_list_of_numbers(state, name):
    state[name] = state[name].tolist()


@damage(*tensors)
def a_number(state, name):
    state[name] = 0.5


@damage("step")
def a_fraction(state, name):
    state[name] = torch.tensor(1.5)


@damage("step")
def not_a_number(state, name):
    state[name] = torch.tensor(float("nan"))


@damage("step")
def infinite(state, name):
    state[name] = torch.tensor(float("inf"))


@damage("step")
def negative(state, name):
    state[name] = torch.tensor(-1.0)


@damage("step")
def beyond_what_counts_hold(state, name):
    state[name] = torch.tensor(1e30)


@damage("step")
def of_two_elements(state, name):
    state[name] = torch.tensor([3.0, 3.0])


@damage("step")
def complex_count(state, name):
    state[name] = torch.tensor(3.0 + 1j)


@damage("step")
def bool_count(state, name):
    state[name] = torch.tensor(True)


@damage("step", *tensors)
def on_meta(state, name):
    state[name] = state[name].to("meta")


@damage("step", *tensors)
def sparse(state, name):
    state[name] = state[name].reshape(-1).to_sparse()


@damage(*tensors)
def of_another_shape(state, name):
    state[name] = torch.zeros(*state[name].shape, 2, dtype=state[name].dtype)


@damage(*tensors)
def of_as_many_elements_in_another_shape(state, name):
    state[name] = state[name].reshape(1, -1, 1)


@damage(*tensors)
def one_element_short(state, name):
    state[name] = state[name].reshape(-1)[:-1].clone()


@damage(*tensors)
def empty(state, name):
    state[name] = torch.empty(0, dtype=state[name].dtype)


@damage(*tensors)
def of_int64(state, name):
    state[name] = state[name].to(torch.int64)


@damage(*tensors)
def of_float64(state, name):
    state[name] = state[name].to(torch.float64)


@damage(*tensors)
def of_complex64(state, name):
    state[name] = state[name].to(torch.complex64)


@damage("exp_avg", "exp_avg_sq")
def of_float16(state, name):
    state[name] = state[name].to(torch.float16)


@damage("exp_avg", "exp_avg_sq")
def of_bytes_that_are_no_groups(state, name):
    state[name] = torch.zeros(9, dtype=torch.uint8)


@damage(*tensors)
def without_memory(state, name):
    state[name] = state[name].clone()
    state[name].untyped_storage().resize_(0)


@damage("step")
def the_whole_state_none(state, name):
    raise Whole(None)


@damage("step")
def the_whole_state_a_list(state, name):
    raise Whole([1, 2])


@damage("step")
def the_moments_alone(state, name):
    raise Whole({each: state[each] for each in ("exp_avg", "exp_avg_sq")})


@damage("step")
def a_key_of_torchs_amsgrad(state, name):
    raise Group("amsgrad", True)


@damage("step")
def a_negative_lr(state, name):
    raise Group("lr", -1.0)


@damage("step")
def an_lr_that_is_no_number(state, name):
    raise Group("lr", float("nan"))


@damage("step")
def an_lr_of_text(state, name):
    raise Group("lr", "fast")


@damage("step")
def betas_of_one(state, name):
    raise Group("betas", (0.9,))


@damage("step")
def a_beta_of_one(state, name):
    raise Group("betas", (0.9, 1.0))


@damage("step")
def a_negative_eps(state, name):
    raise Group("eps", -1e-8)


class Whole(Exception):
    """Replaces the state of a param."""


class Group(Exception):
    """Replaces an option of the group."""


def everything(run):
    """All values that a load may change: bits, identities of objects, and groups."""
    tensors = {}
    for param, state in run.optimizer.state.items():
        tensors[param] = {name: (id(value), bits(value)) if isinstance(value, torch.Tensor) else value
                          for name, value in state.items()}
    groups = copy.deepcopy([{name: value for name, value in group.items() if name != "params"}
                            for group in run.optimizer.param_groups])
    return tensors, groups, [bits(param) for param in run.known], [id(param) for param in run.params]


only_in = {"master_param": ["master"], "master_low": ["split"], "by_columns": ["zenflow"]}
cases = [(mode, case) for mode in MODES for case, (name, _) in damages.items() if mode in only_in.get(name, MODES)]


@pytest.mark.parametrize("mode, case", cases)
def test_half_loaded_errors_change_nothing(mode, case):
    name, function = damages[case]
    run = Run(mode)
    for _ in range(3):
        run.step()
    saved = copy.deepcopy(run.optimizer.state_dict())
    # by_columns exists for matrices only, such as the first param of a group.
    number = 0 if name == "by_columns" else 1
    for key in (0, 1, 2, 3):  # values that loading the other params would change
        for each in ("exp_avg", "exp_avg_sq"):
            moment = saved["state"][key][each]
            moment.copy_(moment.roll(1, 0)) if moment.dtype == torch.uint8 else moment.mul_(2)
    saved["param_groups"][1]["lr"] = 0.7
    said = f"group0.{number}"
    try:
        function(saved["state"][number], name)
    except Whole as whole:
        saved["state"][number] = whole.args[0]
    except Group as group:
        saved["param_groups"][0][group.args[0]] = group.args[1]
        said = "group ?0"
    twin = run.fresh()
    before = everything(run)
    calls = []
    run.optimizer.register_load_state_dict_post_hook(lambda optimizer: calls.append("post"))
    expected = (adamant.InvalidArgument, ValueError, RuntimeError, TypeError)
    if (name, function) in (("step", bool_count), ("step", text_of_a_number)) or function is missing and name in optional:
        try:
            run.optimizer.load_state_dict(saved)
        except expected:
            pass
        else:
            return
    else:
        with pytest.raises(expected, match=said):
            run.optimizer.load_state_dict(saved)
    assert everything(run) == before and calls == []
    for _ in range(2):
        run.step()
        twin.step()
    assert_same_bits(run, twin)


# A state without masters is valid; masters are then made of the weights.
optional = ("master_param", "master_low")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["groups", "params", "no groups", "no state", "both masters", "not a dictionary"])
def test_half_loaded_state_dicts_of_other_shape_change_nothing(mode, what):
    run = Run(mode)
    for _ in range(3):
        run.step()
    twin = run.fresh()
    saved = copy.deepcopy(run.optimizer.state_dict())
    if what == "groups":
        saved["param_groups"].pop()
    elif what == "params":
        saved["param_groups"][0]["params"].append(17)
    elif what == "no groups":
        del saved["param_groups"]
    elif what == "no state":
        del saved["state"]
    elif what == "both masters":
        saved["state"][1]["master_param"] = torch.zeros(5)
        saved["state"][1]["master_low"] = torch.zeros(5, dtype=torch.int16)
    else:
        saved = [saved]
    before = everything(run)
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        run.optimizer.load_state_dict(saved)
    assert everything(run) == before
    for _ in range(2):
        run.step()
        twin.step()
    assert_same_bits(run, twin)


@pytest.mark.parametrize("mode", MODES)
def test_half_loaded_a_failing_post_hook_leaves_a_complete_state(mode):
    """The load is complete before post hooks run, as in torch."""
    run = Run(mode)
    for _ in range(3):
        run.step()
    other = Run(mode)
    for p, q in zip(run.known, other.known):
        q.data.copy_(p.data)

    def fails(optimizer):
        raise KeyError("hook")
    handle = other.optimizer.register_load_state_dict_post_hook(fails)
    with pytest.raises(KeyError, match="hook"):
        other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    handle.remove()
    other.time = run.time
    for each in (run, other):
        each.step()
    assert_same_bits(run, other)
