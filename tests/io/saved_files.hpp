// SPDX-License-Identifier: Apache-2.0
// What is asked of both kinds of our files, those of a state_dict and those of a zenflow_state. A Kind has the type
// `state`, its read() from a file_source, or from bytes and a source that may be null, and its difference().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/io/file_source.hpp>

#include "catch.hpp"
#include "checkpoint_states.hpp"
#include "edited_files.hpp"
#include "refusal.hpp"

namespace test {

// The bytes of the state's file.
template <class State>
std::string saved(State const& state)
{
    static scratch_folder const folder;
    save_safetensors(folder / "state.safetensors", state);
    std::string const bytes = bytes_of(folder / "state.safetensors");
    // In memory it is the same, at any address.
    REQUIRE(safetensors_bytes(state) == bytes.size());
    std::vector<std::byte> memory(bytes.size() + 9, std::byte{0x5a});
    std::span<std::byte> const room = std::span(memory).subspan(1);
    REQUIRE(write_safetensors(room, state) == bytes.size());
    REQUIRE(std::memcmp(room.data(), bytes.data(), bytes.size()) == 0);
    REQUIRE(std::all_of(room.begin() + static_cast<std::ptrdiff_t>(bytes.size()), room.end(),
                        [](std::byte b) { return b == std::byte{0x5a}; }));
    return bytes;
}

// A state of the bytes of a file.
template <class Kind>
class loaded_file {
public:
    explicit loaded_file(std::string const& bytes) : memory_(bytes.size() / 8 + 1)
    {
        static scratch_folder const folder;
        set_bytes(folder / "loaded", bytes);
        file_.emplace(folder / "loaded");
        std::filesystem::remove(folder / "loaded"); // so that the next one is another file
        std::memcpy(memory_.data(), bytes.data(), bytes.size());
        auto const in_words = std::as_bytes(std::span(memory_)).first(bytes.size());
        // From memory it is the same, or refused in the same words.
        auto const read = [](auto const& from) {
            try {
                return std::pair(from(), std::string());
            } catch (adamant::error const& e) {
                return std::pair(typename Kind::state(), std::string(e.what()));
            }
        };
        auto const in_memory = read([&] { return Kind::read(in_words, nullptr); });
        auto const in_file = read([&] { return Kind::read(*file_); });
        REQUIRE(in_memory.second == in_file.second);
        REQUIRE(Kind::difference(in_memory.first, in_file.first) == "");
        state = Kind::read(*file_);
    }
    typename Kind::state state;

private:
    std::vector<std::uint64_t> memory_;
    std::optional<adamant::detail::file_source> file_;
};

template <class Kind, class Error>
std::string refusal_of_file(std::string const& bytes)
{
    return refusal<Error>([&] { loaded_file<Kind> const result(bytes); });
}

// True where it was read: then every array lies in the file, and the state can be saved and read again.
template <class Kind>
bool survives(std::string const& bytes)
{
    try {
        loaded_file<Kind> const result(bytes);
        validate(result.state);
        REQUIRE(Kind::difference(loaded_file<Kind>(saved(result.state)).state, result.state) == "");
        return true;
    } catch (adamant::error const& refused) { // anything else is a defect
        REQUIRE(std::string(refused.what()).starts_with("adamant: "));
        return false;
    }
}

// Mutates files of states that `draw` makes. ADAMANT_FUZZ_SECONDS: for longer, from the seed ADAMANT_FUZZ_SEED on.
template <class Kind, class Draw>
void mutate_files(Draw const& draw, int of_each)
{
    auto const number = [](char const* variable, std::uint64_t otherwise) {
        char const* const text = std::getenv(variable);
        return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
    };
    std::uint64_t const seconds = number("ADAMANT_FUZZ_SECONDS", 0);
    random_bits random(number("ADAMANT_FUZZ_SEED", 23));
    std::clock_t const begin = std::clock();
    std::size_t inputs = 0, read = 0, right = 0;
    for (int i = 0; i < 100 || static_cast<std::uint64_t>(std::clock() - begin) / CLOCKS_PER_SEC < seconds; ++i) {
        auto const original = draw(i, random);
        std::string const good = saved(original.state);
        for (int n = 0; n < of_each; ++n, ++inputs) {
            bool checksum_is_right = false;
            std::string bad;
            try {
                bad = mutated(good, random, checksum_is_right);
            } catch (json::exception const&) { // of a mutation of a mutation
                continue;
            }
            bool const survived = survives<Kind>(bad);
            read += survived;
            right += checksum_is_right;
            if (!checksum_is_right && survived)
                REQUIRE((bad == good));
        }
    }
    std::printf("fuzzed %zu files: %zu with a right checksum of the header, %zu read\n", inputs, right, read);
    CHECK(right > inputs / 3);
    CHECK(read > inputs / 100);
}

} // namespace test
