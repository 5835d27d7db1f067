// SPDX-License-Identifier: Apache-2.0
// Checkpoints as safetensors files: what is saved is what is loaded, and what was altered is noticed.
#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/safetensors.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#include "catch.hpp"
#include "checkpoint_states.hpp"
#include "edited_files.hpp"
#include "saved_files.hpp"

using namespace adamant;
using namespace test;
using nlohmann::json;

namespace {

struct kind {
    using state = state_dict;
    static state read(auto const&... from) { return detail::read_safetensors("FILE", from...); }
    static std::string difference(state const& a, state const& b) { return test::difference(a, b); }
};
using loaded = loaded_file<kind>;

template <class Error = corrupted>
std::string load_refusal(std::string const& bytes)
{
    return refusal_of_file<kind, Error>(bytes);
}

// Two params, one of them in two pieces and one a share, two groups, a loss scaler.
owned_state small_state()
{
    owned_state result;
    state_dict& state = result.state;
    state.step = 7;
    state.loss_scaler = loss_scaler_state{1024, 3, 2};
    state.groups = {{"decay", {.lr = 0.1, .weight_decay = 0.01, .mode = decay_mode::decoupled}, false},
                    {"rest", {.lr = 0.3, .eps = 1e-7, .bias_correction = false}, true}};
    state.params = {{"w", {2, 3}, 0}, {"b", {5}, 1}};
    state.metadata = {{"seed", "11"}};
    random_bits random(1);
    for (state_array const array : {state_array::param, state_array::exp_avg, state_array::exp_avg_sq}) {
        result.add(0, array, dtype::float32, 4, 2, random_bytes(random, 8));
        result.add(0, array, dtype::float32, 0, 4, random_bytes(random, 16));
        result.add(1, array, dtype::bfloat16, 1, 3, random_bytes(random, 6));
    }
    return result;
}

} // namespace

TEST_CASE("a saved state is loaded bit for bit")
{
    scratch_folder const folder;
    random_bits random(20);
    for (int i = 0; i < 300; ++i) {
        owned_state const original = random_state(random);
        save_safetensors(folder / "a", original.state);
        safetensors_state const file(folder / "a");
        REQUIRE(difference(original.state, file.state()) == "");
        // Saved again, from other pieces: the same bytes.
        save_safetensors(folder / "b", file.state());
        REQUIRE(bytes_of(folder / "a") == bytes_of(folder / "b"));
    }
}

TEST_CASE("a state in memory that is too small is not begun, and a loaded one lies in the memory")
{
    random_bits random(31);
    owned_state const own = random_state(random);
    std::vector<std::byte> memory(safetensors_bytes(own.state), std::byte{7});
    std::span<std::byte> const short_by_one = std::span(memory).first(memory.size() - 1);
    CHECK(mentions(refusal([&] { write_safetensors(short_by_one, own.state); }),
                   {std::to_string(memory.size()), std::to_string(memory.size() - 1)}));
    CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{7}; }));
    write_safetensors(memory, own.state);
    std::optional<safetensors_state> read(std::in_place, std::span<std::byte const>(memory));
    safetensors_state const moved = std::move(*read);
    read.reset();
    CHECK(difference(moved.state(), own.state) == "");
    for (state_tensor const& t : moved.state().tensors)
        CHECK((t.source == nullptr &&
               (t.elements == 0 || (t.data >= memory.data() && t.data < memory.data() + memory.size()))));
    memory.back() ^= std::byte{1};
    CHECK(mentions(refusal<corrupted>([&] { safetensors_state const altered{std::span<std::byte const>(memory)}; }),
                   {"the state in memory", "checksum"}));
    CHECK(mentions(refusal<corrupted>([] { safetensors_state const nothing{std::span<std::byte const>()}; }),
                   {"the state in memory", "0 bytes"}));
}

TEST_CASE("a state may have nothing in it")
{
    state_dict nothing;
    CHECK(difference(loaded(saved(nothing)).state, nothing) == "");
    nothing.step = std::numeric_limits<std::uint64_t>::max();
    nothing.groups.push_back({"g", {}, false});
    nothing.params.push_back({"p", {1 << 20, 1 << 20}, 0});
    CHECK(difference(loaded(saved(nothing)).state, {}) == "step");
    CHECK(loaded(saved(nothing)).state.params[0].shape == std::vector<std::size_t>{1 << 20, 1 << 20});
}

TEST_CASE("the file is laid out as it says")
{
    std::string const file = saved(small_state().state);
    json const header = header_of(file);
    CHECK(header_bytes(file) % 8 == 0);
    CHECK(file.starts_with(std::string(file, 0, 8) + "{\"__metadata__\":{"));
    CHECK(header.size() == 7);
    CHECK(header["w.param"] == tensor_entry("F32", {2, 3}, 0, 24));
    CHECK(header["w.exp_avg"] == tensor_entry("F32", {2, 3}, 24, 48));
    CHECK(header["w.exp_avg_sq"] == tensor_entry("F32", {2, 3}, 48, 72));
    CHECK(header["b.param[1:4]"] == tensor_entry("BF16", json::array({3}), 72, 78));
    CHECK(header["b.exp_avg_sq[1:4]"] == tensor_entry("BF16", json::array({3}), 84, 90));
    CHECK(file.size() == 8 + header_bytes(file) + 90);
    json const metadata = header["__metadata__"];
    CHECK(metadata["adamant.format_version"] == "1");
    CHECK(metadata["adamant.step"] == "7");
    CHECK(metadata.size() == 5 + 1);
    CHECK(metadata["seed"] == "11");
    json const state = json::parse(metadata["adamant.state"].get<std::string>());
    CHECK(state["groups"][0]["mode"] == "decoupled");
    CHECK(state["groups"][0]["lr"] == 0.1);
    CHECK(state["groups"][1]["mode"] == "unset");
    CHECK(state["groups"][1]["bias_correction"] == false);
    CHECK(state["groups"][1]["maximize"] == true);
    CHECK(state["loss_scaler"]["scale"] == 1024.0);
    CHECK(state["params"][1]["shape"] == json::array({5}));
    CHECK(state["params"][1]["group"] == 1);

    // 32 bits come first, whatever the order of the params; adjacent pieces of a share are one.
    owned_state mixed;
    mixed.state.groups = {{"g", {}, false}};
    mixed.state.params = {{"half", {3}, 0}, {"single", {8}, 0}, {"scalar", {}, 0}};
    mixed.add(0, state_array::param, dtype::float16, 0, 3, std::vector<std::byte>(6));
    mixed.add(1, state_array::param, dtype::float32, 5, 1, std::vector<std::byte>(4));
    mixed.add(1, state_array::param, dtype::float32, 0, 2, std::vector<std::byte>(8));
    mixed.add(1, state_array::param, dtype::float32, 2, 1, std::vector<std::byte>(4));
    mixed.add(1, state_array::param, dtype::float32, 7, 0, {});
    mixed.add(2, state_array::param, dtype::bfloat16, 0, 1, std::vector<std::byte>(2));
    json const parts = header_of(saved(mixed.state));
    CHECK(parts.size() == 5);
    CHECK(parts["single.param[0:3]"] == tensor_entry("F32", json::array({3}), 0, 12));
    CHECK(parts["single.param[5:6]"] == tensor_entry("F32", json::array({1}), 12, 16));
    CHECK(parts["half.param"] == tensor_entry("F16", json::array({3}), 16, 22));
    CHECK(parts["scalar.param"] == tensor_entry("BF16", json::array(), 22, 24));
}

TEST_CASE("moments of 8 bits are tensors of bytes, a group a row")
{
    owned_state state;
    state.state.groups = {{"all", {.lr = 0.1}, false}};
    state.state.params = {{"w", {10, 13}, 0}, {"share", {1000}, 0}};
    random_bits random(5);
    state.add(0, state_array::exp_avg, dtype::quantized8, 0, 64, random_bytes(random, 68));
    state.add(0, state_array::exp_avg, dtype::quantized8, 64, 66, random_bytes(random, 136));
    state.add(1, state_array::exp_avg_sq, dtype::quantized8, 128, 192, random_bytes(random, 204));
    state.add(1, state_array::param, dtype::bfloat16, 128, 192, random_bytes(random, 384));
    json const parts = header_of(saved(state.state));
    CHECK(parts["w.exp_avg"] == tensor_entry("U8", json::array({3, 68}), 384, 588));
    CHECK(parts["share.exp_avg_sq[128:320]"] == tensor_entry("U8", json::array({3, 68}), 588, 792));
    scratch_folder const folder;
    save_safetensors(folder / "a", state.state);
    CHECK(difference(safetensors_state(folder / "a").state(), state.state).empty());
    // Groups are not cut.
    for (auto const& [begin, n] : {std::pair<std::size_t, std::size_t>{32, 64}, {64, 32}, {0, 129}}) {
        owned_state cut;
        cut.state.groups = state.state.groups;
        cut.state.params = state.state.params;
        cut.add(0, state_array::exp_avg, dtype::quantized8, begin, n, random_bytes(random, 68 * 3));
        CHECK_THROWS_WITH(validate(cut.state), Catch::Contains("groups of 64 elements are not cut"));
    }
    owned_state wrong;
    wrong.state.groups = state.state.groups;
    wrong.state.params = state.state.params;
    wrong.add(0, state_array::param, dtype::quantized8, 0, 130, random_bytes(random, 204));
    CHECK_THROWS_WITH(validate(wrong.state), Catch::Contains("float32, bfloat16 or float16"));
}

TEST_CASE("tensors of a loaded state are aligned to their elements")
{
    scratch_folder const folder;
    random_bits random(21);
    for (int i = 0; i < 30; ++i) {
        save_safetensors(folder / "a", random_state(random).state);
        safetensors_state const file(folder / "a");
        for (state_tensor const& tensor : file.state().tensors)
            if (tensor.type != dtype::quantized8) // bytes
                REQUIRE(reinterpret_cast<std::uintptr_t>(tensor.data) % size_bytes(tensor.type) == 0);
    }
}

TEST_CASE("a loaded state moves with its object, and outlives the file")
{
    scratch_folder const folder;
    owned_state const original = small_state();
    save_safetensors(folder / "a", original.state);
    safetensors_state first(folder / "a");
    save_safetensors(folder / "a", state_dict{});
    std::filesystem::remove(folder / "a");
    safetensors_state second(std::move(first));
    CHECK(difference(second.state(), original.state) == "");
    save_safetensors(folder / "b", state_dict{});
    second = safetensors_state(folder / "b");
    CHECK(difference(second.state(), {}) == "");
}

TEST_CASE("the caller's floating-point mode reaches no checkpoint")
{
    random_bits random(22);
    for (int i = 0; i < 20; ++i) {
        owned_state const original = random_state(random);
        std::string const expected = saved(original.state);
        scratch_folder const folder;
        std::fesetround(FE_UPWARD);
        std::string const upward = saved(original.state);
        set_bytes(folder / "a", expected);
        safetensors_state const file(folder / "a");
        std::fesetround(FE_TONEAREST);
        CHECK((upward == expected));
        CHECK(difference(file.state(), original.state) == "");
        float_mode_scope const flushed(subnormals::flushed);
        CHECK((saved(original.state) == expected));
        CHECK(difference(safetensors_state(folder / "a").state(), original.state) == "");
    }
}

TEST_CASE("states that cannot be are not saved")
{
    scratch_folder const folder;
    auto const save_refusal = [&](std::function<void(owned_state&)> const& spoil) {
        owned_state state = small_state();
        spoil(state);
        std::string const text = refusal<invalid_argument>([&] { save_safetensors(folder / "a", state.state); });
        CHECK(std::filesystem::is_empty(folder.path()));
        CHECK(refusal<invalid_argument>([&] { validate(state.state); }) == text);
        return text;
    };
    using state_ref = owned_state&;
    CHECK(mentions(save_refusal([](state_ref s) { s.state.groups[1].hyper.beta1 = 1; }), {"'rest'", "beta1 is 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.groups[0].name = "rest"; }), {"groups 0 and 1", "'rest'"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.groups[0].name = ""; }), {"group 0 has no name"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.groups[0].name = "\xff"; }),
                   {"the name of a group, '\\xff', is not UTF-8"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.params[0].name = "a\x80"; }),
                   {"the name of a param, 'a\\x80', is not UTF-8: see its byte 1"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.metadata["a\xff"] = "b"; }), {"key", "'a\\xff'", "UTF-8"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.metadata["a"] = "\xff"; }), {"'a'", "'\\xff'", "UTF-8"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.metadata[""] = "b"; }), {"metadata", "not empty"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.metadata["adamant.step"] = "8"; }), {"'adamant.step'"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.params[1].name = "w"; }), {"params 0 and 1", "'w'"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.params[1].name = ""; }), {"param 1 has no name"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.params[1].group = 2; }), {"'b'", "group 2", "there are 2"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.loss_scaler->scale = 0; }), {"scale is 0"}));
    CHECK(mentions(
        save_refusal([](state_ref s) { s.state.loss_scaler->scale = std::numeric_limits<double>::infinity(); }),
        {"scale is inf"}));
    CHECK(mentions(save_refusal([](state_ref s) {
                       s.state.params[0].shape = {std::size_t{1} << 40, 1 << 30, 0};
                   }),
                   {"'w'", "fit in memory"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.params[0].shape.assign(65, 1); }), {"'w'", "65 dimensions"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[3].param = 2; }), {"tensor 3", "param 2"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[3].array = static_cast<state_array>(3); }),
                   {"tensor 3", "state_array"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[3].type = dtype::none; }),
                   {"tensor 3", "exp_avg of param 'w'", "none"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[5].type = dtype::float16; }),
                   {"exp_avg of param 'b'", "float16", "float32, bfloat16 or quantized8"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[5].type = static_cast<dtype>(9); }), {"'b'"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[1].type = dtype::float16; }),
                   {"param of param 'w'", "float16", "float32"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[2].begin = 3; }), {"3 elements from 3", "has 5"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[2].begin = std::size_t(0) - 1; }), {"has 5"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[2].elements = std::size_t(0) - 1; }), {"has 5"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[2].data = nullptr; }), {"tensor 2", "no data"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors[0].begin = 3; }), {"'w'", "[0, 4)", "[3, 5)"}));
    CHECK(mentions(save_refusal([](state_ref s) { s.state.tensors.push_back(s.state.tensors[8]); }),
                   {"exp_avg_sq of param 'b'", "[1, 4) and [1, 4)"}));
}

TEST_CASE("every flipped byte is noticed, and named")
{
    std::string const good = saved(small_state().state);
    std::size_t const data = 8 + header_bytes(good);
    for (std::size_t i = 0; i < good.size(); ++i)
        for (int const flip : {1, 0x20, 0x80, 0xff}) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ flip);
            std::string const text = load_refusal(bad);
            INFO(i << " of " << good.size() << ", flipped " << flip);
            if (i >= data) {
                std::size_t const at = i - data;
                char const* const tensor = at < 24   ? "'w.param'"
                                           : at < 48 ? "'w.exp_avg'"
                                           : at < 72 ? "'w.exp_avg_sq'"
                                           : at < 78 ? "'b.param[1:4]'"
                                           : at < 84 ? "'b.exp_avg[1:4]'"
                                                     : "'b.exp_avg_sq[1:4]'";
                REQUIRE(mentions(text, {"adamant: FILE is corrupted", tensor}));
            } else if (i >= 8) {
                REQUIRE(mentions(text, {"adamant: FILE ", "header is corrupted"}));
            } else {
                REQUIRE(mentions(text, {"adamant: FILE ", "header"}));
            }
        }
}

TEST_CASE("every missing and every additional byte is noticed")
{
    std::string const good = saved(small_state().state);
    for (std::size_t n = 0; n < good.size(); ++n)
        REQUIRE(mentions(load_refusal(good.substr(0, n)), {"FILE is truncated"}));
    CHECK(mentions(load_refusal(good.substr(0, 7)), {"has 7 bytes"}));
    CHECK(mentions(load_refusal(good.substr(0, good.size() - 1)), {"has 89 bytes of data, but its header says 90"}));
    CHECK(mentions(load_refusal(good + '\0'), {"1 bytes after its last tensor"}));
    CHECK(mentions(load_refusal(saved(state_dict()) + "x"), {"1 bytes after its last tensor"}));
}

TEST_CASE("a file that is none of ours is told apart")
{
    std::string const good = saved(small_state().state);
    CHECK(mentions(load_refusal(std::string(100, 'x')), {"is no safetensors file"}));
    CHECK(mentions(load_refusal("PK\3\4" + std::string(100, '\0')), {"truncated or no safetensors file"}));
    CHECK(mentions(load_refusal(with_header(good, "[1]")), {"is no safetensors file", "begin with {"}));
    CHECK(mentions(load_refusal(with_header(good, "{\"a\":")), {"is no safetensors file", "parse error"}));
    CHECK(mentions(load_refusal<invalid_argument>(with_header(std::string(8, '\0'), R"({"a":{}})")),
                   {"FILE", "no keys"}));
    CHECK(mentions(load_refusal<invalid_argument>(
                       with_header(std::string(8, '\0'), R"({"__metadata__":{"format":"pt","b":"c"}})")),
                   {"FILE", "2 keys ('b', 'format')", "save_safetensors"}));
    // Ours once: the same header as another program would write it, with blanks.
    CHECK(mentions(load_refusal(with_header(good, header_of(good).dump(1))), {"adamant.", "written it anew"}));
    CHECK(mentions(load_refusal(edited(good, [](json& h) { h["__metadata__"].erase("adamant.header_xxh3"); })),
                   {"no adamant.header_xxh3"}));
}

TEST_CASE("a version from the future is named")
{
    std::string const good = saved(small_state().state);
    auto const version = [&](char const* text) {
        return edited(good, [&](json& h) { h["__metadata__"]["adamant.format_version"] = text; });
    };
    CHECK(mentions(load_refusal<unavailable>(version("3")), {"FILE has version 3", "up to 2", "update adamant"}));
    for (char const* const text : {"0", "01", "1.0", "-1", "", " 1", "18446744073709551616"})
        CHECK(mentions(load_refusal(version(text)), {"version"}));
}

TEST_CASE("a header with a right checksum is not believed either")
{
    std::string const good = saved(small_state().state);
    REQUIRE(difference(loaded(edited(good, [](json&) {})).state, loaded(good).state) == "");
    auto const header = [&](std::function<void(json&)> const& edit) { return load_refusal(edited(good, edit)); };
    auto const state = [&](std::function<void(json&)> const& edit) {
        return load_refusal(edited_text(good, "adamant.state", edit));
    };
    // The structure of the header.
    CHECK(mentions(header([](json& h) { h["__metadata__"] = json::array({h["__metadata__"]}); }), {"__metadata__"}));
    for (char const* const key : {"adamant.format_version", "adamant.state", "adamant.step", "adamant.xxh3"}) {
        CHECK(mentions(header([&](json& h) { h["__metadata__"].erase(key); }), {"no text as", key}));
        CHECK(mentions(header([&](json& h) { h["__metadata__"][key] = 1; }), {"no text as", key}));
    }
    CHECK(mentions(header([](json& h) { h["__metadata__"]["adamant.step"] = "7 "; }), {"adamant.step"}));
    CHECK(mentions(header([](json& h) { h["__metadata__"]["seed"] = 7; }), {"no text as", "seed"}));
    CHECK(mentions(header([](json& h) { h["__metadata__"][""] = "7"; }), {"metadata", "not empty"}));
    CHECK(mentions(header([](json& h) { h["w.param"] = 1; }), {"'w.param'", "object"}));
    CHECK(mentions(header([](json& h) { h["w.param"].erase("shape"); }), {"'w.param'"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["more"] = 1; }), {"'w.param'"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["dtype"] = "I32"; }), {"'w.param'", "I32"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["dtype"] = 1; }), {"'w.param'", "dtype"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {3, 2}; }), {"'w.param'", "another shape"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {6}; }), {"'w.param'", "another shape"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {-2, -3}; }), {"'w.param'", "shape"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {2.0, 3}; }), {"'w.param'", "shape"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["shape"] = {1ull << 63, 2, 6}; }), {"'w.param'", "memory"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["data_offsets"] = {0, 20}; }), {"'w.param'", "data_offsets"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["data_offsets"] = {24, 0}; }), {"'w.param'", "data_offsets"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["data_offsets"] = {0, 24, 24}; }), {"data_offsets"}));
    CHECK(mentions(header([](json& h) { h["w.param"]["data_offsets"] = "0"; }), {"'w.param'", "data_offsets"}));
    // Overlaps, holes.
    CHECK(mentions(header([](json& h) { h["w.exp_avg"]["data_offsets"] = {0, 24}; }), {"begins at byte 0", "24"}));
    CHECK(mentions(header([](json& h) { h["w.exp_avg"]["data_offsets"] = {20, 44}; }), {"begins at byte 20", "24"}));
    CHECK(mentions(header([](json& h) { h.erase("w.exp_avg"); }), {"'w.exp_avg_sq' begins at byte 48", "24"}));
    CHECK(mentions(header([](json& h) { h.erase("w.param"); }), {"'w.exp_avg' begins at byte 24", "0"}));
    CHECK(mentions(header([](json& h) { h.erase("b.exp_avg_sq[1:4]"); }), {"6 bytes after"}));
    CHECK(mentions(load_refusal(edited(good,
                                       [](json& h) {
                                           h["b.exp_avg_sq[1:4]"]["data_offsets"] = {84, 92};
                                           h["b.exp_avg_sq[1:4]"]["shape"] = {4};
                                       })),
                   {"is truncated: it has 90 bytes of data, but its header says 92"}));
    // An end of the data that overflows together with the header.
    {
        std::size_t const elements = std::numeric_limits<std::size_t>::max() / 8;
        json huge = header_of(good);
        json const metadata = huge["__metadata__"];
        huge = {{"__metadata__", metadata}};
        std::size_t begin = 0;
        json digests = json::object();
        for (int i = 0; i < 2; ++i) {
            std::string const param = "p" + std::to_string(i) + ".param";
            huge[param] = tensor_entry("F32", json::array({elements}), begin, begin + 4 * elements);
            begin += 4 * elements;
            digests[param] = "0000000000000000";
        }
        huge["p2.param"] = tensor_entry("F16", json::array({3}), begin, begin + 6);
        digests["p2.param"] = "0000000000000000";
        json inner = json::parse(metadata["adamant.state"].get<std::string>());
        inner["params"] = json::array();
        for (int i = 0; i < 3; ++i)
            inner["params"].push_back(
                {{"name", "p" + std::to_string(i)}, {"shape", json::array({i == 2 ? 3 : elements})}, {"group", 0}});
        huge["__metadata__"]["adamant.state"] = inner.dump();
        huge["__metadata__"]["adamant.xxh3"] = digests.dump();
        REQUIRE(begin + 6 == std::numeric_limits<std::size_t>::max() - 1);
        std::string const file = with_header(good, huge.dump());
        CHECK(mentions(load_refusal(file), {"truncated", "18446744073709551614"}));
        CHECK(mentions(load_refusal(file.substr(0, 8 + header_bytes(file))), {"truncated"}));
    }
    // Names.
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
    for (char const* const name :
         {"w.params", "w", "param", ".param", "W.param", "w.param.", "", "w.param[0:6", "w.grad"})
        CHECK(mentions(renamed("w.param", name), {"no param"}));
    for (char const* const name : {"b.param[1:4]]", "b.param[01:4]", "b.param[1:+4]", "b.param[1: 4]", "b.param[:4]",
                                   "b.param[4:1]", "b.param[1:1]", "b.param[-1:2]", "b.param[1:18446744073709551617]"})
        CHECK(mentions(renamed("b.param[1:4]", name), {"a range that is none"}));
    CHECK(mentions(renamed("b.param[1:4]", "b.param]1:4]"), {"in no range"}));
    CHECK(mentions(renamed("b.param[1:4]", "b.param[14]"), {"in no range"}));
    CHECK(mentions(renamed("b.param[1:4]", "b:param[14]"), {"in no range"}));
    CHECK(mentions(renamed("b.param[1:4]", "b.param[1:5]"), {"another shape"}));
    CHECK(mentions(renamed("b.param[1:4]", "b.param[3:6]"), {"'b'", "3 elements from 3", "has 5"}));
    CHECK(mentions(renamed("b.param[1:4]", "w.param[1:4]"), {"'w'"}));
    CHECK(mentions(renamed("b.exp_avg[1:4]", "b.exp_avg_sq[2:5]"), {"exp_avg_sq of param 'b'", "overlap"}));
    // Types that the array cannot have.
    CHECK(mentions(header([](json& h) { h["b.exp_avg[1:4]"]["dtype"] = "F16"; }), {"exp_avg of param 'b'", "float16"}));
    // Checksums.
    auto const digests = [&](std::function<void(json&)> const& edit) {
        return load_refusal(edited_text(good, "adamant.xxh3", edit));
    };
    CHECK(mentions(digests([](json& d) { d.erase("w.param"); }), {"adamant.xxh3", "6 members"}));
    CHECK(mentions(digests([](json& d) { d["x"] = "0000000000000000"; }), {"adamant.xxh3", "6 members"}));
    CHECK(mentions(digests([](json& d) { d["w.param"] = 1; }), {"adamant.xxh3", "'w.param'"}));
    CHECK(mentions(digests([](json& d) { d["w.param"] = "x"; }), {"tensor 'w.param'", "was written with x"}));
    // The state.
    CHECK(mentions(state([](json& s) { s = json::array(); }), {"the state"}));
    CHECK(mentions(state([](json& s) { s["more"] = 1; }), {"the state", "3 members"}));
    CHECK(mentions(state([](json& s) { s["params"] = 1; }), {"the state", "'params'"}));
    CHECK(mentions(state([](json& s) { s["groups"] = {{"a", 1}}; }), {"the state", "'groups'"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["name"] = "w"; }), {"params 0 and 1"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["name"] = ""; }), {"param 1 has no name"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["group"] = 2; }), {"'b'", "group 2"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["group"] = -1; }), {"param 1", "'group'"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["shape"] = {1ull << 62, 2}; }), {"'b'", "memory"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["shape"] = {1.5}; }), {"param 1", "'shape'"}));
    CHECK(mentions(state([](json& s) { s["params"][1]["shape"] = {3}; }), {"3 elements from 1", "has 3"}));
    CHECK(mentions(state([](json& s) { s["groups"][1].erase("eps"); }), {"group 1", "12 members"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["param_rounding"] = "up"; }), {"'rest'", "rounding"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["rounding_seed"] = -1; }), {"group 1", "'rounding_seed'"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["mode"] = "L2"; }), {"'rest'", "mode"}));
    CHECK(mentions(state([](json& s) { s["groups"][0]["mode"] = "unset"; }), {"'decay'", "mode is unset"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["beta1"] = 1.0; }), {"'rest'", "beta1 is 1"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["lr"] = "0.1"; }), {"group 1", "'lr'"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["bias_correction"] = 1; }), {"group 1", "'bias_correction'"}));
    CHECK(mentions(state([](json& s) { s["groups"][1]["name"] = "decay"; }), {"groups 0 and 1"}));
    CHECK(mentions(state([](json& s) { s["loss_scaler"]["scale"] = -1.0; }), {"scale is -1"}));
    CHECK(mentions(state([](json& s) { s["loss_scaler"]["good_steps"] = 1ull << 32; }), {"'good_steps'"}));
    CHECK(mentions(state([](json& s) { s["loss_scaler"] = true; }), {"the loss scaler"}));
    std::string const infinite = "{\"groups\":[],\"loss_scaler\":null,\"params\":[1e999]}";
    CHECK(mentions(header([&](json& h) { h["__metadata__"]["adamant.state"] = infinite; }), {"number overflow"}));
}

TEST_CASE("A state from before there was a choice of rounding goes on rounding to nearest")
{
    state_dict saved;
    saved.groups.push_back({"all", adamw({.rounding = {rounding::stochastic, rounding::stochastic, 77}}), false});
    json parsed = json::parse(detail::state_text(saved));
    CHECK(detail::state_from_text(parsed.dump()).groups[0].hyper.rounding == saved.groups[0].hyper.rounding);
    for (char const* key : {"exp_avg_sq_rounding", "param_rounding", "rounding_seed"})
        parsed["groups"][0].erase(key);
    bfloat16_rounding const before = {rounding::nearest, rounding::nearest, 0};
    CHECK(detail::state_from_text(parsed.dump()).groups[0].hyper.rounding == before);
}

TEST_CASE("UTF-8 is what the JSON library takes for it, and is shown with the rest escaped")
{
    random_bits random(25);
    static constexpr char const pieces[][5] = {
        "a",        "\x7f",     "\x80",         "\xbf",         "\xc1",         "\xc2\x80",
        "\xdf",     "\xe0\xa0", "\xe0\x9f",     "\xed\x9f",     "\xed\xa0",     "\xef\xbf",
        "\xf0\x90", "\xf0\x8f", "\xf4\x8f\xbf", "\xf4\x90\x80", "\xf5\x80\x80", "\xff"};
    for (int i = 0; i < 3000; ++i) {
        std::string text;
        for (std::size_t n = random.below(5); n != 0; --n)
            text += pieces[random.below(std::size(pieces))];
        std::string shown;
        detail::each_utf8(text, [&](std::string_view piece) {
            shown += piece;
            return true;
        });
        bool is_utf8 = true;
        try {
            static_cast<void>(json(text).dump());
        } catch (json::exception const&) {
            is_utf8 = false;
        }
        INFO(shown);
        REQUIRE((shown == text) == is_utf8);
        static_cast<void>(json(shown).dump()); // would throw
        bool taken = true;
        try {
            detail::check_utf8("a text", text);
        } catch (invalid_argument const& error) {
            taken = false;
            REQUIRE(mentions(error.what(), {"a text", "'" + shown + "'"}));
        }
        REQUIRE(taken == is_utf8);
    }
    std::string shown;
    detail::each_utf8("\xe2\x82\xac, \xe2\x82, \xed\xa0\x80", [&](std::string_view piece) {
        shown += piece;
        return true;
    });
    CHECK(shown == "\xe2\x82\xac, \\xe2\\x82, \\xed\\xa0\\x80");
    CHECK(refusal<invalid_argument>([] { detail::check_utf8("a text", std::string(3000, '\xff')); }).size() < 400);
}

TEST_CASE("JSON is read strictly")
{
    using detail::parse_json;
    auto const refused = [](std::string const& text) -> std::string {
        try {
            parse_json(text);
        } catch (detail::malformed const& error) {
            return error.what();
        }
        return "read";
    };
    CHECK(refused("[[[[1]]]]") == "read");
    CHECK(mentions(refused("[[[[[1]]]]]"), {"four levels"}));
    CHECK(mentions(refused(std::string(10'000'000, '[')), {"four levels"}));
    CHECK(mentions(refused(R"({"a":{"b":[{"c":[1]}]}})"), {"four levels"}));
    CHECK(mentions(refused(R"({"a":1,"b":2,"a":1})"), {"\"a\" appears twice"}));
    CHECK(mentions(refused(R"({"a":1,"b":{"a":1,"\u0061":1}})"), {"\"a\" appears twice"}));
    CHECK(refused(R"({"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]})") == "read");
    std::string many = "0";
    for (int i = 1; i < 64; ++i)
        many += ",0";
    CHECK(refused("[" + many + "]") == "read");
    CHECK(mentions(refused("[" + many + ",0]"), {"more than 64 values"}));
    CHECK(refused("[[" + many + "],[" + many + "]]") == "read");
    std::string members = "\"m\":0";
    for (int i = 1; i < 100; ++i)
        members += ",\"" + std::to_string(i) + "\":0";
    CHECK(refused("{" + members + "}") == "read");
    for (char const* const text : {"", "{", "{} {}", "{'a':1}", "[1,]", "[NaN]", "[1e999]", "\"\xff\"", "[1]//", "nul"})
        CHECK(refused(text) != "read");
    CHECK(refused("\"" + std::string(1'000'000, 'x')).size() <= 200); // not all of what it read last
}

TEST_CASE("mutated files are refused or read, and never believed", "[fuzz]")
{
    mutate_files<kind>([](int i, random_bits& random) { return i == 0 ? small_state() : random_state(random); }, 50);
}

TEST_CASE("the states of ranks are merged")
{
    random_bits random(24);
    for (int i = 0; i < 100; ++i) {
        owned_state const whole = random_state(random);
        std::vector<state_dict> ranks(1 + random.below(4), whole.state);
        for (state_dict& rank : ranks)
            rank.tensors.clear();
        for (state_tensor const& tensor : whole.state.tensors)
            ranks[random.below(ranks.size())].tensors.push_back(tensor);
        for (std::size_t r = 1; r < ranks.size(); ++r) { // the last becomes the first
            state_dict& rank = ranks[r];
            std::size_t const groups = rank.groups.size();
            std::size_t const params = rank.params.size();
            std::rotate(rank.groups.begin(), rank.groups.end() - 1, rank.groups.end());
            for (state_param& param : rank.params)
                param.group = (param.group + 1) % groups;
            if (params != 0)
                std::rotate(rank.params.begin(), rank.params.end() - 1, rank.params.end());
            for (state_tensor& tensor : rank.tensors)
                tensor.param = (tensor.param + 1) % params;
        }
        REQUIRE(difference(merge(ranks), whole.state) == "");
    }
}

TEST_CASE("a merged state keeps alive what each state keeps alive")
{
    std::vector<state_dict> ranks(3);
    std::vector<std::weak_ptr<int>> owners;
    for (state_dict& rank : ranks) {
        auto const owner = std::make_shared<int>();
        owners.push_back(owner);
        rank.owners.push_back(owner);
    }
    auto merged = std::make_unique<state_dict>(merge(ranks));
    ranks.clear();
    for (auto const& owner : owners)
        CHECK_FALSE(owner.expired());
    merged.reset();
    for (auto const& owner : owners)
        CHECK(owner.expired());
}

TEST_CASE("the states of ranks that own whole params are merged")
{
    owned_state const whole = small_state();
    std::vector<state_dict> ranks(2, whole.state);
    for (std::size_t r = 0; r < 2; ++r) {
        state_dict& rank = ranks[r];
        rank.params = {whole.state.params[r]};
        rank.tensors.clear();
        for (state_tensor tensor : whole.state.tensors)
            if (tensor.param == r) {
                tensor.param = 0;
                rank.tensors.push_back(tensor);
            }
    }
    std::swap(ranks[1].groups[0], ranks[1].groups[1]);
    ranks[1].params[0].group = 1 - ranks[1].params[0].group;
    REQUIRE(whole.state.params.size() == 2);
    REQUIRE(difference(merge(ranks), whole.state) == "");
    ranks.push_back(ranks[1]);
    ranks[2].tensors.clear();
    ranks[2].params[0].shape.push_back(2);
    CHECK(mentions(refusal<invalid_argument>([&] { static_cast<void>(merge(ranks)); }),
                   {"the shape of param 'b' is", "in state 1 and", "in state 2"}));
}

TEST_CASE("states that are not of one run are not merged")
{
    auto const merge_refusal = [](std::function<void(state_dict&)> const& spoil) {
        owned_state const whole = small_state();
        std::vector<state_dict> ranks(3, whole.state);
        ranks[1].tensors.clear();
        ranks[2].tensors.clear();
        REQUIRE(difference(merge(ranks), whole.state) == "");
        spoil(ranks[2]);
        return refusal<invalid_argument>([&] { static_cast<void>(merge(ranks)); });
    };
    using state_ref = state_dict&;
    CHECK(mentions(refusal<invalid_argument>([] { static_cast<void>(merge({})); }), {"no states"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.step = 8; }), {"step is 7 in state 0 and 8 in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.loss_scaler->good_steps = 4; }), {"loss scaler", "state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.loss_scaler.reset(); }), {"loss scaler", "none in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.metadata["seed"] = "12"; }),
                   {"metadata 'seed' is '11' in state 0 and '12' in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.metadata["x"] = "1"; }), {"'x' is missing in state 0 and '1'"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.metadata.clear(); }), {"'seed' is '11' in state 0 and missing"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[1].name = "x"; }),
                   {"group 'rest'", "in state 0, but not in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) {
                       s.groups.push_back({"x", {}, false});
                   }),
                   {"group 'x'", "in state 2, but not in state 0"}));
    CHECK(mentions(merge_refusal([](state_ref s) {
                       s.params[0].shape = {3, 2};
                   }),
                   {"shape of param 'w' is [2, 3] in state 0 and [3, 2] in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.params[0].group = 1; }),
                   {"group of param 'w' is 'decay' in state 0 and 'rest' in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[1].hyper.lr = 0.2; }),
                   {"lr of group 'rest' is 0.3 in state 0 and 0.2 in state 2"}));
    for (auto const& number : detail::hyperparameter_numbers)
        for (double const factor : {0.5, 1.0009}) // beta2 stays below 1
            CHECK(mentions(merge_refusal([&](state_ref s) { s.groups[0].hyper.*number.second *= factor; }),
                           {number.first, "'decay'"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[0].hyper.mode = decay_mode::l2; }),
                   {"mode of group 'decay' is decoupled in state 0 and l2 in state 2"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[0].hyper.bias_correction = false; }),
                   {"bias_correction", "'decay'"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[0].maximize = true; }), {"maximize", "'decay'"}));
    CHECK(mentions(merge_refusal([](state_ref s) { s.groups[0].hyper.beta1 = 2; }), {"beta1 is 2"}));
    static std::byte const bytes[4] = {};
    auto const with = [&](state_tensor const& tensor) {
        return merge_refusal([&](state_ref s) { s.tensors.push_back(tensor); });
    };
    CHECK(mentions(with({0, state_array::exp_avg, dtype::float32, 3, 1, bytes}),
                   {"exp_avg of param 'w'", "overlap", "[3, 4)"}));
    CHECK(mentions(with({1, state_array::exp_avg, dtype::float32, 4, 1, bytes}), {"'b'", "bfloat16 and", "float32"}));
}

// For safetensors_python.py, which reads it with another implementation, where ADAMANT_SAFETENSORS_OUT says. Element i
// of tensor t has the low bits of (t + 1) * 40503 + i * 2654435761.
TEST_CASE("a file for another implementation", "[python]")
{
    scratch_folder const folder;
    char const* const wanted = std::getenv("ADAMANT_SAFETENSORS_OUT");
    std::filesystem::path const path = wanted == nullptr ? folder / "a" : std::filesystem::path(wanted);
    owned_state all;
    all.state.step = 123456789012345;
    all.state.loss_scaler = loss_scaler_state{0x1p24, 17, 2};
    all.state.metadata = {{"data", "\u00e4 \"q\""}};
    all.state.groups = {{"decay", {.lr = 1e-3, .weight_decay = 0.1, .mode = decay_mode::decoupled}, false},
                        {"no \"decay\"", {.lr = 0.1, .mode = decay_mode::l2}, true}};
    all.state.params = {{"embed.weight", {5, 7}, 0},
                        {"\u00e4 \"q\"", {3}, 1},
                        {"scalar", {}, 1},
                        {"empty", {0, 4}, 0},
                        {"share", {1000, 1000}, 0}};
    std::uint32_t t = 0;
    auto const add = [&](std::size_t param, state_array array, dtype type, std::size_t begin, std::size_t n) {
        std::vector<std::byte> bytes(n * size_bytes(type));
        for (std::uint32_t i = 0; i < n; ++i) {
            std::uint32_t const bits = (t + 1) * 40503u + i * 2654435761u;
            std::memcpy(&bytes[i * size_bytes(type)], &bits, size_bytes(type));
        }
        all.add(param, array, type, begin, n, bytes);
        ++t;
    };
    add(0, state_array::param, dtype::float32, 0, 35);
    add(0, state_array::exp_avg, dtype::bfloat16, 0, 35);
    add(0, state_array::exp_avg_sq, dtype::float32, 0, 35);
    add(1, state_array::param, dtype::float16, 0, 3);
    add(2, state_array::param, dtype::bfloat16, 0, 1);
    add(3, state_array::param, dtype::float32, 0, 0);
    add(4, state_array::exp_avg, dtype::float32, 999990, 10);
    save_safetensors(path, all.state);
    CHECK(difference(safetensors_state(path).state(), all.state) == "");
}
