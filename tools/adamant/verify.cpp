// SPDX-License-Identifier: Apache-2.0
// `adamant verify`: checks that this machine computes the same bits as every other. Every combination of element types
// runs the same seeded trajectory on the requested instruction set and threads. Digests of all its bits are compared
// with those in verify_expected.inc, which the scalar reference implementation made.

#include "verify.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <span>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/formats.hpp>

#include "cores_text.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::uint64_t expected[format_count + 1] = {
#include "verify_expected.inc"
};

constexpr std::uint64_t steps = 200;

// FNV-1a, 64 bits (Fowler, Noll, Vo).
class digest {
public:
    void add(void const* data, std::size_t n)
    {
        auto const* const bytes = static_cast<unsigned char const*>(data);
        for (std::size_t i = 0; i < n; ++i)
            state_ = (state_ ^ bytes[i]) * 0x100000001b3u;
    }
    template <class T>
    void add(T value)
    {
        add(&value, sizeof value);
    }
    [[nodiscard]] std::uint64_t value() const { return state_; }

private:
    std::uint64_t state_ = 0xcbf29ce484222325u;
};

// SplitMix64 (Steele, Lea, Flood 2014): integers only, so the same numbers everywhere.
class random_bits {
public:
    explicit random_bits(std::uint64_t seed) : state_(seed) {}
    std::uint64_t operator()()
    {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

private:
    std::uint64_t state_;
};

// Random sign and mantissa, and an exponent from 2^low to 2^high.
float with_exponent(std::uint64_t random, int low, int high)
{
    auto const span = static_cast<std::uint32_t>(high - low + 1);
    auto const exponent = static_cast<std::uint32_t>(127 + low) + static_cast<std::uint32_t>(random >> 32) % span;
    return std::bit_cast<float>((static_cast<std::uint32_t>(random) & 0x807fffffu) | exponent << 23);
}

// A value for the element at this index: of every eight, four are ordinary, the others idle rows, values around the
// smallest normal number, values of any magnitude, and any bits at all (infinities and NaNs among them).
float value_of_kind(std::size_t index, std::uint64_t random, int low, int high)
{
    switch (index % 8) {
    case 4: return random % 16 == 0 ? with_exponent(random, low, high) : 0.0f;
    case 5: return std::bit_cast<float>(static_cast<std::uint32_t>(random) & 0x81ffffffu);
    case 6: return with_exponent(random, -126, 127);
    case 7:
        return random % 8 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random >> 32))
                               : with_exponent(random, low, high);
    default: return with_exponent(random, low, high);
    }
}

hyperparameters hyper_of(int mode, std::uint64_t t)
{
    double const lr = 1e-3 * static_cast<double>(1 + t % 7) / 7;
    switch (mode) {
    case 0: return {.lr = lr, .weight_decay = 0.1, .mode = decay_mode::decoupled};
    case 1:
        return {.lr = lr,
                .beta1 = 0.8,
                .beta2 = 0.99,
                .eps = 1e-6,
                .weight_decay = 0.05,
                .mode = decay_mode::l2,
                .rounding = {rounding::stochastic, rounding::stochastic, 5}};
    default:
        return {
            .lr = lr, .eps = 1e-10, .bias_correction = false, .rounding = {rounding::nearest, rounding::nearest, 0}};
    }
}

// An array that begins `offset_bytes` past an aligned address. Of dtype none it is null.
class misaligned {
public:
    misaligned(dtype type, std::size_t n, std::size_t offset_bytes)
        : type_(type), bytes_(array_bytes(type, n) + offset_bytes),
          begin_(type == dtype::none ? nullptr : bytes_.data() + offset_bytes)
    {
    }
    [[nodiscard]] std::byte* at(std::size_t i) const { return begin_ + array_bytes(type_, i); }
    void set(std::size_t i, float x)
    {
        switch (type_) {
        case dtype::float32: store_unaligned(at(i), x); break;
        case dtype::bfloat16: store_unaligned(at(i), narrow<bfloat16>(x)); break;
        case dtype::float16: store_unaligned(at(i), narrow<float16>(x)); break;
        case dtype::split_float32: store_unaligned(at(i), split_master(x).low); break;
        case dtype::quantized8: set_code(i, std::bit_cast<std::uint32_t>(x)); break;
        case dtype::none: break;
        }
    }
    void add_to(digest& sum, std::size_t n) const { sum.add(begin_, array_bytes(type_, n)); }

private:
    // Sets an arbitrary code, and for the first element of a group a scale with these bits.
    void set_code(std::size_t i, std::uint32_t bits)
    {
        std::size_t const first = i / quantized_group_elems * quantized_group_elems;
        at(first)[i - first] = static_cast<std::byte>(bits >> 8);
        if (i == first)
            store_unaligned(at(first) + quantized_group_elems, std::bit_cast<float>(bits));
    }

    dtype type_;
    std::vector<std::byte> bytes_;
    std::byte* begin_;
};

// The arrays of n elements of one format, each at a different odd offset.
struct shard_memory {
    misaligned param, grad, exp_avg, exp_avg_sq, weight_out;

    shard_memory(shard_format const& format, std::size_t n)
        : param(format.types[0], n, 1), grad(format.types[1], n, 3), exp_avg(format.types[2], n, 5),
          exp_avg_sq(format.types[3], n, 7), weight_out(format.types[4], n, 9)
    {
    }
    // A split master also sets weight_out, which is a part of it.
    void set_param(shard_format const& format, std::size_t i, float x)
    {
        param.set(i, x);
        if (has_split_param(format.types))
            weight_out.set(i, x);
    }
    // n elements from `begin` on.
    [[nodiscard]] any_shard shard_at(shard_format const& format, std::size_t begin, std::size_t n,
                                     param_position const& position) const
    {
        return any_shard(
            format,
            {param.at(begin), grad.at(begin), exp_avg.at(begin), exp_avg_sq.at(begin), weight_out.at(begin), position},
            n);
    }
    void add_state_to(digest& sum, std::size_t n) const
    {
        for (misaligned const* array : {&param, &exp_avg, &exp_avg_sq, &weight_out})
            array->add_to(sum, n);
    }
};

constexpr std::size_t lengths[] = {1, 7, 64, 129, 509}; // the longest has work for 8 threads
// Elements that a shard of n elements occupies: whole groups, so that the next shard begins with a group.
std::size_t room_of(shard_format const& format, std::size_t n)
{
    std::size_t const group_elems = elems_together(format.types);
    return (n + group_elems - 1) / group_elems * group_elems;
}

// Steps whose new moments lie at and around the thresholds of their formats: zero and limited scales of 8-bit moments,
// boundaries between codes, float's flush to zero and overflow, and weights halfway between two bfloat16 numbers.
void step_at_edges(executor const& cpu, shard_format const& format, digest& sum)
{
    constexpr std::size_t n = 3 * quantized_group_elems + 5;
    // Gradients are from 1/4 to 2 times 2^exponent; with betas of 0, they and their squares are the new moments.
    constexpr int exponents[] = {-125, -81, -63, -41, -40, 0, 62, 63, 124, 126};
    std::uint64_t t = 0;
    for (int const exponent : exponents)
        for (unsigned variant = 0; variant < 32; ++variant) {
            shard_memory arrays(format, n);
            random_bits random(variant);
            for (std::size_t i = 0; i < n; ++i) {
                // At or next to the middle between two bfloat16 numbers, with any last bit.
                std::uint64_t const bits = random();
                auto const p = std::bit_cast<float>(0x3f008000u + static_cast<std::uint32_t>(bits % 3) - 1 +
                                                    (static_cast<std::uint32_t>(bits >> 8 & 0x7f) << 16));
                arrays.set_param(format, i, p);
                arrays.exp_avg.set(i, 0);
                arrays.exp_avg_sq.set(i, 0);
                // The largest of a group has the mantissa of an edge; the others have any smaller magnitude.
                auto const edge = std::bit_cast<float>(0x3f800000u + ((0x60u + variant) << 16)); // 1.75 to 1.99
                arrays.grad.set(
                    i, i % quantized_group_elems == variant % 3 ? edge : -edge * with_exponent(bits >> 16, -16, -1));
            }
            auto const kind = static_cast<rounding>(variant % 2);
            coefficients const c = make_coefficients({.lr = variant % 4 < 2 ? 0 : 1e-3,
                                                      .beta1 = 0,
                                                      .beta2 = variant % 8 < 4 ? 0 : 0.5,
                                                      .rounding = {kind, kind, 3}},
                                                     ++t, {.loss_scale = std::ldexp(1.0, -exponent)});
            sum.add(step(cpu, arrays.shard_at(format, 0, n, {1, 0}), c).nonfinite_grads);
            arrays.add_state_to(sum, n);
        }
}

std::uint64_t trajectory(executor const& cpu, shard_format const& format, unsigned& threads)
{
    digest sum;
    step_at_edges(cpu, format, sum);
    std::size_t total_elems = 0;
    for (std::size_t const n : lengths)
        total_elems += room_of(format, n);
    for (int mode = 0; mode < 3; ++mode) {
        shard_memory arrays(format, total_elems);
        random_bits random(static_cast<std::uint64_t>(mode));
        for (std::size_t i = 0; i < total_elems; ++i) {
            float const p = value_of_kind(i, random(), -9, -4);
            arrays.set_param(format, i, p);
            arrays.exp_avg.set(i, value_of_kind(i, random(), -20, -10));
            float const v = value_of_kind(i, random(), -36, -20);
            arrays.exp_avg_sq.set(
                i, i % 8 == 7 ? v : std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) & float_abs_mask));
        }
        for (std::uint64_t t = 1; t <= steps; ++t) {
            // The moments of rows that are idle after step 20 decay.
            for (std::size_t i = 0; i < total_elems; ++i) {
                std::uint64_t const bits = random();
                arrays.grad.set(i, t > 20 && i % 8 == 4 ? 0.0f : value_of_kind(i, bits, -14, -1));
            }
            coefficients const c = make_coefficients(hyper_of(mode, t), t, {.loss_scale = mode == 0 ? 1024.0 : 1.0});
            std::size_t begin = 0;
            for (std::size_t const n : lengths) {
                // A position in its parameter such that a line of random numbers ends within the shard.
                param_position const position = {2, rounding_line_elems - room_of(format, 300) + begin};
                any_shard const shard = arrays.shard_at(format, begin, n, position);
                step_report const report = step(cpu, shard, c);
                threads = std::max(threads, report.threads);
                sum.add(report.nonfinite_grads);
                begin += room_of(format, n);
            }
            if (t % 20 == 0) {
                grad_squares const squares = sum_of_squares(cpu, arrays.grad.at(0), format.types[1], total_elems);
                sum.add(std::bit_cast<std::uint64_t>(squares.sum));
                sum.add(squares.nonfinite);
                arrays.add_state_to(sum, total_elems);
            }
        }
    }
    return sum.value();
}

struct result {
    shard_dtypes dtypes;
    std::uint64_t digest;
};

// The digest over the combinations that a name of types_of_state() stands for, with any gradients and weights.
// digest_at: returns the digest of combination i.
constexpr std::string_view state_names[] = {"float32",    "split_float32",          "bfloat16",
                                            "quantized8", "split_float32+bfloat16", "split_float32+quantized8"};
template <class DigestAt>
std::uint64_t digest_of_state(std::string_view name, std::vector<result> const& results, DigestAt const& digest_at)
{
    digest sum;
    for (std::size_t i = 0; i < results.size(); ++i) {
        shard_dtypes const& types = results[i].dtypes;
        if (types_of_state(name, types[shard_array::grad], types[shard_array::weight_out]) == types)
            sum.add(std::uint64_t{digest_at(i)});
    }
    return sum.value();
}
std::uint64_t digest_of_state(std::string_view name, std::vector<result> const& results)
{
    return digest_of_state(name, results, [&](std::size_t i) { return results[i].digest; });
}

void print_json(std::vector<result> const& results, std::uint64_t overall, executor const& cpu, unsigned threads,
                bool same)
{
    std::printf("{\"digest\": \"%016" PRIx64 "\", \"expected\": \"%016" PRIx64 "\", \"same\": %s, \"isa\": \"%s\", "
                "\"threads\": %u, \"pus\": \"%s\", \"steps\": %" PRIu64 ", \"combinations\": [",
                overall, expected[format_count], same ? "true" : "false", name(cpu.tier()).data(), threads,
                cpu.team() == nullptr ? "" : to_list(cpu.team()->bound_to()).c_str(), steps);
    for (std::size_t i = 0; i < results.size(); ++i) {
        std::printf("%s\n  {", i == 0 ? "" : ",");
        for (std::size_t a = 0; a < 5; ++a)
            std::printf("\"%s\": \"%s\", ", shard_array::names[a], name(results[i].dtypes[a]).data());
        std::printf("\"digest\": \"%016" PRIx64 "\"}", results[i].digest);
    }
    std::printf("\n], \"states\": {");
    for (std::string_view const name : state_names)
        std::printf("%s\"%s\": \"%016" PRIx64 "\"", name == state_names[0] ? "" : ", ", name.data(),
                    digest_of_state(name, results));
    std::printf("}}\n");
}

void print_table(std::vector<result> const& results, std::uint64_t overall, executor const& cpu, unsigned threads,
                 bool same)
{
    for (char const* array : std::span(shard_array::names).first(shard_arrays))
        std::printf("%-14s", array);
    std::printf("digest\n");
    for (std::size_t i = 0; i < results.size(); ++i) {
        for (dtype const type : results[i].dtypes)
            std::printf("%-14s", type == dtype::none ? "-" : name(type).data());
        std::printf("%016" PRIx64 "%s\n", results[i].digest, results[i].digest == expected[i] ? "" : "  DIFFERS");
    }
    std::printf("\nwhat --state of `adamant plan` calls\n");
    for (std::string_view const name : state_names) {
        std::uint64_t const digest = digest_of_state(name, results);
        std::uint64_t const known = digest_of_state(name, results, [](std::size_t i) { return expected[i]; });
        std::printf("%-25s %016" PRIx64 "%s\n", name.data(), digest, digest == known ? "" : "  DIFFERS");
    }
    std::printf("overall digest %016" PRIx64 "  isa %s  threads %u\n", overall, name(cpu.tier()).data(), threads);
    if (threads < cpu.threads())
        std::printf("(of %u threads: the arrays have work for 8 at most)\n", cpu.threads());
    if (team const* const all = cpu.team().get(); all != nullptr)
        std::fputs(threads_text(all->size(), all->bound() ? all->bound_to() : pu_set{}).c_str(), stdout);
    if (same)
        std::printf("the same bits as on every other machine\n");
}

} // namespace

int verify(arguments& options)
{
    // The smallest slices, so that every thread has work on arrays this short.
    executor_options request{.tier = parse_isa(options.value("--isa", "automatic")),
                             .threads = options.number("--threads", 0, 0, 4096),
                             .min_slice_elems = 1};
    bool const json = options.flag("--json");
    options.check_empty();
    executor const cpu(request);

    unsigned threads = 0;
    std::vector<result> results;
    digest all;
    for (shard_format const& format : all_formats()) {
        result const item{format.types, trajectory(cpu, format, threads)};
        all.add(item.digest);
        results.push_back(item);
    }

    auto const differs =
        std::ranges::mismatch(results, expected, {}, [](result const& item) { return item.digest; }).in1;
    bool const same = differs == results.end() && all.value() == expected[format_count];
    if (json)
        print_json(results, all.value(), cpu, threads, same);
    else
        print_table(results, all.value(), cpu, threads, same);
    if (same)
        return 0;
    std::string difference = "the overall digest differs from the expected one";
    if (differs != results.end()) {
        difference = "the bits differ from every other machine's, first for";
        for (std::size_t a = 0; a < 5; ++a)
            difference +=
                std::string(a == 0 ? " " : ", ") + shard_array::names[a] + " " + std::string(name(differs->dtypes[a]));
    }
    std::fprintf(stderr, "adamant verify: %s (isa %s, %u threads). Please report this with the CPU's name.\n",
                 difference.c_str(), name(cpu.tier()).data(), threads);
    return 1;
}

} // namespace cli
