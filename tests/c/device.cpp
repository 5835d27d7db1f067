// SPDX-License-Identifier: Apache-2.0
// The C interface: shards on a device, here an emulated one, and what becomes of them when it fails.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "c_test.hpp"

namespace {

device make_device(adamant_emulation_options const& o)
{
    adamant_device* made = nullptr;
    ok(adamant_emulated_device_create(&o, &made));
    return device(made);
}
device make_device()
{
    return make_device(emulation_options());
}
placement split_of(optimizer const& o, double ratio)
{
    std::size_t count = 0;
    ok(adamant_shard_count(o.get(), &count));
    std::vector<std::size_t> sizes(count);
    ok(adamant_shard_sizes(o.get(), sizes.data(), count));
    adamant_split_options s = split_options();
    s.ratio = ratio;
    adamant_placement* made = nullptr;
    ok(adamant_split(sizes.data(), count, &s, &made));
    return placement(made);
}
void place(optimizer const& o, device const& on, double ratio)
{
    ok(adamant_place(o.get(), on.get(), split_of(o, ratio).get()));
}
std::string content(std::string const& path)
{
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
adamant_optimizer_options clipping()
{
    adamant_optimizer_options p = options();
    REQUIRE((p.device_timeout_s == 300 && p.device_records == 1));
    p.max_norm = 3;
    return p;
}

// Three steps on the CPU alone.
std::uint64_t expected_digest()
{
    model m;
    optimizer const o = make_optimizer(m, clipping());
    for (std::uint64_t step = 1; step <= 3; ++step) {
        m.new_gradients(step);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    return m.digest();
}

} // namespace

TEST_CASE("C: a device has the bits of the CPU, wherever the cut")
{
    std::uint64_t const expected = expected_digest();
    folder const dir;
    for (double const ratio : {0.0, 0.3, 1.0}) {
        INFO("ratio " << ratio);
        model m;
        optimizer const o = make_optimizer(m, clipping());
        device on = make_device();
        adamant_emulation_options e = emulation_options();
        e.shares_host_memory = 1;
        std::size_t bytes = 77;
        std::size_t shared_bytes = 77;
        ok(adamant_device_bytes(o.get(), make_device(e).get(), split_of(o, ratio).get(), &shared_bytes));
        ok(adamant_device_bytes(o.get(), on.get(), split_of(o, ratio).get(), &bytes));
        std::size_t total = 0;
        std::size_t before = 0;
        std::size_t left = 0;
        char const* name = nullptr;
        ok(adamant_device_describe(on.get(), &name, &total, &before));
        CHECK((name == std::string("emulated device") && total == std::size_t{1} << 40 && before == total));
        place(o, on, ratio);
        ok(adamant_device_describe(on.get(), nullptr, nullptr, &left));
        CHECK((before - left >= bytes && before - left < bytes + 1024)); // each allocation is rounded up
        CHECK((bytes == 0) == (ratio == 1.0));
        CHECK((ratio == 1.0 ? shared_bytes == 0 : shared_bytes < bytes)); // records only
        on.reset();                                                       // the optimizer keeps it
        adamant_report r = report();
        for (std::uint64_t step = 1; step <= 3; ++step) {
            m.new_gradients(step);
            ok(adamant_begin_step(o.get(), nullptr));
            for (std::size_t i = m.tensors.size(); i-- > 0;)
                ok(adamant_submit(o.get(), i));
            ok(adamant_finish(o.get(), &r));
        }
        std::size_t const elements = 9000 + 4096 + 1 + 5000;
        CHECK(r.elements == elements);
        CHECK(r.ratio == 1 - static_cast<double>(r.device_elements) / static_cast<double>(elements));
        CHECK(std::fabs(r.ratio - ratio) < 0.2);
        CHECK((ratio == 1.0) == (r.device_elements == 0));
        CHECK((r.device_work_bytes > 0) == (ratio < 1));
        CHECK((r.device_up_bytes > 0) == (ratio < 1));
        CHECK((r.device_down_bytes > 0) == (ratio < 1));
        CHECK((r.device_work_seconds > 0) == (ratio < 1));
        CHECK((r.device_up_seconds > 0) == (ratio < 1));
        CHECK((r.device_down_seconds > 0) == (ratio < 1));
        CHECK((r.cpu_busy_seconds > 0) == (ratio > 0));
        // Its part is at home when the state is looked at.
        CHECK((m.digest() == expected) == (ratio == 1));
        ok(adamant_update_host_arrays(o.get()));
        CHECK(m.digest() == expected);
        std::string const there = dir.file("device");
        ok(adamant_save_safetensors(o.get(), there.c_str()));
        ok(adamant_place(o.get(), nullptr, nullptr));
        CHECK(m.digest() == expected);
        std::string const home = dir.file("home");
        ok(adamant_save_safetensors(o.get(), home.c_str()));
        CHECK(content(there) == content(home));
    }
}

TEST_CASE("C: gradients and weights in a device's own memory")
{
    std::uint64_t const expected = expected_digest();
    model m;
    optimizer const o = make_optimizer(m, clipping());
    device const on = make_device();
    std::vector<std::uint64_t> grads;
    std::vector<std::uint64_t> weights;
    for (std::size_t i = 0; i < m.tensors.size(); ++i) {
        std::size_t const n = m.tensors[i].param.size();
        ok(adamant_device_allocate(on.get(), n * 4, &grads.emplace_back()));
        ok(adamant_device_allocate(on.get(), n * 2, &weights.emplace_back()));
        CHECK((grads[i] % 256 == 0 && grads[i] != 0));
        refused(adamant_set_device_arrays(o.get(), i, grads[i] + 8, weights[i]), "multiple of 16 bytes");
        refused(adamant_set_device_arrays(o.get(), i, grads[i], 0), "needs two arrays");
        ok(adamant_set_device_arrays(o.get(), i, grads[i], weights[i]));
    }
    refused(adamant_set_device_arrays(o.get(), 4, grads[0], weights[0]), "no shard 4");
    place(o, on, 0.4);
    refused(adamant_set_device_arrays(o.get(), 0, 0, 0),
            "cannot call adamant_set_device_arrays() after adamant_place(). Call adamant_place() "
            "without a device first.");
    for (std::uint64_t step = 1; step <= 3; ++step) {
        m.new_gradients(step);
        for (std::size_t i = 0; i < m.tensors.size(); ++i) {
            ok(adamant_device_copy_up(on.get(), grads[i], m.tensors[i].grad.data(), m.tensors[i].grad.size() * 4));
            std::fill(m.tensors[i].grad.begin(), m.tensors[i].grad.end(), 0.0f);
        }
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
        ok(adamant_device_copy_down(on.get(), m.tensors[i].weight_out.data(), weights[i],
                                    m.tensors[i].weight_out.size() * 2));
    ok(adamant_update_host_arrays(o.get()));
    CHECK(m.digest() == expected);
    ok(adamant_place(o.get(), nullptr, nullptr));
    CHECK(m.digest() == expected);
    ok(adamant_set_device_arrays(o.get(), 0, 0, 0));
    std::size_t left = 0;
    std::size_t total = 0;
    for (std::uint64_t const address : grads)
        ok(adamant_device_release(on.get(), address));
    for (std::uint64_t const address : weights)
        ok(adamant_device_release(on.get(), address));
    ok(adamant_device_release(on.get(), 0));
    ok(adamant_device_describe(on.get(), nullptr, &total, &left));
    CHECK(left == total);
    std::uint64_t none = 7;
    ok(adamant_device_allocate(on.get(), 0, &none));
    CHECK(none == 0);
    ok(adamant_device_copy_up(on.get(), 0, nullptr, 0));
    ok(adamant_device_copy_down(on.get(), nullptr, 0, 0));
}

TEST_CASE("C: a device that fails, or stops answering, takes the step back")
{
    std::uint64_t const expected = expected_digest();
    for (adamant_device_operation const operation :
         {ADAMANT_DEVICE_COPY_UP, ADAMANT_DEVICE_COPY_DOWN, ADAMANT_DEVICE_WORK}) {
        INFO("operation " << operation);
        model m;
        adamant_optimizer_options p = clipping();
        p.device_timeout_s = 0.1;
        device const on = make_device();
        optimizer const o = make_optimizer(m, p);
        place(o, on, 0.4);
        for (std::uint64_t step = 1; step <= 3; ++step) {
            m.new_gradients(step);
            ok(adamant_update_host_arrays(o.get()));
            std::uint64_t const before = m.digest();
            ok(adamant_emulated_device_fail(on.get(), operation, 0));
            fails(adamant_step(o.get(), nullptr, nullptr), ADAMANT_DEVICE_FAILED, "emulated device");
            std::vector<void const*> grads;
            for (model::tensor const& t : m.tensors)
                grads.push_back(t.grad.data());
            grads.back() = nullptr;
            ok(adamant_emulated_device_fail(on.get(), operation, 0));
            fails(adamant_step_gradients(o.get(), grads.data(), grads.size(), nullptr, nullptr), ADAMANT_DEVICE_FAILED,
                  "emulated device failed at");
            ok(adamant_emulated_device_hang(on.get(), operation, 0));
            fails(adamant_step(o.get(), nullptr, nullptr), ADAMANT_DEVICE_FAILED, "raise device_timeout_s");
            ok(adamant_emulated_device_resume(on.get()));
            ok(adamant_update_host_arrays(o.get()));
            CHECK(m.digest() == before);
            CHECK(steps_of(o) == step - 1);
            ok(adamant_step(o.get(), nullptr, nullptr));
        }
        ok(adamant_place(o.get(), nullptr, nullptr));
        CHECK(m.digest() == expected);
        // Copies of the caller's, too, and the device goes on after them.
        float value = 3;
        std::uint64_t address = 0;
        ok(adamant_device_allocate(on.get(), 4, &address));
        ok(adamant_device_copy_up(on.get(), address, &value, 4));
        if (operation == ADAMANT_DEVICE_WORK)
            continue;
        ok(adamant_emulated_device_fail(on.get(), operation, 0));
        fails(operation == ADAMANT_DEVICE_COPY_UP ? adamant_device_copy_up(on.get(), address, &value, 4)
                                                  : adamant_device_copy_down(on.get(), &value, address, 4),
              ADAMANT_DEVICE_FAILED, "emulated device");
        value = 0;
        ok(adamant_device_copy_down(on.get(), &value, address, 4));
        CHECK(value == 3);
    }
    device const on = make_device();
    std::uint64_t address = 7;
    ok(adamant_emulated_device_fail(on.get(), ADAMANT_DEVICE_ALLOCATE, 0));
    fails(adamant_device_allocate(on.get(), 4, &address), ADAMANT_DEVICE_FAILED, "allocate");
    CHECK(address == 7);
}

TEST_CASE("C: devices and placements that cannot be")
{
    adamant_emulation_options e = emulation_options();
    REQUIRE((e.name == nullptr && e.memory_bytes == std::size_t{1} << 40 && std::isinf(e.work_bytes_per_s) &&
             std::isinf(e.up_bytes_per_s) && std::isinf(e.down_bytes_per_s) && e.latency_s == 0 &&
             e.shares_host_memory == 0));
    adamant_device* made = nullptr;
    e.up_bytes_per_s = 0;
    refused(adamant_emulated_device_create(&e, &made), "must be above 0");
    e = emulation_options();
    e.latency_s = -1;
    refused(adamant_emulated_device_create(&e, &made), "latency");
    REQUIRE(made == nullptr);
    ok(adamant_emulated_device_create(nullptr, &made));
    adamant_device_free(made);

    model m;
    optimizer const o = make_optimizer(m);
    std::uint64_t const before = m.digest();
    e = emulation_options();
    e.name = "a small one";
    e.memory_bytes = 100'000;
    device const on = make_device(e);
    char const* name = nullptr;
    ok(adamant_device_describe(on.get(), &name, nullptr, nullptr));
    CHECK(name == std::string("a small one"));
    fails(adamant_place(o.get(), on.get(), split_of(o, 0).get()), ADAMANT_UNAVAILABLE, "bytes on a small one: only");
    std::uint64_t address = 7;
    fails(adamant_device_allocate(on.get(), 100'001, &address), ADAMANT_UNAVAILABLE, "100001 bytes");
    adamant_placement* other = nullptr;
    adamant_piece const piece = {0, 0, 4096, 1};
    ok(adamant_placement_create(&piece, 1, &other));
    placement const owned(other);
    refused(adamant_place(o.get(), on.get(), other), "Call adamant_split()");
    std::size_t bytes = 7;
    refused(adamant_device_bytes(o.get(), on.get(), other, &bytes), "adamant_split()");
    refused(adamant_device_bytes(o.get(), on.get(), split_of(o, 0.5).get(), nullptr), "bytes is a null");
    refused(adamant_place(o.get(), nullptr, other), "device is a null");
    refused(adamant_place(o.get(), on.get(), nullptr), "placement is a null");
    std::size_t sizes[4] = {};
    refused(adamant_shard_sizes(o.get(), sizes, 3), "count is 3, but the optimizer has 4 shards");
    for (std::int32_t const wrong : {-1, 4}) {
        refused(adamant_emulated_device_fail(on.get(), wrong, 0), "operation is " + std::to_string(wrong));
        refused(adamant_emulated_device_hang(on.get(), wrong, 0), "operation is " + std::to_string(wrong));
    }
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_place(o.get(), nullptr, nullptr), "cannot call adamant_place(): a step is in progress");
    refused(adamant_update_host_arrays(o.get()), "cannot call adamant_update_host_arrays(): a step is in progress");
    ok(adamant_abandon(o.get()));
    ok(adamant_place(o.get(), nullptr, nullptr)); // nothing to roll back
    ok(adamant_update_host_arrays(o.get()));
    CHECK((m.digest() == before && address == 7 && bytes == 7));

    // One optimizer at a time, and no way back without records.
    device const shared = make_device();
    model n;
    place(o, shared, 0.5);
    refused(adamant_place(make_optimizer(n).get(), shared.get(), split_of(o, 0.5).get()), "emulated device");
    adamant_optimizer_options p = options();
    p.keep_last_step = 1;
    p.device_records = 0;
    model k;
    optimizer const keeps = make_optimizer(k, p);
    device const third = make_device();
    refused(adamant_place(keeps.get(), third.get(), split_of(keeps, 0.5).get()),
            "cannot place shards on a device: keep_last_step requires records on the device. Set device_records in "
            "the options.");

    // A GPU, if there is one, or why not.
    adamant_device* gpu = nullptr;
    adamant_status const status = adamant_cuda_device_create(0, &gpu);
    if (status == ADAMANT_OK) {
        device const owned_gpu(gpu);
        ok(adamant_device_describe(gpu, &name, nullptr, nullptr));
        CHECK(std::string(name).find("cuda:0") != std::string::npos);
        refused(adamant_emulated_device_resume(gpu), "only an emulated device can");
    } else {
        fails(status, ADAMANT_UNAVAILABLE, "CUDA device");
        CHECK(gpu == nullptr);
    }
    int event = 0;
    CHECK(adamant_cuda_device_wait_event(on.get(), &event) != ADAMANT_OK);
}
