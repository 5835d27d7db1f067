// SPDX-License-Identifier: Apache-2.0
// Runs a list of unequal parts on an executor, in parallel if they are large enough.
#pragma once

#include <cstddef>

#include <adamant/executor.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Calls work(i) once for each i below count, in any order, on as many of the executor's threads as a step of `elems`
// elements uses; in the calling thread if these are few. Throws what work and team::submit() throw.
template <class Work>
void for_each_part(executor const& cpu, std::size_t count, std::size_t elems, Work const& work)
{
    auto const run_range = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            work(i);
    };
    if (count < 2 || cpu.works_itself(elems))
        run_range(0, count);
    else
        cpu.team()->run(
            count, [&](unsigned, std::size_t begin, std::size_t end) { run_range(begin, end); },
            cpu.chunks(elems).threads);
}

} // namespace detail
ADAMANT_END_NAMESPACE
