// SPDX-License-Identifier: Apache-2.0
// The C interface: versions, enums, and structs of other versions.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <adamant/version.hpp>

#include "c_test.hpp"

TEST_CASE("C: versions and names")
{
    REQUIRE(adamant_c_version() == ADAMANT_C_VERSION);
    REQUIRE(adamant_version() == std::to_string(ADAMANT_VERSION_MAJOR) + "." + std::to_string(ADAMANT_VERSION_MINOR) +
                                     "." + std::to_string(ADAMANT_VERSION_PATCH));
    REQUIRE(adamant_status_name(ADAMANT_OK) == std::string("ok"));
    std::vector<std::string> seen;
    for (adamant_status s = ADAMANT_OK; s <= ADAMANT_DEVICE_FAILED; ++s) {
        REQUIRE(std::find(seen.begin(), seen.end(), adamant_status_name(s)) == seen.end());
        seen.emplace_back(adamant_status_name(s));
    }
    for (adamant_status const s : {-1, ADAMANT_DEVICE_FAILED + 1, INT32_MIN, INT32_MAX})
        REQUIRE(adamant_status_name(s) == std::string("unknown status"));
}

TEST_CASE("C: enums that hold nothing")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    adamant_optimizer* made = nullptr;
    adamant_executor* made_executor = nullptr;
    adamant_team* made_team = nullptr;
    adamant_buffer* made_buffer = nullptr;
    for (std::int32_t const wrong : {-1, 6, 255, 256, INT32_MIN, INT32_MAX}) {
        adamant_executor_options e = executor_options();
        e.bind = wrong;
        refused(adamant_executor_create(&e, &made_executor), "bind is " + std::to_string(wrong));
        adamant_team_options t = team_options();
        t.threads = 1;
        t.bind = wrong;
        refused(adamant_team_create(&t, &made_team), "bind is " + std::to_string(wrong));
        adamant_buffer_options b = buffer_options();
        b.pages = wrong;
        refused(adamant_buffer_create(nullptr, 10, 4, &b, &made_buffer), "pages is " + std::to_string(wrong));
        adamant_optimizer_options p = options();
        p.on_nonfinite = wrong;
        refused(adamant_optimizer_create(cpu.get(), &p, &made), "on_nonfinite is " + std::to_string(wrong));
        p = options();
        p.speculate = wrong;
        refused(adamant_optimizer_create(cpu.get(), &p, &made), "speculate is " + std::to_string(wrong));
        adamant_hyperparameters h = hyperparameters();
        h.decay = wrong;
        refused(adamant_add_group(o.get(), "x", &h, 0, nullptr), "decay is " + std::to_string(wrong));
        refused(adamant_set_hyperparameters(o.get(), 0, &h), "decay is " + std::to_string(wrong));
        for (auto const& [field, name] : {std::pair{&adamant_shard::param_dtype, "param_dtype"},
                                          {&adamant_shard::grad_dtype, "grad_dtype"},
                                          {&adamant_shard::exp_avg_dtype, "exp_avg_dtype"},
                                          {&adamant_shard::exp_avg_sq_dtype, "exp_avg_sq_dtype"},
                                          {&adamant_shard::weight_out_dtype, "weight_out_dtype"},
                                          {&adamant_shard::accumulator_dtype, "accumulator_dtype"}}) {
            adamant_shard s = m.describe(0);
            s.*field = wrong;
            refused(adamant_add_shard(o.get(), 0, "x", &s, nullptr),
                    std::string(name) + " is " + std::to_string(wrong));
        }
    }
    for (auto const& [field, last] : {std::pair<adamant_nonfinite adamant_optimizer_options::*, int>{
                                          &adamant_optimizer_options::on_nonfinite, ADAMANT_NONFINITE_APPLY},
                                      {&adamant_optimizer_options::speculate, ADAMANT_SPECULATE_NEVER}}) {
        adamant_optimizer_options p = options();
        p.*field = last;
        ok(adamant_optimizer_create(cpu.get(), &p, &made));
        adamant_optimizer_free(std::exchange(made, nullptr));
        p.*field = last + 1;
        refused(adamant_optimizer_create(cpu.get(), &p, &made), "3");
    }
    REQUIRE((made == nullptr && made_executor == nullptr && made_team == nullptr && made_buffer == nullptr));
}

namespace {
// A struct in more bytes than the library knows.
template <class Struct>
struct longer {
    alignas(Struct) unsigned char bytes[sizeof(Struct) + 24];
    template <class Init>
    explicit longer(Init init)
    {
        std::memset(bytes, 0xa5, sizeof bytes);
        ok(init(&it(), sizeof bytes));
        REQUIRE(it().struct_bytes == sizeof bytes);
        for (std::size_t i = sizeof(Struct); i < sizeof bytes; ++i)
            REQUIRE(bytes[i] == 0);
    }
    Struct& it() { return *reinterpret_cast<Struct*>(bytes); }
};
// use() takes the struct; with every size that can and cannot be. first_bytes: its size in version 1.
template <class Struct, class Init, class Use>
void check_struct(Init init, std::string const& name, Use use, std::size_t first_bytes = sizeof(Struct))
{
    Struct known = initialised<Struct>(init);
    for (std::size_t const bytes :
         {std::size_t{0}, sizeof(std::size_t), first_bytes - 1, std::size_t{4097}, SIZE_MAX}) {
        Struct untouched = known;
        refused(init(&untouched, bytes), name + " is " + std::to_string(bytes));
        REQUIRE(std::memcmp(&untouched, &known, sizeof known) == 0);
        Struct shorter = known;
        shorter.struct_bytes = bytes;
        refused(use(&shorter), "struct_bytes of " + name + " is " + std::to_string(bytes));
    }
    Struct oldest = known; // fields that it does not have are at their defaults
    std::memset(reinterpret_cast<unsigned char*>(&oldest) + first_bytes, 0xa5, sizeof oldest - first_bytes);
    oldest.struct_bytes = first_bytes;
    ok(use(&oldest));
    longer<Struct> more(init);
    ok(use(&more.it()));
    for (std::size_t const i : {sizeof(Struct), sizeof more.bytes - 1}) {
        longer<Struct> set(init);
        set.bytes[i] = 1;
        refused(use(&set.it()), "byte " + std::to_string(i) + " of " + name);
    }
}
} // namespace

TEST_CASE("C: structs of other versions")
{
    model m;
    executor const cpu = make_executor();
    check_struct<adamant_core_options>(
        adamant_core_options_init, "adamant_core_options",
        [](auto* it) {
            char text[100];
            it->machine = "pack:1 [numa] core:4 pu:1";
            it->ranks = 1;
            return adamant_select_cores(it, text, sizeof text, nullptr, 0);
        },
        64);
    check_struct<adamant_executor_options>(
        adamant_executor_options_init, "adamant_executor_options",
        [](auto* it) {
            adamant_executor* made = nullptr;
            it->threads = 1;
            adamant_status const s = adamant_executor_create(it, &made);
            adamant_executor_free(made);
            return s;
        },
        40);
    check_struct<adamant_team_options>(adamant_team_options_init, "adamant_team_options", [](auto* it) {
        adamant_team* made = nullptr;
        it->threads = 1;
        it->bind = ADAMANT_BIND_NONE;
        adamant_status const s = adamant_team_create(it, &made);
        adamant_team_free(made);
        return s;
    });
    check_struct<adamant_buffer_options>(adamant_buffer_options_init, "adamant_buffer_options", [](auto* it) {
        adamant_buffer* made = nullptr;
        adamant_status const s = adamant_buffer_create(nullptr, 10, 4, it, &made);
        adamant_buffer_free(made);
        return s;
    });
    check_struct<adamant_split_options>(adamant_split_options_init, "adamant_split_options", [](auto* it) {
        adamant_placement* made = nullptr;
        adamant_status const s = adamant_split(nullptr, 0, it, &made);
        adamant_placement_free(made);
        return s;
    });
    check_struct<adamant_emulation_options>(
        adamant_emulation_options_init, "adamant_emulation_options",
        [](auto* it) {
            adamant_device* made = nullptr;
            adamant_status const s = adamant_emulated_device_create(it, &made);
            adamant_device_free(made);
            return s;
        },
        56);
    check_struct<adamant_tuning_options>(adamant_tuning_options_init, "adamant_tuning_options", [](auto* it) {
        adamant_core_options c = core_options();
        c.ranks = 1;
        adamant_shard const s = shard();
        it->elements = 4096;
        it->deadline_s = 1e-9;
        adamant_tuned* made = nullptr;
        adamant_status const status = adamant_tune_cores(&c, &s, it, &made);
        adamant_tuned_free(made);
        return status;
    });
    check_struct<adamant_step_rates>(adamant_step_rates_init, "adamant_step_rates",
                                     [](auto* it) { return adamant_forecast(it, 1, nullptr, nullptr); });
    auto const create = [&](adamant_optimizer_options const* it) {
        adamant_optimizer* made = nullptr;
        adamant_status const s = adamant_optimizer_create(cpu.get(), it, &made);
        adamant_optimizer_free(made);
        return s;
    };
    check_struct<adamant_optimizer_options>(adamant_optimizer_options_init, "adamant_optimizer_options", create, 72);
    check_struct<adamant_loss_scaling>(adamant_loss_scaling_init, "adamant_loss_scaling", [&](auto* it) {
        adamant_optimizer_options o = options();
        o.loss_scaling = it;
        return create(&o);
    });
    optimizer const o = make_optimizer(m);
    adamant_loss_scaling const dynamic = scaling();
    adamant_optimizer_options scaled = options();
    scaled.loss_scaling = &dynamic;
    optimizer const scales(make_optimizer(m, scaled));
    check_struct<adamant_loss_scaler>(adamant_loss_scaler_init, "adamant_loss_scaler",
                                      [&](auto* it) { return adamant_set_loss_scaler(scales.get(), it); });
    check_struct<adamant_hyperparameters>(
        adamant_hyperparameters_init, "adamant_hyperparameters",
        [&](auto* it) { return adamant_set_hyperparameters(o.get(), 0, it); }, 56);
    check_struct<adamant_shard>(
        adamant_shard_init, "adamant_shard",
        [&, n = 0](auto* it) mutable {
            return adamant_add_shard(o.get(), 0, ("none" + std::to_string(n++)).c_str(), it, nullptr);
        },
        sizeof(adamant_shard) - 16);
    check_struct<adamant_step_values>(
        adamant_step_values_init, "adamant_step_values", [&](auto* it) { return adamant_step(o.get(), it, nullptr); },
        sizeof(adamant_step_values) - 16);

    // What is written: too short is refused before anything is done, and what is not known becomes zero.
    std::uint64_t const before = m.digest();
    std::uint64_t const steps = steps_of(o);
    adamant_report r = report();
    r.struct_bytes = 168 - 8;
    refused(adamant_step(o.get(), nullptr, &r), "struct_bytes of adamant_report");
    ok(adamant_begin_step(o.get(), nullptr));
    std::size_t shards = 0;
    ok(adamant_shard_count(o.get(), &shards));
    for (std::size_t i = 0; i < shards; ++i)
        ok(adamant_skip(o.get(), i));
    refused(adamant_finish(o.get(), &r), "struct_bytes of adamant_report");
    ok(adamant_abandon(o.get()));
    ok(adamant_step_async(o.get(), nullptr));
    refused(adamant_wait(o.get(), ADAMANT_FOR_EVER, nullptr, &r), "struct_bytes of adamant_report");
    ok(adamant_wait(o.get(), ADAMANT_FOR_EVER, nullptr, nullptr));
    REQUIRE(m.digest() != before);
    REQUIRE(steps_of(o) == steps + 1);
    longer<adamant_report> more(adamant_report_init);
    more.bytes[sizeof more.bytes - 1] = 7;
    ok(adamant_step(o.get(), nullptr, &more.it()));
    REQUIRE(more.bytes[sizeof more.bytes - 1] == 0);
    REQUIRE(more.it().struct_bytes == sizeof more.bytes);
    REQUIRE(more.it().step == steps + 2);
    adamant_hyperparameters h = hyperparameters();
    h.struct_bytes = 8;
    refused(adamant_get_hyperparameters(o.get(), 0, &h), "struct_bytes of adamant_hyperparameters");
}

TEST_CASE("C: chunks and prefetching are options, and an older program's struct goes without")
{
    adamant_executor_options options{};
    ok(adamant_executor_options_init(&options, sizeof options));
    CHECK(options.max_chunk_elems == 0);
    CHECK(options.prefetch_bytes == ADAMANT_AUTOMATIC_BYTES);
    options.threads = 1;
    options.max_chunk_elems = 8192;
    options.prefetch_bytes = 0;
    adamant_executor* made = nullptr;
    ok(adamant_executor_create(&options, &made));
    adamant_executor_free(made);
    options.prefetch_bytes = std::size_t{1} << 32;
    refused(adamant_executor_create(&options, &made), "prefetch_bytes is 4294967296");
    options.struct_bytes = 40; // of the first version, which had neither
    ok(adamant_executor_create(&options, &made));
    adamant_executor_free(made);
}
