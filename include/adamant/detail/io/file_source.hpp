// SPDX-License-Identifier: Apache-2.0
// file_source: a mapped file whose bytes are read by system calls, so that a failing disk causes an error, not a
// SIGBUS.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/io/durable_file.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// An open file. It is mapped so that its bytes have addresses. read() uses pread(), because an access to the mapping
// of a truncated file or of a failing disk ends the process with SIGBUS. Thread-safe for readers.
class file_source final : public state_source {
public:
    // Throws unavailable with the path and the system's reason.
    explicit file_source(std::filesystem::path const& path)
        : path_(path.string()), file_(uninterrupted([&] {
              return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
          })) // opening a pipe must not block
    {
        if (file_.get() < 0 || ::fstat(file_.get(), &opened_) != 0)
            refuse_file("read", path_, "", errno);
        if (!S_ISREG(opened_.st_mode))
            refuse_file("read", path_, "it is not a regular file", S_ISDIR(opened_.st_mode) ? EISDIR : EINVAL);
        if (size() == 0)
            return; // mmap() refuses an empty file
        void* const address = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, file_.get(), 0);
        if (address == MAP_FAILED)
            refuse_file("read", path_, "mmap() failed", errno);
        data_ = static_cast<std::byte const*>(address);
    }
    file_source(file_source const&) = delete;
    file_source& operator=(file_source const&) = delete;
    ~file_source()
    {
        if (data_ != nullptr)
            ::munmap(const_cast<std::byte*>(data_), size());
    }

    [[nodiscard]] std::byte const* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(opened_.st_size); }

    // Copies bytes of the file, or memory outside the mapping: data that replaced those of a tensor. Throws corrupted
    // if the file has been truncated or changed since it was opened.
    void read(std::byte const* src, std::size_t bytes, std::byte* dst) const override
    {
        if (bytes == 0)
            return; // an empty file has no addresses
        if (std::less<>()(src, data_) || !std::less<>()(src, data_ + size())) {
            std::memcpy(dst, src, bytes);
            return;
        }
        std::size_t offset = static_cast<std::size_t>(src - data_);
        std::size_t remaining = bytes;
        while (remaining != 0) {
            ssize_t const count = uninterrupted([&] {
                return ::pread(file_.get(), dst, std::min(remaining, std::size_t{1} << 30),
                               static_cast<::off_t>(offset));
            });
            if (count < 0)
                refuse_file("read", path_, "", errno);
            if (count == 0)
                break;
            offset += static_cast<std::size_t>(count);
            dst += count;
            remaining -= static_cast<std::size_t>(count);
        }
        // All bytes were read, but they may differ from those that were checked. (Kernels record the time of a change
        // with a precision of some milliseconds.)
        struct ::stat status = {};
        if (::fstat(file_.get(), &status) != 0)
            refuse_file("read", path_, "", errno);
        bool const is_cut = remaining != 0 || status.st_size < opened_.st_size;
        if (is_cut || status.st_size != opened_.st_size || status.st_mtim.tv_sec != opened_.st_mtim.tv_sec ||
            status.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec)
            throw_corrupted({path_, is_cut ? " is truncated" : " was written to", " since it was opened: it had ",
                             opened_.st_size, " bytes and has ", status.st_size,
                             "; load it again when nothing writes to it"});
    }

private:
    std::string path_;
    descriptor file_;
    struct ::stat opened_ = {};
    std::byte const* data_ = nullptr;
};

// Bytes of a state, in memory or behind a source.
struct stored_bytes {
    std::byte const* data;
    std::size_t bytes;
    state_source const* source; // reads the bytes; null to read memory directly
};

// Visits stored bytes in order, in pieces. Bytes in memory are not copied.
class stored_reader {
public:
    // Calls visit(data, bytes) for each piece.
    template <class Visit>
    void each_piece(stored_bytes const& range, Visit const& visit)
    {
        if (range.source == nullptr) {
            visit(range.data, range.bytes);
            return;
        }
        for (std::size_t offset = 0; offset < range.bytes;) {
            std::size_t const n = std::min(range.bytes - offset, piece_bytes);
            if (buffer_.size() < n)
                buffer_.resize(std::min(std::max(n, 2 * buffer_.size()), piece_bytes));
            range.source->read(bytes_behind(range.data, offset), n, buffer_.data());
            visit(static_cast<std::byte const*>(buffer_.data()), n);
            offset += n;
        }
    }

private:
    static constexpr std::size_t piece_bytes = std::size_t{1} << 18; // within a core's own cache
    std::vector<std::byte> buffer_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
