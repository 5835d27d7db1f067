// SPDX-License-Identifier: Apache-2.0
// The page's formula, against the reference implementation, on values that reach every case: L2 decay or none, and what
// is flushed.
#include <bit>
#include <cmath>
#include <initializer_list>

#include <adamant/reference.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#include "require.hpp"

// A float, flushed; so are the results of all operations.
struct value {
    float x;
    value(float result) : x(adamant::flush(result)) {}
    friend value operator*(value a, value b) { return a.x * b.x; }
    friend value operator/(value a, value b) { return a.x / b.x; }
};
value fma(value a, value b, value c)
{
    return std::fma(a.x, b.x, c.x);
}
value sqrt(value a)
{
    return std::sqrt(a.x);
}

struct result {
    float param, exp_avg, exp_avg_sq;
};

result formula(value p, value m, value v, value grad, adamant::coefficients const& c)
{
    auto const& [beta1, beta2, one_minus_beta1, one_minus_beta2, inv_sqrt_bias2, eps, neg_step_size, decay, l2,
                 grad_scale, rounding] = c;
    // fragment
    return {new_p.x, new_m.x, new_v.x};
}

void context()
{
    adamant::float_mode_scope const mode(adamant::subnormals::kept);
    int flushed = 0;
    for (adamant::hyperparameters const& hyper :
         {adamant::adamw({.lr = 0.01, .weight_decay = 0.1}), adamant::adam({.lr = 0.01, .weight_decay = 0.1})})
        for (float const p : {0.5f, -3.0f, 1e-38f})
            for (float const m : {0.0f, 0.25f, -1e-37f})
                for (float const v : {0.0f, 0.5f, 2e-38f})
                    for (float const g : {0.0f, 1.5f, -1e-19f, 1e-38f}) {
                        adamant::coefficients const c = make_coefficients(hyper, 3, {.loss_scale = 4});
                        adamant::reference::element const by_reference = adamant::reference::update({p, m, v}, g, c);
                        result const by_page = formula(p, m, v, g, c);
                        auto const same = [](float a, float b) {
                            return std::bit_cast<unsigned>(a) == std::bit_cast<unsigned>(b) ||
                                   (std::isnan(a) && std::isnan(b)); // the one NaN is said in words
                        };
                        REQUIRE(same(by_reference.param, by_page.param));
                        REQUIRE(same(by_reference.exp_avg, by_page.exp_avg));
                        REQUIRE(same(by_reference.exp_avg_sq, by_page.exp_avg_sq));
                        flushed += by_page.exp_avg_sq == 0 && (v != 0 || g != 0);
                    }
    REQUIRE(flushed != 0);
}
