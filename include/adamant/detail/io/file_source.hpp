// SPDX-License-Identifier: Apache-2.0
// The bytes of a file, at addresses, which are read by system calls that fail where the file does.
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

// The file is mapped, so that its bytes have addresses, but read() does not touch the mapping, where a file that was
// cut short or a disk that fails would end the process by SIGBUS. Other accesses take that risk. Stays open.
// Thread-safe for readers.
class file_source final : public state_source {
public:
    // Throws unavailable with the path and the system's reason.
    explicit file_source(std::filesystem::path const& path)
        : path_(path.string()), file_(uninterrupted([&] {
              return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
          })) // a pipe is no reason to wait
    {
        if (file_.get() < 0 || ::fstat(file_.get(), &opened_) != 0)
            refuse_file(path_, "cannot be read", errno);
        if (!S_ISREG(opened_.st_mode))
            refuse_file(path_, "cannot be read as a file", S_ISDIR(opened_.st_mode) ? EISDIR : EINVAL);
        if (size() == 0)
            return; // which mmap refuses
        void* const at = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, file_.get(), 0);
        if (at == MAP_FAILED)
            refuse_file(path_, "cannot be mapped", errno);
        data_ = static_cast<std::byte const*>(at);
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

    // Throws corrupted where the file has been cut short, or changed in any other way, since it was opened. Of a tensor
    // whose data were replaced by others, those are copied.
    void read(std::byte const* from, std::size_t bytes, std::byte* to) const override
    {
        if (std::less<>()(from, data_) || !std::less<>()(from, data_ + size())) {
            std::memcpy(to, from, bytes);
            return;
        }
        std::size_t at = static_cast<std::size_t>(from - data_);
        std::size_t left = bytes;
        while (left != 0) {
            ssize_t const got = uninterrupted([&] {
                return ::pread(file_.get(), to, std::min(left, std::size_t{1} << 30), static_cast<::off_t>(at));
            });
            if (got < 0)
                refuse_file(path_, "cannot be read", errno);
            if (got == 0)
                break;
            at += static_cast<std::size_t>(got);
            to += got;
            left -= static_cast<std::size_t>(got);
        }
        // Bytes that are all there may still be others than those that were checked. (Kernels note the time of a change
        // to some milliseconds.)
        struct ::stat now = {};
        if (::fstat(file_.get(), &now) != 0)
            refuse_file(path_, "cannot be read", errno);
        bool const is_cut = left != 0 || now.st_size < opened_.st_size;
        if (is_cut || now.st_size != opened_.st_size || now.st_mtim.tv_sec != opened_.st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec)
            throw_corrupted({path_, is_cut ? " is truncated" : " was written to", " since it was opened: it had ",
                             opened_.st_size, " bytes and has ", now.st_size,
                             "; load it again when nothing writes to it"});
    }

private:
    std::string path_;
    descriptor file_;
    struct ::stat opened_ = {};
    std::byte const* data_ = nullptr;
};

// Bytes of a state, wherever they are.
struct stored_bytes {
    std::byte const* data;
    std::size_t bytes;
    state_source const* source; // that they are read through, or null
};

// Visits stored bytes in order, in pieces, without a copy where they are simply in memory.
class stored_reader {
public:
    // visit(data, bytes)
    template <class Visit>
    void each_piece(stored_bytes const& of, Visit const& visit)
    {
        if (of.source == nullptr) {
            visit(of.data, of.bytes);
            return;
        }
        for (std::size_t done = 0; done < of.bytes;) {
            std::size_t const n = std::min(of.bytes - done, piece_bytes);
            if (room_.size() < n)
                room_.resize(std::min(std::max(n, 2 * room_.size()), piece_bytes));
            of.source->read(bytes_behind(of.data, done), n, room_.data());
            visit(static_cast<std::byte const*>(room_.data()), n);
            done += n;
        }
    }

private:
    static constexpr std::size_t piece_bytes = std::size_t{1} << 18; // within a core's own cache
    std::vector<std::byte> room_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
