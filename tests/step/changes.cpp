// SPDX-License-Identifier: Apache-2.0
// Bits of changed weights against the reference implementation, and against what the published weights were before.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <adamant/changes.hpp>
#include <adamant/formats.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/reference.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

// The arrays of a shard of any format, with bits, and with words of other owners around them.
struct tracked_arrays {
    shard_format const* format;
    std::vector<test::array> arrays;
    std::vector<std::uint64_t> words, expected;
    param_position position;

    tracked_arrays(shard_format const& of, std::size_t n, test::values kind, test::random_bits& random) : format(&of)
    {
        arrays.reserve(of.types.size()); // an array that is moved loses its offset
        std::size_t const common_offset = 4 * random.below(16);
        bool const begin_alike = random.below(2) == 0;
        for (dtype const type : of.types)
            arrays.emplace_back(type, n, begin_alike ? common_offset : random.below(5));
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t a = 0; a < shard_array::weight_out; ++a)
                arrays[a].set(i, a == shard_array::exp_avg_sq ? std::fabs(test::value_of(kind, random, -20, -10))
                                                              : test::value_of(kind, random, -10, -2));
        publish();
        words.resize(changed_words(n) + 2);
        for (std::uint64_t& word : words)
            word = random.below(2) == 0 ? 0 : random() & random();
        expected = words;
        // Half of the shards contain the end of a line of random numbers, so groups begin at any element after it.
        std::size_t const begin = random.below(2) == 0
                                      ? random.below(64000)
                                      : rounding_line_elems - random.below(std::min(n, rounding_line_elems) + 1);
        bool const in_groups = of.types[shard_array::exp_avg] == dtype::quantized8;
        position = {random(), in_groups ? begin - begin % quantized_group_elems : begin};
    }
    [[nodiscard]] std::size_t size() const { return arrays[0].size(); }
    // weight_out holds the rounded params, as after a step.
    void publish()
    {
        for (std::size_t i = 0; i < size(); ++i)
            switch (has_split_param(format->types) ? dtype::none : format->types[shard_array::weight_out]) {
            case dtype::bfloat16: arrays[4].set_bits(i, reference::rounded_bits<bfloat16>(arrays[0].get(i))); break;
            case dtype::float16: arrays[4].set_bits(i, reference::rounded_bits<float16>(arrays[0].get(i))); break;
            case dtype::float32: arrays[4].set_bits(i, arrays[0].element_bits(i)); break;
            default: break;
            }
        for (std::size_t i = 0; i < size() && has_split_param(format->types); ++i)
            arrays[4].set(i, arrays[4].get(i));
    }
    [[nodiscard]] any_shard view()
    {
        kernel::step_pointers const pointers{arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(),
                                             arrays[4].data()};
        return any_shard(*format, pointers, size())
            .track(std::span(words).subspan(1, changed_words(size())))
            .at(position);
    }
    [[nodiscard]] std::vector<std::uint32_t> published() const
    {
        std::vector<std::uint32_t> bits;
        for (std::size_t i = 0; i < size(); ++i)
            bits.push_back(arrays[published_array(format->types)].element_bits(i));
        return bits;
    }
    // Adds to the expected bits what changed since `before`. Returns the number of changed elements.
    std::size_t expect_changes(std::vector<std::uint32_t> const& before)
    {
        std::vector<std::uint32_t> const now = published();
        std::size_t changed = 0;
        for (std::size_t i = 0; i < now.size(); ++i)
            if (now[i] != before[i]) {
                expected[1 + i / 64] |= std::uint64_t{1} << i % 64;
                ++changed;
            }
        return changed;
    }
};

std::vector<shard_format const*> formats_to_track()
{
    std::vector<shard_format const*> all;
    for (shard_format const& format : all_formats()) {
        all.push_back(&format);
        shard_dtypes types = format.types;
        types[shard_array::weight_out] = dtype::float32;
        if (format.types[shard_array::param] == dtype::float32 && format.types[4] == dtype::none)
            all.push_back(find_step_format(types));
    }
    return all;
}

hyperparameters random_hyperparameters(test::random_bits& random)
{
    return {.lr = std::pow(10.0, -1.0 - static_cast<double>(random.below(7))),
            .weight_decay = random.below(2) == 0 ? 0.1 : 0.0,
            .mode = random.below(2) == 0 ? decay_mode::l2 : decay_mode::decoupled,
            .rounding = {static_cast<rounding>(random.below(2)), static_cast<rounding>(random.below(2)), random()}};
}

executor const& one_of(std::size_t which)
{
    static executor const all[] = {
        executor({.threads = 1}),
        executor(std::make_shared<team>(team_options{.threads = 3, .bind = binding::none}),
                 executor_options{.min_slice_elems = 64, .max_chunk_elems = 256}),
    };
    return all[which];
}

// Steps lists of shards of random formats and sizes, some rounds each.
std::size_t run_random_steps(std::uint64_t seed, std::size_t most_elems)
{
    test::random_bits random(seed);
    INFO("seed " << seed);
    static std::vector<shard_format const*> const formats = formats_to_track();
    std::vector<std::unique_ptr<tracked_arrays>> shards;
    test::values const kind =
        random.below(3) == 0 ? test::all_values[random.below(std::size(test::all_values))] : test::values::ordinary;
    std::size_t const count = 1 + random.below(4);
    for (std::size_t k = 0; k < count; ++k) {
        shard_format const& format = *formats[random.below(formats.size())];
        std::size_t const n = random.below(6) == 0 ? random.below(70) : random.below(most_elems);
        shards.push_back(std::make_unique<tracked_arrays>(format, n, kind, random));
    }
    std::size_t changed = 0;
    for (std::uint64_t t = 1; t <= 3; ++t) {
        std::vector<std::vector<std::uint32_t>> before;
        std::vector<any_shard> views;
        for (auto const& each : shards) {
            for (std::size_t i = 0; i < each->size(); ++i)
                each->arrays[1].set(i, test::value_of(kind, random, -12, -6));
            before.push_back(each->published());
            views.push_back(each->view());
        }
        hyperparameters const hyper = random_hyperparameters(random);
        executor const& cpu = one_of(random.below(2));
        if (random.below(2) == 0)
            step(cpu, shard_list(views), hyper, t);
        else
            for (any_shard const& view : views)
                step(cpu, view, hyper, t);
        for (std::size_t k = 0; k < count; ++k) {
            changed += shards[k]->expect_changes(before[k]);
            INFO("shard " << k << " of " << to_text(shards[k]->format->types));
            REQUIRE((shards[k]->words == shards[k]->expected));
        }
    }
    return changed;
}

template <class Rounded>
void check_rounding(shard_dtypes const& types, test::random_bits& random)
{
    for (int round = 0; round < 200; ++round) {
        std::size_t const n = random.below(300);
        test::values const kind = test::all_values[static_cast<std::size_t>(round) % std::size(test::all_values)];
        test::array before(dtype::float32, n, random.below(5)), after(dtype::float32, n, random.below(5));
        std::vector<std::uint64_t> words(changed_words(n) + 1, 0x8000000000000001u), expected = words;
        float_mode_scope const mode(subnormals::kept);
        for (std::size_t i = 0; i < n; ++i) {
            float const x = test::value_of(kind, random, -20, 4);
            // The same, a neighbor, one that rounds to the same, or another.
            std::uint32_t const near = test::bits(x) + static_cast<std::uint32_t>(random.below(5)) - 2;
            std::uint32_t const far = test::bits(x) + static_cast<std::uint32_t>(random.below(0x8000));
            float const y[] = {x, test::from_bits(near), test::from_bits(far), test::value_of(kind, random, -20, 4)};
            before.set(i, x);
            after.set(i, y[random.below(4)]);
            if (reference::rounded_bits<Rounded>(before.get(i)) != reference::rounded_bits<Rounded>(after.get(i)))
                expected[i / 64] |= std::uint64_t{1} << i % 64;
        }
        kernel::mark_changes_for(types, test::tier())(before.data(), after.data(), n, words.data());
        REQUIRE((words == expected));
    }
}

} // namespace

TEST_CASE("changed weights: a step sets the bits of the weights that it changes, in every format, and no other")
{
    std::size_t changed = 0;
    for (std::uint64_t seed = 1; seed <= 150; ++seed)
        changed += run_random_steps(seed, 3000);
    CHECK(changed > 1000);
}

TEST_CASE("changed weights: a hundred thousand random steps against a snapshot before and after each", "[big]")
{
    std::size_t changed = 0;
    for (std::uint64_t seed = 1000; seed < 1000 + 34000; ++seed)
        changed += run_random_steps(seed, 400);
    CHECK(changed > 1000000);
}

TEST_CASE("changed weights: every value is compared as weight_out has it")
{
    test::random_bits random(7);
    shard_dtypes types = {dtype::float32, dtype::float32, dtype::float32, dtype::float32, dtype::bfloat16};
    check_rounding<bfloat16>(types, random);
    types[shard_array::weight_out] = dtype::float16;
    check_rounding<float16>(types, random);
}

TEMPLATE_TEST_CASE("changed weights: an idle subnormal param is published as zero before and after a step", "",
                   bfloat16, float16)
{
    // Without a gradient, and with moments of zero, whole groups take the fast path for idle params.
    float const params[] = {1e-39f,    -1e-39f, 0x1p-127f, -0x1p-127f, 0x1.fffffcp-127f,
                            0x1p-149f, 0.0f,    -0.0f,     0.5f,       -0.25f};
    std::size_t const n = 1000;
    std::vector<float> param(n), grad(n), exp_avg(n), exp_avg_sq(n, 1e-6f);
    std::vector<TestType> weight_out(n);
    for (std::size_t i = 0; i < n; ++i) {
        param[i] = params[i % std::size(params)];
        weight_out[i].bits = static_cast<std::uint16_t>(reference::rounded_bits<TestType>(param[i]));
    }
    std::vector<TestType> const before = weight_out;
    std::vector<std::uint64_t> words(changed_words(n));
    step(one_of(1), any_shard(shard(param, grad, exp_avg, exp_avg_sq, weight_out)).track(words), {.lr = 1e-3}, 1);
    CHECK(std::memcmp(before.data(), weight_out.data(), n * sizeof(TestType)) == 0);
    CHECK(std::count(words.begin(), words.end(), 0u) == static_cast<std::ptrdiff_t>(words.size()));
}

TEST_CASE("changed weights: a large shard whose weights are written past the caches", "[sweep]")
{
    std::size_t const n = stream_weight_out_from_elems + 4096 + 77;
    std::vector<float> param(n), exp_avg(n), exp_avg_sq(n);
    std::vector<bfloat16> grad(n), weight_out(n);
    std::vector<std::uint64_t> words(changed_words(n));
    for (std::size_t i = 0; i < n; ++i) {
        param[i] = 0.5f + 0x1p-20f * static_cast<float>(i % 100003);
        weight_out[i] = narrow<bfloat16>(param[i]);
        grad[i] = narrow<bfloat16>(static_cast<float>(i % 7) - 3);
    }
    std::vector<bfloat16> const before = weight_out;
    shard const view(param, grad, exp_avg, exp_avg_sq, weight_out);
    step(one_of(1), any_shard(view).track(words), {.lr = 1e-4}, 1);
    std::size_t wrong = 0, changed = 0;
    for (std::size_t i = 0; i < n; ++i) {
        bool const differs = before[i] != weight_out[i];
        changed += differs;
        wrong += (words[i / 64] >> i % 64 & 1) != differs;
    }
    CHECK(wrong == 0);
    CHECK(changed > n / 100);
}

TEST_CASE("changed weights: errors", "[once]")
{
    std::vector<float> param(100), grad(100), exp_avg(100), exp_avg_sq(100);
    std::vector<std::uint64_t> words(3);
    any_shard const view = shard(param, grad, exp_avg, exp_avg_sq);
    CHECK(mentions(refusal([&] { (void)view.track(words); }),
                   {"cannot track a shard of 100 elements", "changed has 3 words. It needs 2"}));
    CHECK(mentions(refusal([&] { (void)view.track(std::span(reinterpret_cast<std::uint64_t*>(grad.data()), 2)); }),
                   "grad and changed overlap"));
    std::span<std::uint64_t> const two(words.data(), 2);
    std::vector<float> others(400);
    any_shard const other = shard(others.data(), others.data() + 100, others.data() + 200, others.data() + 300, 100);
    CHECK(mentions(refusal([&] { shard_list({view.track(two), other.track(two)}); }), "changed of shard"));
}

namespace {

// Collects in every way, and compares with the bits one by one.
template <class Index>
void check_collecting(tracked_arrays& from, std::uint64_t first, executor const& cpu)
{
    std::size_t const n = from.size();
    std::vector<Index> expected;
    for (std::size_t i = 0; i < n; ++i)
        if ((from.words[1 + i / 64] >> i % 64 & 1) != 0)
            expected.push_back(static_cast<Index>(first + i));
    any_shard const shard = from.view();
    test::array const& weights = from.arrays[published_array(from.format->types)];
    std::size_t const size = from.arrays[published_array(from.format->types)].bytes() / std::max<std::size_t>(1, n);
    REQUIRE(count_changed_weights(cpu, shard) == expected.size());
    std::vector<Index> found(expected.size() + 1, 77);
    std::vector<std::byte> values(found.size() * 4, std::byte{0x5a});
    auto const before = from.words;
    if (!expected.empty()) { // arrays that are too small: no bit is cleared, and nothing is written beyond them
        for (std::size_t const room : {std::size_t{0}, expected.size() / 2, expected.size() - 1}) {
            REQUIRE(changed_weights(cpu, shard, std::span(found).first(room), values.data(),
                                    {.first_index = first, .clear = true}) == expected.size());
            auto const unused = static_cast<std::ptrdiff_t>(found.size() - room);
            auto const unused_bytes = static_cast<std::ptrdiff_t>(values.size() - room * size);
            REQUIRE(std::count(found.end() - unused, found.end(), Index{77}) == unused);
            REQUIRE(std::count(values.end() - unused_bytes, values.end(), std::byte{0x5a}) == unused_bytes);
            REQUIRE((from.words == before));
        }
    }
    std::vector<std::uint8_t> mask(n + 1, 9);
    changed_mask(cpu, shard, std::span(mask).first(n));
    for (std::size_t i = 0; i < n; ++i)
        REQUIRE(mask[i] == (before[1 + i / 64] >> i % 64 & 1));
    REQUIRE(mask[n] == 9);
    REQUIRE(changed_weights(cpu, shard, std::span(found), values.data(), {.first_index = first, .clear = true}) ==
            expected.size());
    REQUIRE(found.back() == 77);
    found.pop_back();
    REQUIRE((found == expected));
    for (std::size_t k = 0; k < expected.size(); ++k) {
        std::uint32_t value = 0;
        std::memcpy(&value, values.data() + k * size, size);
        REQUIRE(value == weights.element_bits(static_cast<std::size_t>(expected[k] - first)));
    }
    REQUIRE(values[expected.size() * size] == std::byte{0x5a});
    for (std::size_t w = 0; w < from.words.size(); ++w)
        REQUIRE(from.words[w] == (w == 0 || w + 1 == from.words.size() ? before[w] : 0));
}

} // namespace

TEST_CASE("changed weights are collected with their indices and values, and cleared")
{
    test::random_bits random(5);
    static std::vector<shard_format const*> const formats = formats_to_track();
    for (std::size_t round = 0; round < 60; ++round) {
        std::size_t const n = round % 10 == 0 ? 300000 + random.below(300000) : random.below(2000);
        tracked_arrays arrays(*formats[random.below(formats.size())], n, test::values::ordinary, random);
        // none, one of 128, half, all, another one for each word, at most one in each byte
        std::size_t const share = random.below(6);
        for (std::size_t w = 1; w + 1 < arrays.words.size(); ++w) {
            arrays.words[w] = share == 0 ? 0 : share == 3 ? ~std::uint64_t{0} : random();
            for (int k = 0; k < 6 && share == 1; ++k)
                arrays.words[w] &= random();
            for (std::size_t k = random.below(4); k != 0 && share == 4; --k)
                arrays.words[w] = random.below(2) == 0 ? arrays.words[w] & random() : arrays.words[w] | random();
            if (share == 5) {
                arrays.words[w] = 0;
                for (unsigned byte = 0; byte < 8; ++byte)
                    arrays.words[w] |= (random.below(2) << random.below(8)) << 8 * byte;
            }
        }
        if (n % 64 != 0 && share != 3) // bits of no element
            arrays.words[arrays.words.size() - 2] &= (std::uint64_t{1} << n % 64) - 1;
        if (round % 2 == 0)
            check_collecting<std::uint32_t>(arrays, random.below(1000), one_of(round / 2 % 2));
        else
            check_collecting<std::uint64_t>(arrays, random() >> 8, one_of(round / 2 % 2));
    }
}

TEST_CASE("changed weights: threads collect in order", "[once]")
{
    test::random_bits random(7);
    std::size_t const n = 40 * 262144 + 100; // many more parts than threads
    std::vector<std::uint64_t> words(changed_words(n));
    std::vector<std::uint32_t> expected;
    for (std::size_t w = 0; w < n / 64; w += 1 + random.below(12)) {
        std::size_t const bit = random.below(64);
        words[w] = std::uint64_t{1} << bit;
        expected.push_back(static_cast<std::uint32_t>(w * 64 + bit));
    }
    tracked_weights const from(words, n, nullptr, dtype::bfloat16);
    for (std::size_t round = 0; round < 20; ++round) {
        std::vector<std::uint32_t> found(expected.size());
        REQUIRE(changed_weights(one_of(1), from, std::span(found), nullptr) == expected.size());
        REQUIRE((found == expected));
    }
}

TEST_CASE("changed weights: ranges are marked, and errors say what is wrong", "[once]")
{
    test::random_bits random(6);
    std::vector<float> param(500), grad(500), exp_avg(500), exp_avg_sq(500);
    any_shard const plain = shard(param, grad, exp_avg, exp_avg_sq);
    std::vector<std::uint64_t> words(changed_words(500));
    any_shard const view = plain.track(words);
    for (int round = 0; round < 300; ++round) {
        std::fill(words.begin(), words.end(), std::uint64_t{0});
        std::size_t const begin = random.below(501);
        std::size_t const end = begin + random.below(501 - begin);
        mark_changed(view, begin, end);
        for (std::size_t i = 0; i < 512; ++i)
            REQUIRE((words[i / 64] >> i % 64 & 1) == (i >= begin && i < end));
    }
    executor const cpu({.threads = 1});
    std::vector<std::uint32_t> indices(500);
    std::vector<std::uint8_t> mask(499);
    CHECK(mentions(refusal([&] { mark_changed(view, 3, 501); }), "cannot mark elements 3 to 501 as changed"));
    CHECK(mentions(refusal([&] { mark_changed(plain, 0, 1); }), "they are not tracked"));
    CHECK(mentions(refusal([&] { (void)count_changed_weights(cpu, plain); }), "cannot read the changed weights of a"));
    CHECK(mentions(refusal([&] { tracked_weights(words, 600, nullptr, dtype::float32); }), "8 words. It needs 10"));
    CHECK(mentions(refusal([&] { tracked_weights(words, 500, nullptr, dtype::quantized8); }), "of type quantized8"));
    CHECK(mentions(refusal([&] { changed_mask(cpu, view, mask); }), "a mask of 499 bytes: there are 500"));
    CHECK(mentions(
        refusal([&] { changed_weights(cpu, view, std::span(indices), nullptr, {.first_index = 0xffffff00u}); }),
        "Use 64-bit indices"));
    // Words that are never read, so their memory is not used.
    std::size_t const many = (std::size_t{1} << 32) + 1;
    std::unique_ptr<std::uint64_t[]> const untouched(new std::uint64_t[changed_words(many)]);
    tracked_weights const large({untouched.get(), changed_words(many)}, many, nullptr, dtype::bfloat16);
    CHECK(mentions(refusal([&] { changed_weights(cpu, large, std::span(indices), nullptr); }), "Use 64-bit indices"));
}

TEST_CASE("changed weights: an abandoned step leaves the bits, and a loaded state marks all", "[both]")
{
    std::size_t const n = 20000;
    std::vector<float> param(n, 0.5f), exp_avg(n), exp_avg_sq(n);
    std::vector<bfloat16> grad(n, narrow<bfloat16>(1.0f)), weight_out(n, narrow<bfloat16>(0.5f));
    std::vector<std::uint64_t> words(changed_words(n));
    optimizer o(one_of(1), {.max_norm = 1, .speculate = speculation::always});
    o.add_group("all", adamw({.lr = 0.1}));
    o.add_shard({.group = 0,
                 .name = "w",
                 .shard = optimizer_shard(shard(param, grad, exp_avg, exp_avg_sq, weight_out)).track(words)});
    words[7] = 0x123;
    std::vector<std::uint64_t> const before = words;
    o.begin_step();
    o.submit(0);
    o.abandon();
    CHECK((words == before));
    grad[77] = bfloat16{0x7f80}; // the step is skipped
    CHECK(o.step().outcome == step_outcome::skipped);
    CHECK((words == before));
    grad[77] = narrow<bfloat16>(1.0f);
    CHECK(o.step().outcome == step_outcome::applied);
    any_shard const view = any_shard(shard(param, grad, exp_avg, exp_avg_sq, weight_out)).track(words);
    CHECK(count_changed_weights(one_of(0), view) == n);
    std::fill(words.begin(), words.end(), std::uint64_t{0});
    state_dict const state = o.state();
    CHECK((words == std::vector<std::uint64_t>(words.size())));
    o.load(state);
    CHECK(count_changed_weights(one_of(0), view) == n);
    CHECK(words.back() == (std::uint64_t{1} << n % 64) - 1);
}
