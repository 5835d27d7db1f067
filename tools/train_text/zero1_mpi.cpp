// SPDX-License-Identifier: Apache-2.0
// ZeRO-1 over MPI: every rank has all weights and computes gradients of its share of a batch, and holds and steps a
// part of the optimizer's state. Trains train_text's model.
//
// The final weights have the same bits for any number of ranks; compare the digest that is printed last. In addition to
// train_text's rules this program keeps these:
//   - A batch is four micro-batches for any number of ranks, so that number must divide four.
//   - The owner of an element accumulates its four gradients in the order of the micro-batches, whichever rank computed
//     them. MPI only moves gradients: a sum by MPI_Reduce would depend on the number of ranks.
//   - The state is sharded at multiples of norm_block_elems of a tensor, and the sum of squares is reduced as integers.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include <adamant/adamant.hpp>
#include <adamant/cores.hpp>
#include <adamant/memory.hpp>
#include <adamant/safetensors.hpp>

#include "text_model.hpp"
#include "text_run.hpp"

namespace {

using namespace text_model;

constexpr size_t micro_batches = 4;
constexpr char const* program = "zero1_mpi";
constexpr char const* help = R"(zero1_mpi: trains train_text's model on 1, 2 or 4 ranks of MPI, as
`mpiexec -n 4 zero1_mpi` starts them

  --steps N          (default 1000)
  --until STEP       stops after that step (default 0: after the last)
  --seed N           of the first weights and of the batches (default 1)
  --batch N          examples of a step, a multiple of 4 (default 128)
  --text FILE        the text to learn instead of /usr/share/common-licenses
  --threads N        of each rank's optimizer, not bound to PUs (default 0: one
                     on each core that select_cores() gives it)
  --overflow STEP    makes a gradient of that step infinite, once, so that all
                     ranks skip it (default 0: of none)
  --checkpoint FILE  where to save: rank 0 of 4 its part in FILE.0-of-4
  --every STEPS      how often (default 1000)
  --resume FILE      the checkpoint to resume from, of any number of ranks
  --help             this text; -h is the same
)";

option_values const defaults{{"--steps", "1000"}, {"--until", "0"},   {"--seed", "1"},     {"--batch", "128"},
                             {"--text", ""},      {"--threads", "0"}, {"--overflow", "0"}, {"--checkpoint", ""},
                             {"--every", "1000"}, {"--resume", ""}};

struct world {
    int rank = 0, ranks = 1;
    world()
    {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    }
};

// Ends all ranks; MPI_Finalize() would wait for ranks without an error. Rank 0 prints first if all have the same error.
[[noreturn]] void fail(int status, std::string const& message)
{
    std::fflush(stdout);
    if (world().rank != 0)
        std::this_thread::sleep_for(std::chrono::seconds(1));
    std::fprintf(stderr, "%s: rank %d: %s\n", program, world().rank, message.c_str());
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();
}

// Gathers the texts of all ranks of a communicator on every rank.
std::vector<std::string> gather_texts(std::string const& text, MPI_Comm comm)
{
    int ranks = 0;
    MPI_Comm_size(comm, &ranks);
    int const length = static_cast<int>(text.size());
    std::vector<int> lengths(static_cast<size_t>(ranks)), begins(lengths.size());
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm);
    std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
    std::string all(static_cast<size_t>(begins.back() + lengths.back()), ' ');
    MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR, comm);
    std::vector<std::string> result;
    for (size_t i = 0; i < lengths.size(); ++i)
        result.push_back(all.substr(static_cast<size_t>(begins[i]), static_cast<size_t>(lengths[i])));
    return result;
}

// ---- Cores ----

struct workers {
    adamant::executor optimizer;
    std::string description;
    adamant::memory_options memory = {};
    unsigned host_threads = 1;
};

workers make_workers(unsigned threads)
{
    if (threads != 0)
        return {adamant::executor({.threads = threads, .bind = adamant::binding::none}),
                std::to_string(threads) + " threads, bound to nothing"};
    adamant::local_rank const self = adamant::rank_from_environment();
    // If mpiexec binds the ranks, each sees only its own cores, so the ranks exchange their masks.
    adamant::machine machine = adamant::live_machine();
    adamant::core_request request{.ranks = self.ranks};
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, static_cast<int>(self.rank), MPI_INFO_NULL, &host);
    for (std::string const& mask : gather_texts(to_list(machine.allowed), host))
        request.masks.push_back(adamant::parse_index_set(mask));
    MPI_Comm_free(&host);
    for (adamant::pu_set const& mask : request.masks)
        machine.allowed |= mask;
    std::optional<adamant::rank_cores> cores;
    try {
        cores = adamant::select_cores(machine, request)[self.rank];
    } catch (adamant::unavailable const& e) { // on all ranks of this host alike
        return {adamant::executor({.threads = 1}),
                "one thread, bound to nothing, on shared cores: " + std::string(e.what())};
    }
    auto const team = std::make_shared<adamant::team>(adamant::team_options{.pus = cores->adam_pus});
    std::string const host_pus = cores->host_pus.empty() ? "the same" : to_list(cores->host_pus);
    return {adamant::executor(team),
            "optimizer on PUs " + to_list(cores->adam_pus) + ", host on " + host_pus + "; " + cores->why,
            {.nodes = cores->numa_nodes},
            std::max(1u, static_cast<unsigned>(cores->host_pus.size()))};
}

// ---- The sharded state ----

// The elements that each rank owns, in the concatenation of all tensors, as MPI's counts and displacements. All ranks
// own the same number of blocks, up to rounding.
struct partition {
    std::vector<int> begins, counts;

    partition(model& net, size_t ranks)
    {
        std::vector<size_t> blocks;
        size_t end = 0;
        for (tensor const* tensor : net.tensors()) {
            for (size_t i = 0; i < tensor->weight.size(); i += adamant::norm_block_elems)
                blocks.push_back(end + i);
            end += tensor->weight.size();
        }
        size_t const count = blocks.size();
        blocks.push_back(end);
        for (size_t i = 0; i < ranks; ++i) {
            begins.push_back(static_cast<int>(blocks[count * i / ranks]));
            counts.push_back(static_cast<int>(blocks[count * (i + 1) / ranks]) - begins.back());
        }
    }
};

// The state that this rank owns.
struct state_part {
    size_t begin, n; // among all elements
    adamant::buffer<float> master, exp_avg, exp_avg_sq, grad_sum;
    std::vector<bfloat16> grad; // of one micro-batch

    state_part(int first, int elements, workers const& team)
        : begin(static_cast<size_t>(first)), n(static_cast<size_t>(elements)), grad(n)
    {
        for (auto* const array : {&master, &exp_avg, &exp_avg_sq, &grad_sum})
            *array = adamant::make_buffer<float>(team.optimizer, n, team.memory);
    }

    // Adds this rank's shards. New weights go to the array that gathers those of all ranks.
    void add_shards(adamant::optimizer& optimizer, model& net)
    {
        size_t tensor_begin = 0;
        for (tensor const* tensor : net.tensors()) {
            size_t const tensor_end = tensor_begin + tensor->weight.size();
            size_t const shard_begin = std::clamp(begin, tensor_begin, tensor_end);
            size_t const elements = std::clamp(begin + n, tensor_begin, tensor_end) - shard_begin;
            auto const part = [&](auto& array) { return std::span(array).subspan(shard_begin - begin, elements); };
            if (elements != 0)
                optimizer.add_shard(
                    {.group = 0,
                     .name = tensor->name,
                     .shard = adamant::shard(part(master), part(grad), part(exp_avg), part(exp_avg_sq),
                                             tensor->weight.subspan(shard_begin - tensor_begin, elements)),
                     .accumulator = part(grad_sum),
                     .position = {{tensor->wide.rows, tensor->wide.columns}, shard_begin - tensor_begin}});
            tensor_begin = tensor_end;
        }
    }
};

// ---- Checkpoints ----

std::string part_of(std::string const& file, int rank, int ranks)
{
    return file + '.' + std::to_string(rank) + "-of-" + std::to_string(ranks);
}

// All ranks read all parts, and each loads the state of its shards.
void resume(std::string const& file, std::map<std::string, std::string> const& run, adamant::optimizer& optimizer)
{
    int writers = 0;
    for (int ranks = 1; ranks <= static_cast<int>(micro_batches); ++ranks)
        if (std::filesystem::exists(part_of(file, 0, ranks))) {
            if (writers != 0)
                fail(2, "--resume: there are parts of '" + file + "' by " + std::to_string(writers) + " and by " +
                            std::to_string(ranks) + " ranks; remove those that you do not mean");
            writers = ranks;
        }
    if (writers == 0)
        fail(2, "--resume: there is no '" + part_of(file, 0, 1) +
                    "', nor one by more ranks; give what was given to --checkpoint");
    std::vector<adamant::safetensors_state> files;
    std::vector<adamant::state_dict> states;
    for (int rank = 0; rank < writers; ++rank)
        states.push_back(files.emplace_back(part_of(file, rank, writers)).state());
    adamant::state_dict const whole = adamant::merge(states); // which refuses parts of different steps
    require_same_run(program, run, whole.metadata, file);
    optimizer.load(whole);
    if (world().rank == 0)
        std::printf("resumed after step %zu, from %d parts\n", static_cast<size_t>(optimizer.steps()), writers);
}

// ---- Training ----

void train(option_values const& values)
{
    size_t const steps = number(values, "--steps", 1, 100'000'000);
    size_t const until = number(values, "--until", 0, steps);
    size_t const batch_size = number(values, "--batch", micro_batches, 4096);
    size_t const seed = number(values, "--seed", 0, ~size_t{0});
    size_t const save_every = number(values, "--every", 1, ~size_t{0});
    size_t const overflow = number(values, "--overflow", 0, ~size_t{0});
    auto const threads = static_cast<unsigned>(number(values, "--threads", 0, 1024));
    auto const [rank, rank_count] = world();
    auto const ranks = static_cast<size_t>(rank_count);
    bool const prints = rank == 0;
    if (batch_size % micro_batches != 0)
        fail(2, "--batch is " + values.at("--batch") + ", but must be a multiple of 4, the number of micro-batches");
    if (micro_batches % ranks != 0)
        fail(2, "there are " + std::to_string(ranks) + " ranks, but 4 micro-batches to divide; start 1, 2 or 4 ranks");
    bool const saves = !values.at("--checkpoint").empty();
    std::string const checkpoint = part_of(values.at("--checkpoint"), rank, rank_count);
    if (saves)
        if (adamant::save_report const report = adamant::check_can_save(checkpoint); !report.reason.empty())
            std::fprintf(stderr, "zero1_mpi: checkpoints will be complete, but %s\n", report.reason.c_str());

    workers const team = make_workers(threads);
    std::vector<std::string> const descriptions = gather_texts(team.description, MPI_COMM_WORLD);
    corpus const text = load_corpus(values.at("--text"));
    std::map<std::string, std::string> const run = common_identity(program, values, text);
    for (std::string const& other : gather_texts(run.at("zero1_mpi.text"), MPI_COMM_WORLD))
        if (other != run.at("zero1_mpi.text"))
            fail(1, "ranks have read different texts; give one that is the same on all hosts with --text FILE");
    if (prints) {
        for (size_t i = 0; i < ranks; ++i)
            std::printf("rank %zu: %s\n", i, descriptions[i].c_str());
        print(text);
    }

    model net(text.bytes.size(), team.host_threads);
    partition const parts(net, ranks);
    auto const me = static_cast<size_t>(rank);
    state_part part(parts.begins[me], parts.counts[me], team);
    generator random{seed};
    std::vector<float> const first_weights = net.draw_weights(random); // all of them, on every rank
    std::copy_n(first_weights.begin() + parts.begins[me], part.n, part.master.begin());
    auto const sum_over_ranks = [](std::span<std::int64_t> words) {
        MPI_Allreduce(MPI_IN_PLACE, words.data(), static_cast<int>(words.size()), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    };
    adamant::optimizer optimizer(
        team.optimizer,
        {.max_norm = max_grad_norm, .loss_scaling = adamant::loss_scaling_options{}, .reduce = sum_over_ranks});
    optimizer.add_group("all", hyper);
    part.add_shards(optimizer, net);
    auto const gather_weights = [&] {
        MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, net.weights.data(), parts.counts.data(), parts.begins.data(),
                       MPI_UINT16_T, MPI_COMM_WORLD);
        net.widen_weights();
    };
    if (!values.at("--resume").empty()) {
        resume(values.at("--resume"), run, optimizer);
        gather_weights();
    }

    size_t const report_every = std::max<size_t>(steps / 10, 1);
    size_t const micro_size = batch_size / micro_batches;
    size_t const last = until == 0 ? steps : until;
    size_t skipped = 0;
    while (optimizer.steps() < last) {
        size_t const t = optimizer.steps() + 1;
        batch const examples = draw_batch(text, batch_size, seed, t);
        double losses[micro_batches] = {};
        for (size_t k = 0; k < micro_batches; ++k) {
            if (k % ranks == 0) { // all ranks together, each the next of its micro-batches
                size_t const index = k + me;
                auto const begin = examples.begin() + static_cast<std::ptrdiff_t>(index * micro_size);
                batch const contexts(begin, begin + static_cast<std::ptrdiff_t>(micro_size));
                losses[index] = loss_sum(net.forward(contexts), contexts);
                // Makes the sum over micro-batches the mean over the batch. The division by 4 is exact.
                net.backward(contexts, static_cast<float>(optimizer.loss_scale() / micro_batches),
                             [](tensor const&) {});
                if (t == overflow && skipped == 0 && index == 1)
                    net.grads[0] = adamant::narrow<bfloat16>(std::numeric_limits<float>::infinity());
            }
            MPI_Scatterv(net.grads.data(), parts.counts.data(), parts.begins.data(), MPI_UINT16_T, part.grad.data(),
                         parts.counts[me], MPI_UINT16_T, static_cast<int>(k % ranks), MPI_COMM_WORLD);
            if (k + 1 < micro_batches) // the step itself adds the last one
                for (size_t shard = 0; shard < optimizer.shards(); ++shard)
                    optimizer.accumulate(shard);
        }
        double const lr[] = {learning_rate(t, steps)};
        adamant::optimizer_report const report = optimizer.step({.lr = lr});
        if (report.outcome == adamant::step_outcome::skipped) { // by all ranks; the same batch with a smaller scale
            ++skipped;
            if (report.loss_scale == optimizer.loss_scale())
                fail(1, "the gradients of step " + std::to_string(t) + " are not finite at a loss scale of " +
                            std::to_string(report.loss_scale));
            continue;
        }
        gather_weights();

        MPI_Allreduce(MPI_IN_PLACE, losses, micro_batches, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double const loss = std::accumulate(losses, losses + micro_batches, 0.0) / static_cast<double>(batch_size);
        if (prints && (t % report_every == 0 || t == last)) {
            std::printf("step %zu of %zu, loss %.3f, lr %.2e, norm %.17g\n", t, steps, loss, lr[0], report.global_norm);
            std::fflush(stdout);
        }
        if (saves && (t % save_every == 0 || t == last)) {
            adamant::state_dict state = optimizer.state();
            state.metadata = run;
            adamant::save_safetensors(checkpoint, state);
        }
    }

    std::vector<float> masters(prints ? net.weights.size() : 0);
    MPI_Gatherv(part.master.data(), parts.counts[me], MPI_FLOAT, masters.data(), parts.counts.data(),
                parts.begins.data(), MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (!prints)
        return;
    std::printf("%zu ranks, tier %s, %zu steps skipped; losses are in nats per character\n", ranks,
                name(team.optimizer.tier()).data(), skipped);
    print_held_out_loss(net, text);
    digest weights;
    weights.add(masters);
    weights.add(net.weights);
    std::printf("weights digest %s\n", weights.text().c_str());
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        fail(1, "the output could not be written; is the disk full?");
}

} // namespace

int main(int argc, char** argv)
{
    int threads = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads); // a step calls reduce in the thread that called it
    try {
        if (is_contracted())
            fail(1, "was compiled so that a * b + c is rounded once; compile it with -ffp-contract=off");
        option_values const values = parse_options(program, argc, argv, defaults);
        if (!values.empty())
            train(values);
        else if (world().rank == 0)
            std::fputs(help, stdout);
    } catch (adamant::error const& e) {
        fail(2, e.what());
    } catch (std::exception const& e) {
        fail(1, e.what());
    }
    MPI_Finalize();
}
