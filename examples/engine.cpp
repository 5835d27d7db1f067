#include <adamant/adamant.hpp>
#include <cstdio>
#include <vector>
using adamant::bfloat16;
struct layer { // the engine's memory: gradients are downloaded, weights uploaded
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight;
    explicit layer(std::size_t n) : param(n, 0.5f), exp_avg(n), exp_avg_sq(n), grad(n), weight(n) {}
    auto shard() { return adamant::shard(param, grad, exp_avg, exp_avg_sq, weight); }
};
int main()
{
    std::vector<layer> layers(8, layer(1'000'000));
    adamant::optimizer optimizer(adamant::executor(), {.max_norm = 1, .loss_scaling = adamant::loss_scaling_options{}});
    adamant::group_id const all = optimizer.add_group("all", adamant::adamw({.lr = 1e-3, .weight_decay = 0.1}));
    for (std::size_t i = 0; i < layers.size(); ++i)
        optimizer.add_shard({.group = all, .name = "layer " + std::to_string(i), .shard = layers[i].shard()});
    while (optimizer.steps() < 4) {
        float const g = 1e-4f * static_cast<float>(optimizer.loss_scale() * static_cast<double>(optimizer.steps() + 2));
        optimizer.begin_step();
        for (std::size_t i = layers.size(); i-- > 0;) { // the last layer's gradient is there first
            layers[i].grad.assign(layers[i].grad.size(), adamant::narrow<bfloat16>(g));
            optimizer.submit(i); // its update starts immediately, while the next gradient is made
        }
        adamant::optimizer_report const r = optimizer.finish();
        std::printf("step %zu: norm %.4f, clip coefficient %.4f\n", std::size_t{r.step}, r.global_norm,
                    r.clip_coefficient);
    }
    optimizer.update_host_arrays(); // params may live on a device: see place()
    std::printf("weight %.9g\n", layers[0].param[0]);
}
