# SPDX-License-Identifier: Apache-2.0
"""Modes of adamant.torch for tests, and small training runs whose optimizer tests change between steps."""
import copy

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from adamant._zenflow_optimizer import position_fields
from adamant.torch import AdamW

# The dtype of params, and the optimizer's arguments.
MODES = {
    "plain": (torch.float32, {}),
    "max_norm": (torch.float32, {"max_norm": 0.5}),
    "overlap": (torch.float32, {"overlap": True}),
    "overlap_max_norm": (torch.float32, {"overlap": True, "max_norm": 0.5}),
    "accumulate": (torch.float32, {"accumulate": 2}),
    "offload": (torch.float32, {"offload": True}),
    "master": (torch.bfloat16, {"master": True}),
    "split": (torch.bfloat16, {"state_format": "split_float32"}),
    "track_changes": (torch.bfloat16, {"master": True, "track_changes": True}),
    "quantized8": (torch.float32, {"state_format": "quantized8"}),
    "zenflow": (torch.float32, {"zenflow": {"topk_ratio": 0.34, "select_interval": 4, "update_interval": 2}}),
}
FLOAT32_MODES = [mode for mode in MODES if mode not in ("master", "split", "track_changes", "quantized8", "zenflow")]
# Two groups of two params. Vectors have equal shapes, so tests can exchange them.
SHAPES = [[(64, 3), (5,)], [(4, 6), (5,)]]
HYPERS = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.03, "betas": (0.8, 0.99)}]


def values(seed, shape, dtype=torch.float32):
    """The same numbers for the same seed, independent of torch's defaults."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(dtype)


def position_of(optimizer):
    """The position of a run with zenflow, from its state_dict()."""
    states = optimizer.state_dict()["state"].values()
    return dict(zip(position_fields, next(state["window"].tolist() for state in states if "window" in state)))


def bits(tensor):
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    tensor = tensor.detach().cpu().clone().contiguous().reshape(-1)  # clone: memory that NumPy has wrapped cannot be resized
    return tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def storage_refs(tensors):
    """Weak references to the memory of tensors, for alive()."""
    return [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors if tensor is not None]


def alive(refs):
    return sum(not ref.expired() for ref in refs)


class Run:
    """A training run.

    All params that the optimizer ever had get gradients, which depend on the step and the param's number only. Tests thus
    detect steps of removed params.
    """

    def __init__(self, mode, kind=AdamW, device="cpu"):
        self.mode, self.kind, self.device = mode, kind, device
        self.dtype, self.options = MODES[mode]
        self.is_ours = kind is AdamW
        self.known = []
        groups = [{"params": [self.new_param(shape) for shape in shapes], **hyper}
                  for shapes, hyper in zip(SHAPES, HYPERS)]
        self.optimizer = AdamW(groups, **self.options) if self.is_ours else kind(groups, foreach=False)
        self.time = 0
        self.norm = None

    def new_param(self, shape):
        number = len(self.known)
        param = torch.nn.Parameter(values(number, shape, self.dtype).to(self.device))
        param.number = number
        self.known.append(param)
        return param

    @property
    def params(self):
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    @property
    def removed(self):
        here = {id(param) for param in self.params}
        return [param for param in self.known if id(param) not in here]

    def backward(self, part=0):
        def grad(param):
            return values(1000 * self.time + 10 * param.number + 7 * part + 1, param.shape, param.dtype).to(param.device)

        sum((param * grad(param)).sum() for param in self.known if param.requires_grad).backward()

    def zero_grad(self):
        self.optimizer.zero_grad()
        for param in self.known:
            param.grad = None

    def step(self):
        self.zero_grad()
        for part in range(self.options.get("accumulate", 1)):
            self.backward(part)
        self.finish()

    def finish(self):
        max_norm = self.options.get("max_norm")
        if self.is_ours:
            self.norm = self.optimizer.step()
        else:
            if max_norm is not None:
                self.norm = torch.nn.utils.clip_grad_norm_(self.params, max_norm)
            self.optimizer.step()
        self.time += 1

    def state(self):
        """States by the param's number, with the values that only state_dict() adds."""
        if "zenflow" not in self.options:
            return {param.number: dict(self.optimizer.state[param]) for param in self.params
                    if param in self.optimizer.state}
        saved, params = self.optimizer.state_dict()["state"], self.params
        return {params[key].number: state for key, state in saved.items()}

    def forget_removed(self):
        """Removes states of removed params, with which torch's state_dict() also raises KeyError."""
        for param in self.removed:
            self.optimizer.state.pop(param, None)

    def fresh(self):
        """A new optimizer over copies of the params, groups and states."""
        made = object.__new__(Run)
        made.__dict__.update(self.__dict__)
        copies = {}
        for param in self.known:
            copies[param] = torch.nn.Parameter(param.detach().clone(), requires_grad=param.requires_grad)
            copies[param].number = param.number
        made.known = list(copies.values())
        groups = [{**group, "params": [copies[param] for param in group["params"]]}
                  for group in copy.deepcopy(without_params(self.optimizer), {})]
        for group, theirs in zip(groups, self.optimizer.param_groups):
            group["params"] = [copies[param] for param in theirs["params"]]
        made.optimizer = self.kind(groups, **self.options)
        if "zenflow" in self.options:
            self.forget_removed()
            made.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
            return made
        for param in self.params:
            if param in self.optimizer.state:
                made.optimizer.state[copies[param]] = {name: value.clone() if isinstance(value, torch.Tensor) else value
                                                       for name, value in self.optimizer.state[param].items()}
        return made


def without_params(optimizer):
    return [{name: value for name, value in group.items() if name != "params"} | {"params": []}
            for group in optimizer.param_groups]


def assert_same_bits(a, b, when=""):
    """Asserts that params, states and norms of two runs have equal bits."""
    for p, q in zip(a.known, b.known):
        assert bits(p) == bits(q), f"param {p.number} differs {when}"
    first, second = a.state(), b.state()
    assert first.keys() == second.keys(), when
    for number in first:
        assert first[number].keys() == second[number].keys(), (number, when)
        for name, value in first[number].items():
            other = second[number][name]
            assert (value.dtype, value.shape) == (other.dtype, other.shape), (number, name, when)
            assert bits(value) == bits(other), f"{name} of param {number} differs {when}"
    if a.norm is not None and b.norm is not None:
        assert bits(a.norm) == bits(b.norm), when


def assert_close(mine, theirs, when=""):
    """Asserts that a run is close to torch's. Defects cause differences at least a hundred times larger."""
    for p, q in zip(mine.known, theirs.known):
        assert torch.allclose(p, q, rtol=1e-5, atol=2e-6), f"param {p.number} differs {when}: {(p - q).abs().max()}"
    first, second = mine.state(), theirs.state()
    assert first.keys() == second.keys(), when
    for number in first:
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.allclose(first[number][name].double(), second[number][name].double(), rtol=2e-5, atol=1e-7), (
                f"{name} of param {number} differs {when}")
    if mine.norm is not None:
        norm = float(mine.norm)
        assert norm == norm and abs(norm - float(theirs.norm)) < 1e-5 * norm


def assert_follows(run, steps=3):
    """Asserts that later steps equal those of a new optimizer with these groups and states, and skip removed params."""
    twin = run.fresh()
    removed = [(param, bits(param)) for param in run.removed]
    for _ in range(steps):
        run.step()
        twin.step()
        assert_same_bits(run, twin, f"in step {run.time}")
    for param, before in removed:
        assert bits(param) == before, f"param {param.number} was stepped, but no group has it"
