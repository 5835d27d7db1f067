// SPDX-License-Identifier: Apache-2.0
// Steps that leave a record, and the rollback, on the tier of this run: every bit, whatever the values.
#include <algorithm>
#include <cstring>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/memory.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/shard/offload_shard.hpp>

#include "catch.hpp"

using namespace adamant;

namespace {

struct state {
    test::array param, grad, exp_avg, exp_avg_sq, weight_out;

    state(dtype param_type, dtype grad_type, dtype out, std::size_t n)
        : param(param_type, n), grad(grad_type, n), exp_avg(dtype::float32, n), exp_avg_sq(dtype::float32, n),
          weight_out(out, n)
    {
    }
    [[nodiscard]] kernel::step_pointers pointers()
    {
        return {param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), weight_out.data()};
    }
    [[nodiscard]] std::string difference(state const& expected) const
    {
        for (auto const& [name, mine, theirs] :
             {std::tuple{"param", &param, &expected.param}, std::tuple{"exp_avg", &exp_avg, &expected.exp_avg},
              std::tuple{"exp_avg_sq", &exp_avg_sq, &expected.exp_avg_sq}})
            if (std::string const text = mine->difference(*theirs); !text.empty())
                return std::string(name) + ": " + text;
        return {};
    }
    void fill(test::values kind, test::random_bits& random, bool fresh)
    {
        for (std::size_t i = 0; i < param.size(); ++i) {
            auto const pick = [&] { return random.below(64) == 0 ? kind : test::values::ordinary; };
            param.set(i, test::value_of(pick(), random, -9, -4));
            new_gradient(i, pick(), random);
            exp_avg.set(i, fresh ? 0.0f : test::value_of(pick(), random, -14, -9));
            float const v = fresh ? 0.0f : test::value_of(pick(), random, -24, -18);
            exp_avg_sq.set(i, test::from_bits(test::bits(v) & float_abs_mask));
        }
    }
    void new_gradient(std::size_t i, test::values kind, test::random_bits& random)
    {
        grad.set(i, test::value_of(kind, random, -14, -8));
    }
};

// As offload_shard does. grad: floats.
void roll_back(kernel::block_kernels const& kernels, state& s, test::array& grad, coefficients const& c,
               std::byte const* record)
{
    std::size_t const n = s.param.size();
    kernel::step_pointers at = s.pointers();
    at.grad = grad.data();
    kernel::memory_access how(false);
    std::vector<std::byte> params(n * sizeof(float));
    if (kernels.widen_params != nullptr) {
        std::memcpy(at.param, record, s.param.bytes());
        kernels.widen_params(at.param, nullptr, n, params.data());
        at.param = params.data();
        how.param_is_old = true;
        record += kernel::param_copy_bytes(n);
    }
    kernels.rollback_scratch(at, n, c, how, record);
}

template <class Param, class Grad, class WeightOut>
void check_all(test::random_bits& random)
{
    kernel::block_kernels const& kernels =
        optimizer_format<Param, Grad, float, float, WeightOut>().block_kernels_for(test::tier());
    bool const copies_params = kernels.widen_params != nullptr;
    CHECK(copies_params == (sizeof(Param) == 2));
    kernel::recorded_step_function const recorded = kernels.recorded;
    if (recorded == nullptr)
        return; // the scalar tier keeps copies
    std::size_t narrowest = SIZE_MAX;
    for (test::values const kind : test::all_values)
        for (std::size_t const n : test::sizes{1, 15, 16, 17, 63, 64, 65, 1000, 4096})
            for (bool const l2 : {false, true}) {
                state now(dtype_of<Param>, dtype_of<Grad>, dtype_of<WeightOut>, n);
                now.fill(kind, random, random.below(4) == 0);
                std::vector<std::byte> memory(kernel::record_bytes_at_most(n, copies_params) + 128, std::byte{0x5a});
                std::byte* const record = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
                for (std::uint64_t t = 1; t <= 4; ++t) {
                    coefficients const c = make_coefficients({.lr = t == 4 ? 0.3 : 1e-3,
                                                              .weight_decay = 0.1,
                                                              .mode = l2 ? decay_mode::l2 : decay_mode::decoupled},
                                                             t == 1 ? 1 : 7 * t, {.loss_scale = t == 2 ? 1024.0 : 1.0});
                    for (std::size_t i = 0; i < n; ++i)
                        now.new_gradient(i, random.below(64) == 0 ? kind : test::values::ordinary, random);
                    state const before = now;
                    state expected = now;
                    kernels.step(expected.pointers(), 0, n, c, false);
                    std::byte const* const end = recorded(now.pointers(), n, c, n > 1000, record);
                    INFO("n " << n << ", values " << static_cast<int>(kind) << ", l2 " << l2 << ", step " << t);
                    REQUIRE(now.difference(expected) == "");
                    REQUIRE(now.weight_out.difference(expected.weight_out) == "");
                    auto const bytes = static_cast<std::size_t>(end - record);
                    REQUIRE(bytes <= kernel::record_bytes_at_most(n, copies_params));
                    REQUIRE(std::all_of(record + kernel::record_bytes_at_most(n, copies_params),
                                        memory.data() + memory.size(),
                                        [](std::byte b) { return b == std::byte{0x5a}; }));
                    if (n == 4096 && kind == test::values::ordinary)
                        narrowest = std::min(narrowest, bytes);
                    test::array floats(dtype::float32, n);
                    kernels.to_scratch(now.grad.data(), nullptr, n, floats.data());
                    state of_floats = before;
                    kernel::step_pointers at = of_floats.pointers();
                    at.grad = floats.data();
                    kernel::memory_access how(n > 1000);
                    how.grad = dtype::float32;
                    std::vector<std::byte> other(memory.size());
                    std::byte* const again = other.data() + (64 - reinterpret_cast<std::uintptr_t>(other.data()) % 64);
                    recorded(at, n, c, how, again);
                    REQUIRE(of_floats.difference(expected) == "");
                    REQUIRE(of_floats.weight_out.difference(expected.weight_out) == "");
                    roll_back(kernels, of_floats, floats, c, again);
                    REQUIRE(of_floats.difference(before) == "");
                    roll_back(kernels, now, floats, c, record);
                    REQUIRE(now.difference(before) == "");
                    kernels.step(now.pointers(), 0, n, c, false);
                }
            }
    CHECK(narrowest < (copies_params ? 5 : 3) * 4096); // and not because everything was copied
}

struct block_options {
    bool streams, stochastic, l2, tracks;
};
void check_block(shard_format const& format, std::size_t n, block_options const& options, test::random_bits& random)
{
    INFO(to_text(format.types) << ", n " << n << ", streams " << options.streams << ", stochastic "
                               << options.stochastic << ", l2 " << options.l2 << ", tracks " << options.tracks);
    std::vector<test::array> now;
    now.reserve(format.types.size()); // an array that is moved loses its offset
    for (std::size_t which = 0; which < format.types.size(); ++which) {
        now.emplace_back(format.types[which], n);
        for (std::size_t i = 0; i < now[which].size(); ++i) {
            float const x = test::value_of(test::values::ordinary, random, -12, -5);
            now[which].set(i, which == shard_array::exp_avg_sq ? x * x : x);
        }
    }
    std::vector<std::uint64_t> changed(changed_words(n), 5);
    any_shard shard(format, {now[0].data(), now[1].data(), now[2].data(), now[3].data(), now[4].data(), {3, 4096}}, n);
    if (options.tracks)
        shard = shard.track(changed);
    detail::offload_shard const block(shard, test::tier());
    kernel::memory_access const access(options.streams);
    rounding const mode = options.stochastic ? rounding::stochastic : rounding::nearest;
    coefficients const c = make_coefficients({.lr = 1e-3,
                                              .weight_decay = 0.1,
                                              .mode = options.l2 ? decay_mode::l2 : decay_mode::decoupled,
                                              .rounding = {mode, mode, 5}},
                                             3);
    std::vector<test::array> const before = now;
    block.step(0, 1, c, access);
    std::vector<test::array> const expected = now;
    std::vector<std::uint64_t> const expected_changes = changed;
    for (std::size_t which = 0; which < now.size(); ++which)
        std::copy_n(before[which].data(), before[which].bytes(), now[which].data());
    std::fill(changed.begin(), changed.end(), 5);

    buffer<std::byte> record(block.record_bytes_at_most(n) + 64);
    detail::scratch_block scratch;
    auto const g = block.gradient(0, false, {}, false, scratch);
    std::byte const* const end = block.step_recorded(0, g, c, access, record.data());
    REQUIRE(static_cast<std::size_t>(end - record.data()) <= block.record_bytes_at_most(n));
    for (std::size_t which = 0; which < now.size(); ++which)
        REQUIRE(now[which].difference(expected[which]) == "");
    REQUIRE(changed == expected_changes);
    block.rollback(0, g, c, access, record.data(), scratch);
    for (shard_array::index const which : state_arrays)
        if (block.is_state(which))
            REQUIRE(now[which].difference(before[which]) == "");
    CHECK(changed == std::vector<std::uint64_t>(changed_words(n), 5));
}

} // namespace

// Formats without codes: a step copies the state that it overwrites, and has the bits of one that copies nothing.
TEST_CASE("a step copies the state that it overwrites, whatever the values", "[lossy_rollback]")
{
    test::random_bits random(29);
    std::size_t formats = 0;
    for (shard_format const& format : all_formats()) {
        shard_dtypes const& types = format.types;
        kernel::block_kernels const& kernels = format.block_kernels_for(test::tier());
        bool const has_codes = kernels.recorded != nullptr && types[shard_array::param] != dtype::bfloat16;
        if (has_codes || types[shard_array::exp_avg] == dtype::quantized8)
            continue;
        ++formats;
        for (test::values const kind : test::all_values)
            for (std::size_t const n : test::sizes{1, 31, 33, 64, 1000, 4096}) {
                std::vector<test::array> now, copies;
                now.reserve(types.size()); // an array that is moved loses its offset
                for (dtype const type : types) {
                    now.emplace_back(type, n, random.below(4) * 2);
                    copies.emplace_back(type, n);
                }
                for (std::size_t i = 0; i < n; ++i)
                    for (std::size_t which = 0; which < now.size(); ++which)
                        if (types[which] != dtype::none) {
                            test::values const k = random.below(64) == 0 ? kind : test::values::ordinary;
                            bool const is_second = which == shard_array::exp_avg_sq;
                            float const x = test::value_of(k, random, is_second ? -24 : -14, is_second ? -18 : -8);
                            now[which].set(i, is_second ? test::from_bits(test::bits(x) & float_abs_mask) : x);
                        }
                std::vector<test::array> const before = now;
                std::vector<test::array> expected = now;
                auto const pointers = [](std::vector<test::array>& arrays) {
                    return kernel::step_pointers{arrays[0].data(), arrays[1].data(), arrays[2].data(),
                                                 arrays[3].data(), arrays[4].data(), {7, 65500}}; // a line ends within
                };
                bool const l2 = random.below(2) == 0;
                coefficients const c = make_coefficients({.lr = 1e-3,
                                                          .weight_decay = 0.1,
                                                          .mode = l2 ? decay_mode::l2 : decay_mode::decoupled,
                                                          .rounding = {rounding::stochastic, rounding::stochastic, 5}},
                                                         3);
                kernel::state_copies const to{copies[shard_array::param].data(), copies[shard_array::exp_avg].data(),
                                              copies[shard_array::exp_avg_sq].data(),
                                              copies[shard_array::weight_out].data(), random.below(2) == 0};
                kernels.step(pointers(expected), 0, n, c, false);
                kernel::step_pointers at = pointers(now);
                at.copies = &to;
                kernels.step(at, 0, n, c, n > 64);
                INFO(to_text(types) << ", n " << n << ", values " << static_cast<int>(kind) << ", l2 " << l2);
                for (std::size_t which = 0; which < now.size(); ++which) {
                    auto const array = static_cast<shard_array::index>(which);
                    INFO(shard_array::names[which]);
                    if (types[which] != dtype::none)
                        REQUIRE(now[which].difference(expected[which]) == "");
                    if (is_state(types, array))
                        REQUIRE(copies[which].difference(before[which]) == "");
                }
            }
    }
    CHECK(formats >= 33);
}

// Seen in DeepSpeed cpu_adam_impl.cpp.
TEST_CASE("a step is rolled back to the bit, whatever the values", "[lossy_rollback]")
{
    test::random_bits random(20);
    check_all<float, float, void>(random);
    check_all<float, bfloat16, bfloat16>(random);
    check_all<float, float16, float16>(random);
    check_all<bfloat16, bfloat16, void>(random);
    check_all<float16, float, void>(random);
}

// Seen in DeepSpeed cpu_adam_impl.cpp.
TEST_CASE("a step is rolled back to the bit, for many more values", "[lossy_rollback][slow]")
{
    test::random_bits random(23);
    for (int round = 0; round < 5; ++round) {
        check_all<float, float, void>(random);
        check_all<float, bfloat16, bfloat16>(random);
        check_all<float, float16, float16>(random);
        check_all<bfloat16, bfloat16, void>(random);
        check_all<float16, float, void>(random);
    }
}

// Records of large models are written past the caches, and in some formats are of another kind.
TEST_CASE("a block's record restores every bit in every format, in cache and out of it", "[lossy_rollback]")
{
    test::random_bits random(31);
    unsigned turn = 0;
    for (shard_format const& format : all_formats()) {
        for (unsigned choice = 0; choice < 16; ++choice) {
            block_options const options = {(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0, (choice & 8) != 0};
            for (std::size_t const n : test::sizes{1, 100})
                check_block(format, n, options, random);
            if ((choice + choice / 4 + turn) % 4 == 0) // four sets of options: whole blocks take most of the time
                check_block(format, 4096, options, random);
        }
        ++turn;
    }
}

TEST_CASE("A record of ordinary training takes some two bytes an element")
{
    kernel::recorded_step_function const recorded =
        optimizer_format<float, bfloat16, float, float, bfloat16>().block_kernels_for(test::tier()).recorded;
    if (recorded == nullptr)
        return;
    test::random_bits random(21);
    std::size_t const n = 4096;
    state now(dtype::float32, dtype::bfloat16, dtype::bfloat16, n);
    now.fill(test::values::ordinary, random, true);
    std::vector<std::byte> memory(kernel::record_bytes_at_most(n, false) + 64);
    std::byte* const record = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
    std::size_t bytes = 0;
    for (std::uint64_t t = 1; t <= 100; ++t) {
        for (std::size_t i = 0; i < n; ++i) { // some bell shape
            double sum = 0;
            for (int k = 0; k < 6; ++k)
                sum += static_cast<double>(random.below(1 << 20)) / (1 << 20) - 0.5;
            now.grad.set(i, static_cast<float>(sum * 1e-3));
        }
        coefficients const c =
            make_coefficients({.lr = 1e-4, .beta2 = 0.95, .weight_decay = 0.1, .mode = decay_mode::decoupled}, t);
        bytes = static_cast<std::size_t>(recorded(now.pointers(), n, c, false, record) - record);
        if (t == 1)
            CHECK(bytes == 2 * n); // moments of zero come back exactly
    }
    // What needs old values needs them in units of the same size on every tier, whatever its vectors.
    CHECK(bytes == 8960);
}

TEST_CASE("Gradients are added, scaled, limited and made finite as the reference implementation says, on every tier")
{
    test::random_bits random(22);
    auto const check = [&]<class Grad, class Sum, class Out>(Grad, Sum, Out) {
        using sum_type = std::conditional_t<std::is_same_v<Sum, int>, void, Sum>;
        for (test::values const kind : test::all_values)
            for (std::size_t const n : test::sizes{1, 7, 16, 100, 4096}) {
                test::array grad(dtype_of<Grad>, n), sum(dtype_of<sum_type>, n), out(dtype_of<Out>, n),
                    expected(dtype_of<Out>, n);
                for (std::size_t i = 0; i < n; ++i) {
                    grad.set_bits(i, random());
                    if (random.below(2) == 0)
                        grad.set(i, test::value_of(kind, random, -14, -8));
                    if (sum.size() != 0)
                        sum.set(i, test::value_of(kind, random, -14, -8));
                }
                kernel::add_gradients_for<Grad, sum_type, Out>(test::tier())(grad.data(), sum.data(), n, out.data());
                kernel::scalar::add_gradients<Grad, sum_type, Out>(grad.data(), sum.data(), n, expected.data());
                REQUIRE(out.difference(expected) == "");
            }
    };
    check(float{}, 0, float{});
    check(bfloat16{}, 0, float{});
    check(float16{}, 0, bfloat16{});
    check(bfloat16{}, float{}, float{});
    check(float16{}, bfloat16{}, bfloat16{});
    check(float{}, bfloat16{}, float{});
    check(float{}, 0, float16{});
    for (test::values const kind : test::all_values)
        for (float const bound : {std::numeric_limits<float>::infinity(), 1e-3f, 0.0f})
            for (float const scale : {1.0f, -0.125f, 1e-30f})
                for (bool const zero : {false, true}) {
                    std::size_t const n = 1 + random.below(300);
                    test::array mine(dtype::float32, n);
                    for (std::size_t i = 0; i < n; ++i)
                        mine.set(i, test::value_of(kind, random, -14, -8));
                    test::array expected(mine);
                    kernel::clamp_gradient_for(test::tier())(mine.data(), n, zero, scale, bound);
                    kernel::scalar::clamp_gradient(expected.data(), n, zero, scale, bound);
                    INFO("bound " << bound << ", scale " << scale << ", zero " << zero);
                    REQUIRE(mine.difference(expected) == "");
                }
}
