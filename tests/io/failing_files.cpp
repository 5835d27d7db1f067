// SPDX-License-Identifier: Apache-2.0
// Saving where a system call fails: every call of a save, with every answer that file systems are known to give.
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <adamant/resctrl.hpp>
#include <adamant/safetensors.hpp>
#include <adamant/tuned_json.hpp>
#include <adamant/zenflow_safetensors.hpp>

#include "catch.hpp"
#include "checkpoint_states.hpp"
#include "refusal.hpp"

using namespace adamant;
using namespace test;
namespace fs = std::filesystem;

namespace {

struct fault {
    enum class how { refused, done_but_failed, written_in_part };

    std::string call; // fsync() of a folder is "fsync folder"
    int error;
    how kind = how::refused;
    long after = -1; // fail once, after this many calls; below 0: fail every call
};

thread_local std::optional<fault> injected;
thread_local bool was_hit = false;

// Whether this call is to fail.
bool fails(char const* call)
{
    if (!injected || injected->call != call)
        return false;
    if (injected->after >= 0 && injected->after-- != 0)
        return false;
    if (injected->after < -1)
        return false; // it was once
    if (injected->after == -1 && was_hit && injected->error == EINTR)
        return false; // no signal comes for ever
    was_hit = true;
    return true;
}

// What the fault says of a call; perform() makes it.
template <class Perform>
auto answer(char const* call, Perform const& perform)
{
    bool const is_failing = fails(call);
    bool const is_done = !is_failing || injected->kind == fault::how::done_but_failed;
    auto result = decltype(perform()){-1};
    if (is_done)
        result = perform();
    if (is_failing) {
        errno = injected->error;
        result = -1;
    }
    return result;
}

} // namespace

// In place of the C library's, for this program. Names of their own, as the library's declarations differ in noexcept.
extern "C" {
int open_or_fail(char const* path, int flags, ...) asm("open");
int open_or_fail(char const* path, int flags, ...)
{
    std::va_list more;
    va_start(more, flags);
    ::mode_t const mode = (flags & O_CREAT) != 0 ? va_arg(more, ::mode_t) : 0;
    va_end(more);
    return answer((flags & O_DIRECTORY) != 0 ? "open folder" : "open",
                  [&] { return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode)); });
}
int ftruncate_or_fail(int file, ::off_t size) asm("ftruncate");
int ftruncate_or_fail(int file, ::off_t size)
{
    return answer("ftruncate", [&] { return static_cast<int>(::syscall(SYS_ftruncate, file, size)); });
}
int fchmod_or_fail(int file, ::mode_t mode) asm("fchmod");
int fchmod_or_fail(int file, ::mode_t mode)
{
    return answer("fchmod", [&] { return static_cast<int>(::syscall(SYS_fchmod, file, mode)); });
}
int flock_or_fail(int file, int how) asm("flock");
int flock_or_fail(int file, int how)
{
    return answer("flock", [&] { return static_cast<int>(::syscall(SYS_flock, file, how)); });
}
::ssize_t write_or_fail(int file, void const* data, std::size_t bytes) asm("write");
::ssize_t write_or_fail(int file, void const* data, std::size_t bytes)
{
    if (injected && injected->kind == fault::how::written_in_part && fails("write"))
        bytes = (bytes + 2) / 3;
    return answer("write", [&] { return static_cast<::ssize_t>(::syscall(SYS_write, file, data, bytes)); });
}
int fsync_or_fail(int file) asm("fsync");
int fsync_or_fail(int file)
{
    struct ::stat is = {};
    ::fstat(file, &is);
    return answer(S_ISDIR(is.st_mode) ? "fsync folder" : "fsync",
                  [&] { return static_cast<int>(::syscall(SYS_fsync, file)); });
}
int rename_or_fail(char const* from, char const* to) asm("rename");
int rename_or_fail(char const* from, char const* to)
{
    return answer("rename",
                  [&] { return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)); });
}
int unlink_or_fail(char const* path) asm("unlink");
int unlink_or_fail(char const* path)
{
    return answer("unlink", [&] { return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0)); });
}
int close_or_fail(int file) asm("close");
int close_or_fail(int file)
{
    return answer("close", [&] { return static_cast<int>(::syscall(SYS_close, file)); });
}
}

namespace {

using how = fault::how;

struct faults {
    char const* call;
    how kind;
    std::vector<int> errors;
};

std::vector<faults> const all_faults = {
    {"open folder", how::refused, {EACCES, EINTR, EIO, EMFILE, ENFILE, ESTALE}},
    {"open", how::refused, {EACCES, EINTR, EIO, EMFILE, ENOSPC, EDQUOT, EROFS, EPERM, ENAMETOOLONG, ESTALE}},
    {"flock", how::refused, {EINTR, EWOULDBLOCK, ENOLCK, ENOSYS, EINVAL, EOPNOTSUPP, EIO}},
    {"ftruncate", how::refused, {EINTR, EIO, EINVAL, EPERM, ENOSPC}},
    {"fchmod", how::refused, {EINTR, EPERM, ENOTSUP, EINVAL, ENOSYS, EIO, EROFS}},
    {"write", how::refused, {EINTR, ENOSPC, EDQUOT, EFBIG, EIO, ESTALE}},
    {"write", how::written_in_part, {0}},
    {"fsync", how::refused, {EINTR, EIO, ENOSPC, EDQUOT, EINVAL, ENOTSUP, EROFS, ESTALE}},
    {"rename", how::refused, {EINTR, EACCES, EPERM, EIO, ENOENT, ENOSYS, EXDEV, ENOSPC, EBUSY, ESTALE}},
    {"rename", how::done_but_failed, {EINTR, ENOENT, EIO, ETIMEDOUT, ESTALE}},
    {"fsync folder", how::refused, {EINTR, EINVAL, EIO, ENOTSUP, EOPNOTSUPP, ENOSYS, EBADF, EACCES, EROFS, ESTALE}},
    {"unlink", how::refused, {EACCES, EIO, ENOENT, EBUSY}},
    {"close", how::done_but_failed, {EINTR, EIO, ENOSPC, EDQUOT}}};

owned_state state_of(std::uint64_t step)
{
    owned_state result;
    result.state.step = step;
    result.state.groups = {{"g", {}, false}};
    result.state.params = {{"p", {2500}, 0}};
    for (state_array const array : {state_array::param, state_array::exp_avg})
        result.add(0, array, dtype::float32, 0, 2500, std::vector<std::byte>(10'000, static_cast<std::byte>(step)));
    return result;
}

// What a call returns under a fault, or what it throws.
struct outcome {
    save_report report;
    std::string error;
};
template <class Call>
outcome under(fault const& f, Call const& call)
{
    outcome result;
    was_hit = false;
    injected = f;
    try {
        result.report = call();
    } catch (unavailable const& error) {
        result.error = error.what();
    }
    injected.reset();
    return result;
}

std::string bytes_or_none(fs::path const& path)
{
    return fs::exists(path) ? bytes_of(path) : "none";
}

std::string text_of_fault(fault const& f)
{
    return f.call + ": " + std::strerror(f.error) + (f.kind == how::done_but_failed ? ", done" : "") + ", after " +
           std::to_string(f.after);
}

} // namespace

TEST_CASE("a system call that fails leaves the new file or the old one, and says which")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    owned_state const one = state_of(1), two = state_of(2);
    save_safetensors(path, two.state);
    std::string const new_bytes = bytes_of(path);
    save_safetensors(path, one.state);
    std::string const old_bytes = bytes_of(path);
    ::mode_t const umask = ::umask(022);
    int hits = 0, saved = 0;
    for (faults const& kind : all_faults)
        for (int const error : kind.errors)
            for (bool const replaces : {false, true})
                for (long after = 0;; ++after) {
                    fs::remove(path);
                    if (replaces) {
                        set_bytes(path, old_bytes);
                        ::chmod(path.c_str(), 0666); // which a new file does not have under this umask
                    }
                    std::string const before = bytes_or_none(path);
                    fault const f{kind.call, error, kind.kind, after};
                    INFO(text_of_fault(f) << (replaces ? ", replaces" : ", new"));
                    outcome const found = under(f, [&] { return save_safetensors(path, two.state); });
                    if (!was_hit) {
                        CHECK(found.error == "");
                        CHECK(found.report == save_report{});
                        break;
                    }
                    ++hits;
                    saved += found.error.empty();
                    CHECK((bytes_or_none(path) == (found.error.empty() ? new_bytes : before)));
                    CHECK((found.error.empty() || mentions(found.error, {path.string(), std::strerror(error)})));
                    CHECK((error != EINTR || found.error.empty()));
                    // Nothing is said to be wrong that is not, and nothing is wrong that is not said.
                    CHECK(found.report.folder_synced == (f.call != "fsync folder" || error == EINTR));
                    CHECK(found.report.permissions_kept == (found.error != "" || f.call != "fchmod" || error == EINTR));
                    CHECK(found.report.reason.empty() == (found.report.folder_synced && found.report.permissions_kept));
                    if (found.error.empty() && replaces)
                        CHECK(static_cast<unsigned>(fs::status(path).permissions()) ==
                              (found.report.permissions_kept ? 0666 : 0644));
                    // Only another writer's is left, or one that cannot be removed.
                    CHECK(fs::exists(folder / "a.part") ==
                          ((f.call == "unlink" && found.error != "") || (f.call == "flock" && error == EWOULDBLOCK)));
                    fs::remove(folder / "a.part");
                    // The next save works.
                    CHECK(save_safetensors(path, two.state) == save_report{});
                }
    ::umask(umask);
    std::printf("files: %d system calls failed, after which %d saves went on\n", hits, saved);
    CHECK(hits > 100);
    CHECK(saved > 20);
}

TEST_CASE("a signal does not keep resctrl's files from being read, written and locked")
{
    scratch_folder const folder;
    std::string const path = folder / "schemata";
    resctrl_files files;
    for (char const* const call : {"open", "write", "flock", "open folder"}) {
        CAPTURE(call);
        std::ofstream(path) << "old";
        was_hit = false;
        injected = fault{call, EINTR};
        int error = -1;
        std::string text;
        if (std::string_view(call) == "open" || std::string_view(call) == "write") {
            CHECK(files.write(path, "new") == 0);
            CHECK(was_hit);
            was_hit = false;
            CHECK(files.read(path, text) == 0);
            CHECK(text == "new");
        } else {
            std::shared_ptr<void> const held = files.lock(folder.path(), error);
            CHECK(error == 0);
            CHECK(was_hit);
        }
        injected.reset();
    }
}

TEST_CASE("what a file system always refuses is known before a save")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    owned_state const one = state_of(1);
    ::mode_t const umask = ::umask(022);
    int refused = 0, reported = 0;
    for (faults const& kind : all_faults)
        for (int const error : kind.errors)
            for (bool const replaces : {false, true}) {
                fs::remove(path);
                if (replaces) {
                    save_safetensors(path, one.state);
                    ::chmod(path.c_str(), 0666);
                }
                std::string const before = bytes_or_none(path);
                fault const f{kind.call, error, kind.kind};
                INFO(text_of_fault(f) << (replaces ? ", replaces" : ", new"));
                outcome const checked = under(f, [&] { return check_can_save(path); });
                CHECK((bytes_or_none(path) == before));
                outcome const saved = under(f, [&] { return save_safetensors(path, one.state); });
                CHECK(checked.error.empty() == saved.error.empty());
                CHECK(checked.report == saved.report);
                refused += !checked.error.empty();
                reported += checked.report != save_report{};
                // Once nothing is refused, what was left behind is in nobody's way.
                CHECK(check_can_save(path) == save_report{});
                CHECK_FALSE(fs::exists(folder / "a.part"));
                CHECK_FALSE(fs::exists(folder / "a.try"));
            }
    ::umask(umask);
    CHECK(refused > 50);
    CHECK(reported > 20);
}

TEST_CASE("dir_fsync, fchmod_refused: a folder that cannot be synced and a file whose permissions cannot be set are "
          "reported by every save")
{
    scratch_folder const folder;
    std::vector<std::pair<char const*, std::function<save_report(fs::path const&)>>> const saves = {
        {"state", [](fs::path const& path) { return save_safetensors(path, state_of(1).state); }},
        {"zenflow", [](fs::path const& path) { return save_safetensors(path, zenflow_state{}); }},
        {"tuned", [](fs::path const& path) { return save_tuned(path, {}); }},
        {"check", [](fs::path const& path) { return check_can_save(path); }}};
    for (auto const& [name, save] : saves)
        for (int const error : {EINVAL, EIO, ENOTSUP}) {
            INFO(name << ": " << std::strerror(error));
            fs::path const path = folder / name;
            for (int i = 0; i < 2; ++i) { // the first save, and the one that replaces it
                outcome const found = under({"fsync folder", error}, [&, &save = save] { return save(path); });
                CHECK(found.error == "");
                CHECK_FALSE(found.report.folder_synced);
                CHECK(mentions(found.report.reason, {"folder", std::strerror(error)}));
            }
        }
    // Where all files have the same permissions anyway, none have to be set.
    fs::path const path = folder / "same";
    for (int i = 0; i < 2; ++i) {
        outcome const found = under({"fchmod", EPERM}, [&] { return save_safetensors(path, state_of(1).state); });
        CHECK(found.error == "");
        CHECK(found.report == save_report{});
    }
    // What others must not read they do not get to read.
    set_bytes(folder / "same.part", "left behind");
    ::chmod((folder / "same.part").c_str(), 0666);
    ::chmod(path.c_str(), 0600);
    CHECK(mentions(under({"fchmod", EPERM}, [&] { return save_safetensors(path, state_of(1).state); }).error,
                   {"same.part': fchmod() to the permissions of the old file failed", std::strerror(EPERM)}));
    CHECK_FALSE(fs::exists(folder / "same.part"));
    CHECK(under({"fchmod", EPERM}, [&] { return save_safetensors(path, state_of(1).state); }).report == save_report{});
    CHECK(static_cast<unsigned>(fs::status(path).permissions()) == 0600);
}

TEST_CASE("a file of somebody else's is not the check's to replace")
{
    scratch_folder const folder;
    for (std::string const& bytes :
         {std::string(5000, 'x'), std::string(4096, 'x'), std::string("x"), std::string(4095, '\0')}) {
        set_bytes(folder / "a.try", bytes);
        CHECK(mentions(refusal<unavailable>([&] { check_can_save(folder / "a"); }),
                       {"a.try': it belongs to another program"}));
        CHECK(bytes_of(folder / "a.try") == bytes);
    }
    // What a check leaves that was killed is used again.
    for (std::size_t const size : {std::size_t{0}, std::size_t{4096}}) {
        set_bytes(folder / "a.try", std::string(size, '\0'));
        check_can_save(folder / "a");
        CHECK_FALSE(fs::exists(folder / "a.try"));
    }
    // The longest name that can be saved can be checked.
    std::string const longest(250, 'n');
    check_can_save(folder / longest);
    save_safetensors(folder / longest, state_of(1).state);
    CHECK_FALSE(fs::exists(folder / "a.part"));
}

// ulimit -f, in a child.
TEST_CASE("the limit of file sizes is an error, not the end of the process")
{
    scratch_folder const folder;
    owned_state const one = state_of(1);
    for (bool const was_blocked : {false, true})
        for (::rlim_t const limit : {::rlim_t{0}, ::rlim_t{100}, ::rlim_t{15'000}}) {
            ::pid_t const child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                ::rlimit const most = {limit, limit};
                ::setrlimit(RLIMIT_FSIZE, &most);
                std::signal(SIGXFSZ, SIG_DFL);
                ::sigset_t signal, blocked, pending;
                sigemptyset(&signal);
                sigaddset(&signal, SIGXFSZ);
                if (was_blocked)
                    ::sigprocmask(SIG_BLOCK, &signal, nullptr);
                int status = 1;
                try {
                    save_safetensors(folder / "a", one.state);
                } catch (unavailable const& error) {
                    ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
                    ::sigpending(&pending);
                    bool const is_right = std::strstr(error.what(), std::strerror(EFBIG)) != nullptr &&
                                          sigismember(&blocked, SIGXFSZ) == was_blocked &&
                                          sigismember(&pending, SIGXFSZ) == 0;
                    status = is_right ? 0 : 2;
                }
                ::_exit(status);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            CHECK(status == 0);
            CHECK(fs::is_empty(folder.path()));
        }
}
