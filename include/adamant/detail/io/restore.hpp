// SPDX-License-Identifier: Apache-2.0
// Copies one state into the arrays of another, however either was cut.
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
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct state_copy {
    std::byte* to;
    std::byte const* from;
    std::size_t bytes;
    state_source const* source; // of the bytes, or null
    state_target const* target; // of `to`, or null

    // How much room run() needs.
    [[nodiscard]] std::size_t room_bytes() const noexcept
    {
        return target == nullptr ? 0 : std::min(bytes, most_at_once);
    }
    // Allocates nothing. Throws what the source does.
    void run(std::span<std::byte> room) const
    {
        if (target == nullptr) {
            read(0, bytes, to);
            return;
        }
        for (std::size_t done = 0; done != bytes;) {
            std::size_t const n = std::min(room.size(), bytes - done);
            read(done, n, room.data());
            target->write(room.data(), n, bytes_behind(to, done));
            done += n;
        }
    }

private:
    static constexpr std::size_t most_at_once = std::size_t{1} << 16; // whole elements of any type

    void read(std::size_t begin, std::size_t n, std::byte* into) const
    {
        if (source == nullptr)
            std::memcpy(into, from + begin, n);
        else
            source->read(bytes_behind(from, begin), n, into);
    }
};

// The copies that make `into` hold what `from` holds. Names identify parameters; others in `from` are ignored. Throws
// what validate() throws, and invalid_argument that names what is missing or differs: a parameter, its shape, its
// types, elements.
[[nodiscard]] inline std::vector<state_copy> plan_copies(state_dict const& from, state_dict const& into)
{
    std::vector<state_tensor> const pieces = checked_tensors(from);
    name_index const by_name(from.params, "param");
    std::vector<state_copy> copies;
    for (state_tensor const& to : into.tensors) {
        state_param const& param = into.params[to.param];
        std::string const what = text_of({"'", param.name, ".", name(to.array), "'"});
        auto const found = by_name.find(param.name);
        if (!found)
            throw_invalid_argument({"the state that is loaded has no parameter '", param.name,
                                    "'; is it of another model, or is a rank's file missing?"});
        if (from.params[*found].shape != param.shape)
            throw_invalid_argument({"'", param.name, "' has the shape ", shape_text(from.params[*found].shape),
                                    " in the state that is loaded, but ", shape_text(param.shape), " here"});
        std::size_t at = to.begin;
        std::size_t const end = to.begin + to.elements;
        // The first piece that ends after its begin: pieces of an array do not overlap, so their ends are in order,
        // too.
        auto const before = [&](state_tensor const& a, std::size_t begin) {
            if (a.param != *found)
                return a.param < *found;
            return a.array != to.array ? a.array < to.array : a.begin + a.elements <= begin;
        };
        for (auto piece = std::lower_bound(pieces.begin(), pieces.end(), at, before);
             piece != pieces.end() && piece->param == *found && piece->array == to.array && at != end; ++piece) {
            if (piece->begin > at)
                break;
            if (piece->type != to.type)
                throw_invalid_argument(
                    {what, " is ", name(piece->type), " in the state that is loaded, but ", name(to.type), " here"});
            std::size_t const n = std::min(end, piece->begin + piece->elements) - at;
            if ((at - to.begin) % elems_together(to.type) != 0 || (at - piece->begin) % elems_together(to.type) != 0)
                throw_invalid_argument({what, " is in groups of ", elems_together(to.type),
                                        ", but cut between them: elements from ", piece->begin,
                                        " on are in the state that is loaded, and elements from ", to.begin,
                                        " on are needed"});
            copies.push_back({const_cast<std::byte*>(bytes_behind(to.data, array_bytes(to.type, at - to.begin))),
                              bytes_behind(piece->data, array_bytes(to.type, at - piece->begin)),
                              array_bytes(to.type, n), piece->source, to.target});
            at += n;
        }
        if (at != end)
            throw_invalid_argument({"of ", what, " element ", at, " is not in the state that is loaded, but elements ",
                                    to.begin, " to ", end, " are needed; is a rank's file missing?"});
    }
    return copies;
}

} // namespace detail
ADAMANT_END_NAMESPACE
