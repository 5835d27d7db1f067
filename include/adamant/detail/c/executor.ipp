// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: teams and executors.
#include <adamant/adamant.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <adamant/executor.hpp>
#include <adamant/index_set.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

namespace adamant::c {

binding binding_of(adamant_binding source)
{
    constexpr binding bindings[] = {binding::automatic, binding::required, binding::if_possible, binding::none};
    static_cast<void>(to_enum(source, ADAMANT_BIND_NONE, "bind"));
    return bindings[source];
}
isa isa_of(char const* name)
{
    return name == nullptr || *name == '\0' ? isa::automatic : parse_isa(name);
}

static std::chrono::nanoseconds nanoseconds_of(std::uint64_t source)
{
    constexpr auto most = std::chrono::nanoseconds::max();
    return source < static_cast<std::uint64_t>(most.count()) ? std::chrono::nanoseconds(source) : most;
}
static team_options from_c(adamant_team_options const& source)
{
    return {.pus = parse_index_set(text_or_empty(source.pus)),
            .threads = source.threads,
            .bind = binding_of(source.bind),
            .spin = nanoseconds_of(source.spin_ns)};
}

static executor_options from_c(adamant_executor_options const& source)
{
    if (source.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES &&
        source.prefetch_bytes > std::numeric_limits<std::uint32_t>::max())
        detail::throw_invalid_argument(
            {"prefetch_bytes is ", source.prefetch_bytes, ", but must be below 4 GiB, or ADAMANT_AUTOMATIC_BYTES"});
    executor_options result{.tier = isa_of(source.isa),
                            .threads = source.threads,
                            .pus = parse_index_set(text_or_empty(source.pus)),
                            .bind = binding_of(source.bind),
                            .min_slice_elems = source.min_slice_elems};
    if (source.max_chunk_elems != 0)
        result.max_chunk_elems = source.max_chunk_elems;
    if (source.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES)
        result.prefetch_bytes = static_cast<std::uint32_t>(source.prefetch_bytes);
    return result;
}

} // namespace adamant::c

using namespace adamant::c;

static adamant_team const& unwrap(adamant_team const* handle)
{
    return needed(handle, "the team");
}

adamant_status adamant_team_options_init(adamant_team_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_team_create(const adamant_team_options* options, adamant_team** made)
{
    return guarded([&] {
        needed(made, "made");
        auto handle = std::make_unique<adamant_team>();
        handle->team = std::make_shared<adamant::team>(from_c(read(options)));
        if (handle->team->bound())
            handle->pus = to_list(handle->team->bound_to());
        for (adamant::team_member const& m : handle->team->members())
            handle->threads.push_back({to_list(m.asked), to_list(m.bound_to)});
        *made = handle.release();
    });
}
void adamant_team_free(adamant_team* team)
{
    delete team;
}
adamant_status adamant_team_describe(const adamant_team* team, uint32_t* threads, const char** pus)
{
    return guarded([&] {
        adamant_team const& t = unwrap(team);
        give<uint32_t>(threads, t.team->size());
        give<const char*>(pus, t.pus.c_str());
    });
}
adamant_status adamant_team_thread(const adamant_team* team, uint32_t index, int64_t* system_id, const char** asked,
                                   const char** bound_to, const char** problem)
{
    return guarded([&] {
        adamant_team const& t = unwrap(team);
        if (index >= t.team->size())
            adamant::detail::throw_invalid_argument(
                {"there is no thread ", index, " in the team; it has ", t.team->size()});
        adamant::team_member const& m = t.team->members()[index];
        give<int64_t>(system_id, m.thread_id);
        give<const char*>(asked, t.threads[index].asked.c_str());
        give<const char*>(bound_to, t.threads[index].bound_to.c_str());
        give<const char*>(problem, m.problem.c_str());
    });
}

adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made)
{
    return guarded([&] {
        needed(made, "made");
        adamant_executor_options const o = read_or_defaults(options);
        auto executor = std::make_unique<adamant_executor>(adamant_executor{
            o.team == nullptr ? adamant::executor(from_c(o)) : adamant::executor(o.team->team, from_c(o)), {}});
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
        adamant::executor const& cpu = cpu_of(executor);
        give<const char*>(isa, name(cpu.tier()).data());
        give<uint32_t>(threads, cpu.threads());
        give<const char*>(pus, executor->pus.c_str());
    });
}
