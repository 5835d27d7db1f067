// SPDX-License-Identifier: Apache-2.0
// The C interface: texts of the C++ library name what C has.
#include <iterator>
#include <string>
#include <string_view>

#include <adamant/c/names.hpp>

#include "c_test.hpp"

namespace {

std::string in_c(std::string_view text)
{
    std::string result;
    adamant::c::each_piece_in_c(text, [&](std::string_view piece) { result += piece; });
    return result;
}

} // namespace

TEST_CASE("C: a text of the C++ library in C's words")
{
    CHECK(in_c("adamant: submit() is called, but no step is open; begin_step() first") ==
          "adamant: adamant_submit() is called, but no step is open; adamant_begin_step() first");
    CHECK(in_c("binding::none") == "ADAMANT_BIND_NONE");
    CHECK(in_c("") == "");
    // Not what is in C's words already, no part of a longer name, no path, and nothing that the caller has named.
    for (char const* const same : {"adamant_finish()", "my_step()", "step", "step(x)", "/home/step()/x", "x::load()",
                                   "shard 'begin_step()' of 'load()'", "('step()')", "dtype::float320"})
        CHECK(in_c(same) == same);
    CHECK(in_c("the optimizer's step() of 'step()' isn't") == "the optimizer's adamant_step() of 'step()' isn't");
    CHECK(in_c("a 'quote without end: step()") == "a 'quote without end: adamant_step()");
    for (std::size_t i = 0; i < std::size(adamant::c::c_names); ++i)
        for (std::size_t j = 0; j < i; ++j)
            CHECK(!adamant::c::c_names[i].in_cpp.starts_with(adamant::c::c_names[j].in_cpp));
    // Through the library.
    model m;
    optimizer const o = make_optimizer(m);
    adamant_status const status = adamant_submit(o.get(), 0);
    CHECK(status == ADAMANT_INVALID_ARGUMENT);
    CHECK(last_error() == "adamant: adamant_submit() is called, but no step is open; adamant_begin_step() first");
}
