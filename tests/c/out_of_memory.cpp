// SPDX-License-Identifier: Apache-2.0
// The C interface where memory ends, at any allocation of any call.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "c_test.hpp"
#include "failing_calls.hpp"

// A whole life of an optimizer, in which the allocation number `n` of each call fails once and the call is made again:
// each failure says what it is and changes nothing, so the bits are the same. Returns how many calls failed.
static std::size_t live_with_failures(long n, folder const& dir, std::uint64_t& digest)
{
    std::size_t failed = 0;
    int call_number = 0;
    auto const with_failure = [&](auto const& call) { failed += make_twice(call, n, ++call_number); };
    // nlohmann-json's destructor allocates and ends the process where it cannot; it is late in these calls.
    auto const with_early_failure = [&](auto const& call) {
        if (n < 80)
            with_failure(call);
        else
            ok(call());
    };
    model m;
    adamant_executor_options eo = executor_options();
    eo.threads = 2;
    eo.pus = "0";
    eo.bind = ADAMANT_BIND_NONE;
    adamant_executor* made_executor = nullptr;
    with_failure([&] {
        REQUIRE(made_executor == nullptr);
        return adamant_executor_create(&eo, &made_executor);
    });
    executor const cpu(made_executor);
    adamant_loss_scaling const ls = scaling();
    adamant_optimizer_options oo = options();
    oo.loss_scaling = &ls;
    oo.max_norm = 1;
    oo.keep_last_step = 1;
    std::int32_t reduce_status = 0;
    oo.reduce = [](void* user, std::int64_t*, std::size_t) { return *static_cast<std::int32_t*>(user); };
    oo.reduce_user = &reduce_status;
    adamant_optimizer* made = nullptr;
    with_failure([&] {
        REQUIRE(made == nullptr);
        return adamant_optimizer_create(cpu.get(), &oo, &made);
    });
    optimizer const o(made);
    adamant_hyperparameters const h = hyperparameters();
    with_failure([&] {
        return adamant_add_group(made, "a group with a name that is longer than a few letters", &h, 0, nullptr);
    });
    for (std::size_t i = 0; i < m.tensors.size(); ++i) {
        adamant_shard s = m.describe(i);
        std::size_t const shape[] = {s.elements, 1, 1};
        s.shape = shape;
        s.dims = 3;
        std::string const name = "a tensor with a name that is longer than a few letters: " + std::to_string(i);
        std::size_t number = 99;
        with_failure([&] { return adamant_add_shard(made, 0, name.c_str(), &s, &number); });
        REQUIRE(number == i);
    }
    std::size_t number = 99;
    std::int32_t is_found = 0;
    with_failure([&] { return adamant_find_group(made, "a group", &number, &is_found); });
    with_failure([&] { return adamant_find_shard(made, "a tensor", 0, &number, &is_found); });
    with_failure([&] { return adamant_add_group(made, "one that goes again", &h, 0, nullptr); });
    with_failure([&] { return adamant_remove_group(made, 1); });
    auto const shard_of = [](float* arrays) { // one element of param, grad, exp_avg and exp_avg_sq each
        return shard(1, arrays, arrays + 1, arrays + 2, arrays + 3);
    };
    float arrays[4] = {};
    adamant_shard const removed = shard_of(arrays);
    with_failure([&] { return adamant_add_shard(made, 0, "one that goes again", &removed, nullptr); });
    with_failure([&] { return adamant_remove_shard(made, 4); });
    with_failure([&] { return adamant_set_gradient(made, 0, m.tensors[0].grad.data()); });
    float lists[5] = {1, 1, 0, 0, 1};
    adamant_shard const listed = shard_of(lists);
    adamant_step_item step_item = initialised(adamant_step_item_init);
    step_item.shard = &listed;
    step_item.hyper = &h;
    with_failure([&] { return adamant_step_list(cpu.get(), &step_item, 1, nullptr); });
    adamant_sum_item sum_item = initialised(adamant_sum_item_init);
    sum_item.elements = 1;
    sum_item.sum = lists + 4;
    sum_item.grad = lists + 1;
    sum_item.grad_dtype = ADAMANT_FLOAT32;
    with_failure([&] { return adamant_accumulate_list(cpu.get(), &sum_item, 1); });
    REQUIRE((lists[0] > 0.9985f && lists[0] < 0.9995f && lists[4] == 2)); // each once
    double const lr = 0.01;
    adamant_step_values v = step_values();
    v.lr = &lr;
    v.lr_count = 1;
    m.new_gradients(1);
    with_failure([&] { return adamant_accumulate(made, 0); });
    with_failure([&] { return adamant_step(made, &v, nullptr); });
    with_failure([&] { return adamant_prepare(made, 1); });
    m.new_gradients(2);
    with_failure([&] { return adamant_begin_step(made, &v); });
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
        with_failure([&] {
            return i % 2 == 0 ? adamant_submit(made, i) : adamant_submit_gradient(made, i, m.tensors[i].grad.data());
        });
    with_failure([&] { return adamant_finish(made, nullptr); });
    with_failure([&] { return adamant_rollback(made); });
    adamant_loss_scaler scaler = initialised(adamant_loss_scaler_init);
    with_failure([&] { return adamant_get_loss_scaler(made, &scaler, &is_found); });
    with_failure([&] { return adamant_set_loss_scaler(made, &scaler); });
    std::uint64_t const steps = steps_of(o);
    with_failure([&] { return adamant_set_steps(made, steps); });
    with_failure([&] { return adamant_step_async(made, &v); });
    with_failure([&] { return adamant_wait(made, ADAMANT_FOR_EVER, nullptr, nullptr); });
    std::string const file = dir.file("a file with a name that is longer than a few letters.safetensors");
    with_early_failure([&] { return adamant_save_safetensors(made, file.c_str()); });
    digest = m.digest();
    char const* const path = file.c_str();
    for (model::tensor& t : m.tensors)
        std::fill(t.param.begin(), t.param.end(), 0.0f);
    with_early_failure([&] { return adamant_load_safetensors(made, &path, 1); });
    REQUIRE(m.digest() == digest);
    std::size_t bytes = 0;
    with_early_failure([&] { return adamant_save_bytes(made, &bytes); });
    std::vector<char> memory(bytes);
    with_early_failure([&] { return adamant_save_memory(made, memory.data(), bytes, nullptr); });
    for (model::tensor& t : m.tensors)
        std::fill(t.param.begin(), t.param.end(), 0.0f);
    void const* const data = memory.data();
    with_early_failure([&] { return adamant_load_memory(made, &data, &bytes, 1); });
    REQUIRE(m.digest() == digest);
    adamant_state* made_state = nullptr;
    with_failure([&] { return adamant_state_create(made, &made_state); });
    state const owned_state(made_state);
    m.new_gradients(3);
    with_failure([&] { return adamant_step(made, &v, nullptr); });
    REQUIRE(steps_of(o) == 3);
    digest = m.digest();
    std::string const json = R"({"optimizer": {"type": "Adam", "params": {"lr": 0.25}}, "steps_per_print": 3})";
    adamant_deepspeed* config = nullptr;
    with_early_failure([&] { return adamant_deepspeed_parse(json.data(), json.size(), &config); });
    deepspeed const owned(config);
    with_failure([&] { return adamant_deepspeed_apply(config, nullptr, nullptr, &oo, nullptr, nullptr); });
    // Saying what is wrong, too, may find no memory.
    allocation_failed = false;
    allocations_left = n;
    adamant_status const status = adamant_submit(made, 99);
    allocations_left = -1;
    REQUIRE(status == (allocation_failed ? ADAMANT_OUT_OF_MEMORY : ADAMANT_INVALID_ARGUMENT));
    return failed;
}

TEST_CASE("C: memory that ends at any allocation of any call")
{
    folder const dir;
    std::uint64_t expected = 0;
    REQUIRE(live_with_failures(1000000, dir, expected) == 0);
    std::size_t failed = 0;
    long n = 0;
    for (;; ++n) {
        std::uint64_t digest = 0;
        std::size_t const now = live_with_failures(n, dir, digest);
        REQUIRE(digest == expected);
        failed += now;
        if (now == 0)
            break;
    }
    std::printf("C: %zu calls failed for want of memory, at up to allocation %ld\n", failed, n);
    REQUIRE(failed > 100);
}

TEST_CASE("C: memory that ends while cores are chosen")
{
    adamant_core_options c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    char text[64];
    std::size_t const failed = fail_at_each_allocation([&](auto const& with_failure) {
        with_failure([&] { return adamant_select_cores(&c, text, sizeof text, nullptr, 0); });
        with_failure([&] { return adamant_select_nodes(&c, text, sizeof text, nullptr, 0); });
    });
    REQUIRE(failed > 50);
    char pus[4096];
    REQUIRE(fail_at_each_allocation([&](auto const& with_failure) {
                with_failure([&] { return adamant_allowed_pus(pus, sizeof pus); });
            }) > 5);
}

TEST_CASE("C: memory that ends while teams, executors and buffers are made")
{
    std::size_t const failed = fail_at_each_allocation([&](auto const& with_failure) {
        adamant_team_options to = team_options();
        to.threads = 2;
        to.pus = "0";
        adamant_team* made_team = nullptr;
        with_failure([&] { return adamant_team_create(&to, &made_team); });
        team const shared(made_team);
        adamant_executor_options eo = executor_options();
        eo.team = made_team;
        adamant_executor* made_executor = nullptr;
        with_failure([&] { return adamant_executor_create(&eo, &made_executor); });
        executor const on_team(made_executor);
        adamant_buffer_options bo = buffer_options();
        bo.nodes = "0";
        adamant_buffer* made_buffer = nullptr;
        with_failure([&] { return adamant_buffer_create(made_executor, 10'000, 4, &bo, &made_buffer); });
        buffer const owned(made_buffer);
        with_failure([&] { return adamant_buffer_measure(made_buffer, nullptr, nullptr, nullptr, 0); });
    });
    REQUIRE(failed > 20);
}

// A step, shard by shard; what it returns is that of the first call that fails. A submit() that has failed fails the
// step, which adamant_finish() rolls back; and so does adamant_finish().
static adamant_status whole_step(adamant_optimizer* o)
{
    if (adamant_status const status = adamant_begin_step(o, nullptr); status != ADAMANT_OK)
        return status;
    for (std::size_t i = 0; i < 4; ++i)
        if (adamant_status const status = adamant_submit(o, i); status != ADAMANT_OK) {
            std::string const text = last_error();
            while (++i < 4)
                ok(adamant_skip(o, i));
            fails(adamant_finish(o, nullptr), ADAMANT_DEVICE_FAILED, "adamant_submit() failed earlier");
            refused(adamant_finish(o, nullptr), "no step is open");
            REQUIRE(text.find("memory") != std::string::npos);
            return ADAMANT_DEVICE_FAILED;
        }
    return adamant_finish(o, nullptr);
}

TEST_CASE("C: memory that ends while shards are on a device")
{
    std::uint64_t expected = 0;
    bool first = true;
    adamant_optimizer_options options = c_test::options();
    options.max_norm = 1;
    std::size_t const failed = fail_at_each_allocation([&](auto const& with_failure) {
        model m;
        optimizer const o = make_optimizer(m, options);
        adamant_device* made_device = nullptr;
        with_failure([&] { return adamant_emulated_device_create(nullptr, &made_device); });
        device const on(made_device);
        std::size_t sizes[4] = {};
        with_failure([&] { return adamant_shard_sizes(o.get(), sizes, 4); });
        adamant_split_options so = split_options();
        so.ratio = 0.4;
        adamant_placement* made = nullptr;
        with_failure([&] { return adamant_split(sizes, 4, &so, &made); });
        placement const where(made);
        adamant_piece piece{};
        ok(adamant_placement_piece(made, 0, &piece));
        adamant_placement* copy = nullptr;
        with_failure([&] { return adamant_placement_create(&piece, 1, &copy); });
        placement const owned_copy(copy);
        std::size_t bytes = 0;
        with_failure([&] { return adamant_device_bytes(o.get(), made_device, made, &bytes); });
        std::uint64_t grad = 0;
        std::uint64_t weights = 0;
        with_failure([&] { return adamant_device_allocate(made_device, sizes[0] * 4, &grad); });
        ok(adamant_device_allocate(made_device, sizes[0] * 2, &weights));
        with_failure([&] { return adamant_device_copy_up(made_device, grad, m.tensors[0].grad.data(), sizes[0] * 4); });
        with_failure([&] { return adamant_set_device_arrays(o.get(), 0, grad, weights); });
        model other_model;
        optimizer const other = make_optimizer(other_model, options);
        bool has_failed = false;
        std::size_t free_before = 0;
        ok(adamant_device_describe(made_device, nullptr, nullptr, &free_before));
        with_failure([&] {
            std::size_t free_now = 0;
            if (has_failed)
                ok(adamant_device_describe(made_device, nullptr, nullptr, &free_now));
            if (free_now == free_before) {                   // nothing has moved, so the device is anybody's
                std::vector<std::unique_ptr<char[]>> others; // where the first optimizer had what it no longer has
                for (std::size_t n = 16; n < 4096; n += 16)
                    others.push_back(std::make_unique<char[]>(n));
                ok(adamant_place(other.get(), made_device, made));
                ok(adamant_place(other.get(), nullptr, nullptr));
            }
            has_failed = true;
            return adamant_place(o.get(), made_device, made);
        });
        with_failure([&] { return adamant_step(o.get(), nullptr, nullptr); });
        with_failure([&] { return whole_step(o.get()); });
        with_failure([&] { return adamant_step_async(o.get(), nullptr); });
        ok(adamant_wait(o.get(), ADAMANT_FOR_EVER, nullptr, nullptr));
        with_failure([&] { return adamant_update_host_arrays(o.get()); });
        std::uint64_t const there = m.digest();
        with_failure([&] {
            return adamant_device_copy_down(made_device, m.tensors[0].weight_out.data(), weights, sizes[0] * 2);
        });
        with_failure([&] { return adamant_place(o.get(), nullptr, nullptr); });
        if (first)
            expected = there;
        first = false;
        REQUIRE(there == expected);
        REQUIRE(steps_of(o) == 3);
    });
    REQUIRE(failed > 50);
}

TEST_CASE("C: memory that ends while a tuning result is read")
{
    folder const dir;
    std::string const path = dir.file("a file with a name that is longer than a few letters.json");
    adamant_core_options c = core_options();
    c.ranks = 1;
    adamant_shard const s = shard();
    adamant_tuning_options o = tuning_options();
    o.elements = 4096;
    o.settings = 0;
    o.rounds = o.most_rounds = 1;
    adamant_tuned* made = nullptr;
    ok(adamant_tune_cores(&c, &s, &o, &made));
    tuned const found(made);
    ok(adamant_tuned_save(made, path.c_str()));
    adamant_executor_options e = executor_options();
    std::size_t failed = 0;
    for (long n = 0; n < 40; ++n) { // later ones are in nlohmann-json's destructor, which ends the process
        adamant_tuned* loaded = nullptr;
        failed += make_twice([&] { return adamant_tuned_load(path.c_str(), &c, &s, nullptr, &loaded); }, n, 1);
        tuned const owned(loaded);
        failed += make_twice([&] { return adamant_tuned_save(loaded, path.c_str()); }, std::min(n, 10L), 2);
        failed += make_twice([&] { return adamant_tuned_apply(loaded, &c, &e); }, n, 3);
    }
    REQUIRE(failed > 20);
}
