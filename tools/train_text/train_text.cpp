// SPDX-License-Identifier: Apache-2.0
// A complete trainer that uses the library: it trains a small character-level language model on real text, with
// bfloat16 weights and gradients, master weights and moments of float32 or another format, clipping, a loss scale and
// checkpoints. Each layer is stepped as soon as backward has its gradient.
//
// The final weights have the same bits for every instruction set, number of threads, compiler and CPU; compare the
// digest that is printed last. The library guarantees this for the step; the rest of this file and of its headers keeps
// these rules:
//   - one thread computes each sum, in a fixed order; threads only divide the sums among themselves;
//   - no result of libm or the standard distributions, which differ between machines, affects a weight;
//   - a * b + c is rounded twice. The language allows a compiler to round once, so this program must be compiled with
//     -ffp-contract=off, and refuses to run otherwise.
// If other programs keep the CPU busy, OMP_WAIT_POLICY=passive in the environment makes it many times faster: by
// default OpenMP's threads wait for each other in busy loops.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include <adamant/adamant.hpp>
#include <adamant/cores.hpp>
#include <adamant/formats.hpp>
#include <adamant/memory.hpp>
#include <adamant/safetensors.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/zenflow_safetensors.hpp>

#include "text_model.hpp"
#include "text_run.hpp"

namespace {

using namespace text_model;

[[noreturn]] void fail(int status, std::string const& message)
{
    std::fprintf(stderr, "train_text: %s\n", message.c_str());
    std::exit(status);
}

constexpr char const* help = R"(train_text: trains a small language model on the licence texts of this machine

  --steps N           (default 10000)
  --seed N            of the first weights and of the batches (default 1)
  --batch N           examples of a step (default 128)
  --state NAME        the format of masters and moments: float32 (default),
                      split_float32, bfloat16, quantized8,
                      split_float32+bfloat16 or split_float32+quantized8
  --zenflow SHARE     updates that share of each matrix' columns every step and
                      defers the others (default: plain steps)
  --update-interval N steps in a window (default 4)
  --select-interval N steps between selections (default 16)
  --text FILE         the text to learn instead of /usr/share/common-licenses
  --threads N         of the optimizer (default 0: all)
  --cores-perc SHARE  instead: the optimizer's share of the cores, such as 0.8
  --isa NAME          automatic (default), scalar, neon, avx2, avx512 or
                      avx512_bf16
  --loss-scale SCALE  dynamic (default), or a number
  --checkpoint FILE   where to save
  --every STEPS       how often (default 1000)
  --resume FILE       the checkpoint to resume from, of a run with the same
                      options
  --help              this text; -h is the same
)";

option_values const defaults{{"--steps", "10000"},
                             {"--seed", "1"},
                             {"--threads", "0"}, // 0: all
                             {"--batch", "128"},
                             {"--isa", "automatic"},
                             {"--state", "float32"},
                             {"--zenflow", ""}, // empty: nothing is deferred
                             {"--update-interval", "4"},
                             {"--select-interval", "16"},
                             {"--text", ""},              // empty: the licences
                             {"--cores-perc", ""},        // empty: as --threads says
                             {"--loss-scale", "dynamic"}, // or a number
                             {"--checkpoint", ""},
                             {"--every", "1000"}, // where to save, and after how many steps
                             {"--resume", ""}};   // the checkpoint to resume from

// The optimizer's threads, the placement of its state, and the number of threads for forward and backward.
struct workers {
    adamant::executor optimizer;
    adamant::memory_options memory;
    unsigned host_threads;
};

adamant::shard_dtypes types_of(option_values const& values)
{
    std::string const& state = values.at("--state");
    std::optional<adamant::shard_dtypes> const types =
        adamant::types_of_state(state, adamant::dtype::bfloat16, adamant::dtype::bfloat16);
    if (!types)
        fail(2, "--state is '" + state +
                    "', but must be float32, split_float32, bfloat16, quantized8, split_float32+bfloat16 or "
                    "split_float32+quantized8");
    return *types;
}

// The optimizer state of a tensor: masters and moments of these types. Moments begin as zeros, which are zero bytes in
// every type.
struct tensor_state {
    adamant::buffer<std::byte> master, exp_avg, exp_avg_sq;

    tensor_state(adamant::shard_dtypes const& types, size_t n, workers const& team)
        : master(zeros(types[0], n, team)), exp_avg(zeros(types[2], n, team)), exp_avg_sq(zeros(types[3], n, team))
    {
    }
    // Sets the masters to the first weights. A part of split masters is the tensor's weight.
    void set_masters(adamant::shard_dtypes const& types, float const* first, tensor& values)
    {
        if (has_split_param(types))
            adamant::split_masters(first, values.weight.size(), values.weight.data(),
                                   reinterpret_cast<adamant::split_float32*>(master.data()));
        else
            std::memcpy(master.data(), first, master.size());
    }
    // weight: the array for new weights; null: the model's.
    adamant::optimizer_shard shard(adamant::shard_dtypes const& types, tensor const& values, bfloat16* weight = nullptr)
    {
        adamant::kernel::step_pointers const arrays{
            master.data(), std::as_bytes(values.grad).data(), exp_avg.data(), exp_avg_sq.data(),
            reinterpret_cast<std::byte*>(weight != nullptr ? weight : values.weight.data())};
        return adamant::optimizer_shard({*adamant::find_format(types), arrays, values.weight.size()});
    }

private:
    static adamant::buffer<std::byte> zeros(adamant::dtype type, size_t n, workers const& team)
    {
        return adamant::make_buffer<std::byte>(team.optimizer, array_bytes(type, n), team.memory);
    }
};

// Prints the beginning of the held-out text and the model's continuation.
void print_sample(model& net, corpus const& text, generator& random)
{
    std::vector<std::uint8_t> characters(text.held_out.begin(), text.held_out.begin() + context_chars);
    while (characters.size() < 300) {
        float const* const p = net.forward({characters.data() + characters.size() - context_chars}).row(0);
        float remaining = random.uniform();
        size_t k = 0;
        while (k + 1 < text.bytes.size() && (remaining -= p[k]) >= 0.0f)
            ++k;
        characters.push_back(static_cast<std::uint8_t>(k));
    }
    std::printf("---- sample\n");
    for (std::uint8_t const k : characters) {
        char const c = text.bytes[k];
        std::putchar(c == '\n' || (c >= ' ' && c <= '~') ? c : '?');
    }
    std::printf("\n----\n");
}

// ---- Training ----

// A thread more may be worth it from some 16384 elements on; this example uses them earlier, to show them.
constexpr size_t min_slice_elems = 4096;

// With --cores-perc the optimizer and the rest of the program have separate cores, as in an offload engine; otherwise
// both use the same ones.
workers make_workers(option_values const& values)
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

adamant::optimizer_options optimizer_options(option_values const& values)
{
    adamant::optimizer_options options{.max_norm = max_grad_norm};
    std::string const& scale = values.at("--loss-scale");
    if (scale == "dynamic")
        options.loss_scaling = adamant::loss_scaling_options{};
    return options;
}

// The share of the columns that are updated every step, if gradients are deferred.
std::optional<double> zenflow_share(option_values const& values)
{
    std::string const& text = values.at("--zenflow");
    if (text.empty())
        return {};
    char* end = nullptr;
    double const share = std::strtod(text.c_str(), &end);
    if (*end != '\0')
        fail(2, "--zenflow is '" + text + "', but it is a share of the columns, such as 0.1");
    return share;
}

// The constant loss scale; empty if it is dynamic.
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

// The options and the text that a run's weights depend on, besides the optimizer's state. Checkpoints keep them, so
// that a run with others cannot resume from one.
std::map<std::string, std::string> identity_of_run(option_values const& values, corpus const& text)
{
    std::map<std::string, std::string> result = common_identity("train_text", values, text);
    std::optional<double> const scale = fixed_loss_scale(values);
    char digits[40] = "dynamic";
    if (scale)
        std::snprintf(digits, sizeof digits, "%.17g", *scale);
    result["train_text.loss-scale"] = digits;
    result["train_text.state"] = values.at("--state");
    if (std::optional<double> const share = zenflow_share(values)) {
        result["train_text.zenflow"] = {digits, std::to_chars(digits, std::end(digits), *share).ptr};
        for (char const* const option : {"--update-interval", "--select-interval"})
            result[std::string("train_text.") + (option + 2)] = std::to_string(number(values, option, 1, 1'000'000));
    }
    return result;
}

// The model's optimizer: adamant::optimizer, or with --zenflow adamant::zenflow_optimizer, whose state is by columns.
class stepper {
public:
    stepper(option_values const& values, workers const& team, adamant::shard_dtypes const& types)
        : types_(types), plain(team.optimizer, optimizer_options(values))
    {
        std::optional<double> const share = zenflow_share(values);
        if (!share) {
            plain.add_group("all", hyper);
            return;
        }
        deferred.emplace(team.optimizer,
                         adamant::zenflow_options{.topk_ratio = *share,
                                                  .select_interval = number(values, "--select-interval", 1, 1'000'000),
                                                  .update_interval = number(values, "--update-interval", 1, 1'000'000)},
                         optimizer_options(values));
        deferred->add_group("all", hyper);
    }
    // Adds a tensor. first: the first masters, by rows.
    void add(tensor& param, tensor_state& state, float const* first)
    {
        size_t const rows = param.wide.rows, columns = param.wide.columns;
        if (!deferred || rows == 1 || columns == 1) {
            state.set_masters(types_, first, param);
            if (deferred)
                deferred->add_param({0, param.name, state.shard(types_, param)});
            else
                plain.add_shard({.group = 0,
                                 .name = param.name,
                                 .shard = state.shard(types_, param),
                                 .position = {{rows, columns}}});
            return;
        }
        std::vector<float> by_columns(rows * columns);
        for (size_t i = 0; i < by_columns.size(); ++i)
            by_columns[i] = first[i % rows * columns + i / rows];
        std::vector<adamant::bfloat16>& weight = weights_.emplace_back(rows * columns);
        if (has_split_param(types_)) {
            adamant::split_masters(by_columns.data(), by_columns.size(), weight.data(),
                                   reinterpret_cast<adamant::split_float32*>(state.master.data()));
        } else {
            std::memcpy(state.master.data(), by_columns.data(), state.master.size());
            for (size_t i = 0; i < weight.size(); ++i)
                weight[i] = adamant::narrow<adamant::bfloat16>(by_columns[i]);
        }
        for (size_t i = 0; i < weight.size(); ++i)
            param.weight[i % rows * columns + i / rows] = weight[i];
        deferred->add_param({0, param.name, state.shard(types_, param, weight.data()), columns, param.weight.data()});
    }
    [[nodiscard]] std::uint64_t steps() const { return deferred ? deferred->steps() : plain.steps(); }
    [[nodiscard]] double loss_scale() const { return deferred ? deferred->loss_scale() : plain.loss_scale(); }
    void begin_step(adamant::step_values const& values)
    {
        deferred ? deferred->begin_step(values) : plain.begin_step(values);
    }
    void submit(size_t i) { deferred ? deferred->submit(i) : plain.submit(i); }
    adamant::optimizer_report finish() { return deferred ? deferred->finish() : plain.finish(); }

    void save(std::string const& file, std::map<std::string, std::string> const& run)
    {
        if (deferred)
            save(file, run, deferred->state());
        else
            save(file, run, plain.state());
    }
    // Resumes from a checkpoint of that run.
    void resume(std::string const& file, std::map<std::string, std::string> const& run)
    {
        if (deferred) {
            auto const saved = open<adamant::zenflow_safetensors_state, adamant::safetensors_state>(
                file, "without --zenflow, but this one has it; leave it out");
            require_same_run("train_text", run, saved.state().metadata, file);
            deferred->load(saved.state());
        } else {
            auto const saved = open<adamant::safetensors_state, adamant::zenflow_safetensors_state>(
                file, "with --zenflow, but this one is without it; give it");
            require_same_run("train_text", run, saved.state().metadata, file);
            plain.load(saved.state());
        }
    }

private:
    template <class State>
    static void save(std::string const& file, std::map<std::string, std::string> const& run, State state)
    {
        state.metadata = run;
        adamant::save_safetensors(file, state);
    }
    template <class Kind>
    static bool can_open(std::string const& file)
    {
        try {
            Kind const saved{std::filesystem::path(file)};
            return true;
        } catch (adamant::error const&) {
            return false;
        }
    }
    // Opens a checkpoint of this kind of state. other: describes in the error a run that saved the other kind.
    template <class Kind, class OtherKind>
    static Kind open(std::string const& file, char const* other)
    {
        try {
            return Kind(std::filesystem::path(file));
        } catch (adamant::invalid_argument const&) {
            if (!can_open<OtherKind>(file))
                throw;
        }
        fail(2, "--resume: '" + file + "' is of a run " + other +
                    " to go on with that run, or leave out --resume to begin another");
    }

    adamant::shard_dtypes types_;
    std::vector<std::vector<adamant::bfloat16>> weights_; // by columns

public:
    adamant::optimizer plain;
    std::optional<adamant::zenflow_optimizer> deferred;
};

void train(option_values const& values)
{
    size_t const steps = number(values, "--steps", 1, 100'000'000);
    size_t const batch_size = number(values, "--batch", 1, 4096);
    size_t const seed = number(values, "--seed", 0, ~size_t{0});
    size_t const save_every = number(values, "--every", 1, ~size_t{0});
    std::string const& checkpoint = values.at("--checkpoint");
    std::optional<double> const loss_scale = fixed_loss_scale(values);
    adamant::shard_dtypes const types = types_of(values);
    if (!checkpoint.empty())
        // Before training rather than after the first thousand steps.
        if (adamant::save_report const report = adamant::check_can_save(checkpoint); !report.reason.empty())
            std::fprintf(stderr, "train_text: checkpoints will be complete, but %s\n", report.reason.c_str());
    generator random{seed};
    workers const team = make_workers(values);
    adamant::executor const& cpu = team.optimizer;
    corpus const text = load_corpus(values.at("--text"));
    print(text);
    model net(text.bytes.size(), team.host_threads);
    std::vector<float> const first_weights = net.draw_weights(random);
    auto const tensors = net.tensors();
    std::vector<tensor_state> states;
    stepper optimizer(values, team, types);
    float const* masters = first_weights.data();
    for (tensor* tensor : tensors) {
        tensor_state& state = states.emplace_back(types, tensor->weight.size(), team);
        optimizer.add(*tensor, state, masters);
        masters += tensor->weight.size();
    }
    net.widen_weights();
    std::map<std::string, std::string> const run = identity_of_run(values, text);
    if (std::string const& file = values.at("--resume"); !file.empty()) {
        optimizer.resume(file, run);
        std::printf("resumed after step %zu\n", static_cast<size_t>(optimizer.steps()));
        net.widen_weights();
    }

    bool const terminal = isatty(STDOUT_FILENO) != 0;
    size_t const report_every = terminal ? 20 : std::max<size_t>(steps / 10, 1);
    size_t const first = optimizer.steps();
    size_t skipped = 0;
    double recent_loss = 0; // over some hundred steps
    std::chrono::duration<double> seconds{};
    auto const start = std::chrono::steady_clock::now();
    while (optimizer.steps() < steps) {
        size_t const t = optimizer.steps() + 1;
        batch const contexts = draw_batch(text, batch_size, seed, t);
        double const loss = loss_sum(net.forward(contexts), contexts) / static_cast<double>(batch_size);
        recent_loss += (loss - recent_loss) / static_cast<double>(std::min<size_t>(t - first, 100));

        double const lr[] = {learning_rate(t, steps)};
        optimizer.begin_step({.loss_scale = loss_scale, .lr = lr});
        // Each layer is stepped while backward computes the gradients of earlier layers.
        net.backward(contexts, static_cast<float>(loss_scale.value_or(optimizer.loss_scale())),
                     [&](tensor const& ready) {
                         optimizer.submit(
                             static_cast<size_t>(std::find(tensors.begin(), tensors.end(), &ready) - tensors.begin()));
                     });
        adamant::optimizer_report const report = optimizer.finish();
        if (report.outcome == adamant::step_outcome::skipped) { // the same batch again, with a smaller loss scale
            ++skipped;
            if (loss_scale || report.loss_scale == optimizer.loss_scale())
                fail(1, "the gradients of step " + std::to_string(t) + " are not finite at a loss scale of " +
                            std::to_string(report.loss_scale));
            continue;
        }
        net.widen_weights();

        seconds = std::chrono::steady_clock::now() - start;
        if (t % report_every == 0 || t == steps) {
            std::printf("%sstep %zu of %zu, loss %.3f, lr %.2e, norm %.2f, %.0f tokens/s%s", terminal ? "\r" : "", t,
                        steps, recent_loss, lr[0], report.global_norm,
                        static_cast<double>((t - first) * batch_size) / seconds.count(),
                        terminal && t < steps ? "  " : "\n");
            std::fflush(stdout);
        }
        if (!checkpoint.empty() && (t % save_every == 0 || t == steps))
            optimizer.save(checkpoint, run);
    }
    if (optimizer.deferred) {
        optimizer.deferred->flush();
        net.widen_weights();
    }
    std::printf("%.1f s, tier %s, %u threads, %zu steps skipped; losses are in nats per character\n"
                "training loss %.4f\n",
                seconds.count(), name(cpu.tier()).data(), cpu.threads(), skipped, recent_loss);
    print_held_out_loss(net, text);
    print_sample(net, text, random);
    digest weights;
    for (size_t i = 0; i < tensors.size(); ++i) {
        weights.add(states[i].master);
        weights.add(tensors[i]->weight);
    }
    std::printf("weights digest %s\n", weights.text().c_str());
}

} // namespace

int main(int argc, char** argv)
{
    try {
        if (is_contracted())
            fail(1, "was compiled so that a * b + c is rounded once; compile it with -ffp-contract=off");
        option_values const values = parse_options("train_text", argc, argv, defaults);
        if (values.empty())
            std::fputs(help, stdout);
        else
            train(values);
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            fail(1, "the output could not be written; is the disk full?");
    } catch (adamant::error const& e) {
        fail(2, e.what());
    } catch (std::exception const& e) {
        fail(1, e.what());
    }
}
