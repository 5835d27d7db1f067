// SPDX-License-Identifier: Apache-2.0
// The C interface: tuning, and files of what it has found. No time is asserted: what is found depends on the machine.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "c_test.hpp"

namespace {

adamant_shard types()
{
    adamant_shard s = shard();
    s.grad_dtype = s.weight_out_dtype = ADAMANT_BFLOAT16;
    return s;
}
adamant_core_options one_rank()
{
    adamant_core_options c = core_options();
    c.ranks = 1;
    return c;
}
struct trial_steps {
    int seen = 0;
    int last = -1; // after which tuning is ended
    static std::int32_t count(void* user, std::uint32_t cores, double seconds)
    {
        auto& self = *static_cast<trial_steps*>(user);
        ++self.seen;
        if (self.last == 1000)
            throw std::runtime_error("from C++ that should not");
        return cores == 0 || seconds <= 0 ? 99 : self.seen == self.last ? 7 : 0;
    }
};

} // namespace

TEST_CASE("C: tuning finds cores, and what it has found is saved and loaded")
{
    folder const dir;
    std::string const path = dir.file("tuned.json");
    adamant_tuning_options o = tuning_options();
    REQUIRE((o.isa == nullptr && o.deadline_s == 60 && o.elements == 0 && o.worth == 0.25 && o.confidence == 0.99 &&
             o.rounds == 9 && o.most_rounds == 41 && o.settings_worth == 0.03 && o.settings == 1));
    trial_steps steps;
    o.elements = 4096;
    o.confidence = 0.5;
    o.rounds = 2;
    o.most_rounds = 3;
    o.on_step = trial_steps::count;
    o.on_step_user = &steps;
    adamant_core_options const c = one_rank();
    adamant_shard const s = types();
    adamant_tuned* made = nullptr;
    ok(adamant_tune_cores(&c, &s, &o, &made));
    tuned const found(made);
    CHECK(steps.seen > 0);
    adamant_tuned_summary t = initialised(adamant_tuned_summary_init);
    ok(adamant_tuned_describe(made, &t));
    CHECK((t.cores >= 1 && t.cores <= t.available_cores && t.finished == 1 && t.elements == 4096 && t.step_s > 0));
    CHECK((t.cpuadam_cores_perc == static_cast<double>(t.cores) / t.available_cores &&
           t.all == (t.cores == t.available_cores)));
    ok(adamant_tuned_save(made, path.c_str()));

    adamant_tuned* loaded = nullptr;
    ok(adamant_tuned_load(path.c_str(), &c, &s, nullptr, &loaded));
    tuned const owned(loaded);
    adamant_tuned_summary same = initialised(adamant_tuned_summary_init);
    ok(adamant_tuned_describe(loaded, &same));
    CHECK(std::memcmp(&same, &t, sizeof t) == 0);
    adamant_core_options cores = one_rank();
    adamant_executor_options e = executor_options();
    cores.cpuadam_cores_perc = 0.3;
    cores.pt_reserved_cores = 4;
    e.threads = 5;
    ok(adamant_tuned_apply(loaded, &cores, &e));
    CHECK(cores.cpuadam_cores == std::max(1u, std::min(t.cores, t.available_cores - (t.available_cores > 1))));
    CHECK((cores.cpuadam_cores_perc == 0 && cores.pt_reserved_cores == 0 && cores.pt_reserved_cores_perc == 0));
    CHECK((e.max_chunk_elems == t.max_chunk_elems && e.prefetch_bytes == t.prefetch_bytes && e.threads == 5));
    char pus[4096];
    ok(adamant_select_cores(&cores, pus, sizeof pus, nullptr, 0));
    e.threads = 0;
    e.pus = pus;
    adamant_executor* cpu = nullptr;
    ok(adamant_executor_create(&e, &cpu));
    adamant_executor_free(cpu);
    ok(adamant_tuned_apply(loaded, nullptr, nullptr));
    e.struct_bytes = 40; // of the first version, which has neither of the two
    cores.cpuadam_cores = 77;
    refused(adamant_tuned_apply(loaded, &cores, &e), "40 bytes, so it lacks max_chunk_elems and prefetch_bytes");
    CHECK(cores.cpuadam_cores == 77);

    // For other work or another machine, or damaged.
    adamant_tuned* none = nullptr;
    adamant_shard other = types();
    other.grad_dtype = ADAMANT_FLOAT32;
    fails(adamant_tuned_load(path.c_str(), &c, &other, nullptr, &none), ADAMANT_UNAVAILABLE, "types was ");
    fails(adamant_tuned_load(path.c_str(), &c, &s, "scalar", &none), ADAMANT_UNAVAILABLE, "and is scalar. Tune again.");
    cores = one_rank();
    cores.machine = "pack:2 [numa] core:8 pu:2";
    fails(adamant_tuned_load(path.c_str(), &cores, &s, nullptr, &none), ADAMANT_UNAVAILABLE, "packages was ");
    fails(adamant_tuned_load(dir.file("none").c_str(), &c, &s, nullptr, &none), ADAMANT_UNAVAILABLE, "cannot read");
    std::ofstream(dir.file("cut")) << "{";
    fails(adamant_tuned_load(dir.file("cut").c_str(), &c, &s, nullptr, &none), ADAMANT_CORRUPTED, "Tune again");
    fails(adamant_tuned_save(made, dir.file("no/such/folder").c_str()), ADAMANT_UNAVAILABLE, "no/such/folder");
    refused(adamant_tuned_load(path.c_str(), &c, &s, "sse9", &none), "sse9");
    other.param_dtype = ADAMANT_NONE;
    refused(adamant_tuned_load(path.c_str(), &c, &other, nullptr, &none), "unsupported combination of types");

    o.deadline_s = 0;
    refused(adamant_tune_cores(&c, &s, &o, &none), "deadline is 0");
    o.deadline_s = 60;
    o.worth = 2;
    refused(adamant_tune_cores(&c, &s, &o, &none), "worth is 2");
    o.worth = 0.25;
    steps = {.seen = 0, .last = 2};
    fails(adamant_tune_cores(&c, &s, &o, &none), ADAMANT_UNAVAILABLE, "on_step returned 7");
    CHECK(steps.seen == 2);
    steps.last = 1000;
    fails(adamant_tune_cores(&c, &s, &o, &none), ADAMANT_UNAVAILABLE, "on_step threw an exception");
    REQUIRE(none == nullptr);

    refused(adamant_tuned_load(nullptr, &c, &s, nullptr, &none), "path is a null");
    refused(adamant_tuned_load(path.c_str(), nullptr, &s, nullptr, &none), "adamant_core_options is a null");
    refused(adamant_tuned_load(path.c_str(), &c, nullptr, nullptr, &none), "adamant_shard is a null");
    refused(adamant_tuned_load(path.c_str(), &c, &s, nullptr, nullptr), "made is a null");
    refused(adamant_tuned_save(nullptr, "x"), "tuning result is a null");
    refused(adamant_tuned_save(made, nullptr), "path is a null");
    refused(adamant_tuned_apply(nullptr, nullptr, nullptr), "tuning result is a null");
    refused(adamant_tuned_describe(nullptr, &t), "tuning result is a null");
    refused(adamant_tuned_describe(made, nullptr), "adamant_tuned_summary is a null");
    refused(adamant_tune_cores(nullptr, &s, &o, &none), "adamant_core_options is a null");
    refused(adamant_tune_cores(&c, nullptr, &o, &none), "adamant_shard is a null");
    refused(adamant_tune_cores(&c, &s, &o, nullptr), "made is a null");
    refused(adamant_tuning_options_init(nullptr, 1000), "null");
    refused(adamant_tuned_summary_init(nullptr, 1000), "null");
    adamant_tuned_free(nullptr);
}
