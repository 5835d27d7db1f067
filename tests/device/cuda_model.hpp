// SPDX-License-Identifier: Apache-2.0
// What the passes of a device leave, by the reference implementation: pieces in one stretch of host memory, laid out as
// on the device.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/reference.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/quantized8.hpp>
#include <adamant/detail/shard/offload_shard.hpp>

#include "catch.hpp"

namespace test {

namespace arrays = adamant::shard_array;
using adamant::dtype;

// One piece; its arrays by their offsets in the stretch.
struct model_piece {
    std::array<dtype, 6> types;
    std::size_t elems;
    std::size_t group = 0;
    std::size_t at[6] = {};
    std::size_t first_block = 0;
    adamant::param_position position = {};
    std::size_t changed = 0; // offset of its changed bits; 0: not tracked
};

class model {
public:
    std::vector<model_piece> pieces;
    std::vector<std::byte> image;
    std::vector<adamant::grad_squares> squares;
    std::vector<std::uint8_t> recorded;

    // Between arrays there are bytes that nobody writes.
    void add(std::array<dtype, 6> const& types, std::size_t elems, std::size_t group = 0)
    {
        // The first element of every other piece is near the end of a line of random numbers.
        model_piece p{types, elems, group, {}, squares.size(), {pieces.size(), pieces.size() % 2 * 65000}};
        for (std::size_t a = 0; a < 6; ++a) {
            p.at[a] = image.size();
            image.resize((image.size() + array_bytes(types[a], elems) + 15) / 16 * 16 + 16, std::byte{0x5a});
        }
        if (pieces.size() % 3 != 0) {
            p.changed = image.size();
            image.resize((image.size() + adamant::device_piece::changed_bytes(elems) + 15) / 16 * 16 + 16,
                         std::byte{0x5a});
        }
        pieces.push_back(p);
        squares.resize(squares.size() + (elems + adamant::norm_block_elems - 1) / adamant::norm_block_elems);
        recorded.assign(squares.size(), 0);
        records_.resize(squares.size());
    }

    // The image with the bits of changed weights cleared: a rollback leaves those of the step.
    [[nodiscard]] std::vector<std::byte> image_without_changes() const
    {
        std::vector<std::byte> copy = image;
        for (model_piece const& p : pieces)
            for (std::size_t i = 0; i < adamant::device_piece::changed_bytes(p.elems) && p.changed != 0; ++i)
                copy[p.changed + i] = {};
        return copy;
    }
    [[nodiscard]] std::byte* element(model_piece const& p, std::size_t array, std::size_t i)
    {
        return image.data() + p.at[array] + i * size_bytes(p.types[array]);
    }
    static bool has_codes(model_piece const& p) { return p.types[arrays::exp_avg] == dtype::quantized8; }
    // The group of codes that element i is in.
    [[nodiscard]] std::byte* group(model_piece const& p, std::size_t array, std::size_t i)
    {
        return element(p, array, i / adamant::quantized_group_elems);
    }
    [[nodiscard]] float get(model_piece const& p, std::size_t array, std::size_t i)
    {
        if (p.types[array] == dtype::split_float32)
            return adamant::joined_master(adamant::load_unaligned<adamant::bfloat16>(element(p, arrays::weight_out, i)),
                                          adamant::load_unaligned<adamant::split_float32>(element(p, array, i)));
        return load(element(p, array, i), p.types[array]);
    }
    void set(model_piece const& p, std::size_t array, std::size_t i, float x)
    {
        switch (p.types[array]) {
        case dtype::float32: adamant::store_unaligned(element(p, array, i), x); break;
        case dtype::bfloat16:
            adamant::store_unaligned(element(p, array, i), adamant::narrow<adamant::bfloat16>(x));
            break;
        case dtype::float16:
            adamant::store_unaligned(element(p, array, i), adamant::narrow<adamant::float16>(x));
            break;
        case dtype::split_float32: {
            adamant::split_parts const parts = adamant::split_master(x);
            adamant::store_unaligned(element(p, array, i), parts.low);
            adamant::store_unaligned(element(p, arrays::weight_out, i), parts.weight);
            break;
        }
        case dtype::quantized8: { // x is the scale where the element is its group's first, and the code has bits of it
            std::byte* const at = group(p, array, i);
            if (i % adamant::quantized_group_elems == 0) // what follows the last element too
                fill_group(at, x);
            at[i % adamant::quantized_group_elems] = static_cast<std::byte>(bits(x) >> 10);
            break;
        }
        case dtype::none: break;
        }
    }
    // As tests/kernels/kernels.cpp does: hostile values meet ordinary ones, too.
    void fill(model_piece const& p, values kind, random_bits& random)
    {
        auto const some = [&](int low, int high) {
            return value_of(random.below(4) == 0 ? values::ordinary : kind, random, low, high);
        };
        for (std::size_t i = 0; i < p.elems; ++i) {
            set(p, arrays::weight_out, i, 7);
            set(p, arrays::param, i, some(-9, -4));
            set(p, arrays::exp_avg, i, some(-18, -4));
            float const v = some(-36, -8);
            set(p, arrays::exp_avg_sq, i, random.below(16) == 0 ? v : from_bits(bits(v) & adamant::float_abs_mask));
            set(p, arrays::accumulator, i, some(-16, -2));
            if (kind == values::any_bits && random.below(2) == 0) {
                std::uint64_t const any = random();
                std::memcpy(element(p, arrays::param, i), &any, size_bytes(p.types[arrays::param]));
            }
        }
        if (has_codes(p) && random.below(2) == 0)
            encode_some(p, some, random);
        fill_gradient(p, kind, random);
    }
    void fill_gradient(model_piece const& p, values kind, random_bits& random)
    {
        for (std::size_t i = 0; i < p.elems; ++i) {
            set(p, arrays::grad, i, value_of(random.below(4) == 0 ? values::ordinary : kind, random, -16, -2));
            if (kind == values::any_bits && random.below(2) == 0) {
                std::uint64_t const any = random();
                std::memcpy(element(p, arrays::grad, i), &any, size_bytes(p.types[arrays::grad]));
            }
        }
    }

    void run(adamant::device_pass const& pass)
    {
        adamant::detail::rounded_to_nearest([&] {
            for (std::uint32_t const i : pass.pieces)
                for (std::size_t b = 0; b * adamant::norm_block_elems < pieces[i].elems; ++b)
                    run_block(pass, i, b);
        });
    }
    void accumulate(std::size_t piece, bool first)
    {
        adamant::detail::rounded_to_nearest([&] {
            model_piece const& p = pieces[piece];
            for (std::size_t i = 0; i < p.elems; ++i) {
                float const g = get(p, arrays::grad, i);
                store(element(p, arrays::accumulator, i), p.types[arrays::accumulator],
                      first ? canonical(g) : adamant::reference::added(g, get(p, arrays::accumulator, i)));
            }
        });
    }
    void round_weights()
    {
        adamant::detail::rounded_to_nearest([&] {
            for (model_piece const& p : pieces)
                round(p, 0, p.elems);
        });
    }
    void forget_records() { recorded.assign(recorded.size(), 0); }

    // Where a stretch differs from this one; empty where it does not.
    [[nodiscard]] std::string difference(std::vector<std::byte> const& found) const
    {
        auto const at = std::mismatch(image.begin(), image.end(), found.begin()).first;
        if (at == image.end())
            return {};
        auto const byte = static_cast<std::size_t>(at - image.begin());
        for (std::size_t i = 0; i < pieces.size(); ++i)
            for (std::size_t a = 0; a < 6; ++a) {
                model_piece const& p = pieces[i];
                std::size_t const size = size_bytes(p.types[a]);
                if (byte < p.at[a] || byte >= p.at[a] + array_bytes(p.types[a], p.elems))
                    continue;
                if (p.types[a] == dtype::quantized8) {
                    char text[160];
                    std::snprintf(text, sizeof text,
                                  "piece %zu array %zu group %zu byte %zu (%zu elements) is %02x, expected %02x", i, a,
                                  (byte - p.at[a]) / size, (byte - p.at[a]) % size, p.elems,
                                  static_cast<unsigned>(found[byte]), static_cast<unsigned>(image[byte]));
                    return text;
                }
                std::size_t const element = (byte - p.at[a]) / size;
                std::uint32_t mine = 0;
                std::uint32_t theirs = 0;
                std::memcpy(&mine, image.data() + p.at[a] + element * size, size);
                std::memcpy(&theirs, found.data() + p.at[a] + element * size, size);
                char text[160];
                std::snprintf(text, sizeof text, "piece %zu array %zu element %zu of %zu is %08x, expected %08x", i, a,
                              element, p.elems, theirs, mine);
                return text;
            }
        return "byte " + std::to_string(byte) + ", which is in no array, was written";
    }

private:
    static void fill_group(std::byte* group, float scale)
    {
        std::memset(group, 0x5b, adamant::quantized_group_elems);
        adamant::store_unaligned(group + adamant::quantized_group_elems, scale);
    }
    // Moments that were encoded, some groups all zeros.
    template <class Value>
    void encode_some(model_piece const& p, Value const& some, random_bits& random)
    {
        constexpr std::size_t together = adamant::quantized_group_elems;
        for (std::size_t i = 0; i < p.elems; i += together) {
            float m[together] = {};
            float v[together] = {};
            std::size_t const n = std::min(together, p.elems - i);
            for (std::size_t k = 0; k < n && random.below(8 * n) != 0; ++k) {
                m[k] = some(-18, -4);
                v[k] = from_bits(bits(some(-36, -8)) & adamant::float_abs_mask);
            }
            adamant::encode_group(adamant::exp_avg_curve, m, n, false, {}, group(p, arrays::exp_avg, i));
            adamant::encode_group(adamant::exp_avg_sq_curve, v, n, false, {}, group(p, arrays::exp_avg_sq, i));
        }
    }
    static float load(std::byte const* at, dtype type)
    {
        return type == dtype::float32    ? adamant::load_unaligned<float>(at)
               : type == dtype::bfloat16 ? adamant::widen(adamant::load_unaligned<adamant::bfloat16>(at))
                                         : adamant::widen(adamant::load_unaligned<adamant::float16>(at));
    }
    static void store(std::byte* at, dtype type, float x)
    {
        if (type == dtype::float32)
            adamant::store_unaligned(at, adamant::reference::stored<float>(x));
        else if (type == dtype::bfloat16)
            adamant::store_unaligned(at, adamant::reference::stored<adamant::bfloat16>(x));
        else
            adamant::store_unaligned(at, adamant::reference::stored<adamant::float16>(x));
    }
    static void store(std::byte* at, dtype type, float x, bool stochastic, std::uint16_t random)
    {
        if (stochastic && type == dtype::bfloat16)
            adamant::store_unaligned(at, adamant::stochastically_rounded(x, random));
        else
            store(at, type, x);
    }
    static float canonical(float x) { return adamant::is_nan(x) ? from_bits(adamant::canonical_nan_bits) : x; }

    void round(model_piece const& p, std::size_t begin, std::size_t end)
    {
        if (p.types[arrays::weight_out] != dtype::none && p.types[arrays::param] != dtype::split_float32)
            for (std::size_t i = begin; i < end; ++i)
                store(element(p, arrays::weight_out, i), p.types[arrays::weight_out],
                      canonical(get(p, arrays::param, i)));
    }

    // As detail::cpu_backend and detail::offload_shard do it, with records that are copies.
    void run_block(adamant::device_pass const& pass, std::size_t piece, std::size_t b)
    {
        using adamant::block_pass;
        model_piece const& p = pieces[piece];
        std::size_t const begin = b * adamant::norm_block_elems;
        std::size_t const n = std::min(adamant::norm_block_elems, p.elems - begin);
        std::size_t const block = p.first_block + b;
        if ((pass.pass == block_pass::rest && recorded[block] != 0) ||
            (pass.pass == block_pass::rollback && recorded[block] == 0))
            return;
        if ((pass.pass == block_pass::rollback || pass.pass == block_pass::redo) && recorded[block] != 0) {
            copy_state(p, begin, n, block, false);
            recorded[block] = 0;
            if (pass.pass == block_pass::rollback) {
                round(p, begin, begin + n);
                return;
            }
        }
        bool const summed = pass.summed[piece] != 0;
        std::vector<float> g(n);
        for (std::size_t i = 0; i < n; ++i) {
            g[i] = get(p, arrays::grad, begin + i);
            if (summed)
                g[i] = adamant::reference::stored<float>(
                    adamant::reference::added(g[i], get(p, arrays::accumulator, begin + i)));
        }
        adamant::grad_squares const found =
            adamant::reference::block_squares<float>(reinterpret_cast<std::byte const*>(g.data()), n);
        if (pass.pass <= block_pass::speculate || pass.pass == block_pass::compare)
            squares[block] = found;
        if (pass.pass == block_pass::measure || pass.pass == block_pass::compare)
            return;
        adamant::group_step const& now = (pass.pass == block_pass::speculate ? pass.speculated : pass.settled)[p.group];
        bool const zero = now.rules.zero_nonfinite && found.nonfinite != 0;
        if (zero || now.rules.limited)
            for (float& x : g)
                x = adamant::reference::clamped(x, zero, now.rules.limited ? now.rules.scale : 1.0f,
                                                now.rules.limited ? now.rules.bound
                                                                  : from_bits(adamant::float_infinity_bits));
        if (pass.pass == block_pass::speculate || pass.keep_records) {
            copy_state(p, begin, n, block, true);
            recorded[block] = 1;
        }
        std::vector<float> m(adamant::norm_block_elems);
        std::vector<float> v(adamant::norm_block_elems);
        get_moments(p, begin, n, m.data(), v.data());
        for (std::size_t i = 0; i < n; ++i) {
            std::size_t const e = begin + i;
            adamant::reference::element const stepped =
                adamant::reference::update({get(p, arrays::param, e), m[i], v[i]}, g[i], now.c);
            adamant::rounding_lines const lines = adamant::rounding_lines_at(now.c.rounding.key, p.position, e);
            bool const is_split = p.types[arrays::param] == dtype::split_float32;
            std::uint32_t const published = published_bits(p, e);
            if (is_split)
                set(p, arrays::param, e, stepped.param);
            else
                store(element(p, arrays::param, e), p.types[arrays::param], stepped.param, now.c.rounding.param,
                      adamant::random_half(lines.param, e));
            m[i] = stepped.exp_avg;
            v[i] = stepped.exp_avg_sq;
            if (!has_codes(p)) {
                store(element(p, arrays::exp_avg, e), p.types[arrays::exp_avg], stepped.exp_avg);
                store(element(p, arrays::exp_avg_sq, e), p.types[arrays::exp_avg_sq], stepped.exp_avg_sq,
                      now.c.rounding.exp_avg_sq, adamant::random_half(lines.exp_avg_sq, e));
            }
            if (p.types[arrays::weight_out] != dtype::none && !is_split)
                store(element(p, arrays::weight_out, e), p.types[arrays::weight_out], stepped.param);
            if (p.changed != 0) {
                std::byte& four = image[p.changed + e / 4];
                if (e % 4 == 0)
                    four = {};
                if (published_bits(p, e) != published)
                    four |= std::byte{1} << e % 4;
            }
        }
        if (has_codes(p))
            encode_moments(p, begin, n, m.data(), v.data(), now.c.rounding);
    }
    // Of the weight that an element publishes.
    [[nodiscard]] std::uint32_t published_bits(model_piece const& p, std::size_t i)
    {
        namespace reference = adamant::reference;
        dtype const out = p.types[arrays::weight_out];
        if (p.types[arrays::param] == dtype::float32 && out != dtype::none)
            return out == dtype::bfloat16 ? reference::rounded_bits<adamant::bfloat16>(get(p, arrays::param, i))
                                          : reference::rounded_bits<adamant::float16>(get(p, arrays::param, i));
        std::size_t const array = out == dtype::none ? arrays::param : arrays::weight_out;
        std::uint32_t bits = 0;
        std::memcpy(&bits, element(p, array, i), size_bytes(p.types[array]));
        return bits;
    }
    void get_moments(model_piece const& p, std::size_t begin, std::size_t n, float* m, float* v)
    {
        for (std::size_t i = 0; i < n; ++i)
            if (!has_codes(p)) {
                m[i] = get(p, arrays::exp_avg, begin + i);
                v[i] = get(p, arrays::exp_avg_sq, begin + i);
            } else if (i % adamant::quantized_group_elems == 0) {
                adamant::decode_exp_avg(group(p, arrays::exp_avg, begin + i), m + i);
                adamant::decode_exp_avg_sq(group(p, arrays::exp_avg_sq, begin + i), v + i);
            }
    }
    void encode_moments(model_piece const& p, std::size_t begin, std::size_t n, float const* m, float const* v,
                        adamant::step_rounding const& rounding)
    {
        constexpr std::size_t together = adamant::quantized_group_elems;
        for (std::size_t i = 0; i < n; i += together) {
            std::size_t const e = begin + i;
            adamant::rounding_line const line =
                adamant::rounding_lines_at(rounding.key, p.position, e).exp_avg_sq.from(e);
            std::size_t const count = std::min(together, n - i);
            adamant::encode_group(adamant::exp_avg_curve, m + i, count, rounding.exp_avg_sq, line,
                                  group(p, arrays::exp_avg, e));
            adamant::encode_group(adamant::exp_avg_sq_curve, v + i, count, rounding.exp_avg_sq, line,
                                  group(p, arrays::exp_avg_sq, e));
        }
    }
    void copy_state(model_piece const& p, std::size_t begin, std::size_t n, std::size_t block, bool to_record)
    {
        std::vector<std::byte>& record = records_[block];
        if (to_record)
            record.clear();
        std::size_t offset = 0;
        for (std::size_t const a : adamant::state_arrays) {
            if (a == arrays::weight_out && p.types[arrays::param] != dtype::split_float32)
                continue;
            std::byte* const at = image.data() + p.at[a] + array_bytes(p.types[a], begin);
            std::size_t const size = array_bytes(p.types[a], n);
            if (to_record)
                record.insert(record.end(), at, at + size);
            else
                std::memcpy(at, record.data() + offset, size);
            offset += size;
        }
    }

    std::vector<std::vector<std::byte>> records_; // of each block
};

} // namespace test
