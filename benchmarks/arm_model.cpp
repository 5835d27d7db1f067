// SPDX-License-Identifier: Apache-2.0
// What arm_model.py runs under an emulator, compiled for AArch64: one kernel over the first N elements of ordinary
// training data. The arrays are filled to their ends whatever N is, so that two runs differ by the kernel's work alone.
//
//     arm_model STEP_TYPES|SUM_TYPE N        for example: arm_model bf16 2048
//     arm_model                              the names, each with the bytes that an element moves
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <adamant/hyperparameters.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/numerics/quantized8.hpp>

#include "random.hpp"

namespace {

using adamant::bfloat16;
using adamant::isa;
using adamant::quantized8;
using adamant::split_float32;

constexpr std::size_t most_elems = 4096; // a block of the norm
static_assert(most_elems <= adamant::norm_block_elems);

// The values of fill() in arrays.hpp, which needs hwloc and OpenMP.
template <class T, class Make>
std::byte* filled(std::vector<T>& array, std::uint32_t k, Make const& make)
{
    array.resize(most_elems);
    for (std::uint32_t i = 0; i < most_elems; ++i)
        array[i] = adamant::narrow<T>(make(random_bits(i ^ k * 0x9e3779b9u)));
    return reinterpret_cast<std::byte*>(array.data());
}
// The same, as codes where they are.
template <class Make>
std::byte* filled(std::vector<quantized8>& array, std::uint32_t k, Make const& make)
{
    std::vector<float> floats;
    filled(floats, k, make);
    array.resize(most_elems / adamant::quantized_group_elems);
    for (std::size_t g = 0; g < array.size(); ++g)
        adamant::encode_group(k == 2 ? adamant::exp_avg_curve : adamant::exp_avg_sq_curve,
                              &floats[g * adamant::quantized_group_elems], adamant::quantized_group_elems, false, {},
                              reinterpret_cast<std::byte*>(&array[g]));
    return reinterpret_cast<std::byte*>(array.data());
}
// Masters, and the weights beside them; of split masters they are the bfloat16 weights.
template <class Param>
std::byte* filled_param(std::vector<Param>& array, std::vector<bfloat16>& weights)
{
    auto const make = [](std::uint32_t random) { return 0.05f * bell(random); };
    filled(weights, 0, make);
    if constexpr (std::is_same_v<Param, split_float32>) {
        std::vector<float> masters;
        filled(masters, 0, make);
        for (float const master : masters) {
            adamant::split_parts const parts = adamant::split_master(master);
            weights[array.size()] = parts.weight;
            array.push_back(parts.low);
        }
        return reinterpret_cast<std::byte*>(array.data());
    } else {
        return filled(array, 0, make);
    }
}
template <class Grad>
std::byte* filled_grad(std::vector<Grad>& array)
{
    return filled(array, 1, [](std::uint32_t random) { return 1e-3f * bell(random); });
}

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
void step(std::size_t n)
{
    std::vector<Param> param;
    std::vector<Grad> grad;
    std::vector<ExpAvg> exp_avg;
    std::vector<ExpAvgSq> exp_avg_sq;
    std::vector<bfloat16> weight_out;
    adamant::kernel::step_pointers const arrays = {
        filled_param(param, weight_out), filled_grad(grad),
        filled(exp_avg, 2, [](std::uint32_t random) { return 3e-4f * bell(random); }),
        filled(exp_avg_sq, 3, [](std::uint32_t random) { return 1e-6f * (0.1f + bell(random) * bell(random)); }),
        std::is_void_v<WeightOut> ? nullptr : reinterpret_cast<std::byte*>(weight_out.data())};
    adamant::coefficients const c =
        adamant::make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = adamant::decay_mode::decoupled}, 1000);
    adamant::kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(isa::neon)(arrays, 0, n, c, false);
}
template <class Grad>
void sum(std::size_t n)
{
    std::vector<Grad> grad;
    if (!(adamant::kernel::block_squares_for<Grad>(isa::neon)(filled_grad(grad), n).sum >= 0))
        std::exit(1);
}

struct subject {
    std::string_view name;
    double bytes_per_elem;
    void (*run)(std::size_t n);
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut = void>
constexpr subject step_subject(std::string_view name)
{
    using adamant::dtype_of;
    return {name,
            adamant::step_bytes(
                {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>, dtype_of<WeightOut>}),
            step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>};
}
constexpr subject subjects[] = {step_subject<float, float, float, float>("f32"),
                                step_subject<bfloat16, bfloat16, float, float>("bf16_f32"),
                                step_subject<float, bfloat16, float, float, bfloat16>("mixed"),
                                step_subject<bfloat16, bfloat16, bfloat16, bfloat16>("bf16"),
                                step_subject<split_float32, bfloat16, float, float, bfloat16>("split"),
                                step_subject<split_float32, bfloat16, bfloat16, bfloat16, bfloat16>("split_bf16"),
                                step_subject<float, bfloat16, quantized8, quantized8, bfloat16>("q8"),
                                step_subject<split_float32, bfloat16, quantized8, quantized8, bfloat16>("split_q8"),
                                step_subject<bfloat16, bfloat16, quantized8, quantized8>("bf16_q8"),
                                {"squares_f32", sizeof(float), sum<float>},
                                {"squares_bf16", sizeof(bfloat16), sum<bfloat16>}};

} // namespace

int main(int count, char** arguments)
{
    for (subject const& s : subjects) {
        if (count != 3)
            std::printf("%s %g\n", s.name.data(), s.bytes_per_elem);
        else if (s.name == arguments[1])
            s.run(static_cast<std::size_t>(std::atoi(arguments[2])));
    }
}
