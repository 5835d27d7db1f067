// SPDX-License-Identifier: Apache-2.0
// What peers.py holds everything against, as functions that Python can call: the memory limit and the divider limit of
// limit.hpp, the plain loop, and the separate passes of an offload engine. Each cuts the elements into one stretch per
// thread of OpenMP; the memory limit also has the library's threads. And adamant::step(), as a program in C++ calls it.
//
// Where arrays are taken, they are {param, grad, exp_avg, exp_avg_sq, weight_out} as in limit.hpp: each begins at a
// cache line, those that the types lack are null, and n is a multiple of 64. Functions return 0, or 1 and have done
// nothing where this machine or these types have no such loop.

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>

#include <adamant/executor.hpp>
#include <adamant/step.hpp>

#include "limit.hpp"
#include "plain.hpp"
#include "separate.hpp"

namespace {

enum types : std::int32_t { f32 = 0, bf16_f32 = 1, mixed = 2, bf16 = 3 };

struct part {
    std::size_t begin;
    std::size_t end;
};

// The stretch of this thread of a parallel region, in multiples of 64.
part part_of_this_thread(std::size_t n)
{
    auto const threads = static_cast<std::size_t>(omp_get_num_threads());
    auto const me = static_cast<std::size_t>(omp_get_thread_num());
    std::size_t const lines = (n + 63) / 64;
    return {std::min(n, lines * me / threads * 64), std::min(n, lines * (me + 1) / threads * 64)};
}

template <class Work>
void on_threads(std::size_t n, std::int32_t threads, Work const& work)
{
#pragma omp parallel num_threads(threads)
    {
        part const mine = part_of_this_thread(n);
        if (mine.begin != mine.end)
            work(mine);
    }
}

// The library's own threads, which stay; a process asks for one number of them.
adamant::executor const& executor_of(std::int32_t threads)
{
    // Never destroyed: at the end of the process OpenMP's runtime may be gone before it.
    static auto const& cpu =
        *new adamant::executor(adamant::executor_options{.threads = static_cast<unsigned>(threads)});
    return cpu;
}

template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut>
std::int32_t move(std::byte* const* arrays, std::size_t n, std::int32_t threads, bool bound, std::size_t prefetch_bytes,
                  limit::stores stores)
{
    auto const run = [&]<limit::stores Stores>() {
        auto const work = [&](auto mine) {
            limit::move_bytes<Param, Grad, Moment, WeightOut, Stores>(arrays, mine.begin, mine.end, prefetch_bytes);
        };
        if (bound)
            executor_of(threads).for_each_slice(n, work);
        else
            on_threads(n, threads, work);
        return 0;
    };
    if (stores == limit::stores::cached)
        return run.template operator()<limit::stores::cached>();
    if constexpr (limit::can_stream) {
        if (stores == limit::stores::all_streamed)
            return run.template operator()<limit::stores::all_streamed>();
        if constexpr (WeightOut != 0)
            if (stores == limit::stores::weight_out_streamed)
                return run.template operator()<limit::stores::weight_out_streamed>();
    }
    return 1;
}

template <class T>
T* as(void* array)
{
    return static_cast<T*>(array);
}

struct step_values {
    double lr, beta1, beta2, eps, weight_decay;
};

template <class Param, class Grad, class Moment, class WeightOut = void>
void step_over(adamant::executor const& cpu, void* const* arrays, std::size_t n, step_values const& v, std::uint64_t t)
{
    auto const view = [&] {
        if constexpr (std::is_void_v<WeightOut>)
            return adamant::shard(as<Param>(arrays[0]), as<Grad const>(arrays[1]), as<Moment>(arrays[2]),
                                  as<Moment>(arrays[3]), n);
        else
            return adamant::shard(as<Param>(arrays[0]), as<Grad const>(arrays[1]), as<Moment>(arrays[2]),
                                  as<Moment>(arrays[3]), as<WeightOut>(arrays[4]), n);
    }();
    adamant::step(cpu, view,
                  {.lr = v.lr,
                   .beta1 = v.beta1,
                   .beta2 = v.beta2,
                   .eps = v.eps,
                   .weight_decay = v.weight_decay,
                   .mode = adamant::decay_mode::decoupled},
                  t);
}

} // namespace

extern "C" {

// Writes zeros, each thread to the stretch that it works on later, so that this is where the memory comes to lie.
void peers_touch(void* array, std::size_t bytes, std::int32_t threads)
{
    on_threads(bytes, threads, [&](part mine) { std::memset(as<char>(array) + mine.begin, 0, mine.end - mine.begin); });
}

// stores: 0 cached, 1 weight_out streamed, 2 all streamed. bound: 0 OpenMP's threads, as most peers have them; 1 those
// of the library, each on a core of its own.
std::int32_t peers_limit(std::int32_t types, void* const* arrays, std::size_t n, std::int32_t threads,
                         std::size_t prefetch_bytes, std::int32_t stores, std::int32_t bound)
try {
    std::byte* at[5];
    std::transform(arrays, arrays + 5, at, as<std::byte>);
    auto const how = static_cast<limit::stores>(stores);
    bool const ours = bound != 0;
    switch (types) {
    case f32: return move<4, 4, 4, 0>(at, n, threads, ours, prefetch_bytes, how);
    case bf16_f32: return move<2, 2, 4, 0>(at, n, threads, ours, prefetch_bytes, how);
    case mixed: return move<4, 2, 4, 2>(at, n, threads, ours, prefetch_bytes, how);
    case bf16: return move<2, 2, 2, 0>(at, n, threads, ours, prefetch_bytes, how);
    default: return 1;
    }
} catch (std::exception const&) {
    return 1;
}

// Of each element one square root and one division, `repeats` times.
std::int32_t peers_divide(float const* numerator, float const* square, std::size_t n, std::int32_t threads,
                          std::int32_t repeats)
{
    for (std::int32_t i = 0; i < repeats; ++i) // each in a parallel region of its own, as steps are
        on_threads(n, threads, [&](part mine) { limit::divide(numerator, square, mine.begin, mine.end); });
    return 0;
}

// adamant::step() number t.
std::int32_t peers_step(std::int32_t types, void* const* arrays, std::size_t n, std::int32_t threads,
                        step_values const* values, std::uint64_t t)
try {
    using adamant::bfloat16;
    adamant::executor const& cpu = executor_of(threads);
    switch (types) {
    case f32: step_over<float, float, float>(cpu, arrays, n, *values, t); return 0;
    case bf16_f32: step_over<bfloat16, bfloat16, float>(cpu, arrays, n, *values, t); return 0;
    case mixed: step_over<float, bfloat16, float, bfloat16>(cpu, arrays, n, *values, t); return 0;
    case bf16: step_over<bfloat16, bfloat16, bfloat16>(cpu, arrays, n, *values, t); return 0;
    default: return 1;
    }
} catch (std::exception const&) {
    return 1;
}

std::int32_t peers_plain(std::int32_t types, void* const* arrays, std::size_t n, std::int32_t threads,
                         plain::coefficients const* c)
{
    auto const team = static_cast<unsigned>(threads);
    switch (types) {
    case f32:
        plain::step(as<float>(arrays[0]), as<float>(arrays[1]), as<float>(arrays[2]), as<float>(arrays[3]), n, *c,
                    team);
        return 0;
    case bf16_f32:
        plain::step(as<std::uint16_t>(arrays[0]), as<std::uint16_t>(arrays[1]), as<float>(arrays[2]),
                    as<float>(arrays[3]), n, *c, team);
        return 0;
    default: return 1;
    }
}

// Widen the gradient into `wide`, Adam, round the weights: each over everything before the next.
std::int32_t peers_separate(std::int32_t types, void* const* arrays, float* wide, std::size_t n, std::int32_t threads,
                            plain::coefficients const* c)
{
    if (types != mixed)
        return 1;
    auto const team = static_cast<unsigned>(threads);
    separate::widen(as<std::uint16_t>(arrays[1]), wide, n, team);
    plain::step(as<float>(arrays[0]), wide, as<float>(arrays[2]), as<float>(arrays[3]), n, *c, team);
    separate::narrow(as<float>(arrays[0]), as<std::uint16_t>(arrays[4]), n, team);
    return 0;
}

} // extern "C"
