// SPDX-License-Identifier: Apache-2.0
// A file that is replaced as a whole or not at all, whenever the process or the machine stops.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class descriptor {
public:
    explicit descriptor(int fd = -1) noexcept : fd_(fd) {}
    descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor()
    {
        if (fd_ >= 0)
            ::close(fd_);
    }
    [[nodiscard]] int get() const noexcept { return fd_; }

private:
    int fd_;
};

[[noreturn]] inline void refuse_file(std::string const& path, std::string const& what, int error)
{
    throw_unavailable({path, ": ", what, ": ", std::strerror(error)});
}

// Until commit() has returned, the path keeps its old file. The bytes go to PATH.part, which is locked, so that the
// second of two writers gets an error instead of both writing a mixture. A PATH.part that a killed process left behind
// is used again. Errors are unavailable, with the path and the system's reason. The destructor removes PATH.part unless
// it has become the file. The new file has the permission bits of the old one, but not its owner and its other links. A
// symbolic link is followed. One thread at a time.
class durable_file {
public:
    explicit durable_file(std::filesystem::path const& path) : path_(path.string())
    {
        if (path_.empty())
            throw_invalid_argument({"a file is to be written, but its path is empty"});
        if (std::error_code error; std::filesystem::is_symlink(path, error)) {
            path_ = std::filesystem::canonical(path, error).string();
            if (error)
                refuse_file(path.string(), "this symbolic link cannot be followed", error.value());
        }
        struct ::stat there = {};
        bool const replaces = ::stat(path_.c_str(), &there) == 0;
        if (replaces && !S_ISREG(there.st_mode)) // a rename would replace a device, and would come too late to say no
            refuse_file(path_, "only a file can be replaced", S_ISDIR(there.st_mode) ? EISDIR : EINVAL);
        std::string const folder = std::filesystem::path(path_).parent_path().string();
        // Before anything is written, as the new name is not safe without it.
        directory_ = descriptor(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (directory_.get() < 0)
            refuse_file(path_, "the folder cannot be opened", errno);
        part_ = path_ + ".part";
        open_and_lock();
        try {
            if (::ftruncate(file_.get(), 0) != 0)
                fail("cannot be emptied");
            if (replaces && ::fchmod(file_.get(), there.st_mode & 0777) != 0)
                fail("cannot be given the permissions of the file that it will replace");
        } catch (...) {
            ::unlink(part_.c_str());
            throw;
        }
    }
    durable_file(durable_file const&) = delete;
    durable_file& operator=(durable_file const&) = delete;
    ~durable_file()
    {
        if (!committed_) // still locked, so it is ours
            ::unlink(part_.c_str());
    }

    void write(void const* data, std::size_t bytes)
    {
        auto const* at = static_cast<char const*>(data);
        while (bytes != 0) {
            ssize_t const written = ::write(file_.get(), at, std::min(bytes, std::size_t{1} << 30));
            if (written < 0 && errno == EINTR)
                continue;
            if (written <= 0) {
                errno = written == 0 ? ENOSPC : errno;
                fail("could not be written");
            }
            at += written;
            bytes -= static_cast<std::size_t>(written);
        }
    }
    void write(std::string_view text) { write(text.data(), text.size()); }

    // On the disk, then under its name, then the name on the disk.
    void commit()
    {
        sync(file_, part_, "could not be synced to the disk");
        if (::rename(part_.c_str(), path_.c_str()) != 0)
            refuse_file(path_, "could not be replaced by " + part_, errno);
        committed_ = true;
        sync(directory_, path_, "is complete, but its name could not be synced to the disk");
    }

private:
    [[noreturn]] void fail(char const* what) const { refuse_file(part_, what, errno); }

    static void sync(descriptor const& file, std::string const& path, char const* what)
    {
        int result = 0;
        do
            result = ::fsync(file.get());
        while (result != 0 && errno == EINTR);
        if (result != 0)
            refuse_file(path, what, errno);
    }

    void open_and_lock()
    {
        for (;;) {
            // Reading too, as a named pipe opened for writing alone would wait for a reader.
            file_ = descriptor(::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
            struct ::stat ours = {};
            if (file_.get() < 0 || ::fstat(file_.get(), &ours) != 0)
                fail("cannot be opened for writing");
            if (!S_ISREG(ours.st_mode))
                refuse_file(part_, "is in the way and is not a file", EINVAL);
            if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
                if (errno == EWOULDBLOCK)
                    refuse_file(part_, "another save to this path is under way; save one at a time, or elsewhere",
                                EWOULDBLOCK);
                int const error = errno;
                ::unlink(part_.c_str()); // no save can be under way where none can lock
                refuse_file(part_, "cannot be locked, which a save needs; save to a file system that has locks", error);
            }
            // Another writer may have renamed or removed it between the two calls: then the lock is on a file of that
            // one's, finished and not ours to touch.
            struct ::stat named = {};
            if (::lstat(part_.c_str(), &named) == 0 && named.st_ino == ours.st_ino && named.st_dev == ours.st_dev)
                return;
        }
    }

    std::string path_;
    std::string part_;
    descriptor directory_;
    descriptor file_;
    bool committed_ = false;
};

} // namespace detail
ADAMANT_END_NAMESPACE
