# SPDX-License-Identifier: Apache-2.0
"""adamant.deepspeed: bits, rollback, installation in processes, and training with DeepSpeed."""
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

# This process runs without DeepSpeed. Other processes test it with DeepSpeed.
import adamant  # noqa: E402
from adamant import deepspeed as op  # noqa: E402
from adamant._library import Error  # noqa: E402

import deepspeed_suite  # noqa: E402
from optimizer_modes import alive, storage_refs  # noqa: E402

f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
# Dtypes of params and moments: those of DeepSpeed's op, and float32 params with bfloat16 moments.
pairs = [(f32, f32), (bf16, f32), (bf16, bf16), (f16, f32), (f16, f16), (f32, bf16)]
hyper = dict(lr=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, bias_correction=True)


def tensors(param=f32, moment=f32, grad=None, size=10007, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(size).to(param), torch.randn(size).to(grad or param),
            (torch.randn(size) * 0.1).to(moment), (torch.rand(size) * 0.1).to(moment)]


def bits(tensor):
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16).clone()


def all_bits(arrays):
    return [bits(array) for array in (arrays[0], arrays[2], arrays[3])]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right))


@pytest.fixture(autouse=True)
def adam():
    op.create_adam(1, adamw_mode=True)
    op.create_adam(2, adamw_mode=False)
    yield
    op.destroy_adam(1)
    op.destroy_adam(2)


def update(number, step, arrays, **more):
    assert op.adam_update(number, step, *{**hyper, **more}.values(), *arrays) == 0


def rollback(number, step, arrays):
    assert op.adam_rollback(number, step, *hyper.values(), *arrays) == 0


@pytest.mark.parametrize("number, decoupled", [(1, True), (2, False)])
@pytest.mark.parametrize("grad", [f32, bf16, f16])
@pytest.mark.parametrize("param, moment", pairs)
@pytest.mark.parametrize("records", ["0", "1"])
def test_bits_of_optimizer(param, moment, grad, number, decoupled, records, monkeypatch):
    monkeypatch.setenv("ADAMANT_DEEPSPEED_ROLLBACK", records)
    ours, theirs = tensors(param, moment, grad), tensors(param, moment, grad)
    narrow = moment == f16  # not supported by the library: updated in float32, rounded after each step
    shard = theirs[:2] + [array.float() for array in theirs[2:]] if narrow else theirs
    optimizer = adamant.Optimizer(on_nonfinite="apply")
    optimizer.add_shard(optimizer.add_group("all", lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, decoupled=decoupled,
                                            exp_avg_sq_rounding="nearest"),
                        "params", *shard)
    for step in (3, 4, 4, 9):
        update(number, step, ours)
        optimizer.steps = step - 1
        optimizer.step()
        if narrow:
            for place, array in zip(theirs[2:], shard[2:]):
                place.copy_(array)
                array.copy_(place)
        assert same(all_bits(ours), all_bits(theirs))


def test_float16_moments_in_several_chunks(monkeypatch):
    whole, parts = tensors(f16, f16), tensors(f16, f16)
    update(1, 1, whole)
    monkeypatch.setattr(adamant._deepspeed_adam, "_float16_chunk", 999)
    update(1, 1, parts)
    assert same(all_bits(whole), all_bits(parts))


@pytest.mark.parametrize("number, kind", [(1, torch.optim.AdamW), (2, torch.optim.Adam)])
@pytest.mark.parametrize("correction", [True, False])
def test_torch_within_rounding(number, kind, correction):
    arrays = tensors()
    arrays[2].zero_(), arrays[3].zero_()
    reference = torch.nn.Parameter(arrays[0].double())
    optimizer = kind([reference], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, 8):
        torch.manual_seed(step)
        arrays[1].normal_()
        if not correction:
            before = [array.double() for array in arrays]
        reference.grad = arrays[1].double()
        optimizer.step()
        update(number, step, arrays, bias_correction=correction)
        if correction:
            torch.testing.assert_close(arrays[0].double(), reference.detach(), rtol=1e-5, atol=1e-6)
            continue
        param, grad, first, second = before
        grad = grad if number == 1 else grad + 0.1 * param
        first, second = 0.9 * first + 0.1 * grad, 0.95 * second + 0.05 * grad * grad
        expected = param * (1 - 1e-2 * 0.1 if number == 1 else 1) - 1e-2 * first / (second.sqrt() + 1e-8)
        torch.testing.assert_close(arrays[0].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("param, moment", pairs)
@pytest.mark.parametrize("grad", [f32, bf16, f16])
@pytest.mark.parametrize("poison", [False, True])
def test_rollback_restores_every_bit(param, moment, grad, poison):
    size = 300007  # large tensors keep one record
    arrays = tensors(param, moment, grad, size)
    groups = [tensors(param, moment, grad, size, seed) for seed in (1, 2)]
    update(1, 4, arrays)
    if poison:
        arrays[1][::7] = float("inf")
        arrays[1][3::1001] = float("nan")
    before = all_bits(arrays)
    update(1, 5, arrays)
    after = all_bits(arrays)
    others = []
    for group in groups:  # sub-groups repeat the step number
        update(1, 5, group)
        others.append(all_bits(group))
    arrays[1] = arrays[1].clone()  # a worker copies gradients to its buffer again
    rollback(1, 5, arrays)
    assert same(all_bits(arrays), before) and not same(before, after)
    assert all(same(all_bits(group), known) for group, known in zip(groups, others))
    update(1, 5, arrays)
    assert same(all_bits(arrays), after)
    rollback(1, 5, arrays)
    assert same(all_bits(arrays), before)


@pytest.mark.parametrize("step, said", [(0, "step is 0, but must be a whole number from 1"), (-1, "step is -1"),
                                        (2.0, "step is 2.0")])
def test_an_invalid_step_number_is_named(step, said):
    arrays = [torch.ones(5), torch.ones(5), torch.zeros(5), torch.zeros(5)]
    with pytest.raises(adamant.InvalidArgument, match=said):
        op.adam_update(1, step, *hyper.values(), *arrays)
    assert torch.equal(arrays[0], torch.ones(5))


def test_small_tensors_keep_several_records():
    arrays = tensors()
    states = []
    for step in range(1, 6):
        states.append(all_bits(arrays))
        update(1, step, arrays)
    for step in range(5, 0, -1):
        rollback(1, step, arrays)
        assert same(all_bits(arrays), states[step - 1])
    with pytest.raises(Error, match="records are of steps"):
        rollback(1, 0, arrays)


@pytest.mark.parametrize("param, moment", pairs)
def test_records_keep_no_gradient(param, moment):
    arrays, gradients = tensors(param, moment), []
    for step in (1, 2, 3):
        arrays[1] = arrays[1].clone()
        gradients += storage_refs([arrays[1]])
        update(1, step, arrays)
    arrays[1] = arrays[1].clone()
    gradients += storage_refs([arrays[1]])
    rollback(1, 3, arrays)
    del arrays[1]
    assert alive(gradients) == 0


def test_a_refused_rollback_of_moved_params_changes_nothing():
    arrays = tensors(size=100003)
    update(1, 1, arrays)
    old = arrays[0]
    arrays[0] = old.clone()
    old.zero_()
    arrays[1][5] += 1  # not the gradient of the update
    before = all_bits(arrays)
    with pytest.raises(Error):
        rollback(1, 1, arrays)
    assert same(all_bits(arrays), before) and not old.any()


@pytest.mark.parametrize("text,words", [
    (b"{", "line 1 column 2"), (b'{"a": 1, "a": 2}', "a appears twice"), (b'{"a": NaN}', "NaN is no number"),
    (b'{"a": -Infinity}', "-Infinity is no number"), (b"[]", "no JSON object"), (b"\xff", "utf-8"),
    (b"[" * 100000, "recursion"), (b'{"zero_optimization": {"stage": 2, "stage": 3}}', "stage appears twice"),
    (b'{"zero_optimization": 3}', "zero_optimization")])
def test_configure_reads_files_as_strictly_as_the_library(text, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(adamant.InvalidArgument, match=words):
        op.configure(path)


def test_configure_reads_files_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"train_batch_size": "auto", "zero_optimization": {"offload_optimizer": {}}}')
    op.configure(path)


def test_another_library_is_refused_by_name():
    done = subprocess.run([sys.executable, "-c", "import adamant; adamant.library()"], capture_output=True, text=True,
                          env={**os.environ, "ADAMANT_C_LIBRARY": "libc.so.6"})
    assert "Unavailable: cannot use libc.so.6: it is another library than libadamant_c" in done.stderr


def test_an_older_library_is_refused_by_the_missing_function(monkeypatch):
    from adamant import _library
    monkeypatch.setattr(_library, "_loaded", None)
    monkeypatch.setitem(_library._functions, "adamant_later_function", [])
    with pytest.raises(adamant.Unavailable, match=r"older libadamant_c, without adamant_later_function\(\)"):
        adamant.library()


def test_rollback_of_moved_params():
    arrays = tensors(size=100003)
    before = all_bits(arrays)
    update(1, 1, arrays)
    old = arrays[0]
    arrays[0] = old.clone()
    old.zero_()
    rollback(1, 1, arrays)
    assert same(all_bits(arrays), before)


@pytest.mark.parametrize("what", ["no record", "off", "gradients", "step", "too deep"])
def test_rollback_refused(what, monkeypatch):
    if what == "off":
        monkeypatch.setenv("ADAMANT_DEEPSPEED_ROLLBACK", "0")
    arrays = tensors(size=100003)
    if what != "no record":
        update(1, 1, arrays)
    if what == "too deep":
        update(1, 2, arrays)
        rollback(1, 2, arrays)
    if what == "gradients":
        arrays[1][5] += 1
    before = all_bits(arrays)
    with pytest.raises(Error):
        rollback(1, 2 if what == "step" else 1, arrays)
    assert same(all_bits(arrays), before)


@pytest.mark.parametrize("change, text", [
    (lambda a: a[:1] + [a[1][:-1]] + a[2:], "elements"),
    (lambda a: [a[0].double()] + a[1:], "float64"),
    (lambda a: [a[0].view(-1, 3).t()] + a[1:], "contiguous"),
    (lambda a: a[:3] + [a[3].half()[:-1]], "elements"),
])
def test_tensors_refused(change, text):
    arrays = tensors(size=999)
    before = all_bits(arrays)
    with pytest.raises(Error, match=text):
        update(1, 1, change(arrays))
    with pytest.raises(Error, match="create_adam"):
        update(77, 1, arrays)
    assert same(all_bits(arrays), before)


def test_strided_gradients():
    arrays, other = tensors(size=1000), tensors(size=1000)
    arrays[1] = torch.stack([arrays[1], arrays[1]], 1)[:, 0]
    update(1, 1, arrays)
    update(1, 1, other)
    assert same(all_bits(arrays), all_bits(other))


def test_forked_process():
    arrays = tensors()
    update(1, 1, arrays)
    shared = torch.zeros(arrays[0].numel()).share_memory_()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(Error, match="no record"):
                rollback(1, 1, arrays)
            update(1, 2, arrays)
            shared.copy_(arrays[0])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    update(1, 2, arrays)
    assert same([bits(arrays[0])], [bits(shared)])


# ZenFlow's worker, without DeepSpeed

def zenflow_worker(arrays, control, ready):
    import adamant.deepspeed as worker
    worker.create_adam(0, adamw_mode=True)
    handle = worker.zenflow_adam_create(0, [])
    for param, grads, firsts, seconds, stale in arrays:
        worker.zenflow_adam_register_group(handle, param, *grads, *firsts, *seconds, stale)
    ready.set()
    worker.zenflow_adam_run_worker(handle, control.data_ptr())
    worker.zenflow_adam_destroy(handle)


def test_zenflow_worker():
    context = torch.multiprocessing.get_context("spawn")
    groups, mirrors = [], []
    for seed, (param, moment) in enumerate([(f32, f32), (bf16, bf16)]):
        sets = [[tensor.share_memory_() for tensor in tensors(param, moment, seed=10 * seed + i)] for i in (0, 1)]
        stale = torch.zeros_like(sets[0][0]).share_memory_()
        groups.append((sets[0][0], *[[one[i] for one in sets] for i in (1, 2, 3)], stale))
        mirrors.append([sets[0][0].clone(), [[tensor.clone() for tensor in one[1:]] for one in sets]])
    control = torch.zeros(op.zenflow_adam_ctrl_size(), dtype=torch.uint8).share_memory_()
    op.zenflow_adam_ctrl_init(control.data_ptr(), len(groups))
    ready = context.Event()
    process = context.Process(target=zenflow_worker, args=(groups, control, ready), daemon=True)
    process.start()
    assert ready.wait(120)
    assert op.zenflow_adam_wait(control.data_ptr(), 0.02) is False
    for step in range(1, 5):
        lists = [[hyper[name]] * 2 for name in ("lr", "beta1", "beta2", "epsilon", "weight_decay")]
        op.zenflow_adam_submit(control.data_ptr(), step % 2, step, *lists, [1, 1])
        assert op.zenflow_adam_wait(control.data_ptr(), 60)
        for group, (param, sets) in zip(groups, mirrors):
            update(1, step, [param, *sets[step % 2]])
            assert same([bits(group[0]), bits(group[4])], [bits(param)] * 2)
            assert same([bits(group[i][step % 2]) for i in (2, 3)], [bits(one) for one in sets[step % 2][1:]])
    op.zenflow_adam_ctrl_exit(control.data_ptr())
    process.join(30)
    assert process.exitcode == 0


def test_an_import_after_deepspeeds_own_op_warns(monkeypatch, recwarn):
    op.install()
    assert not recwarn
    builder = types.ModuleType("builder")
    builder.OpBuilder = type("OpBuilder", (), {"_loaded_ops": {"cpu_adam": object()}})
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.builder", builder)
    monkeypatch.setenv("ADAMANT_DEEPSPEED", "1")
    with pytest.warns(RuntimeWarning, match="optimizers that exist: DeepSpeed has loaded its own op"):
        op.install()


# DeepSpeed

@pytest.fixture
def environment(tmp_path):
    pytest.importorskip("deepspeed")
    return deepspeed_suite.environment(tmp_path)


def python(text, env, folder, *arguments):
    script = Path(folder) / "script.py"
    script.write_text(text)
    run = subprocess.run([sys.executable, *arguments, str(script)], env=env, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if line.startswith("> ")]


loaded = "print('>', CPUAdamBuilder().load().__name__)\n"


@pytest.mark.parametrize("first", ["adamant", "deepspeed", "neither"])
def test_import_order(first, environment, tmp_path):
    if first != "neither":
        environment.pop("ADAMANT_DEEPSPEED")
    lines = ["from deepspeed.ops.op_builder import CPUAdamBuilder\n", "import adamant.deepspeed\n"]
    if first == "adamant":
        lines.reverse()
    text = "".join(lines if first != "neither" else lines[:1])
    assert python(text + loaded, environment, tmp_path) == ["> adamant.deepspeed"]


spawned = """
import multiprocessing, sys
def child():
    from deepspeed.ops.op_builder import CPUAdamBuilder
    print('>', CPUAdamBuilder().load().__name__, flush=True)
if __name__ == "__main__":
    %s
    process = multiprocessing.get_context(%r).Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_worker_spawn_child_processes(how, environment, tmp_path):
    environment.pop("ADAMANT_DEEPSPEED")
    text = spawned % ("import adamant.deepspeed", how)
    assert python(text, environment, tmp_path) == ["> adamant.deepspeed"]


def test_other_processes_import_nothing(environment, tmp_path):
    text = "import sys; print('>', 'adamant' in sys.modules)"
    assert python(text, environment, tmp_path) == ["> True"]
    for value in (None, "0"):
        environment.pop("ADAMANT_DEEPSPEED", None)
        environment.update({} if value is None else {"ADAMANT_DEEPSPEED": value})
        assert python(text, environment, tmp_path) == ["> False"]


superoffload = """
import torch, sys, time
from deepspeed.runtime.superoffload.superoffload_utils import SuperOffloadCPUOptimizer
if __name__ == "__main__":
    group = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, amsgrad=False)
    worker = SuperOffloadCPUOptimizer([group], cpuadam_cores_perc=0.5, max_grad_numel=200003, pin_memory=False)
    torch.manual_seed(0)
    params = [torch.randn(200003), torch.randn(150001)]
    grads = [torch.randn_like(param) for param in params]
    def task(i, **more):
        worker.async_step(0, i, params[i], grads[i], **more)
        while True:
            result = worker.get_result()
            if result is not None:
                params[i].copy_(result["updated_param"])
                return
            time.sleep(0.001)
    for step in range(3):
        grads[0][::1000] = float("nan") if step == 1 else 1.0
        before = [param.clone() for param in params]
        for i in (0, 1):
            task(i)
        after = [param.clone() for param in params]
    for i in (0, 1):
        task(i, rollback=True)
    print(">", all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(params, before)))
    for i in (0, 1):
        task(i)
    print(">", all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(params, after)))
    worker.close()
"""


def test_superoffload_worker(environment, tmp_path):
    assert python(superoffload, environment, tmp_path) == ["> True", "> True"]


def test_step_keeps_no_records(environment, tmp_path):
    text = """
import torch, adamant.deepspeed as op
from deepspeed.ops.adam import DeepSpeedCPUAdam
param = torch.nn.Parameter(torch.randn(100))
param.grad = torch.randn(100)
optimizer = DeepSpeedCPUAdam([param])
optimizer.step()
print(">", len(op.adams[optimizer.opt_id].records))
optimizer.step_subgroup(0)
print(">", len(op.adams[optimizer.opt_id].records))
"""
    assert python(text, environment, tmp_path) == ["> 0", "> 1"]


def test_configure(monkeypatch, tmp_path):
    monkeypatch.setattr(op, "_configured", None)
    block = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "cpuadam_cores_perc": 0.5,
                                                                     "ratio": 0.7}}, "train_batch_size": "auto"}
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    split = op.configure(block)
    assert split.adam and split.host
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(block))
    assert op.configure(path) == split
    update(1, 1, tensors())
    assert op.adams[1].executor.threads == len(adamant.executor.pus_of(split.adam))
    block["zero_optimization"]["offload_optimizer"]["cpuadam_cores_perc"] = 1.5
    with pytest.raises(Error, match="cpuadam_cores_perc"):
        op.configure(block)


def train(env, folder, *arguments, ranks=2):
    env = {**env, "LOSSES": str(folder / "losses"), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("deepspeed_train.py")
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                          str(script), *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=600)
    assert run.returncode == 0, run.stdout
    return [json.loads((folder / f"losses.{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("stage", ["1", "2", "3"])
@pytest.mark.parametrize("kind, tolerance", [("fp32", 1e-5), ("bf16", 0.02)])
def test_training(stage, kind, tolerance, environment, tmp_path):
    ours = train(environment, tmp_path, stage, kind)
    theirs = train({**environment, "ADAMANT_DEEPSPEED": "0"}, tmp_path, stage, kind)
    for left, right in zip(ours, theirs):
        assert (left["op"], right["op"]) == ("adamant.deepspeed", "cpu_adam")
        worst = max(abs(a - b) / abs(b) for a, b in zip(left["losses"], right["losses"]))
        print(f"stage {stage}, {kind}: losses {left['losses'][0]:.6f} to {left['losses'][-1]:.6f}, "
              f"largest relative difference {worst:.1e}")
        assert left["losses"][-1] < 0.5 * left["losses"][0]
        assert worst <= tolerance


def test_cores_from_the_json(environment, tmp_path):
    cores = len(adamant.executor.pus_of(adamant.select_cores(0.5, ranks=1).adam))
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    result = train(environment, tmp_path, "3", "fp32", "0.5", ranks=1)[0]
    assert [f" {cores} thread" in one for one in result["executors"]] == [True]
