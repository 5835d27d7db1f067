// SPDX-License-Identifier: Apache-2.0
// Finds the set of whole shards whose number of elements is nearest to a target. Pure.
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

// Shards of the same size.
struct size_class {
    std::size_t elems;
    std::size_t shards;
};

struct nearest_set {
    std::vector<std::size_t> counts; // number of shards of each class
    std::size_t elems = 0;
    bool proven = true; // no other set is better
};

inline std::size_t distance(std::size_t a, std::size_t b) noexcept
{
    return a < b ? b - a : a - b;
}

// All subset sums of the shards up to `most`, in units of `unit` elements. Adds one bundle of equal shards after the
// other; bundles of 1, 2, 4, ... shards and the rest make every number of shards of a class. Keeps the bundle that
// first reaches a sum, from which set_of() reconstructs the set.
class subset_sums {
public:
    subset_sums(std::span<size_class const> classes, std::size_t unit, std::size_t most)
        : reached_(most / 64 + 1), first_bundle_(most + 1, none)
    {
        reached_[0] = 1;
        for (std::size_t c = 0; c < classes.size(); ++c) {
            std::size_t remaining = classes[c].shards;
            for (std::size_t bundle_shards = 1; remaining != 0; bundle_shards *= 2) {
                bundle_shards = std::min(bundle_shards, remaining);
                remaining -= bundle_shards;
                // Rounds the weight of the whole bundle, so that the errors of its shards do not accumulate.
                std::size_t const weight = (bundle_shards * classes[c].elems + unit / 2) / unit;
                if (weight == 0 || weight > most) // rounds to no unit, or exceeds every sum of interest
                    continue;
                bundles_.push_back({c, bundle_shards, weight});
                add(most);
            }
        }
    }

    [[nodiscard]] bool has(std::size_t sum) const { return (reached_[sum / 64] >> (sum % 64) & 1) != 0; }
    // The number of shards of each class in the set that makes this sum.
    [[nodiscard]] std::vector<std::size_t> set_of(std::size_t sum, std::size_t classes) const
    {
        std::vector<std::size_t> counts(classes);
        while (sum != 0) {
            bundle const& last = bundles_[first_bundle_[sum]];
            counts[last.class_index] += last.shards;
            sum -= last.weight;
        }
        return counts;
    }

private:
    struct bundle {
        std::size_t class_index;
        std::size_t shards;
        std::size_t weight;
    };
    static constexpr std::uint32_t none = ~0u;

    void add(std::size_t most)
    {
        std::size_t const shift = bundles_.back().weight;
        std::size_t const words = shift / 64;
        std::size_t const bits = shift % 64;
        // Downwards, so that a word is updated only after the words above it have read its old value.
        for (std::size_t w = reached_.size(); w-- > words;) {
            std::uint64_t moved = reached_[w - words] << bits;
            if (bits != 0 && w > words)
                moved |= reached_[w - words - 1] >> (64 - bits);
            std::uint64_t added = moved & ~reached_[w];
            reached_[w] |= added;
            for (; added != 0; added &= added - 1)
                if (std::size_t const sum = w * 64 + static_cast<std::size_t>(std::countr_zero(added)); sum <= most)
                    first_bundle_[sum] = static_cast<std::uint32_t>(bundles_.size() - 1);
        }
    }

    std::vector<bundle> bundles_;
    std::vector<std::uint64_t> reached_;
    std::vector<std::uint32_t> first_bundle_; // index of the bundle that first reached each sum
};

// Finds the set of shards with at least `least` and at most `most` elements whose number of elements is nearest to
// `target`, which is between them; of two equally near sets the smaller one. If no set within the bounds is found,
// returns one outside. If best().proven, no set is within the bounds, or none is nearer.
class nearest_subset {
public:
    nearest_subset(std::span<size_class const> classes, std::size_t target, std::size_t least, std::size_t most)
        : classes_(classes), target_(target), least_(least), most_(most)
    {
        best_.counts.assign(classes.size(), 0);
        std::size_t total = 0;
        std::size_t unit = 0;
        std::size_t bundles = 1;
        std::size_t largest = 0;
        for (size_class const& c : classes) {
            total += c.elems * c.shards;
            unit = std::gcd(unit, c.elems);
            largest = std::max(largest, c.elems);
            bundles += static_cast<std::size_t>(std::bit_width(c.shards));
        }
        if (unit == 0)
            return;
        // Limits the search to some 40 MB and some tenths of a second.
        std::size_t const most_units =
            std::clamp((std::size_t{1} << 33) / bundles, std::size_t{1} << 16, std::size_t{1} << 23);
        // Adding shards one by one passes `target` in a step of at most the largest shard, so no sum beyond `top` is
        // nearer.
        std::size_t const top = std::min({total, most, target + largest});
        best_.proven = top / unit <= most_units;
        if (!best_.proven)
            unit = top / most_units + 1;
        search(unit, (top + unit / 2) / unit);
        if (!best_.proven)
            improve();
        best_.proven = best_.proven || best_.elems == target;
    }
    [[nodiscard]] nearest_set const& best() const noexcept { return best_; }

private:
    [[nodiscard]] bool is_within(std::size_t elems) const noexcept { return elems >= least_ && elems <= most_; }
    // Whether a set of this many elements is better than the current best.
    [[nodiscard]] bool is_better(std::size_t elems) const noexcept
    {
        if (is_within(elems) != is_within(best_.elems))
            return is_within(elems);
        if (elems > most_)
            return false;
        std::size_t const new_distance = distance(elems, target_);
        std::size_t const best_distance = distance(best_.elems, target_);
        return new_distance < best_distance || (new_distance == best_distance && elems < best_.elems);
    }
    // Searches from the target outwards, the smaller sum first. If units are exact, the first sum within the bounds
    // is the nearest. Otherwise sums are approximate, so the search tries several sums within the bounds, and stops
    // after a limited number of sums if few are within the bounds.
    void search(std::size_t unit, std::size_t last)
    {
        subset_sums const sums(classes_, unit, last);
        std::size_t const middle =
            std::min(last, (target_ + (unit - 1) / 2) / unit); // ties round down, to the smaller sum
        std::size_t const enough = best_.proven ? 1 : 64;
        std::size_t const patience = 1024;
        std::size_t sums_within = 0;
        std::size_t tried = 0;
        auto const try_sum = [&](std::size_t sum) {
            if (!sums.has(sum) || (best_.proven && !is_within(sum * unit)))
                return;
            ++tried;
            std::vector<std::size_t> counts = sums.set_of(sum, classes_.size());
            std::size_t elems = 0;
            for (std::size_t c = 0; c < classes_.size(); ++c)
                elems += counts[c] * classes_[c].elems;
            sums_within += is_within(elems);
            if (is_better(elems)) {
                best_.counts = std::move(counts);
                best_.elems = elems;
            }
        };
        for (std::size_t d = 0; d <= std::max(middle, last - middle) && sums_within < enough && tried < patience; ++d) {
            if (d <= middle)
                try_sum(middle - d);
            if (d != 0 && d <= last - middle)
                try_sum(middle + d);
        }
    }
    // Removes the error of rounding to units: adds or removes shards of one size while that improves the set.
    void improve()
    {
        for (bool changed = true; changed;) {
            changed = false;
            for (std::size_t c = 0; c < classes_.size(); ++c) {
                std::size_t const elems = classes_[c].elems;
                std::size_t const change = std::max(std::size_t{1}, distance(best_.elems, target_) / elems);
                std::size_t const more = std::min(change, classes_[c].shards - best_.counts[c]);
                std::size_t const less = std::min(change, best_.counts[c]);
                if (is_better(best_.elems + more * elems)) {
                    best_.counts[c] += more;
                    best_.elems += more * elems;
                    changed = true;
                } else if (is_better(best_.elems - less * elems)) {
                    best_.counts[c] -= less;
                    best_.elems -= less * elems;
                    changed = true;
                }
            }
        }
    }

    std::span<size_class const> classes_;
    std::size_t target_, least_, most_;
    nearest_set best_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
