// SPDX-License-Identifier: Apache-2.0
// A trainer of its own on top of the library: a small character-level language model learned from real text, with
// bfloat16 weights and gradients, float32 master weights and moments, clipping, a loss scale and checkpoints. Each
// layer is stepped as soon as backward has its gradient.
//
// The weights it ends with have the same bits for every instruction set, number of threads, compiler and CPU; the
// digest printed last is there to be compared. The step promises that; the rest of this file keeps to these rules:
//   - one thread makes each sum, in a fixed order; threads only share out the sums among themselves;
//   - nothing from libm or the standard distributions, which differ between machines, reaches a weight;
//   - a * b + c is two roundings. The language lets a compiler make it one, so this file has to be compiled with
//     -ffp-contract=off, and refuses to run when it was not.
// Where other programs keep the CPU busy, OMP_WAIT_POLICY=passive in the environment makes it many times faster: by
// default OpenMP's threads wait for each other in busy loops.
#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <adamant/adamant.hpp>
#include <adamant/checkpoint/safetensors.hpp>
#include <adamant/machine.hpp>

namespace {

using adamant::bfloat16;
using adamant::narrow;
using std::size_t;

constexpr size_t context_chars = 8;
constexpr size_t embedding_dims = 32;
constexpr size_t input_dims = context_chars * embedding_dims;
constexpr size_t hidden_dims = 256;
constexpr double peak_lr = 5e-3;
constexpr double weight_decay = 0.2;
constexpr double max_grad_norm = 1.0;
constexpr char const* licences = "/usr/share/common-licenses";

[[noreturn]] void fail(int status, std::string const& message)
{
    std::fprintf(stderr, "train_text: %s\n", message.c_str());
    std::exit(status);
}

using option_values = std::map<std::string, std::string>;

constexpr char const* help = R"(train_text: trains a small language model on the licence texts of this machine

  --steps N           (default 10000)
  --seed N            of the first weights and of what is drawn (default 1)
  --batch N           examples of a step (default 128)
  --text FILE         what is learned instead of /usr/share/common-licenses
  --threads N         of the optimizer (default 0: all)
  --cores-perc SHARE  instead: the optimizer's share of the cores, such as 0.8
  --isa NAME          automatic (default), scalar, generic, avx2, avx512 or
                      avx512_bf16
  --loss-scale SCALE  dynamic (default), or a number
  --checkpoint FILE   where to save
  --every STEPS       how often (default 1000)
  --resume FILE       the checkpoint to go on from
  --help              this text; -h is the same
)";

option_values parse_options(int argc, char** argv)
{
    option_values values{{"--steps", "10000"},
                         {"--seed", "1"},
                         {"--threads", "0"}, // 0: all
                         {"--batch", "128"},
                         {"--isa", "automatic"},
                         {"--text", ""},              // empty: the licences
                         {"--cores-perc", ""},        // empty: as --threads says
                         {"--loss-scale", "dynamic"}, // or a number
                         {"--checkpoint", ""},
                         {"--every", "1000"}, // where to save, and after how many steps
                         {"--resume", ""}};   // which checkpoint to go on from
    for (int i = 1; i < argc; i += 2) {
        if (argv[i] == std::string_view("--help") || argv[i] == std::string_view("-h")) {
            std::fputs(help, stdout);
            std::exit(0);
        }
        if (!values.contains(argv[i]))
            fail(2, "there is no option '" + std::string(argv[i]) + "'; train_text --help lists those that there are");
        if (i + 1 == argc || *argv[i + 1] == '\0')
            fail(2, std::string(argv[i]) + " needs a value after it");
        values[argv[i]] = argv[i + 1];
    }
    return values;
}

size_t number(option_values const& values, char const* option, size_t least, size_t most)
{
    std::string const& text = values.at(option);
    size_t result = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc{} || end != text.data() + text.size() || result < least || result > most)
        fail(2, option + (" is '" + text) + "', but must be a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most));
    return result;
}

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
struct generator {
    std::uint64_t state;
    std::uint64_t next() noexcept
    {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    float uniform() noexcept { return static_cast<float>(next() >> 40) * 0x1p-24f; } // in [0, 1)
    size_t below(size_t n) noexcept { return next() % n; } // its bias, n / 2^64, is of no account here
};

// ---- Text ----

struct corpus {
    std::vector<std::uint8_t> train, held_out; // indices into bytes: the classes
    std::string bytes;                         // those that occur in the training text
};

// FNV-1a, as 16 hexadecimal digits.
struct digest {
    std::uint64_t value = 0xcbf29ce484222325u;
    template <class Bytes>
    void add(Bytes const& bytes)
    {
        for (std::byte const byte : std::as_bytes(std::span(bytes)))
            value = (value ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
    }
    [[nodiscard]] std::string text() const
    {
        char digits[17];
        std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
        return digits;
    }
};

corpus load_corpus(std::string const& file)
{
    std::vector<std::filesystem::path> paths;
    std::error_code ignored; // no directory is the same as an empty one
    if (!file.empty())
        paths.push_back(file);
    else
        for (auto const& entry : std::filesystem::directory_iterator(licences, ignored))
            if (entry.symlink_status().type() == std::filesystem::file_type::regular)
                paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());

    // Licences copy from each other: up to 93 % of the stretches of 40 characters in one stand in another as well. Of
    // CC0-1.0 none does, so it tests what was learned, not what was remembered.
    std::string train, held_out;
    for (auto const& path : paths) {
        std::ifstream in(path, std::ios::binary);
        if (!in || std::filesystem::is_directory(path))
            fail(1, "cannot read '" + path.string() + "'; give a text that can be read with --text FILE");
        (file.empty() && path.filename() == "CC0-1.0" ? held_out : train)
            .append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    bool const tenth = held_out.empty();
    if (tenth) {
        held_out = train.substr(train.size() - train.size() / 10);
        train.resize(train.size() - held_out.size());
    }

    corpus result;
    for (int byte = 0; byte < 256; ++byte)
        if (train.find(static_cast<char>(byte)) != std::string::npos)
            result.bytes += static_cast<char>(byte);
    size_t const skipped = std::erase_if(held_out, [&](char c) { return result.bytes.find(c) == std::string::npos; });
    auto const class_of = [&](char c) { return static_cast<std::uint8_t>(result.bytes.find(c)); };
    std::transform(train.begin(), train.end(), std::back_inserter(result.train), class_of);
    std::transform(held_out.begin(), held_out.end(), std::back_inserter(result.held_out), class_of);
    if (train.size() <= context_chars || held_out.size() <= context_chars)
        fail(1, "found too little text to learn from in " + (file.empty() ? std::string(licences) : "'" + file + "'") +
                    ": " + std::to_string(paths.size()) + " files; give a longer text with --text FILE");
    std::printf("%zu files, %zu characters of %zu classes to learn from\n"
                "held out: %s, %zu characters; skipped in it: %zu that the training text does not have\n",
                paths.size(), train.size(), result.bytes.size(), tenth ? "the last tenth" : "the whole of CC0-1.0",
                held_out.size(), skipped);
    return result;
}

// ---- Arithmetic ----

struct matrix { // row by row
    size_t rows, columns;
    std::vector<float> values = std::vector<float>(rows * columns);
    float const* row(size_t i) const noexcept { return values.data() + i * columns; }
    float* row(size_t i) noexcept { return values.data() + i * columns; }
};

// a b. The innermost loop runs along a row of the result and sums nothing, so it becomes vector code with no sum
// reordered: each element is summed in order of the inner index. Four of those at a time save loads, no more.
matrix product(unsigned threads, matrix const& a, matrix const& b)
{
    matrix result{a.rows, b.columns};
    int const team = static_cast<int>(threads);
#pragma omp parallel for num_threads(team)
    for (size_t r = 0; r < a.rows; ++r) {
        float const* const x = a.row(r);
        float* const y = result.row(r);
        size_t i = 0;
        for (; i + 4 <= a.columns; i += 4) {
            float const x0 = x[i], x1 = x[i + 1], x2 = x[i + 2], x3 = x[i + 3];
            float const *const b0 = b.row(i), *const b1 = b.row(i + 1);
            float const *const b2 = b.row(i + 2), *const b3 = b.row(i + 3);
#pragma omp simd
            for (size_t j = 0; j < b.columns; ++j)
                y[j] = y[j] + x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j];
        }
        for (; i < a.columns; ++i)
            for (size_t j = 0; j < b.columns; ++j)
                y[j] = y[j] + x[i] * b.row(i)[j];
    }
    return result;
}

matrix transposed(matrix const& a)
{
    matrix result{a.columns, a.rows};
    for (size_t j = 0; j < a.columns; ++j)
        for (size_t i = 0; i < a.rows; ++i)
            result.row(j)[i] = a.row(i)[j];
    return result;
}

// e^x for x <= 0, and e^-80 below -80: the reduction and polynomial of Cephes' expf, good to an ulp or two. Adding
// 1.5 * 2^23 rounds to a whole number and leaves that in the lowest bits of the sum.
inline float exp_of_negative(float x) noexcept
{
    float const y = x > -80.0f ? x : -80.0f;
    float const shifted = y * 1.44269504f + 12582912.0f;
    float const whole = shifted - 12582912.0f;
    float const rest = y - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = p * (rest * rest) + rest + 1.0f;
    return p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
}

// ---- The model ----

// Who optimizes, where its state lies, and how many threads are left to compute with.
struct workers {
    adamant::executor optimizer;
    adamant::memory_options memory;
    unsigned host_threads;

    [[nodiscard]] adamant::buffer<float> state(size_t n) const
    {
        return adamant::make_buffer<float>(optimizer, n, memory);
    }
};

// What a mixed-precision trainer holds of each tensor.
struct tensor {
    adamant::buffer<float> master, exp_avg, exp_avg_sq;
    std::vector<bfloat16> weight, grad;
    matrix wide; // weight, exactly, for loops in float

    tensor(size_t rows, size_t columns, float range, generator& random, workers const& on)
        : master(on.state(rows * columns)), exp_avg(on.state(rows * columns)), exp_avg_sq(on.state(rows * columns)),
          weight(rows * columns), grad(rows * columns), wide{rows, columns}
    {
        for (float& x : master)
            x = range * (2.0f * random.uniform() - 1.0f);
        std::transform(master.begin(), master.end(), weight.begin(), [](float x) { return narrow<bfloat16>(x); });
        widen_weight();
    }
    void widen_weight()
    {
        std::transform(weight.begin(), weight.end(), wide.values.begin(), [](bfloat16 x) { return widen(x); });
    }
    void set_grad(matrix const& g)
    {
        std::transform(g.values.begin(), g.values.end(), grad.begin(), [](float x) { return narrow<bfloat16>(x); });
    }
    auto shard() { return adamant::shard(master, grad, exp_avg, exp_avg_sq, weight); }
};

// A batch: where each context begins. The character to predict stands after it.
using batch = std::vector<std::uint8_t const*>;

struct model {
    unsigned threads;
    tensor embedding, into_hidden, out_of_hidden;
    matrix input{0, 0}, hidden{0, 0}, output{0, 0};

    model(size_t classes, workers const& on, generator& random)
        : threads(on.host_threads), embedding(classes, embedding_dims, 1.0f, random, on),
          into_hidden(input_dims, hidden_dims, std::sqrt(6.0f / static_cast<float>(input_dims)), random, on),
          out_of_hidden(hidden_dims, classes, std::sqrt(1.0f / static_cast<float>(hidden_dims)), random, on)
    {
    }

    // The probability of every class after each context: one row each.
    matrix const& forward(batch const& contexts)
    {
        input = {contexts.size(), input_dims};
        for (size_t i = 0; i < contexts.size(); ++i)
            for (size_t at = 0; at < context_chars; ++at)
                std::copy_n(embedding.wide.row(contexts[i][at]), embedding_dims, input.row(i) + at * embedding_dims);
        hidden = product(threads, input, into_hidden.wide);
        for (float& x : hidden.values)
            x = x > 0.0f ? x : 0.0f;
        output = product(threads, hidden, out_of_hidden.wide);
        for (size_t i = 0; i < output.rows; ++i) {
            float* const p = output.row(i);
            float* const end = p + output.columns;
            float const largest = *std::max_element(p, end);
            std::transform(p, end, p, [&](float x) { return exp_of_negative(x - largest); });
            float const sum = std::accumulate(p, end, 0.0f); // from left to right
            std::transform(p, end, p, [&](float x) { return x / sum; });
        }
        return output;
    }

    // After forward() of the same batch: the gradient of the mean loss, multiplied with `scale`, in every tensor. Calls
    // ready(tensor) as each is complete, the last layer's first. Uses up the probabilities.
    template <class Ready>
    void backward(batch const& contexts, float scale, Ready const& ready)
    {
        for (size_t i = 0; i < contexts.size(); ++i)
            output.row(i)[contexts[i][context_chars]] -= 1.0f;
        for (float& x : output.values)
            x = x / static_cast<float>(contexts.size()) * scale;
        out_of_hidden.set_grad(product(threads, transposed(hidden), output));
        ready(out_of_hidden);

        matrix delta = product(threads, output, transposed(out_of_hidden.wide));
        for (size_t i = 0; i < delta.values.size(); ++i)
            delta.values[i] = hidden.values[i] > 0.0f ? delta.values[i] : 0.0f;
        into_hidden.set_grad(product(threads, transposed(input), delta));
        ready(into_hidden);

        delta = product(threads, delta, transposed(into_hidden.wide));
        matrix sums{embedding.wide.rows, embedding_dims};
        for (size_t i = 0; i < contexts.size(); ++i)
            for (size_t at = 0; at < context_chars; ++at)
                for (size_t j = 0; j < embedding_dims; ++j)
                    sums.row(contexts[i][at])[j] += delta.row(i)[at * embedding_dims + j];
        embedding.set_grad(sums);
        ready(embedding);
    }
};

// ---- Reports. Nothing from here reaches a weight. ----

// The sum over the batch of -log of the probability of the character that came.
double loss_sum(matrix const& probability, batch const& contexts)
{
    double sum = 0;
    for (size_t i = 0; i < contexts.size(); ++i)
        sum -= std::log(std::max(probability.row(i)[contexts[i][context_chars]], 1e-30f));
    return sum;
}

void print_held_out_loss(model& net, corpus const& text)
{
    std::vector<double> count(text.bytes.size());
    for (std::uint8_t const k : text.train)
        count[k] += 1;
    double unigram = 0;
    double loss = 0;
    size_t const n = text.held_out.size() - context_chars;
    batch contexts;
    for (size_t at = 0; at < n; ++at) {
        contexts.push_back(text.held_out.data() + at);
        unigram -= std::log(count[text.held_out[at + context_chars]] / static_cast<double>(text.train.size()));
        if (contexts.size() == 256 || at + 1 == n) {
            loss += loss_sum(net.forward(contexts), contexts);
            contexts.clear();
        }
    }
    std::printf("unigram entropy of the held-out text, by the training text's frequencies: %.4f\nheld-out loss %.4f\n",
                unigram / static_cast<double>(n), loss / static_cast<double>(n));
}

// The beginning of the held-out text, and how the model goes on.
void print_sample(model& net, corpus const& text, generator& random)
{
    std::vector<std::uint8_t> written(text.held_out.begin(), text.held_out.begin() + context_chars);
    while (written.size() < 300) {
        float const* const p = net.forward({written.data() + written.size() - context_chars}).row(0);
        float left = random.uniform();
        size_t k = 0;
        while (k + 1 < text.bytes.size() && (left -= p[k]) >= 0.0f)
            ++k;
        written.push_back(static_cast<std::uint8_t>(k));
    }
    std::printf("---- sample\n");
    for (std::uint8_t const k : written) {
        char const c = text.bytes[k];
        std::putchar(c == '\n' || (c >= ' ' && c <= '~') ? c : '?');
    }
    std::printf("\n----\n");
}

// ---- Training ----

// Whether the compiler makes a * b + c one rounding: this a * a is 1 + 2^-11 + 2^-24, and rounds to 1 + 2^-11.
bool contracts()
{
    float volatile const factor = 1.0f + 0x1p-12f;
    float volatile const term = -1.0f - 0x1p-11f;
    float const a = factor, b = term;
    return a * a + b != 0.0f;
}

// A second thread pays from 16384 elements a thread on; fewer are for the sake of the example.
constexpr size_t min_slice_elems = 4096;

// With --cores-perc the optimizer and the rest of the program get cores of their own, as an offload engine would divide
// them; else both use the same.
workers hire(option_values const& values)
{
    adamant::isa const tier = adamant::parse_isa(values.at("--isa"));
    auto const threads = static_cast<unsigned>(number(values, "--threads", 0, 1024));
    if (values.at("--cores-perc").empty()) {
        adamant::executor const cpu({.tier = tier, .threads = threads, .min_slice_elems = min_slice_elems});
        return {cpu, {}, cpu.threads()};
    }
#if defined(ADAMANT_NO_HWLOC)
    fail(2, "--cores-perc needs hwloc, which this program was compiled without");
#else
    if (threads != 0)
        fail(2, "--cores-perc and --threads both say how many threads there are; give one of them");
    char* end = nullptr;
    double const share = std::strtod(values.at("--cores-perc").c_str(), &end);
    if (*end != '\0')
        fail(2, "--cores-perc is '" + values.at("--cores-perc") + "', but it is a share of the cores, such as 0.5");
    adamant::local_rank const self = adamant::rank_from_environment();
    adamant::rank_cores const cores =
        adamant::select_cores(adamant::live_machine(), {.cpuadam_cores_perc = share, .ranks = self.ranks})[self.rank];
    std::printf("%s: optimizer on PUs %s, host on %s\n", cores.why.c_str(), to_list(cores.adam_pus).c_str(),
                cores.host_pus.empty() ? "the same" : to_list(cores.host_pus).c_str());
    auto const team = std::make_shared<adamant::team>(adamant::team_options{.pus = cores.adam_pus});
    return {adamant::executor(team, tier, min_slice_elems),
            {.nodes = cores.numa_nodes},
            std::max(1u, static_cast<unsigned>(cores.host_pus.size()))};
#endif
}

// Batches differ from step to step, and are the same in a run that was resumed.
generator batch_generator(size_t seed, size_t step)
{
    generator mixed{seed};
    mixed.state = mixed.next() + step;
    return {mixed.next()};
}

adamant::optimizer_options optimizer_options(option_values const& values)
{
    adamant::optimizer_options options{.max_norm = max_grad_norm};
    std::string const& scale = values.at("--loss-scale");
    if (scale == "dynamic")
        options.loss_scaling = adamant::loss_scaling_options{};
    return options;
}

// What the loss is to be multiplied with, if it does not change.
std::optional<double> fixed_loss_scale(option_values const& values)
{
    std::string const& text = values.at("--loss-scale");
    if (text == "dynamic")
        return {};
    char* end = nullptr;
    double const scale = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !(scale > 0 && scale <= 0x1p100))
        fail(2, "--loss-scale is '" + text + "', but must be dynamic or a number above 0");
    return scale;
}

// What a run's weights depend on besides the state that an optimizer has: kept in checkpoints, so that no other run
// goes on from one and calls the result its own.
std::map<std::string, std::string> identity_of_run(option_values const& values, corpus const& text)
{
    digest of_text;
    of_text.add(text.bytes);
    of_text.add(text.train);
    std::map<std::string, std::string> result{{"train_text.text", of_text.text()}};
    for (char const* const option : {"--seed", "--steps", "--batch"})
        result[std::string("train_text.") + (option + 2)] = std::to_string(number(values, option, 0, ~size_t{0}));
    std::optional<double> const scale = fixed_loss_scale(values);
    char digits[40] = "dynamic";
    if (scale)
        std::snprintf(digits, sizeof digits, "%.17g", *scale);
    result["train_text.loss-scale"] = digits;
    return result;
}

// Exits where the checkpoint is another run's.
void require_same_run(std::map<std::string, std::string> const& here, std::map<std::string, std::string> const& saved,
                      std::string const& file)
{
    for (auto const& [key, value] : here) {
        auto const found = saved.find(key);
        if (found == saved.end())
            fail(2, "--resume: '" + file + "' does not say which run it is of (there is no " + key +
                        " in its metadata), so it cannot be gone on from; it is of another program, or of an older "
                        "train_text");
        if (found->second == value)
            continue;
        if (key == "train_text.text")
            fail(2, "--resume: '" + file +
                        "' is of a run that learned from another text; give that one with --text, "
                        "or leave out --resume to begin anew");
        std::string const option = "--" + key.substr(key.find('.') + 1);
        fail(2, "--resume: '" + file + "' is of a run with " + option + ' ' + found->second + ", but this one has " +
                    option + ' ' + value + "; give " + option + ' ' + found->second +
                    " to go on with that run, or leave out --resume to begin another");
    }
}

void train(option_values const& values)
{
    size_t const steps = number(values, "--steps", 1, 100'000'000);
    size_t const batch_size = number(values, "--batch", 1, 4096);
    size_t const seed = number(values, "--seed", 0, ~size_t{0});
    size_t const save_every = number(values, "--every", 1, ~size_t{0});
    std::string const& checkpoint = values.at("--checkpoint");
    std::optional<double> const loss_scale = fixed_loss_scale(values);
    if (!checkpoint.empty())
        adamant::check_can_save(checkpoint); // now rather than after the first thousand steps
    generator random{seed};
    workers const on = hire(values);
    adamant::executor const& cpu = on.optimizer;
    corpus const text = load_corpus(values.at("--text"));
    model net(text.bytes.size(), on, random);
    tensor* const tensors[] = {&net.embedding, &net.into_hidden, &net.out_of_hidden};
    char const* const names[] = {"embedding", "into_hidden", "out_of_hidden"};
    adamant::optimizer optimizer(cpu, optimizer_options(values));
    optimizer.add_group("all", {.lr = peak_lr, .weight_decay = weight_decay, .mode = adamant::decay_mode::decoupled});
    for (size_t i = 0; i < std::size(tensors); ++i)
        optimizer.add_shard({.group = 0,
                             .name = names[i],
                             .shard = tensors[i]->shard(),
                             .place = {{tensors[i]->wide.rows, tensors[i]->wide.columns}}});
    std::map<std::string, std::string> const run = identity_of_run(values, text);
    if (std::string const& file = values.at("--resume"); !file.empty()) {
        adamant::safetensors_state const saved(file);
        require_same_run(run, saved.state().metadata, file);
        optimizer.load(saved.state());
        std::printf("resumed after step %zu\n", static_cast<size_t>(optimizer.steps()));
        for (tensor* each : tensors)
            each->widen_weight();
    }

    bool const terminal = isatty(STDOUT_FILENO) != 0;
    size_t const report_every = terminal ? 20 : std::max<size_t>(steps / 10, 1);
    size_t const warm_up = std::min<size_t>(200, steps / 10 + 1);
    size_t const first = optimizer.steps();
    size_t skipped = 0;
    double recent_loss = 0; // over some hundred steps
    std::chrono::duration<double> seconds{};
    auto const start = std::chrono::steady_clock::now();
    while (optimizer.steps() < steps) {
        size_t const t = optimizer.steps() + 1;
        generator draw = batch_generator(seed, t);
        batch contexts(batch_size);
        for (auto& context : contexts)
            context = text.train.data() + draw.below(text.train.size() - context_chars);
        double const loss = loss_sum(net.forward(contexts), contexts) / static_cast<double>(batch_size);
        recent_loss += (loss - recent_loss) / static_cast<double>(std::min<size_t>(t - first, 100));

        double const rising = static_cast<double>(t) / static_cast<double>(warm_up);
        double const falling = static_cast<double>(steps + 1 - t) / static_cast<double>(steps + 1 - warm_up);
        double const lr[] = {peak_lr * std::min(rising, falling)};
        optimizer.begin_step({.loss_scale = loss_scale, .lr = lr});
        // Each layer is stepped while the gradients of those before it are still being computed.
        net.backward(contexts, static_cast<float>(loss_scale.value_or(optimizer.loss_scale())),
                     [&](tensor const& ready) {
                         optimizer.submit(
                             static_cast<size_t>(std::find(std::begin(tensors), std::end(tensors), &ready) - tensors));
                     });
        adamant::optimizer_report const report = optimizer.finish();
        if (report.outcome == adamant::step_outcome::skipped) { // the same batch again, with a smaller loss scale
            ++skipped;
            if (loss_scale || report.loss_scale == optimizer.loss_scale())
                fail(1, "the gradients of step " + std::to_string(t) + " are not finite at a loss scale of " +
                            std::to_string(report.loss_scale));
            continue;
        }
        for (tensor* each : tensors)
            each->widen_weight();

        seconds = std::chrono::steady_clock::now() - start;
        if (t % report_every == 0 || t == steps) {
            std::printf("%sstep %zu of %zu, loss %.3f, lr %.2e, norm %.2f, %.0f tokens/s%s", terminal ? "\r" : "", t,
                        steps, recent_loss, lr[0], report.global_norm,
                        static_cast<double>((t - first) * batch_size) / seconds.count(),
                        terminal && t < steps ? "  " : "\n");
            std::fflush(stdout);
        }
        if (!checkpoint.empty() && (t % save_every == 0 || t == steps)) {
            adamant::state_dict state = optimizer.state();
            state.metadata = run;
            adamant::save_safetensors(checkpoint, state);
        }
    }
    std::printf("%.1f s, tier %s, %u threads, %zu steps skipped; losses are in nats per character\n"
                "training loss %.4f\n",
                seconds.count(), name(cpu.tier()).data(), cpu.threads(), skipped, recent_loss);
    print_held_out_loss(net, text);
    print_sample(net, text, random);
    digest weights;
    for (tensor const* each : tensors) {
        weights.add(each->master);
        weights.add(each->weight);
    }
    std::printf("weights digest %s\n", weights.text().c_str());
}

} // namespace

int main(int argc, char** argv)
{
    try {
        if (contracts())
            fail(1, "was compiled so that a * b + c is rounded once; compile it with -ffp-contract=off");
        train(parse_options(argc, argv));
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            fail(1, "the output could not be written; is the disk full?");
    } catch (adamant::error const& e) {
        fail(2, e.what());
    } catch (std::exception const& e) {
        fail(1, e.what());
    }
}
