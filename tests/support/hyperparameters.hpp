// SPDX-License-Identifier: Apache-2.0
// Hyperparameters where any will do.
#pragma once

#include <adamant/hyperparameters.hpp>

namespace test {

inline adamant::hyperparameters const usual_adamw{
    .lr = 0.01, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled};

} // namespace test
