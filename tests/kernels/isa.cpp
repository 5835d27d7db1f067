// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <optional>

#include <adamant/isa.hpp>

#include "catch.hpp"

using namespace adamant;

namespace {

// ADAMANT_ISA for the length of a scope.
class environment {
public:
    explicit environment(char const* value)
    {
        if (char const* const old = std::getenv("ADAMANT_ISA"))
            old_ = old;
        value == nullptr ? unsetenv("ADAMANT_ISA") : setenv("ADAMANT_ISA", value, 1);
    }
    ~environment() { old_ ? setenv("ADAMANT_ISA", old_->c_str(), 1) : unsetenv("ADAMANT_ISA"); }
    environment(environment const&) = delete;
    environment& operator=(environment const&) = delete;

private:
    std::optional<std::string> old_;
};

} // namespace

TEST_CASE("names and tiers map to each other")
{
    for (isa const tier : all_isas)
        CHECK(parse_isa(name(tier)) == tier);
    CHECK(parse_isa("automatic") == isa::automatic);
    CHECK_THROWS_AS(parse_isa("sse9"), invalid_argument);
    CHECK_THROWS_AS(parse_isa(""), invalid_argument);
}

// User reports: DeepSpeed #2618, #6363.
TEST_CASE("a tier that the CPU lacks is an error that names both sides", "[silent_fallback]")
{
    int missing = 0;
    for (isa const tier : all_isas) {
        if (is_available(tier)) {
            CHECK(resolve_isa(tier) == tier);
            environment const set(std::string(name(tier)).c_str());
            CHECK(resolve_isa(isa::automatic) == tier);
            continue;
        }
        ++missing;
        try {
            (void)resolve_isa(tier);
            FAIL("no error");
        } catch (unavailable const& error) {
            std::string const text = error.what();
            CHECK(text.find(name(tier)) != std::string::npos);
            CHECK(text.find("this CPU has only scalar") != std::string::npos);
        }
        environment const set(std::string(name(tier)).c_str());
        CHECK_THROWS_AS(resolve_isa(isa::automatic), unavailable);
    }
#if !defined(__x86_64__)
    CHECK(missing == 3);
#endif
}

TEST_CASE("the environment is obeyed where the caller leaves the choice, and only there")
{
    {
        environment const set("scalar");
        CHECK(resolve_isa(isa::automatic) == isa::scalar);
        CHECK(resolve_isa(best_available_isa()) == best_available_isa());
    }
    {
        environment const set("nonsense");
        CHECK_THROWS_WITH(resolve_isa(isa::automatic),
                          Catch::Contains("cannot parse the environment variable ADAMANT_ISA, 'nonsense'"));
        CHECK(resolve_isa(isa::scalar) == isa::scalar);
    }
    for (char const* empty : {static_cast<char const*>(nullptr), ""}) {
        environment const set(empty);
        CHECK(resolve_isa(isa::automatic) == best_available_isa());
    }
}

TEST_CASE("illegal_instruction, vendor_gate: the tier comes from what the CPU says it can do")
{
    CHECK(is_available(isa::scalar));
#if defined(__x86_64__)
    CHECK_FALSE(is_available(isa::neon));
#else
    CHECK(best_available_isa() == isa::neon);
#endif
    CHECK(is_available(best_available_isa()));
    // A tier above an available one never counts as below it.
    if (is_available(isa::avx512_bf16))
        CHECK(is_available(isa::avx512));
    if (is_available(isa::avx512))
        CHECK(is_available(isa::avx2));
}
