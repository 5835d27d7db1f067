// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <span>

#include <adamant/formats.hpp>
#include <adamant/shard.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

TEST_CASE("types come from the arrays")
{
    std::vector<float> p(4), m(4), v(4);
    std::vector<bfloat16> g(4), w(4);
    shard const main(p, g, m, v, w);
    STATIC_REQUIRE(std::is_same_v<decltype(main), shard<float, bfloat16, float, float, bfloat16> const>);
    std::span<float> const p_span = p;
    std::span<bfloat16 const> const g_span = g;
    shard const none(p_span, g_span, m, v);
    STATIC_REQUIRE(std::is_same_v<decltype(none), shard<float, bfloat16, float, float> const>);
    shard const pointers(p.data(), g.data(), m.data(), v.data(), w.data(), 3);
    CHECK(main.size() == 4);
    CHECK(none.size() == 4);
    CHECK(pointers.size() == 3);
    CHECK(main.bytes_per_element() == 28);
    CHECK(none.bytes_per_element() == 26);
    CHECK(shard<bfloat16, bfloat16, bfloat16>::bytes_per_element() == 14);
}

TEST_CASE("combinations that mean nothing do not exist")
{
    STATIC_REQUIRE(moment_type<bfloat16>);
    STATIC_REQUIRE(!moment_type<float16>);
    STATIC_REQUIRE(!moment_type<double>);
    STATIC_REQUIRE(!element_type<double>);
    STATIC_REQUIRE(!element_type<std::uint16_t>);
    STATIC_REQUIRE(weight_out_type<bfloat16, float>);
    STATIC_REQUIRE(weight_out_type<float, float>);
    STATIC_REQUIRE(!weight_out_type<float, bfloat16>);
    STATIC_REQUIRE(std::is_constructible_v<any_shard, shard<float, float, float, float, float>>);
    STATIC_REQUIRE(!std::is_constructible_v<optimizer_shard, shard<float, float, float, float, float>>);
    STATIC_REQUIRE(!weight_out_type<bfloat16, bfloat16>);
    STATIC_REQUIRE(weight_out_type<void, float16>);
    CHECK(all_formats().size() == format_count);
    for (shard_format const& format : all_formats())
        CHECK(find_format(format.types) == &format);
    CHECK(find_format({dtype::float32, dtype::float32, dtype::float16, dtype::float32, dtype::none}) == nullptr);
    CHECK(find_format({dtype::bfloat16, dtype::float32, dtype::float32, dtype::float32, dtype::bfloat16}) == nullptr);
    shard_dtypes const copying = {dtype::float32, dtype::bfloat16, dtype::quantized8, dtype::quantized8,
                                  dtype::float32};
    CHECK(find_format(copying) == nullptr);
    CHECK(find_step_format(copying)->types == copying);
    CHECK(find_step_format({dtype::bfloat16, dtype::float32, dtype::float32, dtype::float32, dtype::float32}) ==
          nullptr);
}

TEST_CASE("sizes that differ are refused by the array's name")
{
    std::vector<float> p(4), m(4), v(4), three(3);
    std::vector<bfloat16> g(4), w(4), five(5);
    CHECK(mentions(refusal([&] { shard(p, five, m, v, w); }), "grad has 5"));
    CHECK(mentions(refusal([&] { shard(p, g, three, v, w); }), "exp_avg has 3"));
    CHECK(mentions(refusal([&] { shard(p, g, m, three); }), "exp_avg_sq has 3"));
    CHECK(mentions(refusal([&] { shard(p, g, m, v, five); }), "weight_out has 5"));
}

TEST_CASE("a short array is refused by its size wherever it lies in memory")
{
    // All arrays lie next to each other, so one that was taken to be longer than it is would overlap the next.
    std::array<char const*, 5> const names = {"param", "grad", "exp_avg", "exp_avg_sq", "weight_out"};
    for (std::size_t a = 1; a < 5; ++a)
        for (std::size_t const found : {std::size_t(0), std::size_t(3), std::size_t(5)}) {
            std::vector<float> floats(20);
            std::vector<bfloat16> out(6);
            std::span<float> arrays[4];
            std::size_t next = 0;
            for (std::size_t b = 0; b < 4; ++b) {
                std::size_t const n = a == b ? found : 4;
                arrays[b] = std::span(floats).subspan(next, n);
                next += n;
            }
            std::span const w = std::span(out).first(a == 4 ? found : 4);
            std::string const text = refusal([&] { shard(arrays[0], arrays[1], arrays[2], arrays[3], w); });
            CHECK(mentions(text, names[a] + std::string(" has ") + std::to_string(found)));
            if (a != 4)
                CHECK(refusal([&] { shard(arrays[0], arrays[1], arrays[2], arrays[3]); }) == text);
        }
    std::vector<float> param(200), grad(200);
    std::vector<quantized8> groups(8);
    std::span const all = groups;
    CHECK(mentions(refusal([&] { shard(param, grad, all.first(3), all.subspan(3, 4)); }), "exp_avg has 3 groups"));
    CHECK(mentions(refusal([&] { shard(param, grad, all.subspan(3, 4), all.first(3)); }), "exp_avg_sq has 3 groups"));
}

TEST_CASE("arrays that are gone before the first step are not taken")
{
    using vector = std::vector<float>;
    using from_vectors = shard<float, float, float>;
    STATIC_REQUIRE(std::is_constructible_v<from_vectors, vector&, vector const&, vector&, vector&>);
    STATIC_REQUIRE(!std::is_constructible_v<from_vectors, vector, vector&, vector&, vector&>);
    STATIC_REQUIRE(!std::is_constructible_v<from_vectors, vector&, vector, vector&, vector&>);
    STATIC_REQUIRE(!std::is_constructible_v<from_vectors, vector&, vector&, vector, vector&>);
    STATIC_REQUIRE(!std::is_constructible_v<from_vectors, vector&, vector&, vector&, vector>);
    using span = std::span<float>; // owns nothing
    STATIC_REQUIRE(std::is_constructible_v<from_vectors, span, span, span, span>);
    using with_out = shard<float, float, float, float, bfloat16>;
    using outs = std::vector<bfloat16>;
    STATIC_REQUIRE(std::is_constructible_v<with_out, vector&, vector&, vector&, vector&, outs&>);
    STATIC_REQUIRE(!std::is_constructible_v<with_out, vector&, vector&, vector&, vector&, outs>);
}

TEST_CASE("null pointers and impossible sizes are refused, but for empty shards")
{
    float* const none = nullptr;
    std::vector<float> p(4), g(4), m(4), v(4);
    CHECK(mentions(refusal([&] { shard(none, g.data(), m.data(), v.data(), 4); }), "param is null"));
    CHECK(mentions(refusal([&] { shard(p.data(), static_cast<float const*>(nullptr), m.data(), v.data(), 4); }),
                   "grad is null"));
    CHECK(mentions(refusal([&] { shard(p.data(), g.data(), none, v.data(), 4); }), "exp_avg is null"));
    CHECK(mentions(refusal([&] { shard(p.data(), g.data(), m.data(), none, 4); }), "exp_avg_sq is null"));
    CHECK(mentions(refusal([&] { shard(p.data(), g.data(), m.data(), v.data(), static_cast<bfloat16*>(nullptr), 4); }),
                   "weight_out is null"));
    CHECK(mentions(refusal([&] { shard(p.data(), g.data(), m.data(), v.data(), static_cast<std::size_t>(-1)); }),
                   "does not fit"));
    CHECK(refusal([&] { shard(none, static_cast<float const*>(nullptr), none, none, 0); }) == "no exception");
}

TEST_CASE("arrays that overlap by a byte are refused, neighbors are not")
{
    std::vector<std::byte> memory(1024);
    auto const at = [&](std::size_t offset) { return reinterpret_cast<float*>(memory.data() + offset); };
    std::size_t const n = 16; // 64 bytes each
    CHECK(refusal([&] { shard(at(0), at(64), at(128), at(192), n); }) == "no exception");
    std::array<char const*, 4> const names = {"param", "grad", "exp_avg", "exp_avg_sq"};
    for (std::size_t a = 0; a < 4; ++a)
        for (std::size_t b = 0; b < 4; ++b) {
            if (a == b)
                continue;
            std::size_t offsets[] = {0, 128, 256, 384};
            offsets[a] = offsets[b] + 63;
            std::string const text =
                refusal([&] { shard(at(offsets[0]), at(offsets[1]), at(offsets[2]), at(offsets[3]), n); });
            CHECK(mentions(text, "overlap"));
            CHECK(mentions(text, names[a]));
            CHECK(mentions(text, names[b]));
        }
    auto* const out = reinterpret_cast<bfloat16*>(memory.data() + 63);
    CHECK(mentions(refusal([&] { shard(at(0), at(128), at(256), at(384), out, n); }), "param and weight_out overlap"));
}
