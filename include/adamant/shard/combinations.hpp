// SPDX-License-Identifier: Apache-2.0
// Every combination of element types that a shard can have, for code that must serve them all: the verifier, tests.
#pragma once

#include <cstddef>

#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// The element types of a shard as one type; names() and the rest come from it.
template <element_type Param, element_type Grad, moment_type ExpAvg, moment_type ExpAvgSq,
          weight_out_type<Param> WeightOut>
struct combination {
    using shard_type = shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    static constexpr dtype dtypes[] = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                       dtype_of<WeightOut>};
};

namespace detail {

template <class... Types>
struct type_list {};

template <class Visitor, class P, class G, class M, class V>
void visit_weight_outs(Visitor& visit)
{
    visit(combination<P, G, M, V, void>{});
    if constexpr (std::is_same_v<P, float>) {
        visit(combination<P, G, M, V, bfloat16>{});
        visit(combination<P, G, M, V, float16>{});
    }
}
template <class Visitor, class P, class G, class... M>
void visit_moments(Visitor& visit, type_list<M...>)
{
    (visit_weight_outs<Visitor, P, G, M, float>(visit), ...);
    (visit_weight_outs<Visitor, P, G, M, bfloat16>(visit), ...);
}
template <class Visitor, class P, class... G>
void visit_grads(Visitor& visit, type_list<G...>)
{
    (visit_moments<Visitor, P, G>(visit, type_list<float, bfloat16>{}), ...);
}

} // namespace detail

// How many there are: 3 params x 3 grads x 2 x 2 moments, and for float params twice as many again with a weight_out.
inline constexpr std::size_t combination_count = 60;

// Calls visit(combination<...>{}) for each of them, always in the same order. Instantiates whatever visit does for all
// of them, which takes a compiler a while.
template <class Visitor>
void for_each_combination(Visitor visit)
{
    using all = detail::type_list<float, bfloat16, float16>;
    detail::visit_grads<Visitor, float>(visit, all{});
    detail::visit_grads<Visitor, bfloat16>(visit, all{});
    detail::visit_grads<Visitor, float16>(visit, all{});
}

ADAMANT_END_NAMESPACE
