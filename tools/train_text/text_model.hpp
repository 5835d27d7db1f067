// SPDX-License-Identifier: Apache-2.0
// A small character-level language model with bfloat16 weights and gradients, and the text that it learns, for example
// programs. train_text.cpp lists the rules that keep the bits of the weights the same everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <adamant/adamant.hpp>

namespace text_model {

using adamant::bfloat16;
using std::size_t;

constexpr size_t context_chars = 8;
constexpr size_t embedding_dims = 32;
constexpr size_t input_dims = context_chars * embedding_dims;
constexpr size_t hidden_dims = 256;
constexpr char const* licences = "/usr/share/common-licenses";

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
    size_t below(size_t n) noexcept { return next() % n; } // its bias of n / 2^64 is negligible
};

// ---- Text ----

struct corpus {
    std::vector<std::uint8_t> train, held_out; // indices into bytes: the classes
    std::string bytes;                         // those that occur in the training text
    size_t files = 0;
    size_t skipped = 0;             // characters of the held-out text that are not in bytes
    bool has_held_out_file = false; // false: the held-out text is the last tenth
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

// Throws if there is no text, or too little.
inline corpus load_corpus(std::string const& file)
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

    // Licences copy from each other: up to 93 % of the substrings of 40 characters in one are in another, too. CC0-1.0
    // shares none, so it tests generalization rather than memory.
    std::string train, held_out;
    for (auto const& path : paths) {
        std::ifstream in(path, std::ios::binary);
        if (!in || std::filesystem::is_directory(path))
            throw std::runtime_error("cannot read '" + path.string() +
                                     "'; give a text that can be read with --text FILE");
        (file.empty() && path.filename() == "CC0-1.0" ? held_out : train)
            .append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    corpus result;
    result.files = paths.size();
    result.has_held_out_file = !held_out.empty();
    if (!result.has_held_out_file) {
        held_out = train.substr(train.size() - train.size() / 10);
        train.resize(train.size() - held_out.size());
    }

    for (int byte = 0; byte < 256; ++byte)
        if (train.find(static_cast<char>(byte)) != std::string::npos)
            result.bytes += static_cast<char>(byte);
    result.skipped = std::erase_if(held_out, [&](char c) { return result.bytes.find(c) == std::string::npos; });
    auto const class_of = [&](char c) { return static_cast<std::uint8_t>(result.bytes.find(c)); };
    std::transform(train.begin(), train.end(), std::back_inserter(result.train), class_of);
    std::transform(held_out.begin(), held_out.end(), std::back_inserter(result.held_out), class_of);
    if (train.size() <= context_chars || held_out.size() <= context_chars)
        throw std::runtime_error("found too little text to learn from in " +
                                 (file.empty() ? std::string(licences) : "'" + file + "'") + ": " +
                                 std::to_string(paths.size()) + " files; give a longer text with --text FILE");
    return result;
}

inline void print(corpus const& text)
{
    std::printf("%zu files, %zu characters of %zu classes to learn from\n"
                "held out: %s, %zu characters; skipped in it: %zu that the training text does not have\n",
                text.files, text.train.size(), text.bytes.size(),
                text.has_held_out_file ? "the whole of CC0-1.0" : "the last tenth", text.held_out.size(), text.skipped);
}

// ---- Arithmetic ----

struct matrix { // row by row
    size_t rows, columns;
    std::vector<float> values = std::vector<float>(rows * columns);
    float const* row(size_t i) const noexcept { return values.data() + i * columns; }
    float* row(size_t i) noexcept { return values.data() + i * columns; }
};

// a b. The innermost loop runs along a row of the result, so it vectorizes without reordering a sum: each element is
// summed in order of the inner index. Four indices at a time save loads.
inline matrix product(unsigned threads, matrix const& a, matrix const& b)
{
    matrix result{a.rows, b.columns};
    int const thread_count = static_cast<int>(threads);
#pragma omp parallel for num_threads(thread_count)
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

inline matrix transpose(matrix const& a)
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

// A tensor of a model, whose weights and gradients are a part of the model's arrays.
struct tensor {
    char const* name;
    float range; // of the first weights
    std::span<bfloat16> weight, grad;
    matrix wide; // weight, exactly, for loops in float

    void widen_weight()
    {
        std::transform(weight.begin(), weight.end(), wide.values.begin(), [](bfloat16 x) { return widen(x); });
    }
    void set_grad(matrix const& g)
    {
        std::transform(g.values.begin(), g.values.end(), grad.begin(),
                       [](float x) { return adamant::narrow<bfloat16>(x); });
    }
};

// A batch: pointers to the beginning of each context. The character to predict follows the context.
using batch = std::vector<std::uint8_t const*>;

struct model {
    unsigned threads;
    std::vector<bfloat16> weights, grads; // of all tensors, one after another
    tensor embedding, into_hidden, out_of_hidden;
    matrix input{0, 0}, hidden{0, 0}, output{0, 0};

    // The weights are zeros until draw_weights().
    model(size_t classes, unsigned host_threads)
        : threads(host_threads), weights(classes * embedding_dims + input_dims * hidden_dims + hidden_dims * classes),
          grads(weights.size()), embedding{"embedding", 1.0f, {}, {}, {classes, embedding_dims}},
          into_hidden{
              "into_hidden", std::sqrt(6.0f / static_cast<float>(input_dims)), {}, {}, {input_dims, hidden_dims}},
          out_of_hidden{
              "out_of_hidden", std::sqrt(1.0f / static_cast<float>(hidden_dims)), {}, {}, {hidden_dims, classes}}
    {
        size_t begin = 0;
        for (tensor* const tensor : tensors()) {
            size_t const n = tensor->wide.values.size();
            tensor->weight = std::span(weights).subspan(begin, n);
            tensor->grad = std::span(grads).subspan(begin, n);
            begin += n;
        }
    }
    model(model const&) = delete;
    model& operator=(model const&) = delete;

    std::array<tensor*, 3> tensors() noexcept { return {&embedding, &into_hidden, &out_of_hidden}; }

    // Draws the first weights. Returns them before rounding, in the order of `weights`: the first master weights.
    std::vector<float> draw_weights(generator& random)
    {
        std::vector<float> master;
        for (tensor* const tensor : tensors())
            for (size_t i = 0; i < tensor->weight.size(); ++i)
                master.push_back(tensor->range * (2.0f * random.uniform() - 1.0f));
        std::transform(master.begin(), master.end(), weights.begin(),
                       [](float x) { return adamant::narrow<bfloat16>(x); });
        widen_weights();
        return master;
    }
    // Call it after weights have changed.
    void widen_weights()
    {
        for (tensor* const tensor : tensors())
            tensor->widen_weight();
    }

    // The probabilities of the next character: a row for each context, a column for each class.
    matrix const& forward(batch const& contexts)
    {
        input = {contexts.size(), input_dims};
        for (size_t i = 0; i < contexts.size(); ++i)
            for (size_t position = 0; position < context_chars; ++position)
                std::copy_n(embedding.wide.row(contexts[i][position]), embedding_dims,
                            input.row(i) + position * embedding_dims);
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

    // Computes the gradient of the mean loss, multiplied by `scale`, of every tensor; call forward() of the same batch
    // first. Calls ready(tensor) when a gradient is complete, the last layer's first. Overwrites the probabilities.
    template <class Ready>
    void backward(batch const& contexts, float scale, Ready const& ready)
    {
        for (size_t i = 0; i < contexts.size(); ++i)
            output.row(i)[contexts[i][context_chars]] -= 1.0f;
        for (float& x : output.values)
            x = x / static_cast<float>(contexts.size()) * scale;
        out_of_hidden.set_grad(product(threads, transpose(hidden), output));
        ready(out_of_hidden);

        matrix delta = product(threads, output, transpose(out_of_hidden.wide));
        for (size_t i = 0; i < delta.values.size(); ++i)
            delta.values[i] = hidden.values[i] > 0.0f ? delta.values[i] : 0.0f;
        into_hidden.set_grad(product(threads, transpose(input), delta));
        ready(into_hidden);

        delta = product(threads, delta, transpose(into_hidden.wide));
        matrix sums{embedding.wide.rows, embedding_dims};
        for (size_t i = 0; i < contexts.size(); ++i)
            for (size_t position = 0; position < context_chars; ++position)
                for (size_t j = 0; j < embedding_dims; ++j)
                    sums.row(contexts[i][position])[j] += delta.row(i)[position * embedding_dims + j];
        embedding.set_grad(sums);
        ready(embedding);
    }
};

// ---- Reports, which do not affect the weights ----

// The sum over the batch of -log of the probability of the next character.
inline double loss_sum(matrix const& probability, batch const& contexts)
{
    double sum = 0;
    for (size_t i = 0; i < contexts.size(); ++i)
        sum -= std::log(std::max(probability.row(i)[contexts[i][context_chars]], 1e-30f));
    return sum;
}

inline void print_held_out_loss(model& net, corpus const& text)
{
    std::vector<double> count(text.bytes.size());
    for (std::uint8_t const k : text.train)
        count[k] += 1;
    double unigram = 0;
    double loss = 0;
    size_t const n = text.held_out.size() - context_chars;
    batch contexts;
    for (size_t position = 0; position < n; ++position) {
        contexts.push_back(text.held_out.data() + position);
        unigram -= std::log(count[text.held_out[position + context_chars]] / static_cast<double>(text.train.size()));
        if (contexts.size() == 256 || position + 1 == n) {
            loss += loss_sum(net.forward(contexts), contexts);
            contexts.clear();
        }
    }
    std::printf("unigram entropy of the held-out text, by the training text's frequencies: %.4f\nheld-out loss %.4f\n",
                unigram / static_cast<double>(n), loss / static_cast<double>(n));
}

} // namespace text_model
