// SPDX-License-Identifier: Apache-2.0
#include <adamant/optimizer.hpp>

#include "slow_optimizer.hpp"

using namespace adamant;
using namespace slow;

std::size_t slow::add(optimizer& to, tensor& t, std::string const& name, shard_position const& position)
{
    shard_format const* const format = find_format({t.types[0], t.types[1], t.types[2], t.types[3], t.types[4]});
    t.position = {param_number_of(name), position.begin};
    optimizer_shard const view(any_shard(*format,
                                         {t.mine[param].data(), t.mine[grad].data(), t.mine[exp_avg].data(),
                                          t.mine[exp_avg_sq].data(), t.mine[weight_out].data()},
                                         t.size()));
    shard_to_add const added{.group = t.group,
                             .name = name,
                             .shard = t.changed.empty() ? view : view.track(t.changed),
                             .accumulator = {t.mine[accumulator].data(), t.types[accumulator]},
                             .position = position};
    return to.add_shard(added).index;
}
