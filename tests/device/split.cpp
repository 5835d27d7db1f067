// SPDX-License-Identifier: Apache-2.0
// From a ratio to a placement: what holds of every answer, the nearest one by trying all, DeepSpeed's rules, limits and
// errors.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include <adamant/split.hpp>
#include <adamant/detail/device/whole_shards.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

constexpr std::size_t block = norm_block_elems;
using shard_sizes = std::vector<std::size_t>;

std::size_t sum(shard_sizes const& sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

split_request at_ratio(double ratio, split_unit unit = split_unit::element, split_order order = split_order::front)
{
    split_request request;
    request.ratio = ratio;
    request.unit = unit;
    request.order = order;
    return request;
}

// How many elements of each shard are on the device.
shard_sizes on_device(placement const& of, std::size_t shards)
{
    shard_sizes elems(shards);
    for (shard_piece const& piece : of.pieces)
        if (piece.backend == backend_kind::device)
            elems.at(piece.shard) += piece.elems;
    return elems;
}
// By number, where none of them is cut.
std::vector<std::size_t> shards_on_device(placement const& of)
{
    std::vector<std::size_t> shards;
    for (shard_piece const& piece : of.pieces)
        if (piece.backend == backend_kind::device)
            shards.push_back(piece.shard);
    return shards;
}

// For a failure's report.
std::string shown(shard_sizes const& sizes, split_request const& r)
{
    std::string text = "ratio " + std::to_string(r.ratio) + (r.order == split_order::back ? ", back" : ", front");
    if (r.most_on_cpu)
        text += ", at most " + std::to_string(*r.most_on_cpu) + " on the CPU";
    if (r.most_on_device)
        text += ", at most " + std::to_string(*r.most_on_device) + " on the device";
    if (!r.device_order.empty())
        text += ", ordered";
    text += ", shards:";
    for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 20); ++i)
        text += " " + std::to_string(sizes[i]) +
                (r.device_order.empty() ? "" : "(" + std::to_string(r.device_order[i]) + ")");
    return text + (sizes.size() > 20 ? " ..." : "");
}

std::vector<std::size_t> device_order(split_request const& request, std::size_t shards)
{
    std::vector<std::size_t> order = request.device_order;
    if (order.empty())
        for (std::size_t i = 0; i < shards; ++i)
            order.push_back(request.order == split_order::front ? i : shards - 1 - i);
    return order;
}

// What is wrong with the pieces of any placement; empty where nothing is.
std::string wrong_pieces(placement const& result, shard_sizes const& sizes, split_request const& request)
{
    try {
        validate(result, sizes);
    } catch (error const& e) {
        return e.what();
    }
    std::map<std::size_t, std::vector<backend_kind>> sides;
    for (shard_piece const& piece : result.pieces)
        sides[piece.shard].push_back(piece.backend);
    std::size_t cut = 0;
    for (auto const& [shard, of] : sides) {
        if (of.size() == 1)
            continue;
        ++cut;
        if (of.size() != 2 || of[0] == of[1] ||
            (of[0] == backend_kind::device) != (request.order == split_order::front))
            return "shard " + std::to_string(shard) + " is cut the wrong way";
    }
    if (cut > (request.unit == split_unit::element))
        return std::to_string(cut) + " shards are cut";
    if (result.ratio_asked != request.ratio)
        return "another ratio was asked";
    return {};
}
// Of a split by elements.
std::string wrong_cut(placement const& result, shard_sizes const& sizes, split_request const& request)
{
    if (std::string const wrong = wrong_pieces(result, sizes, request); !wrong.empty())
        return wrong;
    shard_sizes const taken = on_device(result, sizes.size());
    bool full = true;
    for (std::size_t const shard : device_order(request, sizes.size())) {
        if (!full && taken[shard] != 0)
            return "shard " + std::to_string(shard) + " has a part on the device before its turn";
        full = full && taken[shard] == sizes[shard];
    }
    if (!result.nearest)
        return "there is always a nearest";
    bool const limits = request.most_on_cpu || request.most_on_device;
    long double const wanted = (1 - static_cast<long double>(request.ratio)) * static_cast<long double>(sum(sizes));
    // Half a block, and half an element that is not there.
    if (!limits && std::abs(static_cast<long double>(result.device_elems) - wanted) > block / 2 + 0.5L)
        return std::to_string(result.device_elems) + " elements on the device";
    if (!limits && result.limited)
        return "there is no limit";
    return {};
}

double random_ratio(test::random_bits& random)
{
    switch (random.below(4)) {
    case 0: return static_cast<double>(random.below(101)) / 100;
    case 1: return static_cast<double>(random.below(65)) / 64;
    default: return static_cast<double>(random() >> 11) * 0x1p-53;
    }
}
std::vector<std::size_t> random_order(std::size_t n, test::random_bits& random)
{
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = n; i > 1; --i)
        std::swap(order[i - 1], order[random.below(i)]);
    return order;
}
// Some shards of sizes around those that matter, and up to `most`.
shard_sizes random_sizes(std::size_t shards, std::size_t most, test::random_bits& random)
{
    static constexpr std::size_t some[] = {0, 0, 1, 2, block - 1, block, block + 1, 2 * block, 3 * block - 1};
    shard_sizes sizes(shards);
    for (std::size_t& size : sizes)
        size = std::min(most, random.below(2) == 0 ? some[random.below(std::size(some))] : random.below(most));
    return sizes;
}
void randomize_order(split_request& request, std::size_t shards, test::random_bits& random)
{
    request.order = random.below(2) == 0 ? split_order::front : split_order::back;
    if (random.below(2) == 0 && shards != 0)
        request.device_order = random_order(shards, random);
}

// Shards of one rank of so many: the parameters of Llama 3 8B, and of GPT-2 with its odd vocabulary.
shard_sizes llama(std::size_t ranks)
{
    shard_sizes sizes{128256 * 4096};
    for (int layer = 0; layer < 32; ++layer)
        for (std::size_t const rows : test::sizes{4096, 1024, 1024, 4096, 14336, 14336, 14336, 1, 1})
            sizes.push_back(rows * 4096);
    sizes.insert(sizes.end(), {4096, 128256 * 4096});
    for (std::size_t& size : sizes)
        size = (size + ranks - 1) / ranks;
    return sizes;
}
shard_sizes gpt2(std::size_t ranks)
{
    shard_sizes sizes{50257 * 768, 1024 * 768};
    for (int layer = 0; layer < 12; ++layer)
        for (std::size_t const size :
             test::sizes{768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768})
            sizes.push_back(size);
    sizes.insert(sizes.end(), {768, 768});
    for (std::size_t& size : sizes)
        size = (size + ranks - 1) / ranks;
    return sizes;
}

} // namespace

// User reports: DeepSpeed #4775, #4872.
TEST_CASE("every ratio is reached within half a block on the shards of real models", "[coarse_ratio]")
{
    shard_sizes flat; // as DeepSpeed's subgroups of a rank
    for (subgroup const& group : form_subgroups(llama(1), 1'000'000'000, 8))
        flat.push_back(group.elems);
    for (shard_sizes const& sizes : {llama(1), llama(8), gpt2(1), gpt2(8), flat, shard_sizes{1'000'000'000}})
        for (split_order const order : {split_order::front, split_order::back}) {
            std::size_t const all = sum(sizes);
            std::size_t previous = all + 1;
            for (int percent = 0; percent <= 100; ++percent) {
                double const ratio = percent / 100.0;
                split_request const request = at_ratio(ratio, split_unit::element, order);
                placement const result = split(sizes, request);
                INFO(shown(sizes, request));
                CHECK(wrong_cut(result, sizes, request) == "");
                CHECK(std::abs(result.ratio() - ratio) * static_cast<double>(all) <= block / 2 + 0.5);
                CHECK(result.device_elems < previous); // no two ratios behave alike
                previous = result.device_elems;
            }
            CHECK(std::abs(split(sizes, at_ratio(0.25, split_unit::element, order)).ratio() - 0.25) < 2e-4);
        }
    // DeepSpeed's rule for the same: one subgroup of 1e9 elements is all or nothing.
    CHECK(split(shard_sizes{1'000'000'000}, at_ratio(0.25, split_unit::deepspeed)).ratio() == 1);
    CHECK(split(shard_sizes{400 * block}, at_ratio(0.25)).ratio() == 0.25);
    CHECK(split(shard_sizes(100, 4 * block), at_ratio(0.25)).ratio() == 0.25);
}

TEST_CASE("every element has one place, in the order that was asked for, and the ratio is reached to half a block")
{
    test::random_bits random(1);
    for (int draw = 0; draw < 3000; ++draw) {
        std::size_t const most = std::size_t{1} << (random.below(40) + 1);
        shard_sizes const sizes = random_sizes(random.below(12), most, random);
        split_request request = at_ratio(random_ratio(random));
        randomize_order(request, sizes.size(), random);
        INFO(shown(sizes, request));
        CHECK(wrong_cut(split(sizes, request), sizes, request) == "");
    }
    for (int draw = 0; draw < 10; ++draw) { // thousands of small ones
        shard_sizes const sizes = random_sizes(5000, 3000, random);
        split_request request = at_ratio(random_ratio(random));
        randomize_order(request, sizes.size(), random);
        INFO(shown(sizes, request));
        CHECK(wrong_cut(split(sizes, request), sizes, request) == "");
    }
}

TEST_CASE("the ratios 0 and 1 are exact, and 0.9 is 0.9 however many elements there are")
{
    test::random_bits random(2);
    for (int draw = 0; draw < 200; ++draw) {
        shard_sizes const sizes = random_sizes(1 + random.below(9), std::size_t{1} << 40, random);
        for (split_order const order : {split_order::front, split_order::back})
            for (split_unit const unit : {split_unit::element, split_unit::deepspeed})
                if (unit == split_unit::element || order == split_order::front) {
                    CHECK(split(sizes, at_ratio(0, unit, order)).cpu_elems == 0);
                    CHECK(split(sizes, at_ratio(1, unit, order)).device_elems == 0);
                }
    }
    for (std::size_t const blocks : test::sizes{10, 1000, 10'000'000, std::size_t{10} << 27}) {
        std::size_t const elems = blocks * block; // up to 5 * 2^40
        for (std::size_t tenths = 0; tenths <= 10; ++tenths) {
            INFO(elems << " elements, " << tenths << " tenths");
            double const ratio = static_cast<double>(tenths) / 10;
            std::size_t const device = elems / 10 * (10 - tenths);
            CHECK(split({elems}, at_ratio(ratio)).device_elems == device);
            CHECK(split(shard_sizes(10, elems / 10), at_ratio(ratio)).device_elems == device);
            CHECK(split(shard_sizes(10, elems / 10), at_ratio(ratio, split_unit::shard)).device_elems == device);
            CHECK(split(shard_sizes(10, elems / 10), at_ratio(ratio)).ratio() == ratio);
        }
    }
    std::size_t const huge = std::size_t{1} << 40;
    CHECK(split({huge, huge, huge}, at_ratio(0.5)).pieces ==
          std::vector<shard_piece>{{0, 0, huge, backend_kind::device},
                                   {1, 0, huge / 2, backend_kind::device},
                                   {1, huge / 2, huge / 2, backend_kind::cpu},
                                   {2, 0, huge, backend_kind::cpu}});
}

TEST_CASE("a larger ratio never gives the device more")
{
    test::random_bits random(3);
    for (int draw = 0; draw < 30; ++draw) {
        shard_sizes const sizes = random_sizes(8, 40000, random);
        split_request request;
        randomize_order(request, sizes.size(), random);
        shard_sizes previous = sizes;
        for (int step = 0; step <= 200; ++step) {
            request.ratio = step / 200.0;
            shard_sizes const taken = on_device(split(sizes, request), sizes.size());
            INFO(shown(sizes, request));
            bool less = true;
            for (std::size_t i = 0; i < sizes.size(); ++i)
                less = less && taken[i] <= previous[i];
            CHECK(less);
            previous = taken;
        }
    }
}

TEST_CASE("no cut comes nearer to the ratio, within the limits or without")
{
    test::random_bits random(4);
    int limited = 0, refused = 0, bent = 0;
    for (int draw = 0; draw < 4000; ++draw) {
        shard_sizes const sizes = random_sizes(random.below(6), 5 * block, random);
        std::size_t const all = sum(sizes);
        std::size_t const parts = random.below(65);
        split_request request = at_ratio(static_cast<double>(parts) / 64); // exact
        randomize_order(request, sizes.size(), random);
        if (random.below(3) != 0)
            request.most_on_cpu = random.below(all + all / 4 + 2);
        if (random.below(3) != 0)
            request.most_on_device = random.below(all + all / 4 + 2);
        std::size_t const least = all - std::min(all, request.most_on_cpu.value_or(all));
        std::size_t const most = std::min(all, request.most_on_device.value_or(all));
        INFO(shown(sizes, request));

        // Every place for a cut, as what the device has of elements.
        shard_sizes places{0};
        std::size_t before = 0;
        for (std::size_t const shard : device_order(request, sizes.size())) {
            std::size_t const n = sizes[shard];
            for (std::size_t at = 0; at < n; at += block)
                places.push_back(before + (request.order == split_order::front ? at : n - at));
            before += n;
            places.push_back(before);
        }
        std::size_t const on_cpu = (all * parts + 32) / 64;
        std::size_t const asked = all - on_cpu;
        std::optional<std::size_t> expected;
        if (least <= most)
            for (std::size_t const place : places) {
                auto const far = [&](std::size_t x) { return detail::distance(x, std::clamp(asked, least, most)); };
                if (place >= least && place <= most &&
                    (!expected || far(place) < far(*expected) || (far(place) == far(*expected) && place < *expected)))
                    expected = place;
            }
        if (!expected) {
            std::string const text = refusal<unavailable>([&] { (void)split(sizes, request); });
            CHECK(mentions(text, {least > most ? "elements fit on neither" : "no cut at a multiple of 4096"}));
            ++refused;
            continue;
        }
        placement const result = split(sizes, request);
        CHECK(wrong_cut(result, sizes, request) == "");
        CHECK(result.device_elems == *expected);
        CHECK(result.limited == (asked < least || asked > most));
        limited += result.limited;
        bent += !result.limited && detail::distance(asked, *expected) > block / 2;
    }
    CHECK(limited > 500);
    CHECK(refused > 500);
    CHECK(bent > 10); // the limit stood against the nearer place for a cut only
}

TEST_CASE("the shard that is cut gives its beginning or its end, also in an order that is given")
{
    shard_sizes const sizes{block, 4 * block + 5, 3 * block};
    split_request request = at_ratio(0.5);
    request.device_order = {1, 2, 0};
    CHECK(split(sizes, request).pieces == std::vector<shard_piece>{{0, 0, block, backend_kind::cpu},
                                                                   {1, 0, 4 * block, backend_kind::device},
                                                                   {1, 4 * block, 5, backend_kind::cpu},
                                                                   {2, 0, 3 * block, backend_kind::cpu}});
    request.order = split_order::back;
    CHECK(split(sizes, request).pieces == std::vector<shard_piece>{{0, 0, block, backend_kind::cpu},
                                                                   {1, 0, 4 * block + 5, backend_kind::device},
                                                                   {2, 0, 3 * block, backend_kind::cpu}});
    request.ratio = 0.75;
    CHECK(split(sizes, request).pieces == std::vector<shard_piece>{{0, 0, block, backend_kind::cpu},
                                                                   {1, 0, 2 * block, backend_kind::cpu},
                                                                   {1, 2 * block, 2 * block + 5, backend_kind::device},
                                                                   {2, 0, 3 * block, backend_kind::cpu}});
    CHECK(split(sizes, at_ratio(0.75, split_unit::element, split_order::back)).pieces ==
          std::vector<shard_piece>{{0, 0, block, backend_kind::cpu},
                                   {1, 0, 4 * block + 5, backend_kind::cpu},
                                   {2, 0, block, backend_kind::cpu},
                                   {2, block, 2 * block, backend_kind::device}});
}

TEST_CASE("without elements there is nothing to place, and the CPU has it all")
{
    for (shard_sizes const& sizes : {shard_sizes{}, shard_sizes{0}, shard_sizes{0, 0, 0}})
        for (split_unit const unit : {split_unit::element, split_unit::shard, split_unit::deepspeed})
            for (double const ratio : {0.0, 0.3, 1.0}) {
                split_request request = at_ratio(ratio, unit);
                request.most_on_cpu = 0;
                request.most_on_device = 0;
                placement const result = split(sizes, request);
                CHECK(wrong_pieces(result, sizes, request) == "");
                CHECK(result.pieces.empty());
                CHECK(result.ratio() == 1);
                CHECK(!result.limited);
                CHECK(result.nearest);
            }
}

TEST_CASE("no set of whole shards comes nearer to the ratio")
{
    test::random_bits random(5);
    int refused = 0, limited = 0, ties = 0;
    for (int draw = 0; draw < 1200; ++draw) {
        std::size_t const shards = draw % 100 == 0 ? 14 : random.below(9);
        std::size_t const step = test::sizes{1, 2, 3, 8, 64}.begin()[random.below(5)]; // what sizes have in common
        shard_sizes sizes(shards);
        std::size_t const most_size = random.below(3) == 0 ? 4 : 60;
        for (std::size_t& size : sizes)
            size = random.below(most_size) * step;
        std::size_t const all = sum(sizes);
        std::size_t const parts = random.below(65);
        split_request request = at_ratio(static_cast<double>(parts) / 64, split_unit::shard);
        randomize_order(request, shards, random);
        if (random.below(3) == 0)
            request.most_on_cpu = random.below(all + all / 4 + 2);
        if (random.below(3) == 0)
            request.most_on_device = random.below(all + all / 4 + 2);
        std::size_t const least = all - std::min(all, request.most_on_cpu.value_or(all));
        std::size_t const most = std::min(all, request.most_on_device.value_or(all));
        INFO(shown(sizes, request));

        std::size_t const asked = all - (all * parts + 32) / 64;
        std::optional<std::size_t> expected;
        bool tie = false;
        if (least <= most)
            for (std::size_t set = 0; set < std::size_t{1} << shards; ++set) {
                std::size_t elems = 0;
                for (std::size_t i = 0; i < shards; ++i)
                    elems += (set >> i & 1) * sizes[i];
                if (elems < least || elems > most)
                    continue;
                auto const far = [&](std::size_t x) { return detail::distance(x, std::clamp(asked, least, most)); };
                if (expected && far(elems) == far(*expected) && elems != *expected)
                    tie = true;
                else if (expected && far(elems) < far(*expected))
                    tie = false;
                if (!expected || far(elems) < far(*expected) || (far(elems) == far(*expected) && elems < *expected))
                    expected = elems;
            }
        if (!expected) {
            CHECK(mentions(refusal<unavailable>([&] { (void)split(sizes, request); }),
                           {least > most ? "elements fit on neither" : "no set of whole shards fits both limits"}));
            ++refused;
            continue;
        }
        placement const result = split(sizes, request);
        CHECK(wrong_pieces(result, sizes, request) == "");
        CHECK(result.nearest);
        CHECK(result.device_elems == *expected);
        CHECK(result.limited == (asked < least || asked > most));
        limited += result.limited;
        ties += tie;
        // Of shards of one size those that come first in the order.
        shard_sizes const taken = on_device(result, shards);
        std::map<std::size_t, bool> left; // by size
        bool in_order = true;
        for (std::size_t const shard : device_order(request, shards)) {
            in_order = in_order && (taken[shard] == 0 || !left[sizes[shard]]);
            left[sizes[shard]] = left[sizes[shard]] || (sizes[shard] != 0 && taken[shard] == 0);
        }
        CHECK(in_order);
    }
    CHECK(refused > 20);
    CHECK(limited > 100);
    CHECK(ties > 20); // of which the smaller was expected
}

TEST_CASE("of thousands of shards of few sizes the nearest set is found")
{
    test::random_bits random(6);
    for (int draw = 0; draw < 4; ++draw) {
        std::size_t const size[] = {3 * 1024 + 1, 1024 * 7, random.below(5000) + 1};
        std::size_t const count[] = {300 + random.below(200), 200 + random.below(200), 800 + random.below(800)};
        shard_sizes sizes;
        for (std::size_t c = 0; c < 3; ++c)
            sizes.insert(sizes.end(), count[c], size[c]);
        for (std::size_t i = sizes.size(); i > 1; --i)
            std::swap(sizes[i - 1], sizes[random.below(i)]);
        std::size_t const all = sum(sizes);
        std::size_t const parts = random.below(1025);
        std::size_t const wanted = all - (all * parts + 512) / 1024;
        std::size_t best = all;
        for (std::size_t a = 0; a <= count[0]; ++a)
            for (std::size_t b = 0; b <= count[1]; ++b) {
                std::size_t const elems = a * size[0] + b * size[1];
                std::size_t const c = elems >= wanted ? 0 : std::min(count[2], (wanted - elems) / size[2]);
                best = std::min({best, detail::distance(elems + c * size[2], wanted),
                                 detail::distance(elems + std::min(count[2], c + 1) * size[2], wanted)});
            }
        split_request const request = at_ratio(static_cast<double>(parts) / 1024, split_unit::shard);
        placement const result = split(sizes, request);
        INFO(shown(sizes, request));
        CHECK(wrong_pieces(result, sizes, request) == "");
        CHECK(result.nearest);
        CHECK(detail::distance(result.device_elems, wanted) == best);
    }
}

TEST_CASE("a set within the limits is found behind thousands that are not")
{
    shard_sizes sizes(2000, 1);
    sizes.push_back(10'000);
    split_request request = at_ratio(1, split_unit::shard);
    request.most_on_cpu = 7000;
    request.most_on_device = 11'000;
    placement const result = split(sizes, request);
    CHECK(wrong_pieces(result, sizes, request) == "");
    CHECK(result.device_elems == 10'000); // the 2000 are nearer to the 5000 that must be there, but too few
    CHECK(result.limited);
    CHECK(result.nearest);
}

TEST_CASE("of huge shards with nothing in common a near set is found, and it is not called the nearest")
{
    test::random_bits random(7);
    for (std::size_t const shards : test::sizes{5, 40}) {
        shard_sizes sizes(shards);
        for (std::size_t& size : sizes)
            size = (random() >> 26) | 1; // to 2^38
        sizes[1] = sizes[0] + 2;         // so that there is nothing in common
        std::size_t const all = sum(sizes);
        split_request request = at_ratio(0.37, split_unit::shard);
        INFO(shown(sizes, request));
        placement const result = split(sizes, request);
        CHECK(wrong_pieces(result, sizes, request) == "");
        CHECK(!result.nearest);
        double const far = std::abs(result.ratio() - 0.37);
        if (shards == 5) { // of which there are few sets: about the nearest of all
            double best = 1;
            for (std::size_t set = 0; set < 32; ++set) {
                std::size_t elems = 0;
                for (std::size_t i = 0; i < 5; ++i)
                    elems += (set >> i & 1) * sizes[i];
                best = std::min(best, std::abs(1 - static_cast<double>(elems) / static_cast<double>(all) - 0.37));
            }
            CHECK(far <= best + 1e-5);
        } else
            CHECK(far < 1e-7);
        // Whoever has everything is as near as can be.
        for (double const ratio : {0.0, 1.0}) {
            request.ratio = ratio;
            placement const one_side = split(sizes, request);
            CHECK(one_side.ratio() == ratio);
            CHECK(one_side.nearest);
        }
    }
    // A window that little fits in.
    shard_sizes sizes(60);
    for (std::size_t& size : sizes)
        size = (random() >> 24) | 1;
    std::size_t const all = sum(sizes);
    split_request request = at_ratio(0.5, split_unit::shard);
    request.most_on_device = all / 2;
    request.most_on_cpu = all - all / 2 + all / 1'000'000;
    placement const result = split(sizes, request);
    CHECK(wrong_pieces(result, sizes, request) == "");
    CHECK(result.device_elems <= *request.most_on_device);
    CHECK(result.cpu_elems <= *request.most_on_cpu);
    // None, as far as was looked: that is not the same as none at all.
    request.most_on_cpu = all - all / 2;
    CHECK(mentions(refusal<unavailable>([&] { (void)split(sizes, request); }),
                   {"no set of whole shards that fits both limits was found", "split_unit::element"}));
}

TEST_CASE("small shards beside huge ones fill what those leave")
{
    // The large ones have no sum near the half; a million elements in small ones make up for it.
    shard_sizes sizes{(std::size_t{1} << 39) + 1, (std::size_t{1} << 39) + 1'000'001};
    sizes.insert(sizes.end(), 1100, 997);
    split_request const request = at_ratio(0.5, split_unit::shard);
    placement const result = split(sizes, request);
    CHECK(wrong_pieces(result, sizes, request) == "");
    CHECK(detail::distance(result.device_elems, sum(sizes) / 2) <= 997);
}

TEST_CASE("whole shards go to the device in the order, and empty ones nowhere")
{
    shard_sizes const sizes{8, 0, 8, 8, 0, 8};
    CHECK(shards_on_device(split(sizes, at_ratio(0.5, split_unit::shard))) == std::vector<std::size_t>{0, 2});
    CHECK(shards_on_device(split(sizes, at_ratio(0.5, split_unit::shard, split_order::back))) ==
          std::vector<std::size_t>{3, 5});
    split_request request = at_ratio(0.5, split_unit::shard);
    request.device_order = {4, 5, 1, 2, 0, 3};
    CHECK(shards_on_device(split(sizes, request)) == std::vector<std::size_t>{2, 5});
    // Of two sets as near, the one that gives the device less, as where shards may be cut.
    CHECK(split({8}, at_ratio(0.5, split_unit::shard)).device_elems == 0);
    CHECK(split({2 * block, 2 * block, 2 * block}, at_ratio(0.5, split_unit::shard)).device_elems == 2 * block);
    CHECK(split({block}, at_ratio(0.5)).device_elems == 0);
}

TEST_CASE("DeepSpeed's rule counts as Python does")
{
    struct known {
        double ratio;
        std::size_t shards, on_device;
    };
    // int((1 - ratio) * n), of which 1 - 0.9 is a little less than 0.1.
    for (known const& k : {known{0.9, 10, 0}, known{0.8, 10, 1}, known{0.7, 10, 3}, known{0.6, 10, 4}, known{0.4, 5, 3},
                           known{0.3, 10, 7}, known{0.1, 10, 9}, known{0.95, 100, 5}, known{0.5, 3, 1}}) {
        INFO(k.ratio << " of " << k.shards);
        shard_sizes sizes(k.shards);
        std::iota(sizes.begin(), sizes.end(), std::size_t{5});
        split_request const request = at_ratio(k.ratio, split_unit::deepspeed);
        placement const result = split(sizes, request);
        CHECK(wrong_pieces(result, sizes, request) == "");
        std::vector<std::size_t> first(k.on_device);
        std::iota(first.begin(), first.end(), std::size_t{0});
        CHECK(shards_on_device(result) == first);
        CHECK(!result.limited);
    }
    // The same of every hundredth and up to 200 shards: in Python
    //   for n in range(1, 201):
    //       for k in range(101): digest = (digest * 31 + int((1 - k / 100) * n)) % 2**61
    std::uint64_t digest = 0;
    for (std::size_t n = 1; n <= 200; ++n) {
        shard_sizes const sizes(n, 1);
        for (int k = 0; k <= 100; ++k)
            digest = (digest * 31 + split(sizes, at_ratio(k / 100.0, split_unit::deepspeed)).device_elems) %
                     (std::uint64_t{1} << 61);
    }
    CHECK(digest == 928509194936447079u);
    // Empty shards are counted like the others.
    CHECK(split({0, 0, 7, 7}, at_ratio(0.5, split_unit::deepspeed)).device_elems == 0);
}

TEST_CASE("what memory has no room for is refused with the numbers")
{
    auto const refused = [](shard_sizes const& sizes, split_unit unit, double ratio, std::optional<std::size_t> cpu,
                            std::optional<std::size_t> device) {
        split_request request = at_ratio(ratio, unit);
        request.most_on_cpu = cpu;
        request.most_on_device = device;
        return refusal<unavailable>([&] { (void)split(sizes, request); });
    };
    for (split_unit const unit : {split_unit::element, split_unit::shard, split_unit::deepspeed})
        CHECK(mentions(refused({100, 200}, unit, 0.5, 120, 150),
                       {"cannot split 300 elements with at most 120 on the CPU and 150 on the device",
                        "30 elements fit on neither", "more memory, more ranks"}));
    CHECK(
        mentions(refused({2 * block}, split_unit::element, 0.5, block - 1, block + 2),
                 {"8192 elements", "at most 4095 on the CPU and 4098 on the device", "no cut at a multiple of 4096"}));
    CHECK(mentions(refused({2 * block}, split_unit::shard, 0.5, block, block),
                   {"no set of whole shards fits both limits", "split_unit::element"}));
    CHECK(mentions(refused({10, 20, 30}, split_unit::deepspeed, 0.3, {}, 25),
                   {"the first 2 of 3 shards, 30 elements, on the device", "does not fit", "another ratio"}));
    CHECK(mentions(refused({10, 20, 30}, split_unit::deepspeed, 0.3, 29, {}), {"the first 2 of 3", "does not fit"}));
    // Many sums, and none that fits: the search must end all the same.
    shard_sizes sizes(2000);
    std::iota(sizes.begin(), sizes.end(), std::size_t{1});
    for (std::size_t& size : sizes)
        size *= 2;
    std::size_t const all = sum(sizes);
    CHECK(mentions(refused(sizes, split_unit::shard, 0.5, all - 1001, 1001),
                   {"no set of whole shards fits both limits"}));
}

TEST_CASE("a request that cannot be is refused with what is wrong")
{
    auto const refused = [](shard_sizes const& sizes, split_request const& request) {
        return refusal<invalid_argument>([&] { (void)split(sizes, request); });
    };
    shard_sizes const three{10, 20, 30};
    for (split_unit const unit : {split_unit::element, split_unit::shard, split_unit::deepspeed}) {
        CHECK(mentions(refused(three, at_ratio(1.5, unit)), {"ratio is 1.5", "CPU's share", "from 0 to 1"}));
        CHECK(mentions(refused(three, at_ratio(-0.25, unit)), {"ratio is -0.25"}));
        CHECK(mentions(refused(three, at_ratio(-1e-9, unit)), {"ratio is -1e-09"}));
        CHECK(mentions(refused(three, at_ratio(std::nan(""), unit)), {"ratio is nan"}));
        CHECK(mentions(refused({}, at_ratio(HUGE_VAL, unit)), {"ratio is inf"}));
    }
    auto const ordered = [](std::vector<std::size_t> order, split_unit unit = split_unit::element) {
        split_request request = at_ratio(0.5, unit);
        request.device_order = std::move(order);
        return request;
    };
    for (split_unit const unit : {split_unit::element, split_unit::shard}) {
        CHECK(mentions(refused(three, ordered({0, 1, 0}, unit)), {"device_order names shard 0 twice"}));
        CHECK(mentions(refused(three, ordered({0, 3, 1}, unit)), {"names shard 3, but there are 3, counted from 0"}));
        CHECK(mentions(refused(three, ordered({2, 0}, unit)), {"names 2 of 3 shards", "each of them once"}));
        CHECK(mentions(refused({}, ordered({0}, unit)), {"names shard 0, but there are 0"}));
    }
    CHECK(mentions(refused(three, ordered({0, 1, 2}, split_unit::deepspeed)),
                   {"split_unit::deepspeed", "Omit the order"}));
    CHECK(mentions(refused(three, at_ratio(0.5, split_unit::deepspeed, split_order::back)), {"Omit the order"}));
    CHECK(mentions(refused(three, at_ratio(0.5, static_cast<split_unit>(3))), {"unit is not a valid split_unit"}));
    CHECK(mentions(refused(three, at_ratio(0.5, split_unit::element, static_cast<split_order>(2))),
                   {"order is not a valid split_order"}));
    CHECK(
        mentions(refused({std::size_t{1} << 63, std::size_t{1} << 63, 5}, at_ratio(0.5)), {"more than 2^53 elements"}));
    CHECK(mentions(refused({(std::size_t{1} << 53) + 1}, at_ratio(0.5)), {"more than 2^53 elements"}));
    CHECK(split({std::size_t{1} << 53}, at_ratio(0.25)).ratio() == 0.25);
}

TEST_CASE("a placement that is broken is refused by what is broken")
{
    shard_sizes const sizes{2 * block, 0, 100};
    placement const good{
        {{0, 0, block, backend_kind::device}, {0, block, block, backend_kind::cpu}, {2, 0, 100, backend_kind::cpu}},
        block + 100,
        block,
        0.5,
        false,
        true};
    CHECK_NOTHROW(validate(good, sizes));
    CHECK_NOTHROW(validate(placement{}, {}));
    CHECK_NOTHROW(validate(placement{}, {0, 0}));
    auto const broken = [&](std::function<void(placement&)> const& how) {
        placement changed = good;
        how(changed);
        return refusal<invalid_argument>([&] { validate(changed, sizes); });
    };
    std::string const what_to_do = "Call split() with the sizes of the shards, in the optimizer's order";
    CHECK(mentions(broken([](placement& p) { p.pieces.pop_back(); }),
                   {"ends before element 0 of shard 2 (100 elements)", what_to_do.c_str()}));
    CHECK(mentions(broken([](placement& p) { p.pieces.back().elems = 99; }), {"ends before element 99 of shard 2"}));
    CHECK(
        mentions(broken([](placement& p) { p.pieces.clear(); }), {"ends before element 0 of shard 0 (8192 elements)"}));
    CHECK(mentions(
        broken([](placement& p) { p.pieces.erase(p.pieces.begin() + 1); }),
        {"has elements 0 to 100 of shard 2 where elements from 4096 of shard 0 (8192 elements) are expected"}));
    CHECK(mentions(broken([](placement& p) { p.pieces.back().elems = 101; }),
                   {"has elements 0 to 101 of shard 2 where elements from 0 of shard 2 (100 elements) are expected"}));
    CHECK(mentions(broken([](placement& p) { p.pieces.back().elems = static_cast<std::size_t>(-1); }),
                   {"of shard 2 where elements from 0 of shard 2 (100 elements) are expected"}));
    CHECK(mentions(broken([](placement& p) { p.pieces[1].begin = 0; }),
                   {"has elements 0 to 4096 of shard 0 where elements from 4096 of shard 0"}));
    CHECK(mentions(broken([](placement& p) { std::swap(p.pieces[0], p.pieces[1]); }),
                   {"has elements 4096 to 8192 of shard 0 where elements from 0 of shard 0"}));
    CHECK(mentions(broken([](placement& p) {
                       p.pieces.push_back({2, 100, 1, backend_kind::cpu});
                   }),
                   {"has elements 100 to 101 of shard 2 where all shards are complete"}));
    CHECK(mentions(broken([](placement& p) {
                       p.pieces.push_back({7, 0, 1, backend_kind::cpu});
                   }),
                   {"of shard 7 where all shards are complete"}));
    CHECK(mentions(broken([](placement& p) {
                       p.pieces.insert(p.pieces.begin() + 2, {1, 0, 0, backend_kind::cpu});
                   }),
                   {"piece without elements", "shard 1"}));
    CHECK(mentions(broken([](placement& p) {
                       p.pieces[0].elems = 100;
                       p.pieces[1] = {0, 100, 2 * block - 100, backend_kind::cpu};
                   }),
                   {"cuts shard 0 at element 100, which is not a multiple of 4096"}));
    CHECK(mentions(broken([](placement& p) { ++p.cpu_elems; }),
                   {"counts 4197 elements on the CPU and 4096 on the device", "its pieces have 4196 and 4096"}));
    CHECK(
        mentions(broken([](placement& p) { --p.device_elems; }), {"4196 elements on the CPU and 4095 on the device"}));
    CHECK(mentions(broken([](placement& p) { p.pieces[0].backend = backend_kind::cpu; }),
                   {"its pieces have 8292 and 0"}));
    CHECK(mentions(broken([](placement& p) { p.pieces[0].backend = static_cast<backend_kind>(2); }),
                   {"shard 0", "neither on the CPU nor on the device"}));
    CHECK(mentions(refusal<invalid_argument>([&] { validate(good, {2 * block, 0}); }), {"all shards are complete"}));
    CHECK(mentions(refusal<invalid_argument>([&] {
                       validate(good, {2 * block, 0, 100, 1});
                   }),
                   {"ends before element 0 of shard 3 (1 element)"}));
}

TEST_CASE("subgroups are those of DeepSpeed's ZeRO stage 3")
{
    // Its rule, as of a list of parameters' shares of a rank: the lengths of the groups.
    auto const lengths = [](std::vector<std::size_t> const& shares, std::size_t size) {
        std::vector<std::size_t> groups;
        std::size_t length = 0, elems = 0;
        for (std::size_t i = 0; i < shares.size(); ++i) {
            ++length;
            elems += shares[i];
            if (elems >= size || i + 1 == shares.size()) {
                groups.push_back(length);
                length = elems = 0;
            }
        }
        return groups;
    };
    test::random_bits random(8);
    for (int draw = 0; draw < 2000; ++draw) {
        shard_sizes params(random.below(30));
        for (std::size_t& size : params)
            size = random.below(random.below(5) == 0 ? 5000 : 200);
        std::size_t const ranks = 1 + random.below(9);
        std::size_t const size = 1 + random.below(2000);
        std::vector<std::size_t> shares;
        for (std::size_t const param : params)
            shares.push_back(
                static_cast<std::size_t>(std::ceil(static_cast<double>(param) / static_cast<double>(ranks))));
        std::vector<subgroup> const groups = form_subgroups(params, size, ranks);
        std::vector<std::size_t> found;
        std::size_t next = 0;
        bool whole = true;
        for (subgroup const& group : groups) {
            found.push_back(group.params);
            std::size_t elems = 0;
            whole = whole && group.first_param == next;
            for (; next < group.first_param + group.params && next < params.size(); ++next)
                elems += shares[next];
            whole = whole && elems == group.elems;
        }
        INFO(params.size() << " params, " << ranks << " ranks, " << size);
        CHECK(whole);
        CHECK(found == lengths(shares, size));
    }
    // One parameter that is larger than the size, and a short last one; each rank's share is rounded up.
    std::vector<subgroup> const groups = form_subgroups({10, 5001, 10, 10}, 20, 2);
    REQUIRE(groups.size() == 2);
    CHECK(groups[0].params == 2);
    CHECK(groups[0].elems == 5 + 2501);
    CHECK(groups[1].first_param == 2);
    CHECK(groups[1].elems == 10);
    CHECK(form_subgroups({}, 1).empty());
    CHECK(form_subgroups({20, 20, 20}, 20).size() == 3);
    CHECK(mentions(refusal<invalid_argument>([] { (void)form_subgroups({1}, 0); }), {"sub_group_size is 0", "1e9"}));
    CHECK(mentions(refusal<invalid_argument>([] { (void)form_subgroups({1}, 1, 0); }), {"0 ranks"}));
}
