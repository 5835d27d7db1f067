// SPDX-License-Identifier: Apache-2.0
// A file that is replaced as a whole or not at all, whenever the process or the machine stops.
#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/detail/core/uninterrupted.hpp>

ADAMANT_BEGIN_NAMESPACE

// What a save, or its check, could not do although the file is complete. Some network and FUSE file systems refuse
// calls of a durable save.
struct save_report {
    // Whether the directory was synced. If not, the complete old file may be back after a power failure.
    bool folder_synced = true;
    // Whether the new file has the permission bits of the file it replaced. If not, group and others have fewer.
    bool permissions_kept = true;
    std::string reason = {}; // the system's reason for each false

    friend bool operator==(save_report const&, save_report const&) = default;
};

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

// write() that answers EFBIG at the limit of file sizes (ulimit -f), where the system would end the process by SIGXFSZ.
inline ssize_t write_within_limit(int file, void const* data, std::size_t bytes)
{
    ::sigset_t signal, before, pending;
    sigemptyset(&signal);
    sigaddset(&signal, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal, &before);
    ::sigpending(&pending);
    ssize_t const result = ::write(file, data, bytes);
    int const error = errno;
    if (result < 0 && error == EFBIG && sigismember(&pending, SIGXFSZ) == 0) { // then the signal is this write's
        ::timespec const no_time = {};
        uninterrupted([&] { return ::sigtimedwait(&signal, nullptr, &no_time); });
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return result;
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
        directory_ = descriptor(uninterrupted(
            [&] { return ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
        if (directory_.get() < 0)
            refuse_file(path_, "the folder cannot be opened", errno);
        part_ = path_ + ".part";
        // Where fchmod() is refused, no other user may do more with the new file than with the old one.
        open_and_lock(replaces ? (there.st_mode & 0777) | 0600 : 0666);
        try {
            if (uninterrupted([&] { return ::ftruncate(file_.get(), 0); }) != 0)
                fail("cannot be emptied");
            if (replaces)
                keep_permissions(there.st_mode & 0777);
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
            ssize_t const written = uninterrupted(
                [&] { return write_within_limit(file_.get(), at, std::min(bytes, std::size_t{1} << 30)); });
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
    save_report commit()
    {
        become(path_);
        return report_;
    }
    // Performs every system call of a save on a small file next to the path. Call once, instead of write() and
    // commit().
    save_report rehearse()
    {
        static constexpr char few[4096] = {};
        write(few, sizeof few);
        std::string const name = path_ + ".try"; // no longer than PATH.part, which a save needs
        struct ::stat there = {};
        {
            descriptor const replaced(uninterrupted(
                [&] { return ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); }));
            if (replaced.get() < 0 || ::fstat(replaced.get(), &there) != 0)
                refuse_file(name, "cannot be opened for writing", errno);
            // A check that was killed leaves an empty file or these zeros. Anything else is another program's.
            char found[sizeof few] = {};
            ssize_t const size = uninterrupted([&] { return ::pread(replaced.get(), found, sizeof found, 0); });
            bool const is_ours = S_ISREG(there.st_mode) &&
                                 (there.st_size == 0 || there.st_size == static_cast<::off_t>(sizeof few)) &&
                                 size == there.st_size && std::memcmp(found, few, sizeof few) == 0;
            if (!is_ours)
                refuse_file(name, "is in the way of a check; rename it", EEXIST);
        }
        try {
            become(name);
        } catch (...) {
            ::unlink(name.c_str());
            throw;
        }
        ::unlink(name.c_str());
        return report_;
    }

private:
    [[noreturn]] void fail(char const* what) const { refuse_file(part_, what, errno); }

    void become(std::string const& name)
    {
        // fsync() is not retried after an error: a second call would not report it again.
        if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0)
            fail("could not be synced to the disk");
        if (uninterrupted([&] { return ::rename(part_.c_str(), name.c_str()); }) != 0) {
            int const error = errno;
            if (!is_ours(name)) // a server that is asked again, as its answer was lost, finds nothing to rename
                refuse_file(name, "could not be replaced by " + part_, error);
        }
        committed_ = true;
        // From here on the path has the new file, whole: nothing is a failure any more.
        if (uninterrupted([&] { return ::fsync(directory_.get()); }) != 0)
            note(report_.folder_synced, "the folder could not be synced", errno);
    }

    // Whether that is the name of the file that is being written.
    [[nodiscard]] bool is_ours(std::string const& name) const
    {
        struct ::stat ours = {};
        struct ::stat named = {};
        return ::fstat(file_.get(), &ours) == 0 && ::lstat(name.c_str(), &named) == 0 && named.st_ino == ours.st_ino &&
               named.st_dev == ours.st_dev;
    }

    void note(bool& which, char const* what, int error)
    {
        which = false;
        report_.reason += text_of({report_.reason.empty() ? "" : "; ", what, ": ", std::strerror(error)});
    }

    void keep_permissions(::mode_t wanted)
    {
        struct ::stat ours = {};
        if (::fstat(file_.get(), &ours) != 0)
            fail("cannot be looked at");
        ::mode_t const given = ours.st_mode & 0777;
        if (given == wanted || uninterrupted([&] { return ::fchmod(file_.get(), wanted); }) == 0)
            return;
        int const error = errno;
        bool const is_unsupported =
            error == EPERM || error == EINVAL || error == ENOSYS || error == ENOTSUP || error == EOPNOTSUPP;
        if (!is_unsupported || (given & ~wanted & 077) != 0)
            refuse_file(part_, "cannot be given the permissions of the file that it will replace", error);
        note(report_.permissions_kept, "the permissions of the old file could not be given to the new one", error);
    }

    void open_and_lock(::mode_t permissions)
    {
        for (;;) {
            // Reading too, as a named pipe opened for writing alone would wait for a reader.
            file_ = descriptor(uninterrupted(
                [&] { return ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, permissions); }));
            struct ::stat ours = {};
            if (file_.get() < 0 || ::fstat(file_.get(), &ours) != 0)
                fail("cannot be opened for writing");
            if (!S_ISREG(ours.st_mode))
                refuse_file(part_, "is in the way and is not a file", EINVAL);
            if (uninterrupted([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
                if (errno == EWOULDBLOCK)
                    refuse_file(part_, "another save to this path is under way; save one at a time, or elsewhere",
                                EWOULDBLOCK);
                int const error = errno;
                ::unlink(part_.c_str()); // no save can be under way where none can lock
                refuse_file(part_, "cannot be locked, which a save needs; save to a file system that has locks", error);
            }
            // Another writer may have renamed or removed it between the two calls: then the lock is on a file of that
            // one's, finished and not ours to touch.
            if (is_ours(part_))
                return;
        }
    }

    std::string path_;
    std::string part_;
    descriptor directory_;
    descriptor file_;
    save_report report_;
    bool committed_ = false; // then PATH.part is no longer ours
};

} // namespace detail
ADAMANT_END_NAMESPACE
