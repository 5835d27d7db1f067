// SPDX-License-Identifier: Apache-2.0
// States for the tests of checkpoints: random ones that own their memory, their comparison, and a folder to save in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <adamant/checkpoint.hpp>
#include <adamant/detail/io/state_check.hpp>

#include "catch.hpp"
#include "folder.hpp"
#include "refusal.hpp"

namespace test {

// In memory where it may be; gone at the end, but not when a forked child ends.
class scratch_folder {
public:
    scratch_folder() : path_(new_folder("checkpoint")) {}
    scratch_folder(scratch_folder const&) = delete;
    scratch_folder& operator=(scratch_folder const&) = delete;
    ~scratch_folder()
    {
        std::error_code error;
        if (creator_ == ::getpid())
            std::filesystem::remove_all(path_, error);
    }
    [[nodiscard]] std::filesystem::path operator/(std::string const& name) const { return path_ / name; }
    [[nodiscard]] std::filesystem::path const& path() const { return path_; }

private:
    std::filesystem::path path_;
    ::pid_t creator_ = ::getpid();
};

inline std::string bytes_of(std::filesystem::path const& path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
inline void set_bytes(std::filesystem::path const& path, std::string const& bytes)
{
    std::ofstream(path, std::ios::binary) << bytes;
}

struct owned_state {
    adamant::state_dict state;
    std::deque<std::vector<std::byte>> memory; // which the tensors point into, each at an odd address

    void add(std::size_t param, adamant::state_array array, adamant::dtype type, std::size_t begin,
             std::size_t elements, std::vector<std::byte> const& bytes)
    {
        memory.emplace_back(1 + bytes.size());
        std::copy(bytes.begin(), bytes.end(), memory.back().begin() + 1);
        state.tensors.push_back({param, array, type, begin, elements, elements == 0 ? nullptr : &memory.back()[1]});
    }
};

inline std::vector<std::byte> random_bytes(random_bits& random, std::size_t n)
{
    std::vector<std::byte> result(n);
    for (std::byte& b : result)
        b = static_cast<std::byte>(random());
    return result;
}

// Any bits that are a finite number from 0 on; below 1 if so wished. Many digits, subnormals, whole numbers.
inline double random_number(random_bits& random, bool below_one)
{
    static constexpr double some[] = {0.0, -0.0, 0.1, 0.9, 0.999, 1e-8, 0x1p-1074, 0x1.fffffffffffffp-1, 1e-320};
    if (random.below(3) == 0)
        return some[random.below(std::size(some))];
    std::uint64_t const top = below_one ? 0x3ff : 0x7ff;
    return std::bit_cast<double>(random() % (top << 52));
}
template <class Rule>
double random_number(random_bits& random, bool below_one, Rule const& allows)
{
    for (;;)
        if (double const found = random_number(random, below_one); allows(found))
            return found;
}

// Whole arrays, pieces and shares of arrays, in any order; empty params and scalars; names of every kind.
inline owned_state random_state(random_bits& random)
{
    using namespace adamant;
    static constexpr char const* names[] = {
        "weight", "a.b.c",          "say \"no\"", "back\\slash",  "\u00e4\u4e16\U0001f600",
        "param",  "x.exp_avg[0:2]", "tab\tnew\n", "__metadata__", "\"adamant.header_xxh3\":\""};
    owned_state result;
    state_dict& state = result.state;
    state.step = random.below(2) == 0 ? random() : random.below(100);
    if (random.below(2) == 0)
        state.loss_scaler =
            loss_scaler_state{random_number(random, false, detail::is_loss_scale), static_cast<std::uint32_t>(random()),
                              static_cast<std::uint32_t>(random())};
    for (std::size_t g = 0; g < 1 + random.below(3); ++g) {
        parameter_group group{names[random.below(std::size(names))] + std::to_string(g), {}, random.below(2) == 0};
        auto const held = [&](bool is_beta) {
            double const number = random_number(random, is_beta, detail::float_holds);
            return is_beta ? std::min(number, 1 - 0x1p-24) : number; // the largest float below 1
        };
        group.hyper = {std::min(random_number(random, false), 1e20),
                       held(true),
                       held(true),
                       held(false),
                       std::min(held(false), 1e18),
                       decay_mode::unset,
                       random.below(2) == 0};
        group.hyper.mode = static_cast<decay_mode>(1 + random.below(2));
        if (random.below(3) == 0) {
            group.hyper.weight_decay = 0;
            group.hyper.mode = decay_mode::unset;
        }
        state.groups.push_back(group);
    }
    for (std::size_t n = random.below(3); n != 0; --n)
        state.metadata[names[random.below(std::size(names))]] = names[random.below(std::size(names))];
    std::size_t const params = random.below(6);
    for (std::size_t p = 0; p < params; ++p) {
        state_param param{
            names[random.below(std::size(names))] + std::to_string(p), {}, random.below(state.groups.size())};
        std::size_t const dimensions = random.below(4);
        std::size_t count = 1;
        for (std::size_t d = 0; d < dimensions; ++d)
            count *=
                param.shape.emplace_back(random.below(8) == 0 ? 0 : 1 + random.below(random.below(8) == 0 ? 90 : 5));
        state.params.push_back(param);
        for (state_array const array : {state_array::param, state_array::exp_avg, state_array::exp_avg_sq}) {
            if (random.below(6) == 0)
                continue;
            auto type = static_cast<dtype>(1 + random.below(3));
            if (type == dtype::float16 && array != state_array::param)
                type = dtype::quantized8;
            std::size_t const together = elems_together(type);
            bool const share = random.below(3) == 0; // a rank's: some pieces are elsewhere
            std::size_t begin = 0;
            do {
                std::size_t n = count - begin;
                if (random.below(2) != 0)
                    n = random.below(n + 1) / together * together;
                if (!share || random.below(2) == 0)
                    result.add(p, array, type, begin, n, random_bytes(random, array_bytes(type, n)));
                begin += n;
            } while (begin < count);
        }
    }
    for (std::size_t i = state.tensors.size(); i > 1; --i)
        std::swap(state.tensors[i - 1], state.tensors[random.below(i)]);
    return result;
}

// The first thing in which two states differ, however their tensors are cut; empty where there is none. Every byte of
// every tensor is looked at.
inline std::string difference(adamant::state_dict const& a, adamant::state_dict const& b)
{
    using namespace adamant;
    auto const bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
    if (a.step != b.step)
        return "step";
    if (a.metadata != b.metadata)
        return "metadata";
    if (a.loss_scaler.has_value() != b.loss_scaler.has_value())
        return "loss scaler";
    if (a.loss_scaler && (bits(a.loss_scaler->scale) != bits(b.loss_scaler->scale) || a.loss_scaler != b.loss_scaler))
        return "loss scaler's numbers";
    if (a.groups.size() != b.groups.size() || a.params.size() != b.params.size())
        return "how many groups or params";
    for (std::size_t g = 0; g < a.groups.size(); ++g) {
        parameter_group const& x = a.groups[g];
        parameter_group const& y = b.groups[g];
        if (x.name != y.name || x.maximize != y.maximize || x.hyper.mode != y.hyper.mode ||
            x.hyper.bias_correction != y.hyper.bias_correction || bits(x.hyper.lr) != bits(y.hyper.lr) ||
            bits(x.hyper.beta1) != bits(y.hyper.beta1) || bits(x.hyper.beta2) != bits(y.hyper.beta2) ||
            bits(x.hyper.eps) != bits(y.hyper.eps) || bits(x.hyper.weight_decay) != bits(y.hyper.weight_decay))
            return "group " + x.name;
    }
    for (std::size_t p = 0; p < a.params.size(); ++p) {
        state_param const& x = a.params[p];
        state_param const& y = b.params[p];
        if (x.name != y.name || x.shape != y.shape || x.group != y.group)
            return "param " + x.name;
        std::size_t count = 1;
        for (std::size_t const n : x.shape)
            count *= n;
        for (state_array const array : {state_array::param, state_array::exp_avg, state_array::exp_avg_sq}) {
            struct filled {
                std::optional<dtype> type{};              // of any piece
                std::map<std::size_t, std::byte> bytes{}; // by place; a mutated shape may have any size
                bool operator==(filled const&) const = default;
            };
            auto const fill = [&](state_dict const& state) {
                filled result;
                for (state_tensor const& t : state.tensors)
                    if (t.param == p && t.array == array && (t.elements != 0 || count == 0)) {
                        result.type = t.type;
                        for (std::size_t i = 0; i < array_bytes(t.type, t.elements); ++i)
                            result.bytes[array_bytes(t.type, t.begin) + i] = t.data[i];
                    }
                return result;
            };
            if (!(fill(a) == fill(b)))
                return std::string(name(array)) + " of param " + x.name;
        }
    }
    return {};
}

} // namespace test
