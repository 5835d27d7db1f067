// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: tuning of core counts.
#include <adamant/adamant.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <adamant/tune.hpp>
#include <adamant/tuned_json.hpp>
#include <adamant/detail/c/convert.hpp>

struct adamant_tuned {
    adamant::tuned_cores result;
};

namespace adamant::c {

static tuned_cores const& unwrap(adamant_tuned const* handle)
{
    return needed(handle, "the tuning result").result;
}

adamant_tuning_options struct_description<adamant_tuning_options>::defaults()
{
    core_tuning_options const o;
    adamant_tuning_options values{};
    values.deadline_s = o.deadline_s;
    values.elements = o.elements;
    values.worth = o.search.worth;
    values.confidence = o.search.confidence;
    values.rounds = o.search.rounds;
    values.most_rounds = o.search.most_rounds;
    values.settings_worth = o.settings_worth;
    values.settings = o.settings;
    return values;
}
static void call_on_step(adamant_on_trial_step on_step, void* user, unsigned cores, double seconds)
{
    std::string const ended = "adamant: tuning was stopped: the function on_step ";
    std::int32_t status = 0;
    try {
        status = on_step(user, cores, seconds);
    } catch (...) { // a C++ function that breaks the contract
        throw unavailable(ended + "threw an exception");
    }
    if (status != 0)
        throw unavailable(detail::text_of({ended, "returned ", status}));
}
static core_tuning_options from_c(adamant_tuning_options const& source)
{
    core_tuning_options values{.deadline_s = source.deadline_s,
                               .elements = source.elements,
                               .tier = isa_of(source.isa),
                               .search = {.worth = source.worth,
                                          .confidence = source.confidence,
                                          .rounds = source.rounds,
                                          .most_rounds = source.most_rounds},
                               .settings = source.settings != 0,
                               .settings_worth = source.settings_worth};
    if (source.on_step != nullptr)
        values.on_step = [on_step = source.on_step, user = source.on_step_user](unsigned cores, double seconds) {
            call_on_step(on_step, user, cores, seconds);
        };
    return values;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_tuned_load(const char* path, const adamant_core_options* cores, const adamant_shard* types,
                                  const char* isa, adamant_tuned** made)
{
    return guarded([&] {
        needed(path, "path");
        adamant_core_options const core_options = read(cores);
        adamant::shard_format const& format = format_of(read(types));
        needed(made, "made");
        adamant::tuning_key const key =
            tuning_key_of(machine_of(core_options), request_of(core_options).request, format, isa_of(isa));
        *made = new adamant_tuned{adamant::load_tuned(path, key)};
    });
}
void adamant_tuned_free(adamant_tuned* tuned)
{
    delete tuned;
}
adamant_status adamant_tuned_apply(const adamant_tuned* tuned, adamant_core_options* cores,
                                   adamant_executor_options* executor)
{
    return guarded([&] {
        adamant::tuned_cores const& result = unwrap(tuned);
        check_target_or_null(cores);
        check_target_or_null(executor);
        constexpr std::size_t reach = offsetof(adamant_executor_options, prefetch_bytes) + sizeof(std::size_t);
        if (executor != nullptr && executor->struct_bytes < reach)
            adamant::detail::throw_invalid_argument(
                {"adamant_executor_options has ", executor->struct_bytes,
                 " bytes, so it lacks max_chunk_elems and prefetch_bytes. Compile the program for this version."});
        if (cores != nullptr) {
            adamant::core_request const request = result.request({});
            cores->cpuadam_cores = request.cpuadam_cores.value_or(0);
            cores->cpuadam_cores_perc = cores->pt_reserved_cores_perc = 0;
            cores->pt_reserved_cores = 0;
        }
        if (executor != nullptr) {
            executor->max_chunk_elems = result.options().max_chunk_elems;
            executor->prefetch_bytes = result.options().prefetch_bytes;
        }
    });
}
adamant_status adamant_tuned_save(const adamant_tuned* tuned, const char* path)
{
    return guarded([&] {
        adamant::tuned_cores const& result = unwrap(tuned);
        note_of_save(adamant::save_tuned(&needed(path, "path"), result).reason);
    });
}
adamant_status adamant_tuned_summary_init(adamant_tuned_summary* summary, size_t struct_bytes)
{
    return init(summary, struct_bytes);
}
adamant_status adamant_tuned_describe(const adamant_tuned* tuned, adamant_tuned_summary* summary)
{
    return guarded([&] {
        adamant::tuned_cores const& result = unwrap(tuned);
        check_target(summary);
        adamant_tuned_summary values{};
        values.cpuadam_cores_perc = result.cpuadam_cores_perc;
        values.step_s = result.step_s;
        values.elements = result.elements;
        values.max_chunk_elems = result.max_chunk_elems;
        values.prefetch_bytes = result.prefetch_bytes;
        values.cores = result.cores;
        values.available_cores = result.available_cores;
        values.finished = result.finished;
        values.all = result.all();
        write(values, summary);
    });
}
adamant_status adamant_tuning_options_init(adamant_tuning_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_tune_cores(const adamant_core_options* cores, const adamant_shard* types,
                                  const adamant_tuning_options* options, adamant_tuned** made)
{
    return guarded([&] {
        adamant_core_options const core_options = read(cores);
        adamant::shard_format const& format = format_of(read(types));
        adamant::core_tuning_options const settings = from_c(read_or_defaults(options));
        needed(made, "made");
        *made =
            new adamant_tuned{tune_cores(machine_of(core_options), request_of(core_options).request, format, settings)};
    });
}
