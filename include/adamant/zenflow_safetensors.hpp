// SPDX-License-Identifier: Apache-2.0
// Opt-in: a zenflow_state as a safetensors file, which other programs read too; as safetensors.hpp, which
// has check_can_save(), for a state_dict, and needs the same. zenflow_safetensors_layout.hpp says what is in such a
// file. Of several ranks each saves a file, and zenflow_optimizer::load() takes the states of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <adamant/error.hpp>
#include <adamant/safetensors.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/state_json.hpp>
#include <adamant/detail/zenflow/zenflow_safetensors_layout.hpp>
#include <adamant/detail/zenflow/zenflow_safetensors_parse.hpp>
#include <adamant/detail/zenflow/zenflow_state_check.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Writes the state to a file, with what save_safetensors() of a state_dict promises: a reader of the path finds the
/// old file or the new one, both whole. Reads each array twice and copies none; do not write to them meanwhile, so
/// no step may be taken. The same state gives the same bytes. Throws, before it writes anything, invalid_argument for
/// what validate(state) refuses and for a header of more than 100 MB; unavailable where the file cannot be written or
/// another save to this path is under way; and what reading a state of a file throws. Returns what the file system
/// could not do although the file is complete. Thread-safe.
inline save_report save_safetensors(std::filesystem::path const& path, zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::save_image(detail::image_of(state), path);
}

/// How many bytes save_safetensors() would write. Reads no arrays. Throws invalid_argument as it does. Thread-safe.
[[nodiscard]] inline std::size_t safetensors_bytes(zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::image_of(state, detail::file_image::of::size).bytes();
}

/// Writes the bytes of such a file to memory of at least safetensors_bytes(state) bytes that does not overlap the
/// state's arrays. Returns how many bytes were written. Throws, before it writes anything, invalid_argument where there
/// is too little memory and where save_safetensors() does; and what reading a state of a file throws. Thread-safe.
inline std::size_t write_safetensors(std::span<std::byte> to, zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::write_image(detail::image_of(state), to);
}

/// A file of save_safetensors() of a zenflow_state, or its bytes in memory; all of it is checked, checksums too, before
/// the constructor returns. Of a file: the state's arrays and their source are this object's, so they live as long as
/// it, or the one that it was moved to; it keeps the file open. The file may meanwhile be replaced or removed. Where it
/// is cut short or written into, zenflow_optimizer::load() and save_safetensors() throw corrupted: both read it through
/// the params' source. The pointers lead into a mapping of the file. Reading through them past the new end of a file
/// that was cut short, or from a failing disk, raises SIGBUS. Thread-safe for readers.
class zenflow_safetensors_state {
public:
    /// Throws as safetensors_state: unavailable, corrupted, and invalid_argument for a file that another program has
    /// written and for the state of an optimizer that puts nothing off. Each says what is wrong, and where.
    explicit zenflow_safetensors_state(std::filesystem::path const& path)
        : file_(std::make_unique<detail::file_source const>(path))
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_zenflow_safetensors(path.string(), *file_);
    }
    /// The state's arrays lie in these bytes, which must begin at a multiple of 8 and stay as they are. Throws as for a
    /// file, and invalid_argument for another address.
    explicit zenflow_safetensors_state(std::span<std::byte const> bytes)
    {
        if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0)
            detail::throw_invalid_argument({"the state in memory must begin at a multiple of 8 bytes"});
        detail::default_mode_scope const mode;
        state_ = detail::read_zenflow_safetensors("the state in memory", bytes, nullptr);
    }

    /// The state that was read.
    [[nodiscard]] zenflow_state const& state() const noexcept { return state_; }

private:
    std::unique_ptr<detail::file_source const> file_; // or null
    zenflow_state state_;
};

ADAMANT_END_NAMESPACE
