// SPDX-License-Identifier: Apache-2.0
// The part of two_flags_main.cpp's program that is compiled with -march=native.
#include <vector>

#include <adamant/adamant.hpp>

#define ADAMANT_TEXT_(x) #x
#define ADAMANT_TEXT(x) ADAMANT_TEXT_(x)

std::vector<float> native_step();
char const* native_abi();

std::vector<float> native_step()
{
    std::vector<float> param(100, 0.5f), grad(100, 0.1f), exp_avg(100), exp_avg_sq(100);
    step(adamant::executor({.tier = adamant::isa::scalar}), adamant::shard(param, grad, exp_avg, exp_avg_sq), {}, 1);
    return param;
}

char const* native_abi()
{
    return ADAMANT_TEXT(ADAMANT_FLAGS_ABI);
}
