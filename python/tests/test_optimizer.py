# SPDX-License-Identifier: Apache-2.0
"""adamant.Optimizer over NumPy arrays."""
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import adamant
from adamant import executor
from adamant.executor import pus_of


def arrays(n, seed=0, kind=np.float32, in_groups=False):
    random = np.random.default_rng(seed)
    made = {"param": random.standard_normal(n).astype(kind), "grad": random.standard_normal(n).astype(kind)}
    for name in ("exp_avg", "exp_avg_sq"):
        made[name] = np.zeros(((n + 63) // 64, 68), np.uint8) if in_groups else np.zeros(n, np.float32)
    return made


def adamw_step(a, t, lr, beta1, beta2, eps, decay, clip=1.0):
    g = a["grad"].astype(np.float64) * clip
    a["exp_avg"] = beta1 * a["exp_avg"] + (1 - beta1) * g
    a["exp_avg_sq"] = beta2 * a["exp_avg_sq"] + (1 - beta2) * g * g
    step = lr / (1 - beta1 ** t)
    a["param"] = a["param"] * (1 - lr * decay) - step * a["exp_avg"] / (
        np.sqrt(a["exp_avg_sq"]) / math.sqrt(1 - beta2 ** t) + eps)


no_counts = [-1, -(2**64), 2**64, 2**64 + 1, 1.5, 1.0, True, "1", None, np.float32(1), np.bool_(True)]
try:
    import torch
    no_counts += [torch.tensor(True), torch.ones(1, dtype=torch.bool)]  # which convert to an index
except ImportError:
    pass


def integer_arguments(executor):
    """By name, a call for each argument that is an unsigned integer in C."""
    def shard(**more):
        a = arrays(64)
        optimizer = adamant.Optimizer(executor)
        optimizer.add_group("all")
        return optimizer.add_shard(**{"group": 0, "name": "w", **a, **more})

    def one():
        optimizer = adamant.Optimizer(executor)
        optimizer.add_shard(optimizer.add_group("all"), "w", **arrays(64), accumulator=np.zeros(64, np.float32))
        return optimizer

    def set_steps(n):
        one().steps = n
    grad = np.zeros(64, np.float32)
    at = grad.ctypes.data
    return {
        "steps": set_steps,
        "rounding_seed": lambda n: one().set_hyperparameters(0, rounding_seed=n),
        "rounding_seed of a group": lambda n: one().add_group("b", rounding_seed=n),
        "growth_interval": lambda n: adamant.Optimizer(executor, loss_scaling={"growth_interval": n}),
        "hysteresis": lambda n: adamant.Optimizer(executor, loss_scaling={"hysteresis": n}),
        "journal_budget_bytes": lambda n: adamant.Optimizer(executor, journal_budget_bytes=n if n is not None else ""),
        "group": lambda n: shard(group=n),
        "group of hyperparameters": lambda n: one().set_hyperparameters(n, lr=0.1),
        "group asked for": lambda n: one().hyperparameters_of(n),
        "begin": lambda n: shard(shape=(128,), begin=n),
        "shape": lambda n: shard(shape=(n, 64)),
        "set_gradient": lambda n: one().set_gradient(n, grad),
        "submit": lambda n: one().submit(n),
        "submit with a gradient": lambda n: one().submit(n, grad),
        "submit_at": lambda n: one().submit_at(n, at),
        "skip": lambda n: one().skip(n),
        "accumulate": lambda n: one().accumulate(n),
        "accumulate_at": lambda n: one().accumulate_at(n, at),
        "threads": lambda n: adamant.Executor(threads=n),
        "cores": lambda n: adamant.Executor(cores=[n]),
        "cores of a rank": lambda n: adamant.select_cores(cores=n if n is not None else ""),
        "ranks": lambda n: adamant.select_cores(ranks=n),
        "rank": lambda n: adamant.select_cores(ranks=2, rank=n),
    }


def test_a_shard_without_elements_needs_no_gradient():
    optimizer, ones = adamant.Optimizer(), [np.ones(5, np.float32) for _ in range(4)]
    group, none = optimizer.add_group("all"), np.empty(0, np.float32)
    optimizer.add_shard(group, "none", none, None, none, none)
    optimizer.add_shard(group, "w", *ones)
    assert optimizer.step([None, np.ones(5, np.float32)]).elements == 5


@pytest.mark.parametrize("number", no_counts, ids=repr)
def test_invalid_counts_are_refused_and_never_truncated(executor, number):
    for name, call in integer_arguments(executor).items():
        with pytest.raises(adamant.InvalidArgument, match="must be a whole number"):
            call(number)
            pytest.fail(name)


def test_numpy_counts_are_accepted(executor):
    optimizer = adamant.Optimizer(executor, journal_budget_bytes=np.uint64(1 << 40))
    group = optimizer.add_group("all", rounding_seed=2**64 - 1)
    assert optimizer.hyperparameters_of(np.int64(group)).rounding_seed == 2**64 - 1
    assert optimizer.add_shard(np.uint8(0), "w", **arrays(64), shape=np.array([2, 64]), begin=np.int32(64)) == 0
    optimizer.steps = np.int64(7)
    assert optimizer.steps == 7
    optimizer.begin_step()
    optimizer.skip(np.int16(0))
    optimizer.abandon()


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_steps_are_adamw_within_rounding(executor, max_norm):
    a = arrays(10000)
    exact = {name: array.astype(np.float64) for name, array in a.items()}
    optimizer = adamant.Optimizer(executor, max_norm=max_norm)
    group = optimizer.add_group("all", lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    optimizer.add_shard(group, "weight", **a)
    for t in range(1, 11):
        new = np.random.default_rng(t).standard_normal(10000).astype(np.float32)
        exact["grad"] = new.astype(np.float64)
        report = optimizer.step([new])
        norm = np.sqrt(np.sum(exact["grad"] ** 2))
        clip = min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0
        adamw_step(exact, t, 0.01, 0.9, 0.99, 1e-8, 0.1, clip)
        assert report.step == t and not report.skipped
        if max_norm:
            assert report.global_norm == pytest.approx(norm, rel=2.0 ** -17)
            assert report.clip_coefficient == pytest.approx(clip, rel=2.0 ** -17)
    assert np.max(np.abs(a["param"] - exact["param"])) < 4e-6
    assert optimizer.steps == 10


@pytest.mark.parametrize("in_groups", [False, True])
def test_submitted_and_plain_steps_have_the_same_bits_for_any_threads(in_groups):
    ends = []
    for threads in (1, 2, 3):
        for submits in (False, True):
            shards = [arrays(n, seed=n, in_groups=in_groups) for n in (5, 4096, 10000, 1)]
            optimizer = adamant.Optimizer(adamant.Executor(threads=threads, bind="none"), max_norm=2.0)
            group = optimizer.add_group("all", lr=0.01)
            for i, shard in enumerate(shards):
                optimizer.add_shard(group, f"tensor{i}", **shard)
            for _ in range(5):
                if submits:
                    optimizer.begin_step()
                    for i in (2, 0, 3, 1):
                        optimizer.submit(i)
                    optimizer.finish()
                else:
                    optimizer.step()
            ends.append(b"".join(shard[name].tobytes() for shard in shards for name in sorted(shard)))
    assert len(set(ends)) == 1


@pytest.mark.parametrize("in_groups", [False, True])
def test_rollback_and_abandon_restore_every_bit(executor, in_groups):
    a = arrays(50001, in_groups=in_groups)
    optimizer = adamant.Optimizer(executor, max_norm=1.0, keep_last_step=True)
    optimizer.add_shard(optimizer.add_group("all", lr=0.01), "weight", **a)
    optimizer.step()
    before = {name: array.copy() for name, array in a.items()}
    optimizer.step()
    assert any(np.any(a[name] != before[name]) for name in a)
    optimizer.rollback()
    optimizer.begin_step()
    optimizer.submit(0)
    optimizer.abandon()
    assert all(a[name].tobytes() == before[name].tobytes() for name in a)
    assert optimizer.steps == 1


@pytest.mark.parametrize("in_groups", [False, True])
def test_save_and_load(executor, tmp_path, in_groups):
    a, b = arrays(5000, in_groups=in_groups), arrays(5000, seed=1, in_groups=in_groups)
    made = []
    for each in (a, b):
        optimizer = adamant.Optimizer(executor)
        optimizer.add_shard(optimizer.add_group("all", lr=0.01), "weight", **each)
        made.append(optimizer)
    for _ in range(3):
        made[0].step()
    made[0].save(tmp_path / "state.safetensors")
    made[1].load(tmp_path / "state.safetensors")
    assert made[1].steps == 3
    assert all(a[name].tobytes() == b[name].tobytes() for name in ("param", "exp_avg", "exp_avg_sq"))
    with pytest.raises(adamant.Unavailable, match="nowhere"):
        made[1].load(tmp_path / "nowhere")


def split_arrays(full):
    """The arrays with split masters, and the bits of the bfloat16 weights."""
    torch = pytest.importorskip("torch")  # NumPy has no bfloat16
    split = {name: array.copy() for name, array in full.items()}
    split["param"], split["weight_out"] = np.empty(full["param"].shape, np.int16), torch.empty(
        full["param"].shape, dtype=torch.bfloat16)
    adamant.split_masters(full["param"], split["weight_out"], split["param"])
    return split, split["weight_out"].view(torch.int16).numpy()


def master_of(upper, low):
    return ((upper.astype(np.int32) << 16) + low).view(np.float32)


@pytest.mark.parametrize("in_groups", [False, True])
def test_split_masters_have_the_bits_of_float32_masters(executor, tmp_path, in_groups):
    full = arrays(50001, in_groups=in_groups)
    full["param"][:4] = 0.0, -0.0, np.inf, 1e-41
    split, upper = split_arrays(full)
    made = []
    for each in (full, split):
        optimizer = adamant.Optimizer(executor, max_norm=1.0, keep_last_step=True)
        optimizer.add_shard(optimizer.add_group("all", lr=0.01), "weight", **each)
        made.append(optimizer)

    def check():
        assert master_of(upper, split["param"]).tobytes() == full["param"].tobytes()
        assert all(split[name].tobytes() == full[name].tobytes() for name in ("exp_avg", "exp_avg_sq"))
    check()
    for _ in range(3):
        for optimizer in made:
            optimizer.step()
        check()
    before = upper.tobytes(), split["param"].tobytes()
    made[1].step()
    assert before[1] != split["param"].tobytes()
    made[1].rollback()
    made[1].begin_step()
    made[1].submit(0)
    made[1].abandon()
    check()
    assert before == (upper.tobytes(), split["param"].tobytes())
    # Each format loads files of the other.
    for source, target in ((0, 1), (1, 0)):
        made[source].save(tmp_path / "state.safetensors")
        for optimizer in made:
            optimizer.step()
        made[target].load(tmp_path / "state.safetensors")
        made[source].load(tmp_path / "state.safetensors")
        check()
    assert [optimizer.steps for optimizer in made] == [3, 3]
    joined = np.empty(50001, np.float32)
    adamant.join_masters(split["weight_out"], split["param"], joined)
    assert joined.tobytes() == full["param"].tobytes()


def test_mismatched_split_masters_are_refused(executor):
    full = arrays(100)
    split, _ = split_arrays(full)
    master, weight, low = full["param"], split["weight_out"], split["param"]
    optimizer = adamant.Optimizer(executor)
    group = optimizer.add_group("all")
    for change, text in (({"weight_out": None}, "weight_out"), ({"weight_out": np.zeros(100, np.float16)}, "weight_out"),
                         ({"weight_out": weight[:50]}, "50 elements, but its param has 100"),
                         ({"param": low.astype(np.int32)}, "int32, but must have .*int16 with a weight_out of bfloat16"),
                         ({"grad": low}, "grad of 'w' has elements of type int16, but must have float32, bfloat16 or float16")):
        with pytest.raises(adamant.InvalidArgument, match=text):
            optimizer.add_shard(group, "w", **{**split, **change})
    read_only = master.copy()
    read_only.flags.writeable = False
    adamant.split_masters(read_only, weight, low)
    for call, arguments, text in ((adamant.split_masters, (master, weight, low[:50]), "low is int16 of 50 elements, but"),
                                  (adamant.split_masters, (master, master, low), "weight is float32 of 100 elements, but"),
                                  (adamant.join_masters, (weight, low, low), "master has elements of type int16"),
                                  (adamant.join_masters, (weight, master, master), "low is float32 of 100"),
                                  (adamant.join_masters, (weight, low, read_only), "master is read-only")):
        with pytest.raises(adamant.InvalidArgument, match=text):
            call(*arguments)


def test_hyperparameters_and_skipped_shards(executor):
    shards = [arrays(100, seed=s) for s in range(2)]
    optimizer = adamant.Optimizer(executor)
    group = optimizer.add_group("all", lr=0.01, weight_decay=0.5)
    for i, shard in enumerate(shards):
        optimizer.add_shard(group, f"tensor{i}", **shard)
    before = shards[1]["param"].copy()
    optimizer.step([shards[0]["grad"], None])
    assert np.array_equal(shards[1]["param"], before)
    optimizer.set_hyperparameters(group, lr=0.0)
    assert optimizer.hyperparameters_of(group).weight_decay == 0.5
    frozen = shards[0]["param"].copy()
    optimizer.step()
    assert np.array_equal(shards[0]["param"], frozen)
    optimizer.step(lr=[0.5])
    assert not np.array_equal(shards[0]["param"], frozen)


def test_errors_name_the_cause_and_change_nothing(executor):
    a = arrays(100)
    optimizer = adamant.Optimizer(executor)
    group = optimizer.add_group("all")
    with pytest.raises(adamant.InvalidArgument, match="contiguous"):
        optimizer.add_shard(group, "w", a["param"][::2], a["grad"][:50], a["exp_avg"][:50], a["exp_avg_sq"][:50])
    with pytest.raises(adamant.InvalidArgument, match="float64"):
        optimizer.add_shard(group, "w", a["param"].astype(np.float64), *[a[k] for k in ("grad", "exp_avg", "exp_avg_sq")])
    with pytest.raises(adamant.InvalidArgument, match="50 elements, but its param has 100"):
        optimizer.add_shard(group, "w", a["param"], a["grad"][:50], a["exp_avg"], a["exp_avg_sq"])
    with pytest.raises(adamant.InvalidArgument, match="overlap"):
        optimizer.add_shard(group, "w", a["param"], a["grad"], a["exp_avg"], a["exp_avg"])
    for shape, text in (((1, 68), r"68 bytes, but must have the shape \[2, 68\] for 100 elements"), ((2, 68), "quantized8")):
        # The wrong number of groups, and only one quantized moment.
        with pytest.raises(adamant.InvalidArgument, match=text):
            optimizer.add_shard(group, "w", a["param"], a["grad"], np.zeros(shape, np.uint8), a["exp_avg_sq"])
    with pytest.raises(adamant.InvalidArgument, match="grad of 'w' has elements of type uint8"):
        optimizer.add_shard(group, "w", a["param"], np.zeros(100, np.uint8), a["exp_avg"], a["exp_avg_sq"])
    with pytest.raises(adamant.InvalidArgument, match="a list, but must be"):
        optimizer.add_shard(group, "w", [1.0], a["grad"], a["exp_avg"], a["exp_avg_sq"])
    read_only = a["param"].copy()
    read_only.flags.writeable = False
    with pytest.raises(adamant.InvalidArgument, match="read-only"):
        optimizer.add_shard(group, "w", read_only, a["grad"], a["exp_avg"], a["exp_avg_sq"])
    with pytest.raises(adamant.InvalidArgument, match="on_nonfinite is 'no'"):
        adamant.Optimizer(executor, on_nonfinite="no")
    with pytest.raises(adamant.InvalidArgument, match="cannot parse instruction set"):
        adamant.Executor(isa="sse9")
    with pytest.raises(adamant.InvalidArgument, match="empty"):
        adamant.Executor(cores=[])
    with pytest.raises(ValueError):  # InvalidArgument is a ValueError
        optimizer.add_group("all")
    optimizer.add_shard(group, "w", **a)
    with pytest.raises(adamant.InvalidArgument, match="2 gradients, but 1 shard: pass one gradient"):
        optimizer.step([a["grad"], a["grad"]])
    with pytest.raises(adamant.InvalidArgument, match="dtype"):
        optimizer.step([a["grad"].astype(np.float16)])
    optimizer.close()
    with pytest.raises(adamant.InvalidArgument, match="was closed"):
        optimizer.step()


def test_reduce_gets_words_and_steps_raise_its_exception(executor):
    a = arrays(100)
    seen = []

    def double(words):
        seen.append(words.copy())
        words *= 4  # as for four ranks with the same gradients
    optimizer = adamant.Optimizer(executor, max_norm=1.0, reduce=double)
    optimizer.add_shard(optimizer.add_group("all"), "w", **a)
    report = optimizer.step()
    assert repr(report).startswith(f"Report(step={report.step}, outcome=applied, ") and "global_norm=" in repr(report)
    words = np.zeros(21, np.int64)
    adamant.add_squares(a["grad"], words, executor)
    assert np.array_equal(seen[0], words)
    assert report.global_norm == pytest.approx(2 * math.sqrt(adamant.sum_of_squares(a["grad"], executor)))

    def broken(words):
        raise KeyError("no network")
    optimizer = adamant.Optimizer(executor, max_norm=1.0, reduce=broken)
    a = arrays(100)
    optimizer.add_shard(optimizer.add_group("all"), "w", **a)
    before = a["param"].copy()
    with pytest.raises(KeyError, match="no network"):
        optimizer.step()
    assert np.array_equal(a["param"], before)


def test_a_forked_process_cannot_use_the_parents_optimizer(executor):
    a = arrays(100)
    optimizer = adamant.Optimizer(executor)
    optimizer.add_shard(optimizer.add_group("all"), "w", **a)
    optimizer.step()
    pid = os.fork()
    if pid == 0:
        try:
            optimizer.step()
        except adamant.InvalidArgument as error:
            del optimizer
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 0
    optimizer.step()


@pytest.mark.parametrize("options, text", [
    ({"loss_scaling": {"init_scale": 1024.0}}, "init_scale is no field of adamant_loss_scaling, which has initial_scale"),
    ({"loss_scaling": 1024.0}, "loss_scaling is 1024.0"), ({"max_norm": None}, "max_norm is None"),
    ({"max_norm": "1"}, "max_norm is '1'"), ({"reduce": 5}, "reduce is 5"), ({"weights_ready": 5}, "weights_ready is 5"),
    ({"executor": 5}, "executor is 5"), ({"max_norm": 10**400}, "max_norm is 1"),
    ({"on_nonfinite": ["skip"]}, "on_nonfinite is")], ids=lambda value: repr(value)[:40])
def test_arguments_that_no_optimizer_has_are_refused(executor, options, text):
    with pytest.raises(adamant.InvalidArgument, match=text):
        adamant.Optimizer(**{"executor": executor, **options})


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 0.99, 0.999), 0.9, None], ids=repr)
def test_betas_are_two_numbers(executor, betas):
    with pytest.raises(adamant.InvalidArgument, match="must be two numbers"):
        adamant.Optimizer(executor).add_group("all", betas=betas)


def test_a_learning_rate_may_be_an_array_of_one_number(executor):
    params = []
    for rate in (0.5, np.float64(0.5), np.array(0.5), np.array([0.5]), [0.5]):
        optimizer, a = adamant.Optimizer(executor), arrays(100)
        optimizer.add_shard(optimizer.add_group("all"), "w", **a)
        optimizer.step(lr=rate)
        params.append(a["param"].tobytes())
    assert len(set(params)) == 1


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 5, None, b"w"], ids=repr)
def test_names_that_c_cannot_hold_are_refused(executor, name):
    optimizer = adamant.Optimizer(executor)
    group = optimizer.add_group("all")
    with pytest.raises(adamant.InvalidArgument, match="name"):
        optimizer.add_group(name)
    with pytest.raises(adamant.InvalidArgument, match="name"):
        optimizer.add_shard(group, name, **arrays(3))


def test_a_path_is_one_of_open(executor, tmp_path):
    """Each spelling of a path names the same file in save() and load()."""
    optimizer = adamant.Optimizer(executor)
    optimizer.add_shard(optimizer.add_group("all"), "w", **arrays(100))
    optimizer.step()
    for path in (tmp_path / "a", str(tmp_path / "b"), os.fsencode(tmp_path / "c"), str(tmp_path / "\udcff")):
        optimizer.save(path)
        assert os.path.exists(path)
        optimizer.load(path)
    for call in (optimizer.save, optimizer.load):
        with pytest.raises(adamant.InvalidArgument, match="NUL"):
            call(str(tmp_path / "d\0e"))
    assert not (tmp_path / "d").exists()


def test_a_report_outlives_its_optimizer(executor):
    bound = adamant.Executor(cores=[pus_of(adamant.allowed_pus())[0]])
    optimizer, a = adamant.Optimizer(bound), arrays(100)
    optimizer.add_shard(optimizer.add_group("all"), "w", **a)
    report = optimizer.step()
    optimizer.close()
    [adamant.Optimizer(executor) for _ in range(100)]  # which take the freed memory
    assert report.pus == bound.pus.encode() != b""


def test_report_of_shards_in_two_optimizers(executor):
    reports = []
    for n in (100, 64):
        optimizer, a = adamant.Optimizer(executor, on_nonfinite="zero"), arrays(n)
        a["grad"][:3] = np.nan
        optimizer.add_shard(optimizer.add_group("all"), "w", **a)
        reports.append(optimizer.step())
    seconds = reports[0].seconds + reports[1].seconds
    finite = optimizer.step([np.zeros(64, np.float32)])
    reports[0].join(reports[1], 1, same_gradients=False)
    assert (reports[0].elements, reports[0].nonfinite_grads, reports[0].seconds) == (164, 6, seconds)
    reports[0].join(reports[1], 1, same_gradients=True)
    assert (reports[0].elements, reports[0].nonfinite_grads, reports[0].first_nonfinite_shard) == (228, 6, 0)
    finite.join(reports[1], 1, same_gradients=False)
    assert (finite.has_first_nonfinite, finite.first_nonfinite_shard, finite.first_nonfinite_index) == (1, 1, 0)


def test_select_cores_splits_the_cores():
    allowed = set(pus_of(adamant.allowed_pus()))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    split = adamant.select_cores(0.5, ranks=1, rank=0)
    adam, host = set(pus_of(split.adam)), set(pus_of(split.host))
    assert adam and host and not adam & host and adam | host <= allowed
    with pytest.raises(adamant.InvalidArgument, match="1.5"):
        adamant.select_cores(1.5, ranks=1, rank=0)


def test_cpu_quota_limits_default_threads(monkeypatch):
    quota = 0.0

    class Calls:
        @staticmethod
        def adamant_cpu_quota(cpus, source, source_bytes):
            cpus._obj.value = quota
            return 0

    monkeypatch.setattr(executor, "library", lambda: Calls)
    for variable in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for quota, ranks, threads in ((0.0, "1", 64), (5.5, "1", 5), (0.1, "1", 1), (100.0, "1", 64), (16.0, "8", 2),
                                  (2.0, "8", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert executor.threads_within_quota(64) == threads
        assert executor.default_threads("0-63") == (threads if threads < 64 else 0)
    assert executor.default_threads(None) == 0


@pytest.mark.parametrize("variable", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_numbers_of_a_launcher(monkeypatch, variable):
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for value, number in (("", None), ("-1", None), ("0", 0), ("8", 8), ("8 ", 8)):
        monkeypatch.setenv(variable, value)
        assert executor.launcher_number(variable) == number
        executor.threads_within_quota(64)
        executor.cores_of_rank()
    for value in ("x", "1.5", "2(x3)"):
        monkeypatch.setenv(variable, value)
        with pytest.raises(adamant.InvalidArgument, match=f"{variable} is .* but must be a whole number"):
            executor.threads_within_quota(64)


def test_the_shared_executor_reads_the_quota_once_for_each_rank(monkeypatch):
    read = []
    monkeypatch.setattr(executor, "_defaults", {})
    monkeypatch.setattr(executor, "default_threads", lambda cores: read.append(cores) or 1)
    for ranks in ("1", "2", "1"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert executor.shared_executor() is executor.shared_executor()
    assert len(read) == 2


@pytest.mark.parametrize("command", [["help"], ["cores"]])
def test_the_tool_runs(command):
    package = os.path.dirname(adamant.__file__)
    if not os.path.exists(os.path.join(package, "adamant")):
        pytest.skip("this is not an installed package")
    done = subprocess.run([sys.executable, "-m", "adamant", *command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
