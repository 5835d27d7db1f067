# SPDX-License-Identifier: Apache-2.0
"""adamant.step() and adamant.accumulate(): bits, refused arguments, and arrays of torch and NumPy."""
import gc
import itertools
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import adamant  # noqa: E402
from adamant import lists  # noqa: E402

from processes import words  # noqa: E402

f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
SIZES = (0, 1, 3, 64, 65, 1000, 4097, 70001)
HYPER = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def tensors(size, param=f32, grad=f32, moment=f32, seed=0):
    generator = torch.Generator().manual_seed(7 * size + seed)
    draw = lambda scale, dtype: (torch.randn(size, generator=generator) * scale).to(dtype)  # noqa: E731
    if moment == torch.uint8:
        moments = [torch.zeros(-(-size // 64), 68, dtype=torch.uint8) for _ in range(2)]
    else:
        moments = [draw(0.1, moment), draw(0.1, f32).abs().to(moment)]
    return [draw(1, param), draw(0.3, grad), *moments]


def split(size, grad):
    master, gradient, *moments = tensors(size, f32, grad)
    weight, low = torch.empty(size, dtype=bf16), torch.empty(size, dtype=torch.int16)
    adamant.split_masters(master, weight, low)
    return [low, gradient, *moments, weight]


def bits(array):
    return array.contiguous().view(torch.uint8).clone() if array.numel() else array.clone()


def copies(arrays):
    return [None if array is None else array.clone() for array in arrays]


def same(left, right):
    return all(a is None or torch.equal(bits(a), bits(b)) for a, b in zip(left, right))


def one_by_one(arrays, steps, index=None, **hyper):
    """adamant_step_shard() for each tensor, through ctypes."""
    from ctypes import byref
    from adamant._library import Shard, check, library
    scale = hyper.pop("grad_scale", 1.0)
    values = adamant.hyperparameters(**hyper)
    executor = lists.shared_executor()
    for i, (param, grad, first, second, out) in enumerate(arrays):
        shard = Shard.initialised(elements=param.numel(), rounding_stream=i)
        for name, array in zip(("param", "grad", "exp_avg", "exp_avg_sq", "weight_out"),
                               (param, grad, first, second, out)):
            if array is not None:
                role = {"param": "master", "exp_avg": "moment", "exp_avg_sq": "moment"}.get(name, "")
                info = lists.array_info(array, name, False, role)
                setattr(shard, name, info.address or None)
                setattr(shard, name + "_dtype", info.dtype)
        check(library().adamant_step_shard(executor.pointer, byref(shard), byref(values), steps[i], 1.0, scale, None))


def every_kind():
    """Arrays of every kind and size: (param, grad, exp_avg, exp_avg_sq, weight_out or None)."""
    all_arrays = []
    for param, grad, moment in itertools.product((f32, bf16, f16), (f32, bf16, f16), (f32, bf16, torch.uint8)):
        for size in SIZES:
            outs = (None, bf16, f16, f32) if param == f32 else (None,)
            for out in outs:
                weights = None if out is None else torch.zeros(size, dtype=out)
                all_arrays.append(tensors(size, param, grad, moment) + [weights])
    return all_arrays + [split(size, grad) for size in SIZES for grad in (f32, bf16)]


@pytest.mark.parametrize("more", [
    {}, {"grad_scale": 0.25}, {"decoupled": False}, {"bias_correction": False},
    {"param_rounding": "stochastic", "rounding_seed": 5}, {"exp_avg_sq_rounding": "nearest"}])
def test_bits_are_those_of_single_steps(more):
    ours = every_kind()
    theirs = [copies(arrays) for arrays in ours]
    for t in (1, 2):
        steps = [t + i % 3 for i in range(len(ours))]
        columns = list(zip(*ours))
        assert adamant.step(*columns[:4], steps, weight_outs=columns[4], **HYPER, **more) == 0
        one_by_one(theirs, steps, **HYPER, **more)
    different = [i for i, (left, right) in enumerate(zip(ours, theirs)) if not same(left, right)]
    assert different == []
    for param, *_, out in ours:
        if out is not None and out.dtype == f32:
            assert torch.equal(bits(out), bits(param))


def test_one_count_for_all_and_counts_in_tensors():
    kinds = [5, [5, 5], (5, 5), [torch.tensor(5.0), torch.tensor(5.0)], [torch.tensor(5), torch.tensor([5])],
             [np.int64(5), torch.tensor(5.0, dtype=torch.float64)], [np.array(5.0), 5]]
    results = []
    for steps in kinds:
        arrays = [tensors(100), tensors(1000)]
        adamant.step(*list(zip(*arrays))[:4], steps, **HYPER)
        results.append(arrays)
    for arrays in results:
        assert all(same(left, right) for left, right in zip(arrays, results[0]))


def test_counts_are_read_only():
    counts = [torch.tensor(3.0)]
    adamant.step(*[[array] for array in tensors(10)], counts, **HYPER)
    assert counts[0].item() == 3.0


def test_numpy_arrays_have_the_bits_of_tensors():
    ours = [tensors(size, f32, f16) for size in SIZES]
    theirs = [[array.numpy().copy() for array in arrays] for arrays in ours]
    outs = [np.zeros(size, np.float16) for size in SIZES]
    tensor_outs = [torch.zeros(size, dtype=f16) for size in SIZES]
    for t in (1, 2):
        adamant.step(*zip(*ours), t, weight_outs=tensor_outs, **HYPER)
        adamant.step(*zip(*theirs), t, weight_outs=outs, **HYPER)
    for left, right in zip(ours, theirs):
        assert same(left, [torch.from_numpy(array) for array in right])
    assert same(tensor_outs, [torch.from_numpy(array) for array in outs])


def test_params_and_shapes_of_any_kind():
    plain = tensors(6 * 7 * 5)
    shaped = [array.clone().view(6, 7, 5) for array in plain]
    shaped[0] = torch.nn.Parameter(shaped[0])
    adamant.step(*[[array] for array in plain], 1, **HYPER)
    adamant.step(*[[array] for array in shaped], 1, **HYPER)
    assert same(plain, [array.detach().view(-1) for array in shaped])


def test_infinite_gradients_are_counted_and_applied():
    arrays = [tensors(1000), tensors(50)]
    arrays[0][1][3], arrays[1][1][7:9] = float("inf"), float("nan")
    assert adamant.step(*zip(*arrays), 1, **HYPER) == 3
    assert arrays[1][0][7:9].isnan().all()


def test_an_empty_list_is_stepped():
    assert adamant.step([], [], [], [], 1) == 0
    assert adamant.step((), (), (), (), [], weight_outs=[]) == 0
    adamant.accumulate([], [])


def strided(array):
    return torch.stack([array, array], 1)[:, 0]


def released(array):
    array = torch.cat([array, array])[len(array):]
    array.untyped_storage().resize_(0)
    return array


def read_only(array):
    array = array.numpy().copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("column, change, words", [
    (0, lambda a: a.double(), r"params\[2\] has elements of type float64"),
    (1, lambda a: a.long(), r"grads\[2\] has elements of type int64"),
    (1, strided, r"grads\[2\] has shape .* must be contiguous"),
    (2, lambda a: a.half(), r"exp_avgs\[2\] has elements of type float16|exp_avg float16"),
    (2, lambda a: a[:-1], r"params\[2\] with exp_avgs\[2\]: they have 100 and 99 elements"),
    (3, lambda a: "moment", r"exp_avg_sqs\[2\] is a str, but must be a NumPy array or a torch tensor"),
    (3, lambda a: None, r"exp_avg_sqs\[2\] is a NoneType"),
    (3, lambda a: a.to_sparse(), r"exp_avg_sqs\[2\] has the layout"),
    (0, lambda a: a.to("meta"), r"params\[2\] is on meta"),
    (0, released, r"params\[2\] has no memory"),
    (0, read_only, r"params\[2\] is read-only"),
    (1, lambda a: a.numpy().astype(">f4"), r"grads\[2\] has dtype >f4"),
    (1, lambda a: np.ma.masked_array(a.numpy()), r"grads\[2\] is a masked array"),
    (2, lambda a: torch.zeros(2, 67, dtype=torch.uint8),
     r"exp_avgs\[2\] has 134 bytes, but must have the shape \[2, 68\]"),
])
def test_unusable_arrays_are_refused_by_name_and_index(column, change, words):
    arrays = [tensors(100, seed=seed) for seed in range(4)]
    columns = [list(each) for each in zip(*arrays)]
    before = [copies(each) for each in columns]
    columns[column][2] = change(columns[column][2].clone())
    with pytest.raises(adamant.InvalidArgument, match=words):
        adamant.step(*columns, 1, **HYPER)
    columns[column][2] = before[column][2]
    assert all(same(left, right) for left, right in zip(columns, before))


def test_a_negated_element_is_refused():
    arrays = tensors(1)
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    with pytest.raises(adamant.InvalidArgument, match=r"grads\[0\] is a negated view"):
        adamant.step([arrays[0]], [negated], [arrays[2]], [arrays[3]], 1)


@pytest.mark.parametrize("change, words", [
    (dict(steps=0), "item 0 of the list: .*step 0"),
    (dict(steps=[1, 0, 1]), "item 1 of the list: .*step 0"),
    (dict(steps=-1), r"steps\[0\] is -1, but must be a whole number from 1"),
    (dict(steps=[1, 1, torch.tensor(2.5)]), r"steps\[2\] is 2.5"),
    (dict(steps=[1, 1, torch.tensor(float("nan"))]), r"steps\[2\] is nan"),
    (dict(steps=[1, True, 1]), r"steps\[1\] is True"),
    (dict(steps=[1, 1, torch.ones(2)]), r"steps\[2\]"),
    (dict(steps=2.0), "cannot use 2.0 as steps: it is not a sequence"),
    (dict(steps=True), "cannot use True as steps: it is not a sequence"),
    (dict(grads=None), "cannot use None as grads: it is not a sequence"),
    (dict(steps=[1, 1]), "cannot use 2 steps with 3 params: pass one for each"),
    (dict(grads=[]), "cannot use 0 grads with 3 params"),
    (dict(weight_outs=[None]), "cannot use 1 weight_outs with 3 params"),
    (dict(weight_outs=[None, torch.zeros(100).short(), None]), r"weight_outs\[1\] has elements of type int16"),
    (dict(lr=-1), "lr is -1"),
    (dict(lr=float("nan")), "lr is nan"),
    (dict(betas=(0.9, 1.0)), "beta2 is 1"),
    (dict(grad_scale=-1), "item 0 of the list: grad_scale is -1"),
    (dict(grad_scale=float("inf")), "grad_scale is inf"),
    (dict(grad_scale=1e-50), "grad_scale is 1e-50"),
    (dict(exp_avg_sq_rounding="up"), "exp_avg_sq_rounding is 'up'"),
    (dict(rounding_seed=-1), "rounding_seed is -1"),
])
def test_invalid_values_are_refused(change, words):
    columns = [list(each) for each in zip(*[tensors(100, seed=seed) for seed in range(3)])]
    before = [copies(each) for each in columns]
    arguments = dict(zip(("params", "grads", "exp_avgs", "exp_avg_sqs"), columns), steps=1)
    with pytest.raises(adamant.InvalidArgument, match=words):
        adamant.step(**{**arguments, **change})
    assert all(same(left, right) for left, right in zip(columns, before))


def test_overlaps_are_refused_by_index():
    memory = torch.zeros(400)
    columns = [list(each) for each in zip(*[tensors(100, seed=seed) for seed in range(3)])]
    columns[0][0], columns[2][2] = memory[:100], memory[99:199]
    with pytest.raises(adamant.InvalidArgument, match="param of item 0 and exp_avg of item 2 overlap"):
        adamant.step(*columns, 1)
    columns[2][2] = memory[100:200]
    columns[1][1] = columns[1][0]  # gradients may share memory
    adamant.step(*columns, 1)
    columns[1][1] = memory[50:150]
    with pytest.raises(adamant.InvalidArgument, match="overlap"):
        adamant.step(*columns, 1)


def test_a_closed_executor_is_refused():
    executor = adamant.Executor(threads=1)
    arrays = tensors(10)
    adamant.step(*[[array] for array in arrays], 1, executor=executor)
    executor.close()
    with pytest.raises(adamant.InvalidArgument, match="it was closed"):
        adamant.step(*[[array] for array in arrays], 1, executor=executor)


def test_other_classes_of_tensors_have_the_same_bits():
    class Tensor(torch.Tensor):  # not a plain tensor, so Python reads it
        pass
    ours, theirs = tensors(1000, f32, bf16), tensors(1000, f32, bf16)
    adamant.step(*[[array] for array in ours], [torch.tensor(2.0)], **HYPER)
    adamant.step(*[[array.as_subclass(Tensor)] for array in theirs], [torch.tensor(2.0).as_subclass(Tensor)], **HYPER)
    assert same(ours, theirs)


def test_torch_without_the_exchange_api_has_the_same_bits():
    # A new process, in which the extension module never learns of torch's classes.
    code = """
import torch, adamant
from adamant import lists
lists.native()
known = type("Native", (), {"step": lists._native.step, "use_torch": lambda *given: None})()
lists._native = known
arrays = [torch.linspace(-1, 1, 1000) for _ in range(3)] + [torch.linspace(0, 1, 1000)]
adamant.step(*[[array] for array in arrays], [torch.tensor(2.0)], lr=0.1)
print(arrays[0].sum().item().hex())
"""
    expected = [torch.linspace(-1, 1, 1000) for _ in range(3)] + [torch.linspace(0, 1, 1000)]
    adamant.step(*[[array] for array in expected], 2, lr=0.1)
    assert words(code) == [expected[0].sum().item().hex()]


def test_threads_may_step_lists_concurrently():
    expected = [tensors(5000, seed=seed) for seed in range(4)]
    ours = [copies(arrays) for arrays in expected]
    for arrays in expected:
        for t in range(1, 21):
            adamant.step(*[[array] for array in arrays], t, **HYPER)

    def run(arrays):
        for t in range(1, 21):
            adamant.step(*[[array] for array in arrays], t, **HYPER)
    threads = [threading.Thread(target=run, args=(arrays,)) for arrays in ours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(left, right) for left, right in zip(ours, expected))


def test_lists_may_change_during_the_call(monkeypatch):
    class Tensor(torch.Tensor):  # Python reads it
        pass
    expected = [tensors(1000, seed=seed) for seed in range(4)]
    ours = [copies(arrays) for arrays in expected]
    adamant.step(*zip(*expected), 1, **HYPER)
    columns = [list(column) for column in zip(*ours)]
    columns[0][0] = columns[0][0].as_subclass(Tensor)

    def emptied(*given):
        for column in columns:
            column.clear()
        gc.collect()
        return array_info(*given)
    array_info = lists.array_info
    monkeypatch.setattr(lists, "array_info", emptied)
    adamant.step(*columns, 1, **HYPER)
    assert columns == [[]] * 4 and all(same(left, right) for left, right in zip(ours, expected))


# Sums

@pytest.mark.parametrize("sum_dtype, grad_dtype", list(itertools.product((f32, bf16), (f32, bf16, f16))))
def test_sums_are_those_of_torch(sum_dtype, grad_dtype):
    sums = [torch.randn(size).to(sum_dtype) for size in SIZES]
    grads = [torch.randn(size).to(grad_dtype) for size in SIZES]
    added = [(total.float() + grad.float()).to(sum_dtype) for total, grad in zip(sums, grads)]
    copied = [grad.to(sum_dtype) for grad in grads]
    ours = copies(sums)
    adamant.accumulate(ours, grads)
    assert same(ours, added)
    ours = copies(sums)
    adamant.accumulate(ours, grads, True)
    assert same(ours, copied)
    ours = [torch.full_like(total, float("nan")) if i % 2 else total.clone() for i, total in enumerate(sums)]
    adamant.accumulate(ours, grads, [bool(i % 2) for i in range(len(sums))])
    assert same(ours, [copied[i] if i % 2 else added[i] for i in range(len(sums))])


def test_sums_have_the_bits_of_an_optimizer_that_accumulates():
    special = torch.tensor([1e-40, -1e-40, float("inf"), float("nan"), -0.0, 1e38, 3e38] * 700)
    grad, total = special.to(bf16), torch.randn(4900)
    param, first, second = torch.zeros(4900), torch.zeros(4900), torch.zeros(4900)
    accumulator = torch.zeros(4900)
    optimizer = adamant.Optimizer(on_nonfinite="apply")
    optimizer.add_shard(optimizer.add_group("all"), "w", param, grad, first, second, accumulator=accumulator)
    ours = torch.randn(4900)
    optimizer.accumulate(0)
    adamant.accumulate([ours], [grad], True)
    assert same([ours], [accumulator])
    optimizer.accumulate(0)
    adamant.accumulate([ours], [grad])
    assert same([ours], [accumulator])
    assert total.numel() == 4900


def test_numpy_sums():
    sums, grads = [np.ones(100, np.float32)], [np.full(100, 0.5, np.float16)]
    adamant.accumulate(sums, grads)
    assert (sums[0] == 1.5).all()


@pytest.mark.parametrize("sums, grads, replace, words", [
    ([torch.zeros(3)], [], False, "cannot use 0 grads with 1 sums"),
    ([torch.zeros(3)], [torch.zeros(4)], False, r"sums\[0\] with grads\[0\]: they have 3 and 4 elements"),
    ([torch.zeros(3)], [torch.zeros(3)], [True, False], "cannot use 2 values of replace with 1 sums"),
    ([torch.zeros(3)], [torch.zeros(3)], 1, "cannot use 1 as values of replace: it is not a sequence"),
    ([torch.zeros(3), torch.zeros(3, dtype=f16)], [torch.zeros(3)] * 2, False, "item 1 of the list: sum_dtype is 3"),
    ([torch.zeros(3).double()], [torch.zeros(3)], False, r"sums\[0\] has elements of type float64"),
])
def test_unusable_sums_are_refused(sums, grads, replace, words):
    with pytest.raises(adamant.InvalidArgument, match=words):
        adamant.accumulate(sums, grads, replace)


def test_a_sum_that_overlaps_a_later_gradient_is_refused():
    memory = torch.ones(300)
    with pytest.raises(adamant.InvalidArgument, match="sum of item 0 and grad of item 1 overlap"):
        adamant.accumulate([memory[:100], torch.zeros(100)], [torch.ones(100), memory[50:150]])
    assert (memory == 1).all()
