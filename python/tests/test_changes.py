# SPDX-License-Identifier: Apache-2.0
"""Changed weights: a receiver that applies them has the bits of the sender, whatever happens between steps."""
import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant.torch import AdamW  # noqa: E402
from adamant.torch._changes import _origin, _whole_indices  # noqa: E402

from optimizer_modes import MODES, Run, bits, values  # noqa: E402


class Receiver:
    """Copies of params, to which changed weights are applied."""

    def __init__(self):
        self.weights = {}

    def apply(self, changes):
        total = 0
        for change in changes:
            copied = self.weights.get(id(change.param))
            if copied is None:
                copied = self.weights[id(change.param)] = (torch.zeros(change.param.numel(), dtype=change.param.dtype),
                                                           change.param)
            assert bool((change.indices[1:] > change.indices[:-1]).all())
            copied[0][change.indices.long()] = change.values
            total += len(change.indices)
        return total

    def check(self, params):
        for param in params:
            assert bits(self.weights[id(param)][0]) == bits(param.detach().contiguous().reshape(-1))


def tracking(mode):
    run = Run(mode)
    return Run(mode) if "track_changes" in run.options else _with_changes(run)


def _with_changes(run):
    groups = [{**group, "params": list(group["params"])} for group in run.optimizer.param_groups]
    run.options = {**run.options, "track_changes": True}
    run.optimizer = AdamW(groups, **run.options)
    return run


def written_without_grad(run):
    with torch.no_grad():
        run.params[0].add_(1)


def state_loaded(run):
    run.optimizer.flush()
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def written_through_data(run):
    if "zenflow" in run.options:
        run.optimizer.flush()
    run.params[1].data.mul_(3)
    run.optimizer.take_weights()


def master_written(run):
    for state in run.optimizer.state.values():
        if "master_param" in state and state["master_param"].dtype == torch.float32 and run.dtype != torch.float32:
            state["master_param"].mul_(1.5)


def group_added(run):
    run.optimizer.add_param_group({"params": [run.new_param((7, 2))], "lr": 0.1})


def params_exchanged(run):
    first, second = (group["params"] for group in run.optimizer.param_groups[:2])
    first[1], second[1] = second[1], first[1]


ACTIONS = [written_without_grad, state_loaded, written_through_data, master_written, group_added, params_exchanged]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_a_receiver_has_the_senders_bits(mode, action):
    run, receiver = tracking(mode), Receiver()
    assert receiver.apply(run.optimizer.changed_weights()) == sum(param.numel() for param in run.params)
    receiver.check(run.params)
    for step in range(6):
        run.step()
        if step == 3:
            if action is written_without_grad and "zenflow" in run.options:
                run.optimizer.flush()
            action(run)
        if step != 1:  # bits accumulate
            receiver.apply(run.optimizer.changed_weights())
            receiver.check(run.params)


def test_only_changed_weights_are_returned():
    param = torch.nn.Parameter(torch.linspace(0.5, 1, 100000).to(torch.bfloat16))
    optimizer = AdamW([("w", param)], lr=1e-3, master=True, track_changes=True)
    for step in range(5):
        param.grad = values(step, param.shape, param.dtype)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-5
    [all_of_it] = optimizer.changed_weights()
    assert (len(all_of_it.indices), all_of_it.name) == (100000, "group0.w")
    for _ in range(3):
        before = param.detach().clone()
        param.grad = values(9, param.shape, param.dtype)
        optimizer.step()
        [kept] = optimizer.changed_weights(clear=False)
        [change] = optimizer.changed_weights()
        expected = (param.detach().view(torch.int16) != before.view(torch.int16)).nonzero().view(-1)
        assert 0 < len(expected) < 10000
        assert torch.equal(change.indices.long(), expected) and torch.equal(kept.indices, change.indices)
        assert bits(change.values) == bits(param.detach()[expected])
        [nothing] = optimizer.changed_weights()
        assert len(nothing.indices) == len(nothing.values) == 0


def test_an_error_between_params_loses_no_change(monkeypatch):
    params = [torch.nn.Parameter(torch.full((3000,), 2.0**k)) for k in range(3)]
    optimizer = AdamW(params, lr=0.1, weight_decay=0.0, track_changes=True)
    receiver = Receiver()
    receiver.apply(optimizer.changed_weights())
    for param in params:
        param.grad = (torch.arange(3000) % 7 == 0).float()
    optimizer.step()
    name = type(optimizer)._name

    def failing(self, param):
        if param is params[1]:
            raise MemoryError
        return name(self, param)
    monkeypatch.setattr(type(optimizer), "_name", failing)
    with pytest.raises(MemoryError):
        optimizer.changed_weights()
    monkeypatch.undo()
    assert receiver.apply(optimizer.changed_weights()) < 9000  # the third param's changes had not been read
    receiver.check(params)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_skipped_or_abandoned_step_changes_nothing(overlap):
    param = torch.nn.Parameter(torch.ones(5000))
    optimizer = AdamW([param], lr=0.1, on_nonfinite="skip", overlap=overlap, track_changes=True)

    def backward(value):
        optimizer.zero_grad()
        (param * value).sum().backward()
    backward(1.0)
    optimizer.step()
    assert len(optimizer.changed_weights()[0].indices) == 5000
    backward(float("inf"))
    optimizer.step()
    assert len(optimizer.changed_weights()[0].indices) == 0
    backward(1.0)
    optimizer.zero_grad()
    assert len(optimizer.changed_weights()[0].indices) == 0


@pytest.mark.parametrize("options", [
    {}, {"master": True}, {"state_format": "split_float32"}, {"offload": True}, {"master": True, "offload": True},
    {"master": True, "overlap": True}, {"master": True, "zenflow": {"topk_ratio": 1.0}}])
def test_a_nan_that_others_have_written_is_marked_when_its_bits_change(options):
    """torch rounds NaN to 0xFFFF, and the step to 0x7FC0."""
    param = torch.nn.Parameter(torch.ones(64, 4, dtype=torch.bfloat16))
    optimizer = AdamW([param], lr=1e-2, track_changes=True, **options)
    receiver = Receiver()
    for step in range(4):
        optimizer.zero_grad()
        (param * (float("inf") if step == 0 else 1.0)).sum().backward()
        optimizer.step()
        receiver.apply(optimizer.changed_weights())
        receiver.check([param])
        with torch.no_grad():
            param.add_(1)
        if step % 2:
            receiver.apply(optimizer.changed_weights())
            receiver.check([param])


@pytest.mark.parametrize("options", [{}, {"zenflow": {"topk_ratio": 0.5, "update_interval": 1, "overlap": False}}])
def test_params_in_another_order_of_memory(options):
    param = torch.nn.Parameter(values(1, (6, 8)).t())
    optimizer = AdamW([param], lr=0.1, track_changes=True, **options)
    receiver = Receiver()
    for step in range(3):
        receiver.apply(optimizer.changed_weights())
        receiver.check([param])
        param.grad = values(step + 2, (6, 8)).t() * (values(9, (6, 8)).t() > 0)
        optimizer.step()
    receiver.apply(optimizer.changed_weights())
    receiver.check([param])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_params_with_gaps_in_memory_that_no_step_uses(kind):
    """Frozen, or without a gradient so far, as views of a larger tensor are."""
    rows, stepped = torch.arange(24.0).view(4, 6).to(kind), torch.nn.Parameter(values(1, (6, 8)))
    gapped = [torch.nn.Parameter(view, requires_grad=False)
              for view in (rows[:, :2], rows.clone()[::2], rows.clone()[1:3, 1:4].t(), rows[:, 5],
                           torch.ones(6, dtype=kind).expand(3, 6), rows[0, :0])]
    optimizer = AdamW([stepped, *gapped], lr=0.1, track_changes=True)
    receiver = Receiver()
    for step in range(3):
        receiver.apply(optimizer.changed_weights())
        receiver.check([stepped, *gapped])
        for param in gapped[:4]:
            param.add_(step)
        stepped.grad = values(step + 2, (6, 8))
        optimizer.step()
    for found in optimizer.changed_weights():
        assert found.indices.tolist() == sorted(set(found.indices.tolist()))


@pytest.mark.parametrize("made, text", [(lambda: torch.eye(4).to_sparse(), "is sparse"),
                                        (lambda: torch.empty(4, device="meta"), "is on the meta device")])
def test_params_without_weights_in_memory_are_refused_by_name(made, text):
    param, odd = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(made())
    optimizer = AdamW([param, odd], track_changes=True)
    param.grad = torch.ones(4)
    optimizer.step()
    with pytest.raises(adamant.InvalidArgument, match=f"group0.1: it {text}"):
        optimizer.changed_weights()
    optimizer.param_groups[0]["params"].pop()
    assert optimizer.changed_weights()[0].indices.tolist() == [0, 1, 2, 3]


def test_errors():
    param = torch.nn.Parameter(torch.ones(3))
    words = torch.zeros(1, dtype=torch.int64)
    assert adamant.changed_weights(words, param.detach(), first_index=2**63 - 3)[0].numel() == 0
    with pytest.raises(adamant.InvalidArgument, match="first_index plus the number of weights is 9223372036854775809"):
        adamant.changed_weights(words, param.detach(), first_index=2**63 - 2)
    with pytest.raises(adamant.InvalidArgument, match="Pass track_changes=True"):
        AdamW([param]).changed_weights()
    with pytest.raises(adamant.InvalidArgument, match="track_changes is 1"):
        AdamW([param], track_changes=1)


class _Mesh:
    def __init__(self, sizes, ranks):
        self.sizes, self.ranks = sizes, ranks

    def size(self, dimension):
        return self.sizes[dimension]

    def get_coordinate(self):
        return self.ranks

    def get_local_rank(self, dimension):
        return self.ranks[dimension]


class Shard:
    def __init__(self, dim):
        self.dim = dim

    def is_replicate(self):
        return False


@pytest.mark.parametrize("placements", [[Shard(0)], [Shard(1)], [Shard(0), Shard(1)], [Shard(1), Shard(1)]])
def test_shards_have_indices_of_the_whole_param(placements):
    whole = torch.arange(7 * 9).view(7, 9)
    seen = []
    sizes = [2, 3][:len(placements)]
    for first in range(sizes[0]):
        for second in range(sizes[1] if len(sizes) > 1 else 1):
            class Param:
                shape, placements_of = whole.shape, placements
            part = whole
            for placement, size, rank in zip(placements, sizes, (first, second)):
                each = -(-part.shape[placement.dim] // size)
                part = part.narrow(placement.dim, min(each * rank, part.shape[placement.dim]),
                                   max(0, min(each, part.shape[placement.dim] - each * rank)))
            param = Param()
            param.placements, param.device_mesh = placements, _Mesh(sizes, (first, second))
            param.dim, param.numel = whole.dim, whole.numel
            param.detach, param.to_local = lambda: param, lambda part=part: part.contiguous()
            assert _origin(param, "w") == (int(part.min()) // 9, int(part.min()) % 9) if part.numel() else True
            indices = torch.arange(part.numel(), dtype=torch.int32)
            seen += _whole_indices(indices, param, "w", False).tolist()
            assert _whole_indices(indices, param, "w", True).tolist() == part.reshape(-1).tolist()
    assert sorted(seen) == list(range(63))


def test_numpy_arrays():
    n = 1000
    param = np.linspace(0.5, 1, n, dtype=np.float32)
    grad, exp_avg, exp_avg_sq = np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    weight = param.astype(np.float16)
    changed = np.zeros(adamant.changed_words(n), np.uint64)
    optimizer = adamant.Optimizer()
    optimizer.add_group("all", lr=1e-4)
    optimizer.add_shard(0, "w", param, grad, exp_avg, exp_avg_sq, weight, changed=changed)
    for _ in range(3):
        before = weight.copy()
        optimizer.step()
        expected = np.flatnonzero(weight.view(np.uint16) != before.view(np.uint16))
        assert 0 < len(expected) < n and adamant.count_changed(changed, weight) == len(expected)
        assert np.array_equal(np.flatnonzero(adamant.changed_mask(changed, weight)), expected)
        indices, found = adamant.changed_weights(changed, weight, first_index=5, clear=True)
        assert indices.dtype == np.uint32 and np.array_equal(indices - 5, expected)
        assert found.dtype == np.float16 and np.array_equal(found, weight[expected])
        assert adamant.count_changed(changed, weight) == 0
    adamant.mark_changed(changed, weight, 3, 7)
    assert adamant.changed_weights(changed, weight, first_index=2**40)[0].tolist() == [2**40 + i for i in range(3, 7)]
    with pytest.raises(adamant.InvalidArgument, match="must have 16 of uint64"):
        optimizer.add_shard(0, "v", param.copy(), grad, exp_avg.copy(), exp_avg_sq.copy(), changed=changed[:3])
