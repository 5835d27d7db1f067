// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: buffers.
#include <adamant/adamant.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include <adamant/memory.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

struct adamant_buffer {
    adamant::memory_block block;
    std::string nodes;
};

namespace adamant::c {

static adamant_buffer const& unwrap(adamant_buffer const* handle)
{
    return needed(handle, "the buffer");
}

static memory_options from_c(adamant_buffer_options const& source)
{
    return {.pages = to_enum(source.pages, page_kind::hugetlb_1g, "pages"),
            .pages_required = source.pages_required != 0,
            .nodes = parse_index_set(text_or_empty(source.nodes)),
            .nodes_required = source.nodes_required != 0,
            .check_available = source.check_available != 0};
}

static std::size_t bytes_of(std::size_t elements, std::size_t elem_bytes)
{
    if (elem_bytes == 0)
        detail::throw_invalid_argument({"cannot create a buffer of elements of 0 bytes. Pass their size."});
    if (elements > std::numeric_limits<std::size_t>::max() / elem_bytes)
        detail::throw_invalid_argument({detail::counted(elements, "element"), " of ", elem_bytes,
                                        " bytes do not fit in memory. Was a negative size converted?"});
    return elements * elem_bytes;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_buffer_options_init(adamant_buffer_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_buffer_report_init(adamant_buffer_report* report, size_t struct_bytes)
{
    return init(report, struct_bytes);
}
adamant_status adamant_buffer_create(const adamant_executor* executor, size_t elements, size_t elem_bytes,
                                     const adamant_buffer_options* options, adamant_buffer** made)
{
    return guarded([&] {
        needed(made, "made");
        adamant::memory_options const requested = from_c(read_or_defaults(options));
        auto buffer = std::make_unique<adamant_buffer>(
            adamant_buffer{adamant::memory_block(bytes_of(elements, elem_bytes), requested), {}});
        buffer->nodes = to_list(buffer->block.report().nodes);
        if (executor != nullptr)
            cpu_of(executor).for_each_owned_slice(elements, [&](adamant::slice part) {
                buffer->block.touch(part.begin * elem_bytes, part.end * elem_bytes);
            });
        *made = buffer.release();
    });
}
void adamant_buffer_free(adamant_buffer* buffer)
{
    delete buffer;
}
adamant_status adamant_buffer_data(const adamant_buffer* buffer, void** data, size_t* bytes)
{
    return guarded([&] {
        adamant::memory_block const& block = unwrap(buffer).block;
        give<void*>(data, const_cast<std::byte*>(block.data()));
        give(bytes, block.size());
    });
}
adamant_status adamant_buffer_describe(const adamant_buffer* buffer, adamant_buffer_report* report)
{
    return guarded([&] {
        adamant_buffer const& b = unwrap(buffer);
        check_target(report);
        adamant::memory_report const& r = b.block.report();
        adamant_buffer_report result{};
        result.bytes = r.bytes;
        result.mapped_bytes = r.mapped_bytes;
        result.nodes = b.nodes.c_str();
        result.notes = r.notes.c_str();
        result.pages = static_cast<adamant_pages>(r.pages);
        result.binding = static_cast<adamant_memory_binding>(r.binding);
        write(result, report);
    });
}
adamant_status adamant_buffer_measure(const adamant_buffer* buffer, size_t* resident_bytes, size_t* huge_bytes,
                                      size_t* node_bytes, size_t node_count)
{
    return guarded([&] {
        adamant_buffer const& b = unwrap(buffer);
        if (node_bytes == nullptr && node_count != 0)
            adamant::detail::throw_invalid_argument(
                {"node_count is ", node_count, ", but node_bytes is a null pointer"});
        adamant::memory_placement const measured = adamant::measure_placement(b.block);
        give(resident_bytes, measured.resident_bytes);
        give(huge_bytes, measured.huge_bytes);
        for (std::size_t i = 0; i < node_count; ++i) {
            auto const node = measured.node_bytes.find(static_cast<unsigned>(i));
            node_bytes[i] = node == measured.node_bytes.end() ? 0 : node->second;
        }
    });
}
