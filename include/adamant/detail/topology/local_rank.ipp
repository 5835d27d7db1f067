// SPDX-License-Identifier: Apache-2.0
// Definition of rank_from_environment() of local_rank.hpp.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>

#include <adamant/detail/topology/local_rank.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

[[gnu::noinline]] inline std::optional<unsigned> read_number(char const* variable)
{
    char const* const value = std::getenv(variable);
    if (value == nullptr || *value == '\0')
        return std::nullopt;
    unsigned number = 0;
    for (char const* c = value; *c != '\0'; ++c) {
        if (*c < '0' || *c > '9' || number > 1000000)
            throw_invalid_argument({variable, " is \"", value, "\", which is not a whole number"});
        number = number * 10 + static_cast<unsigned>(*c - '0');
    }
    return number;
}

// Parses Slurm's list of tasks of each node, "4(x2),3", and returns those of node number `node`.
[[gnu::noinline]] inline std::optional<unsigned> slurm_tasks(std::string_view text, unsigned node)
{
    std::size_t position = 0;
    auto const digits = [&]() -> std::optional<unsigned> {
        unsigned value = 0;
        std::size_t const begin = position;
        for (; position < text.size() && text[position] >= '0' && text[position] <= '9' && position < begin + 7;
             ++position)
            value = value * 10 + static_cast<unsigned>(text[position] - '0');
        return position == begin ? std::nullopt : std::optional(value);
    };
    for (;;) {
        std::optional<unsigned> const tasks = digits();
        std::optional<unsigned> nodes = 1;
        if (text.substr(position, 2) == "(x") {
            position += 2;
            nodes = digits();
            if (text.substr(position, 1) != ")")
                return std::nullopt;
            ++position;
        }
        if (!tasks || !nodes || (position != text.size() && text[position] != ','))
            return std::nullopt;
        if (node < *nodes)
            return tasks;
        node -= *nodes;
        if (text.substr(position, 1) != ",")
            return std::nullopt;
        ++position;
    }
}

} // namespace detail

ADAMANT_DECL local_rank rank_from_environment()
{
    constexpr char const* pairs[][2] = {{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                                        {"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}};
    for (auto const& [rank_name, count_name] : pairs) {
        std::optional<unsigned> const rank = detail::read_number(rank_name);
        if (!rank)
            continue;
        std::string counted_by = count_name;
        std::optional<unsigned> ranks;
        if (counted_by.starts_with("SLURM")) {
            unsigned const node = detail::read_number("SLURM_NODEID").value_or(0);
            for (char const* const variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
                if (char const* const value = std::getenv(variable); value != nullptr && !ranks) {
                    counted_by = variable;
                    ranks = detail::slurm_tasks(value, node);
                }
        } else {
            ranks = detail::read_number(count_name);
        }
        if (!ranks)
            detail::throw_invalid_argument(
                {rank_name, " is set, but ", counted_by,
                 " does not say how many ranks this host has; set it, or give rank and ranks yourself"});
        if (*rank >= *ranks)
            detail::throw_invalid_argument({rank_name, " is ", *rank, " but ", counted_by, " says that this host has ",
                                            *ranks, *ranks == 1 ? " rank" : " ranks", "; ranks count from 0"});
        return {*rank, *ranks, detail::text_of({rank_name, " and ", counted_by})};
    }
    return {};
}

ADAMANT_END_NAMESPACE
