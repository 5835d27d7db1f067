// SPDX-License-Identifier: Apache-2.0
// The C interface: what it refuses and how it says so, memory that ends at any allocation, and that its results are
// those of the kernels.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <adamant/c/adamant_c.h>
#include <adamant/core/abi.hpp>
#include <adamant/core/dtype.hpp>
#include <adamant/shard/format.hpp>

#if defined(WITHOUT_TSAN)
#include <adamant/numerics/coefficients.hpp>

#endif

#include "catch.hpp"

#if defined(WITHOUT_TSAN) // whose runtime has these operators itself
// Memory that ends: of this thread, the allocation that comes after so many others fails, once.
namespace {
thread_local long allocations_left = -1; // below 0: as many as there are
thread_local bool allocation_failed = false;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept
{
    if (allocations_left >= 0 && allocations_left-- == 0) {
        allocation_failed = true;
        return nullptr;
    }
    return alignment <= alignof(std::max_align_t)
               ? std::malloc(bytes == 0 ? 1 : bytes)
               : std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
void* allocate_or_throw(std::size_t bytes, std::size_t alignment = 1)
{
    if (void* const memory = allocate(bytes, alignment))
        return memory;
    throw std::bad_alloc();
}
} // namespace
void* operator new(std::size_t bytes)
{
    return allocate_or_throw(bytes);
}
void* operator new[](std::size_t bytes)
{
    return allocate_or_throw(bytes);
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept
{
    return allocate(bytes, 1);
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept
{
    return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t a)
{
    return allocate_or_throw(bytes, std::size_t(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a)
{
    return allocate_or_throw(bytes, std::size_t(a));
}
void operator delete(void* memory) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept
{
    std::free(memory);
}
#endif

namespace {

std::string last_error()
{
    return adamant_last_error();
}
void ok(adamant_status status)
{
    INFO(adamant_last_error());
    REQUIRE(status == ADAMANT_OK);
}
// The call fails in this way, with a text of the library's kind that holds these words.
void fails(adamant_status status, adamant_status expected, std::string const& words)
{
    INFO(adamant_last_error());
    REQUIRE(adamant_status_name(status) == std::string(adamant_status_name(expected)));
    REQUIRE(last_error().starts_with("adamant: "));
    REQUIRE(last_error().find(words) != std::string::npos);
}
void refused(adamant_status status, std::string const& words)
{
    fails(status, ADAMANT_INVALID_ARGUMENT, words);
}

template <class Struct, class Init>
Struct initialised(Init init)
{
    Struct it;
    std::memset(&it, 0xa5, sizeof it);
    ok(init(&it, sizeof it));
    return it;
}
adamant_executor_options executor_options()
{
    return initialised<adamant_executor_options>(adamant_executor_options_init);
}
adamant_optimizer_options options()
{
    return initialised<adamant_optimizer_options>(adamant_optimizer_options_init);
}
adamant_loss_scaling scaling()
{
    return initialised<adamant_loss_scaling>(adamant_loss_scaling_init);
}
adamant_hyperparameters hyperparameters()
{
    return initialised<adamant_hyperparameters>(adamant_hyperparameters_init);
}
adamant_shard shard()
{
    return initialised<adamant_shard>(adamant_shard_init);
}
adamant_step_values step_values()
{
    return initialised<adamant_step_values>(adamant_step_values_init);
}
adamant_report report()
{
    return initialised<adamant_report>(adamant_report_init);
}
adamant_core_options core_options()
{
    return initialised<adamant_core_options>(adamant_core_options_init);
}

struct freed {
    void operator()(adamant_executor* e) const { adamant_executor_free(e); }
    void operator()(adamant_optimizer* o) const { adamant_optimizer_free(o); }
    void operator()(adamant_deepspeed* d) const { adamant_deepspeed_free(d); }
};
using executor = std::unique_ptr<adamant_executor, freed>;
using optimizer = std::unique_ptr<adamant_optimizer, freed>;
using deepspeed = std::unique_ptr<adamant_deepspeed, freed>;

executor make_executor(std::uint32_t threads = 2)
{
    adamant_executor_options o = executor_options();
    o.threads = threads;
    o.bind = ADAMANT_BIND_NONE;
    adamant_executor* made = nullptr;
    ok(adamant_executor_create(&o, &made));
    return executor(made);
}

// Shards of several blocks, with arrays that begin as they always do.
struct model {
    static constexpr std::size_t sizes[] = {9000, 4096, 1, 5000};
    struct tensor {
        std::vector<float> param, grad, exp_avg, exp_avg_sq, sum;
        std::vector<std::uint16_t> weight_out;
    };
    std::vector<tensor> tensors;

    model()
    {
        test::random_bits random(1);
        for (std::size_t const n : sizes) {
            tensor t{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n),
                     std::vector<float>(n), std::vector<float>(n), std::vector<std::uint16_t>(n)};
            for (std::size_t i = 0; i < n; ++i) {
                t.param[i] = test::value_of(test::values::ordinary, random, -4, 0);
                t.weight_out[i] = adamant::narrow<adamant::bfloat16>(t.param[i]).bits;
            }
            tensors.push_back(t);
        }
        new_gradients(0);
    }
    void new_gradients(std::uint64_t step)
    {
        test::random_bits random(100 + step);
        for (tensor& t : tensors)
            for (float& g : t.grad)
                g = test::value_of(test::values::ordinary, random, -8, -2);
    }
    adamant_shard describe(std::size_t i)
    {
        adamant_shard s = shard();
        tensor& t = tensors[i];
        s.elements = t.param.size();
        s.param = t.param.data();
        s.grad = t.grad.data();
        s.exp_avg = t.exp_avg.data();
        s.exp_avg_sq = t.exp_avg_sq.data();
        s.weight_out = t.weight_out.data();
        s.weight_out_dtype = ADAMANT_BFLOAT16;
        s.accumulator = t.sum.data();
        s.accumulator_dtype = ADAMANT_FLOAT32;
        return s;
    }
    void add_to(adamant_optimizer* o)
    {
        adamant_hyperparameters h = hyperparameters();
        h.weight_decay = 0.01;
        h.decay = ADAMANT_DECAY_DECOUPLED;
        std::size_t group = 99;
        ok(adamant_add_group(o, "all", &h, 0, &group));
        REQUIRE(group == 0);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            adamant_shard const s = describe(i);
            std::size_t number = 99;
            ok(adamant_add_shard(o, 0, ("tensor" + std::to_string(i)).c_str(), &s, &number));
            REQUIRE(number == i);
        }
    }
    [[nodiscard]] std::uint64_t digest() const
    {
        std::uint64_t hash = 0xcbf29ce484222325u;
        auto const add = [&](void const* data, std::size_t bytes) {
            for (std::size_t i = 0; i < bytes; ++i)
                hash = (hash ^ static_cast<unsigned char const*>(data)[i]) * 0x100000001b3u;
        };
        for (tensor const& t : tensors) {
            for (std::vector<float> const* a : {&t.param, &t.exp_avg, &t.exp_avg_sq})
                add(a->data(), a->size() * sizeof(float));
            add(t.weight_out.data(), t.weight_out.size() * 2);
        }
        return hash;
    }
};

optimizer make_optimizer(model& m, adamant_optimizer_options const& o, std::uint32_t threads = 2)
{
    adamant_optimizer* made = nullptr;
    ok(adamant_optimizer_create(make_executor(threads).get(), &o, &made));
    m.add_to(made);
    return optimizer(made);
}
optimizer make_optimizer(model& m, std::uint32_t threads = 2)
{
    return make_optimizer(m, options(), threads);
}
std::uint64_t steps_of(optimizer const& o)
{
    std::uint64_t steps = 0;
    ok(adamant_steps(o.get(), &steps));
    return steps;
}

// A folder for one test.
struct folder {
    std::filesystem::path path;
    folder() : path(std::filesystem::temp_directory_path() / ("adamant_c_" + std::to_string(getpid())))
    {
        std::filesystem::create_directories(path);
    }
    ~folder() { std::filesystem::remove_all(path); }
    [[nodiscard]] std::string file(char const* name) const { return (path / name).string(); }
};

} // namespace

TEST_CASE("C: versions and names")
{
    REQUIRE(adamant_c_version() == ADAMANT_C_VERSION);
    REQUIRE(adamant_version() == std::to_string(ADAMANT_VERSION_MAJOR) + "." + std::to_string(ADAMANT_VERSION_MINOR) +
                                     "." + std::to_string(ADAMANT_VERSION_PATCH));
    REQUIRE(adamant_status_name(ADAMANT_OK) == std::string("ok"));
    std::vector<std::string> seen;
    for (adamant_status s = ADAMANT_OK; s <= ADAMANT_INTERNAL; ++s) {
        REQUIRE(std::find(seen.begin(), seen.end(), adamant_status_name(s)) == seen.end());
        seen.emplace_back(adamant_status_name(s));
    }
    for (adamant_status const s : {-1, ADAMANT_INTERNAL + 1, INT32_MIN, INT32_MAX})
        REQUIRE(adamant_status_name(s) == std::string("unknown status"));
}

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
    REQUIRE(text == std::string("as it was"));

    refused(adamant_executor_create(nullptr, nullptr), "made is a null");
    adamant_executor_free(nullptr);
    refused(adamant_executor_describe(nullptr, nullptr, nullptr, nullptr), "executor is a null");
    ok(adamant_executor_describe(cpu.get(), nullptr, nullptr, nullptr));

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

TEST_CASE("C: enums that hold nothing")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    adamant_optimizer* made = nullptr;
    adamant_executor* made_executor = nullptr;
    for (std::int32_t const wrong : {-1, 4, 255, 256, INT32_MIN, INT32_MAX}) {
        adamant_executor_options e = executor_options();
        e.bind = wrong;
        refused(adamant_executor_create(&e, &made_executor), "bind is " + std::to_string(wrong));
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
    REQUIRE((made == nullptr && made_executor == nullptr));
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
    check_struct<adamant_core_options>(adamant_core_options_init, "adamant_core_options", [](auto* it) {
        char text[100];
        it->machine = "pack:1 [numa] core:4 pu:1";
        it->ranks = 1;
        return adamant_select_cores(it, text, sizeof text, nullptr, 0);
    });
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
    auto const create = [&](adamant_optimizer_options const* it) {
        adamant_optimizer* made = nullptr;
        adamant_status const s = adamant_optimizer_create(cpu.get(), it, &made);
        adamant_optimizer_free(made);
        return s;
    };
    check_struct<adamant_optimizer_options>(adamant_optimizer_options_init, "adamant_optimizer_options", create);
    check_struct<adamant_loss_scaling>(adamant_loss_scaling_init, "adamant_loss_scaling", [&](auto* it) {
        adamant_optimizer_options o = options();
        o.loss_scaling = it;
        return create(&o);
    });
    optimizer const o = make_optimizer(m);
    check_struct<adamant_hyperparameters>(adamant_hyperparameters_init, "adamant_hyperparameters",
                                          [&](auto* it) { return adamant_set_hyperparameters(o.get(), 0, it); });
    check_struct<adamant_shard>(adamant_shard_init, "adamant_shard", [&, n = 0](auto* it) mutable {
        return adamant_add_shard(o.get(), 0, ("none" + std::to_string(n++)).c_str(), it, nullptr);
    });
    check_struct<adamant_step_values>(adamant_step_values_init, "adamant_step_values",
                                      [&](auto* it) { return adamant_step(o.get(), it, nullptr); });

    // What is written: too short is refused before anything is done, and what is not known becomes zero.
    std::uint64_t const before = m.digest();
    std::uint64_t const steps = steps_of(o);
    adamant_report r = report();
    r.struct_bytes = sizeof r - 8;
    refused(adamant_step(o.get(), nullptr, &r), "struct_bytes of adamant_report");
    ok(adamant_begin_step(o.get(), nullptr));
    std::size_t shards = 0;
    ok(adamant_shard_count(o.get(), &shards));
    for (std::size_t i = 0; i < shards; ++i)
        ok(adamant_leave_out(o.get(), i));
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

TEST_CASE("C: options, groups and shards that cannot be")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    adamant_executor* e = nullptr;
    adamant_optimizer* made = nullptr;

    adamant_executor_options eo = executor_options();
    eo.isa = "sse9";
    refused(adamant_executor_create(&eo, &e), "sse9");
    eo = executor_options();
    eo.pus = "0-";
    refused(adamant_executor_create(&eo, &e), "0-");
    eo.pus = "60000";
    fails(adamant_executor_create(&eo, &e), ADAMANT_UNAVAILABLE, "60000");
    eo.threads = 1;
    fails(adamant_executor_create(&eo, &e), ADAMANT_UNAVAILABLE, "60000");
    REQUIRE(e == nullptr);
    eo = executor_options();
    eo.isa = "scalar";
    eo.pus = "";
    eo.threads = 3;
    eo.bind = ADAMANT_BIND_NONE;
    ok(adamant_executor_create(&eo, &e));
    executor const three(e);
    char const* isa = nullptr;
    char const* pus = nullptr;
    std::uint32_t threads = 0;
    ok(adamant_executor_describe(e, &isa, &threads, &pus));
    REQUIRE((isa == std::string("scalar") && pus == std::string() && threads == 3));

    adamant_optimizer_options oo = options();
    oo.max_norm = -1;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "max_norm");
    oo.max_norm = oo.max_abs_grad = 1;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "max_abs_grad");
    adamant_loss_scaling ls = scaling();
    REQUIRE((ls.initial_scale == 65536 && ls.growth_factor == 2 && ls.backoff_factor == 0.5 && ls.min_scale == 1 &&
             ls.max_scale == 0x1p32 && ls.growth_interval == 2000 && ls.hysteresis == 1));
    oo = options();
    oo.loss_scaling = &ls;
    for (auto const& [field, name] : {std::pair{&adamant_loss_scaling::initial_scale, "initial_scale"},
                                      {&adamant_loss_scaling::growth_factor, "growth_factor"},
                                      {&adamant_loss_scaling::backoff_factor, "backoff_factor"},
                                      {&adamant_loss_scaling::min_scale, "min_scale"},
                                      {&adamant_loss_scaling::max_scale, "max_scale"}}) {
        ls = scaling();
        ls.*field = -3;
        refused(adamant_optimizer_create(cpu.get(), &oo, &made), name);
    }
    ls = scaling();
    ls.growth_interval = 0;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "growth_interval");
    ls = scaling();
    ls.hysteresis = 0;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "hysteresis");
    REQUIRE(made == nullptr);

    adamant_hyperparameters h = hyperparameters();
    REQUIRE((h.lr == 1e-3 && h.beta1 == 0.9 && h.beta2 == 0.999 && h.eps == 1e-8 && h.weight_decay == 0 &&
             h.decay == ADAMANT_DECAY_UNSET && h.bias_correction == 1));
    for (auto const& [field, name] : {std::pair{&adamant_hyperparameters::lr, "lr"},
                                      {&adamant_hyperparameters::beta1, "beta1"},
                                      {&adamant_hyperparameters::beta2, "beta2"},
                                      {&adamant_hyperparameters::eps, "eps"},
                                      {&adamant_hyperparameters::weight_decay, "weight_decay"}}) {
        h = hyperparameters();
        h.*field = -0.5;
        refused(adamant_add_group(o.get(), "x", &h, 0, nullptr), std::string(name) + " is -0.5");
    }
    h = hyperparameters();
    refused(adamant_add_group(o.get(), "all", &h, 0, nullptr), "'all'");
    h = {sizeof h, 0.25, 0.5, 0.75, 0.125, 0.0625, ADAMANT_DECAY_L2, 0};
    refused(adamant_set_hyperparameters(o.get(), 1, &h), "group 1");
    ok(adamant_set_hyperparameters(o.get(), 0, &h));
    adamant_hyperparameters got = hyperparameters();
    ok(adamant_get_hyperparameters(o.get(), 0, &got));
    REQUIRE(std::memcmp(&got, &h, sizeof h) == 0);
    refused(adamant_get_hyperparameters(o.get(), 1, &got), "group 1");
    ok(adamant_add_group(o.get(), "b", &h, 1, nullptr));

    // A shard: each pointer, each mismatch of a pointer and a type, each kind of place.
    model other;
    auto const add = [&](adamant_shard const& s, char const* name = "x", std::size_t group = 0) {
        return adamant_add_shard(o.get(), group, name, &s, nullptr);
    };
    for (auto const& [field, name] : {std::pair{&adamant_shard::param, "param"},
                                      {&adamant_shard::exp_avg, "exp_avg"},
                                      {&adamant_shard::exp_avg_sq, "exp_avg_sq"},
                                      {&adamant_shard::weight_out, "weight_out"},
                                      {&adamant_shard::accumulator, "accumulator"}}) {
        adamant_shard s = other.describe(0);
        s.*field = nullptr;
        refused(add(s), std::string(name) + " is");
    }
    adamant_shard s = other.describe(0);
    s.grad = nullptr;
    refused(add(s), "grad is null");
    s = other.describe(0);
    s.weight_out_dtype = ADAMANT_NONE;
    refused(add(s), "weight_out_dtype is ADAMANT_NONE");
    s = other.describe(0);
    s.accumulator_dtype = ADAMANT_NONE;
    refused(add(s), "accumulator_dtype is ADAMANT_NONE");
    s.accumulator_dtype = ADAMANT_FLOAT16;
    refused(add(s), "accumulator_dtype is float16");
    s = other.describe(0);
    s.exp_avg = s.param;
    refused(add(s), "overlap");
    s = other.describe(0);
    s.elements = SIZE_MAX / 4;
    refused(add(s), "does not fit in memory");
    s = other.describe(0);
    refused(add(s, ""), "no name");
    refused(add(s, "x", 2), "group 2");
    std::size_t const shape[] = {100, 90};
    s.dims = 2;
    refused(add(s), "dims is 2, but shape is a null");
    s.shape = shape;
    s.dims = 0;
    refused(add(s), "dims is 0, but shape is given");
    s.dims = 2;
    s.begin = 1;
    refused(add(s), "9001 of 9000");
    std::size_t const huge[] = {SIZE_MAX, 3};
    s.shape = huge;
    refused(add(s), "more elements than fit in memory");
    s.shape = shape;
    for (std::size_t const dims : {std::size_t{65}, SIZE_MAX / 4, SIZE_MAX}) {
        s.dims = dims;
        refused(add(s), "dims is " + std::to_string(dims));
    }
    s = other.describe(0);
    s.accumulator = const_cast<void*>(s.grad);
    refused(add(s), "grad and accumulator of shard 4 overlap");
    // Another shard's array is found before anything is written there.
    s = other.describe(0);
    s.accumulator = m.tensors[0].param.data();
    ok(add(s));
    refused(adamant_accumulate(o.get(), 4), "param of shard 0 and accumulator of shard 4 overlap");
    refused(adamant_prepare(o.get(), 0), "overlap");
}

TEST_CASE("C: steps that cannot be, and an error for each thread")
{
    model m;
    optimizer const o = make_optimizer(m);
    adamant_step_values v = step_values();
    std::uint64_t const before = m.digest();
    double const lr[] = {0.1, 0.2};
    v.lr_count = 1;
    refused(adamant_step(o.get(), &v, nullptr), "lr is a null");
    v.lr = lr;
    v.lr_count = 2;
    refused(adamant_step(o.get(), &v, nullptr), "2 groups, but there are 1");
    v = step_values();
    v.has_loss_scale = 1;
    refused(adamant_step(o.get(), &v, nullptr), "loss_scale is 0");
    v = step_values();
    v.max_norm = -1;
    v.max_abs_grad = -1;
    v.loss_scale = -1; // not said, so not looked at
    ok(adamant_begin_step(o.get(), &v));
    ok(adamant_abandon(o.get()));
    v.has_max_norm = 1;
    refused(adamant_step(o.get(), &v, nullptr), "max_norm is -1");
    v.has_max_norm = 0;
    v.has_max_abs_grad = 1;
    refused(adamant_begin_step(o.get(), &v), "max_abs_grad is -1");
    refused(adamant_submit(o.get(), 0), "no step is open");
    refused(adamant_leave_out(o.get(), 0), "no step is open");
    refused(adamant_finish(o.get(), nullptr), "no step is open");
    refused(adamant_abandon(o.get()), "no step is open");
    refused(adamant_rollback(o.get()), "keep_last_step");
    refused(adamant_poll(o.get(), nullptr, nullptr), "no step is under way");
    refused(adamant_wait(o.get(), 0, nullptr, nullptr), "no step is under way");
    refused(adamant_accumulate(o.get(), 4), "shard 4");
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_begin_step(o.get(), nullptr), "under way");
    refused(adamant_step(o.get(), nullptr, nullptr), "under way");
    refused(adamant_submit(o.get(), 4), "shard 4");
    ok(adamant_submit(o.get(), 1));
    refused(adamant_submit(o.get(), 1), "shard 1");
    refused(adamant_leave_out(o.get(), 1), "shard 1");
    refused(adamant_finish(o.get(), nullptr), "not been submitted: 0");
    refused(adamant_save_safetensors(o.get(), "/nowhere"), "under way");
    ok(adamant_abandon(o.get()));
    REQUIRE(m.digest() == before);
    REQUIRE(steps_of(o) == 0);

    // A text stays through calls that succeed, and other threads have their own.
    refused(adamant_submit(o.get(), 0), "no step is open");
    std::string const mine = last_error();
    std::thread([&] {
        REQUIRE(last_error().empty());
        refused(adamant_group_count(o.get(), nullptr), "count is a null");
    }).join();
    ok(adamant_step(o.get(), nullptr, nullptr));
    REQUIRE(last_error() == mine);
    // Names that no checkpoint could hold.
    adamant_hyperparameters const hyper = hyperparameters();
    refused(adamant_add_group(o.get(), "gr\xfc", &hyper, 0, nullptr), "'gr\\xfc', is not UTF-8");
    adamant_shard const added = m.describe(0);
    refused(adamant_add_shard(o.get(), 0, "\xff", &added, nullptr), "'\\xff', is not UTF-8");
    // Texts longer than there is room are cut, between characters.
    std::string name;
    while (name.size() < 6000)
        name += "\xe2\x82\xac";
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_add_group(o.get(), name.c_str(), &h, 0, nullptr));
    refused(adamant_add_group(o.get(), name.c_str(), &h, 0, nullptr), "parameter group");
    REQUIRE((last_error().size() <= 4095 && last_error().size() >= 4092));
    std::size_t const begin = last_error().find("\xe2\x82\xac");
    REQUIRE((last_error().size() - begin) % 3 == 0);
}

#if defined(WITHOUT_TSAN)
TEST_CASE("C: every combination of types has the bits of its kernel, and no other is taken")
{
    executor const cpu = make_executor(1);
    test::random_bits random(5);
    std::size_t taken = 0;
    constexpr std::size_t n = 5003;
    for (unsigned code = 0; code < 1024; ++code) {
        adamant::shard_dtypes types;
        for (std::size_t i = 0; i < 5; ++i)
            types[i] = static_cast<adamant::dtype>(code >> 2 * i & 3);
        adamant::shard_format const* const format = adamant::find_format(types);
        std::vector<test::array> arrays;
        for (std::size_t i = 0; i < 5; ++i) {
            arrays.emplace_back(types[i], n, i); // misaligned
            for (std::size_t j = 0; j < arrays[i].size(); ++j)
                arrays[i].set(j, i < 2 ? test::value_of(test::values::ordinary, random, -6, -1) : 0.0f);
        }
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
        optimizer const o(made);
        adamant_hyperparameters const h = hyperparameters();
        ok(adamant_add_group(made, "g", &h, 0, nullptr));
        adamant_shard s = shard();
        s.elements = n;
        s.param = arrays[0].data();
        s.grad = arrays[1].data();
        s.exp_avg = arrays[2].data();
        s.exp_avg_sq = arrays[3].data();
        s.weight_out = arrays[4].data();
        s.param_dtype = static_cast<adamant_dtype>(types[0]);
        s.grad_dtype = static_cast<adamant_dtype>(types[1]);
        s.exp_avg_dtype = static_cast<adamant_dtype>(types[2]);
        s.exp_avg_sq_dtype = static_cast<adamant_dtype>(types[3]);
        s.weight_out_dtype = static_cast<adamant_dtype>(types[4]);
        INFO(name(types[0]) << ' ' << name(types[1]) << ' ' << name(types[2]) << ' ' << name(types[3]) << ' '
                            << name(types[4]));
        if (format == nullptr) {
            refused(adamant_add_shard(made, 0, "x", &s, nullptr), "no shard has these types: param");
            continue;
        }
        ++taken;
        // The sum of two gradients, in turns: the step that reads a gradient of floats.
        test::array sum(taken % 2 == 0 ? adamant::dtype::float32 : adamant::dtype::bfloat16, n);
        bool const summed = taken % 3 == 0;
        if (summed) {
            s.accumulator = sum.data();
            s.accumulator_dtype = taken % 2 == 0 ? ADAMANT_FLOAT32 : ADAMANT_BFLOAT16;
        }
        std::vector<test::array> expected(arrays.begin(), arrays.end());
        test::array gradient(adamant::dtype::float32, n);
        ok(adamant_add_shard(made, 0, "x", &s, nullptr));
        if (summed) {
            ok(adamant_accumulate(made, 0));
            for (std::size_t j = 0; j < n; ++j)
                gradient.set(j, sum.get(j) + arrays[1].get(j));
        }
        ok(adamant_step(made, nullptr, nullptr));
        adamant::shard_dtypes const with_floats = {types[0], adamant::dtype::float32, types[2], types[3], types[4]};
        (summed ? adamant::find_format(with_floats) : format)
            ->step_for(adamant::isa::scalar)({expected[0].data(), summed ? gradient.data() : expected[1].data(),
                                              expected[2].data(), expected[3].data(), expected[4].data()},
                                             0, n, adamant::make_coefficients({}, 1, {}), false);
        for (std::size_t i = 0; i < 5; ++i) {
            INFO(adamant::shard_array::names[i]);
            REQUIRE(arrays[i].difference(expected[i]) == "");
        }
    }
    REQUIRE(taken == 60);
}
#endif

TEST_CASE("C: a step has the same bits in every way to take it")
{
    auto const run = [](adamant_speculation speculate, int how, std::uint32_t threads) {
        model m;
        adamant_optimizer_options p = options();
        p.max_norm = 3;
        p.speculate = speculate;
        p.keep_last_step = 1;
        optimizer const o = make_optimizer(m, p, threads);
        std::size_t bytes = 0;
        ok(adamant_memory_bytes(o.get(), 1, &bytes));
        REQUIRE(bytes > 0);
        ok(adamant_prepare(o.get(), 1));
        for (std::uint64_t step = 1; step <= 6; ++step) {
            m.new_gradients(step);
            adamant_report r = report();
            double const lr = 0.01 / static_cast<double>(step);
            adamant_step_values v = step_values();
            v.lr = &lr;
            v.lr_count = 1;
            if (step == 4) {
                v.has_max_norm = 1; // not clipped
                v.has_loss_scale = 1;
                v.loss_scale = 2;
            }
            if (how == 0) {
                ok(adamant_step(o.get(), &v, &r));
            } else if (how == 1) {
                ok(adamant_begin_step(o.get(), &v));
                for (std::size_t i = m.tensors.size(); i-- > 0;)
                    ok(adamant_submit(o.get(), i));
                ok(adamant_finish(o.get(), &r));
            } else if (how == 2) { // every shard from a thread of its own
                ok(adamant_begin_step(o.get(), &v));
                std::vector<std::thread> threads_of_shards;
                std::atomic<int> bad{0};
                for (std::size_t i = 0; i < m.tensors.size(); ++i)
                    threads_of_shards.emplace_back([&, i] {
                        if (adamant_submit(o.get(), i) != ADAMANT_OK)
                            ++bad;
                        if (adamant_submit(o.get(), i) != ADAMANT_INVALID_ARGUMENT ||
                            last_error().find("shard " + std::to_string(i)) == std::string::npos)
                            ++bad;
                    });
                for (std::thread& t : threads_of_shards)
                    t.join();
                REQUIRE(bad == 0);
                ok(adamant_finish(o.get(), &r));
            } else {
                ok(adamant_step_async(o.get(), &v));
                std::size_t n = 0;
                refused(adamant_step(o.get(), nullptr, nullptr), "under way");
                refused(adamant_step_async(o.get(), nullptr), "under way");
                refused(adamant_prepare(o.get(), 0), "under way");
                ok(adamant_shard_count(o.get(), &n));
                double progress = -1;
                std::int32_t over = 7;
                ok(adamant_poll(o.get(), &over, &progress));
                REQUIRE((over == 0 || over == 1));
                REQUIRE((progress >= 0 && progress <= 1));
                refused(adamant_wait(o.get(), 0, nullptr, nullptr), "over is a null");
                ok(adamant_wait(o.get(), 0, &over, nullptr));
                for (std::uint64_t const time : {std::uint64_t{1000}, UINT64_MAX - 1, UINT64_MAX})
                    if (over == 0) {
                        r.step = 0;
                        ok(adamant_wait(o.get(), time, &over, &r));
                    }
                REQUIRE(over == 1);
                refused(adamant_wait(o.get(), 0, &over, nullptr), "no step is under way");
            }
            if (how != 3) {
                REQUIRE(r.step == step);
                REQUIRE(r.outcome == ADAMANT_APPLIED);
                REQUIRE(r.elements == 9000 + 4096 + 1 + 5000);
                REQUIRE(r.loss_scale == (step == 4 ? 2 : 1));
                REQUIRE((step == 4) == (r.clip_coefficient == 1));
                REQUIRE(r.threads == std::max(threads, 1u));
                REQUIRE(r.isa != nullptr);
                REQUIRE(r.pus != nullptr);
                REQUIRE((r.gradients_bytes > 0 && r.gradients_seconds > 0 && r.seconds > r.gradients_seconds));
                REQUIRE((r.update_bytes > 0 || (step == 4 && r.speculated == 1)));
            }
            if (step == 5) { // back and again
                std::uint64_t const now = m.digest();
                ok(adamant_rollback(o.get()));
                REQUIRE(steps_of(o) == 4);
                REQUIRE(m.digest() != now);
                refused(adamant_rollback(o.get()), "no step to take back");
                ok(adamant_step(o.get(), &v, nullptr));
                REQUIRE(m.digest() == now);
            }
        }
        REQUIRE(steps_of(o) == 6);
        return m.digest();
    };
    std::uint64_t const expected = run(ADAMANT_SPECULATE_AUTOMATIC, 0, 1);
    for (adamant_speculation const s : {ADAMANT_SPECULATE_AUTOMATIC, ADAMANT_SPECULATE_ALWAYS, ADAMANT_SPECULATE_NEVER})
        for (int how = 0; how < 4; ++how)
            for (std::uint32_t const threads : {1u, 3u}) {
                INFO("speculation " << s << ", way " << how << ", threads " << threads);
                REQUIRE(run(s, how, threads) == expected);
            }
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

TEST_CASE("C: a step without an optimizer has an optimizer's bits, and so has the norm's sum")
{
    executor const cpu = make_executor(2);
    test::random_bits random(7);
    constexpr std::size_t n = 9001;
    std::vector<float> param(n), grad(n), exp_avg(n), exp_avg_sq(n);
    for (std::size_t i = 0; i < n; ++i) {
        param[i] = test::value_of(test::values::ordinary, random, -6, -1);
        grad[i] = test::value_of(test::values::ordinary, random, -8, -2);
    }
    std::vector<float> same_param = param, same_avg = exp_avg, same_sq = exp_avg_sq;
    adamant_shard s = shard();
    s.elements = n;
    s.param = param.data();
    s.grad = grad.data();
    s.exp_avg = exp_avg.data();
    s.exp_avg_sq = exp_avg_sq.data();
    adamant_hyperparameters h = hyperparameters();
    h.weight_decay = 0.1;
    h.decay = ADAMANT_DECAY_DECOUPLED;
    adamant_optimizer* made = nullptr;
    ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
    optimizer const o(made);
    ok(adamant_add_group(made, "g", &h, 0, nullptr));
    ok(adamant_add_shard(made, 0, "w", &s, nullptr));
    adamant_step_values values{};
    ok(adamant_step_values_init(&values, sizeof values));
    values.has_loss_scale = 1;
    values.loss_scale = 8;
    adamant_report report{};
    report.struct_bytes = sizeof report;
    adamant_shard mine = s;
    mine.param = same_param.data();
    mine.exp_avg = same_avg.data();
    mine.exp_avg_sq = same_sq.data();
    for (std::uint64_t t = 1; t <= 3; ++t) {
        ok(adamant_step(made, &values, &report));
        std::uint64_t nonfinite = 9;
        ok(adamant_step_shard(cpu.get(), &mine, &h, t, 8, 1, &nonfinite));
        CHECK(nonfinite == 0);
        double sum = 0;
        ok(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, &sum, nullptr));
        CHECK(std::sqrt(sum) / 8 == report.global_norm);
    }
    CHECK(param == same_param);
    CHECK(exp_avg == same_avg);
    CHECK(exp_avg_sq == same_sq);

    grad[5] = std::numeric_limits<float>::infinity();
    std::uint64_t nonfinite = 0;
    ok(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, nullptr, &nonfinite));
    CHECK(nonfinite == 1);
    same_param = param;
    refused(adamant_step_shard(cpu.get(), &s, &h, 0, 1, 1, nullptr), "step");
    refused(adamant_step_shard(cpu.get(), &s, &h, 1, 0, 1, nullptr), "loss_scale is 0");
    refused(adamant_step_shard(nullptr, &s, &h, 1, 1, 1, nullptr), "the executor is a null pointer");
    refused(adamant_step_shard(cpu.get(), nullptr, &h, 1, 1, 1, nullptr), "adamant_shard is a null pointer");
    refused(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_NONE, n, nullptr, nullptr), "has no type");
    refused(adamant_sum_of_squares(cpu.get(), grad.data(), 4, n, nullptr, nullptr), "dtype is 4");
    refused(adamant_sum_of_squares(cpu.get(), nullptr, ADAMANT_BFLOAT16, n, nullptr, nullptr), "grad is null");
    mine.accumulator = same_avg.data();
    mine.accumulator_dtype = ADAMANT_FLOAT32;
    refused(adamant_step_shard(cpu.get(), &mine, &h, 1, 1, 1, nullptr), "is given an accumulator");
    CHECK(param == same_param);
}

TEST_CASE("C: infinities, dynamic loss scale, shards left out, accumulation")
{
    model m;
    adamant_loss_scaling ls = scaling();
    ls.initial_scale = 8;
    ls.growth_interval = 1;
    ls.growth_factor = 4;
    ls.backoff_factor = 0.25;
    ls.hysteresis = 2;
    ls.max_scale = 16;
    ls.min_scale = 2;
    adamant_optimizer_options p = options();
    p.loss_scaling = &ls;
    p.reduce_user = &m; // without reduce it is nothing
    optimizer const o = make_optimizer(m, p);
    ls.initial_scale = 0; // was copied
    double scale = 0;
    ok(adamant_loss_scale(o.get(), &scale));
    REQUIRE(scale == 8);
    std::uint64_t const before = m.digest();
    m.tensors[3].grad[4321] = INFINITY;
    adamant_report r = report();
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((r.outcome == ADAMANT_SKIPPED && r.nonfinite_grads == 1 && r.has_first_nonfinite == 1));
    REQUIRE((r.first_nonfinite_shard == 3 && r.first_nonfinite_index == 4321));
    REQUIRE(m.digest() == before);
    for (double const expected : {8.0, 2.0, 2.0}) { // one is let pass; then down, to the least
        ok(adamant_loss_scale(o.get(), &scale));
        REQUIRE(scale == expected);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    REQUIRE((m.digest() == before && steps_of(o) == 0));
    m.new_gradients(1);
    ok(adamant_accumulate(o.get(), 0));
    REQUIRE(m.tensors[0].sum == m.tensors[0].grad);
    ok(adamant_clear_accumulators(o.get()));
    std::vector<float> const param = m.tensors[2].param;
    ok(adamant_begin_step(o.get(), nullptr));
    ok(adamant_leave_out(o.get(), 2));
    for (std::size_t const i : test::sizes{0, 1, 3})
        ok(adamant_submit(o.get(), i));
    refused(adamant_accumulate(o.get(), 0), "shard 0");
    ok(adamant_finish(o.get(), &r));
    REQUIRE((r.elements == 9000 + 4096 + 5000 && r.has_first_nonfinite == 0 && r.loss_scale == 2));
    REQUIRE(m.tensors[2].param == param);
    for (double const expected : {8.0, 16.0, 16.0}) { // up to the most
        ok(adamant_loss_scale(o.get(), &scale));
        REQUIRE(scale == expected);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
}

TEST_CASE("C: the sum over processes, and what becomes of a step when it fails")
{
    struct hook {
        std::int32_t status = 0;
        double factor = 4;
        std::uint64_t more = 0;
        int calls = 0;
        static std::int32_t run(void* user, double* sum, std::uint64_t* nonfinite)
        {
            hook& self = *static_cast<hook*>(user);
            ++self.calls;
            *sum *= self.factor;
            *nonfinite += self.more;
            if (self.status == 1000)
                throw 5; // from C++ that should not
            return self.status;
        }
    } reduce;
    model m;
    adamant_optimizer_options p = options();
    p.reduce = hook::run;
    p.reduce_user = &reduce;
    p.speculate = ADAMANT_SPECULATE_ALWAYS;
    optimizer const o = make_optimizer(m, p);
    adamant_report alone = report();
    adamant_report r = report();
    {
        model same;
        optimizer const without = make_optimizer(same);
        ok(adamant_step(without.get(), nullptr, &alone));
    }
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((reduce.calls == 1 && r.global_norm == 2 * alone.global_norm));
    reduce.more = 3; // elsewhere
    std::uint64_t const before = m.digest();
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((r.outcome == ADAMANT_SKIPPED && r.nonfinite_grads == 3 && r.has_first_nonfinite == 0));
    reduce.more = 0;

    auto const submit_all = [&] {
        for (std::size_t i = 0; i < m.tensors.size(); ++i)
            ok(adamant_submit(o.get(), i));
    };
    for (std::int32_t const status : {7, -1}) {
        reduce.status = status;
        std::string const words = "returned " + std::to_string(status);
        r.step = 99;
        // begun: stays open, and goes on when it can
        ok(adamant_begin_step(o.get(), nullptr));
        submit_all();
        fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, words);
        fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, words);
        ok(adamant_abandon(o.get()));
        REQUIRE(m.digest() == before);
        // asynchronous: over
        ok(adamant_step_async(o.get(), nullptr));
        std::int32_t over = 0;
        fails(adamant_wait(o.get(), ADAMANT_FOR_EVER, &over, &r), ADAMANT_REDUCE_FAILED, words);
        REQUIRE(over == 1);
        refused(adamant_poll(o.get(), nullptr, nullptr), "no step is under way");
        REQUIRE(m.digest() == before);
        // whole: over
        fails(adamant_step(o.get(), nullptr, &r), ADAMANT_REDUCE_FAILED, words);
        REQUIRE(m.digest() == before);
        REQUIRE(r.step == 99);
        refused(adamant_finish(o.get(), nullptr), "no step is open");
    }
    REQUIRE(steps_of(o) == 1);
    reduce.status = 1000;
    fails(adamant_step(o.get(), nullptr, nullptr), ADAMANT_REDUCE_FAILED, "threw an exception");
    reduce.status = 7;
    ok(adamant_begin_step(o.get(), nullptr));
    submit_all();
    fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, "returned 7");
    reduce.status = 0;
    for (double const impossible : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        reduce.factor = impossible;
        refused(adamant_finish(o.get(), &r), "reduce was given the sum of squares");
    }
    reduce.factor = 4;
    ok(adamant_finish(o.get(), &r));
    REQUIRE((r.step == 2 && steps_of(o) == 2));
}

TEST_CASE("C: an optimizer that is freed in the midst of a step leaves what the header says")
{
    model const fresh;
    model whole; // stepped
    ok(adamant_step(make_optimizer(whole).get(), nullptr, nullptr));
    for (bool const takes_back : {true, false}) {
        model m;
        adamant_optimizer_options p = options();
        p.on_nonfinite = takes_back ? ADAMANT_NONFINITE_SKIP : ADAMANT_NONFINITE_APPLY; // which waits for no norm
        {
            optimizer const o = make_optimizer(m, p);
            ok(adamant_begin_step(o.get(), nullptr));
            ok(adamant_submit(o.get(), 1));
            ok(adamant_submit(o.get(), 2));
            ok(adamant_leave_out(o.get(), 3));
        }
        for (std::size_t i = 0; i < m.tensors.size(); ++i) {
            bool const stays_stepped = !takes_back && (i == 1 || i == 2);
            model::tensor const& expected = (stays_stepped ? whole : fresh).tensors[i];
            REQUIRE(m.tensors[i].param == expected.param);
            REQUIRE(m.tensors[i].exp_avg == expected.exp_avg);
            REQUIRE(m.tensors[i].exp_avg_sq == expected.exp_avg_sq);
        }
    }
}

TEST_CASE("C: a budget for records is a bound, and rollback sees gradients of another sign")
{
    model m;
    adamant_optimizer_options p = options();
    p.journal_budget_bytes = SIZE_MAX - 1;
    p.keep_last_step = 1;
    optimizer const o = make_optimizer(m, p);
    std::size_t bytes = 0;
    ok(adamant_memory_bytes(o.get(), 1, &bytes));
    REQUIRE(bytes < 10'000'000);
    std::uint64_t const before = m.digest();
    ok(adamant_step(o.get(), nullptr, nullptr));
    std::uint64_t const stepped = m.digest();
    m.tensors[0].grad[8999] *= -1;
    refused(adamant_rollback(o.get()), "they have changed since");
    REQUIRE(m.digest() == stepped);
    m.tensors[0].grad[8999] *= -1;
    ok(adamant_rollback(o.get()));
    REQUIRE(m.digest() == before);
}

TEST_CASE("C: checkpoints, of one and of several files")
{
    folder const dir;
    std::string const whole = dir.file("whole.safetensors");
    model m;
    optimizer const o = make_optimizer(m);
    for (std::uint64_t step = 1; step <= 3; ++step) {
        m.new_gradients(step);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    ok(adamant_save_safetensors(o.get(), whole.c_str()));
    fails(adamant_save_safetensors(o.get(), dir.file("no/such/folder").c_str()), ADAMANT_UNAVAILABLE, "no/such/folder");

    model n;
    optimizer const into = make_optimizer(n);
    std::uint64_t const fresh = n.digest();
    char const* path = nullptr;
    auto const load = [&](std::string const& file, adamant_optimizer* to) {
        path = file.c_str();
        return adamant_load_safetensors(to, &path, 1);
    };
    fails(load(dir.file("none"), into.get()), ADAMANT_UNAVAILABLE, "none");
    // A path of any bytes, in a text that is UTF-8 all the same.
    fails(load(dir.file("\xc3\xa4\xff\xe2\x82.safetensors"), into.get()), ADAMANT_UNAVAILABLE,
          "/\xc3\xa4\\xff\\xe2\\x82.safetensors: cannot be read");
    {
        std::ifstream in(whole, std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(in)), {});
        bytes[bytes.size() - 100] ^= 1;
        std::ofstream(dir.file("flipped"), std::ios::binary) << bytes;
        std::ofstream(dir.file("cut"), std::ios::binary) << bytes.substr(0, bytes.size() - 5);
    }
    fails(load(dir.file("flipped"), into.get()), ADAMANT_CORRUPTED, "flipped");
    fails(load(dir.file("cut"), into.get()), ADAMANT_CORRUPTED, "cut");
    REQUIRE((n.digest() == fresh && steps_of(into) == 0));
    ok(load(whole, into.get()));
    REQUIRE((n.digest() == m.digest() && steps_of(into) == 3));
    char const* const twice[] = {whole.c_str(), whole.c_str()};
    refused(adamant_load_safetensors(into.get(), twice, 2), "");

    // Two ranks: the first tensor is the one's, the last the other's, and of the rest each has a part.
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(make_executor(1).get(), nullptr, &made));
        optimizer const part(made);
        adamant_hyperparameters const h = hyperparameters();
        ok(adamant_add_group(made, "all", &h, 0, nullptr));
        model own;
        for (std::size_t i = 0; i < own.tensors.size(); ++i) {
            std::size_t const all = own.tensors[i].param.size();
            adamant_shard s = own.describe(i);
            s.shape = &all;
            s.dims = 1;
            std::size_t const cut = i == 0 ? all : i + 1 == own.tensors.size() ? 0 : all / 3;
            s.begin = rank == 0 ? 0 : cut;
            s.elements = rank == 0 ? cut : all - cut;
            if (s.elements == 0)
                continue;
            ok(adamant_add_shard(made, 0, ("tensor" + std::to_string(i)).c_str(), &s, nullptr));
        }
        ok(load(whole, made));
        files.push_back(dir.file(rank == 0 ? "rank0" : "rank1"));
        ok(adamant_save_safetensors(made, files.back().c_str()));
    }
    model joined;
    optimizer const both = make_optimizer(joined);
    refused(load(files[0], both.get()), "is a rank's file missing?");
    char const* const paths[] = {files[1].c_str(), files[0].c_str()};
    ok(adamant_load_safetensors(both.get(), paths, 2));
    REQUIRE((joined.digest() == m.digest() && steps_of(both) == 3));
}

TEST_CASE("C: the choice of cores")
{
    char adam[64];
    char host[64];
    adamant_core_options c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    c.cpuadam_cores_perc = 0.75;
    auto const choose = [&] { return adamant_select_cores(&c, adam, sizeof adam, host, sizeof host); };
    ok(choose());
    REQUIRE(std::string(adam) == "4,6,8,10,12,14");
    REQUIRE(std::string(host) == "0,2");
    c.rank = 1;
    ok(choose());
    REQUIRE((adam == std::string("20,22,24,26,28,30") && host == std::string("16,18")));
    std::string const was = adam;
    refused(adamant_select_cores(&c, adam, was.size(), host, sizeof host), "needs " + std::to_string(was.size() + 1));
    refused(adamant_select_cores(&c, adam, 0, host, sizeof host), "has 0 bytes");
    refused(adamant_select_cores(&c, adam, sizeof adam, host, 1), "host_pus has 1 bytes");
    REQUIRE(adam == was);
    ok(adamant_select_cores(&c, adam, was.size() + 1, nullptr, 0));
    c.every_pu_of_cores = 1;
    ok(choose());
    REQUIRE((adam == std::string("20-31") && host == std::string("16-19")));
    c.rank = 2;
    refused(choose(), "rank is 2");
    c.rank = 1;
    c.cpuadam_cores = 3;
    refused(choose(), "more than one of cpuadam_cores_perc");
    c.cpuadam_cores_perc = 0;
    ok(choose());
    REQUIRE(adam == std::string("26-31"));
    c.cpuadam_cores = 0;
    c.pt_reserved_cores = 8;
    fails(choose(), ADAMANT_UNAVAILABLE, "8 cores");
    c.pt_reserved_cores = 0;
    c.pt_reserved_cores_perc = 0.5;
    c.pus = "16-31";
    c.ranks = 1;
    c.rank = 0;
    ok(choose());
    REQUIRE((adam == std::string("24-31") && host == std::string("16-23")));
    c.pus = "x";
    refused(choose(), "x");
    c.pus = nullptr;
    c.ranks = 0;
    c.rank = 1;
    refused(choose(), "ranks is 0");
    c.rank = 0;
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    ok(choose());
    REQUIRE(adam == std::string("24-31"));
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    c.machine = "no machine";
    refused(choose(), "no machine");
    c = core_options(); // this one: what is chosen can be used
    c.ranks = 1;
    ok(choose());
    adamant_executor_options e = executor_options();
    e.pus = adam;
    adamant_executor* made = nullptr;
    ok(adamant_executor_create(&e, &made));
    executor const owned(made);
    char const* pus = nullptr;
    ok(adamant_executor_describe(made, nullptr, nullptr, &pus));
    REQUIRE(pus == std::string(adam));
}

TEST_CASE("C: DeepSpeed's configuration")
{
    std::string const text = R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.25, "betas": [0.5, 0.75],
        "weight_decay": 0.125, "maximize": true}}, "gradient_clipping": 2, "fp16": {"enabled": true,
        "initial_scale_power": 4}, "gradient_accumulation_steps": 3, "wall_clock_breakdown": false,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "cpuadam_cores_perc": 0.75}}})";
    adamant_deepspeed* made = nullptr;
    refused(adamant_deepspeed_parse("{", 1, &made), "JSON");
    REQUIRE(made == nullptr);
    ok(adamant_deepspeed_parse(text.data(), text.size(), &made));
    deepspeed const config(made);
    adamant_hyperparameters h = hyperparameters();
    adamant_optimizer_options o = options();
    adamant_step_values v = step_values();
    adamant_core_options c = core_options();
    std::int32_t maximize = 9;
    o.keep_last_step = 1;
    o.struct_bytes = 3;
    refused(adamant_deepspeed_apply(made, &h, &maximize, &o, &v, &c), "struct_bytes of adamant_optimizer_options");
    REQUIRE((h.lr == 1e-3 && maximize == 9));
    o.struct_bytes = sizeof o;
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, nullptr, nullptr, nullptr));
    ok(adamant_deepspeed_apply(made, &h, &maximize, &o, &v, &c));
    REQUIRE((h.lr == 0.25 && h.beta1 == 0.5 && h.beta2 == 0.75 && h.weight_decay == 0.125 &&
             h.decay == ADAMANT_DECAY_DECOUPLED && h.bias_correction == 1 && maximize == 1));
    REQUIRE((o.max_norm == 2 && o.loss_scaling != nullptr && o.keep_last_step == 1));
    REQUIRE((o.loss_scaling->initial_scale == 16 && o.loss_scaling->hysteresis == 2 &&
             o.loss_scaling->growth_interval == 1000));
    REQUIRE((v.has_loss_scale == 0 && c.cpuadam_cores_perc == 0.75 && c.pt_reserved_cores_perc == 0));
    adamant_dtype type = 0;
    std::uint32_t accumulation = 0;
    ok(adamant_deepspeed_model(made, nullptr, nullptr));
    ok(adamant_deepspeed_model(made, &type, &accumulation));
    REQUIRE((type == ADAMANT_FLOAT16 && accumulation == 3));
    char const* warning = nullptr;
    ok(adamant_deepspeed_warning(made, 0, &warning));
    REQUIRE(std::string(warning).find("wall_clock_breakdown") != std::string::npos);
    ok(adamant_deepspeed_warning(made, 1, &warning));
    REQUIRE(warning == nullptr);
    model m;
    ok(adamant_set_hyperparameters(make_optimizer(m, o).get(), 0, &h));

    std::string const fixed = R"({"fp16": {"enabled": true, "loss_scale": 32}})";
    ok(adamant_deepspeed_parse(fixed.data(), fixed.size(), &made));
    deepspeed const second(made);
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, &o, &v, nullptr));
    c.cpuadam_cores_perc = 0.5;
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, &o, &v, &c));
    REQUIRE((o.loss_scaling == nullptr && v.has_loss_scale == 1 && v.loss_scale == 32));
    REQUIRE(c.cpuadam_cores_perc == 0.5); // of which it says nothing
    ok(adamant_deepspeed_apply(config.get(), nullptr, nullptr, nullptr, &v, nullptr));
    REQUIRE(v.has_loss_scale == 0);

    std::string const offload = R"({"zero_optimization": {"stage": 3, "sub_group_size": 1234, "offload_optimizer":
        {"device": "cpu", "ratio": 0.25, "pin_memory": true, "super_offload": true}}})";
    ok(adamant_deepspeed_parse(offload.data(), offload.size(), &made));
    deepspeed const third(made);
    adamant_deepspeed_offload to;
    refused(adamant_deepspeed_offload_init(&to, 8), "struct_bytes of adamant_deepspeed_offload is 8");
    ok(adamant_deepspeed_offload_init(&to, sizeof to));
    ok(adamant_deepspeed_get_offload(made, &to));
    REQUIRE((to.zero_stage == 3 && to.sub_group_size_elems == 1234 && to.ratio == 0.25 && to.offload == 1 &&
             to.pin_memory == 1 && to.super_offload == 1 && to.cpuadam_cores_perc == 0));
    ok(adamant_deepspeed_get_offload(config.get(), &to));
    REQUIRE((to.zero_stage == 2 && to.ratio == 1 && to.pin_memory == 0 && to.cpuadam_cores_perc == 0.75));
}

#if defined(WITHOUT_TSAN)
// A whole life of an optimizer, in which the allocation number `n` of each call fails once and the call is made again:
// each failure says what it is and changes nothing, so the bits are the same. Returns how many calls failed.
static std::size_t live_with_failures(long n, folder const& dir, std::uint64_t& digest)
{
    std::size_t failed = 0;
    int call_number = 0;
    auto const with_failure = [&](auto const& call) {
        ++call_number;
        INFO("call " << call_number << ", allocation " << n);
        allocation_failed = false;
        allocations_left = n;
        adamant_status status = call();
        allocations_left = -1;
        if (allocation_failed && status != ADAMANT_OK) {
            ++failed;
            fails(status, ADAMANT_OUT_OF_MEMORY, "memory");
            status = call();
        }
        ok(status);
    };
    // nlohmann-json's destructor allocates and ends the process where it cannot; it is late in these calls.
    auto const with_early_failure = [&](auto const& call) {
        if (n < 100)
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
    oo.reduce = [](void* user, double*, std::uint64_t*) { return *static_cast<std::int32_t*>(user); };
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
        with_failure([&] { return adamant_submit(made, i); });
    with_failure([&] { return adamant_finish(made, nullptr); });
    with_failure([&] { return adamant_rollback(made); });
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
    m.new_gradients(3);
    with_failure([&] { return adamant_step(made, &v, nullptr); });
    REQUIRE(steps_of(o) == 3);
    digest = m.digest();
    std::string const json = R"({"optimizer": {"type": "Adam", "params": {"lr": 0.25}}, "steps_per_print": 3})";
    adamant_deepspeed* config = nullptr;
    with_early_failure([&] { return adamant_deepspeed_parse(json.data(), json.size(), &config); });
    deepspeed const owned(config);
    with_failure([&] { return adamant_deepspeed_apply(config, nullptr, nullptr, &oo, nullptr, nullptr); });
    adamant_core_options c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    char pus[64];
    with_failure([&] { return adamant_select_cores(&c, pus, sizeof pus, nullptr, 0); });
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
#endif
