// SPDX-License-Identifier: Apache-2.0
// Optimizer states in safetensors files. Opt-in: needs nlohmann-json and xxHash.
//
// Requires the headers of nlohmann-json and xxHash (Debian and Ubuntu: nlohmann-json3-dev, libxxhash-dev) and no
// libraries. Other programs can read the files, too. detail/io/safetensors_file.hpp and
// detail/io/safetensors_layout.hpp document their contents.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <adamant/checkpoint.hpp>
#include <adamant/merge.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/durable_file.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/safetensors_layout.hpp>
#include <adamant/detail/io/safetensors_parse.hpp>
#include <adamant/detail/io/state_check.hpp>
#include <adamant/detail/io/state_json.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Writes a state to a file, and replaces an existing file atomically. Thread-safe.
///
/// A reader of the path finds the old file or the new one, both complete, even if this process is killed or the machine
/// crashes. The bytes are written to PATH.part in the same folder, synced to disk, and renamed; a file of that name is
/// overwritten. Each array is read twice and not copied; the arrays must not change meanwhile. They may point into the
/// file that is being replaced. The same state gives the same bytes, for any order and partition of its tensors;
/// tensors without elements are skipped.
///
/// A replaced file keeps its permission bits but not its owner. A new file gets the permission bits that the umask
/// allows. A symbolic link is followed.
/// @return the operations that the file system refused; the file is complete without them.
/// @throws invalid_argument if validate(state) rejects the state, or if the header would exceed 100 MB; before anything
/// is written.
/// @throws unavailable with the system's reason and the path if the file cannot be written, or if another save to this
/// path is in progress. After an error the old file is unchanged, and nothing of the new one remains.
/// If the state was itself read from a file, also throws what reading that file throws.
inline save_report save_safetensors(std::filesystem::path const& path, state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::save_image(detail::image_of(state), path);
}

/// Returns the number of bytes that save_safetensors() would write. Reads no data. Thread-safe.
/// @throws invalid_argument as save_safetensors() does.
[[nodiscard]] inline std::size_t safetensors_bytes(state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::image_of(state, detail::file_image::extent::size).bytes();
}

/// Writes the contents of such a file to memory, and returns the number of bytes written. Thread-safe.
///
/// The memory must have safetensors_bytes(state) bytes or more, and must not overlap the state's arrays. Each array is
/// read twice; the arrays must not change meanwhile.
/// @throws invalid_argument if the memory is too small, or as save_safetensors() does, before anything is written; and
/// what reading a state of a file throws.
inline std::size_t write_safetensors(std::span<std::byte> target, state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::write_image(detail::image_of(state), target);
}

/// Performs every file-system operation of a save on a small file, to find errors before training.
///
/// Thread-safe. Writes a few bytes to PATH.part, syncs them, renames the file to PATH.try, syncs the folder and removes
/// the file. The file at the path is not touched; a file at PATH.part is lost, as in a save. Does not check for free
/// space.
/// @return what save_safetensors() would return.
/// @throws unavailable as save_safetensors() does.
inline save_report check_can_save(std::filesystem::path const& path)
{
    return detail::durable_file(path).rehearse();
}

/// State read from a file of save_safetensors(), or from its bytes in memory. Thread-safe for readers.
///
/// The constructor validates everything, including checksums, before it returns.
///
/// This object owns the tensors of a state read from a file, and their source. They live until it is destroyed, or the
/// object that it was moved to. It keeps the file open; the file may be replaced or removed meanwhile. If another
/// process truncates or modifies it, optimizer::load() and save_safetensors() throw corrupted, because both read
/// through the tensors' source; validate(), merge() and everything else that reads no array are unaffected. The data
/// pointers lead into a mapping of the file. Read through them only if no process truncates the file: a read past its
/// new end, or from a failing disk, raises SIGBUS.
class safetensors_state {
public:
    /// Reads a file. Each error names the problem and its location.
    /// @throws unavailable with the system's reason if the file cannot be read, and for an unknown version of the
    /// format.
    /// @throws corrupted if the file is truncated, altered, or not a safetensors file.
    /// @throws invalid_argument for a safetensors file of another program, and for a state of another kind (see
    /// zenflow_safetensors.hpp).
    explicit safetensors_state(std::filesystem::path const& path)
        : file_(std::make_unique<detail::file_source const>(path))
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_safetensors(path.string(), *file_);
    }
    /// Reads the bytes of a file from memory, at any alignment. The tensors are views of these bytes.
    ///
    /// The bytes must not change during the lifetime of this object.
    /// @throws corrupted, invalid_argument, unavailable as for a file.
    explicit safetensors_state(std::span<std::byte const> bytes)
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_safetensors("the state in memory", bytes, nullptr);
    }

    /// Returns the state.
    [[nodiscard]] state_dict const& state() const noexcept { return state_; }

private:
    std::unique_ptr<detail::file_source const> file_; // or null; its address does not change when this object moves
    state_dict state_;
};

ADAMANT_END_NAMESPACE
