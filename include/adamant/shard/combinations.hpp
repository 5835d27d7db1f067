// SPDX-License-Identifier: Apache-2.0
// Every combination of element types that a shard can have, for code that must serve them all: the verifier, tests.
#pragma once

#include <array>
#include <cstddef>

#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// The element types of a shard as one type.
template <element_type Param, element_type Grad, moment_type ExpAvg, moment_type ExpAvgSq,
          weight_out_type<Param> WeightOut>
struct combination {
    using shard_type = shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    static constexpr std::array<dtype, 5> dtypes = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>,
                                                    dtype_of<ExpAvgSq>, dtype_of<WeightOut>};
};

// How many there are: 3 params x 3 grads x 2 x 2 moments, and for float params twice as many again with a weight_out.
inline constexpr std::size_t combination_count = 60;

// Calls visit(combination<...>{}) for each of them that has this Param, always in the same order. Instantiates whatever
// visit does for all of them, which takes a compiler a while.
template <element_type Param, class Visitor>
void for_each_combination_of(Visitor visit)
{
    auto const with_moments = [&]<class Grad, class ExpAvg, class ExpAvgSq>() {
        visit(combination<Param, Grad, ExpAvg, ExpAvgSq, void>{});
        if constexpr (std::is_same_v<Param, float>) {
            visit(combination<Param, Grad, ExpAvg, ExpAvgSq, bfloat16>{});
            visit(combination<Param, Grad, ExpAvg, ExpAvgSq, float16>{});
        }
    };
    auto const with_grad = [&]<class Grad>() {
        with_moments.template operator()<Grad, float, float>();
        with_moments.template operator()<Grad, float, bfloat16>();
        with_moments.template operator()<Grad, bfloat16, float>();
        with_moments.template operator()<Grad, bfloat16, bfloat16>();
    };
    with_grad.template operator()<float>();
    with_grad.template operator()<bfloat16>();
    with_grad.template operator()<float16>();
}

ADAMANT_END_NAMESPACE
