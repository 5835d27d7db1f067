// SPDX-License-Identifier: Apache-2.0
// Saving against the world: killed processes, full disks, other savers, folders that are not to be written.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <adamant/safetensors.hpp>
#include <adamant/detail/io/restore.hpp>

#include "catch.hpp"
#include "checkpoint_states.hpp"

using namespace adamant;
using namespace test;
namespace fs = std::filesystem;

namespace {

// All of it follows from its step: 1 to 3 MB in three arrays, of which one comes in pieces.
class numbered_state {
public:
    explicit numbered_state(std::uint64_t step)
    {
        random_bits random(step);
        std::size_t const n = 100'000 + random.below(200'000);
        words_.resize(2 * n);
        for (std::uint64_t& word : words_)
            word = random();
        auto const* const bytes = reinterpret_cast<std::byte const*>(words_.data());
        state.step = step;
        state.groups = {{"g" + std::to_string(step % 7), {.lr = 1 / (1 + static_cast<double>(step))}, false}};
        state.params = {{"p", {n}, 0}, {"q", {n}, 0}};
        state.tensors = {{0, state_array::param, dtype::float32, 0, n, bytes},
                         {0, state_array::exp_avg, dtype::bfloat16, 0, n, bytes + 4 * n},
                         {1, state_array::exp_avg, dtype::float32, n / 3, n - n / 3, bytes + 8 * n + 4 * (n / 3)},
                         {1, state_array::exp_avg, dtype::float32, 0, n / 3, bytes + 8 * n}};
    }
    state_dict state;

private:
    std::vector<std::uint64_t> words_;
};

// The step of the file, all of which must be that step's state.
std::uint64_t whole_step(fs::path const& path)
{
    safetensors_state const file(path);
    numbered_state const expected(file.state().step);
    // Large, so not through difference(): whole arrays first, then the share, in the order of params.
    state_dict const& found = file.state();
    REQUIRE(found.groups.at(0).name == expected.state.groups[0].name);
    REQUIRE(found.groups[0].hyper.lr == expected.state.groups[0].hyper.lr);
    REQUIRE(found.params.at(0).shape == expected.state.params[0].shape);
    REQUIRE(found.tensors.size() == 3);
    for (state_tensor const& part : expected.state.tensors) {
        state_tensor const& whole = found.tensors.at(part.param == 1 ? 2 : static_cast<std::size_t>(part.array));
        REQUIRE(whole.elements == found.params[0].shape[0]);
        REQUIRE(whole.type == part.type);
        std::size_t const size = size_bytes(part.type);
        REQUIRE(std::memcmp(whole.data + part.begin * size, part.data, part.elements * size) == 0);
    }
    return found.step;
}

// In a child, whose exit status says whether it returned true. Nothing of the test framework is called there.
::pid_t in_child(std::function<bool()> const& body)
{
    ::pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool good = false;
        try {
            good = body();
        } catch (std::exception const& error) {
            std::fprintf(stderr, "in the child: %s\n", error.what());
        }
        ::_exit(good ? 0 : 1);
    }
    return child;
}
int status_of(::pid_t child)
{
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}

void sleep_us(std::size_t microseconds)
{
    ::timespec const time = {static_cast<::time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000 * 1000)};
    ::nanosleep(&time, nullptr);
}

// A save changes it, because it replaces the file.
::ino_t inode_of(fs::path const& path)
{
    struct ::stat found = {};
    REQUIRE(::stat(path.c_str(), &found) == 0);
    return found.st_ino;
}

bool contains(std::string const& text, char const* word)
{
    return text.find(word) != text.npos;
}

// What save_safetensors() says in its unavailable.
std::string save_error(fs::path const& path, state_dict const& state)
{
    try {
        save_safetensors(path, state);
    } catch (unavailable const& error) {
        return error.what();
    }
    return "saved";
}

} // namespace

TEST_CASE("a killed process leaves a whole file behind", "[slow]")
{
    scratch_folder const folder;
    fs::path const path = folder / "state.safetensors";
    fs::path const part = folder / "state.safetensors.part";
    random_bits random(30);
    std::uint64_t step = 1;
    // As long as a few saves take on this machine, so that kills fall into saves and after them.
    auto const begin = std::chrono::steady_clock::now();
    for (int save = 0; save < 3; ++save)
        save_safetensors(path, numbered_state(step).state);
    auto const three_saves =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    std::size_t left_behind = 0, advanced = 0;
    std::uint64_t kills = 0;
    std::uint64_t const least = test::repeats(4);
    for (; kills < 100 * least && (kills < 8 * least || left_behind < least || advanced < least); ++kills) {
        ::pid_t const child = in_child([&] {
            for (std::uint64_t next = step + 1;; ++next)
                save_safetensors(path, numbered_state(next).state);
            return false;
        });
        // At any time, during a save, or after one: on a busy machine the child may not begin before a time has passed.
        auto const saved_before = inode_of(path);
        auto const awaits = [&] {
            return kills % 3 == 1 ? !fs::exists(part) : kills % 3 == 2 && inode_of(path) == saved_before;
        };
        for (int waits = 0; waits < 100'000 && awaits(); ++waits)
            sleep_us(20);
        sleep_us(random.below(static_cast<std::size_t>(three_saves.count()) / (kills % 3 == 0 ? 1 : 50) + 1));
        ::kill(child, SIGKILL);
        int const status = status_of(child);
        REQUIRE(WIFSIGNALED(status));
        REQUIRE(WTERMSIG(status) == SIGKILL);
        std::uint64_t const found = whole_step(path);
        REQUIRE(found >= step);
        advanced += found > step;
        step = found;
        left_behind += fs::exists(part);
    }
    std::printf("%llu kills: %zu in the middle of a save, %zu after one or more, last step %llu\n",
                static_cast<unsigned long long>(kills), left_behind, advanced, static_cast<unsigned long long>(step));
    CHECK(left_behind >= least); // else the test has not looked
    CHECK(advanced >= least);
    save_safetensors(path, numbered_state(5).state); // what was left behind is in nobody's way
    CHECK(whole_step(path) == 5);
    CHECK_FALSE(fs::exists(part));
}

TEST_CASE("a full disk leaves the old file")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    save_safetensors(path, numbered_state(1).state);
    std::string const before = bytes_of(path);
    for (::rlim_t const limit : {::rlim_t{0}, ::rlim_t{100}, ::rlim_t{500'000}, ::rlim_t{1'000'000}}) {
        int const status = status_of(in_child([&] {
            ::rlimit const most = {limit, limit};
            std::signal(SIGXFSZ, SIG_IGN);
            numbered_state const next(2);
            std::string const text = ::setrlimit(RLIMIT_FSIZE, &most) != 0 ? "" : save_error(path, next.state);
            return contains(text, "a.part': write() failed: File too large");
        }));
        CHECK(status == 0);
        CHECK((bytes_of(path) == before));
        CHECK_FALSE(fs::exists(folder / "a.part"));
    }
}

TEST_CASE("two savers get an error rather than a mixture")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    save_safetensors(path, numbered_state(1).state);
    int const other = ::open((folder / "a.part").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(::write(other, "other", 5) == 5);
    REQUIRE(::flock(other, LOCK_EX) == 0);
    CHECK(mentions(save_error(path, numbered_state(2).state), {"a.part': another save to this path is in progress"}));
    CHECK(bytes_of(folder / "a.part") == "other"); // which is the other's to remove
    CHECK(whole_step(path) == 1);
    ::close(other);
    CHECK(save_error(path, numbered_state(2).state) == "saved");
    CHECK(whole_step(path) == 2);
    CHECK_FALSE(fs::exists(folder / "a.part"));
}

// Of many concurrent saves each is whole or refused: also where one opens PATH.part just before another one renames it.
TEST_CASE("savers that race leave whole files", "[slow]")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    save_safetensors(path, numbered_state(0).state);
    std::vector<::pid_t> children;
    for (std::uint64_t c = 0; c < 4; ++c)
        children.push_back(in_child([&] {
            // Small, so that most of the time goes into opening, locking and renaming.
            owned_state mine;
            mine.state.step = c + 1;
            mine.state.groups = {{"g", {}, false}};
            mine.state.params = {{"p", {64}, 0}};
            mine.add(0, state_array::param, dtype::float32, 0, 64,
                     std::vector<std::byte>(256, static_cast<std::byte>(c + 1)));
            int saved = 0;
            for (int i = 0; i < 3000; ++i) {
                std::string const text = save_error(path, mine.state);
                if (text != "saved" && !contains(text, "another save"))
                    return std::fprintf(stderr, "%s\n", text.c_str()) < 0;
                saved += text == "saved";
                safetensors_state const file(path); // somebody's, and whole
                for (state_tensor const& tensor : file.state().tensors)
                    if (file.state().step != 0 && tensor.data[255] != static_cast<std::byte>(file.state().step))
                        return false;
            }
            return saved > 0;
        }));
    for (::pid_t const child : children)
        CHECK(status_of(child) == 0);
    CHECK_FALSE(fs::exists(folder / "a.part"));
}

TEST_CASE("a file that cannot be written is an error with its path")
{
    scratch_folder const folder;
    state_dict const state;
    CHECK(mentions(save_error(folder / "none/a", state),
                   {"cannot write '", "/none/a': open() of its folder failed: No such file"}));
    fs::create_directory(folder / "folder");
    CHECK(mentions(save_error(folder / "folder", state), {"/folder': it is not a regular file: Is a directory"}));
    CHECK(mentions(save_error(folder / "folder/", state), {"/folder/': it is not a regular file: Is a directory"}));
    CHECK_THROWS_AS(save_safetensors("", state), invalid_argument);
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0666) == 0);
    CHECK(mentions(save_error(folder / "pipe", state), {"/pipe': it is not a regular file"}));
    REQUIRE(::mkfifo((folder / "b.part").c_str(), 0666) == 0);
    CHECK(mentions(save_error(folder / "b", state), {"/b.part': it is not a regular file", "Remove it."}));
    fs::create_symlink(folder / "elsewhere", folder / "c.part");
    CHECK(mentions(save_error(folder / "c", state), {"/c.part': open() failed"}));
    CHECK_FALSE(fs::exists(folder / "elsewhere"));
    fs::create_directory(folder / "d.part");
    CHECK(mentions(save_error(folder / "d", state), {"/d.part': open() failed: Is a directory"}));
    CHECK(fs::exists(folder / "d.part"));
    CHECK_FALSE(fs::exists(folder / "d"));

    // For whoever is not root.
    save_safetensors(folder / "folder/a", numbered_state(1).state);
    ::chmod(folder.path().c_str(), 0755);
    ::chmod((folder / "folder").c_str(), 0555);
    CHECK(status_of(in_child([&] {
              if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0))
                  return false;
              return contains(save_error(folder / "folder/a", numbered_state(2).state),
                              "folder/a.part': open() failed: Permission denied");
          })) == 0);
    CHECK(whole_step(folder / "folder/a") == 1);
    CHECK_FALSE(fs::exists(folder / "folder/a.part"));
    ::chmod((folder / "folder").c_str(), 0755);
}

TEST_CASE("what a save needs is known before it, and nothing is changed")
{
    scratch_folder const folder;
    check_can_save(folder / "new");
    CHECK(fs::is_empty(folder.path()));
    save_safetensors(folder / "a", numbered_state(1).state);
    std::string const before = bytes_of(folder / "a");
    check_can_save(folder / "a");
    CHECK((bytes_of(folder / "a") == before));
    CHECK_FALSE(fs::exists(folder / "a.part"));
    CHECK(mentions(refusal<unavailable>([&] { check_can_save(folder / "none/a"); }),
                   {"/none/a': open() of its folder failed"}));
    CHECK(mentions(refusal<unavailable>([&] { check_can_save(folder.path()); }),
                   {"it is not a regular file: Is a directory"}));
    int const other = ::open((folder / "a.part").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    REQUIRE(::flock(other, LOCK_EX) == 0);
    CHECK(mentions(refusal<unavailable>([&] { check_can_save(folder / "a"); }), {"another save"}));
    CHECK(fs::exists(folder / "a.part"));
    ::close(other);
}

TEST_CASE("a replaced file keeps its permissions, and a link to it stays one")
{
    scratch_folder const folder;
    auto const permissions = [&](char const* name) {
        return static_cast<unsigned>(fs::symlink_status(folder / name).permissions());
    };
    ::mode_t const umask = ::umask(027);
    save_safetensors(folder / "a", numbered_state(1).state);
    CHECK(permissions("a") == 0640);
    ::chmod((folder / "a").c_str(), 0604);
    save_safetensors(folder / "a", numbered_state(2).state);
    ::umask(umask);
    CHECK(permissions("a") == 0604);
    CHECK(whole_step(folder / "a") == 2);

    fs::create_directory(folder / "links");
    fs::create_symlink("../a", folder / "links/latest");
    save_safetensors(folder / "links/latest", numbered_state(3).state);
    CHECK(fs::is_symlink(folder / "links/latest"));
    CHECK(whole_step(folder / "a") == 3);
    fs::create_symlink("nowhere", folder / "links/dangling");
    CHECK(
        mentions(save_error(folder / "links/dangling", {}), {"cannot follow the symbolic link '", "links/dangling'"}));

    // Without a folder in the path: the current one.
    fs::path const before = fs::current_path();
    fs::current_path(folder.path());
    std::string const text = save_error("here", numbered_state(4).state);
    fs::current_path(before);
    CHECK(text == "saved");
    CHECK(whole_step(folder / "here") == 4);
}

TEST_CASE("a reader keeps the file that it opened")
{
    scratch_folder const folder;
    save_safetensors(folder / "a", numbered_state(1).state);
    safetensors_state const first(folder / "a");
    save_safetensors(folder / "a", numbered_state(2).state);
    numbered_state const expected(1);
    CHECK(first.state().step == 1);
    CHECK(std::memcmp(first.state().tensors[0].data, expected.state.tensors[0].data,
                      4 * expected.state.tensors[0].elements) == 0);
    CHECK(whole_step(folder / "a") == 2);
}

namespace {

// 200,000 bytes in two arrays.
owned_state short_state(std::uint64_t step)
{
    owned_state result;
    result.state.step = step;
    result.state.groups = {{"g", {}, false}};
    result.state.params = {{"p", {25'000}, 0}};
    for (state_array const array : {state_array::param, state_array::exp_avg})
        result.add(0, array, dtype::float32, 0, 25'000, std::vector<std::byte>(100'000, static_cast<std::byte>(step)));
    return result;
}

} // namespace

// In a child, for what reads the mapping is killed.
TEST_CASE("a file that is cut short or written into after it was opened is an error")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    struct {
        char const* says;
        std::function<void()> spoil;
    } const ways[] = {{"is truncated since it was opened", [&] { fs::resize_file(path, 0); }},
                      {"is truncated since it was opened", [&] { fs::resize_file(path, fs::file_size(path) / 2); }},
                      {"was written to since it was opened", [&] { fs::resize_file(path, fs::file_size(path) + 1); }},
                      {"was written to since it was opened", [&] {
                           sleep_us(20'000); // the kernel's clock for this is a coarse one
                           std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end)
                               << 'x';
                       }}};
    owned_state const one = short_state(1), two = short_state(2);
    save_safetensors(path, one.state);
    std::string const good = bytes_of(path);
    for (auto const& way : ways) {
        set_bytes(path, good);
        CHECK(status_of(in_child([&] {
                  safetensors_state const file(path);
                  way.spoil();
                  // Into arrays of an optimizer.
                  std::vector<std::byte> to(4 * file.state().params[0].shape[0]);
                  state_dict into = file.state();
                  into.tensors = {into.tensors[0]};
                  into.tensors[0].data = to.data();
                  std::string text = "loaded";
                  try {
                      for (detail::state_copy const& copy : detail::plan_copies(merge({{file.state()}}), into))
                          copy.run({});
                  } catch (corrupted const& error) {
                      text = error.what();
                  }
                  // And into another file, which stays as it was.
                  save_safetensors(folder / "b", two.state);
                  std::string const before = bytes_of(folder / "b");
                  std::string saved = "saved";
                  try {
                      save_safetensors(folder / "b", file.state());
                  } catch (corrupted const& error) {
                      saved = error.what();
                  }
                  if (!contains(text, way.says) || !contains(saved, way.says))
                      return std::fprintf(stderr, "%s\n%s\n", text.c_str(), saved.c_str()) < 0;
                  return bytes_of(folder / "b") == before && !fs::exists(folder / "b.part");
              })) == 0);
    }
}

TEST_CASE("a file that is cut short at any time is an error or was read before", "[slow]")
{
    scratch_folder const folder;
    fs::path const path = folder / "a";
    save_safetensors(path, short_state(1).state);
    std::string const good = bytes_of(path);
    ::pid_t const spoiler = in_child([&] {
        random_bits random(31);
        for (;;) {
            int const file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
            static_cast<void>(::ftruncate(file, static_cast<::off_t>(random.below(good.size()))));
            sleep_us(random.below(200));
            static_cast<void>(::pwrite(file, good.data(), good.size(), 0));
            ::close(file);
            sleep_us(random.below(2000));
        }
        return false;
    });
    CHECK(status_of(in_child([&] {
              int cut = 0, whole = 0;
              for (int i = 0; i < 5000 && (cut < 30 || whole < 10); ++i)
                  try {
                      save_safetensors(folder / "b", safetensors_state(path).state());
                      ++whole;
                      if (bytes_of(folder / "b") != good)
                          return false;
                  } catch (corrupted const&) {
                      ++cut;
                  }
              return cut >= 30 || std::printf("cut short %d times, read %d times\n", cut, whole) < 0;
          })) == 0);
    ::kill(spoiler, SIGKILL);
    status_of(spoiler);
}

TEST_CASE("a file that cannot be read is an error with its path")
{
    scratch_folder const folder;
    auto const load_error = [&](char const* name) {
        return refusal<unavailable>([&] { safetensors_state const file(folder / name); });
    };
    CHECK(mentions(load_error("none"), {"cannot read '", "/none': No such file"}));
    fs::create_directory(folder / "folder");
    CHECK(mentions(load_error("folder"), {"/folder': it is not a regular file: Is a directory"}));
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0666) == 0);
    CHECK(mentions(load_error("pipe"), {"/pipe': it is not a regular file"}));
    set_bytes(folder / "empty", "");
    CHECK(mentions(refusal<corrupted>([&] { safetensors_state const file(folder / "empty"); }),
                   {"/empty is truncated", "0 bytes"}));
}
