// SPDX-License-Identifier: Apache-2.0
// An optimizer's state as a safetensors file: saving it, against a plain write of as many bytes to the same folder that
// is brought to the disk and renamed as carefully, and computes nothing; and loading it, against reading the bytes into
// the same arrays.
//
//   checkpoint/save/elems:N
//   checkpoint/load/from:memory/elems:N   the file is in the page cache
//   checkpoint/load/from:disk/elems:N     the page cache was asked to drop it
//   checkpoint/.../tensors:50000/elems:N  of the given number of small tensors, where names and checksums are all of
//   the work
//
// Float params and moments: 12 bytes an element. All of it one file; its folder is a new one below --folder.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <adamant/safetensors.hpp>

#include "references.hpp"
#include "rows.hpp"
#include "training.hpp"

namespace bench {

namespace {

using benchmark::State;
using std::filesystem::path;

[[noreturn]] void fail(path const& at, char const* what)
{
    throw std::runtime_error(at.string() + ": " + what + ": " + std::strerror(errno));
}

class temporary_folder {
public:
    explicit temporary_folder(std::string const& below)
    {
        std::string name = (path(below) / "adamant_benchmark_XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr)
            fail(below, "no folder for checkpoints can be made here; choose another with --folder");
        path_ = name;
    }
    ~temporary_folder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    temporary_folder(temporary_folder const&) = delete;
    temporary_folder& operator=(temporary_folder const&) = delete;
    [[nodiscard]] path const& at() const { return path_; }

private:
    path path_;
};

class open_file {
public:
    open_file(path const& at, int flags) : at_(at), fd_(::open(at.c_str(), flags | O_CLOEXEC, 0666))
    {
        if (fd_ < 0)
            fail(at, "cannot be opened");
    }
    ~open_file() { ::close(fd_); }
    open_file(open_file const&) = delete;
    open_file& operator=(open_file const&) = delete;

    void write(std::span<std::byte const> from)
    {
        each_part(from, [&](std::byte const* data, std::size_t bytes) { return ::write(fd_, data, bytes); });
    }
    void read(std::span<std::byte> to)
    {
        each_part(to, [&](std::byte* data, std::size_t bytes) { return ::read(fd_, data, bytes); });
    }
    void sync()
    {
        if (::fsync(fd_) != 0)
            fail(at_, "fsync");
    }
    void drop_from_page_cache() { (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

private:
    template <class Byte, class Call>
    void each_part(std::span<Byte> all, Call const& call)
    {
        while (!all.empty()) {
            ssize_t const done = call(all.data(), std::min<std::size_t>(all.size(), std::size_t{1} << 30));
            if (done <= 0)
                fail(at_, "cannot be read or written to its end");
            all = all.subspan(static_cast<std::size_t>(done));
        }
    }
    path at_;
    int fd_;
};

// The state in training, a file of it, and its bytes as they lie in memory, with something for the file's head.
class saved {
public:
    // tensors: of equal sizes; 0: up to 64.
    saved(setup const& given, std::size_t n, std::size_t tensors)
        : folder_(given.chosen.folder), data_(given.all(), n, tensors), optimizer_(given.all())
    {
        data_.add_to(optimizer_);
        optimizer_.prepare(false);
        whole_step(optimizer_, never_reached);
        save();
        std::size_t const state_bytes = 3 * sizeof(float) * n;
        require(bytes() >= state_bytes, "the file holds the state");
        head_.resize(bytes() - state_bytes);
    }

    void save() { adamant::save_safetensors(file(), optimizer_.state()); }
    void write_plainly()
    {
        path const part = folder_.at() / "plain.part";
        {
            open_file to(part, O_WRONLY | O_CREAT | O_TRUNC);
            for_each_array([&](std::span<std::byte> array) { to.write(array); });
            to.sync();
        }
        std::filesystem::rename(part, folder_.at() / "plain");
        open_file(folder_.at(), O_RDONLY | O_DIRECTORY).sync();
    }
    void load()
    {
        std::uint64_t const steps = optimizer_.steps();
        adamant::safetensors_state const from(file());
        optimizer_.load(from.state());
        require(optimizer_.steps() == steps, "loading what was saved");
    }
    void read_plainly()
    {
        open_file from(file(), O_RDONLY);
        for_each_array([&](std::span<std::byte> array) { from.read(array); });
    }
    void drop_from_page_cache() { open_file(file(), O_RDONLY).drop_from_page_cache(); }
    [[nodiscard]] std::size_t bytes() const { return std::filesystem::file_size(file()); }

private:
    [[nodiscard]] path file() const { return folder_.at() / "state.safetensors"; }
    template <class Visit>
    void for_each_array(Visit const& visit)
    {
        visit(std::span(head_));
        for (std::size_t const k : {std::size_t{0}, std::size_t{2}, std::size_t{3}})
            visit(std::span(data_.arrays().pointers()[k], data_.elems() * sizeof(float)));
    }

    temporary_folder folder_;
    training data_;
    optimizer optimizer_;
    std::vector<std::byte> head_;
};

void save(State& state, setup const& given, std::size_t n, std::size_t tensors)
{
    saved s(given, n, tensors);
    std::vector<contender> all{{part_in_race::subject, "save", "", [&] { s.save(); }},
                               {part_in_race::limit, "writing", "fsync, rename, fsync", [&] { s.write_plainly(); }}};
    race::run(state, all);
    report(state, all, {static_cast<double>(n), static_cast<double>(s.bytes())});
}

void load(State& state, setup const& given, std::size_t n, std::size_t tensors, bool from_disk)
{
    saved s(given, n, tensors);
    std::function<void()> prepare;
    if (from_disk)
        prepare = [&] { s.drop_from_page_cache(); };
    std::vector<contender> all{{part_in_race::subject, "load", "", [&] { s.load(); }, prepare},
                               {part_in_race::limit, "reading", "", [&] { s.read_plainly(); }, prepare}};
    race::run(state, all);
    report(state, all, {static_cast<double>(n), static_cast<double>(s.bytes())});
}

} // namespace

void add_checkpoint(setup const& given)
{
    std::size_t const most = elements_for(given.chosen.bytes / 8, 3 * sizeof(float)); // files are slower than memory
    auto const add = [&](std::size_t n, std::size_t tensors, std::vector<bool> const& from_disk) {
        std::string const size =
            (tensors == 0 ? "" : "tensors:" + std::to_string(tensors) + "/") + "elems:" + std::to_string(n);
        std::int64_t const rounds = std::min(rounds_for(given.chosen, n), 2 * given.chosen.rounds);
        add_row("checkpoint/save/" + size, rounds, [=, &given](State& state) { save(state, given, n, tensors); });
        for (bool const disk : from_disk)
            add_row(std::string("checkpoint/load/from:") + (disk ? "disk/" : "memory/") + size, rounds,
                    [=, &given](State& state) { load(state, given, n, tensors, disk); });
    };
    for (std::size_t const n : {std::size_t{1} << 20, most})
        add(n, 0, {false, true});
    std::size_t const many = given.chosen.quick ? 1000 : 50'000;
    add(many * 64, many, {false});
}

} // namespace bench
