// SPDX-License-Identifier: Apache-2.0
// A program such as an embedder may write, compiled in many ways. It runs a few steps on every tier that the CPU has
// and compares a digest of the bits with the one below, which is the same for each compiler, flag and CPU.
#include <cstdio>
#include <cstring>
#include <vector>

#include <adamant/adamant.hpp>

namespace {

std::uint64_t state = 0;

std::uint64_t random_bits()
{
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// One in eight is any float at all, NaNs and subnormals among them.
float value(std::uint32_t low_exponent)
{
    std::uint64_t const r = random_bits();
    if (r % 8 == 0)
        return std::bit_cast<float>(static_cast<std::uint32_t>(r >> 32));
    std::uint32_t const exponent = low_exponent + static_cast<std::uint32_t>(r >> 8) % 12;
    return std::bit_cast<float>((static_cast<std::uint32_t>(r >> 32) & 0x807fffffu) | exponent << 23);
}

template <class T>
void add(std::uint64_t& digest, std::vector<T> const& data)
{
    std::vector<unsigned char> bytes(data.size() * sizeof(T));
    std::memcpy(bytes.data(), data.data(), bytes.size());
    for (unsigned char const byte : bytes)
        digest = (digest ^ byte) * 0x100000001b3u;
}

template <class Param, class Grad, class Moment, class WeightOut>
void run(adamant::executor const& cpu, adamant::decay_mode mode, std::uint64_t& digest)
{
    std::size_t const n = 1003;
    std::vector<Param> param(n);
    std::vector<Grad> grad(n);
    std::vector<Moment> exp_avg(n), exp_avg_sq(n);
    std::vector<WeightOut> weight_out(n);
    state = 1;
    for (Param& p : param)
        p = adamant::narrow<Param>(value(116));
    for (std::uint64_t t = 1; t <= 5; ++t) {
        for (Grad& g : grad)
            g = adamant::narrow<Grad>(value(112));
        auto const view = [&] {
            if constexpr (std::is_same_v<Param, float>)
                return adamant::shard(param, grad, exp_avg, exp_avg_sq, weight_out);
            else
                return adamant::shard(param, grad, exp_avg, exp_avg_sq);
        }();
        adamant::step(cpu, view, {.lr = 0.01, .weight_decay = 0.1, .mode = mode}, t, {.loss_scale = 8});
        double const sum = adamant::sum_of_squares(cpu, grad).sum;
        add(digest, std::vector<double>{sum});
    }
    add(digest, param);
    add(digest, exp_avg);
    add(digest, exp_avg_sq);
    add(digest, weight_out);
}

} // namespace

int main()
{
    using adamant::bfloat16, adamant::float16, adamant::decay_mode;
    constexpr std::uint64_t expected = 0xe2d68d151192fdc5;
    int status = 0;
    for (adamant::isa const tier : adamant::all_isas) {
        if (!adamant::is_available(tier))
            continue;
        adamant::executor const cpu({.tier = tier, .min_slice_elems = 1});
        std::uint64_t digest = 0xcbf29ce484222325u;
        run<float, bfloat16, float, bfloat16>(cpu, decay_mode::decoupled, digest);
        run<float16, float16, bfloat16, bfloat16>(cpu, decay_mode::l2, digest);
        bool const same = digest == expected;
        std::printf("%s threads %u digest %016llx%s\n", name(tier).data(), cpu.threads(),
                    static_cast<unsigned long long>(digest), same ? "" : " DIFFERS");
        status |= !same;
    }
    return status;
}
