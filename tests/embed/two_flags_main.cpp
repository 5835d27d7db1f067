// SPDX-License-Identifier: Apache-2.0
// illegal_instruction: one program of which one part is compiled with -march=native. Each part keeps its own copy of
// the library's functions, so that this part still runs on a CPU without those instructions.
#include <cstdio>
#include <cstring>
#include <vector>

#include <adamant/adamant.hpp>

std::vector<float> native_step();
char const* native_abi();

#define ADAMANT_TEXT_(x) #x
#define ADAMANT_TEXT(x) ADAMANT_TEXT_(x)

int main()
{
    std::vector<float> param(100, 0.5f), grad(100, 0.1f), exp_avg(100), exp_avg_sq(100);
    step(adamant::executor({.tier = adamant::isa::scalar}), adamant::shard(param, grad, exp_avg, exp_avg_sq), {}, 1);
    bool const same = std::memcmp(param.data(), native_step().data(), 100 * sizeof(float)) == 0;
    bool const apart = std::strcmp(native_abi(), ADAMANT_TEXT(ADAMANT_FLAGS_ABI)) != 0;
    std::printf("bits %s, namespaces %s and %s\n", same ? "same" : "differ", ADAMANT_TEXT(ADAMANT_FLAGS_ABI),
                native_abi());
#if defined(__x86_64__)
    return same && (apart || !adamant::is_available(adamant::isa::avx2)) ? 0 : 1;
#else
    return same ? 0 : 1;
#endif
}
