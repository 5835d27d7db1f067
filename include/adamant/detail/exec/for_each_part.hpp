// SPDX-License-Identifier: Apache-2.0
// Parts of unlike kinds, in parallel where they are worth it.
#pragma once

#include <cstddef>

#include <adamant/executor.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Calls work(i) once for each i below count, in any order, with the executor's threads; in the calling thread where all
// parts together have few elements. Throws what work and team::submit() throw.
template <class Work>
void for_each_part(executor const& cpu, std::size_t count, std::size_t elems, Work const& work)
{
    auto const some = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            work(i);
    };
    if (count < 2 || cpu.works_itself(elems))
        some(0, count);
    else
        cpu.team()->run(count, [&](unsigned, std::size_t begin, std::size_t end) { some(begin, end); });
}

} // namespace detail
ADAMANT_END_NAMESPACE
