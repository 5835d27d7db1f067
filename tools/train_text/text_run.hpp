// SPDX-License-Identifier: Apache-2.0
// Code shared by the programs that train the text model: options, batches, hyperparameters, and the identity of a run
// in its checkpoints.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include <adamant/adamant.hpp>

#include "text_model.hpp"

namespace text_model {

constexpr double peak_lr = 5e-3;
constexpr double max_grad_norm = 1.0;
constexpr adamant::hyperparameters hyper{.lr = peak_lr, .weight_decay = 0.2, .mode = adamant::decay_mode::decoupled};

// ---- Options ----

using option_values = std::map<std::string, std::string>;

// Returns an empty map for --help. Throws invalid_argument for options that are not in `defaults`.
inline option_values parse_options(std::string const& program, int argc, char** argv, option_values const& defaults)
{
    option_values values = defaults;
    for (int i = 1; i < argc; i += 2) {
        if (argv[i] == std::string_view("--help") || argv[i] == std::string_view("-h"))
            return {};
        if (!values.contains(argv[i]))
            throw adamant::invalid_argument("there is no option '" + std::string(argv[i]) + "'; " + program +
                                            " --help lists those that there are");
        if (i + 1 == argc || *argv[i + 1] == '\0')
            throw adamant::invalid_argument(std::string(argv[i]) + " needs a value after it");
        values[argv[i]] = argv[i + 1];
    }
    return values;
}

inline size_t number(option_values const& values, char const* option, size_t least, size_t most)
{
    std::string const& text = values.at(option);
    size_t result = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc{} || end != text.data() + text.size() || result < least || result > most)
        throw adamant::invalid_argument(option + (" is '" + text) + "', but must be a whole number from " +
                                        std::to_string(least) + " to " + std::to_string(most));
    return result;
}

// ---- Steps ----

// Whether the compiler contracts a * b + c to one rounding: this a * a is 1 + 2^-11 + 2^-24, and rounds to 1 + 2^-11.
inline bool is_contracted()
{
    float volatile const factor = 1.0f + 0x1p-12f;
    float volatile const term = -1.0f - 0x1p-11f;
    float const a = factor, b = term;
    return a * a + b != 0.0f;
}

// The generator that draws a batch. Batches differ from step to step and are the same in a resumed run.
inline generator batch_generator(size_t seed, size_t step)
{
    generator mixer{seed};
    mixer.state = mixer.next() + step;
    return {mixer.next()};
}

inline batch draw_batch(corpus const& text, size_t examples, size_t seed, size_t step)
{
    generator draw = batch_generator(seed, step);
    batch contexts(examples);
    for (auto& context : contexts)
        context = text.train.data() + draw.below(text.train.size() - context_chars);
    return contexts;
}

// The learning rate of a step, counted from 1.
inline double learning_rate(size_t step, size_t steps)
{
    size_t const warm_up = std::min<size_t>(200, steps / 10 + 1);
    double const rising = static_cast<double>(step) / static_cast<double>(warm_up);
    double const falling = static_cast<double>(steps + 1 - step) / static_cast<double>(steps + 1 - warm_up);
    return peak_lr * std::min(rising, falling);
}

// ---- The run of a checkpoint ----

// The options and the text that a run's weights depend on, besides the optimizer's state. Checkpoints keep them, so
// that a run with others cannot resume from one.
inline std::map<std::string, std::string> common_identity(std::string const& program, option_values const& values,
                                                          corpus const& text)
{
    digest text_digest;
    text_digest.add(text.bytes);
    text_digest.add(text.train);
    std::map<std::string, std::string> result{{program + ".text", text_digest.text()}};
    for (char const* const option : {"--seed", "--steps", "--batch"})
        result[program + '.' + (option + 2)] = std::to_string(number(values, option, 0, ~size_t{0}));
    return result;
}

// Throws invalid_argument where the checkpoint is another run's.
inline void require_same_run(std::string const& program, std::map<std::string, std::string> const& run,
                             std::map<std::string, std::string> const& saved, std::string const& file)
{
    std::string const resume = "--resume: '" + file + "' ";
    for (auto const& [key, value] : run) {
        auto const entry = saved.find(key);
        if (entry == saved.end())
            throw adamant::invalid_argument("cannot resume from '" + file + "': its metadata has no " + key +
                                            ", so another program or an older " + program +
                                            " wrote it. Start without --resume.");
        if (entry->second == value)
            continue;
        if (key == program + ".text")
            throw adamant::invalid_argument(resume + "is of a run that learned from another text; give that one with "
                                                     "--text, or leave out --resume to begin anew");
        std::string const option = "--" + key.substr(key.find('.') + 1);
        throw adamant::invalid_argument(resume + "is of a run with " + option + ' ' + entry->second +
                                        ", but this one has " + option + ' ' + value + "; give " + option + ' ' +
                                        entry->second +
                                        " to go on with that run, or leave out --resume to begin another");
    }
}

} // namespace text_model
