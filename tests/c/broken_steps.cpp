// SPDX-License-Identifier: Apache-2.0
// The C interface: steps whose sum over processes fails, and optimizers that are freed during one.
#include <cmath>
#include <cstdint>
#include <string>

#include "c_test.hpp"

TEST_CASE("C: the sum over processes, and what becomes of a step when it fails")
{
    struct hook {
        std::int32_t status = 0;
        std::int64_t factor = 4;
        std::int64_t more = 0;
        int calls = 0;
        static std::int32_t run(void* user, std::int64_t* words, std::size_t count)
        {
            hook& self = *static_cast<hook*>(user);
            ++self.calls;
            for (std::size_t i = 0; i < count; ++i)
                words[i] *= self.factor;
            words[count - 1] += self.more;
            if (self.status == 1000)
                throw 5; // from C++ that should not
            return self.status;
        }
    } reduce;
    model m;
    adamant_optimizer_options p = options();
    p.reduce = hook::run;
    p.reduce_user = &reduce;
    p.speculate = ADAMANT_SPECULATE_ALWAYS;
    optimizer const o = make_optimizer(m, p);
    adamant_report alone = report();
    adamant_report r = report();
    {
        model same;
        optimizer const without = make_optimizer(same);
        ok(adamant_step(without.get(), nullptr, &alone));
    }
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((reduce.calls == 1 && r.global_norm == 2 * alone.global_norm));
    reduce.more = 3; // elsewhere
    std::uint64_t const before = m.digest();
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((r.outcome == ADAMANT_SKIPPED && r.nonfinite_grads == 3 && r.has_first_nonfinite == 0));
    reduce.more = 0;

    auto const submit_all = [&] {
        for (std::size_t i = 0; i < m.tensors.size(); ++i)
            ok(adamant_submit(o.get(), i));
    };
    for (std::int32_t const status : {7, -1}) {
        reduce.status = status;
        std::string const words = "returned " + std::to_string(status);
        r.step = 99;
        // begun: stays open, and goes on when it can
        ok(adamant_begin_step(o.get(), nullptr));
        submit_all();
        fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, words);
        fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, words);
        ok(adamant_abandon(o.get()));
        REQUIRE(m.digest() == before);
        // asynchronous: over
        ok(adamant_step_async(o.get(), nullptr));
        std::int32_t over = 0;
        fails(adamant_wait(o.get(), ADAMANT_FOR_EVER, &over, &r), ADAMANT_REDUCE_FAILED, words);
        REQUIRE(over == 1);
        refused(adamant_poll(o.get(), nullptr, nullptr), "no step is in progress");
        REQUIRE(m.digest() == before);
        // whole: over
        fails(adamant_step(o.get(), nullptr, &r), ADAMANT_REDUCE_FAILED, words);
        REQUIRE(m.digest() == before);
        REQUIRE(r.step == 99);
        refused(adamant_finish(o.get(), nullptr), "no step is open");
    }
    REQUIRE(steps_of(o) == 1);
    reduce.status = 1000;
    fails(adamant_step(o.get(), nullptr, nullptr), ADAMANT_REDUCE_FAILED, "threw an exception");
    reduce.status = 7;
    ok(adamant_begin_step(o.get(), nullptr));
    submit_all();
    fails(adamant_finish(o.get(), &r), ADAMANT_REDUCE_FAILED, "returned 7");
    reduce.status = 0;
    reduce.factor = -1;
    refused(adamant_finish(o.get(), &r), "cannot use the result of reduce: a word is negative or too large");
    reduce.factor = 0;
    refused(adamant_finish(o.get(), &r),
            "cannot use the result of reduce: the total of all processes (sum of squares ");
    reduce.factor = 4;
    ok(adamant_finish(o.get(), &r));
    REQUIRE((r.step == 2 && steps_of(o) == 2));
}

TEST_CASE("C: an optimizer that is freed in the midst of a step leaves what the header says")
{
    model const fresh;
    model whole; // stepped
    ok(adamant_step(make_optimizer(whole).get(), nullptr, nullptr));
    for (bool const rolls_back : {true, false}) {
        model m;
        adamant_optimizer_options p = options();
        p.on_nonfinite = rolls_back ? ADAMANT_NONFINITE_SKIP : ADAMANT_NONFINITE_APPLY; // which waits for no norm
        {
            optimizer const o = make_optimizer(m, p);
            ok(adamant_begin_step(o.get(), nullptr));
            ok(adamant_submit(o.get(), 1));
            ok(adamant_submit(o.get(), 2));
            ok(adamant_skip(o.get(), 3));
        }
        for (std::size_t i = 0; i < m.tensors.size(); ++i) {
            bool const stays_stepped = !rolls_back && (i == 1 || i == 2);
            model::tensor const& expected = (stays_stepped ? whole : fresh).tensors[i];
            REQUIRE(m.tensors[i].param == expected.param);
            REQUIRE(m.tensors[i].exp_avg == expected.exp_avg);
            REQUIRE(m.tensors[i].exp_avg_sq == expected.exp_avg_sq);
        }
    }
}
