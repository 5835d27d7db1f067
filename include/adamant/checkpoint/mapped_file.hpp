// SPDX-License-Identifier: Apache-2.0
// A file's bytes as read-only memory.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <adamant/checkpoint/durable_file.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The file may be replaced, renamed or removed while it is mapped; who writes into it or cuts it short changes this
// memory, or has its next reader killed by SIGBUS, as a failing disk does.
class mapped_file {
public:
    // Throws unavailable with the path and the system's reason.
    explicit mapped_file(std::filesystem::path const& path)
    {
        descriptor const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a pipe is no reason to wait
        struct ::stat there = {};
        if (file.get() < 0 || ::fstat(file.get(), &there) != 0)
            refuse_file(path.string(), "cannot be read", errno);
        if (!S_ISREG(there.st_mode))
            refuse_file(path.string(), "cannot be read as a file", S_ISDIR(there.st_mode) ? EISDIR : EINVAL);
        size_ = static_cast<std::size_t>(there.st_size);
        if (size_ == 0)
            return; // which mmap refuses
        void* const at = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
        if (at == MAP_FAILED)
            refuse_file(path.string(), "cannot be mapped", errno);
        data_ = static_cast<std::byte const*>(at);
    }
    mapped_file(mapped_file&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0))
    {
    }
    mapped_file& operator=(mapped_file&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~mapped_file()
    {
        if (data_ != nullptr)
            ::munmap(const_cast<std::byte*>(data_), size_);
    }

    [[nodiscard]] std::byte const* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    std::byte const* data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace detail
ADAMANT_END_NAMESPACE
