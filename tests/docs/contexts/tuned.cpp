// SPDX-License-Identifier: Apache-2.0
// The rank of this process, and a tuned.json as tuning one core with other chunks would have saved it.
#include <filesystem>

#include <adamant/adamant.hpp>
#include <adamant/cores.hpp>

#include "require.hpp"

void context()
{
    using adamant::bfloat16;
    adamant::local_rank const self;
    adamant::tuned_cores saved;
    saved.key = adamant::tuning_key_of(adamant::live_machine(), {.ranks = self.ranks},
                                       adamant::step_format<float, bfloat16, float, float, bfloat16>());
    saved.cores = 1;
    saved.available_cores = 2;
    saved.finished = true;
    saved.max_chunk_elems = 8192;
    adamant::save_tuned("tuned.json", saved);
    // fragment
    REQUIRE(cores.adam_pus.size() == 1);
    REQUIRE(cpu.max_chunk_elems() == 8192);
    std::filesystem::remove("tuned.json");
}
