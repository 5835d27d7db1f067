// SPDX-License-Identifier: Apache-2.0
// The C interface in a process that was forked in the midst of something: every call says so, and nothing hangs.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "c_test.hpp"
#include "forked.hpp"

namespace {

struct named_call {
    char const* name;
    std::function<adamant_status()> make;
};
void all_are_refused(std::vector<named_call> const& calls)
{
    for (named_call const& each : calls) {
        INFO(each.name);
        CHECK(test::in_child([&] {
                  adamant_status const status = each.make();
                  return status != ADAMANT_UNAVAILABLE                      ? 100 + static_cast<int>(status)
                         : last_error().find("forked") == std::string::npos ? 1
                                                                            : 0;
              }) == 0);
    }
}
device make_device()
{
    adamant_device* made = nullptr;
    ok(adamant_emulated_device_create(nullptr, &made));
    return device(made);
}

} // namespace

TEST_CASE("C: a process that is forked while a device works on a step")
{
    model m, same;
    device on = make_device();
    optimizer o = make_optimizer(m);
    optimizer const alone = make_optimizer(same);
    ok(adamant_step(alone.get(), nullptr, nullptr));
    adamant_split_options s = split_options();
    s.ratio = 0.4;
    std::size_t sizes[4] = {};
    ok(adamant_shard_sizes(o.get(), sizes, 4));
    adamant_placement* made = nullptr;
    ok(adamant_split(sizes, 4, &s, &made));
    placement const where(made);
    ok(adamant_place(o.get(), on.get(), made));
    std::vector<named_call> const device_calls = {
        {"device_describe", [&] { return adamant_device_describe(on.get(), nullptr, nullptr, sizes); }},
        {"device_allocate",
         [&] {
             std::uint64_t address = 0;
             return adamant_device_allocate(on.get(), 4, &address);
         }},
        {"device_copy_up", [&] { return adamant_device_copy_up(on.get(), 1, sizes, 4); }},
        {"device_copy_down", [&] { return adamant_device_copy_down(on.get(), sizes, 1, 4); }},
        {"emulated_device_resume", [&] { return adamant_emulated_device_resume(on.get()); }}};
    all_are_refused(device_calls);
    CHECK(test::is_destroyed_in_child(o));
    CHECK(test::is_destroyed_in_child(on));
    ok(adamant_emulated_device_hang(on.get(), ADAMANT_DEVICE_COPY_UP, 0));
    ok(adamant_step_async(o.get(), nullptr));
    all_are_refused(device_calls);
    all_are_refused({{"step", [&] { return adamant_step(o.get(), nullptr, nullptr); }},
                     {"begin_step", [&] { return adamant_begin_step(o.get(), nullptr); }},
                     {"submit", [&] { return adamant_submit(o.get(), 0); }},
                     {"submit_gradient", [&] { return adamant_submit_gradient(o.get(), 0, m.tensors[0].grad.data()); }},
                     {"skip", [&] { return adamant_skip(o.get(), 0); }},
                     {"finish", [&] { return adamant_finish(o.get(), nullptr); }},
                     {"abandon", [&] { return adamant_abandon(o.get()); }},
                     {"rollback", [&] { return adamant_rollback(o.get()); }},
                     {"accumulate", [&] { return adamant_accumulate(o.get(), 0); }},
                     {"step_async", [&] { return adamant_step_async(o.get(), nullptr); }},
                     {"poll", [&] { return adamant_poll(o.get(), nullptr, nullptr); }},
                     {"wait", [&] { return adamant_wait(o.get(), ADAMANT_FOR_EVER, nullptr, nullptr); }},
                     {"update_host_arrays", [&] { return adamant_update_host_arrays(o.get()); }},
                     {"place", [&] { return adamant_place(o.get(), nullptr, nullptr); }},
                     {"state_create",
                      [&] {
                          adamant_state* state = nullptr;
                          return adamant_state_create(o.get(), &state);
                      }},
                     {"save", [&] { return adamant_save_safetensors(o.get(), "/nowhere"); }}});
    CHECK(test::is_destroyed_in_child(o));
    CHECK(test::is_destroyed_in_child(on));
    ok(adamant_emulated_device_resume(on.get()));
    ok(adamant_wait(o.get(), ADAMANT_FOR_EVER, nullptr, nullptr));
    ok(adamant_update_host_arrays(o.get()));
    CHECK(m.digest() == same.digest());
}

TEST_CASE("C: a process that is forked in an open step of zenflow")
{
    executor const cpu = make_executor();
    adamant_zenflow* made = nullptr;
    ok(adamant_zenflow_create(cpu.get(), nullptr, nullptr, &made));
    zenflow of(made);
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_zenflow_add_group(made, "all", &h, 0, nullptr));
    float arrays[4] = {1, 1, 0, 0};
    adamant_shard v = shard(1, arrays, arrays + 1, arrays + 2, arrays + 3);
    ok(adamant_zenflow_add_param(made, 0, "vector", &v, 0, nullptr, nullptr));
    ok(adamant_zenflow_begin_step(made, nullptr));
    adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
    all_are_refused({{"begin_step", [&] { return adamant_zenflow_begin_step(made, nullptr); }},
                     {"submit", [&] { return adamant_zenflow_submit(made, 0); }},
                     {"skip", [&] { return adamant_zenflow_skip(made, 0); }},
                     {"finish", [&] { return adamant_zenflow_finish(made, nullptr, nullptr); }},
                     {"abandon", [&] { return adamant_zenflow_abandon(made); }},
                     {"publish", [&] { return adamant_zenflow_flush(made); }},
                     {"place", [&] { return adamant_zenflow_place(made, nullptr); }},
                     {"get_position", [&] { return adamant_zenflow_get_position(made, &at); }}});
    CHECK(test::is_destroyed_in_child(of));
    ok(adamant_zenflow_submit(made, 0));
    ok(adamant_zenflow_finish(made, nullptr, nullptr));
}
