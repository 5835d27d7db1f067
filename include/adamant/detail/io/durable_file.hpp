// SPDX-License-Identifier: Apache-2.0
// Atomic and durable replacement of a file: after a crash the path has either the complete old or the complete new
// file.
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

/// Operations of a save, or of its check, that the file system refused although the file is complete. Some network and
/// FUSE file systems refuse system calls that a durable save makes.
struct save_report {
    /// Whether the directory was synced. If not, the path may have the complete old file again after a power failure.
    bool folder_synced = true;
    /// Whether the new file has the permission bits of the file it replaced. If not, group and others have fewer
    /// rights.
    bool permissions_kept = true;
    std::string reason = {}; ///< the system's reason for each false
    /// Compares all members.
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

// cannot `action` 'PATH': `reason`: the system's reason. `remedy`. Reason and remedy may be empty.
[[noreturn]] inline void refuse_file(char const* action, std::string const& path, std::string const& reason, int error,
                                     char const* remedy = "")
{
    throw_unavailable({"cannot ", action, " '", path, "': ", reason, reason.empty() ? "" : ": ", std::strerror(error),
                       *remedy == '\0' ? "" : ". ", remedy});
}

// Calls write(). At the limit of file sizes (ulimit -f) it returns EFBIG; without it SIGXFSZ would end the process.
inline ssize_t write_within_limit(int file, void const* data, std::size_t bytes)
{
    ::sigset_t signal, previous, pending;
    sigemptyset(&signal);
    sigaddset(&signal, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal, &previous);
    ::sigpending(&pending);
    ssize_t const result = ::write(file, data, bytes);
    int const error = errno;
    if (result < 0 && error == EFBIG && sigismember(&pending, SIGXFSZ) == 0) { // this write raised the signal
        ::timespec const no_time = {};
        uninterrupted([&] { return ::sigtimedwait(&signal, nullptr, &no_time); });
    }
    ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    errno = error;
    return result;
}

// Writes to PATH.part and renames it in commit(), so the path keeps its old file until then. PATH.part is locked: the
// second of two writers gets an error, and their bytes never mix. A PATH.part of a killed process is reused. The
// destructor removes PATH.part if commit() did not rename it. The new file has the permission bits of the old one, but
// not its owner and its other hard links. Symbolic links are followed. Throws unavailable with the path and the
// system's reason. Not thread-safe.
class durable_file {
public:
    explicit durable_file(std::filesystem::path const& path) : path_(path.string())
    {
        if (path_.empty())
            throw_invalid_argument({"cannot write a file: its path is empty"});
        if (std::error_code error; std::filesystem::is_symlink(path, error)) {
            path_ = std::filesystem::canonical(path, error).string();
            if (error)
                refuse_file("follow the symbolic link", path.string(), "", error.value());
        }
        struct ::stat old_status = {};
        bool const replaces = ::stat(path_.c_str(), &old_status) == 0;
        if (replaces && !S_ISREG(old_status.st_mode)) // rename() would replace a device, and would fail too late
            refuse_file("replace", path_, "it is not a regular file", S_ISDIR(old_status.st_mode) ? EISDIR : EINVAL);
        std::string const folder = std::filesystem::path(path_).parent_path().string();
        // Opened before anything is written, because the new name is durable only after a sync of the directory.
        directory_ = descriptor(uninterrupted(
            [&] { return ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
        if (directory_.get() < 0)
            refuse_file("write", path_, "open() of its folder failed", errno);
        part_ = path_ + ".part";
        // If fchmod() is refused, the new file must not give other users more rights than the old one.
        open_and_lock(replaces ? (old_status.st_mode & 0777) | 0600 : 0666);
        try {
            if (uninterrupted([&] { return ::ftruncate(file_.get(), 0); }) != 0)
                fail("ftruncate() failed");
            if (replaces)
                keep_permissions(old_status.st_mode & 0777);
        } catch (...) {
            ::unlink(part_.c_str());
            throw;
        }
    }
    durable_file(durable_file const&) = delete;
    durable_file& operator=(durable_file const&) = delete;
    ~durable_file()
    {
        if (!committed_) // PATH.part is still locked by this object
            ::unlink(part_.c_str());
    }

    void write(void const* data, std::size_t bytes)
    {
        auto const* position = static_cast<char const*>(data);
        while (bytes != 0) {
            ssize_t const written = uninterrupted(
                [&] { return write_within_limit(file_.get(), position, std::min(bytes, std::size_t{1} << 30)); });
            if (written <= 0) {
                errno = written == 0 ? ENOSPC : errno;
                fail("write() failed");
            }
            position += written;
            bytes -= static_cast<std::size_t>(written);
        }
    }
    void write(std::string_view text) { write(text.data(), text.size()); }

    // Syncs the file, renames it, and syncs the directory.
    save_report commit()
    {
        rename_part(path_);
        return report_;
    }
    // Makes every system call of a save on a small file next to the path. Call once, instead of write() and commit().
    save_report rehearse()
    {
        static constexpr char zeros[4096] = {};
        write(zeros, sizeof zeros);
        std::string const name = path_ + ".try"; // not longer than PATH.part, which a save needs
        struct ::stat status = {};
        {
            descriptor const replaced(uninterrupted(
                [&] { return ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); }));
            if (replaced.get() < 0 || ::fstat(replaced.get(), &status) != 0)
                refuse_file("write", name, "open() failed", errno);
            // A killed check leaves an empty file or these zeros. Any other content belongs to another program.
            char content[sizeof zeros] = {};
            ssize_t const size = uninterrupted([&] { return ::pread(replaced.get(), content, sizeof content, 0); });
            bool const is_rehearsal_file =
                S_ISREG(status.st_mode) &&
                (status.st_size == 0 || status.st_size == static_cast<::off_t>(sizeof zeros)) &&
                size == status.st_size && std::memcmp(content, zeros, sizeof zeros) == 0;
            if (!is_rehearsal_file)
                refuse_file("check a save by writing", name, "it belongs to another program", EEXIST, "Rename it.");
        }
        try {
            rename_part(name);
        } catch (...) {
            ::unlink(name.c_str());
            throw;
        }
        ::unlink(name.c_str());
        return report_;
    }

private:
    [[noreturn]] void fail(char const* reason) const { refuse_file("write", part_, reason, errno); }

    void rename_part(std::string const& name)
    {
        // fsync() is not retried after an error: a second call would not report it again.
        if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0)
            fail("fsync() failed");
        if (uninterrupted([&] { return ::rename(part_.c_str(), name.c_str()); }) != 0) {
            int const error = errno;
            if (!refers_to_file(name)) // a file server that repeats a rename after a lost reply finds no file
                refuse_file("replace", name, "rename() of " + part_ + " failed", error);
        }
        committed_ = true;
        // The path now has the complete new file, so later errors are only reported.
        if (uninterrupted([&] { return ::fsync(directory_.get()); }) != 0)
            note(report_.folder_synced, "the folder could not be synced", errno);
    }

    // Returns whether the name refers to the open file_.
    [[nodiscard]] bool refers_to_file(std::string const& name) const
    {
        struct ::stat status = {};
        struct ::stat named_status = {};
        return ::fstat(file_.get(), &status) == 0 && ::lstat(name.c_str(), &named_status) == 0 &&
               named_status.st_ino == status.st_ino && named_status.st_dev == status.st_dev;
    }

    void note(bool& flag, char const* problem, int error)
    {
        flag = false;
        report_.reason += text_of({report_.reason.empty() ? "" : "; ", problem, ": ", std::strerror(error)});
    }

    void keep_permissions(::mode_t permissions)
    {
        struct ::stat status = {};
        if (::fstat(file_.get(), &status) != 0)
            fail("fstat() failed");
        ::mode_t const current = status.st_mode & 0777;
        if (current == permissions || uninterrupted([&] { return ::fchmod(file_.get(), permissions); }) == 0)
            return;
        int const error = errno;
        bool const is_unsupported =
            error == EPERM || error == EINVAL || error == ENOSYS || error == ENOTSUP || error == EOPNOTSUPP;
        if (!is_unsupported || (current & ~permissions & 077) != 0)
            refuse_file("write", part_, "fchmod() to the permissions of the old file failed", error);
        note(report_.permissions_kept, "the permissions of the old file could not be given to the new one", error);
    }

    void open_and_lock(::mode_t permissions)
    {
        for (;;) {
            // Open for reading too: open() of a named pipe for writing alone would wait for a reader.
            file_ = descriptor(uninterrupted(
                [&] { return ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, permissions); }));
            struct ::stat status = {};
            if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0)
                fail("open() failed");
            if (!S_ISREG(status.st_mode))
                refuse_file("write", part_, "it is not a regular file", EINVAL, "Remove it.");
            if (uninterrupted([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
                if (errno == EWOULDBLOCK)
                    refuse_file("write", part_, "another save to this path is in progress", EWOULDBLOCK,
                                "Save one state at a time, or to another path.");
                int const error = errno;
                ::unlink(part_.c_str()); // without locks no other save can be using it
                refuse_file("write", part_, "flock() failed", error, "Save to a file system that supports locks.");
            }
            // Another writer may have renamed or removed PATH.part between the two calls. The lock is then on a file
            // that the other writer has finished.
            if (refers_to_file(part_))
                return;
        }
    }

    std::string path_;
    std::string part_;
    descriptor directory_;
    descriptor file_;
    save_report report_;
    bool committed_ = false; // whether PATH.part has been renamed
};

} // namespace detail
ADAMANT_END_NAMESPACE
