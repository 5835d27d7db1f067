# SPDX-License-Identifier: Apache-2.0
"""Steps that raise: the optimizer has changed nothing, and the next step after the repair is the one that was meant."""
import math
import random

import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.torch import AdamW  # noqa: E402

from optimizer_modes import MODES, Run, assert_same_bits, bits, values  # noqa: E402

bad_hypers = [("lr", -1e-20), ("lr", math.nan), ("lr", 1e38), ("lr", 10**400), ("betas", (0.9, 1.0)), ("eps", None),
              ("weight_decay", -1.0), ("weight_decay", "missing")]
# With overlap and no norm, backward() has written params already.
undoable = [mode for mode in MODES if mode != "overlap"]


@pytest.mark.parametrize("name, value", bad_hypers)
@pytest.mark.parametrize("mode", MODES)
def test_hyperparameters_of_no_step_are_refused_until_they_are_repaired(mode, name, value):
    """In a group after one that has changed, too: no step may use the values of before."""
    run, twin = Run(mode), Run(mode)
    for each in (run, twin):
        each.step()
        each.step()
    first, last = run.optimizer.param_groups
    for bad, changed in ((first, last), (last, first)):
        known = bad[name]
        bad[name] = value
        if value == "missing":
            del bad[name]
        changed["lr"] *= 2
        before = [bits(param) for param in run.known]
        for _ in range(3):
            with pytest.raises(adamant.InvalidArgument):
                run.step()
        if mode in undoable:
            assert before == [bits(param) for param in run.known]
        bad[name] = known
    if mode in undoable:
        for group, other in zip(twin.optimizer.param_groups, run.optimizer.param_groups):
            group["lr"] = other["lr"]
        for each in (run, twin):
            each.step()
        assert_same_bits(run, twin)


@pytest.mark.parametrize("options", [{"overlap": True}, {"accumulate": 2}, {"accumulate": 2, "offload": True},
                                     {"accumulate": 2, "max_norm": 1.0}])
@pytest.mark.parametrize("defect", ["lr", "memory"])
def test_a_param_that_joins_and_cannot_be_stepped(options, defect):
    """Params that were there are stepped once, by the step after the repair, with the whole sum of their gradients."""
    def grads(joins):
        for part in range(options.get("accumulate", 1)):
            is_last = part + 1 == options.get("accumulate", 1)
            ((old * 2).sum() + (new * 2).sum() if joins and is_last else (old * 2).sum()).backward()

    old, new = torch.nn.Parameter(torch.ones(1000)), torch.nn.Parameter(torch.ones(10))
    optimizer = AdamW([{"params": [old]}, {"params": [new]}], lr=0.1, weight_decay=0.0, **options)
    for _ in range(2):
        grads(joins=False)
        optimizer.step()
        optimizer.zero_grad()
    grads(joins=True)
    before = old[0].item() + 0.1 * bool(options.get("overlap"))  # backward() has stepped it
    if defect == "lr":
        optimizer.param_groups[1]["lr"] = -1.0
    else:
        new.grad.untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(adamant.InvalidArgument):
            optimizer.step()
    assert float(optimizer.state[old]["step"]) == 2
    optimizer.param_groups[1]["lr"] = 0.1
    if defect == "memory":
        new.grad = torch.full((10,), 2.0)
    optimizer.step()
    assert [float(optimizer.state[param]["step"]) for param in (old, new)] == [3, 1]
    assert old[0].item() == pytest.approx(before - 0.1, abs=2e-3) and new[0].item() == pytest.approx(0.9, abs=1e-3)
    assert optimizer.last_report.elements == 1010


@pytest.mark.parametrize("policy", ["apply", "skip", "zero"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "quantized8"])
def test_the_norm_of_gradients_that_are_not_finite_is_nan(mode, policy):
    """As clip_grad_norm_(), whose infinity or NaN programs look for."""
    for bad in (math.inf, math.nan):
        param = torch.nn.Parameter(torch.ones(8, 8, dtype=MODES[mode][0]))
        optimizer = AdamW([param], **{**MODES[mode][1], "max_norm": 1.0, "on_nonfinite": policy})
        for value in (1.0, bad, 1.0):
            for _ in range(MODES[mode][1].get("accumulate", 1)):
                gradient = torch.ones_like(param)
                gradient[0, 0] = value
                (param * gradient).sum().backward()
            norm = optimizer.step()
            assert math.isfinite(norm) == math.isfinite(value)
            optimizer.zero_grad()


@pytest.mark.parametrize("mode", [mode for mode in MODES if not MODES[mode][1].get("overlap")])
def test_a_skipped_step_leaves_graphs_of_before_usable(mode):
    param = torch.nn.Parameter(torch.ones(4, 4, dtype=MODES[mode][0]))
    optimizer = AdamW([param], on_nonfinite="skip", **MODES[mode][1])
    for _ in range(MODES[mode][1].get("accumulate", 1)):
        (param * 1.0).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = (param * param).sum()
    param.grad = torch.full_like(param, math.inf)
    optimizer.step()
    assert optimizer.last_report.skipped
    param.grad = None
    loss.backward()
    assert torch.equal(param.grad, 2 * param.detach())


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_go_on_after_a_gradient_that_was_another_param(groups):
    params = [torch.nn.Parameter(torch.ones(64, 64)) for _ in range(2)]
    optimizer = AdamW([{"params": [param]} for param in params] if groups == 2 else params, overlap=True, max_norm=1e9)

    def backward():
        optimizer.zero_grad()
        sum((param * 2).sum() for param in params).backward()
    for _ in range(2):
        backward()
        optimizer.step()
    failed = 0
    for _ in range(3):
        try:
            backward()
            params[1].grad = params[0].detach()
            optimizer.step()
        except adamant.InvalidArgument:
            failed += 1
    assert failed == 3
    for _ in range(2):
        backward()
        optimizer.step()
    assert [float(optimizer.state[param]["step"]) for param in params] == [4, 4]


@pytest.mark.parametrize("name, value", [("master", True), ("max_norm", 1.0), ("param_rounding", "stochastic"),
                                         ("on_nonfinite", "skip"), ("offload", True), ("accumulate", 4),
                                         ("zenflow", {}), ("rounding_seed", 3), ("track_changes", True)])
def test_arguments_of_the_optimizer_are_no_options_of_a_group(name, value):
    param = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(adamant.InvalidArgument, match=f"{name} is an argument of the whole optimizer"):
        AdamW([{"params": [param], name: value}])
    optimizer = AdamW([param])
    with pytest.raises(adamant.InvalidArgument, match=name):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(4))], name: value})
    assert len(optimizer.param_groups) == 1
    AdamW([{"params": [param], name: value}], **{name: value})  # the same, as ZeroRedundancyOptimizer passes it


def test_numbers_of_numpy_are_arguments():
    numpy = pytest.importorskip("numpy")
    for options in ({"max_norm": numpy.float32(1)}, {"accumulate": numpy.int64(1)}, {"rounding_seed": numpy.uint64(3)},
                    {"threads": numpy.int32(1)}, {"zenflow": {"select_interval": numpy.int64(4)}}):
        param = torch.nn.Parameter(torch.ones(4))
        optimizer = AdamW([param], **options)
        param.grad = torch.ones(4)
        optimizer.step()


@pytest.mark.parametrize("kind", ["gaps", "expanded", "sparse"])
def test_zenflow_names_a_param_that_is_not_dense(kind):
    made = {"gaps": lambda: torch.ones(4, 8)[:, ::2], "expanded": lambda: torch.ones(1).expand(4),
            "sparse": lambda: torch.eye(4).to_sparse()}[kind]()
    param, odd = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(made)
    optimizer = AdamW([param, odd], zenflow={})
    param.grad = torch.ones(4, 4)
    if kind == "gaps":  # it is not stepped yet
        optimizer.step()
        odd.grad = torch.ones(4, 8)[:, ::2]
    with pytest.raises(adamant.InvalidArgument, match="group0.1: its elements are not dense"):
        optimizer.step()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("event", ["zero_grad", "state_dict", "lr", "add_param_group"])
def test_a_step_that_cannot_be_rolled_back_can_be_finished(event, offload, accumulate):
    """As the error of whatever wanted to roll it back says. Some gradients may still be on their way to the library."""
    params = [torch.nn.Parameter(torch.ones(size)) for size in (3, 70000, 5, 70000, 1)]
    twins = [torch.nn.Parameter(param.detach().clone()) for param in params]
    optimizer = AdamW(params, lr=0.1, overlap=True, offload=offload, accumulate=accumulate)
    plain = AdamW(twins, lr=0.1)
    for step in range(4):
        for part in range(accumulate):
            sum((param * (part + 1)).sum() for param in params).backward()
        if step:  # backward() does not begin the first step
            with pytest.raises(adamant.InvalidArgument, match="Call step"):
                if event == "lr":
                    optimizer.param_groups[0]["lr"] = 0.2
                    optimizer.step()
                elif event == "add_param_group":
                    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
                else:
                    getattr(optimizer, event)()
            optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        optimizer.zero_grad()
        for twin in twins:
            twin.grad = torch.full_like(twin, 1.0 if accumulate == 1 else 3.0)
        plain.step()
        assert [bits(param) for param in params] == [bits(twin) for twin in twins]


def test_a_changed_learning_rate_can_be_changed_back_when_a_gradient_was_not_submitted():
    """With overlap and accumulate, of a param that only one of the backward passes has reached."""
    often, seldom = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))
    optimizer = AdamW([often, seldom], lr=0.1, overlap=True, accumulate=2)
    for step in range(3):
        (often.sum() + seldom.sum()).backward()
        (often * 2).sum().backward() if step else (often * 2 + seldom).sum().backward()
        if step:
            optimizer.param_groups[0]["lr"] = 0.2
            with pytest.raises(adamant.InvalidArgument, match="hyperparameters have changed"):
                optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        optimizer.zero_grad()
    assert [float(optimizer.state[param]["step"]) for param in (often, seldom)] == [3, 3]


@pytest.mark.parametrize("options", [
    {}, {"overlap": True}, {"overlap": True, "max_norm": 1.0}, {"accumulate": 2}, {"accumulate": 2, "overlap": True},
    {"accumulate": 2, "overlap": True, "max_norm": 1.0}, {"offload": True}, {"offload": True, "overlap": True},
    {"accumulate": 2, "offload": True}, {"accumulate": 2, "offload": True, "overlap": True}, {"on_nonfinite": "skip"},
    {"overlap": True, "on_nonfinite": "skip"}, {"track_changes": True, "accumulate": 2},
    {"overlap": True, "offload": True, "max_norm": 1.0, "track_changes": True}], ids=str)
def test_random_steps_that_fail_and_are_repeated_have_the_bits_of_a_plain_optimizer(options):
    """Params have gradients in some backward passes only. The learning rate of a group may be wrong at first."""
    plain = {name: options[name] for name in ("max_norm", "on_nonfinite") if name in options}
    for seed in range(20):
        choose, passes = random.Random(seed), options.get("accumulate", 1)
        params = [torch.nn.Parameter(values(seed + n, (n,))) for n in (300, 17, 5000, 1)]
        twins = [torch.nn.Parameter(param.detach().clone()) for param in params]
        mine, theirs = (AdamW([{"params": own[:2]}, {"params": own[2:]}], lr=0.1, threads=1, **more)
                        for own, more in ((params, options), (twins, plain)))
        for step in range(6):
            grads = [[values(1000 * step + 10 * part + i, param.shape) if choose.random() < 0.7 else None
                      for i, param in enumerate(params)] for part in range(passes)]
            if options.get("on_nonfinite") and grads[0][0] is not None and choose.random() < 0.3:
                grads[0][0][0] = math.inf
            mine.zero_grad()
            theirs.zero_grad()
            for part in grads:
                for own in (params, twins):
                    terms = [(param * grad).sum() for param, grad in zip(own, part) if grad is not None]
                    if terms:
                        sum(terms).backward()
            group, attempts = choose.choice(mine.param_groups), choose.choice([0, 1, 2])
            is_done = False
            for attempt in range(attempts):
                group["lr"] = -1.0
                try:
                    mine.step()
                    is_done = True  # no param of the group has had a gradient so far
                    break
                except adamant.InvalidArgument as error:
                    assert "Load a state" not in str(error)
            group["lr"] = 0.1
            if not is_done:
                mine.step()
            theirs.step()
            for param, twin in zip(params, twins):
                assert bits(param) == bits(twin), (seed, step)
                counts = [float(each.state[one]["step"]) if each.state.get(one) else 0
                          for each, one in ((mine, param), (theirs, twin))]
                assert counts[0] == counts[1], (seed, step)
