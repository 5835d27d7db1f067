// SPDX-License-Identifier: Apache-2.0
// States of optimizers that defer gradients as safetensors files: what is saved is what is loaded, what was altered
// is noticed, and a run that goes on from files has the bits of the one that was never stopped.
#include <algorithm>
#include <array>
#include <barrier>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/shard.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/zenflow_safetensors.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#include "edited_files.hpp"
#include "saved_files.hpp"
#include "zenflow_states.hpp"

using namespace adamant;
using namespace test;

namespace {

struct kind {
    using state = zenflow_state;
    static state read(auto const&... from) { return detail::read_zenflow_safetensors("FILE", from...); }
    static std::string difference(state const& a, state const& b) { return test::difference(a, b); }
};
using loaded = loaded_file<kind>;

template <class Error = corrupted>
std::string load_refusal(std::string const& bytes)
{
    return refusal_of_file<kind, Error>(bytes);
}

// A matrix with all there can be, rows of another one with split master weights, and a vector.
owned_zenflow_state small_state()
{
    owned_zenflow_state result;
    random_bits random(3);
    zenflow_state& state = result.state;
    state.position = {7, 3, 1, true, 0.1};
    state.deferred_norm = 0.3;
    state.loss_scaler = loss_scaler_state{1024, 3, 2};
    state.groups = {{"all", {.lr = 0.1, .weight_decay = 0.01, .mode = decay_mode::decoupled}, false}};
    state.metadata = {{"seed", "11"}};
    using enum dtype;
    zenflow_state_param w;
    w.name = "w";
    w.columns = 3;
    w.all_rows = w.rows = 2;
    w.types = {float32, bfloat16, float32, float32, bfloat16};
    w.summed = 1;
    result.add(w, random);
    zenflow_state_param half;
    half.name = "half";
    half.columns = 2;
    half.all_rows = 4;
    half.first_row = 1;
    half.rows = 2;
    half.types = {split_float32, bfloat16, bfloat16, bfloat16, bfloat16};
    result.add(half, random);
    zenflow_state_param b;
    b.name = "b";
    b.all_rows = b.rows = 3;
    b.types = {bfloat16, bfloat16, float32, float32, none};
    result.add(b, random);
    for (std::size_t i : {0u, 1u}) { // whatever was drawn
        zenflow_state_param& p = state.params[i];
        p.summed = i == 0 ? 2 : 0;
        p.weights = result.add(random_bytes(random, p.rows * p.columns * 2));
        p.sums = i != 0 ? nullptr : reinterpret_cast<float const*>(result.add(random_bytes(random, 24), 0));
    }
    return result;
}

// The tensors of its file, in the order of their bytes.
struct place_in_file {
    char const* name;
    char const* type;
    json shape;
    std::size_t bytes;
};
std::vector<place_in_file> const& small_places()
{
    static std::vector<place_in_file> const places = {
        {"w.counts", "U64", {3}, 24},
        {"half.counts[1:3]", "U64", {2}, 16},
        {"b.counts", "U64", json::array({1}), 8},
        {"w.param", "F32", {3, 2}, 24},
        {"w.exp_avg", "F32", {3, 2}, 24},
        {"w.exp_avg_sq", "F32", {3, 2}, 24},
        {"w.sums", "F32", {2, 3}, 24},
        {"b.exp_avg", "F32", {3}, 12},
        {"b.exp_avg_sq", "F32", {3}, 12},
        {"w.weights", "BF16", {2, 3}, 12},
        {"half.param[1:3]", "U16", {2, 2}, 8},
        {"half.exp_avg[1:3]", "BF16", {2, 2}, 8},
        {"half.exp_avg_sq[1:3]", "BF16", {2, 2}, 8},
        {"half.weight_out[1:3]", "BF16", {2, 2}, 8},
        {"half.weights[1:3]", "BF16", {2, 2}, 8},
        {"b.param", "BF16", {3}, 6},
        {"w.selected", "BOOL", {3}, 3},
        {"w.publishing", "BOOL", {3}, 3},
        {"half.selected[1:3]", "BOOL", {2}, 2},
        {"half.publishing[1:3]", "BOOL", {2}, 2},
    };
    return places;
}

} // namespace

TEST_CASE("a saved state of ZenFlow is loaded bit for bit")
{
    scratch_folder const folder;
    random_bits random(40);
    for (int i = 0; i < 300; ++i) {
        owned_zenflow_state const original = random_zenflow_state(random);
        save_safetensors(folder / "a", original.state);
        zenflow_safetensors_state const file(folder / "a");
        REQUIRE(difference(original.state, file.state()) == "");
        for (zenflow_state_param const& p : file.state().params) {
            REQUIRE(p.source != nullptr);
            REQUIRE(reinterpret_cast<std::uintptr_t>(p.sums) % alignof(float) == 0);
        }
        // Saved again, from the file: the same bytes.
        save_safetensors(folder / "b", file.state());
        REQUIRE(bytes_of(folder / "a") == bytes_of(folder / "b"));
        REQUIRE(difference(loaded(saved(original.state)).state, original.state) == "");
    }
}

TEST_CASE("ZenFlow's file is laid out as it says")
{
    std::string const file = saved(small_state().state);
    json const header = header_of(file);
    CHECK(header_bytes(file) % 8 == 0);
    CHECK(header.size() == 1 + small_places().size());
    std::size_t begin = 0;
    for (place_in_file const& each : small_places()) {
        INFO(each.name);
        REQUIRE(header.contains(each.name));
        CHECK(header[each.name] == tensor_entry(each.type, each.shape, begin, begin + each.bytes));
        begin += each.bytes;
    }
    CHECK(file.size() == 8 + header_bytes(file) + begin);
    json const metadata = header["__metadata__"];
    CHECK(metadata.size() == 5 + 1);
    CHECK(metadata["adamant.format_version"] == "2");
    CHECK(metadata["adamant.step"] == "7");
    CHECK(metadata["seed"] == "11");
    json const state = json::parse(metadata["adamant.state"].get<std::string>());
    CHECK(state["groups"][0]["lr"] == 0.1);
    CHECK(state["loss_scaler"]["scale"] == 1024.0);
    CHECK(state["position"] ==
          json{{"since_selection", 3}, {"in_window", 1}, {"has_selection", true}, {"done_squares", 0.1}});
    CHECK(state["deferred_norm"] == 0.3);
    CHECK(state["params"][1] == json{{"name", "half"},
                                     {"group", 0},
                                     {"columns", 2},
                                     {"all_rows", 4},
                                     {"first_row", 1},
                                     {"rows", 2},
                                     {"summed", 0},
                                     {"types", {"split_float32", "bfloat16", "bfloat16", "bfloat16", "bfloat16"}}});

    // Moments of 8 bits, a group a row.
    random_bits random(41);
    owned_zenflow_state groups;
    groups.state.groups = {{"g", {}, false}};
    zenflow_state_param p;
    p.types = {dtype::float32, dtype::bfloat16, dtype::quantized8, dtype::quantized8, dtype::none};
    p.name = "w";
    p.columns = 5;
    p.all_rows = p.rows = 128;
    groups.add(p, random);
    p.name = "b";
    p.columns = 0;
    p.all_rows = p.rows = 70;
    groups.add(p, random);
    json const parts = header_of(saved(groups.state));
    CHECK(parts["w.exp_avg"]["shape"] == json{5, 2, 68});
    CHECK(parts["w.exp_avg_sq"]["dtype"] == "U8");
    CHECK(parts["b.exp_avg"]["shape"] == json{2, 68});
}

TEST_CASE("pieces without rows are saved once at one place")
{
    owned_zenflow_state all = small_state();
    zenflow_state_param none = all.state.params[1];
    none.first_row = 3;
    none.rows = 0;
    for (auto& array : none.arrays)
        array = nullptr;
    none.weights = nullptr;
    zenflow_state once = all.state;
    once.params.push_back(none);
    zenflow_state twice = once;
    twice.params.push_back(none);
    CHECK((saved(once) == saved(twice)));
    CHECK(difference(loaded(saved(twice)).state, once) == "");
    CHECK(header_of(saved(once))["half.counts[3:3]"]["shape"] == json::array({2}));
}

TEST_CASE("a state of ZenFlow may have nothing in it")
{
    zenflow_state nothing;
    CHECK(difference(loaded(saved(nothing)).state, nothing) == "");
    nothing.position.steps = std::numeric_limits<std::uint64_t>::max();
    CHECK(difference(loaded(saved(nothing)).state, nothing) == "");
    CHECK(difference(loaded(saved(nothing)).state, {}) == "step");
}

TEST_CASE("the types that a state of ZenFlow may have are those of the formats")
{
    std::size_t found = 0;
    for (unsigned code = 0; code < 6 * 6 * 6 * 6 * 6; ++code) {
        shard_dtypes types = {};
        unsigned rest = code;
        for (dtype& type : types) {
            type = static_cast<dtype>(rest % 6);
            rest /= 6;
        }
        REQUIRE(detail::are_shard_types(types) == (find_format(types) != nullptr));
        found += detail::are_shard_types(types);
    }
    CHECK(found == all_formats().size());
}

TEST_CASE("the caller's floating-point mode reaches no checkpoint of ZenFlow")
{
    random_bits random(42);
    for (int i = 0; i < 20; ++i) {
        owned_zenflow_state const original = random_zenflow_state(random);
        std::string const expected = saved(original.state);
        scratch_folder const folder;
        set_bytes(folder / "a", expected);
        std::fesetround(FE_UPWARD);
        std::string const upward = saved(original.state);
        zenflow_safetensors_state const file(folder / "a");
        std::fesetround(FE_TONEAREST);
        CHECK((upward == expected));
        CHECK(difference(file.state(), original.state) == "");
        float_mode_scope const flushed(subnormals::flushed);
        CHECK((saved(original.state) == expected));
        CHECK(difference(zenflow_safetensors_state(folder / "a").state(), original.state) == "");
    }
}

TEST_CASE("a loaded state of ZenFlow moves with its object, outlives the file, and lies in memory where it is told to")
{
    scratch_folder const folder;
    owned_zenflow_state const original = small_state();
    save_safetensors(folder / "a", original.state);
    zenflow_safetensors_state first(folder / "a");
    save_safetensors(folder / "a", zenflow_state{});
    std::filesystem::remove(folder / "a");
    zenflow_safetensors_state second(std::move(first));
    CHECK(difference(second.state(), original.state) == "");
    save_safetensors(folder / "b", second.state());
    second = zenflow_safetensors_state(folder / "b");
    CHECK(difference(second.state(), original.state) == "");

    std::size_t const bytes = safetensors_bytes(original.state);
    std::vector<std::uint64_t> words(bytes / 8 + 2);
    std::span<std::byte> const memory = std::as_writable_bytes(std::span(words));
    CHECK(mentions(refusal([&] { write_safetensors(memory.first(bytes - 1), original.state); }),
                   {std::to_string(bytes), std::to_string(bytes - 1)}));
    write_safetensors(memory, original.state);
    zenflow_safetensors_state const read{std::span<std::byte const>(memory.first(bytes))};
    CHECK(difference(read.state(), original.state) == "");
    CHECK(read.state().params[0].source == nullptr);
    CHECK((read.state().params[0].weights > memory.data() &&
           read.state().params[0].weights < memory.data() + memory.size()));
    write_safetensors(memory.subspan(4), original.state);
    CHECK(mentions(
        refusal([&] { zenflow_safetensors_state const odd{std::span<std::byte const>(memory.subspan(4, bytes))}; }),
        {"a multiple of 8"}));
}

TEST_CASE("every flipped byte of ZenFlow's file is noticed, and named")
{
    std::string const good = saved(small_state().state);
    std::size_t const data = 8 + header_bytes(good);
    for (std::size_t i = 0; i < good.size(); ++i)
        for (std::size_t k = 0; k < 4; ++k) {
            if (i >= data && k != i % 4 && test::scale() == 1)
                continue; // a checksum notices each flip alike
            int const flip = std::array{1, 0x20, 0x80, 0xff}[k];
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ flip);
            std::string const text = load_refusal(bad);
            INFO(i << " of " << good.size() << ", flipped " << flip);
            if (i < data) {
                REQUIRE(mentions(text, {"adamant: FILE ", "header"}));
                continue;
            }
            std::size_t end = data;
            std::string name;
            for (place_in_file const& each : small_places())
                if (i >= end) {
                    name = each.name;
                    end += each.bytes;
                }
            REQUIRE(mentions(text, {"adamant: FILE is corrupted", "'" + name + "'"}));
        }
}

TEST_CASE("every missing and every additional byte of ZenFlow's file is noticed")
{
    std::string const good = saved(small_state().state);
    for (std::size_t n = 0; n < good.size(); ++n)
        REQUIRE(mentions(load_refusal(good.substr(0, n)), {"FILE is truncated"}));
    CHECK(mentions(load_refusal(good + '\0'), {"1 bytes after its last tensor"}));
}

TEST_CASE("what each kind of file is, is said to whoever wants the other")
{
    std::string const good = saved(small_state().state);
    scratch_folder const folder;
    set_bytes(folder / "zenflow", good);
    state_dict plain;
    plain.step = 3;
    save_safetensors(folder / "plain", plain);
    CHECK(mentions(refusal([&] { safetensors_state const file(folder / "zenflow"); }),
                   {"/zenflow has the state of an optimizer that defers gradients", "that defers no gradients"}));
    CHECK(mentions(refusal([&] { zenflow_safetensors_state const file(folder / "plain"); }),
                   {"/plain has the state of an optimizer that defers no gradients",
                    "but must have the state of an optimizer that defers gradients, ZenFlow's"}));
    CHECK(mentions(refusal<unavailable>([&] { zenflow_safetensors_state const file(folder / "none"); }),
                   {"cannot read '", "/none': No such file"}));
    CHECK(mentions(
        load_refusal<invalid_argument>(with_header(std::string(8, '\0'), R"({"__metadata__":{"format":"pt"}})")),
        {"FILE", "1 keys ('format')", "save_safetensors"}));
    CHECK(mentions(load_refusal(std::string(100, 'x')), {"is no safetensors file"}));
    CHECK(mentions(load_refusal(with_header(good, header_of(good).dump(1))), {"adamant.", "written it anew"}));
    auto const version = [&](char const* text) {
        return edited(good, [&](json& h) { h["__metadata__"]["adamant.format_version"] = text; });
    };
    CHECK(mentions(load_refusal<unavailable>(version("3")), {"FILE has version 3", "up to 2", "update adamant"}));
    CHECK(mentions(load_refusal<invalid_argument>(version("1")), {"defers no gradients"}));
    CHECK(mentions(load_refusal(version("0")), {"version 0"}));
}

TEST_CASE("a header of ZenFlow's with a right checksum is not believed either")
{
    std::string const good = saved(small_state().state);
    REQUIRE(difference(loaded(edited(good, [](json&) {})).state, small_state().state) == "");
    auto const header = [&](std::function<void(json&)> const& edit) { return load_refusal(edited(good, edit)); };
    auto const state = [&](std::function<void(json&)> const& edit) {
        return load_refusal(edited_text(good, "adamant.state", edit));
    };
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {2, 3}; }), {"'w.param'", "[2, 3]", "[3, 2]"}));
    CHECK(mentions(header([](json& h) { h["w.selected"]["dtype"] = "U8"; }), {"'w.selected'", "U8", "BOOL"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["dtype"] = "I32"; }), {"'w.param'", "I32"}));
    auto const renamed = [&](char const* from, char const* to) {
        std::string const step = edited_text(good, "adamant.xxh3", [&](json& d) {
            d[to] = d[from];
            d.erase(from);
        });
        return load_refusal(edited(step, [&](json& h) {
            h[to] = h[from];
            h.erase(from);
        }));
    };
    CHECK(mentions(renamed("w.param", "w.params"), {"there is no tensor 'w.param'"}));
    CHECK(mentions(renamed("w.param", ""), {"no name"}));
    CHECK(mentions(renamed("w.weights", "w.weight"), {"'w.weight' belongs to no param"})); // weights may be missing
    CHECK(mentions(renamed("half.param[1:3]", "half.param"), {"there is no tensor 'half.param[1:3]'"}));
    for (char const* const key : {"groups", "loss_scaler", "params", "position", "deferred_norm"})
        CHECK(mentions(state([&](json& s) { s.erase(key); }), {"the state", "5 members"}));
    CHECK(mentions(state([](json& s) { s["deferred_norm"] = "nan"; }), {"'deferred_norm'"}));
    CHECK(mentions(state([](json& s) { s["deferred_norm"] = "3ff0000000000000"; }), {"'deferred_norm'"}));
    CHECK(mentions(state([](json& s) { s["deferred_norm"] = "7FF0000000000000"; }), {"'deferred_norm'"}));
    CHECK(mentions(state([](json& s) { s["deferred_norm"] = 1; }), {"'deferred_norm'"}));
    CHECK(mentions(state([](json& s) { s["position"]["in_window"] = -1; }), {"the position", "'in_window'"}));
    CHECK(mentions(state([](json& s) { s["position"]["has_selection"] = 1; }), {"'has_selection'"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["types"][0] = "float"; }), {"param 0", "an unknown type"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["types"].push_back("none"); }), {"param 0", "5 types"}));
    for (std::size_t const array : {0u, 2u, 3u}) // types whose elements have no size
        CHECK(mentions(state([&](json& s) { s["params"][0]["types"][array] = "none"; }),
                       {"'w'", "unsupported combination of types"}));
    CHECK(mentions(load_refusal(with_header(good, header_of(good).dump() + std::string("\0not JSON", 9))),
                   {"a byte that is 0"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["types"][1] = "none"; }),
                   {"'w'", "unsupported combination of types"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["group"] = 1; }), {"'w'", "group 1"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["summed"] = 0; }), {"'w.sums' belongs to no param"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["summed"] = 1; }), {"no tensor 'half.sums[1:3]'"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["all_rows"] = 1; }), {"'half'", "rows [1, 3)", "has 1"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["all_rows"] = 1ull << 62; }), {"'half'", "fit in memory"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["columns"] = 1ull << 62; }), {"'w.param'"}));
    CHECK(mentions(state([](json& s) { s["params"][0]["rows"] = ~0ull; }), {"'w.param["}));
    CHECK(mentions(state([](json& s) { s["loss_scaler"]["scale"] = -1.0; }), {"scale is -1"}));
    CHECK(mentions(state([](json& s) { s["groups"][0]["beta1"] = 1.0; }), {"'all'", "beta1 is 1"}));
    // A flag that is none, under a right checksum.
    owned_zenflow_state flags = small_state();
    std::string bad = saved(flags.state);
    bad[bad.size() - 1] = 2;
    detail::xxh3 hash;
    hash.add(std::string_view(bad).substr(bad.size() - 2));
    CHECK(mentions(
        load_refusal(edited_text(bad, "adamant.xxh3",
                                 [&](json& d) { d["half.publishing[1:3]"] = detail::digest_text(hash.digest()); })),
        {"'half'", "neither 0 nor 1"}));
    // A header whose length puts sums beside the places of floats.
    std::string odd = header_of(good).dump();
    odd.resize(odd.size() / 4 * 4 + 6, ' ');
    CHECK(mentions(load_refusal(with_header(good, odd)), {"'w.sums' is not aligned"}));
}

TEST_CASE("states of ZenFlow that cannot be are not saved")
{
    scratch_folder const folder;
    auto const save_refusal = [&](std::function<void(zenflow_state&)> const& spoil) {
        owned_zenflow_state state = small_state();
        spoil(state.state);
        std::string const text = refusal([&] { save_safetensors(folder / "a", state.state); });
        CHECK(std::filesystem::is_empty(folder.path()));
        CHECK(refusal([&] { validate(state.state); }) == text);
        return text;
    };
    using state_ref = zenflow_state&;
    CHECK(mentions(save_refusal([](state_ref s) { s.groups[0].hyper.beta1 = 1; }), {"'all'", "beta1 is 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.groups.push_back(s.groups[0]); }), {"groups 0 and 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.loss_scaler->scale = 0; }), {"scale is 0"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.metadata["adamant.step"] = "8"; }), {"'adamant.step'"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].name = ""; }), {"param 0 has no name"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].name = "a\x80"; }), {"'a\\x80'", "UTF-8"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].group = 1; }), {"'w'", "group 1", "there are 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].types[1] = dtype::none; }),
                   {"'w'", "unsupported combination"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[1].rows = 4; }), {"'half'", "rows [1, 5)", "has 4"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[1].first_row = 5; }), {"'half'", "rows [5, "}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].all_rows = ~std::size_t{0}; }), {"'w'", "memory"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].counts.pop_back(); }),
                   {"'w'", "3 columns", "2 update counts"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].publishing.clear(); }),
                   {"'w'", "3 `selected` flags and 0 `publishing` flags"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[2].counts.push_back(1); }), {"'b'", "2 update counts"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].selected[1] = 2; }), {"'w'", "neither 0 nor 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].arrays[2] = nullptr; }), {"'w'", "no data for exp_avg"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[1].arrays[4] = nullptr; }), {"'half'", "weight_out"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[0].sums = nullptr; }),
                   {"'w'", "deferred gradients of 2 steps"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params.push_back(s.params[1]); }),
                   {"params 1 and 3", "'half'", "[1, 3) and [1, 3)"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.params[2].name = "w"; }), {"params", "'w'", "differ in columns"}));
    CHECK(mentions(save_refusal([](state_ref s) {
                       for (shard_array::index const which : {shard_array::exp_avg, shard_array::exp_avg_sq})
                           s.params[1].types[which] = dtype::quantized8;
                   }),
                   {"'half'", "rows [1, 3) of 4", "a group of 64 rows"}));
}

TEST_CASE("mutated files of ZenFlow are refused or read, and never believed", "[fuzz]")
{
    mutate_files<kind>([](int i, random_bits& random) { return i == 0 ? small_state() : random_zenflow_state(random); },
                       30);
}

namespace {

// Adds up the numbers of all ranks, which are threads, or takes the largest of each.
class all_reduce {
public:
    explicit all_reduce(std::size_t ranks) : arrived_(static_cast<std::ptrdiff_t>(ranks)) {}
    void operator()(std::span<std::int64_t> numbers, column_reduction how)
    {
        {
            std::lock_guard const lock(mutex_);
            all_.resize(numbers.size(), how == column_reduction::sum ? 0 : std::numeric_limits<std::int64_t>::min());
            for (std::size_t i = 0; i < numbers.size(); ++i)
                all_[i] = how == column_reduction::sum ? all_[i] + numbers[i] : std::max(all_[i], numbers[i]);
        }
        arrived_.arrive_and_wait();
        std::ranges::copy(all_, numbers.begin());
        arrived_.arrive_and_wait();
        {
            std::lock_guard const lock(mutex_);
            all_.clear();
        }
        arrived_.arrive_and_wait();
    }

private:
    std::mutex mutex_;
    std::vector<std::int64_t> all_;
    std::barrier<> arrived_;
};

struct model_param {
    char const* name;
    std::size_t rows, columns; // columns 0: a vector
};
// Two ranks cut them between norm blocks of 4096 elements, so norms have the same bits; the last one's first rank has
// none.
constexpr model_param model_params[] = {{"one", 128, 64}, {"two", 192, 64}, {"bias", 8192, 0}, {"three", 64, 5}};

// A process: some ranks of it, each with its rows of every param. Masters and moments begin as zeros or random.
class job {
public:
    job(std::string const& format, std::size_t ranks) : reduce_(ranks)
    {
        shard_dtypes const types = types_of_state(format, dtype::bfloat16, dtype::bfloat16).value();
        for (std::size_t r = 0; r < ranks; ++r) {
            rank& own = *ranks_.emplace_back(std::make_unique<rank>());
            zenflow_options deferral{.topk_ratio = 0.25, .select_interval = 6, .update_interval = 3};
            optimizer_options options;
            if (ranks > 1) {
                options.reduce = [this](auto words) { reduce_(words, column_reduction::sum); };
                deferral.reduce_columns = [this](auto numbers, column_reduction how) { reduce_(numbers, how); };
            }
            own.by.emplace(executor({.threads = 1}), deferral, options);
            group_id const all = own.by->add_group("all", adamw({.lr = 1e-2, .weight_decay = 0.1}));
            for (model_param const& p : model_params) {
                std::size_t const width = std::max<std::size_t>(1, p.columns);
                auto const cut = [&](std::size_t at) { return p.rows / 64 * at / ranks * 64; };
                std::size_t const first = cut(r), rows = cut(r + 1) - first;
                std::vector<std::byte>* arrays[shard_arrays] = {};
                for (std::size_t which = 0; which < shard_arrays; ++which)
                    arrays[which] = &own.memory.emplace_back(array_bytes(types[which], rows * width) + 64);
                auto& weights = own.memory.emplace_back(rows * width * 2 + 64);
                own.gradients.push_back({arrays[1], first, rows, width});
                own.by->add_param({.group = all,
                                   .name = p.name,
                                   .shard = optimizer_shard(any_shard(
                                       *find_format(types),
                                       {arrays[0]->data(), arrays[1]->data(), arrays[2]->data(), arrays[3]->data(),
                                        types[4] == dtype::none ? nullptr : arrays[4]->data()},
                                       rows * width)),
                                   .columns = p.columns,
                                   .weights = p.columns == 0 ? nullptr : weights.data(),
                                   .position = {p.columns == 0 ? std::vector{p.rows} : std::vector{p.rows, p.columns},
                                                first * width}});
            }
        }
    }
    // Of a step, gradients follow from its number.
    void step(std::uint64_t number)
    {
        on_all_ranks([&](rank& own) {
            for (std::size_t i = 0; i < own.gradients.size(); ++i) {
                auto const& [memory, first, rows, width] = own.gradients[i];
                random_bits random(number * 1000 + i);
                for (std::size_t skipped = 0; skipped < first * width; ++skipped)
                    random();
                for (std::size_t k = 0; k < rows * width; ++k) {
                    bfloat16 const g =
                        narrow<bfloat16>(with_exponent(random(), -9, -5 + static_cast<int>(k % width % 5)));
                    std::memcpy(memory->data() + 2 * k, &g, 2);
                }
            }
            own.by->step();
        });
    }
    void save(scratch_folder const& folder, std::string const& name)
    {
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            save_safetensors(folder / (name + std::to_string(r)), ranks_[r]->by->state());
    }
    // Files of any number of ranks.
    void load(scratch_folder const& folder, std::string const& name, std::size_t files)
    {
        std::vector<zenflow_safetensors_state> opened;
        std::vector<zenflow_state> states;
        for (std::size_t r = files; r-- != 0;)
            states.push_back(opened.emplace_back(folder / (name + std::to_string(r))).state());
        for (auto const& each : ranks_)
            each->by->load(states);
    }
    // Every byte of the state and of the weights, of one rank.
    std::string bytes() { return saved(ranks_.at(0)->by->state()); }
    zenflow_optimizer& by() { return *ranks_.at(0)->by; }

private:
    struct own_gradient {
        std::vector<std::byte>* memory;
        std::size_t first, rows, width;
    };
    struct rank {
        std::deque<std::vector<std::byte>> memory;
        std::vector<own_gradient> gradients;
        std::optional<zenflow_optimizer> by;
    };
    template <class Work>
    void on_all_ranks(Work const& work)
    {
        std::vector<std::thread> others;
        for (std::size_t r = 1; r < ranks_.size(); ++r)
            others.emplace_back([&, r] { work(*ranks_[r]); });
        work(*ranks_[0]);
        for (std::thread& each : others)
            each.join();
    }

    all_reduce reduce_;
    std::vector<std::unique_ptr<rank>> ranks_;
};

} // namespace

TEST_CASE("a run of ZenFlow goes on from files with the same bits, on other ranks and in the middle of windows")
{
    scratch_folder const folder;
    constexpr std::uint64_t steps = 8;
    std::uint64_t first_stop = 1; // odd and even stops in turn
    for (char const* const format :
         {"float32", "bfloat16", "split_float32", "quantized8", "split_float32+quantized8"}) {
        INFO(format);
        job whole(format, 1);
        std::vector<std::string> expected;
        for (std::uint64_t step = 1; step <= steps; ++step) {
            whole.step(step);
            expected.push_back(whole.bytes());
        }
        REQUIRE(expected.front() != expected.back());
        for (std::uint64_t stop = first_stop; stop + 2 <= steps; stop += 2) {
            INFO("stopped after step " << stop);
            auto const first = std::make_unique<job>(format, 1);
            for (std::uint64_t step = 1; step <= stop; ++step)
                first->step(step);
            first->save(folder, "one.");
            job two(format, 2);
            two.load(folder, "one.", 1);
            two.save(folder, "two.");
            {
                job joined(format, 1);
                joined.load(folder, "two.", 2);
                REQUIRE((joined.bytes() == expected[stop - 1]));
            }
            two.step(stop + 1);
            two.save(folder, "two.");
            job last(format, 1);
            last.load(folder, "two.", 2);
            REQUIRE((last.bytes() == expected[stop]));
            for (std::uint64_t step = stop + 2; step <= steps; ++step) {
                last.step(step);
                REQUIRE((last.bytes() == expected[step - 1]));
            }
        }
        first_stop = 3 - first_stop;
    }
}

TEST_CASE("a file of ZenFlow that is cut short or written into while it is loaded is an error, and no step follows")
{
    scratch_folder const folder;
    std::filesystem::path const path = folder / "run.0";
    job first("float32", 1);
    for (std::uint64_t step = 1; step <= 4; ++step)
        first.step(step);
    first.save(folder, "run.");
    std::string const good = bytes_of(path);
    job second("float32", 1);
    for (std::size_t const size : {std::size_t{0}, good.size() / 2, good.size() + 1}) {
        set_bytes(path, good);
        zenflow_safetensors_state const file(path);
        std::filesystem::resize_file(path, size);
        char const* const says = size < good.size() ? "is truncated since" : "was written to since";
        CHECK(mentions(refusal<corrupted>([&] { second.by().load(file.state()); }), {says}));
        CHECK(mentions(refusal([&] { second.step(5); }), {"load() failed midway"}));
        save_safetensors(folder / "b", zenflow_state{});
        std::string const before = bytes_of(folder / "b");
        CHECK(mentions(refusal<corrupted>([&] { save_safetensors(folder / "b", file.state()); }), {says}));
        CHECK((bytes_of(folder / "b") == before));
        CHECK_FALSE(std::filesystem::exists(folder / "b.part"));
    }
    set_bytes(path, good);
    second.load(folder, "run.", 1);
    first.step(5);
    second.step(5);
    CHECK((first.bytes() == second.bytes()));
}

// For safetensors_python.py, which reads it with another implementation, where ADAMANT_SAFETENSORS_OUT says. Byte i of
// the n-th array that is there has the low bits of n * 151 + i * 7.
TEST_CASE("a file of ZenFlow for another implementation", "[python]")
{
    scratch_folder const folder;
    char const* const wanted = std::getenv("ADAMANT_SAFETENSORS_OUT");
    std::filesystem::path const path = wanted == nullptr ? folder / "a" : std::filesystem::path(wanted);
    owned_zenflow_state all = small_state();
    std::size_t n = 0;
    auto const pattern = [&](std::byte const*& array, std::size_t bytes, std::size_t at) {
        if (array == nullptr)
            return;
        std::vector<std::byte> made(bytes);
        for (std::size_t i = 0; i < bytes; ++i)
            made[i] = static_cast<std::byte>(n * 151 + i * 7);
        array = all.add(made, at);
        ++n;
    };
    for (zenflow_state_param& p : all.state.params) {
        std::size_t const elements = p.rows * std::max<std::size_t>(1, p.columns);
        for (std::size_t which = 0; which < shard_arrays; ++which)
            pattern(p.arrays[which], array_bytes(p.types[which], elements), 1);
        pattern(p.weights, 2 * elements, 1);
        auto const* sums = reinterpret_cast<std::byte const*>(p.sums);
        pattern(sums, 4 * elements, 0);
        p.sums = reinterpret_cast<float const*>(sums);
        for (std::size_t c = 0; c < p.counts.size(); ++c)
            p.counts[c] = 1000000007 * (c + 1);
        for (std::size_t c = 0; c < p.columns; ++c) {
            p.selected[c] = c % 2 == 0;
            p.publishing[c] = c == 1;
        }
    }
    save_safetensors(path, all.state);
    CHECK(difference(zenflow_safetensors_state(path).state(), all.state) == "");
}
