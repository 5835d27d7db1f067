// SPDX-License-Identifier: Apache-2.0
// ZenFlow states in safetensors files. Opt-in: needs nlohmann-json and xxHash.
//
// Same requirements as safetensors.hpp, which has check_can_save(). Each rank saves its own file, and
// zenflow_optimizer::load() takes the states of all ranks. detail/zenflow/zenflow_safetensors_layout.hpp documents the
// contents of the files.
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

/// Writes a state to a file, and replaces an existing file atomically. Thread-safe.
///
/// Gives the guarantees of save_safetensors() of a state_dict: a reader of the path finds the old file or the new one,
/// both complete. Each array is read twice and not copied; the arrays must not change meanwhile, so no step may be
/// taken. The same state gives the same bytes.
/// @return the steps of the save that the file system refused although the file is complete.
/// @throws invalid_argument if validate(state) rejects the state, or if the header would exceed 100 MB; before anything
/// is written.
/// @throws unavailable if the file cannot be written, or if another save to this path is in progress.
/// Also throws what reading a state of a file throws.
inline save_report save_safetensors(std::filesystem::path const& path, zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::save_image(detail::image_of(state), path);
}

/// Returns the number of bytes that save_safetensors() would write. Reads no arrays. Thread-safe.
/// @throws invalid_argument as save_safetensors() does.
[[nodiscard]] inline std::size_t safetensors_bytes(zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::image_of(state, detail::file_image::extent::size).bytes();
}

/// Writes the contents of such a file to memory, and returns the number of bytes written. Thread-safe.
///
/// The memory must have safetensors_bytes(state) bytes or more, and must not overlap the state's arrays.
/// @throws invalid_argument if the memory is too small, or as save_safetensors() does, before anything is written; and
/// what reading a state of a file throws.
inline std::size_t write_safetensors(std::span<std::byte> target, zenflow_state const& state)
{
    detail::default_mode_scope const mode;
    return detail::write_image(detail::image_of(state), target);
}

/// ZenFlow state read from a file of save_safetensors(), or from its bytes in memory.
///
/// Thread-safe for readers. The constructor validates everything, including checksums, before it returns.
///
/// Of a file: this object owns the state's arrays and their source, so they live as long as the object, or the object
/// that it was moved to. It keeps the file open; the file may be replaced or removed meanwhile. If another process
/// truncates or modifies it, zenflow_optimizer::load() and save_safetensors() throw corrupted, because both read
/// through the params' source. The pointers lead into a mapping of the file. Read through them only if no process
/// truncates the file: a read past its new end, or from a failing disk, raises SIGBUS.
class zenflow_safetensors_state {
public:
    /// Reads a file. Each error names the problem and its location.
    /// @throws unavailable, corrupted as safetensors_state does.
    /// @throws invalid_argument for a safetensors file of another program, and for the state of an optimizer without
    /// deferred updates.
    explicit zenflow_safetensors_state(std::filesystem::path const& path)
        : file_(std::make_unique<detail::file_source const>(path))
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_zenflow_safetensors(path.string(), *file_);
    }
    /// Reads the bytes of a file from memory, aligned to 8 bytes. The arrays are views of these bytes.
    ///
    /// The bytes must not change during the lifetime of this object.
    /// @throws corrupted, invalid_argument, unavailable as for a file.
    /// @throws invalid_argument for an address that is not aligned to 8 bytes.
    explicit zenflow_safetensors_state(std::span<std::byte const> bytes)
    {
        if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0)
            detail::throw_invalid_argument(
                {"cannot read the state in memory: its address is not a multiple of 8. Align it to 8 bytes."});
        detail::default_mode_scope const mode;
        state_ = detail::read_zenflow_safetensors("the state in memory", bytes, nullptr);
    }

    /// Returns the state.
    [[nodiscard]] zenflow_state const& state() const noexcept { return state_; }

private:
    std::unique_ptr<detail::file_source const> file_; // or null
    zenflow_state state_;
};

ADAMANT_END_NAMESPACE
