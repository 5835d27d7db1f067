// SPDX-License-Identifier: Apache-2.0
// What the host's code is made of: texts from parts, sorting, checksums, and where shards lie in their parameters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/core/checksum.hpp>
#include <adamant/detail/core/refused_call.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/engine/param_positions.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;

TEST_CASE("a checksum sees one and two bits that change, wherever they are, and the length")
{
    // The one that this processor takes, and the one that every processor has.
    auto const checksum = GENERATE(&detail::checksum, &detail::scalar_checksum);
    std::mt19937_64 random(5);
    std::vector<std::byte> bytes(1030);
    for (std::byte& each : bytes)
        each = static_cast<std::byte>(random());
    std::size_t const bits = 8 * bytes.size();
    std::vector<std::uint64_t> sums;
    // As signs of neighbors, of one chain or of two, lie.
    constexpr std::size_t distances[] = {1, 16, 32, 48, 64, 480, 512, 544, 1024, 4096};
    auto const flip = [&](std::size_t bit) { bytes[bit / 8] ^= std::byte(1 << bit % 8); };
    auto const add = [&] { sums.push_back(checksum(bytes.data(), bytes.size())); };
    add();
    for (std::size_t i = 0; i < bits; ++i) {
        flip(i);
        add();
        for (std::size_t const distance : distances)
            if (i + distance < bits) {
                flip(i + distance);
                add();
                flip(i + distance);
            }
        flip(i);
    }
    std::vector<std::byte> const zeros(2000);
    for (std::size_t n = 0; n <= zeros.size(); ++n)
        sums.push_back(checksum(zeros.data(), n));
    std::sort(sums.begin(), sums.end());
    CHECK(std::adjacent_find(sums.begin(), sums.end()) == sums.end());

    // Words in another order.
    std::vector<std::uint64_t> words(128);
    for (std::uint64_t& word : words)
        word = random();
    auto const sum = [&] {
        return checksum(reinterpret_cast<std::byte const*>(words.data()), words.size() * sizeof words[0]);
    };
    std::uint64_t const before = sum();
    std::size_t same = 0;
    for (std::size_t i = 0; i < words.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            std::swap(words[i], words[j]);
            same += sum() == before;
            std::swap(words[i], words[j]);
        }
    CHECK(same == 0);
}

TEST_CASE("keys are sorted as std::stable_sort sorts them")
{
    std::mt19937_64 random(9);
    for (unsigned const key_bits : {0u, 1u, 3u, 11u, 12u, 33u, 64u})
        for (std::size_t const n : {0u, 1u, 2u, 7u, 3000u}) {
            std::vector<std::uint64_t> keys(n);
            for (std::uint64_t& key : keys)
                key = 0xfedcba9876543210 ^ (key_bits == 0 ? 0 : random() >> (64 - key_bits));
            std::vector<std::size_t> expected(n);
            std::iota(expected.begin(), expected.end(), std::size_t{0});
            std::stable_sort(expected.begin(), expected.end(),
                             [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
            CHECK(detail::sorted_order(keys) == expected);
        }
}

TEST_CASE("a text is its parts one after another")
{
    using detail::text_of;
    std::string const name = "layer";
    std::string_view const part = std::string_view("weights").substr(0, 6);
    CHECK(text_of({}) == "");
    CHECK(text_of({"", std::string(), std::string_view()}) == "");
    CHECK(text_of({name, ' ', 0u, ": ", part}) == "layer 0: weight");
    CHECK(text_of({std::string("a\0b", 3)}) == std::string("a\0b", 3));
    CHECK(text_of({std::numeric_limits<std::uint64_t>::max(), '|', std::numeric_limits<std::int64_t>::min(), '|',
                   std::numeric_limits<unsigned>::max(), '|', std::numeric_limits<int>::min(), '|', 7ull}) ==
          "18446744073709551615|-9223372036854775808|4294967295|-2147483648|7");
    CHECK(text_of({0.1, ' ', 1e-40, ' ', -0.0, ' ', std::numeric_limits<double>::infinity()}) == "0.1 1e-40 -0 inf");
}

TEST_CASE("exceptions say whose they are")
{
    CHECK(test::refusal([] { detail::throw_invalid_argument({"a ", 1}); }) == "adamant: a 1");
    CHECK_THROWS_AS(detail::throw_invalid_argument({"a"}), invalid_argument);
    CHECK_THROWS_AS(detail::throw_unavailable({"a"}), unavailable);
    CHECK_THROWS_AS(detail::throw_device_error({"a"}), device_error);
    CHECK_THROWS_AS(detail::throw_corrupted({"a"}), corrupted);
}

TEST_CASE("sorting keeps the order of equals")
{
    std::mt19937 random(1);
    for (std::size_t n : {0u, 1u, 2u, 17u, 1000u}) {
        std::vector<std::pair<unsigned, std::size_t>> all;
        for (std::size_t i = 0; i < n; ++i)
            all.push_back({static_cast<unsigned>(random() % 7), i});
        auto expected = all;
        std::sort(expected.begin(), expected.end());
        auto const by_first = [](auto const& a, auto const& b) { return a.first < b.first; };
        std::vector<std::size_t> const order = detail::sorted_order(all, by_first);
        REQUIRE(order.size() == n);
        for (std::size_t i = 0; i < n; ++i)
            REQUIRE(all[order[i]] == expected[i]);
        detail::sort_stably(all, by_first);
        REQUIRE(all == expected);
    }
}

TEST_CASE("shards are found by name and element, in whatever order they came")
{
    // Parameters of 100 elements, in shards of ten and some of none, against a map.
    std::mt19937 random(2);
    for (int round = 0; round < 20; ++round) {
        detail::param_positions places;
        std::map<std::pair<std::string, std::size_t>, std::size_t> filled;
        std::map<std::pair<std::string, std::size_t>, std::size_t> empty;
        std::vector<std::pair<std::string, std::size_t>> added;
        shard_dtypes const types = {dtype::float32, dtype::bfloat16, dtype::float32, dtype::float32, dtype::bfloat16};
        for (int i = 0; i < 60; ++i) {
            std::string const name = "p" + std::to_string(random() % 12);
            std::size_t const begin = random() % 11 * 10;
            std::size_t const size = begin == 100 || random() % 4 == 0 ? 0 : 10;
            if (size != 0 && filled.contains({name, begin})) {
                CHECK_THROWS_AS(places.add(name, 0, types, size, {{100}, begin}), invalid_argument);
                CHECK_THROWS_AS(places.add(name, 0, types, 5, {{100}, begin + 5}), invalid_argument);
                CHECK(places.size() == added.size());
                continue;
            }
            CHECK_THROWS_AS(places.add(name, 0, types, 101 - begin, {{100}, begin}), invalid_argument);
            places.add(name, 0, types, size, {{100}, begin});
            (size != 0 ? filled : empty).emplace(std::pair(name, begin), added.size());
            added.push_back({name, begin});
        }
        auto const check = [&](detail::param_positions const& in) {
            for (int p = 0; p < 13; ++p)
                for (std::size_t begin = 0; begin <= 100; begin += 5) {
                    std::pair const place("p" + std::to_string(p), begin);
                    std::optional<std::size_t> const found = in.find(place.first, begin);
                    std::optional<std::size_t> expected;
                    if (auto const at = filled.find(place); at != filled.end())
                        expected = at->second;
                    else if (auto const none = empty.find(place); none != empty.end())
                        expected = none->second;
                    REQUIRE(found == expected);
                }
        };
        check(places);
        for (std::size_t i = 0; i < added.size(); ++i)
            REQUIRE(places.name(i) == added[i].first);
        // Without one that has elements.
        if (!filled.empty()) {
            std::size_t const gone = filled.begin()->second;
            filled.erase(filled.begin());
            for (auto* const of : {&filled, &empty})
                for (auto& [place, shard] : *of)
                    shard -= shard > gone;
            detail::param_positions rest = places;
            rest.remove(gone);
            check(rest);
        }
    }
}

TEST_CASE("advice on a refused call follows its error")
{
    for (int const error : {EPERM, EACCES}) { // no limit is the reason
        CHECK(detail::advice_on(error, "see ulimit -v").find("seccomp") != std::string::npos);
        CHECK(detail::advice_on(error, "see ulimit -v").find("ulimit") == std::string::npos);
    }
    CHECK(detail::advice_on(ENOSYS, "see ulimit -v").find("the kernel does not have this call") != std::string::npos);
    CHECK(detail::advice_on(ENOSYS, "see ulimit -v").find("CAP_SYS_NICE") == std::string::npos);
    for (int const error : {ENOMEM, EAGAIN, EINVAL}) {
        CHECK(detail::advice_on(error, "see ulimit -v") == "see ulimit -v");
        CHECK(detail::advice_on_numa_call(error, "are they online?") == "are they online?");
    }
    // Container engines allow the calls on NUMA memory to those alone who have a capability.
    CHECK(detail::advice_on_numa_call(EPERM, "") == "a seccomp filter forbids it; in a container, add CAP_SYS_NICE");
    for (int const error : {EACCES, ENOSYS})
        CHECK(detail::advice_on_numa_call(error, "") == detail::advice_on(error, ""));
    CHECK(detail::refused_text("mmap", ENOMEM, "see ulimit -v") ==
          std::string("mmap: ") + std::strerror(ENOMEM) + "; see ulimit -v");
    CHECK(detail::refused_text("mmap", EPERM, "") == std::string("mmap: ") + std::strerror(EPERM));
}
