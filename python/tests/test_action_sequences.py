# SPDX-License-Identifier: Apache-2.0
"""Random sequences of user actions between steps, applied to our optimizer and to torch's.

Both optimizers start with equal float32 params and get the same actions. After each step params and moments agree
within the rounding of that step, and step counts are equal. Then torch's values are set to ours, so rounding errors do not
accumulate. If ours raises, params and states are unchanged. Both raise at the same actions, except for REFUSALS.

ADAMANT_TEST_SEQUENCES is the number of sequences over all modes. 10000 sequences take about 30 minutes.
"""
import copy
import os
import pickle
from collections import defaultdict
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings, strategies  # noqa: E402

import adamant  # noqa: E402
import adamant.torch  # noqa: E402

from optimizer_modes import bits  # noqa: E402

SEQUENCES = int(os.environ.get("ADAMANT_TEST_SEQUENCES", "280"))
MODES = {
    "plain": {},
    "max_norm": {"max_norm": 0.5},
    "overlap": {"overlap": True},
    "overlap_max_norm": {"overlap": True, "max_norm": 0.5},
    "accumulate": {"accumulate": 2},
    "offload": {"offload": True},
    "offload_max_norm": {"offload": True, "max_norm": 0.5},
}
# Errors of ours at actions that torch accepts: words of the message, and the reason.
REFUSALS = {
    "overlap=True": "backward() has begun the step, so its inputs cannot be changed",
    "accumulated|gradients accumulate": "accumulation has begun, so params, states and groups cannot be changed",
    "last part of a sum": "with accumulate, p.grad is not the sum",
    "Load a complete state": "a state without a moment is refused when it is loaded, or when backward begins a sum",
    "must all lie|the same order": "gradients and moments are used in place, so they need the param's memory order",
    "a dict without defaults": "torch raises KeyError at step(), ours also in a backward() that begins accumulation",
}
# Without max_norm an overlapped step cannot be rolled back. Undo the action and call step().
STUCK = "load_state_dict() is called, but with overlap=True"
SHAPES = [(64, 3), (5,), (4, 6), (5,), (), (2, 2, 3), (0, 3)]
moments = ("exp_avg", "exp_avg_sq")


def numbers(seed, shape):
    """Numbers with magnitudes from 0.5 to 2, for any torch defaults. Moments stay much larger than rounding errors."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    drawn = torch.rand((2, *shape), generator=generator, device="cpu", dtype=torch.float32)
    return (drawn[0] * 1.5 + 0.5) * torch.where(drawn[1] < 0.5, -1.0, 1.0).to(torch.float32)


def laid_out(tensor, how):
    """The values in new memory: contiguous, with permuted dimensions, or at an unaligned address."""
    if how % 3 == 1:
        return tensor.permute(*reversed(range(tensor.dim()))).clone(memory_format=torch.contiguous_format).permute(
            *reversed(range(tensor.dim())))
    if how % 3 == 2:
        memory = torch.zeros(tensor.numel() + 5, dtype=tensor.dtype, device="cpu")
        made = memory[3:3 + tensor.numel()].view(tensor.shape)
        return made.copy_(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


class Side:
    """One of the two optimizers, and all params that it ever had. Equal params have equal numbers on both sides."""

    def __init__(self, kind, options, is_ours):
        self.is_ours, self.options, self.kind = is_ours, options, kind
        self.known, self.kept, self.backwards, self.time = [], None, 0, 0
        self.loss = self.norm = self.seen = None
        self.may_change = False
        self.armed = []  # hooks that have not run yet
        self.max_norm = options.get("max_norm")
        params = [self.new(shape) for shape in SHAPES[:4]]
        self.make([{"params": params[:2], "lr": 0.01, "weight_decay": 0.1},
                   {"params": params[2:], "lr": 0.03, "betas": (0.8, 0.99)}])

    def make(self, groups):
        self.optimizer = (getattr(adamant.torch, self.kind)(groups, **self.options) if self.is_ours else
                          getattr(torch.optim, self.kind)(groups, foreach=False))

    def new(self, shape, how=0):
        self.known.append(torch.nn.Parameter(laid_out(numbers(len(self.known), shape), how)))
        return self.known[-1]

    @property
    def is_open(self):
        """Whether backward() has begun a step, so params and moments may be of before or after the step."""
        return self.backwards > 0 and ("overlap" in self.options or "accumulate" in self.options)

    @property
    def groups(self):
        return self.optimizer.param_groups

    @property
    def params(self):
        return [param for group in self.groups for param in group["params"]]

    def param(self, a):
        params = self.params
        return params[a % len(params)] if params else None

    def group(self, a):
        return self.groups[a % len(self.groups)] if self.groups else {"params": []}

    def state(self, a):
        """The state of a param that has moments, or an empty dictionary."""
        param = self.param(a)
        found = self.optimizer.state.get(param) if param is not None else None
        return found if found is not None and all(name in found for name in (*moments, "step")) else {}

    def numbered_groups(self):
        number = {param: i for i, param in enumerate(self.params)}
        return [{**group, "params": [number[param] for param in group["params"]]} for group in self.groups]

    def states(self):
        """All states by the number of their param."""
        number = {param: i for i, param in enumerate(self.known)}
        return {number.get(key, key): value for key, value in self.optimizer.state.items()}

    def contents(self):
        """All params and states, to detect changes. A new state of zeros counts as no state."""
        states = {}
        for number, state in self.states().items():
            if not isinstance(state, dict):
                continue
            state = {name: float(value) if name == "step" else bits_of(value) if isinstance(value, torch.Tensor) else value
                     for name, value in state.items()}
            is_new = state.get("step", 1.0) == 0 and not any(any(state.get(name, b"")) for name in moments)
            if state and not is_new:
                states[number] = state
        return [bits_of(param) for param in self.known], states


def bits_of(tensor):
    return bits(tensor.detach().clone())  # a storage that NumPy has seen cannot be resized


# Actions: functions of a side and two numbers, which choose the target and the variant.

actions = {}


def action(function):
    actions[function.__name__] = function
    return function


# Backward and steps

def gradients(side, a, b):
    """Calls backward() for all params, or for some, depending on b."""
    terms = []
    for i, param in enumerate(side.known):
        if not param.requires_grad or (b and (i + a) % (b + 1) == 0):
            continue
        factor = numbers(1000 * side.time + i + 100, param.shape)
        if (i + side.time) % 3 == 1:
            terms.append((param.mT * factor.mT if param.dim() > 1 else param * factor).sum())
        else:
            terms.append((param * factor).flatten().sum())
    if terms:
        loss = sum(terms)
        loss.backward()
        return loss.detach()


def drop_gradients(side, a):
    how = a % (3 if "accumulate" in side.options else 4)
    if how == 2:
        for param in side.known:
            param.grad = None
    elif how != 3:
        side.optimizer.zero_grad(set_to_none=how == 0)


def begin(side, a, b):
    drop_gradients(side, a)
    gradients(side, a, b % 4)
    side.backwards = 1


@action
def backward(side, a, b):
    """The first backward() of a step, or another one if gradients accumulate."""
    if side.backwards == 0:
        begin(side, a, b)
    elif side.backwards < side.options.get("accumulate", 1 if side.options.get("overlap") else 3):
        gradients(side, a, b % 4)
        side.backwards += 1


def step(side, a, b):
    if side.backwards == 0:
        begin(side, a, b)
    finish(side)


def clip(side, saved):
    present = [param.grad for param in side.params if param.grad is not None]
    saved += [(grad, grad.clone()) for grad in present]
    side.norm = torch.nn.utils.clip_grad_norm_(side.params, side.max_norm)


def finish(side, closure=None):
    side.backwards, side.loss, side.norm = 0, None, None
    if side.is_ours or side.max_norm is None:
        done = side.optimizer.step() if closure is None else side.optimizer.step(closure)
        if closure is not None:
            side.loss = done
        elif side.is_ours:
            side.norm = done
        return
    saved = []

    def with_clip():
        loss = closure()
        clip(side, saved)
        return loss
    # Clip after the user's hooks and restore p.grad after the step, because ours does not change p.grad.
    hook = side.optimizer.register_step_pre_hook(lambda *_: clip(side, saved)) if closure is None else None
    try:
        side.loss = side.optimizer.step() if closure is None else side.optimizer.step(with_clip)
    finally:
        if hook is not None:
            hook.remove()
        for grad, value in saved:
            grad.copy_(value)


@action
def step_with_closure(side, a, b):
    if side.backwards:
        return finish(side)

    def closure():
        drop_gradients(side, a % 3)
        return gradients(side, a, b % 4)
    finish(side, closure)
    if side.max_norm is not None:
        side.norm = None


@action
def zero_grad(side, a, b):
    side.optimizer.zero_grad(set_to_none=bool(a % 2))


# Params and groups

@action
def params_of_a_group_replaced(side, a, b):
    group = side.group(a)
    new = [side.new(param.shape, b) for param in group["params"]]
    group["params"] = new if b % 2 else tuple(new)
    group["params"] = list(group["params"])


@action
def param_replaced(side, a, b):
    group = side.group(a)
    if group["params"]:
        at = b % len(group["params"])
        group["params"][at] = side.new(group["params"][at].shape, b)


@action
def param_replaced_with_its_state(side, a, b):
    group = side.group(a)
    if group["params"]:
        at = b % len(group["params"])
        old = group["params"][at]
        group["params"][at] = new = side.new(old.shape)
        if old in side.optimizer.state:
            side.optimizer.state[new] = side.optimizer.state.pop(old)


@action
def param_removed(side, a, b):
    group = side.group(a)
    if group["params"]:
        del group["params"][b % len(group["params"])]


@action
def param_put_back(side, a, b):
    present = {id(param) for param in side.params}
    removed = [param for param in side.known if id(param) not in present]
    if removed and side.groups:
        side.group(a)["params"].append(removed[b % len(removed)])


@action
def param_moved_to_another_group(side, a, b):
    source = side.group(a)["params"]
    if source:
        side.group(b)["params"].append(source.pop(b % len(source)))


@action
def params_exchanged(side, a, b):
    places = [(group["params"], i) for group in side.groups for i in range(len(group["params"]))]
    if places:
        (first, i), (second, j) = places[a % len(places)], places[b % len(places)]
        first[i], second[j] = second[j], first[i]


@action
def params_of_groups_exchanged(side, a, b):
    first, second = side.group(a), side.group(b)
    first["params"], second["params"] = second["params"], first["params"]


@action
def params_reversed(side, a, b):
    side.group(a)["params"].reverse()


@action
def groups_reversed(side, a, b):
    side.groups.reverse()


@action
def groups_replaced_by_copies(side, a, b):
    side.optimizer.param_groups = [{**group, "params": list(group["params"])} for group in side.groups]


@action
def group_removed(side, a, b):
    if len(side.groups) > 1:
        del side.groups[a % len(side.groups)]


@action
def group_added(side, a, b):
    if len(side.groups) < 5:
        side.optimizer.add_param_group({"params": [side.new(SHAPES[a], b)], "lr": 0.02 if b % 2 else 0.01})


@action
def group_added_with_a_param_of_another(side, a, b):
    """torch raises an error."""
    if side.params:
        side.optimizer.add_param_group({"params": [side.param(a)]})


# Params

@action
def param_data_replaced(side, a, b):
    param = side.param(a)
    if param is not None:
        param.data = laid_out(param.data * (0.5 if b % 2 else 1), b)


@action
def param_data_exchanged(side, a, b):
    first = side.param(a)
    same = [param for param in side.params if first is not None and param.shape == first.shape]
    if same:
        second = same[b % len(same)]
        first.data, second.data = second.data, first.data


@action
def param_written(side, a, b):
    param = side.param(a)
    if param is not None:
        with torch.no_grad():
            # A begun step does not detect writes to p.data, which has a separate version counter.
            written = param if side.is_open or b % 2 else param.data
            written.copy_(numbers(b, param.shape)) if b % 3 else written.mul_(0.5)
            if written is not param and hasattr(side.optimizer, "take_weights"):
                side.optimizer.take_weights()  # required with offload


@action
def param_storage_released_and_back(side, a, b):
    if side.params and not side.is_open:
        move_storage(side.param(a).data)


@action
def requires_grad_toggled(side, a, b):
    param = side.param(a)
    if param is not None:
        param.requires_grad_(not param.requires_grad)


def move_storage(tensor):
    """Frees a tensor's memory and moves its values to new memory.

    Do not call it while a begun step uses that memory: resize_() frees a storage in spite of references to it.
    """
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    kept = storage.clone()
    storage.resize_(0)
    held = torch.full((size,), 85, dtype=torch.uint8, device="cpu")  # occupies the old memory, if reused
    storage.resize_(size)
    storage.copy_(kept)
    del held


# Gradients

@action
def grad_dropped(side, a, b):
    if side.params:
        side.param(a).grad = None


@action
def grad_set_by_hand(side, a, b):
    param = side.param(a)
    if param is not None:
        param.grad = laid_out(numbers(side.time * 7 + a, param.shape), b)


@action
def grad_scaled_in_place(side, a, b):
    for param in side.params if b % 2 else [side.param(a)]:
        if param is not None and param.grad is not None:
            param.grad.mul_(0.5)


@action
def grad_replaced(side, a, b):
    param = side.param(a)
    if param is not None and param.grad is not None:
        param.grad = param.grad.clone() if b % 2 else param.grad * 2


@action
def grad_data_replaced(side, a, b):
    param = side.param(a)
    if param is not None and param.grad is not None:
        param.grad.data = param.grad.data * 2


@action
def grad_moved_in_memory(side, a, b):
    param = side.param(a)
    if param is not None and param.grad is not None and not side.is_open:
        move_storage(param.grad)


@action
def grad_made_sparse(side, a, b):
    """torch raises an error. With accumulate ours raises in the next backward()."""
    param = side.param(a)
    if param is not None and param.dim() == 2 and "accumulate" not in side.options and param.grad is not None:
        param.grad = param.grad.to_sparse()


# Hyperparameters

def hyper(name, values):
    def change(side, a, b):
        side.group(a)[name] = values[b % len(values)]
    actions[f"{name}_set"] = change


hyper("lr", [0.0, 0.003, 0.02, 0.05])
hyper("betas", [(0.9, 0.999), (0.5, 0.7), (0.0, 0.9), [0.8, 0.95]])
hyper("eps", [1e-8, 1e-3, 0.1])
hyper("weight_decay", [0, 0.1, 0.3])
hyper("maximize", [True, False])
hyper("decoupled_weight_decay", [True, False])


@action
def lr_set_to_a_tensor(side, a, b):
    group = side.group(a)
    if isinstance(group.get("lr"), torch.Tensor):
        group["lr"].fill_(0.015)
    else:
        group["lr"] = torch.tensor(0.02 if b % 2 else 0.04, device="cpu", dtype=torch.float32 if b % 3 else torch.float64)


# State

@action
def state_cleared(side, a, b):
    side.optimizer.state.clear()


@action
def state_replaced(side, a, b):
    """Replaces the state by an empty one, a copy, a reordered one, or a dict without default states."""
    old = side.optimizer.state
    side.optimizer.state = [defaultdict(dict), defaultdict(dict, {key: copy_of(value) for key, value in old.items()}),
                            defaultdict(dict, dict(reversed(old.items()))), dict(old)][b % 4]


def copy_of(value):
    return dict(value) if isinstance(value, dict) else value


@action
def state_of_a_param_deleted(side, a, b):
    side.optimizer.state.pop(side.param(a), None)


@action
def state_of_a_param_emptied(side, a, b):
    if side.params:
        if b % 2:
            side.optimizer.state[side.param(a)] = {}
        elif side.state(a):
            side.state(a).clear()


@action
def state_of_a_param_copied(side, a, b):
    state = side.state(a)
    if state:
        side.optimizer.state[side.param(a)] = copy.deepcopy(state) if b % 2 else dict(reversed(state.items()))


@action
def states_exchanged(side, a, b):
    first = side.param(a)
    same = [param for param in side.params if first is not None and param.shape == first.shape]
    if same:
        second, state = same[b % len(same)], side.optimizer.state
        if first in state and second in state:
            state[first], state[second] = state[second], state[first]


@action
def moment_replaced(side, a, b):
    state, name = side.state(a), moments[b % 2]
    if state:
        state[name] = laid_out(state[name] * 2, b // 2)


@action
def moment_data_replaced(side, a, b):
    """Overwrites the old memory, so stale addresses change results."""
    state, name = side.state(a), moments[b % 2]
    if state:
        old, state[name].data = state[name].data, state[name].data.clone() if b % 3 else state[name].data * 2
        if not side.is_open:
            old.fill_(-1e30)


@action
def moment_set_to_other_storage(side, a, b):
    state, name = side.state(a), moments[b % 2]
    if state:
        state[name].set_((state[name] * 2).detach())


@action
def moment_written(side, a, b):
    state = side.state(a)
    if state:
        state["exp_avg"].fill_(0.25) if b % 3 == 0 else state["exp_avg_sq"].fill_(0.5) if b % 3 == 1 else state["exp_avg"].zero_()


@action
def moment_storage_released_and_back(side, a, b):
    for state in side.optimizer.state.values():
        for name in moments:
            if isinstance(state, dict) and name in state and not side.is_open:
                move_storage(state[name])


@action
def moment_deleted(side, a, b):
    """torch raises an error at the next step."""
    side.state(a).pop((*moments, "step")[b % 3], None)


@action
def step_count_set(side, a, b):
    state = side.state(a)
    if state:
        if b % 4 == 0:
            state["step"].fill_(100)
        elif b % 4 == 1:
            state["step"] = torch.tensor(100.0, dtype=torch.float32, device="cpu")
        elif b % 4 == 2:  # torch cannot count in a plain number, so its side gets a tensor
            state["step"] = 50 if side.is_ours else torch.tensor(50.0, dtype=torch.float32, device="cpu")
        else:
            state["step"] = torch.tensor(7, dtype=torch.float64 if a % 2 else torch.int64, device="cpu")


@action
def step_storage_released_and_back(side, a, b):
    if side.state(a):
        move_storage(side.state(a)["step"])


@action
def keys_of_the_users(side, a, b):
    side.optimizer.state["run"] = b
    if side.state(a) and not side.is_open:
        side.state(a)["mine"] = a


# Saves, loads and copies

@action
def own_state_dict_loaded(side, a, b):
    side.kept = None
    saved = side.optimizer.state_dict()
    side.optimizer.load_state_dict(copy.deepcopy(saved) if b % 2 else saved)


@action
def state_dict_kept(side, a, b):
    side.kept = side.optimizer.state_dict()


@action
def kept_state_dict_loaded(side, a, b):
    """A kept state_dict is live. Only torch shares its tensors after a load, so it is loaded once."""
    if side.kept is not None and fits(side.kept, side):
        kept, side.kept = side.kept, None
        side.optimizer.load_state_dict(kept)


def fits(saved, side):
    """torch loads states of any shape and raises at a later step. test_damaged_states.py tests our checks."""
    if [len(group["params"]) for group in saved["param_groups"]] != [len(group["params"]) for group in side.groups]:
        return True
    return all(state[name].shape == param.shape for group, now in zip(saved["param_groups"], side.groups)
               for key, param in zip(group["params"], now["params"]) for state in [saved["state"].get(key, {})]
               for name in moments if name in state)


@action
def state_dict_loaded_into_a_new_optimizer(side, a, b):
    side.kept = None
    saved = side.optimizer.state_dict()
    groups = [{**group, "params": list(group["params"])} for group in side.groups]
    if not any(group["params"] for group in groups):
        return
    old = side.optimizer
    try:
        side.make(groups)
        side.optimizer.load_state_dict(pickle.loads(pickle.dumps(saved)) if b % 2 else saved)
    except Exception:
        side.optimizer = old
        raise


@action
def state_dict_with_hooks(side, a, b):
    side.kept = None
    seen, optimizer = [], side.optimizer
    handles = [
        optimizer.register_state_dict_pre_hook(lambda it: it.state.update(when=b)),
        optimizer.register_state_dict_post_hook(lambda it, made: made.update(note=len(made["state"]))),
        optimizer.register_load_state_dict_pre_hook(
            lambda it, given: {**given, "param_groups": [{**group, "weight_decay": 0.2} for group in given["param_groups"]]}),
        optimizer.register_load_state_dict_post_hook(lambda it: seen.append(len(it.state)))]
    try:
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
        side.seen = None if side.is_open else (seen, saved["note"])
    finally:
        for handle in handles:
            handle.remove()


@action
def copied(side, a, b):
    """Replaces the model and the optimizer by copies."""
    both = (side.optimizer, side.known)  # in this order: copying the optimizer rolls back a begun step
    side.optimizer, side.known = copy.deepcopy(both) if b % 2 else pickle.loads(pickle.dumps(both))


# Hooks, which run once

def once(side, register, function):
    left = [function]
    side.armed.append(left)
    register(lambda *given: left.pop()(*given) if left else None)


@action
def step_pre_hook(side, a, b):
    def change(optimizer, *_):
        for group in optimizer.param_groups[:1 + a % 2]:
            group["lr" if b % 3 == 0 else "weight_decay"] = 0.025
        if b % 3 == 1:
            optimizer.state.clear()
            side.may_change = True
        if b % 3 == 2:
            for group in optimizer.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        param.grad.mul_(0.5)
    once(side, side.optimizer.register_step_pre_hook, change)


@action
def step_post_hook(side, a, b):
    def change(optimizer, *_):
        if b % 2:
            optimizer.state.clear()
        else:
            optimizer.param_groups.reverse()
    once(side, side.optimizer.register_step_post_hook, change)


@action
def gradient_hook(side, a, b):
    param = side.param(a)
    if param is not None and param.requires_grad:
        if b % 2:
            once(side, param.register_hook, lambda grad: grad * 2)
        else:
            def halve(it):
                it.grad.mul_(0.5)
            once(side, param.register_post_accumulate_grad_hook, halve)


# Sequences

@contextmanager
def defaults(which):
    torch.set_default_device("meta" if which == "meta" else None)
    torch.set_default_dtype(torch.float64 if which == "float64" else torch.float32)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def is_new(state):
    return isinstance(state, dict) and float(state["step"]) == 0 and not any(state[name].any() for name in moments)


class Pair:
    def __init__(self, mode, kind):
        self.mode, self.options = mode, MODES[mode]
        self.mine, self.theirs = (Side(kind, self.options, is_ours) for is_ours in (True, False))

    def apply(self, function, a, b, which=None):
        """Applies an action to both sides. which: torch defaults for our side; torch's optimizers fail with them."""
        mine, theirs = self.mine, self.theirs
        mine.time = theirs.time = mine.time + 1
        before, count = mine.contents(), len(mine.known)
        mine.may_change = mine.is_open and "overlap" in self.options
        failed = None
        try:
            with defaults(which):
                function(mine, a, b)
        except Exception as error:
            failed = error
        if failed is not None:
            # With overlap a begun step changes params early; without max_norm it cannot be rolled back.
            began = "overlap=True" in str(failed) or self.mode == "overlap" and function in (step, step_with_closure)
            if not began and not mine.may_change:
                del mine.known[count:]
                assert mine.contents() == before, f"{failed!r} has changed params or states"
            if self.is_refusal(failed) and not (function is step and "Load a complete state" in str(failed)):
                del mine.known[count:]
                return self.repair()
        try:
            function(theirs, a, b)
        except Exception as error:
            # Accumulation creates states in backward(), so that `state` may need no defaults later.
            created = isinstance(error, KeyError) and "accumulate" in self.options
            assert failed is not None or created, f"torch raises {error!r}, but ours does not"
            if failed is None:
                return self.repair()
            assert isinstance(failed, adamant.InvalidArgument) or not isinstance(
                failed, (AttributeError, AssertionError, adamant.Error))
            return self.repair()
        if failed is not None:
            raise failed
        self.compare()

    @staticmethod
    def is_refusal(error):
        return isinstance(error, adamant.InvalidArgument) and any(
            part in str(error) for words in REFUSALS for part in words.split("|"))

    def repair(self):
        """Loads an empty state after an error. Sets torch's params, which may be stepped in part, to ours."""
        for side in (self.mine, self.theirs):
            side.backwards, side.loss, side.norm, side.seen, side.kept = 0, None, None, None, None
            for hook in side.armed:
                hook.clear()
            if "accumulate" in self.options:
                side.optimizer.zero_grad()
            side.optimizer.load_state_dict({"state": {}, "param_groups": self.mine.numbered_groups()})
            for param in side.known:
                param.grad = None
        self.take_over()
        self.compare()

    def take_over(self):
        with torch.no_grad():
            for p, q in zip(self.mine.known, self.theirs.known):
                q.data.copy_(p.data)
            theirs = self.theirs.states()
            for number, state in self.mine.states().items():
                if isinstance(state, dict) and number in theirs:
                    for name in moments:
                        if name in state:
                            theirs[number][name].copy_(state[name])

    def compare(self):
        mine, theirs = self.mine, self.theirs
        if mine.is_open:
            return
        assert len(mine.known) == len(theirs.known)
        for number, (p, q) in enumerate(zip(mine.known, theirs.known)):
            assert torch.allclose(p, q, rtol=2e-6, atol=3e-7), f"param {number} differs by {(p - q).abs().max()}"
        first, second = mine.states(), theirs.states()
        if "accumulate" in self.options:
            first = {number: state for number, state in first.items() if number in second or not is_new(state)}
        assert set(first) == set(second)
        for number, state in first.items():
            if not isinstance(state, dict):
                assert state == second[number]
                continue
            assert set(state) == set(second[number]), number
            for name, value in state.items():
                other = second[number][name]
                if name == "step":
                    assert float(value) == float(other), f"step of param {number}: {value}, torch's {other}"
                elif isinstance(value, torch.Tensor):
                    assert torch.allclose(value, other, rtol=1e-5, atol=1e-7), f"{name} of param {number} differs"
                else:
                    assert value == other, f"{name} of param {number}: {value}, torch's {other}"
        for name in ("loss", "norm"):
            ours, torchs = getattr(mine, name), getattr(theirs, name)
            assert (ours is None) == (torchs is None), name
            assert ours is None or ours.device.type == "cpu", f"{name} is on {ours.device}"
            if ours is not None:
                assert abs(float(ours) - float(torchs)) <= 1e-4 * abs(float(torchs)) + 1e-6, f"{name}: {ours}, torch's {torchs}"
        assert mine.seen == theirs.seen
        self.take_over()


# Two of three actions are a step or its first half, so other actions occur before, within and after steps.
names = strategies.one_of(strategies.just("step"), strategies.just("backward"), strategies.sampled_from(sorted(actions)))
small = strategies.integers(0, 6)
defaults_then = strategies.sampled_from([None] * 8 + ["meta", "float64"])


@pytest.mark.parametrize("mode", MODES)
def test_action_sequences_have_the_effect_of_torchs_optimizer(mode):
    @settings(max_examples=-(-SEQUENCES // len(MODES)), derandomize=True, database=None, deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(kind=strategies.sampled_from(["AdamW", "Adam"]),
           sequence=strategies.lists(strategies.tuples(names, small, small, defaults_then), min_size=12, max_size=30))
    def check(kind, sequence):
        pair = Pair(mode, kind)
        pair.apply(step, 0, 0)
        try:
            for name, a, b, which in [*sequence, ("step", 0, 0, None), ("step", 0, 0, None)]:
                pair.apply(step if name == "step" else actions[name], a, b, which)
        except adamant.InvalidArgument as error:
            if STUCK not in str(error) or mode != "overlap":
                raise
    check()
