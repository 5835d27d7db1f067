/* SPDX-License-Identifier: Apache-2.0 */
/* A training loop in C99: AdamW with clipping, dynamic loss scaling and a checkpoint from which a second optimizer
 * continues with the same bits. Prints a digest that is the same on every machine and in ctypes_loop.py.
 *     c_loop [CHECKPOINT]    the file to write and remove (default c_loop.safetensors) */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <adamant/adamant.h>

enum { inputs = 8, outputs = 2, samples = 32, steps = 200, tensors = 2 };

/* A linear layer, its gradients and moments. */
struct model {
    float param[tensors][inputs * outputs]; /* weight, bias */
    float grad[tensors][inputs * outputs];
    float exp_avg[tensors][inputs * outputs];
    float exp_avg_sq[tensors][inputs * outputs];
    uint16_t weight_out[tensors][inputs * outputs]; /* in bfloat16, as a device would get them */
};
static char const* const names[tensors] = {"layer.weight", "layer.bias"};
static size_t const shapes[tensors][2] = {{outputs, inputs}, {outputs, 1}};

static double x[samples][inputs], y[samples][outputs], error_of[samples][outputs]; /* of the last forward() */

static void check(adamant_status status)
{
    if (status == ADAMANT_OK)
        return;
    fprintf(stderr, "%s: %s\n", adamant_status_name(status), adamant_last_error());
    exit(1);
}

/* In [-1, 1), multiples of 1/512: the same everywhere. */
static double noise(uint32_t* state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 22) / 512.0 - 1.0;
}

/* Samples of a layer whose weights are multiples of 1/8, without any error. */
static void make_samples(void)
{
    uint32_t state = 1;
    for (int s = 0; s < samples; ++s) {
        for (int i = 0; i < inputs; ++i)
            x[s][i] = noise(&state);
        for (int o = 0; o < outputs; ++o) {
            y[s][o] = 0.5 - o;
            for (int i = 0; i < inputs; ++i)
                y[s][o] += x[s][i] * ((i + 3 * o) % 9 - 4) / 8.0;
        }
    }
}

/* The mean square error. */
static double forward(struct model const* m)
{
    double loss = 0;
    for (int s = 0; s < samples; ++s)
        for (int o = 0; o < outputs; ++o) {
            double sum = m->param[1][o];
            for (int i = 0; i < inputs; ++i)
                sum += x[s][i] * m->param[0][o * inputs + i];
            error_of[s][o] = sum - y[s][o];
            loss += error_of[s][o] * error_of[s][o];
        }
    return loss / (samples * outputs);
}

/* The gradient of tensor `t` of the loss times `scale`, after forward(). */
static void backward(struct model* m, size_t t, double scale)
{
    for (int o = 0; o < outputs; ++o)
        for (int i = 0; i < (t == 0 ? inputs : 1); ++i) {
            double sum = 0;
            for (int s = 0; s < samples; ++s)
                sum += error_of[s][o] * (t == 0 ? x[s][i] : 1.0);
            m->grad[t][t == 0 ? o * inputs + i : o] = (float)(sum * 2.0 / (samples * outputs) * scale);
        }
}

/* One shard for each tensor of the model, in two groups; one decays. */
static adamant_optimizer* make_optimizer(adamant_executor const* cpu, struct model* m)
{
    adamant_loss_scaling scaling;
    check(adamant_loss_scaling_init(&scaling, sizeof scaling));
    scaling.initial_scale = 1024;
    scaling.growth_interval = 50;
    adamant_optimizer_options options;
    check(adamant_optimizer_options_init(&options, sizeof options));
    options.max_norm = 0.25;
    options.loss_scaling = &scaling;
    adamant_optimizer* optimizer = NULL;
    check(adamant_optimizer_create(cpu, &options, &optimizer));

    adamant_hyperparameters hyper;
    check(adamant_hyperparameters_init(&hyper, sizeof hyper));
    hyper.decay = ADAMANT_DECAY_DECOUPLED;
    for (size_t t = 0; t < tensors; ++t) {
        hyper.weight_decay = t == 0 ? 0.001 : 0;
        size_t group;
        check(adamant_add_group(optimizer, t == 0 ? "weights" : "biases", &hyper, 0, &group));
        adamant_shard shard;
        check(adamant_shard_init(&shard, sizeof shard));
        shard.elements = shapes[t][0] * shapes[t][1];
        shard.param = m->param[t];
        shard.grad = m->grad[t];
        shard.exp_avg = m->exp_avg[t];
        shard.exp_avg_sq = m->exp_avg_sq[t];
        shard.weight_out = m->weight_out[t];
        shard.weight_out_dtype = ADAMANT_BFLOAT16;
        shard.shape = shapes[t];
        shard.dims = 2;
        check(adamant_add_shard(optimizer, group, names[t], &shard, NULL));
    }
    check(adamant_prepare(optimizer, 1));
    return optimizer;
}

/* Steps first + 1 to last. Returns the last loss. */
static double train(adamant_optimizer* optimizer, struct model* m, int first, int last)
{
    double loss = 0;
    adamant_step_values values;
    adamant_report report;
    check(adamant_step_values_init(&values, sizeof values));
    check(adamant_report_init(&report, sizeof report));
    for (int step = first; step < last; ++step) {
        double scale;
        double const lr[tensors] = {0.1 * (steps - step) / steps, 0.1 * (steps - step) / steps};
        values.lr = lr;
        values.lr_count = tensors;
        check(adamant_loss_scale(optimizer, &scale));
        loss = forward(m);
        check(adamant_begin_step(optimizer, &values));
        for (size_t t = tensors; t-- > 0;) {
            backward(m, t, scale); /* while the executor's threads step the tensor before */
            check(adamant_submit(optimizer, t));
        }
        check(adamant_finish(optimizer, &report));
        if (report.outcome == ADAMANT_APPLIED && (report.step == 1 || report.step % 50 == 0))
            printf("step %3u  loss %.9f  norm %.6f  clipped by %.6f  loss scale %g\n", (unsigned)report.step, loss,
                   report.global_norm, report.clip_coefficient, report.loss_scale);
    }
    return loss;
}

/* FNV-1a over params, moments and weights. */
static uint64_t digest(struct model const* m)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int t = 0; t < tensors; ++t) {
        size_t const n = shapes[t][0] * shapes[t][1];
        void const* const arrays[] = {m->param[t], m->exp_avg[t], m->exp_avg_sq[t], m->weight_out[t]};
        for (int a = 0; a < 4; ++a)
            for (size_t b = 0; b < n * (a < 3 ? sizeof(float) : sizeof(uint16_t)); ++b)
                hash = (hash ^ ((unsigned char const*)arrays[a])[b]) * 0x100000001b3u;
    }
    return hash;
}

int main(int argc, char** argv)
{
    char const* const path = argc > 1 ? argv[1] : "c_loop.safetensors";
    static struct model one, two; /* zeros */
    make_samples();

    adamant_executor* cpu = NULL;
    check(adamant_executor_create(NULL, &cpu));
    adamant_optimizer* const first = make_optimizer(cpu, &one);
    train(first, &one, 0, steps / 2);
    check(adamant_save_safetensors(first, path));
    double const loss = train(first, &one, steps / 2, steps);

    adamant_optimizer* const second = make_optimizer(cpu, &two);
    adamant_executor_free(cpu); /* the optimizers keep what they need of it */
    check(adamant_load_safetensors(second, &path, 1));
    uint64_t resumed_at;
    check(adamant_steps(second, &resumed_at));
    train(second, &two, (int)resumed_at, steps);
    adamant_optimizer_free(first);
    adamant_optimizer_free(second);
    remove(path);

    printf("adamant %s: digest %016llx\n", adamant_version(), (unsigned long long)digest(&one));
    if (digest(&one) != digest(&two)) {
        fprintf(stderr, "the run that was resumed at step %u has other bits: %016llx\n", (unsigned)resumed_at,
                (unsigned long long)digest(&two));
        return 1;
    }
    if (resumed_at != steps / 2 || !(loss < 1e-4)) {
        fprintf(stderr, "resumed at step %u; the loss is %g\n", (unsigned)resumed_at, loss);
        return 1;
    }
    printf("resumed from %s at step %u: the same bits\n", path, (unsigned)resumed_at);
    return 0;
}
