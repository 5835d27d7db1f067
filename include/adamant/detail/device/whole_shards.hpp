// SPDX-License-Identifier: Apache-2.0
// The set of whole shards that is nearest to a number of elements. Pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A number of shards of one size.
struct size_class {
    std::size_t elems;
    std::size_t shards;
};

struct nearest_set {
    std::vector<std::size_t> taken; // of each class
    std::size_t elems = 0;
    bool proven = true;
};

inline std::size_t distance(std::size_t a, std::size_t b) noexcept
{
    return a < b ? b - a : a - b;
}

// All sums that some of the shards can have, in units of `unit` elements up to sum `most`, by adding one bundle of
// shards of one size after the other: bundles of 1, 2, 4, ... shards and the rest make every number of them. Where a
// sum is reached first is kept, so the set can be read back.
class subset_sums {
public:
    subset_sums(std::span<size_class const> classes, std::size_t unit, std::size_t most)
        : reached_(most / 64 + 1), by_(most + 1, none)
    {
        reached_[0] = 1;
        for (std::size_t c = 0; c < classes.size(); ++c) {
            std::size_t left = classes[c].shards;
            for (std::size_t many = 1; left != 0; many *= 2) {
                many = std::min(many, left);
                left -= many;
                // Rounded for the bundle as a whole, so that many small errors do not add up.
                std::size_t const weight = (many * classes[c].elems + unit / 2) / unit;
                if (weight == 0 || weight > most) // nothing in these units, or more than any sum that is looked for
                    continue;
                bundles_.push_back({c, many, weight});
                add(most);
            }
        }
    }

    [[nodiscard]] bool has(std::size_t sum) const { return (reached_[sum / 64] >> (sum % 64) & 1) != 0; }
    // How many shards of each class make this sum.
    [[nodiscard]] std::vector<std::size_t> set_of(std::size_t sum, std::size_t classes) const
    {
        std::vector<std::size_t> taken(classes);
        while (sum != 0) {
            bundle const& last = bundles_[by_[sum]];
            taken[last.of] += last.shards;
            sum -= last.weight;
        }
        return taken;
    }

private:
    struct bundle {
        std::size_t of;
        std::size_t shards;
        std::size_t weight;
    };
    static constexpr std::uint32_t none = ~0u;

    void add(std::size_t most)
    {
        std::size_t const shift = bundles_.back().weight;
        std::size_t const words = shift / 64;
        std::size_t const bits = shift % 64;
        // From above, so that each word is still the old one when those above it need it.
        for (std::size_t w = reached_.size(); w-- > words;) {
            std::uint64_t moved = reached_[w - words] << bits;
            if (bits != 0 && w > words)
                moved |= reached_[w - words - 1] >> (64 - bits);
            std::uint64_t fresh = moved & ~reached_[w];
            reached_[w] |= fresh;
            for (; fresh != 0; fresh &= fresh - 1)
                if (std::size_t const sum = w * 64 + static_cast<std::size_t>(std::countr_zero(fresh)); sum <= most)
                    by_[sum] = static_cast<std::uint32_t>(bundles_.size() - 1);
        }
    }

    std::vector<bundle> bundles_;
    std::vector<std::uint64_t> reached_;
    std::vector<std::uint32_t> by_; // the bundle that reached it first
};

// Of the sets of shards of at least `least` and at most `most` elements one whose sum is nearest to `wanted`, which
// lies between them; of two as near the smaller. Where none within these bounds was found, one outside. Only where that
// is proven is there none, or none nearer.
class nearest_subset {
public:
    nearest_subset(std::span<size_class const> classes, std::size_t wanted, std::size_t least, std::size_t most)
        : classes_(classes), wanted_(wanted), least_(least), most_(most)
    {
        found_.taken.assign(classes.size(), 0);
        std::size_t all = 0;
        std::size_t unit = 0;
        std::size_t bundles = 1;
        std::size_t largest = 0;
        for (size_class const& c : classes) {
            all += c.elems * c.shards;
            unit = std::gcd(unit, c.elems);
            largest = std::max(largest, c.elems);
            bundles += static_cast<std::size_t>(std::bit_width(c.shards));
        }
        if (unit == 0)
            return;
        // Some 40 MB and some tenths of a second at most.
        std::size_t const most_units =
            std::clamp((std::size_t{1} << 33) / bundles, std::size_t{1} << 16, std::size_t{1} << 23);
        // Shards taken one after the other come by in steps of the largest at most: nothing beyond this one is nearer.
        std::size_t const top = std::min({all, most, wanted + largest});
        found_.proven = top / unit <= most_units;
        if (!found_.proven)
            unit = top / most_units + 1;
        search(unit, (top + unit / 2) / unit);
        if (!found_.proven)
            improve();
        found_.proven = found_.proven || found_.elems == wanted;
    }
    [[nodiscard]] nearest_set const& found() const noexcept { return found_; }

private:
    [[nodiscard]] bool within(std::size_t elems) const noexcept { return elems >= least_ && elems <= most_; }
    // Whether a set of this many elements is better than the one that was found.
    [[nodiscard]] bool better(std::size_t elems) const noexcept
    {
        if (within(elems) != within(found_.elems))
            return within(elems);
        if (elems > most_)
            return false;
        std::size_t const far = distance(elems, wanted_);
        std::size_t const found_far = distance(found_.elems, wanted_);
        return far < found_far || (far == found_far && elems < found_.elems);
    }
    // From the wanted sum outwards, and down first. In units that are exact the first that lies within the bounds is
    // the nearest. Else sums are about right, so a few are looked at; only this number, where hardly any lies within
    // the bounds.
    void search(std::size_t unit, std::size_t last)
    {
        subset_sums const sums(classes_, unit, last);
        std::size_t const middle =
            std::min(last, (wanted_ + (unit - 1) / 2) / unit); // a half down, for the smaller of two
        std::size_t const enough = found_.proven ? 1 : 64;
        std::size_t const patience = 1024;
        std::size_t seen = 0;
        std::size_t looked = 0;
        auto const look_at = [&](std::size_t sum) {
            if (!sums.has(sum) || (found_.proven && !within(sum * unit)))
                return;
            ++looked;
            std::vector<std::size_t> taken = sums.set_of(sum, classes_.size());
            std::size_t elems = 0;
            for (std::size_t c = 0; c < classes_.size(); ++c)
                elems += taken[c] * classes_[c].elems;
            seen += within(elems);
            if (better(elems)) {
                found_.taken = std::move(taken);
                found_.elems = elems;
            }
        };
        for (std::size_t d = 0; d <= std::max(middle, last - middle) && seen < enough && looked < patience; ++d) {
            if (d <= middle)
                look_at(middle - d);
            if (d != 0 && d <= last - middle)
                look_at(middle + d);
        }
    }
    // What rounding to units has left: more shards of a size, or fewer, while that brings it nearer.
    void improve()
    {
        for (bool again = true; again;) {
            again = false;
            for (std::size_t c = 0; c < classes_.size(); ++c) {
                std::size_t const elems = classes_[c].elems;
                std::size_t const many = std::max(std::size_t{1}, distance(found_.elems, wanted_) / elems);
                std::size_t const more = std::min(many, classes_[c].shards - found_.taken[c]);
                std::size_t const less = std::min(many, found_.taken[c]);
                if (better(found_.elems + more * elems)) {
                    found_.taken[c] += more;
                    found_.elems += more * elems;
                    again = true;
                } else if (better(found_.elems - less * elems)) {
                    found_.taken[c] -= less;
                    found_.elems -= less * elems;
                    again = true;
                }
            }
        }
    }

    std::span<size_class const> classes_;
    std::size_t wanted_, least_, most_;
    nearest_set found_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
