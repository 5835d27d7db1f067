// SPDX-License-Identifier: Apache-2.0
// A trainer with a step of its own: a small character-level language model, learned from real text with bfloat16
// weights and gradients, float32 master weights and moments, and adamant::step once per tensor and step.
//
// The weights it ends with have the same bits for every instruction set, number of threads, compiler and CPU; the
// digest it prints last is there to be compared. The step promises that by itself. The rest of this file keeps it so:
//   - every sum is made by one thread in a fixed order, and threads only share out sums among themselves;
//   - nothing from libm or std::*_distribution reaches a weight (both differ between machines), only + - * / and sqrt;
//   - a * b + c is two roundings everywhere. The language lets a compiler make it one, so this file has to be compiled
//     with -ffp-contract=off, and says so at the start if it was not.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include <adamant/adamant.hpp>

namespace {

using adamant::bfloat16;
using std::size_t;

constexpr size_t context_chars = 24;
constexpr size_t embedding_dims = 16;
constexpr size_t input_dims = context_chars * embedding_dims;
constexpr size_t hidden_dims = 192;
constexpr char const* licence_directory = "/usr/share/common-licenses";

[[noreturn]] void fail(int status, std::string const& message)
{
    std::fprintf(stderr, "train_text: %s\n", message.c_str());
    std::exit(status);
}

// ---- Random numbers: splitmix64 (Steele, Lea and Flood, OOPSLA 2014), the same everywhere ----

struct generator {
    std::uint64_t state;
    std::uint64_t next() noexcept
    {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    float uniform() noexcept { return static_cast<float>(next() >> 40) * 0x1p-24f; } // in [0, 1), exact
    size_t below(size_t n) noexcept { return static_cast<size_t>(next() % n); }      // a bias of n / 2^64 harms nobody
};

// ---- Options ----

struct options {
    std::uint64_t steps = 6000;
    std::uint64_t seed = 1;
    std::uint64_t threads = 0;
    std::uint64_t batch = 128;
    adamant::isa tier = adamant::isa::automatic;
    std::string text;
};

constexpr char const* usage =
    "usage: train_text [--steps N] [--seed N] [--threads N] [--isa NAME] [--batch N] [--text FILE]\n";

std::uint64_t parse_number(std::string_view option, std::string_view value, std::uint64_t least, std::uint64_t most)
{
    std::uint64_t number = 0;
    auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || number < least || number > most)
        fail(2, std::string(option) + " is '" + std::string(value) + "', but must be a whole number from " +
                    std::to_string(least) + " to " + std::to_string(most));
    return number;
}

options parse_options(int argc, char** argv)
{
    options result;
    for (int i = 1; i < argc; i += 2) {
        std::string_view const option = argv[i];
        if (option == "--help") {
            std::fputs(usage, stdout);
            std::exit(0);
        }
        constexpr std::array<std::string_view, 6> known{"--steps", "--seed", "--threads", "--isa", "--batch", "--text"};
        if (std::find(known.begin(), known.end(), option) == known.end())
            fail(2, "there is no option '" + std::string(option) + "'\n" + usage);
        if (i + 1 == argc)
            fail(2, std::string(option) + " needs a value\n" + usage);
        std::string_view const value = argv[i + 1];
        if (option == "--steps")
            result.steps = parse_number(option, value, 1, 100'000'000);
        else if (option == "--seed")
            result.seed = parse_number(option, value, 0, ~std::uint64_t{0});
        else if (option == "--threads")
            result.threads = parse_number(option, value, 0, 1024);
        else if (option == "--batch")
            result.batch = parse_number(option, value, 1, 4096);
        else if (option == "--text")
            result.text = value;
        else
            try {
                result.tier = adamant::parse_isa(value);
            } catch (adamant::error const& e) {
                fail(2, "--isa: " + std::string(e.what()));
            }
    }
    return result;
}

// ---- Text ----

struct corpus {
    std::vector<std::uint8_t> train, held_out; // classes, not bytes
    std::string bytes;                         // the byte of each class
    std::string description;
};

std::string read_file(std::filesystem::path const& path)
{
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file.good() && !file.eof())
        fail(1, "cannot read '" + path.string() + "'; give a readable file with --text FILE");
    return text;
}

// The file of at least 4 KiB that repeats least of the others, by the share of its stretches of 40 bytes that stand in
// another one too. Licences copy whole paragraphs from each other, and a text half seen in training tests memory only.
struct choice {
    size_t file;
    double share = 2;
};
choice least_repeated(std::vector<std::string> const& texts)
{
    constexpr size_t stretch = 40;
    constexpr size_t several = ~size_t{0};
    std::unordered_map<std::string_view, size_t> owner;
    auto const each_stretch = [](std::string_view text, auto const& visit) {
        for (size_t at = 0; at + stretch <= text.size(); ++at)
            visit(text.substr(at, stretch));
    };
    for (size_t file = 0; file < texts.size(); ++file)
        each_stretch(texts[file], [&](std::string_view part) {
            if (size_t& who = owner.try_emplace(part, file).first->second; who != file)
                who = several;
        });
    choice best{texts.size()};
    for (size_t file = 0; file < texts.size(); ++file) {
        size_t shared = 0;
        each_stretch(texts[file], [&](std::string_view part) { shared += owner.at(part) == several; });
        double const share = static_cast<double>(shared) / static_cast<double>(texts[file].size());
        if (texts[file].size() >= 4096 && share < best.share)
            best = {file, share};
    }
    return best;
}

corpus load_corpus(options const& opts)
{
    std::string train, held_out;
    corpus result;
    if (opts.text.empty()) {
        std::vector<std::filesystem::path> paths;
        std::error_code error; // a directory that is not there is the same as an empty one
        for (auto const& entry : std::filesystem::directory_iterator(licence_directory, error))
            if (entry.symlink_status().type() == std::filesystem::file_type::regular)
                paths.push_back(entry.path());
        std::sort(paths.begin(), paths.end());
        std::vector<std::string> texts;
        for (auto const& path : paths)
            texts.push_back(read_file(path));
        choice const test = least_repeated(texts);
        if (texts.size() < 2 || test.file == texts.size())
            fail(1, std::string("looked in ") + licence_directory + " for two licence texts or more, one of at least "
                    "4096 bytes, and found " + std::to_string(texts.size()) + " files; give a text with --text FILE");
        for (size_t file = 0; file < texts.size(); ++file)
            (file == test.file ? held_out : train) += texts[file];
        char line[200];
        std::snprintf(line, sizeof line, "%zu texts of %s; held out: the whole of %s (%.1f %% of it stands elsewhere)",
                      texts.size() - 1, licence_directory, paths[test.file].filename().c_str(), 100 * test.share);
        result.description = line;
    } else {
        train = read_file(opts.text);
        size_t const cut = train.size() - train.size() / 10;
        held_out = train.substr(cut);
        train.resize(cut);
        result.description = "'" + opts.text + "'; held out: its last tenth";
    }
    if (held_out.size() < 10 * context_chars)
        fail(1, "the text is too short to learn from; give one of at least 2400 bytes with --text FILE");

    std::array<int, 256> class_of;
    class_of.fill(-1);
    for (char const c : train)
        class_of[static_cast<unsigned char>(c)] = 0;
    for (size_t byte = 0; byte < 256; ++byte)
        if (class_of[byte] == 0) {
            class_of[byte] = static_cast<int>(result.bytes.size());
            result.bytes += static_cast<char>(byte);
        }
    auto const encode = [&](std::string const& text) {
        std::vector<std::uint8_t> classes;
        for (char const c : text)
            if (int const k = class_of[static_cast<unsigned char>(c)]; k >= 0)
                classes.push_back(static_cast<std::uint8_t>(k));
        return classes;
    };
    result.train = encode(train);
    result.held_out = encode(held_out);
    size_t const skipped = held_out.size() - result.held_out.size();
    result.description += "; " + std::to_string(skipped) + " bytes of it unknown in training, left out";
    if (result.held_out.size() <= context_chars)
        fail(1, "the held-out text has next to no byte that the training text has; give another with --text FILE");
    return result;
}

// ---- Arithmetic ----

// c = start + a b, where a is m x k, b is k x n, all row by row, m is even, and start is one row that every row of c
// begins with (null: zeros). The inner loop runs along a row, so it needs no reordering of sums to be vectorised, and
// each element of c is summed in order of k whatever the vector length. Two rows and four k at a time save loads only.
void multiply(unsigned threads, float const* a, float const* b, float const* start, float* c, size_t m, size_t k,
              size_t n)
{
#pragma omp parallel for num_threads(static_cast<int>(threads))
    for (size_t row = 0; row < m; row += 2) {
        float const* const a0 = a + row * k;
        float const* const a1 = a0 + k;
        float* const c0 = c + row * n;
        float* const c1 = c0 + n;
        for (size_t j = 0; j < n; ++j)
            c0[j] = c1[j] = start == nullptr ? 0.0f : start[j];
        size_t i = 0;
        for (; i + 4 <= k; i += 4) {
            float const* const b0 = b + i * n;
            float const* const b1 = b0 + n;
            float const* const b2 = b1 + n;
            float const* const b3 = b2 + n;
            float const p0 = a0[i], p1 = a0[i + 1], p2 = a0[i + 2], p3 = a0[i + 3];
            float const q0 = a1[i], q1 = a1[i + 1], q2 = a1[i + 2], q3 = a1[i + 3];
#pragma omp simd
            for (size_t j = 0; j < n; ++j) {
                c0[j] = c0[j] + p0 * b0[j] + p1 * b1[j] + p2 * b2[j] + p3 * b3[j];
                c1[j] = c1[j] + q0 * b0[j] + q1 * b1[j] + q2 * b2[j] + q3 * b3[j];
            }
        }
        for (; i < k; ++i) {
            float const* const bi = b + i * n;
            float const p = a0[i], q = a1[i];
#pragma omp simd
            for (size_t j = 0; j < n; ++j) {
                c0[j] = c0[j] + p * bi[j];
                c1[j] = c1[j] + q * bi[j];
            }
        }
    }
}

std::vector<float> transposed(unsigned threads, std::vector<float> const& a, size_t rows, size_t columns)
{
    std::vector<float> result(a.size());
#pragma omp parallel for num_threads(static_cast<int>(threads))
    for (size_t j = 0; j < columns; ++j)
        for (size_t i = 0; i < rows; ++i)
            result[j * rows + i] = a[i * columns + j];
    return result;
}

// e^x for x <= 0, and e^-80 below -80: range reduction and polynomial of Cephes' expf, good to an ulp or two. Adding
// 1.5 * 2^23 rounds to a whole number and leaves it in the lowest bits of the sum.
inline float exp_of_negative(float x) noexcept
{
    float const y = x > -80.0f ? x : -80.0f;
    float const shifted = y * 1.44269504f + 12582912.0f;
    float const n = shifted - 12582912.0f;
    float const r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
}

// ---- The model ----

// One tensor as a mixed-precision trainer holds it.
struct tensor {
    std::vector<float> master, exp_avg, exp_avg_sq;
    std::vector<bfloat16> weight, grad;
    std::vector<float> wide; // weight once more, exactly, for loops in float
    double weight_decay;

    tensor(size_t n, float range, double decay, generator& random)
        : master(n), exp_avg(n), exp_avg_sq(n), weight(n), grad(n), wide(n), weight_decay(decay)
    {
        for (float& x : master)
            x = range * (2.0f * random.uniform() - 1.0f);
        std::transform(master.begin(), master.end(), weight.begin(), adamant::narrow<bfloat16>);
        widen_weight();
    }
    void widen_weight()
    {
        std::transform(weight.begin(), weight.end(), wide.begin(), [](bfloat16 x) { return adamant::widen(x); });
    }
    void set_grad(std::vector<float> const& g)
    {
        std::transform(g.begin(), g.end(), grad.begin(), adamant::narrow<bfloat16>);
    }
    auto shard() { return adamant::shard(master, grad, exp_avg, exp_avg_sq, weight); }
};

// A batch: where each context begins. The character to predict is the one after it.
using batch = std::vector<std::uint8_t const*>;

class model {
public:
    model(size_t classes, unsigned threads, generator& random)
        : classes_(classes), threads_(threads), tensors_{
              tensor(classes * embedding_dims, 1.0f, 0.0, random),
              tensor(input_dims * hidden_dims, std::sqrt(6.0f / static_cast<float>(input_dims)), 0.01, random),
              tensor(hidden_dims, 0.0f, 0.0, random),
              tensor(hidden_dims * classes, std::sqrt(1.0f / static_cast<float>(hidden_dims)), 0.01, random),
              tensor(classes, 0.0f, 0.0, random)}
    {
    }

    std::vector<tensor>& tensors() { return tensors_; }

    // The probability of every class after each context, one row each. The last context stands twice where the number
    // is odd, because multiply() takes rows in pairs.
    std::vector<float> const& forward(batch const& contexts)
    {
        size_t const rows = contexts.size() + contexts.size() % 2;
        input_.resize(rows * input_dims);
        hidden_.resize(rows * hidden_dims);
        probability_.resize(rows * classes_);
        for (size_t row = 0; row < rows; ++row)
            for (size_t at = 0; at < context_chars; ++at)
                std::copy_n(tensors_[embedding].wide.data() +
                                contexts[std::min(row, contexts.size() - 1)][at] * embedding_dims,
                            embedding_dims, input_.data() + row * input_dims + at * embedding_dims);
        multiply(threads_, input_.data(), tensors_[hidden_weight].wide.data(), tensors_[hidden_bias].wide.data(),
                 hidden_.data(), rows, input_dims, hidden_dims);
        for (float& x : hidden_)
            x = x > 0.0f ? x : 0.0f;
        multiply(threads_, hidden_.data(), tensors_[out_weight].wide.data(), tensors_[out_bias].wide.data(),
                 probability_.data(), rows, hidden_dims, classes_);
#pragma omp parallel for num_threads(static_cast<int>(threads_))
        for (size_t row = 0; row < rows; ++row) {
            float* const p = probability_.data() + row * classes_;
            float const largest = *std::max_element(p, p + classes_);
#pragma omp simd
            for (size_t k = 0; k < classes_; ++k)
                p[k] = exp_of_negative(p[k] - largest);
            float sum = 0.0f;
            for (size_t k = 0; k < classes_; ++k)
                sum += p[k];
            for (size_t k = 0; k < classes_; ++k)
                p[k] /= sum;
        }
        return probability_;
    }

    // After forward() of the same batch: the gradient of the mean loss, rounded to bfloat16, in every tensor.
    void backward(batch const& contexts)
    {
        size_t const n = contexts.size();
        size_t const rows = n + n % 2;
        for (size_t row = 0; row < n; ++row)
            probability_[row * classes_ + contexts[row][context_chars]] -= 1.0f;
        std::fill(probability_.begin() + static_cast<std::ptrdiff_t>(n * classes_), probability_.end(), 0.0f);
        for (float& x : probability_)
            x /= static_cast<float>(n);
        std::vector<float> const& out_delta = probability_;
        set_layer_grads(tensors_[out_weight], tensors_[out_bias], hidden_, out_delta, rows, hidden_dims, classes_);

        std::vector<float> hidden_delta(rows * hidden_dims);
        multiply(threads_, out_delta.data(),
                 transposed(threads_, tensors_[out_weight].wide, hidden_dims, classes_).data(), nullptr,
                 hidden_delta.data(), rows, classes_, hidden_dims);
        for (size_t i = 0; i < hidden_delta.size(); ++i)
            hidden_delta[i] = hidden_[i] > 0.0f ? hidden_delta[i] : 0.0f;
        set_layer_grads(tensors_[hidden_weight], tensors_[hidden_bias], input_, hidden_delta, rows, input_dims,
                        hidden_dims);

        std::vector<float> input_delta(rows * input_dims);
        multiply(threads_, hidden_delta.data(),
                 transposed(threads_, tensors_[hidden_weight].wide, input_dims, hidden_dims).data(), nullptr,
                 input_delta.data(), rows, hidden_dims, input_dims);
        std::vector<float> sums(classes_ * embedding_dims);
        for (size_t row = 0; row < n; ++row)
            for (size_t i = 0; i < input_dims; ++i)
                sums[contexts[row][i / embedding_dims] * embedding_dims + i % embedding_dims] +=
                    input_delta[row * input_dims + i];
        tensors_[embedding].set_grad(sums);
    }

private:
    enum : size_t { embedding, hidden_weight, hidden_bias, out_weight, out_bias };

    // Of a layer with `in` inputs and `out` outputs: weight is in x out, delta the gradient of what it put out.
    void set_layer_grads(tensor& weight, tensor& bias, std::vector<float> const& input,
                         std::vector<float> const& delta, size_t rows, size_t in, size_t out)
    {
        std::vector<float> sums(in * out);
        multiply(threads_, transposed(threads_, input, rows, in).data(), delta.data(), nullptr, sums.data(), in, rows,
                 out);
        weight.set_grad(sums);
        sums.assign(out, 0.0f);
        for (size_t row = 0; row < rows; ++row)
            for (size_t j = 0; j < out; ++j)
                sums[j] += delta[row * out + j];
        bias.set_grad(sums);
    }

    size_t classes_;
    unsigned threads_;
    std::vector<tensor> tensors_;
    std::vector<float> input_, hidden_, probability_;
};

// ---- Reports; nothing here reaches a weight ----

// The sum of -log of what the rows of probabilities give to the characters that came.
double loss_sum(std::vector<float> const& probability, batch const& contexts, size_t classes)
{
    double sum = 0;
    for (size_t row = 0; row < contexts.size(); ++row)
        sum -= std::log(std::max(probability[row * classes + contexts[row][context_chars]], 1e-30f));
    return sum;
}

double held_out_loss(model& net, corpus const& text)
{
    size_t const end = text.held_out.size() - context_chars;
    double sum = 0;
    for (size_t first = 0; first < end; first += 256) {
        batch contexts;
        for (size_t at = first; at < std::min(first + 256, end); ++at)
            contexts.push_back(text.held_out.data() + at);
        sum += loss_sum(net.forward(contexts), contexts, text.bytes.size());
    }
    return sum / static_cast<double>(end);
}

// Of the same characters as held_out_loss, by how often each stands in the training text.
double unigram_entropy(corpus const& text)
{
    std::array<double, 256> count{};
    for (std::uint8_t const k : text.train)
        count[k] += 1;
    double sum = 0;
    for (size_t at = context_chars; at < text.held_out.size(); ++at)
        sum -= std::log(count[text.held_out[at]] / static_cast<double>(text.train.size()));
    return sum / static_cast<double>(text.held_out.size() - context_chars);
}

std::string sample(model& net, corpus const& text, generator& random)
{
    auto const begin = text.train.begin() + static_cast<std::ptrdiff_t>(random.below(text.train.size() - context_chars));
    std::vector<std::uint8_t> written(begin, begin + context_chars);
    std::string result;
    while (result.size() < 300) {
        std::vector<float> const& p = net.forward({written.data() + written.size() - context_chars});
        float left = random.uniform();
        size_t k = 0;
        while (k + 1 < text.bytes.size() && (left -= p[k]) >= 0.0f)
            ++k;
        written.push_back(static_cast<std::uint8_t>(k));
        char const c = text.bytes[k];
        result += c == '\n' || (c >= ' ' && c <= '~') ? c : '?';
    }
    return result;
}

std::uint64_t fnv1a(std::uint64_t hash, void const* data, size_t bytes)
{
    for (auto const* p = static_cast<unsigned char const*>(data); bytes > 0; --bytes, ++p)
        hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

// ---- Training ----

// Whether this file was compiled as the note at its top demands: the product is 1 + 2^-11 + 2^-24 and rounds to
// 1 + 2^-11, unless it is fused with the addition.
bool contracts()
{
    float volatile const factor = 1.0f + 0x1p-12f;
    float volatile const term = -1.0f - 0x1p-11f;
    float const a = factor, b = term;
    return a * a + b != 0.0f;
}

double learning_rate(std::uint64_t t, std::uint64_t steps)
{
    constexpr double peak = 3e-3;
    std::uint64_t const warm_up = std::min<std::uint64_t>(200, steps / 10 + 1);
    if (t <= warm_up)
        return peak * static_cast<double>(t) / static_cast<double>(warm_up);
    return peak * static_cast<double>(steps + 1 - t) / static_cast<double>(steps + 1 - warm_up);
}

adamant::executor make_executor(options const& opts)
{
    try {
        // The largest tensor has 73728 elements. So few are worth no second thread; but the example is to use them.
        return adamant::executor(
            {.tier = opts.tier, .threads = static_cast<unsigned>(opts.threads), .min_slice_elems = 1024});
    } catch (adamant::error const& e) {
        fail(2, "--isa or --threads: " + std::string(e.what()));
    }
}

int run(options const& opts)
{
    if (contracts())
        fail(1, "this program was compiled so that a * b + c is rounded once; compile it with -ffp-contract=off");
    adamant::executor const cpu = make_executor(opts);
    corpus const text = load_corpus(opts);
    size_t const classes = text.bytes.size();
    std::printf("text: %s\n%zu characters to learn from, %zu held out, %zu classes\n", text.description.c_str(),
                text.train.size(), text.held_out.size(), classes);

    generator random{opts.seed};
    model net(classes, cpu.threads(), random);
    bool const terminal = isatty(STDOUT_FILENO) != 0;
    std::uint64_t const every = terminal ? 20 : std::max<std::uint64_t>(opts.steps / 12, 1);
    std::uint64_t nonfinite = 0;
    std::uint64_t clipped = 0;
    double recent = 0; // loss, averaged over the last hundred steps or so
    auto const start = std::chrono::steady_clock::now();
    double seconds = 0;
    for (std::uint64_t t = 1; t <= opts.steps; ++t) {
        batch contexts(opts.batch);
        for (auto& context : contexts)
            context = text.train.data() + random.below(text.train.size() - context_chars);
        double const loss = loss_sum(net.forward(contexts), contexts, classes) / static_cast<double>(opts.batch);
        recent += (loss - recent) / static_cast<double>(std::min<std::uint64_t>(t, 100));
        net.backward(contexts);

        double squares = 0;
        for (tensor const& each : net.tensors())
            squares += adamant::sum_of_squares(cpu, each.grad).sum;
        double const norm = std::sqrt(squares);
        double const lr = learning_rate(t, opts.steps);
        clipped += norm > 1.0;
        for (tensor& each : net.tensors()) {
            adamant::step_report const report =
                adamant::step(cpu, each.shard(),
                              {.lr = lr, .beta2 = 0.99, .weight_decay = each.weight_decay,
                               .mode = adamant::decay_mode::decoupled},
                              t, {.clip_coefficient = norm > 1.0 ? 1.0 / norm : 1.0});
            nonfinite += report.nonfinite_grads;
            each.widen_weight();
        }

        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (t % every == 0 || t == opts.steps) {
            std::printf("%sstep %llu of %llu  loss %.3f  lr %.2e  %.0f tokens/s%s", terminal ? "\r" : "",
                        static_cast<unsigned long long>(t), static_cast<unsigned long long>(opts.steps), recent, lr,
                        static_cast<double>(t * opts.batch) / seconds, terminal && t < opts.steps ? "   " : "\n");
            std::fflush(stdout);
        }
    }

    std::printf("trained %llu steps of %llu in %.1f s: tier %s, %u threads, %llu steps clipped, "
                "%llu non-finite gradients\n",
                static_cast<unsigned long long>(opts.steps), static_cast<unsigned long long>(opts.batch), seconds,
                name(cpu.tier()).data(), cpu.threads(), static_cast<unsigned long long>(clipped),
                static_cast<unsigned long long>(nonfinite));
    std::printf("training loss %.4f, in nats per character like the rest\n", recent);
    std::printf("held-out unigram entropy %.4f, by the training text's frequencies\n", unigram_entropy(text));
    std::printf("held-out loss %.4f\n", held_out_loss(net, text));
    std::printf("---- sample\n%s\n----\n", sample(net, text, random).c_str());
    std::uint64_t digest = 0xcbf29ce484222325u;
    for (tensor const& each : net.tensors()) {
        digest = fnv1a(digest, each.master.data(), each.master.size() * sizeof(float));
        digest = fnv1a(digest, each.weight.data(), each.weight.size() * sizeof(bfloat16));
    }
    std::printf("weights digest %016llx\n", static_cast<unsigned long long>(digest));
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run(parse_options(argc, argv));
    } catch (std::exception const& e) {
        fail(1, e.what());
    }
}
