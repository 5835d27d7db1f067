// SPDX-License-Identifier: Apache-2.0
// big_tensor: more than 2^31 and 2^32 elements, in a few megabytes of memory. One small file is mapped again and again
// to make an array that long; its last window is mapped once only, so that what lies past 2^32 can be told apart.
#include <sys/mman.h>
#include <unistd.h>

#include <adamant/adamant.hpp>

#include "catch.hpp"

using namespace adamant;

namespace {

constexpr std::size_t window_elems = std::size_t{1} << 22;
constexpr std::size_t tail_elems = 1000;

// n bfloat16: windows of one memory file, and then tail_elems of another.
class long_array {
public:
    explicit long_array(std::size_t n) : bytes_(n * sizeof(bfloat16) + page)
    {
        int const windows = memfd_create("windows", 0);
        int const tail = memfd_create("tail", 0);
        REQUIRE(windows >= 0);
        REQUIRE(tail >= 0);
        REQUIRE(ftruncate(windows, window_elems * sizeof(bfloat16)) == 0);
        REQUIRE(ftruncate(tail, page) == 0);
        void* const base = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        REQUIRE(base != MAP_FAILED);
        begin_ = static_cast<bfloat16*>(base);
        for (std::size_t at = 0; at + window_elems <= n; at += window_elems)
            REQUIRE(mmap(begin_ + at, window_elems * sizeof(bfloat16), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                         windows, 0) != MAP_FAILED);
        tail_ = begin_ + n / window_elems * window_elems;
        REQUIRE(mmap(tail_, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, tail, 0) != MAP_FAILED);
        close(windows);
        close(tail);
    }
    ~long_array() { munmap(begin_, bytes_); }
    long_array(long_array const&) = delete;
    long_array& operator=(long_array const&) = delete;
    [[nodiscard]] bfloat16* data() const { return begin_; }
    [[nodiscard]] bfloat16* tail() const { return tail_; }

private:
    static constexpr std::size_t page = 4096;
    std::size_t bytes_;
    bfloat16* begin_;
    bfloat16* tail_;
};

} // namespace

// User reports: DeepSpeed #7640, #679, ColossalAI #633.
TEST_CASE("every element past 2^31 and 2^32 is updated, once per pass", "[big_tensor][big]")
{
    for (std::size_t const n : test::sizes{(std::size_t{1} << 31) + tail_elems, (std::size_t{1} << 32) + tail_elems}) {
        long_array const param(n), grad(n), exp_avg(n), exp_avg_sq(n);
        test::random_bits random(n);
        auto const value = [&](int low, int high) {
            return narrow<bfloat16>(test::with_exponent(random(), low, high));
        };
        struct window {
            std::vector<bfloat16> p, g, m, v;
        };
        // What the windows and the tail hold, and what becomes of them in small calls.
        window small[2];
        for (int part = 0; part < 2; ++part) {
            std::size_t const length = part == 0 ? window_elems : tail_elems;
            bfloat16* const p = part == 0 ? param.data() : param.tail();
            bfloat16* const g = part == 0 ? grad.data() : grad.tail();
            for (std::size_t i = 0; i < length; ++i) {
                small[part].p.push_back(p[i] = value(-6, -3));
                small[part].g.push_back(g[i] = value(-9, -6));
            }
            small[part].m.resize(length);
            small[part].v.resize(length);
        }
        coefficients const c = make_coefficients({.lr = 1e-4}, 1);
        executor const one({.threads = 1}); // the windows are the same memory: no two threads may write them
        for (std::size_t pass = 0; pass < n / window_elems; ++pass)
            step(one, any_shard(shard(small[0].p, small[0].g, small[0].m, small[0].v)).at({0, pass * window_elems}), c);
        step(one, any_shard(shard(small[1].p, small[1].g, small[1].m, small[1].v)).at({0, n - tail_elems}), c);

        shard const all(param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), n);
        step_report const report = step(one, all, c);
        CHECK(report.elements == n);
        for (int part = 0; part < 2; ++part) {
            auto const same = [&](long_array const& big, std::vector<bfloat16> const& expected) {
                return std::memcmp(part == 0 ? big.data() : big.tail(), expected.data(),
                                   expected.size() * sizeof(bfloat16)) == 0;
            };
            CHECK(same(param, small[part].p));
            CHECK(same(exp_avg, small[part].m));
            CHECK(same(exp_avg_sq, small[part].v));
        }

        grad.tail()[tail_elems - 1] = bfloat16{0x7f80};
        grad_squares const found = sum_of_squares(executor(), grad.data(), n);
        CHECK(found.nonfinite == 1);
        CHECK(found.sum > static_cast<double>(n) * 0x1p-18);
        CHECK(found.sum < static_cast<double>(n) * 0x1p-10);
    }
}
