// SPDX-License-Identifier: Apache-2.0
// What adamant/c/executor.h declares.
#include <adamant/c/executor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <adamant/c/convert.hpp>
#include <adamant/c/handles.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/topology/index_set.hpp>

namespace adamant::c {

binding binding_of(adamant_binding from)
{
    constexpr binding bindings[] = {binding::automatic, binding::required, binding::if_possible, binding::none};
    static_cast<void>(to_enum(from, ADAMANT_BIND_NONE, "bind"));
    return bindings[from];
}
isa isa_of(char const* name)
{
    return name == nullptr || *name == '\0' ? isa::automatic : parse_isa(name);
}

static executor_options from_c(adamant_executor_options const& from)
{
    if (from.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES &&
        from.prefetch_bytes > std::numeric_limits<std::uint32_t>::max())
        throw invalid_argument("adamant: prefetch_bytes is " + std::to_string(from.prefetch_bytes) +
                               ", but must be below 4 GiB, or ADAMANT_AUTOMATIC_BYTES");
    executor_options to{.tier = isa_of(from.isa),
                        .threads = from.threads,
                        .pus = parse_index_set(text_or_empty(from.pus)),
                        .bind = binding_of(from.bind),
                        .min_slice_elems = from.min_slice_elems};
    if (from.max_chunk_elems != 0)
        to.max_chunk_elems = from.max_chunk_elems;
    if (from.prefetch_bytes != ADAMANT_AUTOMATIC_BYTES)
        to.prefetch_bytes = static_cast<std::uint32_t>(from.prefetch_bytes);
    return to;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made)
{
    return guarded([&] {
        needed(made, "made");
        auto executor = std::make_unique<adamant_executor>(
            adamant_executor{adamant::executor(from_c(read_or_defaults(options))), {}});
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
