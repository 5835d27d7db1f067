// SPDX-License-Identifier: Apache-2.0
// The C interface: checkpoints.
#include <algorithm>
#include <cstdint>
#include <cstring>
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
          "/\xc3\xa4\\xff\\xe2\\x82.safetensors': No such file");
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
    refused(load(files[0], both.get()), "Pass the files of all ranks.");
    char const* const paths[] = {files[1].c_str(), files[0].c_str()};
    ok(adamant_load_safetensors(both.get(), paths, 2));
    REQUIRE((joined.digest() == m.digest() && steps_of(both) == 3));
}

TEST_CASE("C: checkpoints in memory are those of files")
{
    folder const dir;
    std::string const path = dir.file("state.safetensors");
    model m;
    optimizer const o = make_optimizer(m);
    ok(adamant_step(o.get(), nullptr, nullptr));
    ok(adamant_save_safetensors(o.get(), path.c_str()));
    std::ifstream in(path, std::ios::binary);
    std::string const file((std::istreambuf_iterator<char>(in)), {});
    std::size_t bytes = 0;
    ok(adamant_save_bytes(o.get(), &bytes));
    REQUIRE(bytes == file.size());
    std::vector<char> memory(bytes + 8, 'x');
    std::size_t written = 0;
    refused(adamant_save_memory(o.get(), memory.data(), bytes - 1, &written),
            std::to_string(bytes) + " bytes to memory of " + std::to_string(bytes - 1));
    REQUIRE((written == 0 && memory == std::vector<char>(bytes + 8, 'x')));
    ok(adamant_save_memory(o.get(), memory.data(), memory.size(), &written));
    REQUIRE(written == bytes);
    REQUIRE(std::string(memory.data(), bytes) == file);
    REQUIRE(std::string(memory.data() + bytes, 8) == "xxxxxxxx");
    ok(adamant_save_memory(o.get(), memory.data(), bytes, nullptr));

    model n;
    optimizer const into = make_optimizer(n);
    std::uint64_t const fresh = n.digest();
    void const* states[] = {memory.data(), memory.data()};
    std::size_t sizes[] = {bytes, bytes};
    sizes[0] = bytes - 1;
    fails(adamant_load_memory(into.get(), states, sizes, 1), ADAMANT_CORRUPTED, "the state in memory is truncated");
    sizes[0] = bytes;
    memory[bytes - 7] ^= 1;
    fails(adamant_load_memory(into.get(), states, sizes, 1), ADAMANT_CORRUPTED, "checksum");
    memory[bytes - 7] ^= 1;
    refused(adamant_load_memory(into.get(), states, sizes, 2), "overlap");
    refused(adamant_load_memory(into.get(), states, sizes, 0), "from nothing");
    REQUIRE((n.digest() == fresh && steps_of(into) == 0));
    ok(adamant_load_memory(into.get(), states, sizes, 1));
    REQUIRE((n.digest() == m.digest() && steps_of(into) == 1));
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_save_bytes(o.get(), &bytes), "a step is in progress");
    refused(adamant_save_memory(o.get(), memory.data(), bytes, nullptr), "a step is in progress");
    refused(adamant_load_memory(o.get(), states, sizes, 1), "a step is in progress");
    ok(adamant_abandon(o.get()));
}

TEST_CASE("C: a list of the state's tensors, as views")
{
    model m;
    optimizer const o = make_optimizer(m);
    // A part of a parameter, in 16 bits.
    std::vector<std::uint16_t> part(6);
    std::vector<float> other(6), moments(12);
    adamant_shard s = shard();
    s.elements = 6;
    s.param = part.data();
    s.param_dtype = ADAMANT_BFLOAT16;
    s.grad = other.data();
    s.exp_avg = moments.data();
    s.exp_avg_sq = moments.data() + 6;
    std::size_t const shape[] = {3, 4};
    s.shape = shape;
    s.dims = 2;
    s.begin = 6;
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_add_group(o.get(), "second", &h, 0, nullptr));
    ok(adamant_add_shard(o.get(), 1, "part", &s, nullptr));

    adamant_state* made = nullptr;
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_state_create(o.get(), &made), "a step is in progress");
    ok(adamant_abandon(o.get()));
    REQUIRE(made == nullptr);
    ok(adamant_state_create(o.get(), &made));
    state const owned(made);
    std::size_t count = 0;
    ok(adamant_state_tensor_count(made, &count));
    REQUIRE(count == 3 * (m.tensors.size() + 1));
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
        adamant_state_tensor t = initialised(adamant_state_tensor_init);
        ok(adamant_state_get_tensor(made, i, &t));
        std::string const param = t.param;
        if (param == "part") {
            ++found;
            REQUIRE((t.group == std::string("second") && t.elements == 6 && t.begin == 6));
            REQUIRE((t.dims == 2 && t.shape[0] == 3 && t.shape[1] == 4));
            REQUIRE(t.dtype == (t.array == ADAMANT_STATE_PARAM ? ADAMANT_BFLOAT16 : ADAMANT_FLOAT32));
            void const* const arrays[] = {s.param, s.exp_avg, s.exp_avg_sq};
            REQUIRE(t.data == arrays[t.array]);
            continue;
        }
        REQUIRE(param.starts_with("tensor"));
        model::tensor const& of = m.tensors.at(static_cast<std::size_t>(param.back() - '0'));
        void const* const arrays[] = {of.param.data(), of.exp_avg.data(), of.exp_avg_sq.data()};
        REQUIRE((t.data == arrays[t.array] && t.group == std::string("all")));
        REQUIRE((t.elements == of.param.size() && t.begin == 0 && t.dtype == ADAMANT_FLOAT32));
        REQUIRE((t.dims == 1 && t.shape[0] == t.elements));
        ++found;
    }
    REQUIRE(found == count);
    adamant_state_tensor t = initialised(adamant_state_tensor_init);
    refused(adamant_state_get_tensor(made, count, &t), "no tensor " + std::to_string(count));
    t.struct_bytes = 8;
    refused(adamant_state_get_tensor(made, 0, &t), "struct_bytes of adamant_state_tensor");
}

TEST_CASE("C: every tensor of the state is read, including split masters and 8-bit moments")
{
    constexpr std::size_t n = 200;
    std::vector<float> master(n);
    for (std::size_t i = 0; i < n; ++i)
        master[i] = 0.1f + static_cast<float>(i);
    std::vector<std::uint16_t> weight(n), low(n);
    ok(adamant_split_masters(master.data(), n, weight.data(), low.data()));
    std::vector<float> grad(n);
    std::vector<unsigned char> moments[2];
    for (int i = 0; i < 2; ++i)
        for (std::size_t at = 0; at < 4 * 68; ++at)
            moments[i].push_back(static_cast<unsigned char>(at + static_cast<std::size_t>(i)));
    adamant_shard s = shard(n, low.data(), grad.data(), moments[0].data(), moments[1].data());
    s.weight_out = weight.data();
    s.param_dtype = ADAMANT_SPLIT_FLOAT32;
    s.exp_avg_dtype = s.exp_avg_sq_dtype = ADAMANT_QUANTIZED8;
    s.weight_out_dtype = ADAMANT_BFLOAT16;
    adamant_shard none = s; // whose pointers are not null
    std::size_t const shape[] = {64 + n};
    s.shape = none.shape = shape;
    s.dims = none.dims = 1;
    s.begin = 64;
    none.elements = 0;
    adamant_optimizer* made_optimizer = nullptr;
    ok(adamant_optimizer_create(make_executor().get(), nullptr, &made_optimizer));
    optimizer o(made_optimizer);
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_add_group(o.get(), "all", &h, 0, nullptr));
    ok(adamant_add_shard(o.get(), 0, "w", &s, nullptr));
    ok(adamant_add_shard(o.get(), 0, "w", &none, nullptr));
    adamant_state* made = nullptr;
    ok(adamant_state_create(o.get(), &made));
    state const owned(made);
    o.reset(); // the list holds as long as the arrays
    std::size_t count = 0;
    ok(adamant_state_tensor_count(made, &count));
    REQUIRE(count == 6);
    for (std::size_t i = 0; i < count; ++i) {
        adamant_state_tensor t = initialised(adamant_state_tensor_init);
        ok(adamant_state_get_tensor(made, i, &t));
        bool const is_param = t.array == ADAMANT_STATE_PARAM;
        void const* const arrays[] = {nullptr, moments[0].data(), moments[1].data()};
        REQUIRE(t.data == (t.elements == 0 ? nullptr : arrays[t.array]));
        REQUIRE(t.dtype == (is_param ? ADAMANT_FLOAT32 : ADAMANT_QUANTIZED8));
        REQUIRE(t.begin == (t.elements == 0 ? 0 : 64));
        ok(adamant_state_read_tensor(made, i, t.elements, 0, nullptr));
        std::vector<unsigned char> found(1000, 7);
        refused(adamant_state_read_tensor(made, i, t.elements, 1, found.data()), "cannot read 1 element ");
        refused(adamant_state_read_tensor(made, i, 1, SIZE_MAX, found.data()), "cannot read");
        if (t.elements == 0)
            continue;
        REQUIRE(t.elements == n);
        refused(adamant_state_read_tensor(made, i, 0, n, nullptr), "destination is a null");
        unsigned char const* const whole =
            is_param ? reinterpret_cast<unsigned char const*>(master.data()) : moments[t.array - 1].data();
        auto const bytes = [&](std::size_t elements) { return is_param ? 4 * elements : (elements + 63) / 64 * 68; };
        for (std::size_t const begin : {std::size_t{0}, std::size_t{64}, std::size_t{192}})
            for (std::size_t const elements : {std::size_t{64}, n - begin}) {
                if (elements > n - begin)
                    continue;
                std::fill(found.begin(), found.end(), static_cast<unsigned char>(7));
                ok(adamant_state_read_tensor(made, i, begin, elements, found.data()));
                REQUIRE(std::memcmp(found.data(), whole + bytes(begin), bytes(elements)) == 0);
                REQUIRE(found[bytes(elements)] == 7);
            }
        if (is_param) {
            ok(adamant_state_read_tensor(made, i, 3, 5, found.data()));
            REQUIRE(std::memcmp(found.data(), master.data() + 3, 20) == 0);
        } else {
            refused(adamant_state_read_tensor(made, i, 3, 64, found.data()), "in groups of 64");
            refused(adamant_state_read_tensor(made, i, 64, 63, found.data()), "in groups of 64");
        }
    }
    float x = 0;
    refused(adamant_state_read_tensor(made, count, 0, 1, &x), "no tensor 6");
}
