// SPDX-License-Identifier: Apache-2.0
// How far a step is from what the machine can do: against loops that move the same bytes and do no arithmetic where the
// arrays lie in memory, against the divider where they lie in cache; and what subnormals, zeros and small shards cost.
//
// A shared machine drifts by more than what is to be seen here. So whatever is compared is timed in one row, in rounds:
// each round times each contender once, in an order of its own, and ratios are taken within a round.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <adamant/adamant.hpp>

#include "limit.hpp"
#include "plain.hpp"
#include "race.hpp"
#include "random.hpp"

namespace {

using race::contender;
using race::median;
using race::part_in_race;
using race::quantile;

using adamant::bfloat16;
using adamant::executor;
using adamant::slice;

using f32 = adamant::shard<float, float, float>;
using bf16_f32 = adamant::shard<bfloat16, bfloat16, float>;
using mixed = adamant::shard<float, bfloat16, float, float, bfloat16>;
using bf16 = adamant::shard<bfloat16, bfloat16, bfloat16>;

struct options {
    double bytes = 2.25e9;       // of all arrays of a row together, where they are to lie out of cache
    std::int64_t iterations = 9; // rounds
};

// ---------------------------------------------------------------------------------------------------------- memory

enum class pages { small, huge };

char const* name(pages size)
{
    return size == pages::huge ? "2M" : "4K";
}

// The number that follows the word `key` in a file, or without a key the file's first; `otherwise` where there is none.
double number_in(char const* path, std::string_view key, double otherwise)
{
    std::ifstream file(path);
    std::string word;
    if (!key.empty())
        while (file >> word && word != key) {
        }
    double value = 0;
    return file >> value ? value : otherwise;
}

std::string gigabytes(double bytes)
{
    char text[40];
    std::snprintf(text, sizeof text, bytes < 1e8 ? "%.2g GB" : "%.2f GB", bytes / 1e9);
    return text;
}

// Up to five arrays of n elements in fresh memory, not touched yet: {param, grad, exp_avg, exp_avg_sq, weight_out},
// those with 0 bytes per element left out. They begin at a cache line, and at different offsets in their pages, as a
// program's arrays do: at equal offsets each load would wait for the store of another array.
class arrays {
public:
    arrays(std::array<std::size_t, 5> const& elem_bytes, std::size_t n, pages size) : bytes_(0), huge_(size)
    {
        constexpr std::size_t huge_page = std::size_t{2} << 20;
        std::array<std::size_t, 5> begin{};
        std::size_t end = 0;
        for (std::size_t k = 0; k < 5; ++k) {
            begin[k] = (end + huge_page - 1) / huge_page * huge_page + k * 1088;
            end = elem_bytes[k] == 0 ? end : begin[k] + n * elem_bytes[k];
            bytes_ += n * elem_bytes[k];
        }
        mapped_bytes_ = end + huge_page;
        auto const available = static_cast<double>(adamant::available_memory().bytes);
        if (static_cast<double>(bytes_) > 0.95 * available)
            throw std::runtime_error("this row needs " + gigabytes(static_cast<double>(bytes_)) +
                                     " of memory, but only " + gigabytes(available) +
                                     " are available; ask for less with --bytes");
        mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping_ == MAP_FAILED)
            throw std::runtime_error("this row needs " + gigabytes(static_cast<double>(mapped_bytes_)) +
                                     " of memory, and the system refuses: " + std::strerror(errno) +
                                     "; ask for less with --bytes");
        // A kernel without huge pages refuses; note() then says that none came.
        (void)madvise(mapping_, mapped_bytes_, size == pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        auto* const base = static_cast<std::byte*>(mapping_);
        std::size_t const misaligned = reinterpret_cast<std::uintptr_t>(base) % huge_page;
        for (std::size_t k = 0; k < 5; ++k)
            if (elem_bytes[k] != 0)
                pointers_[k] = base + (misaligned == 0 ? 0 : huge_page - misaligned) + begin[k];
    }
    ~arrays() { munmap(mapping_, mapped_bytes_); }
    arrays(arrays const&) = delete;
    arrays& operator=(arrays const&) = delete;

    [[nodiscard]] std::byte* const* pointers() const { return pointers_.data(); }
    template <class T>
    [[nodiscard]] T* get(std::size_t k) const
    {
        return reinterpret_cast<T*>(pointers_[k]);
    }

    // What to say about the memory that the arrays got, once they are filled; mostly nothing.
    [[nodiscard]] std::string note() const
    {
        double const huge = 1024 * number_in("/proc/self/smaps_rollup", "AnonHugePages:", 0);
        double const share = huge / static_cast<double>(bytes_);
        if (huge_ == pages::small || share > 0.9)
            return "";
        return ", but only " + std::to_string(std::lround(100 * share)) + "% in huge pages";
    }

private:
    std::size_t bytes_;
    pages huge_;
    std::size_t mapped_bytes_ = 0;
    void* mapping_ = nullptr;
    std::array<std::byte*, 5> pointers_{};
};

template <class Shard>
constexpr std::array<std::size_t, 5> elem_bytes_of = {
    sizeof(typename Shard::param_type), sizeof(typename Shard::grad_type), sizeof(typename Shard::exp_avg_type),
    sizeof(typename Shard::exp_avg_sq_type), adamant::size_bytes(adamant::dtype_of<typename Shard::weight_out_type>)};

template <class Shard>
Shard shard_of(arrays const& a, std::size_t n)
{
    auto* const param = a.get<typename Shard::param_type>(0);
    auto* const grad = a.get<typename Shard::grad_type>(1);
    auto* const exp_avg = a.get<typename Shard::exp_avg_type>(2);
    auto* const exp_avg_sq = a.get<typename Shard::exp_avg_sq_type>(3);
    if constexpr (std::is_void_v<typename Shard::weight_out_type>)
        return Shard(param, grad, exp_avg, exp_avg_sq, n);
    else
        return Shard(param, grad, exp_avg, exp_avg_sq, a.get<typename Shard::weight_out_type>(4), n);
}

// The limit loops take 64 elements at a time.
std::size_t elements_for(double bytes, std::size_t bytes_each)
{
    auto const least = static_cast<std::size_t>(std::ceil(bytes / static_cast<double>(bytes_each)));
    return (least + 4095) / 4096 * 4096;
}

// ------------------------------------------------------------------------------------------------------------- data

template <class T>
T subnormal(std::uint32_t random)
{
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<float>((random & 0x807fffffu) | 1u);
    else
        return {static_cast<std::uint16_t>((random >> 16 & 0x807fu) | 1u)};
}

// Of every magnitude between 2^-126 and 2^-50.
float tiny(std::uint32_t random)
{
    return std::bit_cast<float>((random & 0x807fffffu) | ((random >> 8) % 75 + 1) << 23);
}

enum class content {
    ordinary,
    subnormal, // param, grad and both moments
    idle,      // no gradient for so long that exp_avg has come to 0 and exp_avg_sq is well on its way
    fading,    // no gradient for some hundred steps: exp_avg is on its way to 0, far below anything ordinary
};

template <class T, class Make>
void fill_array(arrays const& a, std::size_t k, slice part, Make const& make)
{
    auto const salt = static_cast<std::uint32_t>(k * 0x9e3779b9u);
    T* const array = a.get<T>(k);
    for (std::size_t i = part.begin; i < part.end; ++i)
        array[i] = make(random_bits(static_cast<std::uint32_t>(i) ^ salt));
}

template <class Grad>
void fill_ordinary_grad(arrays const& a, slice part)
{
    fill_array<Grad>(a, 1, part, [](std::uint32_t random) { return adamant::narrow<Grad>(1e-3f * bell(random)); });
}

// By the threads that will use it, so that each finds its part in memory of its own.
template <class Shard>
void fill(executor const& cpu, arrays const& a, std::size_t n, content what)
{
    using param = typename Shard::param_type;
    using grad = typename Shard::grad_type;
    using exp_avg = typename Shard::exp_avg_type;
    using exp_avg_sq = typename Shard::exp_avg_sq_type;
    cpu.for_each_home(n, [&](slice part) {
        if constexpr (elem_bytes_of<Shard>[4] != 0)
            std::memset(a.pointers()[4] + part.begin * elem_bytes_of<Shard>[4], 0,
                        part.size() * elem_bytes_of<Shard>[4]);
        if (what == content::subnormal) {
            fill_array<param>(a, 0, part, subnormal<param>);
            fill_array<grad>(a, 1, part, subnormal<grad>);
            fill_array<exp_avg>(a, 2, part, subnormal<exp_avg>);
            fill_array<exp_avg_sq>(a, 3, part,
                                   [](std::uint32_t random) { return subnormal<exp_avg_sq>(random & 0x7fffffffu); });
            return;
        }
        fill_array<param>(a, 0, part,
                          [](std::uint32_t random) { return adamant::narrow<param>(0.05f * bell(random)); });
        if (what == content::ordinary)
            fill_ordinary_grad<grad>(a, part);
        else
            std::memset(a.pointers()[1] + part.begin * sizeof(grad), 0, part.size() * sizeof(grad));
        if (what == content::idle)
            std::memset(a.pointers()[2] + part.begin * sizeof(exp_avg), 0, part.size() * sizeof(exp_avg));
        else if (what == content::fading)
            fill_array<exp_avg>(a, 2, part,
                                [](std::uint32_t random) { return adamant::narrow<exp_avg>(tiny(random)); });
        else
            fill_array<exp_avg>(a, 2, part,
                                [](std::uint32_t random) { return adamant::narrow<exp_avg>(3e-4f * bell(random)); });
        float const variance = what == content::ordinary ? 1e-6f : 1e-7f;
        fill_array<exp_avg_sq>(a, 3, part, [variance](std::uint32_t random) {
            return adamant::narrow<exp_avg_sq>(variance * (0.1f + bell(random) * bell(random)));
        });
    });
}

adamant::coefficients adamw()
{
    return adamant::make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = adamant::decay_mode::decoupled}, 1000);
}

// -------------------------------------------------------------------------------------------------------- the result

// A line of the table at the end. A number that does not apply is NaN.
struct line {
    std::string row;
    unsigned threads = 1;
    pages size = pages::huge;
    double reference_ns = NAN; // per element, like the next
    double subject_ns = NAN;
    double ratio = NAN;
    double ratio_p10 = NAN;
    double ratio_p90 = NAN;
    double gigabytes_per_second = NAN;
    double aside_ratio = NAN;
    std::string note = {};
};

std::vector<line> lines;

// Counters and a line of the table from a race. bytes_per_element 0: a rate would say nothing.
void report(benchmark::State& state, std::vector<contender> const& contenders, line result, double elements,
            std::size_t bytes_per_element, std::string const& subject_name, std::string const& reference_name)
{
    contender const* subject = nullptr;
    contender const* reference = nullptr;
    for (contender const& c : contenders) {
        if (c.seconds.empty())
            return; // the row was stopped
        if (c.part == part_in_race::subject)
            subject = &c;
        if (c.part == part_in_race::reference &&
            (reference == nullptr || median(c.seconds) < median(reference->seconds)))
            reference = &c;
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < subject->seconds.size(); ++i)
        ratios.push_back(subject->seconds[i] / reference->seconds[i]);
    result.subject_ns = median(subject->seconds) * 1e9 / elements;
    result.reference_ns = median(reference->seconds) * 1e9 / elements;
    result.ratio = median(ratios);
    result.ratio_p10 = quantile(ratios, 0.1);
    result.ratio_p90 = quantile(ratios, 0.9);
    result.note = reference->name + result.note;
    state.counters[subject_name + "_ns"] = result.subject_ns;
    state.counters[reference_name + "_ns"] = result.reference_ns;
    state.counters["ratio"] = result.ratio;
    state.counters["ratio_p10"] = result.ratio_p10;
    state.counters["ratio_p90"] = result.ratio_p90;
    if (bytes_per_element != 0)
        state.counters["GB/s"] = result.gigabytes_per_second =
            static_cast<double>(bytes_per_element) / result.subject_ns;
    for (contender const& c : contenders)
        if (c.part == part_in_race::aside)
            state.counters[c.name + "_ratio"] = result.aside_ratio = median(c.seconds) / median(reference->seconds);
    state.SetLabel(result.note);
    lines.push_back(result);
}

void print(std::FILE* to)
{
    if (lines.empty())
        return;
    auto const number = [to](int width, int digits, double value) {
        if (std::isnan(value))
            std::fprintf(to, "  %*s", width, "");
        else
            std::fprintf(to, "  %*.*f", width, digits, value);
    };
    std::fprintf(to,
                 "\nTimes are medians in ns per element, of the step (or sum) and of the limit that the last column "
                 "names;\nratios are taken within a round: their median, and how they spread. plain: the plain loop "
                 "over the limit.\n"
                 "row                  threads  pages     limit      step   ratio     p10     p90     GB/s   plain"
                 "  the limit\n");
    for (line const& l : lines) {
        std::fprintf(to, "%-20s  %6u  %5s", l.row.c_str(), l.threads, name(l.size));
        number(8, 4, l.reference_ns);
        number(8, 4, l.subject_ns);
        number(6, 3, l.ratio);
        number(6, 3, l.ratio_p10);
        number(6, 3, l.ratio_p90);
        number(7, 2, l.gigabytes_per_second);
        number(6, 3, l.aside_ratio);
        std::fprintf(to, "  %s\n", l.note.c_str());
    }
}

// ------------------------------------------------------------------------------------------------------------- rows

constexpr std::size_t prefetch_distances[] = {0, 1024, 2048, 4096};

std::string with_prefetch(std::string const& what, std::size_t bytes)
{
    return what + (bytes == 0 ? ", no prefetch" : ", prefetch " + std::to_string(bytes));
}

template <class Shard>
void add_limits(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n)
{
    static_assert(std::is_same_v<typename Shard::exp_avg_type, typename Shard::exp_avg_sq_type>);
    auto const add = [&]<limit::stores Stores>(char const* what) {
        for (std::size_t const ahead : prefetch_distances)
            contenders.push_back({part_in_race::reference, with_prefetch(what, ahead), [&cpu, &a, n, ahead] {
                                      constexpr auto bytes = elem_bytes_of<Shard>;
                                      cpu.for_each_slice(n, [&](slice part) {
                                          limit::move_bytes<bytes[0], bytes[1], bytes[2], bytes[4], Stores>(
                                              a.pointers(), part.begin, part.end, ahead);
                                      });
                                  }});
    };
    add.template operator()<limit::stores::cached>("cached stores");
    if constexpr (limit::can_stream) {
        if constexpr (elem_bytes_of<Shard>[4] != 0)
            add.template operator()<limit::stores::weight_out_streamed>("weight_out streamed");
        add.template operator()<limit::stores::all_streamed>("all stores streamed");
    }
}

// The plain loop that has the same types, where one is written.
template <class Shard>
void add_plain(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n,
               adamant::coefficients const& c)
{
    plain::coefficients const same{c.beta1, c.beta2, c.inv_sqrt_bias2, c.eps, -c.neg_step_size, c.decay};
    unsigned const threads = cpu.threads();
    if constexpr (std::is_same_v<Shard, f32>)
        contenders.push_back({part_in_race::aside, "plain", [=, &a] {
                                  plain::step(a.get<float>(0), a.get<float>(1), a.get<float>(2), a.get<float>(3), n,
                                              same, threads);
                              }});
    if constexpr (std::is_same_v<Shard, bf16_f32>)
        contenders.push_back({part_in_race::aside, "plain", [=, &a] {
                                  plain::step(a.get<std::uint16_t>(0), a.get<std::uint16_t>(1), a.get<float>(2),
                                              a.get<float>(3), n, same, threads);
                              }});
}

template <class Shard>
void out_of_cache(benchmark::State& state, std::string const& row, executor const& cpu, pages size,
                  options const& chosen)
{
    constexpr auto bytes = elem_bytes_of<Shard>;
    std::size_t const n = elements_for(chosen.bytes, std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
    arrays const a(bytes, n, size);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, n);
    adamant::coefficients const c = adamw();

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", [&] { adamant::step(cpu, shard, c); }});
    add_limits<Shard>(contenders, cpu, a, n);
    add_plain<Shard>(contenders, cpu, a, n, c);
    race::run(state, contenders, 1);
    report(state, contenders, {.row = row, .threads = cpu.threads(), .size = size, .note = a.note()},
           static_cast<double>(n), Shard::bytes_per_element(), "step", "limit");
}

// In the second-level cache, where only the divider is left to wait for.
template <class Shard>
void in_cache(benchmark::State& state, std::string const& row, executor const& cpu)
{
    constexpr std::size_t n = 65536;
    constexpr int repeats = 25; // a millisecond: less than a scheduler gives to anybody else
    arrays const a(elem_bytes_of<Shard>, n, pages::huge);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, n);
    adamant::coefficients const c = adamw();

    // The divider works on float moments, the step's own where it has them.
    constexpr bool has_floats = std::is_same_v<typename Shard::exp_avg_type, float>;
    arrays const spare({0, 0, 4, 4, 0}, has_floats ? 0 : n, pages::huge);
    float const* exp_avg = a.get<float>(2);
    float const* exp_avg_sq = a.get<float>(3);
    if constexpr (!has_floats) {
        for (std::size_t i = 0; i < n; ++i) {
            spare.get<float>(2)[i] = adamant::widen(a.get<typename Shard::exp_avg_type>(2)[i]);
            spare.get<float>(3)[i] = adamant::widen(a.get<typename Shard::exp_avg_sq_type>(3)[i]);
        }
        exp_avg = spare.get<float>(2);
        exp_avg_sq = spare.get<float>(3);
    }

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", [&] {
                              for (int i = 0; i < repeats; ++i)
                                  adamant::step(cpu, shard, c);
                          }});
    contenders.push_back({part_in_race::reference, "one square root and one division", [&] {
                              for (int i = 0; i < repeats; ++i)
                                  limit::divide(exp_avg, exp_avg_sq, 0, n);
                          }});
    race::run(state, contenders, repeats);
    report(state, contenders, {.row = row}, double{n} * repeats, 0, "step", "divider");
}

// Other data against ordinary data, both in the same arrays and filled in anew before each step: a step would otherwise
// find what an earlier one has flushed.
template <class Shard>
void other_content(benchmark::State& state, std::string const& row, executor const& cpu, options const& chosen,
                   content what, std::string const& what_name)
{
    constexpr auto bytes = elem_bytes_of<Shard>;
    std::size_t const n =
        elements_for(std::min(chosen.bytes, 512e6), std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
    arrays const a(bytes, n, pages::huge);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, n);
    adamant::coefficients const c = adamw();

    auto const step = [&] { adamant::step(cpu, shard, c); };
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, what_name, step, [&] { fill<Shard>(cpu, a, n, what); }});
    contenders.push_back(
        {part_in_race::reference, "ordinary data", step, [&] { fill<Shard>(cpu, a, n, content::ordinary); }});
    race::run(state, contenders, 1);
    report(state, contenders, {.row = row, .note = a.note()}, static_cast<double>(n), Shard::bytes_per_element(),
           what_name, "ordinary");
}

template <class Grad>
void sum_of_squares(benchmark::State& state, std::string const& row, executor const& cpu, pages size,
                    options const& chosen)
{
    std::size_t const n = elements_for(chosen.bytes, sizeof(Grad));
    arrays const a({0, sizeof(Grad), 0, 0, 0}, n, size);
    cpu.for_each_slice(n, [&](slice part) { fill_ordinary_grad<Grad>(a, part); });

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "sum",
                          [&] { benchmark::DoNotOptimize(adamant::sum_of_squares(cpu, a.get<Grad const>(1), n)); }});
    for (std::size_t const ahead : prefetch_distances)
        contenders.push_back({part_in_race::reference, with_prefetch("reading", ahead), [&, ahead] {
                                  cpu.for_each_slice(n, [&](slice part) {
                                      limit::read_bytes<sizeof(Grad)>(a.pointers()[1], part.begin, part.end, ahead);
                                  });
                              }});
    race::run(state, contenders, 1);
    report(state, contenders, {.row = row, .threads = cpu.threads(), .size = size, .note = a.note()},
           static_cast<double>(n), sizeof(Grad), "sum", "limit");
}

// What a call costs when everything is in the first cache, or nearly: nothing to hold it against.
template <class Shard>
void small_shard(benchmark::State& state, std::string const& row, executor const& cpu, std::size_t n)
{
    constexpr int repeats = 500;
    arrays const a(elem_bytes_of<Shard>, n, pages::huge);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, n);
    adamant::coefficients const c = adamw();

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", [&] {
                              for (int i = 0; i < repeats; ++i)
                                  adamant::step(cpu, shard, c);
                          }});
    race::run(state, contenders, repeats);
    if (contenders[0].seconds.empty())
        return;
    double const call_ns = median(contenders[0].seconds) * 1e9 / repeats;
    state.counters["call_ns"] = call_ns;
    state.counters["element_ns"] = call_ns / static_cast<double>(n);
    lines.push_back({.row = row,
                     .subject_ns = call_ns / static_cast<double>(n),
                     .note = std::to_string(std::lround(call_ns)) + " ns per call"});
}

// ------------------------------------------------------------------------------------------------------------- main

bool skipped = false;

// body(state, row) runs the row. What it throws, memory that does not suffice above all, skips the row.
template <class Body>
void add_row(std::string const& row, std::string const& detail, std::int64_t iterations, benchmark::TimeUnit unit,
             Body const& body)
{
    auto const run_row = [=](benchmark::State& state) {
        try {
            body(state, row);
        } catch (std::exception const& error) {
            skipped = true;
            state.SkipWithError(error.what());
        }
    };
    benchmark::RegisterBenchmark((row + detail).c_str(), run_row)->Iterations(iterations)->UseManualTime()->Unit(unit);
}

template <class Visitor>
void for_each_types(Visitor const& visit)
{
    visit.template operator()<f32>("f32");
    visit.template operator()<bf16_f32>("bf16_f32");
    visit.template operator()<mixed>("mixed");
    visit.template operator()<bf16>("bf16");
}

// cpus: one executor for each number of threads, that of a single one first.
void add_rows(std::vector<executor> const& cpus, options const& chosen)
{
    using benchmark::State;
    using std::string;
    executor const& one = cpus.front();
    auto const for_each_place = [&](auto const& visit) {
        for (executor const& cpu : cpus)
            for (pages const size : {pages::small, pages::huge})
                visit(cpu, size, "/threads:" + std::to_string(cpu.threads()) + "/pages:" + name(size));
    };
    for_each_types([&]<class Shard>(string const& types) {
        for_each_place([&](executor const& cpu, pages size, string const& place) {
            add_row("step/" + types, place, chosen.iterations, benchmark::kMillisecond,
                    [=](State& state, string const& row) { out_of_cache<Shard>(state, row, cpu, size, chosen); });
        });
    });
    for_each_types([&]<class Shard>(string const& types) {
        add_row("in_cache/" + types, "", 10 * chosen.iterations, benchmark::kMicrosecond,
                [=](State& state, string const& row) { in_cache<Shard>(state, row, one); });
    });
    for (auto const& [what, what_name] :
         {std::pair{content::subnormal, "subnormal"}, {content::idle, "idle"}, {content::fading, "fading"}})
        for_each_types([&, what = what, what_name = string(what_name)]<class Shard>(string const& types) {
            add_row(what_name + "/" + types, "", chosen.iterations, benchmark::kMillisecond,
                    [=](State& state, string const& row) {
                        other_content<Shard>(state, row, one, chosen, what, what_name);
                    });
        });
    auto const add_sum = [&]<class Grad>(string const& type) {
        for_each_place([&](executor const& cpu, pages size, string const& place) {
            add_row("sum/" + type, place, chosen.iterations, benchmark::kMillisecond,
                    [=](State& state, string const& row) { sum_of_squares<Grad>(state, row, cpu, size, chosen); });
        });
    };
    add_sum.template operator()<float>("f32");
    add_sum.template operator()<bfloat16>("bf16");
    for_each_types([&]<class Shard>(string const& types) {
        if constexpr (std::is_same_v<Shard, f32> || std::is_same_v<Shard, mixed>)
            for (std::size_t const n : {std::size_t{4096}, std::size_t{1101}})
                add_row("small/" + types + "/" + std::to_string(n), "", 10 * chosen.iterations, benchmark::kNanosecond,
                        [=](State& state, string const& row) { small_shard<Shard>(state, row, one, n); });
    });
}

void print_help()
{
    benchmark::PrintDefaultHelp();
    std::fputs("\n          [--bytes=<bytes>]       of all arrays together in rows out of cache (default: 2.25e9)\n"
               "          [--iterations=<rounds>] of each row; ten times as many where they are short (default: 9)\n"
               "\nADAMANT_ISA chooses the library's instruction set; taskset, the processors and so the threads.\n",
               stdout);
}

// The value of an option --key=value that has to be a number in [least, most].
bool take(std::string_view argument, std::string_view key, double least, double most, double& value)
{
    if (!argument.starts_with(key))
        return false;
    std::string const text(argument.substr(key.size()));
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(value >= least && value <= most))
        throw std::invalid_argument(std::string(argument) + " is not understood: give a number from " +
                                    adamant::detail::text(least) + " to " + adamant::detail::text(most));
    return true;
}

options parse(int argc, char** argv)
{
    options chosen;
    for (int i = 1; i < argc; ++i) {
        double iterations = 0;
        if (take(argv[i], "--iterations=", 1, 1e6, iterations))
            chosen.iterations = static_cast<std::int64_t>(iterations);
        else if (!take(argv[i], "--bytes=", 1, 1e15, chosen.bytes))
            throw std::invalid_argument(std::string(argv[i]) + " is not understood; try --help");
    }
    return chosen;
}

int run(int argc, char** argv)
{
    // Where standard output is to be read by a program, the table goes to standard error.
    char const* const format = std::getenv("BENCHMARK_FORMAT");
    bool for_person = format == nullptr || std::string_view(format) == "console";
    for (int i = 1; i < argc; ++i) {
        std::string_view const argument = argv[i];
        if (argument.starts_with("--benchmark_format="))
            for_person = argument.ends_with("=console");
    }
    benchmark::Initialize(&argc, argv, print_help);
    options const chosen = parse(argc, argv);

    std::vector<executor> cpus{executor({.threads = 1})};
    if (executor const all; all.threads() > 1)
        cpus.push_back(all);
    benchmark::AddCustomContext("adamant_isa", std::string(adamant::name(cpus.front().tier())));
    benchmark::AddCustomContext("limit_vector_bytes", std::to_string(limit::vector_bytes()));
    benchmark::AddCustomContext("bytes_out_of_cache", adamant::detail::text(chosen.bytes));

    add_rows(cpus, chosen);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    print(for_person ? stdout : stderr);
    return skipped ? 1 : 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run(argc, argv);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "adamant_benchmark_step: %s\n", error.what());
        return 2;
    }
}
