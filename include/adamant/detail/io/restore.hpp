// SPDX-License-Identifier: Apache-2.0
// Copies of one state into the arrays of another, whose shards may differ.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/io/live_arrays.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct state_copy {
    std::byte* dst;
    std::byte const* src;
    std::size_t bytes;
    state_source const* source; // reads src; null to read memory directly
    state_target const* target; // writes dst; null to write memory directly

    // Returns the size of the buffer that run() needs.
    [[nodiscard]] std::size_t buffer_bytes() const noexcept
    {
        return target == nullptr ? 0 : std::min(bytes, max_buffer_bytes);
    }
    // Allocates no memory. Throws what the source throws.
    void run(std::span<std::byte> buffer) const
    {
        if (target == nullptr) {
            read(0, bytes, dst);
            return;
        }
        for (std::size_t offset = 0; offset != bytes;) {
            std::size_t const n = std::min(buffer.size(), bytes - offset);
            read(offset, n, buffer.data());
            target->write(buffer.data(), n, bytes_behind(dst, offset));
            offset += n;
        }
    }

private:
    static constexpr std::size_t max_buffer_bytes = std::size_t{1} << 16; // whole elements of any type

    void read(std::size_t begin, std::size_t n, std::byte* out) const
    {
        if (source == nullptr)
            std::memmove(out, src + begin, n); // a state may be loaded into its own arrays
        else
            source->read(bytes_behind(src, begin), n, out);
    }
};

// Returns the copies that set every array of `live` from `loaded`. Names identify parameters; parameters that only
// `loaded` has are ignored. Throws what validate() throws, and invalid_argument that names a parameter, shape, type or
// range of elements that is missing or differs, or a source that is another array of `live`.
[[nodiscard]] inline std::vector<state_copy> plan_copies(state_dict const& loaded, state_dict const& live)
{
    std::vector<state_tensor> const pieces = checked_tensors(loaded);
    name_index const by_name(loaded.params, "param");
    live_arrays written;
    for (state_tensor const& tensor : live.tensors)
        if (tensor.target == nullptr)
            written.add(tensor.data, array_bytes(tensor.type, tensor.elements));
        else
            written.add(tensor.source, 1); // split masters have no address, but their source has one
    written.sort();
    std::vector<state_copy> copies;
    for (state_tensor const& tensor : live.tensors) {
        state_param const& param = live.params[tensor.param];
        std::string const subject = text_of({"'", param.name, ".", name(tensor.array), "'"});
        auto const param_index = by_name.find(param.name);
        if (!param_index)
            throw_invalid_argument({"cannot load '", param.name,
                                    "': the state has no such parameter. Pass the files of all "
                                    "ranks of the same model."});
        if (loaded.params[*param_index].shape != param.shape)
            throw_invalid_argument({"cannot load '", param.name, "': its shape is ",
                                    shape_text(loaded.params[*param_index].shape), " in the state, but ",
                                    shape_text(param.shape), " in this optimizer. Load a state of the same model."});
        std::size_t begin = tensor.begin;
        std::size_t const end = tensor.begin + tensor.elements;
        // The first piece that ends after `begin`. Pieces of an array do not overlap, so their ends are in order, too.
        auto const ends_before = [&](state_tensor const& a, std::size_t index) {
            if (a.param != *param_index)
                return a.param < *param_index;
            return a.array != tensor.array ? a.array < tensor.array : a.begin + a.elements <= index;
        };
        for (auto piece = std::lower_bound(pieces.begin(), pieces.end(), begin, ends_before);
             piece != pieces.end() && piece->param == *param_index && piece->array == tensor.array && begin != end;
             ++piece) {
            if (piece->begin > begin)
                break;
            if (piece->type != tensor.type)
                throw_invalid_argument({"cannot load ", subject, ": its type is ", name(piece->type),
                                        " in the state, but ", name(tensor.type),
                                        " in this optimizer. Create the optimizer with the types of the state."});
            std::size_t const n = std::min(end, piece->begin + piece->elements) - begin;
            if ((begin - tensor.begin) % elems_together(tensor.type) != 0 ||
                (begin - piece->begin) % elems_together(tensor.type) != 0)
                throw_invalid_argument({"cannot load ", subject, ": its elements are stored in groups of ",
                                        elems_together(tensor.type), ", and the boundary between elements ",
                                        piece->begin, " of the state and ", tensor.begin,
                                        " of this optimizer divides one. Use the shard boundaries of the saved run."});
            state_copy const copy{
                const_cast<std::byte*>(bytes_behind(tensor.data, array_bytes(tensor.type, begin - tensor.begin))),
                bytes_behind(piece->data, array_bytes(tensor.type, begin - piece->begin)), array_bytes(tensor.type, n),
                piece->source, tensor.target};
            if (piece->source == nullptr)
                written.check_source(param.name, copy.src, copy.bytes, copy.dst);
            else if (piece->source != tensor.source || copy.src != copy.dst)
                written.check_source(param.name, piece->source, 1, nullptr);
            copies.push_back(copy);
            begin += n;
        }
        if (begin != end)
            throw_invalid_argument({"cannot load ", subject, ": element ", begin, " is missing (needed: ", tensor.begin,
                                    " to ", end - 1, "). Pass the files of all ranks."});
    }
    return copies;
}

} // namespace detail
ADAMANT_END_NAMESPACE
