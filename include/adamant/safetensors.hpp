// SPDX-License-Identifier: Apache-2.0
// An optimizer state in safetensors files. Opt-in: needs nlohmann-json and xxHash.
//
// Opt-in: a state_dict as a safetensors file, which other programs read too. Needs nlohmann-json and the header of
// xxHash (Debian and Ubuntu: nlohmann-json3-dev, libxxhash-dev); nothing has to be linked. safetensors_file.hpp and
// safetensors_layout.hpp say what is in such a file.
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

/// Writes the state to a file, replacing one of that name: a reader of the path finds the old file or the new one,
/// both whole, whenever this process is killed or the machine stops. The bytes are written to PATH.part in the same
/// folder, brought to the disk, and renamed. Reads each array twice and copies none; do not write to them meanwhile.
/// They may point into the very file that is replaced. The same state gives the same bytes, in whatever order and
/// pieces its tensors come; pieces without elements are left out. Throws, before it writes anything, invalid_argument
/// for what validate(state) refuses and for a header of more than 100 MB; and unavailable with the system's reason and
/// the path where the file cannot be written or another save to this path is under way; and what reading a state of a
/// file throws. The old file is then as it was, and nothing of this save is left. A file that is replaced keeps its
/// permission bits but not its owner, a new one has those of the umask; a symbolic link is followed. Returns what the
/// file system could not do although the file is complete. Thread-safe.
inline save_report save_safetensors(std::filesystem::path const& path, state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::save_image(detail::image_of(state), path);
}

/// How many bytes save_safetensors() would write. Reads no data. Throws invalid_argument as it does. Thread-safe.
[[nodiscard]] inline std::size_t safetensors_bytes(state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::image_of(state, detail::file_image::of::size).bytes();
}

/// Writes the bytes of such a file to memory of at least safetensors_bytes(state) bytes that does not overlap the
/// state's arrays. Returns how many bytes were written. Reads each array twice; do not write to them meanwhile.
/// Throws, before it writes anything, invalid_argument where there is too little memory and where save_safetensors()
/// does; and what reading a state of a file throws. Thread-safe.
inline std::size_t write_safetensors(std::span<std::byte> to, state_dict const& state)
{
    detail::default_mode_scope const mode;
    return detail::write_image(detail::image_of(state), to);
}

/// Does all that save_safetensors() does with a path, to the file system, so that what a save would throw is thrown
/// before hours of training, and returns what a save would. Writes a few bytes to PATH.part, syncs them, renames that
/// to PATH.try, syncs the folder and removes the file; what is at the path is not touched. Says nothing of how much
/// room there is. Thread-safe.
inline save_report check_can_save(std::filesystem::path const& path)
{
    return detail::durable_file(path).rehearse();
}

/// A file of save_safetensors(), or its bytes in memory; nothing in it is believed before it was checked, and all of it
/// is, checksums too, before the constructor returns. Of a file: the state's tensors and their source are this
/// object's, so they live as long as it, or the one that it was moved to; it keeps the file open. The file may
/// meanwhile be replaced or removed. Where it is cut short or written into, validate(), merge() and looking at the rest
/// of the state go on as if nothing had happened, while optimizer::load() and save_safetensors() throw corrupted: both
/// read it through the tensors' source. The data pointers lead into a mapping of the
/// file. Reading through them past the new end of a file that was cut short, or from a failing disk, raises SIGBUS.
/// Thread-safe for readers.
class safetensors_state {
public:
    /// Throws unavailable with the system's reason where the file cannot be read, and for a version of the format that
    /// this library does not know; corrupted where the file is cut short, altered, or no safetensors file; and
    /// invalid_argument for a safetensors file that another program has written, and for a state of another kind
    /// (zenflow_safetensors.hpp). Each says what is wrong, and where.
    explicit safetensors_state(std::filesystem::path const& path)
        : file_(std::make_unique<detail::file_source const>(path))
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_safetensors(path.string(), *file_);
    }
    /// The state's tensors lie in these bytes, at any address, which must stay as they are. Throws as for a file.
    explicit safetensors_state(std::span<std::byte const> bytes)
    {
        detail::default_mode_scope const mode;
        state_ = detail::read_safetensors("the state in memory", bytes, nullptr);
    }

    /// The state that was read.
    [[nodiscard]] state_dict const& state() const noexcept { return state_; }

private:
    std::unique_ptr<detail::file_source const>
        file_; // where tensors find it, wherever this object is moved to, or null
    state_dict state_;
};

ADAMANT_END_NAMESPACE
