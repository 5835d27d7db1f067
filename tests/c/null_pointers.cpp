// SPDX-License-Identifier: Apache-2.0
// The C interface: null pointers.
#include <cstdint>
#include <string>

#include "c_test.hpp"

TEST_CASE("C: every null pointer is an error with a text")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    adamant_hyperparameters h = hyperparameters();
    adamant_shard s = m.describe(0);
    std::size_t n = 77;
    std::uint64_t u = 77;
    double d = 77;
    char text[64] = "as it was";
    char const* c = nullptr;
    char const* const paths[] = {nullptr};
    adamant_core_options cores = core_options();
    adamant_optimizer* made = nullptr;

    refused(adamant_core_options_init(nullptr, 1000), "null");
    refused(adamant_executor_options_init(nullptr, 1000), "null");
    refused(adamant_loss_scaling_init(nullptr, 1000), "null");
    refused(adamant_optimizer_options_init(nullptr, 1000), "null");
    refused(adamant_hyperparameters_init(nullptr, 1000), "null");
    refused(adamant_shard_init(nullptr, 1000), "null");
    refused(adamant_step_values_init(nullptr, 1000), "null");
    refused(adamant_report_init(nullptr, 1000), "null");

    refused(adamant_select_cores(nullptr, text, sizeof text, nullptr, 0), "adamant_core_options is a null");
    refused(adamant_select_cores(&cores, nullptr, 0, nullptr, 0), "adam_pus is a null");
    cores.machine = "pack:1 [numa] core:4 pu:1";
    cores.ranks = 1;
    refused(adamant_select_cores(&cores, text, sizeof text, nullptr, 8), "host_pus is a null");
    refused(adamant_select_nodes(nullptr, text, sizeof text, nullptr, 0), "adamant_core_options is a null");
    refused(adamant_select_nodes(&cores, nullptr, 0, nullptr, 0), "nodes is a null");
    refused(adamant_select_nodes(&cores, text, sizeof text, nullptr, 8), "why is a null");
    refused(adamant_allowed_pus(nullptr, 0), "pus is a null");
    cores.mask_count = 1;
    refused(adamant_select_cores(&cores, text, sizeof text, nullptr, 0), "masks is a null");
    cores.masks = paths;
    refused(adamant_select_cores(&cores, text, sizeof text, nullptr, 0), "number 0 of masks is a null");
    cores.mask_count = 0;
    cores.gpu_count = 1;
    refused(adamant_select_cores(&cores, text, sizeof text, nullptr, 0), "gpus is a null");
    cores.gpus = paths;
    refused(adamant_select_cores(&cores, text, sizeof text, nullptr, 0), "number 0 of gpus is a null");
    REQUIRE(text == std::string("as it was"));

    refused(adamant_executor_create(nullptr, nullptr), "made is a null");
    adamant_executor_free(nullptr);
    refused(adamant_executor_describe(nullptr, nullptr, nullptr, nullptr), "executor is a null");
    ok(adamant_executor_describe(cpu.get(), nullptr, nullptr, nullptr));

    adamant_team* team = nullptr;
    adamant_team_options const t = team_options();
    refused(adamant_team_options_init(nullptr, 1000), "null");
    refused(adamant_team_create(nullptr, &team), "adamant_team_options is a null");
    refused(adamant_team_create(&t, nullptr), "made is a null");
    adamant_team_free(nullptr);
    refused(adamant_team_describe(nullptr, nullptr, nullptr), "team is a null");
    refused(adamant_team_thread(nullptr, 0, nullptr, nullptr, nullptr, nullptr), "team is a null");

    adamant_buffer* buffer = nullptr;
    adamant_buffer_report buffer_report = initialised(adamant_buffer_report_init);
    refused(adamant_buffer_options_init(nullptr, 1000), "null");
    refused(adamant_buffer_report_init(nullptr, 1000), "null");
    refused(adamant_buffer_create(nullptr, 1, 1, nullptr, nullptr), "made is a null");
    adamant_buffer_free(nullptr);
    refused(adamant_buffer_data(nullptr, nullptr, nullptr), "buffer is a null");
    refused(adamant_buffer_describe(nullptr, &buffer_report), "buffer is a null");
    refused(adamant_buffer_measure(nullptr, nullptr, nullptr, nullptr, 0), "buffer is a null");
    ok(adamant_buffer_create(nullptr, 0, 4, nullptr, &buffer));
    refused(adamant_buffer_describe(buffer, nullptr), "adamant_buffer_report is a null");
    refused(adamant_buffer_measure(buffer, nullptr, nullptr, nullptr, 1), "node_bytes is a null");
    ok(adamant_buffer_data(buffer, nullptr, nullptr));
    ok(adamant_buffer_measure(buffer, nullptr, nullptr, nullptr, 0));
    adamant_buffer_free(buffer);

    refused(adamant_optimizer_create(nullptr, nullptr, &made), "executor is a null");
    refused(adamant_optimizer_create(cpu.get(), nullptr, nullptr), "made is a null");
    REQUIRE(made == nullptr);
    adamant_optimizer_free(nullptr);

    refused(adamant_add_group(nullptr, "x", &h, 0, &n), "optimizer is a null");
    refused(adamant_add_group(o.get(), nullptr, &h, 0, &n), "name is a null");
    refused(adamant_add_group(o.get(), "x", nullptr, 0, &n), "adamant_hyperparameters is a null");
    refused(adamant_group_count(nullptr, &n), "optimizer is a null");
    refused(adamant_group_count(o.get(), nullptr), "count is a null");
    refused(adamant_set_hyperparameters(nullptr, 0, &h), "optimizer is a null");
    refused(adamant_set_hyperparameters(o.get(), 0, nullptr), "adamant_hyperparameters is a null");
    refused(adamant_get_hyperparameters(nullptr, 0, &h), "optimizer is a null");
    refused(adamant_get_hyperparameters(o.get(), 0, nullptr), "adamant_hyperparameters is a null");
    refused(adamant_add_shard(nullptr, 0, "x", &s, &n), "optimizer is a null");
    refused(adamant_add_shard(o.get(), 0, nullptr, &s, &n), "name is a null");
    refused(adamant_add_shard(o.get(), 0, "x", nullptr, &n), "adamant_shard is a null");
    refused(adamant_shard_count(nullptr, &n), "optimizer is a null");
    refused(adamant_shard_count(o.get(), nullptr), "count is a null");
    refused(adamant_memory_bytes(nullptr, 0, &n), "optimizer is a null");
    refused(adamant_memory_bytes(o.get(), 0, nullptr), "bytes is a null");
    refused(adamant_prepare(nullptr, 0), "optimizer is a null");
    refused(adamant_steps(nullptr, &u), "optimizer is a null");
    refused(adamant_steps(o.get(), nullptr), "steps is a null");
    refused(adamant_loss_scale(nullptr, &d), "optimizer is a null");
    refused(adamant_loss_scale(o.get(), nullptr), "scale is a null");
    refused(adamant_step(nullptr, nullptr, nullptr), "optimizer is a null");
    refused(adamant_begin_step(nullptr, nullptr), "optimizer is a null");
    refused(adamant_submit(nullptr, 0), "optimizer is a null");
    refused(adamant_leave_out(nullptr, 0), "optimizer is a null");
    refused(adamant_finish(nullptr, nullptr), "optimizer is a null");
    refused(adamant_abandon(nullptr), "optimizer is a null");
    refused(adamant_rollback(nullptr), "optimizer is a null");
    refused(adamant_accumulate(nullptr, 0), "optimizer is a null");
    refused(adamant_clear_accumulators(nullptr), "optimizer is a null");
    refused(adamant_step_async(nullptr, nullptr), "optimizer is a null");
    refused(adamant_poll(nullptr, nullptr, nullptr), "optimizer is a null");
    refused(adamant_wait(nullptr, 0, nullptr, nullptr), "optimizer is a null");
    refused(adamant_save_safetensors(nullptr, "x"), "optimizer is a null");
    refused(adamant_save_safetensors(o.get(), nullptr), "path is a null");
    refused(adamant_load_safetensors(nullptr, paths, 1), "optimizer is a null");
    refused(adamant_load_safetensors(o.get(), nullptr, 1), "paths is a null");
    refused(adamant_load_safetensors(o.get(), paths, 1), "a path is a null");
    refused(adamant_load_safetensors(o.get(), paths, 0), "no files");
    refused(adamant_save_bytes(nullptr, &n), "optimizer is a null");
    refused(adamant_save_bytes(o.get(), nullptr), "bytes is a null");
    refused(adamant_save_memory(nullptr, text, sizeof text, &n), "optimizer is a null");
    refused(adamant_save_memory(o.get(), nullptr, 1, &n), "to is a null");
    void const* const states[] = {nullptr};
    refused(adamant_load_memory(nullptr, states, &n, 1), "optimizer is a null");
    refused(adamant_load_memory(o.get(), nullptr, &n, 1), "states is a null");
    refused(adamant_load_memory(o.get(), states, nullptr, 1), "bytes is a null");
    refused(adamant_load_memory(o.get(), states, &n, 1), "a state is a null");
    adamant_state* made_state = nullptr;
    adamant_state_tensor tensor = initialised(adamant_state_tensor_init);
    refused(adamant_state_tensor_init(nullptr, 1000), "null");
    refused(adamant_state_create(nullptr, &made_state), "optimizer is a null");
    refused(adamant_state_create(o.get(), nullptr), "made is a null");
    adamant_state_free(nullptr);
    refused(adamant_state_tensor_count(nullptr, &n), "state is a null");
    refused(adamant_state_get_tensor(nullptr, 0, &tensor), "state is a null");
    ok(adamant_state_create(o.get(), &made_state));
    state const owned_state(made_state);
    refused(adamant_state_tensor_count(made_state, nullptr), "count is a null");
    refused(adamant_state_get_tensor(made_state, 0, nullptr), "adamant_state_tensor is a null");

    adamant_device* device = nullptr;
    int event = 0;
    refused(adamant_split_options_init(nullptr, 1000), "null");
    refused(adamant_placement_summary_init(nullptr, 1000), "null");
    refused(adamant_step_rates_init(nullptr, 1000), "null");
    refused(adamant_emulation_options_init(nullptr, 1000), "null");
    refused(adamant_cuda_device_create(0, nullptr), "made is a null");
    refused(adamant_cuda_device_follow(nullptr, &event), "device is a null");
    refused(adamant_emulated_device_create(nullptr, nullptr), "made is a null");
    refused(adamant_emulated_device_fail(nullptr, 0, 0), "device is a null");
    refused(adamant_emulated_device_hang(nullptr, 0, 0), "device is a null");
    refused(adamant_emulated_device_resume(nullptr), "device is a null");
    adamant_device_free(nullptr);
    refused(adamant_device_describe(nullptr, nullptr, nullptr, nullptr), "device is a null");
    refused(adamant_device_allocate(nullptr, 1, &u), "device is a null");
    refused(adamant_device_release(nullptr, 0), "device is a null");
    refused(adamant_device_copy_up(nullptr, 0, text, 1), "device is a null");
    refused(adamant_device_copy_down(nullptr, text, 0, 1), "device is a null");
    ok(adamant_emulated_device_create(nullptr, &device));
    c_test::device const owned_device(device);
    refused(adamant_cuda_device_follow(device, nullptr), "event is a null");
    refused(adamant_device_allocate(device, 1, nullptr), "address is a null");
    refused(adamant_device_copy_up(device, 0, nullptr, 1), "from is a null");
    refused(adamant_device_copy_down(device, nullptr, 0, 1), "to is a null");
    ok(adamant_device_describe(device, nullptr, nullptr, nullptr));
    refused(adamant_shard_sizes(nullptr, &n, 1), "optimizer is a null");
    refused(adamant_shard_sizes(o.get(), nullptr, 4), "sizes is a null");
    refused(adamant_device_bytes(nullptr, device, nullptr, &n), "optimizer is a null");
    refused(adamant_device_bytes(o.get(), device, nullptr, &n), "placement is a null");
    refused(adamant_device_bytes(o.get(), nullptr, nullptr, &n), "device is a null");
    refused(adamant_place(nullptr, nullptr, nullptr), "optimizer is a null");
    refused(adamant_set_device_arrays(nullptr, 0, 0, 0), "optimizer is a null");
    refused(adamant_update_host_arrays(nullptr), "optimizer is a null");

    adamant_deepspeed* config = nullptr;
    refused(adamant_deepspeed_parse(nullptr, 0, &config), "text is a null");
    refused(adamant_deepspeed_parse("{}", 2, nullptr), "made is a null");
    adamant_deepspeed_free(nullptr);
    refused(adamant_deepspeed_apply(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), "configuration is a null");
    refused(adamant_deepspeed_model(nullptr, nullptr, nullptr), "configuration is a null");
    refused(adamant_deepspeed_warning(nullptr, 0, &c), "configuration is a null");
    ok(adamant_deepspeed_parse("{}", 2, &config));
    deepspeed const owned(config);
    refused(adamant_deepspeed_warning(config, 0, nullptr), "text is a null");

    // Nothing was changed by any of them.
    REQUIRE((n == 77 && u == 77 && d == 77));
    ok(adamant_shard_count(o.get(), &n));
    REQUIRE(n == 4);
    ok(adamant_group_count(o.get(), &n));
    REQUIRE(n == 1);
    ok(adamant_step(o.get(), nullptr, nullptr));
}
