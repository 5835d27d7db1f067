// SPDX-License-Identifier: Apache-2.0
// Saves through C on a file system that cannot sync folders.
#include <cerrno>
#include <string>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "c_test.hpp"

namespace {
bool folders_cannot_be_synced = false;
}

// In place of the C library's, for this program and the libraries that it loads.
extern "C" {
int fsync_or_fail(int file) asm("fsync");
int fsync_or_fail(int file)
{
    struct ::stat is = {};
    if (folders_cannot_be_synced && ::fstat(file, &is) == 0 && S_ISDIR(is.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fsync, file));
}
}

TEST_CASE("C: dir_fsync: a save that cannot sync its folder is complete and says so")
{
    folder const dir;
    std::string const path = dir.file("state.safetensors");
    model m;
    optimizer const o = make_optimizer(m);
    for (int i = 0; i < 2; ++i) { // a new file, and one that is replaced
        folders_cannot_be_synced = true;
        ok(adamant_check_can_save(path.c_str()));
        CHECK(last_error().find("the folder could not be synced") != std::string::npos);
        ok(adamant_save_safetensors(o.get(), path.c_str()));
        CHECK(last_error().find("adamant: the file is complete, but the folder could not be synced") == 0);
        folders_cannot_be_synced = false;
        char const* const paths[] = {path.c_str()};
        ok(adamant_load_safetensors(o.get(), paths, 1));
        ok(adamant_save_safetensors(o.get(), path.c_str()));
        CHECK(last_error().empty());
        ok(adamant_check_can_save(path.c_str()));
        CHECK(last_error().empty());
    }
    fails(adamant_check_can_save(dir.file("no/such/folder").c_str()), ADAMANT_UNAVAILABLE, "no/such/folder");
    refused(adamant_check_can_save(nullptr), "path is a null");
}
