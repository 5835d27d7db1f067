# SPDX-License-Identifier: Apache-2.0
"""adamant.torch.install(): random actions where it is called now and then, against the same where it never is."""
import abc
import copy
import io
import pickle
import random

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
import adamant.torch  # noqa: E402

from processes import words  # noqa: E402

theirs = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


@pytest.fixture(autouse=True)
def uninstalled():
    yield
    adamant.torch.uninstall()
    assert torch.optim.Adam is theirs["Adam"] and torch.optim.AdamW is theirs["AdamW"]


class Schedule(abc.ABC):
    pass


class World:
    """Optimizers, and the classes that frameworks have made of torch's. Actions draw from `rng` only."""

    def __init__(self, rng, installs):
        self.rng, self.installs, self.is_installed = rng, installs, False
        self.optimizers, self.kinds, self.ours = [], [], 0
        self.kind()

    def act(self, name):
        if self.is_installed:
            adamant.torch.install()
        try:
            return getattr(self, name)()
        finally:
            adamant.torch.uninstall()  # both worlds are in this process

    def install(self):
        self.is_installed = self.installs

    def uninstall(self):
        self.is_installed = False

    def kind(self):
        """What a module that is imported now has: the class by name, or a subclass of it."""
        name, way = self.rng.choice(["Adam", "AdamW"]), self.rng.randrange(4)
        if way == 0:
            scope = {}
            exec(f"from torch.optim import {name} as kind", scope)
            self.kinds.append(scope["kind"])
        elif way == 1:
            self.kinds.append(getattr(torch.optim, name))
        elif way == 2:
            self.kinds.append(type("Mine", (Schedule, getattr(torch.optim, name)), {"lr_of_mine": 1}))
        else:
            class Mine(getattr(torch.optim, name)):
                def __init__(self, params, **more):
                    super().__init__(params, **{"weight_decay": 0.2, **more})

                def step(self, closure=None):
                    return super().step(closure)
            self.kinds.append(Mine)

    def create(self):
        options = self.rng.choice([{}, {"lr": 0.1}, {"betas": (0.5, 0.9), "eps": 1e-4}, {"maximize": True},
                                   {"foreach": True}, {"fused": True}, {"weight_decay": 0.3, "lr": 0.02}])
        kind, torchs = self.rng.choice(self.kinds), self.rng.random() < 0.5
        generator = torch.Generator().manual_seed(self.rng.randrange(10**6))
        params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 7), (3,), ())]
        kind = getattr(torch.optim, self.rng.choice(["Adam", "AdamW"])) if torchs else kind
        self.optimizers.append(kind(params, **options))
        self.ours += any(kind.__module__.startswith("adamant") for kind in type(self.optimizers[-1]).__mro__)

    def pick(self):
        if not self.optimizers:
            self.create()
        return self.rng.randrange(len(self.optimizers))

    def step(self):
        optimizer = self.optimizers[self.pick()]
        for group in optimizer.param_groups:
            for param in group["params"]:
                generator = torch.Generator().manual_seed(self.rng.randrange(10**6))
                param.grad = torch.randn(param.shape, generator=generator) if self.rng.random() < 0.9 else None
        optimizer.step()

    def schedule(self):
        optimizer = self.optimizers[self.pick()]
        if not hasattr(optimizer, "schedule"):
            optimizer.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        optimizer.schedule.step()

    def add(self):
        optimizer = self.optimizers[self.pick()]
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(4))], "lr": 0.05})

    def load(self):
        source, target = self.optimizers[self.pick()], self.optimizers[self.pick()]
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        try:
            target.load_state_dict(torch.load(file))
        except ValueError as error:  # another number of groups
            return str(error)

    def copied(self):
        i = self.pick()
        if hasattr(self.optimizers[i], "schedule"):
            return
        if type(self.optimizers[i]).__name__ == "Mine":  # classes of functions cannot be pickled
            self.optimizers[i] = copy.deepcopy(self.optimizers[i])
        else:
            self.optimizers[i] = pickle.loads(pickle.dumps(self.optimizers[i]))

    def classes(self):
        known = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Optimizer, *theirs.values(),
                 Schedule]
        return ([[isinstance(each, kind) for kind in [*known, *self.kinds]] for each in self.optimizers],
                [[issubclass(own, kind) for kind in known] for own in [*self.kinds, *known[:2]]],
                [type(each).__name__ for each in self.optimizers])

    def values(self):
        return [param.detach().clone() for each in self.optimizers for group in each.param_groups
                for param in group["params"]]


actions = ("install", "uninstall", "kind", "kind", "create", "create", "step", "step", "step", "step", "schedule", "add",
           "load", "copied", "classes")


@pytest.mark.parametrize("seed", range(24))
def test_random_actions_have_torchs_results(seed):
    order = random.Random(seed)
    worlds = [World(random.Random(seed), installs) for installs in (False, True)]
    for number in range(60):
        name = order.choice(actions)
        (answer, expected), (ours, values) = [(world.act(name), world.values()) for world in worlds]
        assert ours == answer, (number, name)
        assert len(values) == len(expected)
        for value, torchs in zip(values, expected):
            assert torch.allclose(value, torchs, rtol=2e-5, atol=2e-6), (number, name)
    assert not worlds[0].ours


def test_random_actions_reach_our_classes():
    world = World(random.Random(1), True)
    for name in ("install", "kind", "create", "create", "uninstall", "create", "create"):
        world.act(name)
    assert 0 < world.ours < 4


def test_refused_arguments_and_params_are_errors_by_name():
    adamant.torch.install()
    param = torch.nn.Parameter(torch.ones(3))
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        with pytest.raises(adamant.InvalidArgument, match="amsgrad"):
            kind([param], amsgrad=True)
        with pytest.raises(adamant.InvalidArgument, match="differentiable"):
            kind([param], differentiable=True)
        with pytest.raises(adamant.InvalidArgument, match="float64"):
            kind([torch.nn.Parameter(torch.ones(3, dtype=torch.float64))])
        with pytest.raises(adamant.InvalidArgument, match="meta"):
            meta = torch.nn.Parameter(torch.ones(3, device="meta"))
            meta.grad = torch.ones(3, device="meta")
            kind([meta]).step()
    assert type(torch.optim.SGD([param], lr=1.0)) is torch.optim.SGD


def test_pickles_of_an_installed_class_load_without_install(tmp_path):
    adamant.torch.install()
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([param], lr=0.5)
    param.grad = torch.ones(3)
    optimizer.step()
    (tmp_path / "optimizer").write_bytes(pickle.dumps(optimizer))
    code = """
import pickle, sys, torch
optimizer = pickle.load(open(sys.argv[1], "rb"))
assert torch.optim.AdamW.__module__ == "torch.optim.adamw" and isinstance(optimizer, torch.optim.AdamW)
optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
optimizer.step()
print(optimizer.param_groups[0]["params"][0].tolist())
"""
    found = words(code, tmp_path / "optimizer")
    param.grad = torch.ones(3)
    optimizer.step()
    assert " ".join(found) == str(param.tolist())


def test_what_others_assigned_comes_back():
    others = type("Others", (torch.optim.Adam,), {})
    torch.optim.Adam = others
    try:
        adamant.torch.install()
        adamant.torch.uninstall()
        assert torch.optim.Adam is others
        adamant.torch.install()
        torch.optim.Adam = third = type("Third", (torch.optim.Adam,), {})
        adamant.torch.install()
        adamant.torch.uninstall()
        assert torch.optim.Adam is third and torch.optim.AdamW is theirs["AdamW"]
    finally:
        torch.optim.Adam = theirs["Adam"]
