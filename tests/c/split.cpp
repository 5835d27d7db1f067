// SPDX-License-Identifier: Apache-2.0
// The C interface: from a ratio to a placement, and the best ratio.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "c_test.hpp"

namespace {

constexpr std::size_t sizes[] = {20000, 4096, 0, 9000};

placement make_split(adamant_split_options const& o)
{
    adamant_placement* made = nullptr;
    ok(adamant_split(sizes, 4, &o, &made));
    return placement(made);
}
std::vector<adamant_piece> pieces_of(placement const& of)
{
    adamant_placement_summary s = initialised(adamant_placement_summary_init);
    ok(adamant_placement_describe(of.get(), &s));
    std::vector<adamant_piece> pieces(s.pieces);
    for (std::size_t i = 0; i < s.pieces; ++i)
        ok(adamant_placement_piece(of.get(), i, &pieces[i]));
    adamant_piece none{};
    refused(adamant_placement_piece(of.get(), s.pieces, &none), "no piece " + std::to_string(s.pieces));
    return pieces;
}
bool same(adamant_piece const& a, adamant_piece const& b)
{
    return a.shard == b.shard && a.begin == b.begin && a.elements == b.elements && a.on_device == b.on_device;
}

} // namespace

TEST_CASE("C: a ratio becomes a placement")
{
    adamant_split_options o = split_options();
    REQUIRE((o.ratio == 1 && o.unit == ADAMANT_SPLIT_ELEMENT && o.order == ADAMANT_SPLIT_FRONT &&
             o.device_order == nullptr && o.most_on_cpu == ADAMANT_NO_LIMIT && o.most_on_device == ADAMANT_NO_LIMIT));
    o.ratio = 0.5;
    placement half = make_split(o);
    std::vector<adamant_piece> const pieces = pieces_of(half);
    REQUIRE(pieces.size() == 4);
    CHECK(same(pieces[0], {0, 0, 16384, 1}));
    CHECK(same(pieces[1], {0, 16384, 3616, 0}));
    CHECK(same(pieces[2], {1, 0, 4096, 0}));
    CHECK(same(pieces[3], {3, 0, 9000, 0}));
    adamant_placement_summary s = initialised(adamant_placement_summary_init);
    ok(adamant_placement_describe(half.get(), &s));
    CHECK(
        (s.cpu_elems == 16712 && s.device_elems == 16384 && s.ratio_asked == 0.5 && s.limited == 0 && s.nearest == 1));
    CHECK(s.ratio == 16712.0 / 33096);
    o.order = ADAMANT_SPLIT_BACK;
    o.unit = ADAMANT_SPLIT_SHARD;
    std::vector<adamant_piece> const whole = pieces_of(make_split(o));
    REQUIRE(whole.size() == 3);
    CHECK((same(whole[0], {0, 0, 20000, 0}) && same(whole[1], {1, 0, 4096, 1}) && same(whole[2], {3, 0, 9000, 1})));
    std::size_t const order[] = {3, 1, 0, 2};
    o.unit = ADAMANT_SPLIT_ELEMENT;
    o.device_order = order;
    o.device_order_count = 4;
    o.ratio = 0.8;
    std::vector<adamant_piece> const ordered = pieces_of(make_split(o));
    REQUIRE(ordered.size() == 4);
    CHECK((ordered[2].shard == 3 && ordered[2].on_device == 0 && same(ordered[3], {3, 4096, 4904, 1})));

    o = split_options();
    o.ratio = 0.9;
    o.most_on_cpu = 20000;
    ok(adamant_placement_describe(make_split(o).get(), &s));
    CHECK((s.limited == 1 && s.cpu_elems <= 20000));
    adamant_placement* made = nullptr;
    o.most_on_device = 100;
    fails(adamant_split(sizes, 4, &o, &made), ADAMANT_UNAVAILABLE, "");
    o = split_options();
    o.unit = ADAMANT_SPLIT_DEEPSPEED;
    o.device_order = order;
    o.device_order_count = 4;
    refused(adamant_split(sizes, 4, &o, &made), "ADAMANT_SPLIT_DEEPSPEED");
    refused(adamant_split(sizes, std::size_t{1} << 61, &o, &made), "no memory holds");
    o = split_options();
    o.ratio = 1.5;
    refused(adamant_split(sizes, 4, &o, &made), "1.5");
    for (std::int32_t const wrong : {-1, 3, INT32_MAX}) {
        o = split_options();
        o.unit = wrong;
        refused(adamant_split(sizes, 4, &o, &made), "unit is " + std::to_string(wrong));
        o = split_options();
        o.order = wrong;
        refused(adamant_split(sizes, 4, &o, &made), "order is " + std::to_string(wrong));
    }
    o = split_options();
    o.device_order_count = 4;
    refused(adamant_split(sizes, 4, &o, &made), "device_order is a null");
    refused(adamant_split(nullptr, 4, &o, &made), "sizes is a null");
    o.device_order_count = 0;
    refused(adamant_split(sizes, 4, &o, nullptr), "made is a null");
    refused(adamant_split(sizes, 4, nullptr, &made), "adamant_split_options is a null");
    REQUIRE(made == nullptr);
    ok(adamant_split(nullptr, 0, &o, &made));
    adamant_placement_free(made);

    // One of the caller's own.
    adamant_piece const own[] = {{0, 0, 4096, 1}, {0, 4096, 100, 0}};
    ok(adamant_placement_create(own, 2, &made));
    placement const created(made);
    ok(adamant_placement_describe(made, &s));
    CHECK((s.pieces == 2 && s.cpu_elems == 100 && s.device_elems == 4096 && s.ratio == s.ratio_asked));
    CHECK(same(pieces_of(created)[1], own[1]));
    adamant_piece const wrong[] = {{0, 0, 4096, 2}};
    refused(adamant_placement_create(wrong, 1, &made), "on_device of piece 0 is 2");
    refused(adamant_placement_create(nullptr, 1, &made), "pieces is a null");
    refused(adamant_placement_create(own, 1, nullptr), "made is a null");
    refused(adamant_placement_describe(nullptr, &s), "placement is a null");
    refused(adamant_placement_describe(made, nullptr), "adamant_placement_summary is a null");
    refused(adamant_placement_piece(nullptr, 0, nullptr), "placement is a null");
    refused(adamant_placement_piece(made, 0, nullptr), "piece is a null");
    adamant_placement_free(nullptr);
}

TEST_CASE("C: at the best ratio both backends finish together")
{
    adamant_step_rates r = initialised(adamant_step_rates_init);
    REQUIRE((std::isinf(r.cpu_elems_per_s) && std::isinf(r.device_elems_per_s) && std::isinf(r.down_bytes_per_s) &&
             std::isinf(r.up_bytes_per_s) && r.grad_bytes == 2 && r.weight_bytes == 2 && r.fixed_s == 0));
    REQUIRE((r.arrays_on_device == 1 && r.overlaps_backward == 1 && r.overlaps_forward == 0));
    r.elems = 1e9;
    r.cpu_elems_per_s = 1e9;
    r.device_elems_per_s = 3e9;
    r.overlaps_backward = 0;
    r.backward_s = 2;
    r.fixed_s = 0.5;
    double ratio = 0;
    double step_s = 0;
    double update_s = 0;
    ok(adamant_best_ratio(&r, 0, 1, &ratio, &step_s));
    CHECK(ratio == Approx(0.25));
    CHECK(step_s == Approx(2 + 0.5 + 0.25));
    ok(adamant_forecast(&r, ratio, &step_s, &update_s));
    CHECK(step_s == Approx(2.75));
    CHECK(update_s == Approx(0.75));
    ok(adamant_best_ratio(&r, 0.5, 1, &ratio, nullptr));
    CHECK(ratio == 0.5);
    ok(adamant_forecast(&r, 1, &step_s, nullptr));
    CHECK(step_s == Approx(3.5));
    ok(adamant_forecast(&r, 1, nullptr, nullptr));
    refused(adamant_forecast(&r, 1.5, &step_s, nullptr), "1.5");
    refused(adamant_best_ratio(&r, 1, 0, &ratio, nullptr), "");
    refused(adamant_best_ratio(&r, 0, 1, nullptr, nullptr), "ratio is a null");
    refused(adamant_best_ratio(nullptr, 0, 1, &ratio, nullptr), "adamant_step_rates is a null");
    refused(adamant_forecast(nullptr, 1, nullptr, nullptr), "adamant_step_rates is a null");
    r.cpu_elems_per_s = -1;
    refused(adamant_forecast(&r, 1, nullptr, nullptr), "cpu_elems_per_s is -1");
}
