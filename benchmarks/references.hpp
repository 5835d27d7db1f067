// SPDX-License-Identifier: Apache-2.0
// What steps and sums are held against, as contenders of a race: the loops of limit.hpp in all their variants, and the
// loop that a user would write. For the types of arrays.hpp.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <adamant/step.hpp>

#include "arrays.hpp"
#include "plain.hpp"
#include "race.hpp"

namespace bench {

using race::contender;
using race::part_in_race;

// So few that rows take it that they lie in a cache, as a step does.
constexpr bool in_cache(std::size_t elems)
{
    return elems < adamant::stream_weight_out_from_elems;
}

// How often a gradient is read: a second time by what has to know its norm first.
enum class gradient_reads { once, twice };

// The limits of a step over n elements: loops that move what it moves; and in cache, where that takes next to no time,
// one that divides as often as it does. prepare: as the step's. All refer to the executor and the arrays. The loops
// take 64 elements at a time, and leave out an end of less than that.
template <class Shard>
void add_limits(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n,
                gradient_reads reads = gradient_reads::once, std::function<void()> const& prepare = {});

// A loop that moves the bytes of a step over float32 moments, and does as many square roots and divisions. Beside it, a
// row shows how much of the time for arithmetic a step hides.
template <class Shard>
void add_moving_dividing(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n);

// Those of a sum: loops that read n elements.
template <class T>
void add_reads(std::vector<contender>& contenders, executor const& cpu, T const* array, std::size_t n);

// The plain loop that has the same types, where one is written; whether it is. It takes as many threads of OpenMP.
template <class Shard>
bool add_plain(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n,
               adamant::coefficients const& c);

inline plain::coefficients plain_coefficients(adamant::coefficients const& c)
{
    return {c.beta1, c.beta2, c.inv_sqrt_bias2, c.eps, -c.neg_step_size, c.decay};
}

} // namespace bench
