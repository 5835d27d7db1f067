// SPDX-License-Identifier: Apache-2.0
// cuda_device against the reference implementation, bit for bit: compiled by nvcc on a real GPU, and by the host's
// compiler over an imitation of the CUDA runtime (tests/device/cuda_on_host), where more can be made to go wrong. Exits
// with 77 where there is no GPU.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <adamant/cuda.cuh>

#include "catch.hpp"
#include "cuda_model.hpp"
#include "forked.hpp"
#if !defined(ADAMANT_GPU_RUNTIME)
#include "../engine/slow_optimizer.hpp"
#endif

using namespace adamant;
namespace arrays = adamant::shard_array;

namespace {

#if !defined(ADAMANT_GPU_RUNTIME)
// Before main(), which knows nothing of GPUs.
bool const has_gpu = [] {
    try {
        cuda_device const probe(0);
        std::printf("on %s\n", probe.name().c_str());
    } catch (unavailable const& error) {
        std::printf("skipped: %s\n", error.what());
        std::exit(77);
    }
    return true;
}();
#endif

device::clock::time_point soon()
{
    return device::clock::now() + std::chrono::seconds(60);
}
void wait_for(device& on)
{
    for (device_stream const stream : {device_stream::up, device_stream::work, device_stream::down})
        REQUIRE(on.wait_until(on.record_event(stream), soon()));
}

cuda_device& gpu()
{
    static cuda_device one(0);
    return one;
}

// The same pieces on a device and in a model.
class rig {
public:
    explicit rig(test::model start, device& on = gpu(), bool with_records = true) : model(std::move(start)), on_(on)
    {
        memory_ = on_.allocate(model.image.size());
        for (test::model_piece const& p : model.pieces) {
            device_piece d;
            for (std::size_t a = 0; a < 6; ++a) {
                d.types[a] = p.types[a];
                d.arrays[a] = p.types[a] == dtype::none ? device_ptr{} : memory_ + p.at[a];
            }
            d.elems = p.elems;
            d.group = p.group;
            d.position = p.position;
            d.changed = p.changed == 0 ? device_ptr{} : memory_ + p.changed;
            pieces_.push_back(d);
        }
        part = on_.make_part(pieces_, with_records);
        all.resize(pieces_.size());
        std::iota(all.begin(), all.end(), 0u);
        summed.resize(pieces_.size());
        upload();
    }
    ~rig()
    {
        part.reset();
        on_.release(memory_);
    }
    rig(rig const&) = delete;
    rig& operator=(rig const&) = delete;

    test::model model;
    std::unique_ptr<device_part> part;
    std::vector<std::uint32_t> all;
    std::vector<std::uint8_t> summed;
    std::vector<group_step> speculated, settled;

    void upload()
    {
        on_.copy_up(memory_, model.image.data(), model.image.size());
        on_.wait_event(device_stream::work, on_.record_event(device_stream::up));
    }
    // Over these pieces, or all.
    void run(block_pass pass, bool keep_records = false, std::vector<std::uint32_t> const* some = nullptr)
    {
        // What is handed over belongs to the caller again immediately.
        std::vector<std::uint32_t> pieces = some != nullptr ? *some : all;
        std::vector<std::uint8_t> own_summed = summed;
        std::vector<group_step> first = speculated;
        std::vector<group_step> second = settled;
        device_pass const what = {pass, pieces, first, second, own_summed, keep_records};
        part->run(what);
        model.run(what);
        std::fill(pieces.begin(), pieces.end(), 0xffffffffu);
        std::fill(own_summed.begin(), own_summed.end(), std::uint8_t{0xff});
        std::fill(first.begin(), first.end(), group_step{});
        std::fill(second.begin(), second.end(), group_step{});
    }
    // What differs between the two, in arrays, sums or records.
    [[nodiscard]] std::string difference()
    {
        std::vector<std::byte> found(model.image.size());
        std::vector<grad_squares> squares(model.squares.size());
        std::vector<std::uint8_t> recorded(model.recorded.size(), 0xee);
        part->fetch(squares, recorded);
        on_.copy_down(found.data(), memory_, found.size());
        wait_for(on_);
        for (std::size_t b = 0; b < squares.size(); ++b) {
            if (std::bit_cast<std::uint64_t>(squares[b].sum) != std::bit_cast<std::uint64_t>(model.squares[b].sum) ||
                squares[b].nonfinite != model.squares[b].nonfinite)
                return "sum of block " + std::to_string(b) + ": " + detail::text_of({squares[b].sum}) + " and " +
                       std::to_string(squares[b].nonfinite) + " not finite, expected " +
                       detail::text_of({model.squares[b].sum}) + " and " + std::to_string(model.squares[b].nonfinite);
            if (recorded[b] != model.recorded[b])
                return "block " + std::to_string(b) + (recorded[b] != 0 ? " has a record" : " has no record");
        }
        return model.difference(found);
    }

private:
    device& on_;
    device_ptr memory_;
    std::vector<device_piece> pieces_;
};

using types = std::array<dtype, 6>;
constexpr dtype f32 = dtype::float32, bf16 = dtype::bfloat16, f16 = dtype::float16, none = dtype::none;
constexpr dtype q8 = dtype::quantized8;

// Every combination that a shard can have, with accumulators of all kinds in turn.
std::vector<types> const& all_types()
{
    static std::vector<types> const all = [] {
        std::vector<types> result;
        for (dtype const param : {f32, bf16, f16, dtype::split_float32})
            for (dtype const grad : {f32, bf16, f16})
                for (dtype const exp_avg : {f32, bf16, q8})
                    for (dtype const exp_avg_sq : {f32, bf16, q8})
                        for (dtype const out : {none, bf16, f16}) {
                            constexpr dtype accumulators[] = {none, f32, bf16};
                            if ((exp_avg == q8) != (exp_avg_sq == q8))
                                continue; // moments of 8 bits go together
                            if (param == f32 || (param == dtype::split_float32 ? out == bf16 : out == none))
                                result.push_back(
                                    {param, grad, exp_avg, exp_avg_sq, out, accumulators[result.size() % 3]});
                        }
        return result;
    }();
    return all;
}
std::string text_of(types const& of)
{
    std::string text;
    for (dtype const type : of)
        text += std::string(name(type)) + " ";
    return text;
}

group_step plain(coefficients const& c)
{
    return {c, {}};
}
coefficients usual(std::uint64_t step = 10, bool l2 = false, grad_scaling const& scaling = {})
{
    return make_coefficients({.lr = 1e-3, .weight_decay = 0.1, .mode = l2 ? decay_mode::l2 : decay_mode::decoupled},
                             step, scaling);
}
coefficients maximised(coefficients c)
{
    c.grad_scale = -c.grad_scale;
    return c;
}

// Rules and coefficients of all kinds.
std::vector<group_step> all_steps()
{
    std::vector<hyperparameters> choices = test::odd_hyperparameters();
    choices.insert(choices.end(),
                   {
                       {.lr = 1e-3, .weight_decay = 0.1, .mode = decay_mode::l2},
                       {.lr = 1e-3, .weight_decay = 0.1, .mode = decay_mode::decoupled, .bias_correction = false},
                   });
    std::vector<group_step> result;
    std::size_t i = 0;
    for (hyperparameters& hyper : choices)
        for (grad_scaling const scaling :
             {grad_scaling{}, grad_scaling{0x1p-70, 1}, grad_scaling{65536, 0.25}, grad_scaling{1, 0}}) {
            hyper.rounding = {i % 5 < 2 ? rounding::nearest : rounding::stochastic,
                              i % 2 == 0 ? rounding::nearest : rounding::stochastic, i};
            coefficients c = make_coefficients(hyper, 1 + i % 5, scaling);
            if (i % 3 == 2)
                c = maximised(c);
            gradient_rules rules;
            if (i % 4 == 1)
                rules.zero_nonfinite = true;
            if (i % 7 == 3) {
                rules.limited = true;
                rules.scale = c.grad_scale;
                rules.bound = i % 2 == 0 ? 0.01f : 0x1p-20f;
                c.grad_scale = 1;
            }
            result.push_back({c, rules});
            ++i;
        }
    return result;
}

} // namespace

namespace {

// Each combination of types from `first` on, by steps of `stride`: sums, the step, and rolling back, with many lengths,
// kinds of values and kinds of coefficients.
void check_combinations(std::size_t first, std::size_t stride)
{
    std::vector<group_step> const steps = all_steps();
    test::random_bits random(first + 1);
    std::size_t number = 0;
    for (std::size_t at = first; at < all_types().size(); at += stride) {
        types const& of = all_types()[at];
        test::model start;
        for (test::values const kind : test::all_values)
            for (std::size_t const n : {1u, 2u, 3u, 4u, 5u, 15u, 17u, 63u, 64u, 65u, 255u, 4096u, 4097u, 5003u}) {
                if (n > 1024 && kind != test::all_values[number % 5])
                    continue; // the long ones with some kind
                start.add(of, n, number++ % steps.size());
                start.fill(start.pieces.back(), kind, random);
            }
        rig r(std::move(start));
        r.speculated = r.settled = steps;
        for (std::size_t i = 0; i < r.all.size(); ++i)
            r.summed[i] = of[arrays::accumulator] != none && i % 3 != 0;
        INFO(text_of(of));
        r.run(block_pass::step);
        REQUIRE(r.difference() == "");
        r.run(block_pass::measure);
        REQUIRE(r.difference() == "");
        r.run(block_pass::speculate);
        REQUIRE(r.difference() == "");
        std::rotate(r.settled.begin(), r.settled.begin() + 7, r.settled.end());
        r.run(block_pass::redo);
        REQUIRE(r.difference() == "");
    }
}

} // namespace

TEST_CASE("cuda: every combination of types has the bits of the reference implementation, for many lengths and every "
          "kind of value",
          "[slow]")
{
    CHECK(all_types().size() == 90);
    check_combinations(0, 1);
}

TEST_CASE("cuda: some combinations of types, as above")
{
    check_combinations(3, 11);
}

TEST_CASE("cuda: every length to 300, and coefficients of every kind for the common types")
{
    std::vector<group_step> const steps = all_steps();
    test::random_bits random(2);
    for (dtype const grad : {f32, bf16, f16})
        for (dtype const out : {none, bf16, f16}) {
            test::model start;
            for (std::size_t n = 1; n <= 300; ++n) {
                start.add({f32, grad, f32, f32, out, none}, n, n % steps.size());
                start.fill(start.pieces.back(), test::all_values[n / steps.size() % 5], random);
            }
            rig r(std::move(start));
            r.speculated = r.settled = steps;
            INFO(name(grad) << " " << name(out));
            r.run(block_pass::step);
            REQUIRE(r.difference() == "");
        }
}

TEST_CASE("cuda: conversions of all 16-bit numbers, and of floats around every one of them")
{
    for (dtype const grad : {bf16, f16})
        for (dtype const sum : {f32, bf16}) {
            test::model start;
            start.add({f32, grad, f32, f32, none, sum}, 65536);
            for (std::uint32_t i = 0; i < 65536; ++i)
                std::memcpy(start.element(start.pieces[0], arrays::grad, i), &i, 2);
            rig r(std::move(start));
            r.part->accumulate(0, true);
            r.model.accumulate(0, true);
            INFO(name(grad) << " " << name(sum));
            REQUIRE(r.difference() == "");
        }
    constexpr std::uint32_t low[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2000, 0x2fff, 0x3000,
                                     0x3001, 0x4000, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff};
    for (dtype const out : {bf16, f16}) {
        test::model start;
        start.add({f32, f32, f32, f32, out, none}, 65536 * std::size(low));
        for (std::uint32_t i = 0; i < 65536; ++i)
            for (std::uint32_t k = 0; k < std::size(low); ++k)
                start.set(start.pieces[0], arrays::param, i * std::size(low) + k, test::from_bits(i << 16 | low[k]));
        rig r(std::move(start));
        r.part->round_weights();
        r.model.round_weights();
        INFO(name(out));
        REQUIRE(r.difference() == "");
    }
}

TEST_CASE("cuda: gradients are accumulated, and the sum counts where it is said to")
{
    test::random_bits random(3);
    for (dtype const grad : {f32, bf16, f16})
        for (dtype const sum : {f32, bf16}) {
            test::model start;
            for (test::values const kind : test::all_values) {
                start.add({f32, grad, f32, f32, bf16, sum}, 5003);
                start.fill(start.pieces.back(), kind, random);
            }
            rig r(std::move(start));
            r.settled = {plain(usual())};
            INFO(name(grad) << " " << name(sum));
            for (int micro_step = 0; micro_step < 3; ++micro_step) {
                for (std::uint32_t i = 0; i < r.all.size(); ++i) {
                    r.part->accumulate(i, micro_step == 0);
                    r.model.accumulate(i, micro_step == 0);
                }
                REQUIRE(r.difference() == "");
                for (test::model_piece const& p : r.model.pieces)
                    r.model.fill_gradient(p, test::all_values[static_cast<std::size_t>(&p - r.model.pieces.data())],
                                          random);
                wait_for(gpu());
                r.upload();
            }
            r.summed = {1, 0, 1, 1, 0};
            r.run(block_pass::measure);
            REQUIRE(r.difference() == "");
            r.run(block_pass::step);
            REQUIRE(r.difference() == "");
        }
}

TEST_CASE("cuda: moments of 8 bits, every length to 200, with groups that lie over the end of a line of random numbers")
{
    test::random_bits random(14);
    std::size_t first = 0;
    for (dtype const param : {f32, bf16, f16, dtype::split_float32}) {
        test::model start;
        for (std::size_t n = ++first; n <= 200; n += 4) { // each length with one type of params
            start.add({param, bf16, q8, q8, param == dtype::split_float32 ? bf16 : none, none}, n, n / 4 % 4);
            start.pieces.back().position.begin = n % 3 == 0 ? 65536 - n / 2 / 64 * 64 - 32 : n * 64;
            start.fill(start.pieces.back(), test::all_values[n / 4 % 5], random);
        }
        rig r(std::move(start));
        for (rounding const moments : {rounding::nearest, rounding::stochastic})
            for (rounding const params : {rounding::nearest, rounding::stochastic})
                r.settled.push_back(plain(make_coefficients({.rounding = {moments, params, 7}}, 3)));
        r.speculated = r.settled;
        INFO(name(param));
        for (int step = 0; step < 3; ++step) {
            r.run(block_pass::step, step == 2);
            REQUIRE(r.difference() == "");
        }
        std::reverse(r.settled.begin(), r.settled.end());
        r.run(block_pass::redo, true);
        REQUIRE(r.difference() == "");
        r.run(block_pass::rollback);
        REQUIRE(r.difference() == "");
    }
}

namespace {

// Pieces of common and of rare types, and of several groups.
test::model mixed_pieces(test::random_bits& random, test::values kind = test::values::special)
{
    test::model m;
    std::size_t number = 0;
    for (types const& of : {types{f32, bf16, f32, f32, bf16, f32}, types{f32, f32, f32, f32, none, none},
                            types{bf16, bf16, bf16, f32, none, bf16}, types{f32, f16, f32, f32, f16, none},
                            types{f32, bf16, q8, q8, bf16, f32}, types{dtype::split_float32, bf16, q8, q8, bf16, none}})
        for (std::size_t const n : {100u, 4097u, 9000u}) {
            m.add(of, n, number++ % 3);
            m.fill(m.pieces.back(), kind, random);
        }
    return m;
}
std::vector<group_step> three_steps(std::uint64_t step, double clip = 1)
{
    return {plain(usual(step, false, {1, clip})), plain(usual(step, true, {1, clip})),
            plain(maximised(usual(step, false, {8, clip})))};
}

} // namespace

TEST_CASE("cuda: a speculated step is rolled back to the last bit, weights too")
{
    test::random_bits random(4);
    for (test::values const kind : test::all_values) {
        rig r(mixed_pieces(random, kind));
        r.speculated = three_steps(1);
        r.part->round_weights();
        r.model.round_weights();
        REQUIRE(r.difference() == "");
        std::vector<std::byte> const before = r.model.image_without_changes();
        r.run(block_pass::speculate);
        REQUIRE(r.difference() == "");
        CHECK((r.model.image_without_changes() != before));
        CHECK(std::count(r.model.recorded.begin(), r.model.recorded.end(), 1) ==
              static_cast<std::ptrdiff_t>(r.model.recorded.size()));
        r.run(block_pass::rollback);
        REQUIRE(r.difference() == "");
        CHECK((r.model.image_without_changes() == before));
        CHECK(std::count(r.model.recorded.begin(), r.model.recorded.end(), 0) ==
              static_cast<std::ptrdiff_t>(r.model.recorded.size()));
        r.run(block_pass::rollback); // of what has no record, nothing
        REQUIRE(r.difference() == "");
    }
}

TEST_CASE("cuda: redone is stepped with the settled values, and rest leaves alone what has a record")
{
    test::random_bits random(5);
    for (bool const keep : {false, true}) {
        rig r(mixed_pieces(random));
        r.speculated = three_steps(2);
        r.settled = three_steps(2, 0.125);
        test::model plainly = r.model;
        plainly.run({block_pass::step, r.all, r.settled, r.settled, r.summed, false});
        INFO("keep " << keep);
        r.run(block_pass::speculate);
        r.run(block_pass::redo, keep);
        REQUIRE(r.difference() == "");
        CHECK((r.model.image_without_changes() == plainly.image_without_changes()));
        r.run(block_pass::redo, keep); // from the record, or on top where there is none
        REQUIRE(r.difference() == "");
        CHECK((r.model.image_without_changes() == plainly.image_without_changes()) == keep);

        r.part->forget_records();
        r.model.forget_records();
        std::vector<std::uint32_t> const some = {0, 3, 4, 5, 8, 11, 12, 14, 17};
        std::vector<std::uint32_t> const others = {1, 2, 6, 7, 9, 10, 13, 15, 16};
        r.run(block_pass::speculate, false, &some);
        REQUIRE(r.difference() == "");
        r.run(block_pass::rest, keep);
        REQUIRE(r.difference() == "");
        r.run(block_pass::rest, keep, &others);
        REQUIRE(r.difference() == "");
        r.run(block_pass::rollback, false, &some);
        REQUIRE(r.difference() == "");
        r.run(block_pass::step, keep);
        REQUIRE(r.difference() == "");
        r.run(block_pass::rollback);
        REQUIRE(r.difference() == "");
    }
}

TEST_CASE("cuda: a part without records")
{
    test::random_bits random(13);
    rig r(mixed_pieces(random), gpu(), false);
    r.speculated = r.settled = three_steps(2);
    for (block_pass const pass : {block_pass::measure, block_pass::rest, block_pass::step, block_pass::compare}) {
        r.run(pass);
        INFO(name(pass));
        REQUIRE(r.difference() == "");
    }
}

TEST_CASE("cuda: compare leaves the sums of gradients as they are now")
{
    test::random_bits random(6);
    rig r(mixed_pieces(random, test::values::ordinary));
    r.speculated = r.settled = three_steps(1);
    r.run(block_pass::speculate);
    REQUIRE(r.difference() == "");
    std::vector<grad_squares> const before = r.model.squares;
    r.run(block_pass::compare);
    REQUIRE(r.difference() == "");
    r.run(block_pass::rollback);
    test::model_piece const& p = r.model.pieces[1];
    r.model.set(p, arrays::grad, 4096, 3.0f);
    wait_for(gpu());
    r.upload();
    r.run(block_pass::compare);
    REQUIRE(r.difference() == "");
    CHECK(r.model.squares[p.first_block + 1].sum != before[p.first_block + 1].sum);
    CHECK(r.model.squares[p.first_block].sum == before[p.first_block].sum);
}

TEST_CASE("cuda: gradients are limited and made zero as the CPU does it")
{
    test::random_bits random(7);
    for (bool const zero : {false, true})
        for (float const bound : {0x1p-10f, 0.0f, INFINITY}) {
            rig r(mixed_pieces(random, test::values::any_bits));
            r.speculated = three_steps(3);
            for (group_step& s : r.speculated) {
                s.rules = {zero, true, s.c.grad_scale, bound};
                s.c.grad_scale = 1;
            }
            r.settled = r.speculated;
            INFO("zero " << zero << " bound " << bound);
            r.run(block_pass::speculate);
            REQUIRE(r.difference() == "");
            r.run(block_pass::redo, true);
            REQUIRE(r.difference() == "");
        }
}

TEST_CASE("cuda: 3,000 small pieces of many types and 70 groups in one run, in any order", "[slow]")
{
    test::random_bits random(8);
    test::model start;
    constexpr types some[] = {{f32, bf16, f32, f32, bf16, none},
                              {f32, f32, f32, f32, none, f32},
                              {bf16, bf16, f32, bf16, none, none},
                              {bf16, bf16, q8, q8, none, none}};
    for (std::size_t i = 0; i < 3000; ++i) {
        std::size_t const n = i % 97 == 0 ? 0 : i % 500 == 1 ? 8193 : 1 + random.below(120);
        start.add(some[i % 7 == 0 ? 1 : i % 31 == 0 ? 2 : i % 5 == 0 ? 3 : 0], n, i % 70);
        start.fill(start.pieces.back(), test::values::ordinary, random);
    }
    rig r(std::move(start));
    for (std::uint64_t g = 0; g < 70; ++g) {
        r.speculated.push_back(plain(usual(1 + g)));
        r.settled.push_back(plain(usual(2 + g, g % 2 == 0)));
    }
    for (std::size_t i = 0; i < r.summed.size(); ++i)
        r.summed[i] = r.model.pieces[i].types[arrays::accumulator] != none && i % 2 == 0;
    r.run(block_pass::speculate);
    REQUIRE(r.difference() == "");
    for (std::size_t i = r.all.size(); i > 1; --i)
        std::swap(r.all[i - 1], r.all[random.below(i)]);
    std::vector<std::uint32_t> const half(r.all.begin(), r.all.begin() + 1500);
    r.run(block_pass::redo, false, &half);
    REQUIRE(r.difference() == "");
    r.run(block_pass::rest, true);
    REQUIRE(r.difference() == "");
    r.run(block_pass::rollback);
    REQUIRE(r.difference() == "");
}

TEST_CASE("cuda: pieces that come one by one, while gradients are uploaded and weights downloaded")
{
    test::random_bits random(9);
    test::model m;
    for (int i = 0; i < 40; ++i) {
        m.add({f32, bf16, f32, f32, bf16, none}, 1 + random.below(9000));
        m.fill(m.pieces.back(), test::values::ordinary, random);
    }
    cuda_device& on = gpu();
    std::vector<device_piece> pieces;
    std::shared_ptr<std::byte> const host = on.pinned(m.image.size());
    std::memcpy(host.get(), m.image.data(), m.image.size());
    device_ptr const memory = on.allocate(m.image.size());
    for (test::model_piece const& p : m.pieces) {
        device_piece d;
        for (std::size_t a = 0; a < 6; ++a) {
            d.types[a] = p.types[a];
            d.arrays[a] = p.types[a] == none ? device_ptr{} : memory + p.at[a];
        }
        d.elems = p.elems;
        d.changed = p.changed == 0 ? device_ptr{} : memory + p.changed;
        pieces.push_back(d);
    }
    on.copy_up(memory, host.get(), m.image.size());
    wait_for(on); // before the copy's source is written again
    {
        std::unique_ptr<device_part> const part = on.make_part(pieces, false);
        std::vector<group_step> const steps = {plain(usual())};
        std::vector<std::uint8_t> const summed(pieces.size(), 0);
        std::vector<grad_squares> squares(m.squares.size());
        std::vector<std::uint8_t> recorded(m.squares.size());
        for (int step = 0; step < 5; ++step) {
            for (test::model_piece const& p : m.pieces)
                m.fill_gradient(p, test::values::ordinary, random);
            for (std::uint32_t i = 0; i < pieces.size(); ++i) {
                test::model_piece const& p = m.pieces[i];
                std::byte* const grad = host.get() + p.at[arrays::grad];
                std::memcpy(grad, m.element(p, arrays::grad, 0), p.elems * 2);
                on.copy_up(pieces[i].arrays[arrays::grad], grad, p.elems * 2);
                on.wait_event(device_stream::work, on.record_event(device_stream::up));
                std::uint32_t const one[] = {i};
                part->run({block_pass::step, one, steps, steps, summed, false});
                m.run({block_pass::step, one, steps, steps, summed, false});
                on.wait_event(device_stream::down, on.record_event(device_stream::work));
                on.copy_down(host.get() + p.at[arrays::weight_out], pieces[i].arrays[arrays::weight_out], p.elems * 2);
            }
            part->fetch(squares, recorded);
            // One stream is enough: the last copy follows the last pass.
            REQUIRE(on.wait_until(on.record_event(device_stream::down), soon()));
            for (std::size_t b = 0; b < squares.size(); ++b)
                REQUIRE(squares[b].sum == m.squares[b].sum);
            for (test::model_piece const& p : m.pieces)
                REQUIRE(std::memcmp(host.get() + p.at[arrays::weight_out], m.element(p, arrays::weight_out, 0),
                                    p.elems * 2) == 0);
        }
    }
    on.copy_down(host.get(), memory, m.image.size());
    wait_for(on);
    CHECK(m.difference({host.get(), host.get() + m.image.size()}) == "");
    on.release(memory);
}

TEST_CASE("cuda: memory, and how much a part takes")
{
    cuda_device& on = gpu();
    CHECK(!on.allocate(0));
    on.release({});
    device_memory const before = on.memory();
    CHECK(before.free_bytes <= before.total_bytes);
    device_ptr const some = on.allocate(1000);
    CHECK(some.address % 256 == 0);
    on.release(some);
    for (std::size_t const bytes : {0u, 1u, 4096u, 100000u}) {
        std::shared_ptr<std::byte> const pinned = on.pinned(bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(pinned.get()) % 4096 == 0);
        std::memset(pinned.get(), 1, bytes);
    }
    std::size_t const too_many = before.total_bytes * 2;
    try {
        (void)on.allocate(too_many);
        FAIL("allocated");
    } catch (unavailable const& error) {
        std::string const text = error.what();
        INFO(text);
        CHECK(text.find(on.name()) != std::string::npos);
        CHECK(text.find(std::to_string(too_many)) != std::string::npos);
        CHECK(text.find(std::to_string(before.total_bytes)) != std::string::npos);
    }
    std::vector<device_piece> pieces(1);
    pieces[0].elems = before.total_bytes / 8;
    std::copy_n(types{f32, bf16, f32, f32, bf16, none}.begin(), 6, pieces[0].types);
    CHECK(on.part_bytes(pieces, true) >= pieces[0].elems * 12);
    CHECK(on.part_bytes(pieces, true) < pieces[0].elems * 12 + pieces[0].elems / 100 + 4096);
    CHECK(on.part_bytes(pieces, false) < pieces[0].elems / 100 + 4096);
    CHECK_THROWS_AS(on.make_part(pieces, true), unavailable);
    CHECK(on.part_bytes({}, true) == 0);
    std::vector<grad_squares> no_squares;
    std::vector<std::uint8_t> no_records;
    std::unique_ptr<device_part> const empty = on.make_part({}, true);
    empty->run({block_pass::measure, {}, {}, {}, {}, false});
    empty->forget_records();
    empty->round_weights();
    empty->fetch(no_squares, no_records);
    wait_for(on);
}

TEST_CASE("cuda: columns are gathered and scattered")
{
    cuda_device& on = gpu();
    test::random_bits random(31);
    for (int run = 0; run < 40; ++run) {
        column_copy what;
        what.rows = 1 + random.below(90);
        what.columns = 1 + random.below(run % 5 == 0 ? 300 : 70);
        what.pitch = what.rows + random.below(20);
        what.elem_bytes = run % 2 == 0 ? 2 : 4;
        what.indexed = run % 3 == 0;
        std::vector<std::uint32_t> list;
        for (std::uint32_t c = 0; c < what.columns; ++c)
            if (random.below(3) != 0)
                list.push_back(c);
        what.count = list.size();
        std::size_t const rows_bytes = what.rows * what.columns * what.elem_bytes;
        std::size_t const columns_bytes = what.columns * what.pitch * what.elem_bytes;
        std::vector<std::byte> by_rows(rows_bytes), by_columns(columns_bytes);
        for (std::vector<std::byte>* const array : {&by_rows, &by_columns})
            for (std::byte& b : *array)
                b = static_cast<std::byte>(random());
        INFO("run " << run << ": " << what.count << " of " << what.rows << " x " << what.columns);
        what.by_rows = on.allocate(rows_bytes);
        what.by_columns = on.allocate(columns_bytes);
        what.list = on.allocate(std::max<std::size_t>(4, list.size() * sizeof list[0]));
        on.copy_up(what.list, list.data(), list.size() * sizeof list[0]);
        for (bool const gathers : {true, false}) {
            on.copy_up(what.by_rows, by_rows.data(), rows_bytes);
            on.copy_up(what.by_columns, by_columns.data(), columns_bytes);
            on.wait_event(device_stream::work, on.record_event(device_stream::up));
            gathers ? on.gather_columns(what) : on.scatter_columns(what);
            on.wait_event(device_stream::down, on.record_event(device_stream::work));
            std::vector<std::byte> rows_after(rows_bytes), columns_after(columns_bytes);
            on.copy_down(rows_after.data(), what.by_rows, rows_bytes);
            on.copy_down(columns_after.data(), what.by_columns, columns_bytes);
            wait_for(on);
            for (std::size_t i = 0; i < list.size(); ++i)
                for (std::size_t r = 0; r < what.rows; ++r) {
                    std::byte* const in_row = by_rows.data() + (r * what.columns + list[i]) * what.elem_bytes;
                    std::byte* const in_column =
                        by_columns.data() + ((what.indexed ? list[i] : i) * what.pitch + r) * what.elem_bytes;
                    std::memcpy(gathers ? in_column : in_row, gathers ? in_row : in_column, what.elem_bytes);
                }
            REQUIRE(rows_after == by_rows);
            REQUIRE(columns_after == by_columns);
        }
        for (device_ptr const memory : {what.by_rows, what.by_columns, what.list})
            on.release(memory);
    }
}

TEST_CASE("cuda: columns are scored")
{
    cuda_device& on = gpu();
    test::random_bits random(37);
    for (int run = 0; run < 30; ++run) {
        column_scoring what;
        what.rows = 1 + random.below(run % 6 == 0 ? 1300 : 90);
        what.columns = 1 + random.below(run % 5 == 0 ? 700 : 70);
        constexpr dtype types[] = {dtype::float32, dtype::bfloat16, dtype::float16};
        what.type = types[run % 3];
        what.kind = run % 2 == 0 ? column_score::magnitude : column_score::square;
        INFO("run " << run << ": " << what.rows << " x " << what.columns << " of " << name(what.type));
        std::size_t const n = what.rows * what.columns;
        test::array grad(what.type, n);
        float largest = 0;
        std::size_t const peak = random.below(n); // whichever thread has it
        for (std::size_t i = 0; i < n; ++i) {
            grad.set(i, test::value_of(run % 4 == 0 ? test::values::special : test::values::ordinary, random, -20, 2));
            if (run == 1 ? i == 255 % n : i == peak)
                grad.set(i, -100);
            if (is_finite(grad.get(i)))
                largest = std::max(largest, std::fabs(grad.get(i)));
        }
        what.scale = column_score_scale_for(largest, what.kind).scale;
        std::vector<std::uint32_t> largest_of(what.largest_pieces()), scores(what.scores());
        what.grad = on.allocate(grad.bytes());
        device_ptr const of_scores = on.allocate(scores.size() * sizeof scores[0]);
        device_ptr const of_largest = on.allocate(largest_of.size() * sizeof largest_of[0]);
        on.copy_up(what.grad, grad.data(), grad.bytes());
        on.wait_event(device_stream::work, on.record_event(device_stream::up));
        what.result = of_largest;
        on.find_largest(what);
        what.result = of_scores;
        on.score_columns(what);
        on.wait_event(device_stream::down, on.record_event(device_stream::work));
        on.copy_down(largest_of.data(), of_largest, largest_of.size() * sizeof largest_of[0]);
        on.copy_down(scores.data(), of_scores, scores.size() * sizeof scores[0]);
        wait_for(on);
        for (std::size_t k = 0; k < largest_of.size(); ++k) {
            float expected = 0;
            for (std::size_t i = k * column_scoring::piece_elems;
                 i < std::min(n, (k + 1) * column_scoring::piece_elems); ++i)
                if (is_finite(grad.get(i)))
                    expected = std::max(expected, std::fabs(grad.get(i)));
            REQUIRE(largest_of[k] == std::bit_cast<std::uint32_t>(expected));
        }
        std::vector<std::uint32_t> expected(scores.size());
        for (std::size_t i = 0; i < n; ++i)
            expected[i / what.columns / column_score_rows * what.columns + i % what.columns] +=
                reference::column_score_of(grad.get(i), what.scale, what.kind == column_score::square);
        REQUIRE(scores == expected);
        for (device_ptr const memory : {what.grad, of_scores, of_largest})
            on.release(memory);
    }
}

TEST_CASE("cuda: marks, calls and usage")
{
    cuda_device& on = gpu();
    device_usage const before = on.usage();
    std::size_t const bytes = 1 << 20;
    std::shared_ptr<std::byte> const from = on.pinned(bytes);
    std::shared_ptr<std::byte> const to = on.pinned(bytes);
    std::memset(from.get(), 0x3c, bytes);
    device_ptr const memory = on.allocate(bytes);
    std::vector<int> order; // of one stream: nobody writes at the same time
    on.copy_up(memory, from.get(), bytes);
    device_event const up = on.record_event(device_stream::up);
    on.wait_event(device_stream::down, up);
    on.call(device_stream::down, [&] { order.push_back(1); });
    on.copy_down(to.get(), memory, bytes);
    on.call(device_stream::down, [&] { order.push_back(to.get()[bytes - 1] == std::byte{0x3c} ? 2 : -2); });
    device_event const down = on.record_event(device_stream::down);
    REQUIRE(on.wait_until(down, soon()));
    CHECK(order == std::vector<int>{1, 2});
    CHECK(std::memcmp(from.get(), to.get(), bytes) == 0);
    CHECK(on.wait_until(up, device::clock::now())); // followed, so it is over
    CHECK(on.wait_until({device_stream::work, 0}, device::clock::now()));
    device_usage const after = on.usage();
    for (device_stream const stream : {device_stream::up, device_stream::down}) {
        auto const i = static_cast<std::size_t>(stream);
        CHECK(after.bytes[i] - before.bytes[i] == bytes);
        CHECK(after.busy_s[i] > before.busy_s[i]);
    }
    // More than the ring of events holds, and an early mark after that.
    device_event early = on.record_event(device_stream::up);
    for (int i = 0; i < 3000; ++i) {
        on.copy_up(memory + 256, from.get(), 256);
        if (i == 10)
            early = on.record_event(device_stream::up);
        if (i % 100 == 50)
            on.wait_event(device_stream::down, early);
        if (i % 100 == 60)
            on.call(device_stream::up, [&] { order.push_back(3); });
    }
    on.wait_event(device_stream::down, early);
    REQUIRE(on.wait_until(on.record_event(device_stream::down), soon()));
    REQUIRE(on.wait_until(early, soon()));
    REQUIRE(on.wait_until(on.record_event(device_stream::up), soon()));
    CHECK(order.size() == 32);
    CHECK(on.usage().bytes[1] - after.bytes[1] == 3000 * 256);
    on.release(memory);
}

TEST_CASE("cuda: what is asked for and is not there")
{
    try {
        cuda_device const none_such(1000);
        FAIL("made");
    } catch (unavailable const& error) {
        std::string const text = error.what();
        INFO(text);
        CHECK(text.find("1000") != std::string::npos);
        CHECK(text.find(gpu().name()) != std::string::npos);
    }
    CHECK_THROWS_AS(cuda_device(-1), unavailable);
}

#if defined(ADAMANT_GPU_RUNTIME)

namespace {

// What whoever waits is told; empty where nothing has failed.
std::string failure(device& on)
{
    try {
        for (device_stream const stream : {device_stream::work, device_stream::up, device_stream::down})
            if (!on.wait_until(on.record_event(stream),
                               soon())) // outside of an assertion, which would catch what it throws
                return "not there in time";
    } catch (device_error const& error) {
        return error.what();
    }
    return {};
}
bool holds(std::string const& text, std::initializer_list<char const*> words)
{
    INFO(text);
    for (char const* const word : words) {
        CHECK(text.find(word) != std::string::npos);
        if (text.find(word) == std::string::npos)
            return false;
    }
    return text.compare(0, 9, "adamant: ") == 0;
}

} // namespace

TEST_CASE("cuda on host: what fails when it is enqueued is told, nothing after it is done, and reset() goes on")
{
    using cuda_on_host::call;
    cuda_device on(0);
    device_ptr const memory = on.allocate(4096);
    std::vector<std::byte> const ones(123, std::byte{1});
    std::vector<std::byte> const twos(123, std::byte{2});
    std::vector<std::byte> back(123);
    on.copy_up(memory, ones.data(), 123);
    wait_for(on);

    bool called = false;
    cuda_on_host::fail(call::copy, 1, cudaErrorInvalidValue);
    on.copy_up(memory, twos.data(), 123);
    on.copy_up(memory, twos.data(), 123);
    on.call(device_stream::work, [&] { called = true; });
    on.copy_down(back.data(), memory, 123);
    CHECK(holds(failure(on), {"imitated GPU (cuda:0)", "copy of 123 bytes up", "invalid argument"}));
    CHECK(holds(failure(on), {"copy of 123 bytes up"})); // until reset()
    CHECK(!called);
    CHECK(back == std::vector<std::byte>(123));
    REQUIRE(on.reset(soon()));
    on.copy_down(back.data(), memory, 123);
    CHECK(failure(on) == "");
    CHECK(back == ones);

    // Not in the device's memory.
    on.copy_down(back.data(), memory + 4000, 123);
    CHECK(holds(failure(on), {"copy of 123 bytes down"}));
    REQUIRE(on.reset(soon()));

    cuda_on_host::fail(call::host_function, 1, cudaErrorLaunchFailure);
    on.call(device_stream::up, [&] { called = true; });
    CHECK(holds(failure(on), {"call of a function", "unspecified launch failure"}));
    REQUIRE(on.reset(soon()));

    cuda_on_host::fail(call::record, 1, cudaErrorLaunchFailure);
    on.copy_up(memory, twos.data(), 123);
    CHECK(holds(failure(on), {"copy of 123 bytes up"}));
    REQUIRE(on.reset(soon()));
    CHECK(failure(on) == "");
    on.release(memory);
}

TEST_CASE("cuda on host: a launch that fails leaves what comes after it rolled back, and shows what was done")
{
    using cuda_on_host::call;
    test::random_bits random(10);
    cuda_device on(0);
    rig r(mixed_pieces(random), on);
    r.speculated = r.settled = three_steps(1);
    REQUIRE(r.difference() == "");
    cuda_on_host::fail(call::launch, 1, cudaErrorLaunchFailure);
    std::vector<std::uint32_t> const first = {0, 1, 2, 3, 4};
    r.part->run({block_pass::speculate, first, r.speculated, r.settled, r.summed, false});
    r.part->run({block_pass::step, r.all, r.speculated, r.settled, r.summed, false});
    r.part->round_weights();
    r.part->accumulate(0, true);
    CHECK(holds(failure(on), {"imitated GPU (cuda:0)", "pass speculate over 5 pieces", "unspecified launch failure"}));
    REQUIRE(on.reset(soon()));
    REQUIRE(r.difference() == "");

    // The second of the launches that a pass over two kinds of pieces takes.
    cuda_on_host::fail(call::launch, 2, cudaErrorLaunchFailure);
    r.part->run({block_pass::speculate, first, r.speculated, r.settled, r.summed, false});
    CHECK(holds(failure(on), {"pass speculate over 5 pieces"}));
    REQUIRE(on.reset(soon()));
    std::vector<std::uint32_t> const done = {0, 1, 2};
    r.model.run({block_pass::speculate, done, r.speculated, r.settled, r.summed, false});
    REQUIRE(r.difference() == "");
    r.run(block_pass::rollback);
    REQUIRE(r.difference() == "");
}

TEST_CASE("cuda on host: a kernel that fails takes the device with it")
{
    using cuda_on_host::call;
    test::random_bits random(11);
    {
        cuda_device on(0);
        rig r(mixed_pieces(random), on);
        r.speculated = r.settled = three_steps(1);
        wait_for(on);
        cuda_on_host::fail(call::kernel, 1, cudaErrorIllegalAddress);
        std::uint32_t const one[] = {4};
        r.part->run({block_pass::step, one, r.speculated, r.settled, r.summed, false});
        CHECK(holds(failure(on), {"pass step over 1 piece", "an illegal memory access"}));
        CHECK(!on.reset(device::clock::now() + std::chrono::seconds(1)));
        CHECK(holds(failure(on), {"pass step over 1 piece"}));
        CHECK_THROWS_AS(on.allocate(100), device_error);
    }
    cuda_on_host::restart();
}

TEST_CASE("cuda on host: a device that does not come to the end")
{
    cuda_device on(0);
    device_ptr const memory = on.allocate(4096);
    std::shared_ptr<std::byte> const host = on.pinned(4096);
    auto const shortly = [] { return device::clock::now() + std::chrono::milliseconds(5); };
    cuda_on_host::hold(true);
    on.copy_up(memory, host.get(), 4096);
    device_event const up = on.record_event(device_stream::up);
    CHECK(!on.wait_until(up, shortly()));
    CHECK(!on.wait_until(up, device::clock::now() - std::chrono::seconds(1)));
    CHECK(!on.reset(shortly()));
    on.wait_event(device_stream::work, up);
    device_event const work = on.record_event(device_stream::work);
    CHECK(!on.wait_until(work, shortly()));
    cuda_on_host::hold(false);
    CHECK(on.wait_until(work, soon()));
    CHECK(on.wait_until(up, device::clock::now()));
    on.release(memory);
}

TEST_CASE("cuda on host: results are not written after their part is destroyed, and no destructor waits without limit",
          "[slow]") // a part waits ten seconds
{
    test::random_bits random(12);
    cuda_device on(0);
    device_ptr const memory = on.allocate(64);
    std::shared_ptr<std::byte> host = on.pinned(64);
    std::vector<device_piece> pieces(1);
    pieces[0].elems = 10000;
    auto part = on.make_part(pieces, true);
    wait_for(on);
    std::vector<grad_squares> squares(3, {123, 4});
    std::vector<std::uint8_t> recorded(3, 5);
    cuda_on_host::hold(true);
    part->fetch(squares, recorded);
    part.reset();
    on.release(memory); // would wait for the device, as would
    host.reset();
    cuda_on_host::hold(false);
    REQUIRE(on.reset(soon()));
    CHECK(std::all_of(squares.begin(), squares.end(), [](grad_squares s) { return s.sum == 123 && s.nonfinite == 4; }));
    CHECK(recorded == std::vector<std::uint8_t>(3, 5));
    std::size_t const used = cuda_on_host::used_bytes();
    on.release(on.allocate(64)); // memory is released again
    CHECK(cuda_on_host::used_bytes() == used);

    // A device that recovers by itself.
    device_ptr const more = on.allocate(64);
    on.copy_up(more, on.pinned(64).get(), 64);
    cuda_on_host::hold(true);
    on.call(device_stream::up, [] {});
    CHECK(!on.reset(device::clock::now()));
    on.release(more);
    CHECK(cuda_on_host::used_bytes() == used + 64);
    cuda_on_host::hold(false);
    REQUIRE(on.wait_until(on.record_event(device_stream::up), soon()));
    on.release(on.allocate(64));
    CHECK(cuda_on_host::used_bytes() == used + 64);
}

TEST_CASE("cuda on host: a thread keeps its context, and no other device gets one")
{
    std::size_t const bytes = std::size_t{1} << 30;
    cuda_on_host::forget_contexts();
    cuda_on_host::set_device(bytes, 9, 3);
    auto const use = [](cuda_device& on) {
        device_ptr const memory = on.allocate(4096);
        {
            std::shared_ptr<std::byte> const host = on.pinned(4096);
            on.copy_up(memory, host.get(), 4096);
            on.call(device_stream::up, [] {});
            wait_for(on);
            std::vector<device_piece> pieces(1);
            pieces[0].elems = 10000;
            auto const part = on.make_part(pieces, true);
            part->round_weights();
            on.wait_event(device_stream::up, on.record_event(device_stream::work));
            wait_for(on);
        }
        on.release(memory);
        (void)on.memory();
        REQUIRE(on.reset(soon()));
    };
    {
        cuda_device on(1);
        use(on);
        CHECK(cuda_on_host::current == nullptr);
        std::thread([&] {
            use(on);
            CHECK(cuda_on_host::current == nullptr);
        }).join();
        CHECK(cuda_on_host::contexts() == std::vector<int>{1});
        (void)cudaSetDevice(2);
        auto* const of_caller = cuda_on_host::current;
        use(on);
        CHECK(cuda_on_host::current == of_caller);
        cuda_on_host::context not_primary = {1};
        cuda_on_host::current = &not_primary;
        use(on);
        CHECK(cuda_on_host::current == &not_primary);
        cuda_on_host::current = nullptr;
    }
    CHECK(cuda_on_host::contexts() == std::vector<int>{1, 2});
    {
        cuda_device on(2);
        cuda_on_host::set_device(bytes, 9, 2); // it cannot be used any more
        device_ptr const memory = {256};
        on.copy_up(memory, nullptr, 16);
        CHECK(holds(failure(on), {"copy of 16 bytes up", "invalid device ordinal"}));
        CHECK_THROWS_AS(on.allocate(16), device_error);
        CHECK_THROWS_AS(on.memory(), device_error);
    }
    cuda_on_host::set_device(bytes, 9, 1);
}

TEST_CASE("cuda on host: a graph that another thread captures is not lost, and errors of the program are not taken")
{
    test::random_bits random(13);
    cuda_on_host::capture(true);
    {
        cuda_device on(0);
        rig r(mixed_pieces(random), on);
        r.speculated = r.settled = three_steps(1);
        std::shared_ptr<std::byte> const host = on.pinned(64);
        r.run(block_pass::step);
        REQUIRE(r.difference() == "");
        REQUIRE(on.reset(soon()));
        wait_for(on);
        cuda_on_host::last_error = cudaErrorLaunchFailure;
    }
    CHECK(!cuda_on_host::capture_is_lost());
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    cuda_on_host::capture(false);
    cuda_device on(0);
    cuda_on_host::fail(cuda_on_host::call::allocate, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(on.allocate(64), unavailable);
    CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("cuda on host: a process that is forked while streams are at work")
{
    auto on = std::make_unique<cuda_device>(0);
    device_ptr const memory = on->allocate(4096);
    std::shared_ptr<std::byte> host = on->pinned(4096);
    test::random_bits random(11);
    auto r = std::make_unique<rig>(mixed_pieces(random), *on);
    for (bool const works : {false, true}) {
        INFO("works: " << works);
        cuda_on_host::hold(works);
        if (works) {
            on->copy_up(memory, host.get(), 4096);
            on->call(device_stream::up, [] {});
        }
        CHECK(test::is_refused_in_child("memory", [&] { (void)on->memory(); }));
        CHECK(test::is_refused_in_child("allocate", [&] { (void)on->allocate(64); }));
        CHECK(test::is_refused_in_child("pinned", [&] { (void)on->pinned(64); }));
        CHECK(test::is_refused_in_child("copy_up", [&] { on->copy_up(memory, host.get(), 64); }));
        CHECK(test::is_refused_in_child("copy_down", [&] { on->copy_down(host.get(), memory, 64); }));
        CHECK(test::is_refused_in_child("call", [&] { on->call(device_stream::up, [] {}); }));
        CHECK(test::is_refused_in_child("mark", [&] { (void)on->record_event(device_stream::up); }));
        CHECK(test::is_refused_in_child("follow", [&] { on->wait_event(device_stream::work, device_event{}); }));
        CHECK(test::is_refused_in_child("wait_until", [&] { (void)on->wait_until({}, soon()); }));
        CHECK(test::is_refused_in_child("usage", [&] { (void)on->usage(); }));
        CHECK(test::is_refused_in_child("round_weights", [&] { r->part->round_weights(); }));
        CHECK(test::in_child([&] { return on->reset(soon()) ? 6 : 5; }) == 5);
        CHECK(test::in_child([&] {
                  r.reset();
                  host.reset();
                  on->release(memory);
                  return 5;
              }) == 5);
        CHECK(test::in_child([&] { // no exit(): the runtime on the host would wait for its threads
                  on.reset();
                  return 7;
              }) == 7);
    }
    cuda_on_host::hold(false);
    CHECK(on->wait_until(on->record_event(device_stream::up), soon()));
    r.reset();
    on->release(memory);
}

TEST_CASE("cuda on host: a stream with more under way than its ring of events holds")
{
    cuda_device on(0);
    device_ptr const memory = on.allocate(4096);
    std::shared_ptr<std::byte> const host = on.pinned(4096);
    cuda_on_host::hold(true);
    std::vector<device_event> marks;
    for (int i = 0; i < 1500; ++i) {
        on.copy_up(memory, host.get(), 100);
        if (i % 3 == 0)
            on.call(device_stream::up, [] {});
        marks.push_back(on.record_event(device_stream::up));
        on.wait_event(device_stream::down, marks[marks.size() / 2]);
    }
    device_event const down = on.record_event(device_stream::down);
    CHECK(!on.wait_until(marks[0], device::clock::now()));
    cuda_on_host::hold(false);
    for (device_event const each : marks)
        REQUIRE(on.wait_until(each, soon()));
    REQUIRE(on.wait_until(down, soon()));
    CHECK(on.usage().bytes[1] == 150000);
    on.release(memory);
}

TEST_CASE("cuda on host: devices that will not do")
{
    std::size_t const bytes = std::size_t{1} << 30;
    auto const refusal = [](int ordinal) -> std::string {
        try {
            cuda_device const made(ordinal);
        } catch (unavailable const& error) {
            return error.what();
        }
        return {};
    };
    cuda_on_host::set_device(bytes, 9, 0);
    CHECK(holds(refusal(0), {"device 0", "no CUDA-capable device is detected"}));
    cuda_on_host::set_device(bytes, 6, 1);
    CHECK(holds(refusal(0), {"imitated GPU (cuda:0)", "6.0", "7.0"}));
    cuda_on_host::set_device(bytes, 9, 1);
    CHECK(holds(refusal(1), {"device 1", "only imitated GPU (cuda:0)"}));
    cuda_on_host::fail(cuda_on_host::call::launch, 1, cudaErrorNoKernelImageForDevice);
    CHECK(holds(refusal(0), {"compute capability 9.0", "no code", "sm_90"}));
    cuda_on_host::flush_subnormals(true);
    CHECK(holds(refusal(0), {"imitated GPU (cuda:0)", "flushes subnormals", "--use_fast_math", "--ftz=true"}));
    cuda_on_host::flush_subnormals(false);
    CHECK(refusal(0) == "");
    std::size_t const used = cuda_on_host::used_bytes();
    cuda_on_host::fail(cuda_on_host::call::allocate_host, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(gpu().pinned(100), unavailable);
    cuda_on_host::fail(cuda_on_host::call::allocate_host, 1, cudaErrorMemoryAllocation);
    std::vector<device_piece> pieces(1);
    pieces[0].elems = 10000;
    CHECK_THROWS_AS(gpu().make_part(pieces, true), unavailable);
    cuda_on_host::fail(cuda_on_host::call::copy, 1, cudaErrorInvalidValue);
    CHECK_THROWS_AS(gpu().make_part(pieces, true), device_error);
    REQUIRE(gpu().reset(soon()));
    CHECK(cuda_on_host::used_bytes() == used);
}

TEST_CASE("cuda on host: pieces beside one another, of one kind, take one launch")
{
    test::model start;
    for (int i = 0; i < 1000; ++i)
        start.add({f32, bf16, f32, f32, bf16, none}, 10);
    rig r(std::move(start));
    r.speculated = r.settled = {plain(usual())};
    std::uint64_t const before = cuda_on_host::launches();
    r.run(block_pass::step);
    CHECK(cuda_on_host::launches() - before == 1);
    REQUIRE(r.difference() == "");
}

#endif

#if !defined(ADAMANT_GPU_RUNTIME) // over the imitation: hybrid_cuda.cpp
TEST_CASE("cuda: any run of an optimizer has the bits of the reference implementation applied the slow way")
{
    for (std::uint64_t seed = 600; seed < 600 + test::repeats(30); ++seed)
        slow::run_random(seed, std::make_shared<cuda_device>(0));
}
#endif
