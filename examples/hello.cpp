#include <adamant/adamant.hpp>
#include <cstdio>
#include <vector>
int main()
{
    std::vector<float> param(1000, 0.5f), exp_avg(1000), exp_avg_sq(1000);
    std::vector<adamant::bfloat16> grad(1000, adamant::narrow<adamant::bfloat16>(0.25f)), weight_out(1000);
    adamant::executor const cpu; // the best instruction set and every core it may use
    adamant::shard const shard(param, grad, exp_avg, exp_avg_sq, weight_out);
    for (unsigned t = 1; t <= 10; ++t)
        adamant::step(cpu, shard, adamant::adamw({.lr = 0.01, .weight_decay = 0.1}), t);
    std::printf("%s: weight %.9g\n", name(cpu.tier()).data(), param[0]);
}
