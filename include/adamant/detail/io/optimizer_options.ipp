// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/optimizer_options.hpp.
#pragma once

#include <cmath>

#include <adamant/error.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void check_limits(double max_norm, double max_abs_grad)
{
    default_mode_scope const mode;
    for (auto const& [key, value] : {std::pair{"max_norm", max_norm}, std::pair{"max_abs_grad", max_abs_grad}})
        if (!std::isfinite(value) || value < 0)
            refuse_hyperparameter(key, value, "a finite number, 0 or above");
    if (!float_holds(max_abs_grad))
        refuse_hyperparameter("max_abs_grad", max_abs_grad, "0, or from 1.2e-38 to 3.4e38, which float holds");
    if (max_norm != 0 && max_abs_grad != 0)
        throw_invalid_argument({"max_norm is ", max_norm, " and max_abs_grad is ", max_abs_grad,
                                ", but a gradient is clipped by one of them; set the other to 0"});
}

ADAMANT_DECL squares_total reduced(optimizer_options const& options, squares_total const& local)
{
    squares_total::word_array words = local.words();
    options.reduce(words);
    squares_total total;
    if (!total.set_words(words))
        throw_invalid_argument({"cannot use the result of reduce: a word is negative or too large. Add each word over "
                                "all processes as 64-bit integers."});
    if (!total.covers(local))
        throw_invalid_argument({"cannot use the result of reduce: the total of all processes (sum of squares ",
                                total.rounded().sum, ", ", total.nonfinite(),
                                " non-finite gradients) is less than this process's own part (", local.rounded().sum,
                                ", ", local.nonfinite(), "). Add each word over all processes."});
    return total;
}

} // namespace detail

ADAMANT_DECL void validate(optimizer_options const& options)
{
    detail::default_mode_scope const mode;
    detail::check_limits(options.max_norm, options.max_abs_grad);
    if (!(options.device_timeout_s > 0 && options.device_timeout_s <= 1e6))
        detail::refuse_hyperparameter("device_timeout_s", options.device_timeout_s, "above 0, and at most 1e6");
    if (options.on_nonfinite > nonfinite_policy::apply)
        detail::throw_invalid_argument({"on_nonfinite is not a valid nonfinite_policy"});
    if (options.speculate > speculation::never)
        detail::throw_invalid_argument({"speculate is not a valid speculation"});
    if (options.loss_scaling)
        validate(*options.loss_scaling);
}

ADAMANT_END_NAMESPACE
