// SPDX-License-Identifier: Apache-2.0
#include "references.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "limit.hpp"

namespace bench {

namespace {

constexpr std::size_t prefetch_distances[] = {0, 1024, 2048, 4096};

std::string prefetch_name(std::size_t bytes)
{
    return bytes == 0 ? "no prefetch" : "prefetch " + std::to_string(bytes);
}

// As limit.hpp has the sizes of elements.
constexpr std::size_t limit_bytes(dtype type)
{
    return type == dtype::quantized8 ? limit::in_groups : size_bytes(type);
}

template <class Shard, limit::stores Stores>
void move_all(executor const& cpu, arrays const& a, std::size_t n, std::size_t prefetch_bytes, gradient_reads reads)
{
    static_assert(std::is_same_v<typename Shard::exp_avg_type, typename Shard::exp_avg_sq_type>);
    if (reads == gradient_reads::twice)
        cpu.for_each_slice(n, [&](slice part) {
            limit::read_bytes<limit_bytes(Shard::dtypes[1])>(a.pointers()[1], part.begin, part.end, prefetch_bytes);
        });
    cpu.for_each_slice(n, [&](slice part) {
        limit::move_bytes<limit_bytes(Shard::dtypes[0]), limit_bytes(Shard::dtypes[1]), limit_bytes(Shard::dtypes[2]),
                          limit_bytes(Shard::dtypes[4]), Stores, has_split_param(Shard::dtypes)>(
            a.pointers(), part.begin, part.end, prefetch_bytes);
    });
}

// The divider works on floats, so it has copies of the moments.
template <class Shard>
std::function<void()> dividing(executor const& cpu, arrays const& a, std::size_t n)
{
    auto const copies =
        std::make_shared<arrays>(shard_dtypes{dtype::none, dtype::none, dtype::float32, dtype::float32}, n);
    using moment = typename Shard::exp_avg_type;
    if constexpr (std::is_same_v<moment, quantized8>) {
        for (std::size_t i = 0; i < n; i += adamant::quantized_group_elems) {
            std::size_t const at = array_bytes(dtype::quantized8, i);
            adamant::decode_exp_avg(a.pointers()[2] + at, copies->get<float>(2) + i);
            adamant::decode_exp_avg_sq(a.pointers()[3] + at, copies->get<float>(3) + i);
        }
    } else {
        for (std::size_t const k : {std::size_t{2}, std::size_t{3}})
            for (std::size_t i = 0; i < n; ++i)
                copies->get<float>(k)[i] = adamant::widen(a.get<moment>(k)[i]);
    }
    return [&cpu, copies, n] {
        cpu.for_each_slice(
            n, [&](slice part) { limit::divide(copies->get<float>(2), copies->get<float>(3), part.begin, part.end); });
    };
}

} // namespace

template <class Shard>
void add_limits(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n,
                gradient_reads reads, std::function<void()> const& prepare)
{
    std::size_t const whole = n / 64 * 64;
    auto const add = [&]<limit::stores Stores>(std::string const& what) {
        for (std::size_t const ahead : prefetch_distances)
            contenders.push_back(
                {part_in_race::limit, "moving", what + ", " + prefetch_name(ahead),
                 [&cpu, &a, whole, ahead, reads] { move_all<Shard, Stores>(cpu, a, whole, ahead, reads); }, prepare});
    };
    add.template operator()<limit::stores::cached>("cached stores");
    if (in_cache(n)) { // stores past the caches would leave them empty to the next contender
        contenders.push_back({part_in_race::limit, "dividing", "one square root and one division",
                              dividing<Shard>(cpu, a, whole), prepare});
        return;
    }
    if constexpr (limit::can_stream && Shard::dtypes[4] != dtype::none && !has_split_param(Shard::dtypes))
        add.template operator()<limit::stores::weight_out_streamed>("weight_out streamed");
    if constexpr (limit::can_stream)
        add.template operator()<limit::stores::all_streamed>("all stores streamed");
}

template <class Shard>
void add_moving_dividing(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n)
{
    if constexpr (std::is_same_v<typename Shard::exp_avg_type, float>) {
        auto const add = [&]<limit::stores Stores>() {
            for (std::size_t const ahead : prefetch_distances)
                contenders.push_back(
                    {part_in_race::aside, "moving_dividing", prefetch_name(ahead), [&cpu, &a, n, ahead] {
                         cpu.for_each_slice(n / 64 * 64, [&](slice part) {
                             limit::move_bytes<limit_bytes(Shard::dtypes[0]), limit_bytes(Shard::dtypes[1]),
                                               sizeof(float), limit_bytes(Shard::dtypes[4]), Stores,
                                               has_split_param(Shard::dtypes), true, true>(a.pointers(), part.begin,
                                                                                           part.end, ahead);
                         });
                     }});
        };
        if constexpr (limit::can_stream && Shard::dtypes[4] != dtype::none && !has_split_param(Shard::dtypes))
            if (!in_cache(n))
                return add.template operator()<limit::stores::weight_out_streamed>();
        add.template operator()<limit::stores::cached>();
    }
}

template <class T>
void add_reads(std::vector<contender>& contenders, executor const& cpu, T const* array, std::size_t n)
{
    for (std::size_t const ahead : prefetch_distances)
        contenders.push_back({part_in_race::limit, "reading", prefetch_name(ahead), [&cpu, array, n, ahead] {
                                  cpu.for_each_slice(n, [&](slice part) {
                                      limit::read_bytes<sizeof(T)>(reinterpret_cast<std::byte const*>(array),
                                                                   part.begin, part.end, ahead);
                                  });
                              }});
}

template <class Shard>
bool add_plain(std::vector<contender>& contenders, executor const& cpu, arrays const& a, std::size_t n,
               adamant::coefficients const& c)
{
    plain::coefficients const same = plain_coefficients(c);
    unsigned const threads = cpu.threads();
    auto const add = [&]<class Narrow>() {
        contenders.push_back({part_in_race::aside, "plain", "", [=, &a] {
                                  plain::step(a.get<Narrow>(0), a.get<Narrow>(1), a.get<float>(2), a.get<float>(3), n,
                                              same, threads);
                              }});
        return true;
    };
    if constexpr (std::is_same_v<Shard, f32>)
        return add.template operator()<float>();
    else if constexpr (std::is_same_v<Shard, bf16_f32>)
        return add.template operator()<std::uint16_t>();
    else
        return false;
}

#define ADAMANT_BENCH_REFERENCES(shard)                                                                                \
    template void add_limits<shard>(std::vector<contender>&, executor const&, arrays const&, std::size_t,              \
                                    gradient_reads, std::function<void()> const&);                                     \
    template void add_moving_dividing<shard>(std::vector<contender>&, executor const&, arrays const&, std::size_t);    \
    template bool add_plain<shard>(std::vector<contender>&, executor const&, arrays const&, std::size_t,               \
                                   adamant::coefficients const&)
ADAMANT_BENCH_REFERENCES(f32);
ADAMANT_BENCH_REFERENCES(bf16_f32);
ADAMANT_BENCH_REFERENCES(mixed);
ADAMANT_BENCH_REFERENCES(bf16);
ADAMANT_BENCH_REFERENCES(split);
ADAMANT_BENCH_REFERENCES(split_bf16);
ADAMANT_BENCH_REFERENCES(q8);
ADAMANT_BENCH_REFERENCES(split_q8);
ADAMANT_BENCH_REFERENCES(bf16_q8);
template void add_reads<float>(std::vector<contender>&, executor const&, float const*, std::size_t);
template void add_reads<bfloat16>(std::vector<contender>&, executor const&, bfloat16 const*, std::size_t);

} // namespace bench
