// SPDX-License-Identifier: Apache-2.0
// The C interface over the classes of the library: what each function says is in adamant_c.h. The one file of the
// project that is compiled into a library; the steps of all types come with it from a table.
#include <adamant/c/adamant_c.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/checkpoint/safetensors.hpp>
#include <adamant/config/deepspeed_json.hpp>
#include <adamant/core/utf8.hpp>
#include <adamant/machine.hpp>

using adamant::invalid_argument;
using adamant::unavailable;

struct adamant_executor {
    adamant::executor cpu;
    std::string pus;
};
struct adamant_optimizer {
    adamant_optimizer(adamant::executor const& cpu, adamant::optimizer_options options) : of(cpu, std::move(options)) {}

    adamant::optimizer of;
    std::optional<adamant::optimizer::ticket> ticket = {}; // of adamant_step_async()
};
struct adamant_deepspeed {
    adamant::deepspeed_config config;
    adamant_loss_scaling scaling;
};

namespace {

// ---- Errors

struct reduce_failed : adamant::error {
    using error::error;
};

// No text of its own memory, so that saying what is wrong cannot fail, nor saying it late in a thread's life.
constinit thread_local char last_error[4096] = "";

adamant_status fail(adamant_status status, std::string_view text) noexcept
{
    std::size_t n = 0;
    adamant::detail::each_utf8(text, [&](std::string_view character) { // paths need not be UTF-8
        bool const fits = character.size() < sizeof last_error - n;
        if (fits)
            n += character.copy(last_error + n, character.size());
        return fits;
    });
    last_error[n] = '\0';
    return status;
}

adamant_status fail_unexpectedly(char const* what) noexcept
{
    char text[512];
    std::snprintf(text, sizeof text, "adamant: something that cannot be has happened: %s; please report it", what);
    return fail(ADAMANT_INTERNAL, text);
}

// What is being thrown as a status and a text: the one place where exceptions end.
adamant_status status_of_exception() noexcept
{
    try {
        throw;
    } catch (reduce_failed const& e) {
        return fail(ADAMANT_REDUCE_FAILED, e.what());
    } catch (adamant::corrupted const& e) {
        return fail(ADAMANT_CORRUPTED, e.what());
    } catch (invalid_argument const& e) {
        return fail(ADAMANT_INVALID_ARGUMENT, e.what());
    } catch (unavailable const& e) {
        return fail(ADAMANT_UNAVAILABLE, e.what());
    } catch (std::bad_alloc const&) {
        return fail(ADAMANT_OUT_OF_MEMORY, "adamant: there is not enough memory for the call's own needs");
    } catch (std::length_error const&) {
        return fail(ADAMANT_OUT_OF_MEMORY, "adamant: the call needs more than fits in any memory; was a negative size "
                                           "converted?");
    } catch (std::system_error const& e) {
        return fail(ADAMANT_UNAVAILABLE, e.what());
    } catch (std::exception const& e) {
        return fail_unexpectedly(e.what());
    } catch (...) {
        return fail_unexpectedly("an exception that is none of the standard's");
    }
}

template <class Work>
adamant_status guarded(Work const& work) noexcept
{
    try {
        work();
        return ADAMANT_OK;
    } catch (...) {
        return status_of_exception();
    }
}

template <class T>
T& needed(T* pointer, char const* what)
{
    if (pointer == nullptr)
        throw invalid_argument(std::string("adamant: ") + what + " is a null pointer");
    return *pointer;
}
adamant::optimizer& of(adamant_optimizer* handle)
{
    return needed(handle, "the optimizer").of;
}
adamant::optimizer const& of(adamant_optimizer const* handle)
{
    return needed(handle, "the optimizer").of;
}
template <class T>
void give(T* where, T const& value)
{
    if (where != nullptr)
        *where = value;
}

// ---- Structs that may grow

// What is said of a struct where it is refused, and its size in version 1, below which none can be: fields that were
// appended later have their defaults for callers without them.
struct struct_kind {
    char const* name;
    std::size_t first_bytes;
};
template <class Struct>
constexpr struct_kind kind_of = {};
template <>
constexpr struct_kind kind_of<adamant_core_options> = {"adamant_core_options", 64};
template <>
constexpr struct_kind kind_of<adamant_executor_options> = {"adamant_executor_options", 40};
template <>
constexpr struct_kind kind_of<adamant_loss_scaling> = {"adamant_loss_scaling", 56};
template <>
constexpr struct_kind kind_of<adamant_optimizer_options> = {"adamant_optimizer_options", 72};
template <>
constexpr struct_kind kind_of<adamant_hyperparameters> = {"adamant_hyperparameters", 56};
template <>
constexpr struct_kind kind_of<adamant_shard> = {"adamant_shard", 112};
template <>
constexpr struct_kind kind_of<adamant_step_values> = {"adamant_step_values", 64};
template <>
constexpr struct_kind kind_of<adamant_report> = {"adamant_report", 168};
template <>
constexpr struct_kind kind_of<adamant_deepspeed_offload> = {"adamant_deepspeed_offload", 56};

// No struct of any version is so large: what is has not been initialised.
constexpr std::size_t most_struct_bytes = 4096;

template <class Struct>
void check_bytes(std::size_t bytes)
{
    constexpr struct_kind kind = kind_of<Struct>;
    static_assert(kind.first_bytes != 0 && kind.first_bytes <= sizeof(Struct) && sizeof(Struct) <= most_struct_bytes);
    if (bytes < kind.first_bytes || bytes > most_struct_bytes)
        throw invalid_argument(std::string("adamant: struct_bytes of ") + kind.name + " is " + std::to_string(bytes) +
                               ", but the struct has " + std::to_string(sizeof(Struct)) + "; call " + kind.name +
                               "_init(&it, sizeof it) first");
}
// Throws unless the caller's struct can be written to.
template <class Struct>
void check_target(Struct const* target)
{
    check_bytes<Struct>(needed(target, kind_of<Struct>.name).struct_bytes);
}
// With what `known` has for fields that the caller's struct does not reach.
template <class Struct>
Struct read(Struct const* from, Struct known = {})
{
    check_target(from);
    auto const* const bytes = reinterpret_cast<unsigned char const*>(from);
    for (std::size_t i = sizeof(Struct); i < from->struct_bytes; ++i)
        if (bytes[i] != 0)
            throw invalid_argument(std::string("adamant: byte ") + std::to_string(i) + " of " + kind_of<Struct>.name +
                                   " is set, which this version of the library (" + adamant_version() +
                                   ") does not know; was the program compiled for a later one?");
    std::memcpy(&known, from, std::min(sizeof(Struct), from->struct_bytes));
    return known;
}
// Writes all but struct_bytes, as far as the caller's struct goes; what the library does not know is zero.
template <class Struct>
void write(Struct known, Struct* to)
{
    std::size_t const bytes = to->struct_bytes;
    known.struct_bytes = bytes;
    std::memcpy(to, &known, std::min(sizeof known, bytes));
    if (bytes > sizeof known)
        std::memset(reinterpret_cast<unsigned char*>(to) + sizeof known, 0, bytes - sizeof known);
}
template <class Struct>
adamant_status init(Struct* to, std::size_t bytes, Struct const& defaults) noexcept
{
    return guarded([&] {
        needed(to, kind_of<Struct>.name);
        check_bytes<Struct>(bytes);
        to->struct_bytes = bytes;
        write(defaults, to);
    });
}

// ---- From C's structs to the library's, and back

template <class Enum>
Enum to_enum(std::int32_t value, Enum last, char const* what)
{
    if (value < 0 || value > static_cast<std::int32_t>(last))
        throw invalid_argument(std::string("adamant: ") + what + " is " + std::to_string(value) +
                               ", but it is from 0 to " + std::to_string(static_cast<std::int32_t>(last)));
    return static_cast<Enum>(value);
}

std::string text_or_empty(char const* text)
{
    return text == nullptr ? std::string() : std::string(text);
}
template <class T>
std::optional<T> unless_zero(T value)
{
    return value == T{} ? std::nullopt : std::optional<T>(value);
}

adamant_hyperparameters to_c(adamant::hyperparameters const& h)
{
    return {sizeof(adamant_hyperparameters),
            h.lr,
            h.beta1,
            h.beta2,
            h.eps,
            h.weight_decay,
            static_cast<adamant_decay>(h.mode),
            h.bias_correction};
}
adamant::hyperparameters from_c(adamant_hyperparameters const* hyper)
{
    adamant_hyperparameters const h = read(hyper);
    return {h.lr,
            h.beta1,
            h.beta2,
            h.eps,
            h.weight_decay,
            to_enum(h.decay, adamant::decay_mode::l2, "decay"),
            h.bias_correction != 0};
}

adamant_loss_scaling to_c(adamant::loss_scaling_options const& s)
{
    return {sizeof(adamant_loss_scaling),
            s.initial_scale,
            s.growth_factor,
            s.backoff_factor,
            s.min_scale,
            s.max_scale,
            s.growth_interval,
            s.hysteresis};
}
adamant::loss_scaling_options from_c(adamant_loss_scaling const* scaling)
{
    adamant_loss_scaling const s = read(scaling);
    return {.initial_scale = s.initial_scale,
            .growth_factor = s.growth_factor,
            .backoff_factor = s.backoff_factor,
            .growth_interval = s.growth_interval,
            .hysteresis = s.hysteresis,
            .min_scale = s.min_scale,
            .max_scale = s.max_scale};
}

adamant::executor from_c(adamant_executor_options const* options)
{
    if (options == nullptr)
        return adamant::executor();
    adamant_executor_options known{};
    known.prefetch_bytes = ADAMANT_AUTOMATIC_BYTES;
    adamant_executor_options const o = read(options, known);
    if (o.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES && o.prefetch_bytes > std::numeric_limits<std::uint32_t>::max())
        throw invalid_argument("adamant: prefetch_bytes is " + std::to_string(o.prefetch_bytes) +
                               ", but must be below 4 GiB, or ADAMANT_AUTOMATIC_BYTES");
    adamant::binding const bindings[] = {adamant::binding::automatic, adamant::binding::required,
                                         adamant::binding::if_possible, adamant::binding::none};
    static_cast<void>(to_enum(o.bind, ADAMANT_BIND_NONE, "bind"));
    adamant::executor_options to{.tier = o.isa == nullptr || *o.isa == '\0' ? adamant::isa::automatic
                                                                            : adamant::parse_isa(o.isa),
                                 .threads = o.threads,
                                 .pus = adamant::parse_index_set(text_or_empty(o.pus)),
                                 .bind = bindings[o.bind],
                                 .min_slice_elems = o.min_slice_elems};
    if (o.max_chunk_elems != 0)
        to.max_chunk_elems = o.max_chunk_elems;
    if (o.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES)
        to.prefetch_bytes = static_cast<std::uint32_t>(o.prefetch_bytes);
    return adamant::executor(to);
}

adamant::optimizer_options from_c(adamant_optimizer_options const* options)
{
    if (options == nullptr)
        return {};
    adamant_optimizer_options const o = read(options);
    adamant::optimizer_options to{.max_norm = o.max_norm,
                                  .max_abs_grad = o.max_abs_grad,
                                  .on_nonfinite =
                                      to_enum(o.on_nonfinite, adamant::nonfinite_policy::apply, "on_nonfinite"),
                                  .speculate = to_enum(o.speculate, adamant::speculation::never, "speculate"),
                                  .keep_last_step = o.keep_last_step != 0};
    if (o.loss_scaling != nullptr)
        to.loss_scaling = from_c(o.loss_scaling);
    if (o.journal_budget_bytes != ADAMANT_AUTOMATIC_BYTES)
        to.journal_budget_bytes = o.journal_budget_bytes;
    if (o.reduce != nullptr)
        to.reduce = [reduce = o.reduce, user = o.reduce_user](adamant::grad_squares squares) {
            std::int32_t status = 0;
            try {
                status = reduce(user, &squares.sum, &squares.nonfinite);
            } catch (...) { // a function in C++ that should not
                throw reduce_failed("adamant: the sum of gradients over all processes failed: the function that was "
                                    "given as reduce threw an exception");
            }
            if (status != 0)
                throw reduce_failed("adamant: the sum of gradients over all processes failed: the function that was "
                                    "given as reduce returned " +
                                    std::to_string(status));
            return squares;
        };
    return to;
}

adamant::step_values from_c(adamant_step_values const* values)
{
    if (values == nullptr)
        return {};
    adamant_step_values const v = read(values);
    if (v.lr == nullptr && v.lr_count != 0)
        throw invalid_argument("adamant: lr_count is " + std::to_string(v.lr_count) + ", but lr is a null pointer");
    adamant::step_values to{.lr = std::span(v.lr, v.lr_count)};
    if (v.has_loss_scale != 0)
        to.loss_scale = v.loss_scale;
    if (v.has_max_norm != 0)
        to.max_norm = v.max_norm;
    if (v.has_max_abs_grad != 0)
        to.max_abs_grad = v.max_abs_grad;
    return to;
}

void check_report(adamant_report const* report)
{
    if (report != nullptr)
        check_target(report);
}
void give_report(adamant::optimizer_report const& r, adamant_report* to) noexcept
{
    if (to == nullptr)
        return;
    adamant_report report{};
    report.step = r.step;
    report.outcome = static_cast<adamant_outcome>(r.outcome);
    report.speculated = r.speculated;
    report.rolled_back = r.rolled_back;
    report.has_first_nonfinite = r.first_nonfinite.has_value();
    if (r.first_nonfinite) {
        report.first_nonfinite_shard = r.first_nonfinite->shard;
        report.first_nonfinite_index = r.first_nonfinite->index;
    }
    report.nonfinite_grads = r.nonfinite_grads;
    report.loss_scale = r.loss_scale;
    report.global_norm = r.global_norm;
    report.clip_coefficient = r.clip_coefficient;
    report.elements = r.elements;
    report.shards_waited = r.shards_waited;
    report.journal_bytes = r.journal_bytes;
    report.seconds = r.seconds;
    report.gradients_seconds = r.gradients.seconds;
    report.update_seconds = r.update.seconds;
    report.gradients_bytes = r.gradients.bytes_moved;
    report.update_bytes = r.update.bytes_moved;
    report.threads = r.threads;
    report.isa = name(r.tier).data();
    report.pus = r.pus.data(); // a whole std::string's, so it ends in a zero
    write(report, to);
}

// ---- Shards

struct shard_of_c {
    adamant::any_shard view;
    adamant::accumulator_array accumulator;
};
shard_of_c make_shard(adamant_shard const& s)
{
    using adamant::dtype;
    auto const type = [](adamant_dtype value, char const* what) { return to_enum(value, dtype::float16, what); };
    adamant::shard_dtypes const types = {
        type(s.param_dtype, "param_dtype"), type(s.grad_dtype, "grad_dtype"), type(s.exp_avg_dtype, "exp_avg_dtype"),
        type(s.exp_avg_sq_dtype, "exp_avg_sq_dtype"), type(s.weight_out_dtype, "weight_out_dtype")};
    dtype const sum = type(s.accumulator_dtype, "accumulator_dtype");
    auto const absent = [](dtype of, void const* array, char const* what) {
        if (of == dtype::none && array != nullptr)
            throw invalid_argument(std::string("adamant: ") + what + " is given, but " + what +
                                   "_dtype is ADAMANT_NONE; set its type, or the pointer to null");
    };
    absent(types[adamant::shard_array::weight_out], s.weight_out, "weight_out");
    absent(sum, s.accumulator, "accumulator");
    if (sum != dtype::none && s.accumulator == nullptr && s.elements != 0)
        throw invalid_argument("adamant: accumulator is a null pointer, but accumulator_dtype is " +
                               std::string(name(sum)));
    if (sum == dtype::float16)
        throw invalid_argument("adamant: accumulator_dtype is float16, but must be float32, bfloat16 or none");

    adamant::shard_format const* const format = adamant::find_format(types);
    if (format == nullptr) {
        std::string asked;
        for (std::size_t i = 0; i < types.size(); ++i)
            (asked += i == 0 ? "" : ", ") +=
                std::string(adamant::shard_array::names[i]) + " " + std::string(name(types[i]));
        throw invalid_argument("adamant: no shard has these types: " + asked +
                               "; param and grad are of any type but none, the moments float32 or bfloat16, and "
                               "weight_out is bfloat16 or float16 beside a float32 param, else none");
    }
    adamant::kernel::step_pointers const arrays{
        static_cast<std::byte*>(s.param), static_cast<std::byte const*>(s.grad), static_cast<std::byte*>(s.exp_avg),
        static_cast<std::byte*>(s.exp_avg_sq), static_cast<std::byte*>(s.weight_out)};
    adamant::detail::check_arrays(types, arrays, s.elements);
    return {adamant::any_shard(*format, arrays, s.elements), {s.accumulator, sum}};
}

adamant::optimizer::ticket& ticket_of(adamant_optimizer& optimizer)
{
    if (!optimizer.ticket)
        throw invalid_argument("adamant: no step is under way; adamant_step_async() begins one");
    return *optimizer.ticket;
}

// ---- Cores

void check_fits(std::string const& text, char const* to, std::size_t bytes, char const* what)
{
    if (to == nullptr && bytes != 0)
        throw invalid_argument(std::string("adamant: ") + what + " is a null pointer, but said to have " +
                               std::to_string(bytes) + " bytes");
    if (to != nullptr && bytes <= text.size())
        throw invalid_argument(std::string("adamant: ") + what + " has " + std::to_string(bytes) +
                               " bytes, but needs " + std::to_string(text.size() + 1));
}

adamant::rank_cores select(adamant_core_options const& o)
{
    adamant::core_request request{
        .cpuadam_cores_perc = unless_zero(o.cpuadam_cores_perc),
        .cpuadam_cores = unless_zero(o.cpuadam_cores),
        .pt_reserved_cores = unless_zero(o.pt_reserved_cores),
        .pt_reserved_cores_perc = unless_zero(o.pt_reserved_cores_perc),
        .list = adamant::parse_index_set(text_or_empty(o.pus)),
        .smt = o.every_pu_of_cores != 0 ? adamant::smt_policy::all : adamant::smt_policy::one_per_core,
        .fast = o.fast_cores_to_host != 0 ? adamant::fast_cores::host : adamant::fast_cores::optimizer};
    adamant::local_rank self{o.rank, o.ranks, {}};
    if (self.ranks == 0 && self.rank != 0)
        throw invalid_argument("adamant: rank is " + std::to_string(o.rank) +
                               ", but ranks is 0, which leaves both to the environment");
    if (self.ranks == 0)
        self = adamant::rank_from_environment();
    if (self.rank >= self.ranks)
        throw invalid_argument("adamant: rank is " + std::to_string(self.rank) + ", but there are " +
                               std::to_string(self.ranks) + " ranks, which count from 0");
    request.ranks = self.ranks;
#if defined(ADAMANT_NO_HWLOC)
    throw unavailable("adamant: cores are to be chosen, but this library was built without hwloc (ADAMANT_HWLOC=OFF)");
#else
    adamant::machine const machine = o.machine == nullptr ? adamant::live_machine() : adamant::read_machine(o.machine);
    return adamant::select_cores(machine, request)[self.rank];
#endif
}

} // namespace

// ---- The interface

#define ADAMANT_TEXT_(x) #x
#define ADAMANT_TEXT(x) ADAMANT_TEXT_(x)

uint32_t adamant_c_version(void)
{
    return ADAMANT_C_VERSION;
}
const char* adamant_version(void)
{
    return ADAMANT_TEXT(ADAMANT_VERSION_MAJOR) "." ADAMANT_TEXT(ADAMANT_VERSION_MINOR) "." ADAMANT_TEXT(
        ADAMANT_VERSION_PATCH);
}
const char* adamant_last_error(void)
{
    return last_error;
}
const char* adamant_status_name(adamant_status status)
{
    switch (status) {
    case ADAMANT_OK: return "ok";
    case ADAMANT_INVALID_ARGUMENT: return "invalid argument";
    case ADAMANT_UNAVAILABLE: return "unavailable";
    case ADAMANT_OUT_OF_MEMORY: return "out of memory";
    case ADAMANT_CORRUPTED: return "corrupted";
    case ADAMANT_REDUCE_FAILED: return "reduce failed";
    case ADAMANT_INTERNAL: return "internal";
    default: return "unknown status";
    }
}

adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes, {});
}
adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus, size_t adam_bytes,
                                    char* host_pus, size_t host_bytes)
{
    return guarded([&] {
        needed(adam_pus, "adam_pus");
        adamant::rank_cores const cores = select(read(options));
        std::string const adam = to_list(cores.adam_pus);
        std::string const host = to_list(cores.host_pus);
        check_fits(adam, adam_pus, adam_bytes, "adam_pus");
        check_fits(host, host_pus, host_bytes, "host_pus");
        std::memcpy(adam_pus, adam.c_str(), adam.size() + 1);
        if (host_pus != nullptr)
            std::memcpy(host_pus, host.c_str(), host.size() + 1);
    });
}

adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes)
{
    adamant_executor_options defaults{};
    defaults.min_slice_elems = adamant::executor_options{}.min_slice_elems;
    defaults.prefetch_bytes = ADAMANT_AUTOMATIC_BYTES;
    return init(options, struct_bytes, defaults);
}
adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made)
{
    return guarded([&] {
        needed(made, "made");
        auto executor = std::make_unique<adamant_executor>(adamant_executor{from_c(options), {}});
        if (auto const& team = executor->cpu.team(); team != nullptr && team->bound())
            executor->pus = to_list(team->bound_to());
        *made = executor.release();
    });
}
void adamant_executor_free(adamant_executor* executor)
{
    delete executor;
}
adamant_status adamant_executor_describe(const adamant_executor* executor, const char** isa, uint32_t* threads,
                                         const char** pus)
{
    return guarded([&] {
        adamant_executor const& e = needed(executor, "the executor");
        give<const char*>(isa, name(e.cpu.tier()).data());
        give<uint32_t>(threads, e.cpu.threads());
        give<const char*>(pus, e.pus.c_str());
    });
}

adamant_status adamant_loss_scaling_init(adamant_loss_scaling* scaling, size_t struct_bytes)
{
    return init(scaling, struct_bytes, to_c(adamant::loss_scaling_options{}));
}
adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes)
{
    adamant_optimizer_options defaults{};
    defaults.journal_budget_bytes = ADAMANT_AUTOMATIC_BYTES;
    return init(options, struct_bytes, defaults);
}
adamant_status adamant_optimizer_create(const adamant_executor* executor, const adamant_optimizer_options* options,
                                        adamant_optimizer** made)
{
    return guarded([&] {
        needed(made, "made");
        adamant::executor const& cpu = needed(executor, "the executor").cpu;
        *made = new adamant_optimizer(cpu, from_c(options));
    });
}
void adamant_optimizer_free(adamant_optimizer* optimizer)
{
    delete optimizer;
}

adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes)
{
    return init(hyper, struct_bytes, to_c(adamant::hyperparameters{}));
}
adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name, const adamant_hyperparameters* hyper,
                                 int32_t maximize, size_t* group)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        give(group, o.add_group(&needed(name, "the group's name"), from_c(hyper), maximize != 0).index);
    });
}
adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count)
{
    return guarded([&] { needed(count, "count") = of(optimizer).groups().size(); });
}
adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                           const adamant_hyperparameters* hyper)
{
    return guarded([&] { of(optimizer).set_hyperparameters(group, from_c(hyper)); });
}
adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                           adamant_hyperparameters* hyper)
{
    return guarded([&] {
        adamant::parameter_group const& from = of(optimizer).group(group);
        check_target(hyper);
        write(to_c(from.hyper), hyper);
    });
}

adamant_status adamant_shard_init(adamant_shard* shard, size_t struct_bytes)
{
    adamant_shard defaults{};
    defaults.param_dtype = defaults.grad_dtype = defaults.exp_avg_dtype = defaults.exp_avg_sq_dtype = ADAMANT_FLOAT32;
    return init(shard, struct_bytes, defaults);
}
adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                  const adamant_hyperparameters* hyper, uint64_t step_number, double loss_scale,
                                  double clip_coefficient, uint64_t* nonfinite)
{
    return guarded([&] {
        adamant::executor const& cpu = needed(executor, "the executor").cpu;
        shard_of_c const s = make_shard(read(shard));
        if (s.accumulator.type != adamant::dtype::none)
            throw invalid_argument(
                "adamant: adamant_step_shard() is given an accumulator, which it has no use for; set "
                "accumulator_dtype to ADAMANT_NONE, or accumulate with an optimizer");
        give(nonfinite, step(cpu, s.view, from_c(hyper), step_number,
                             {.loss_scale = loss_scale, .clip_coefficient = clip_coefficient})
                            .nonfinite_grads);
    });
}
adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad, adamant_dtype dtype,
                                      size_t elements, double* sum, uint64_t* nonfinite)
{
    return guarded([&] {
        adamant::dtype const type = to_enum(dtype, adamant::dtype::float16, "dtype");
        adamant::grad_squares const found = sum_of_squares(needed(executor, "the executor").cpu, grad, type, elements);
        give(sum, found.sum);
        give(nonfinite, found.nonfinite);
    });
}
adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                 const adamant_shard* shard, size_t* number)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        std::string const param = &needed(name, "the shard's name");
        adamant_shard const s = read(shard);
        if ((s.shape == nullptr) != (s.dims == 0))
            throw invalid_argument("adamant: dims is " + std::to_string(s.dims) + ", but shape is " +
                                   (s.shape == nullptr ? "a null pointer" : "given"));
        if (s.dims > adamant::max_dimensions)
            throw invalid_argument("adamant: dims is " + std::to_string(s.dims) + ", but a parameter has at most " +
                                   std::to_string(adamant::max_dimensions));
        adamant::shard_place place{{s.shape, s.shape + s.dims}, s.begin};
        shard_of_c const made = make_shard(s);
        adamant::shard_id const added = o.add_shard({.group = group,
                                                     .name = param,
                                                     .shard = adamant::optimizer_shard(made.view),
                                                     .accumulator = made.accumulator,
                                                     .place = std::move(place)});
        give(number, added.index);
    });
}
adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count)
{
    return guarded([&] { needed(count, "count") = of(optimizer).shards(); });
}
adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal, size_t* bytes)
{
    return guarded([&] { needed(bytes, "bytes") = of(optimizer).memory_bytes(with_journal != 0); });
}
adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal)
{
    return guarded([&] { of(optimizer).prepare(with_journal != 0); });
}

adamant_status adamant_step_values_init(adamant_step_values* values, size_t struct_bytes)
{
    return init(values, struct_bytes, {});
}
adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes)
{
    return init(report, struct_bytes, {});
}
adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps)
{
    return guarded([&] { needed(steps, "steps") = of(optimizer).steps(); });
}
adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale)
{
    return guarded([&] { needed(scale, "scale") = of(optimizer).loss_scale(); });
}
adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        check_report(report);
        give_report(o.step(from_c(values)), report);
    });
}
adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values)
{
    return guarded([&] { of(optimizer).begin_step(from_c(values)); });
}
adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { of(optimizer).submit(shard); });
}
adamant_status adamant_leave_out(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { of(optimizer).leave_out(shard); });
}
adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        check_report(report);
        give_report(o.finish(), report);
    });
}
adamant_status adamant_abandon(adamant_optimizer* optimizer)
{
    return guarded([&] { of(optimizer).abandon(); });
}
adamant_status adamant_rollback(adamant_optimizer* optimizer)
{
    return guarded([&] { of(optimizer).rollback(); });
}
adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { of(optimizer).accumulate(shard); });
}
adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer)
{
    return guarded([&] { of(optimizer).clear_accumulators(); });
}

adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        optimizer->ticket = o.step_async(from_c(values));
    });
}
adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress)
{
    return guarded([&] {
        static_cast<void>(of(optimizer));
        adamant::optimizer::ticket const& ticket = ticket_of(const_cast<adamant_optimizer&>(*optimizer));
        bool const done = ticket.done();
        give(progress, done ? 1.0 : ticket.progress());
        give<int32_t>(over, done);
    });
}
adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over, adamant_report* report)
{
    return guarded([&] {
        using clock = std::chrono::steady_clock;
        adamant::optimizer::ticket const ticket = ticket_of(needed(optimizer, "the optimizer"));
        check_report(report);
        if (timeout_ns != ADAMANT_FOR_EVER) {
            needed(over, "over");
            auto const now = clock::now();
            auto const left =
                static_cast<std::uint64_t>(std::chrono::nanoseconds(clock::time_point::max() - now).count());
            if (!ticket.wait_until(now + std::chrono::nanoseconds(std::min(timeout_ns, left)))) {
                *over = 0;
                return;
            }
        }
        optimizer->ticket.reset(); // whatever wait() throws, the step is over
        give<int32_t>(over, 1);
        give_report(ticket.wait(), report);
    });
}

adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path)
{
    return guarded([&] {
        adamant::optimizer& o = of(const_cast<adamant_optimizer*>(optimizer)); // which changes only with a device
        adamant::save_safetensors(&needed(path, "path"), o.state());
    });
}
adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths, size_t count)
{
    return guarded([&] {
        adamant::optimizer& o = of(optimizer);
        if (count == 0)
            throw invalid_argument("adamant: a state is to be loaded from no files; give one or more");
        needed(paths, "paths");
        std::vector<adamant::safetensors_state> files;
        for (std::size_t i = 0; i < count; ++i)
            files.emplace_back(&needed(paths[i], "a path"));
        std::vector<adamant::state_dict> states;
        for (adamant::safetensors_state const& file : files)
            states.push_back(file.state());
        o.load(adamant::merge(states));
    });
}

adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made)
{
    return guarded([&] {
        needed(made, "made");
        auto parsed = std::make_unique<adamant_deepspeed>();
        parsed->config = adamant::parse_deepspeed_config({&needed(text, "text"), bytes});
        if (auto const& dynamic = parsed->config.options.dynamic_loss_scaling)
            parsed->scaling = to_c(*dynamic);
        *made = parsed.release();
    });
}
void adamant_deepspeed_free(adamant_deepspeed* config)
{
    delete config;
}
adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                       int32_t* maximize, adamant_optimizer_options* options,
                                       adamant_step_values* values, adamant_core_options* cores)
{
    return guarded([&] {
        adamant_deepspeed const& from = needed(config, "the configuration");
        adamant::offload_config const& c = from.config.options;
        adamant::core_request const request = adamant::cores(c);
        auto const check = [](auto const* target) {
            if (target != nullptr)
                static_cast<void>(check_target(target));
        };
        check(hyper), check(options), check(values), check(cores);
        if (hyper != nullptr)
            write(to_c(c.hyper), hyper);
        give<int32_t>(maximize, c.maximize);
        if (options != nullptr) {
            options->max_norm = c.max_norm;
            options->loss_scaling = c.dynamic_loss_scaling ? &from.scaling : nullptr;
        }
        if (values != nullptr) {
            values->has_loss_scale = !c.dynamic_loss_scaling;
            values->loss_scale = c.loss_scale;
        }
        if (cores != nullptr && (request.cpuadam_cores_perc || request.pt_reserved_cores_perc)) {
            cores->cpuadam_cores_perc = request.cpuadam_cores_perc.value_or(0);
            cores->pt_reserved_cores_perc = request.pt_reserved_cores_perc.value_or(0);
        }
    });
}
adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes)
{
    return init(offload, struct_bytes, {});
}
adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config, adamant_deepspeed_offload* offload)
{
    return guarded([&] {
        adamant::offload_config const& c = needed(config, "the configuration").config.options;
        check_target(offload);
        adamant_deepspeed_offload to{};
        to.zero_stage = c.zero_stage;
        to.offload = c.offload;
        to.sub_group_size_elems = c.sub_group_size_elems;
        to.ratio = c.ratio;
        to.pin_memory = c.pin_memory;
        to.super_offload = c.super_offload;
        to.cpuadam_cores_perc = c.cpuadam_cores_perc.value_or(0);
        to.pt_reserved_cores_perc = c.pt_reserved_cores_perc.value_or(0);
        write(to, offload);
    });
}
adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                       uint32_t* accumulation_steps)
{
    return guarded([&] {
        adamant::offload_config const& c = needed(config, "the configuration").config.options;
        give<adamant_dtype>(type, static_cast<adamant_dtype>(c.model_type));
        give<uint32_t>(accumulation_steps, c.gradient_accumulation_steps.value_or(0));
    });
}
adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index, const char** text)
{
    return guarded([&] {
        auto const& warnings = needed(config, "the configuration").config.warnings;
        needed(text, "text") = index < warnings.size() ? warnings[index].c_str() : nullptr;
    });
}
