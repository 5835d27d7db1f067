// SPDX-License-Identifier: Apache-2.0
// The C interface: checkpoints.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "c_test.hpp"

TEST_CASE("C: checkpoints, of one and of several files")
{
    folder const dir;
    std::string const whole = dir.file("whole.safetensors");
    model m;
    optimizer const o = make_optimizer(m);
    for (std::uint64_t step = 1; step <= 3; ++step) {
        m.new_gradients(step);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    ok(adamant_save_safetensors(o.get(), whole.c_str()));
    fails(adamant_save_safetensors(o.get(), dir.file("no/such/folder").c_str()), ADAMANT_UNAVAILABLE, "no/such/folder");

    model n;
    optimizer const into = make_optimizer(n);
    std::uint64_t const fresh = n.digest();
    char const* path = nullptr;
    auto const load = [&](std::string const& file, adamant_optimizer* to) {
        path = file.c_str();
        return adamant_load_safetensors(to, &path, 1);
    };
    fails(load(dir.file("none"), into.get()), ADAMANT_UNAVAILABLE, "none");
    // A path of any bytes, in a text that is UTF-8 all the same.
    fails(load(dir.file("\xc3\xa4\xff\xe2\x82.safetensors"), into.get()), ADAMANT_UNAVAILABLE,
          "/\xc3\xa4\\xff\\xe2\\x82.safetensors: cannot be read");
    {
        std::ifstream in(whole, std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(in)), {});
        bytes[bytes.size() - 100] ^= 1;
        std::ofstream(dir.file("flipped"), std::ios::binary) << bytes;
        std::ofstream(dir.file("cut"), std::ios::binary) << bytes.substr(0, bytes.size() - 5);
    }
    fails(load(dir.file("flipped"), into.get()), ADAMANT_CORRUPTED, "flipped");
    fails(load(dir.file("cut"), into.get()), ADAMANT_CORRUPTED, "cut");
    REQUIRE((n.digest() == fresh && steps_of(into) == 0));
    ok(load(whole, into.get()));
    REQUIRE((n.digest() == m.digest() && steps_of(into) == 3));
    char const* const twice[] = {whole.c_str(), whole.c_str()};
    refused(adamant_load_safetensors(into.get(), twice, 2), "");

    // Two ranks: the first tensor is the one's, the last the other's, and of the rest each has a part.
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(make_executor(1).get(), nullptr, &made));
        optimizer const part(made);
        adamant_hyperparameters const h = hyperparameters();
        ok(adamant_add_group(made, "all", &h, 0, nullptr));
        model own;
        for (std::size_t i = 0; i < own.tensors.size(); ++i) {
            std::size_t const all = own.tensors[i].param.size();
            adamant_shard s = own.describe(i);
            s.shape = &all;
            s.dims = 1;
            std::size_t const cut = i == 0 ? all : i + 1 == own.tensors.size() ? 0 : all / 3;
            s.begin = rank == 0 ? 0 : cut;
            s.elements = rank == 0 ? cut : all - cut;
            if (s.elements == 0)
                continue;
            ok(adamant_add_shard(made, 0, ("tensor" + std::to_string(i)).c_str(), &s, nullptr));
        }
        ok(load(whole, made));
        files.push_back(dir.file(rank == 0 ? "rank0" : "rank1"));
        ok(adamant_save_safetensors(made, files.back().c_str()));
    }
    model joined;
    optimizer const both = make_optimizer(joined);
    refused(load(files[0], both.get()), "is a rank's file missing?");
    char const* const paths[] = {files[1].c_str(), files[0].c_str()};
    ok(adamant_load_safetensors(both.get(), paths, 2));
    REQUIRE((joined.digest() == m.digest() && steps_of(both) == 3));
}
