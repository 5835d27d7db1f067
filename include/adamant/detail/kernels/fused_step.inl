// SPDX-License-Identifier: Apache-2.0
// The fused step. detail/kernels/step_kernels.inl includes it once per instruction set, each time in a separate
// namespace with a facade `simd`.
//
// dtypes    param, grad, moments and weight_out are widened exactly to float32, and narrowed to nearest even
// rounding  as in reference.hpp, operation for operation
// speed     the fast paths compute sqrt and division exactly, and hide them behind memory accesses; they prefetch
//           prefetch_bytes ahead, because the two long operations fill the out-of-order window, which would otherwise
//           find the cache misses

#include <adamant/detail/kernels/formula.inl>
//
#include <adamant/detail/kernels/stores.inl>
//
#include <adamant/detail/kernels/careful_step.inl>

inline constexpr std::size_t group_elems = simd::lanes * simd::vectors;

// Prefetches the cache lines of `Vectors` vectors of T, ahead_bytes past `address`.
template <class T, std::size_t Vectors = simd::vectors>
ADAMANT_SIMD void prefetch(std::byte const* address, std::ptrdiff_t ahead_bytes)
{
    ADAMANT_UNROLL
    for (std::size_t line = 0; line < Vectors * simd::lanes * sizeof(T); line += 64)
        __builtin_prefetch(address + ahead_bytes + static_cast<std::ptrdiff_t>(line));
}

// A gradient of the type that memory_access names. One loop serves all of them, because a loop for each takes compilers
// three times the time.
struct any_grad {};
template <class T>
using any_grad_unless_float = std::conditional_t<std::is_same_v<T, float>, float, any_grad>;

template <bool Interleaved, class Grad, std::size_t Vectors>
ADAMANT_SIMD void load_grads(std::byte const* array, std::size_t i, memory_access const& access, Grad,
                             simd::f32 (&g)[Vectors])
{
    std::byte const* const grad = array + i * sizeof(Grad);
    prefetch<Grad, Vectors>(grad, access.ahead.grad);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        simd::template load_pair<Grad, Interleaved>(grad + k * simd::lanes * sizeof(Grad), g[k], g[k + 1]);
}
template <bool Interleaved, std::size_t Vectors>
ADAMANT_SIMD void load_grads(std::byte const* array, std::size_t i, memory_access const& access, any_grad,
                             simd::f32 (&g)[Vectors])
{
    if (access.grad == dtype::bfloat16)
        load_grads<Interleaved>(array, i, access, bfloat16{}, g);
    else if (access.grad == dtype::float16)
        load_grads<Interleaved>(array, i, access, float16{}, g);
    else
        load_grads<Interleaved>(array, i, access, float{}, g);
}

// State of a group between start_group() and finish_group().
template <class Recorder, std::size_t Vectors = simd::vectors>
struct started_group {
    param_update updates[Vectors];
    typename Recorder::started recorded;
};

// Keeps no record of the values that a step overwrites. detail/kernels/journal.inl has the types that do. A fast path
// makes its recorder from the record that it gets, so that the recorder's vectors stay in registers.
struct no_record {
    using recorder = struct no_recorder;
    ADAMANT_SIMD void keep_groups(step_pointers const&, std::size_t, std::size_t) {}
    ADAMANT_SIMD void keep_rest(step_pointers const&, std::size_t, std::size_t) {}
};
struct no_recorder : no_record {
    no_recorder() = default;
    ADAMANT_SIMD no_recorder(no_record const&, coefficients const&) {}
    struct started {};
    template <path, std::size_t Vectors>
    ADAMANT_SIMD void moments(step_pointers const&, std::size_t, coefficient_vectors const&,
                              state_vectors const (&)[Vectors], simd::f32 const (&)[Vectors],
                              state_vectors const (&)[Vectors], started&)
    {
    }
    template <std::size_t Vectors>
    ADAMANT_SIMD void params(step_pointers const&, std::size_t, started_group<no_recorder, Vectors> const&,
                             simd::f32 const (&)[Vectors])
    {
    }
};

// Copies elements [i, i + Vectors * lanes) of an array.
template <class T, std::size_t Vectors>
ADAMANT_SIMD void copy_vectors(std::byte* copies, std::byte const* array, std::size_t i, bool stream)
{
    constexpr std::size_t vector_bytes = simd::lanes * sizeof(float);
    std::byte* const target = copies + i * sizeof(T);
    std::byte const* const source = array + i * sizeof(T);
    static_assert(Vectors * simd::lanes * sizeof(T) % vector_bytes == 0);
    bool const is_aligned = reinterpret_cast<std::uintptr_t>(target) % vector_bytes == 0;
    ADAMANT_UNROLL
    for (std::size_t byte = 0; byte < Vectors * simd::lanes * sizeof(T); byte += vector_bytes) {
        simd::f32 const x = simd::template load<float>(source + byte);
        if (stream && is_aligned)
            simd::stream(target + byte, simd::bits(x));
        else
            simd::template store<float>(target + byte, x);
    }
}
// Copies the state of a group, see state_copies.
template <class Param, class ExpAvg, class ExpAvgSq, std::size_t Vectors>
ADAMANT_SIMD void copy_state(step_pointers const& a, std::size_t i)
{
    copy_vectors<Param, Vectors>(a.copies->param, a.param, i, a.copies->stream);
    copy_vectors<ExpAvg, Vectors>(a.copies->exp_avg, a.exp_avg, i, a.copies->stream);
    copy_vectors<ExpAvgSq, Vectors>(a.copies->exp_avg_sq, a.exp_avg_sq, i, a.copies->stream);
    if constexpr (is_split<Param>)
        copy_vectors<bfloat16, Vectors>(a.copies->weight_out, a.weight_out, i, a.copies->stream);
}

// Starts the group at element i: stores both moments and issues the divisions. Returns false, with nothing written, if
// the group fails the checks of the path.
template <path Path, bool Interleaved, class Param, class Grad, class ExpAvg, class ExpAvgSq, class Recorder,
          std::size_t Vectors>
ADAMANT_SIMD bool start_group(step_pointers const& a, std::size_t i, coefficient_vectors const& c,
                              started_group<Recorder, Vectors>& group, memory_access const& access, Recorder& recorder,
                              random_vectors<ExpAvgSq>& random)
{
    param_update(&updates)[Vectors] = group.updates;
    std::byte const* const param = a.param + i * sizeof(Param);
    std::byte const* const exp_avg = a.exp_avg + i * sizeof(ExpAvg);
    std::byte const* const exp_avg_sq = a.exp_avg_sq + i * sizeof(ExpAvgSq);
    prefetch<Param, Vectors>(param, access.ahead.param);
    if constexpr (is_split<Param>)
        prefetch<bfloat16, Vectors>(a.weight_out + i * sizeof(bfloat16), access.ahead.weight_out);
    prefetch<ExpAvg, Vectors>(exp_avg, access.ahead.exp_avg);
    prefetch<ExpAvgSq, Vectors>(exp_avg_sq, access.ahead.exp_avg_sq);

    state_vectors s[Vectors];
    simd::f32 g[Vectors];
    load_grads<Interleaved>(a.grad, i, access, Grad{}, g);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2) {
        std::size_t const first = k * simd::lanes;
        load_params<Param, Interleaved>(param + first * sizeof(Param), a.weight_out + (i + first) * sizeof(bfloat16),
                                        s[k].param, s[k + 1].param);
        simd::template load_pair<ExpAvg, Interleaved>(exp_avg + first * sizeof(ExpAvg), s[k].exp_avg, s[k + 1].exp_avg);
        simd::template load_pair<ExpAvgSq, Interleaved>(exp_avg_sq + first * sizeof(ExpAvgSq), s[k].exp_avg_sq,
                                                        s[k + 1].exp_avg_sq);
    }
    state_vectors old[Vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k)
        old[k] = s[k];
    bool done = false;
    if constexpr (Path == path::lenient)
        done = update_idle<ExpAvg>(s, g, c, updates);
    if (!done) {
        guard<Path> seen;
        clear(seen);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; ++k)
            update_moments<Path>(s[k], g[k], c, seen);
        if (!is_in_range(seen)) [[unlikely]]
            return false;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; ++k)
            updates[k] = start_param<Path>(s[k], c);
    }
    recorder.template moments<Path>(a, i, c, old, g, s, group.recorded);
    if constexpr (!records_codes(types_of<Param, float, ExpAvg, ExpAvgSq, void>) &&
                  std::is_same_v<Recorder, no_recorder>)
        if (a.copies != nullptr) [[unlikely]]
            copy_state<Param, ExpAvg, ExpAvgSq, Vectors>(a, i);
    constexpr bool is_ordinary = Path == path::ordinary;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        store_pair<ExpAvg, Interleaved, is_ordinary>(a.exp_avg + (i + k * simd::lanes) * sizeof(ExpAvg), s[k].exp_avg,
                                                     s[k + 1].exp_avg, access.native_bfloat16);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2)
        store_results<ExpAvgSq, Interleaved, is_ordinary>(a.exp_avg_sq + (i + k * simd::lanes) * sizeof(ExpAvgSq),
                                                          s[k].exp_avg_sq, s[k + 1].exp_avg_sq, access.native_bfloat16,
                                                          random);
    return true;
}
// Finishes a group that start_group() has started: params and weights.
template <path Path, bool Interleaved, class Param, class WeightOut, class Recorder, std::size_t Vectors>
ADAMANT_SIMD void finish_group(step_pointers const& a, std::size_t i, coefficient_vectors const& c,
                               started_group<Recorder, Vectors> const& group, memory_access const& access,
                               Recorder& recorder, random_vectors<Param>& random)
{
    simd::f32 p[Vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k) {
        param_update u = group.updates[k];
        if constexpr (std::is_same_v<Param, float>) // recomputing takes less time than keeping it in a register
            u.decayed_param = simd::mul(c.decay, simd::load<float>(a.param + (i + k * simd::lanes) * sizeof(float)));
        p[k] = finish_param<Path>(u, c);
    }
    recorder.params(a, i, group, p);
    static_cast<void>(store_params<Param, WeightOut, Interleaved, Path == path::ordinary>(a, i, p, access, random));
}

enum class native_bfloat16 { no, yes, either };

// Steps whole groups from `begin` to `end` while they pass the checks of the path. Returns the element at which it
// stopped, which may be inside a group of group_elems if all arrays are bfloat16. Nothing from that element on is
// written. A group is finished after the next one is started, so that few operations wait for a division: waiting
// operations fill the out-of-order window and keep the next divisions out of it. The loop calls start_group() and
// finish_group() in one place each, because compilers take their time for these.
//
// Native selects rounding to bfloat16 by instruction or by arithmetic at compile time, or leaves the choice to run
// time. Only the most common loop is compiled for each, because the choice costs it a tenth of its speed in cache, and
// two loops take compilers twice the time.
template <path Path, native_bfloat16 Native, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut,
          class Record>
[[gnu::noinline]] std::size_t fast_step(step_pointers const& arrays, std::size_t begin, std::size_t end,
                                        step_scalars const& scalars, memory_access const& permitted, bool stream,
                                        Record& record) noexcept
{
    detail::vzeroupper_scope const at_end;
    step_pointers const a = arrays; // copies, which no store below can change
    memory_access access = permitted;
    access.stream = stream;
    if constexpr (Native != native_bfloat16::either)
        access.native_bfloat16 = Native == native_bfloat16::yes;
    using recorder_type = typename Record::recorder;
    recorder_type recorder(record, scalars);
    coefficient_vectors const c = broadcast(scalars);
    // The order of elements within a group is free, as long as all arrays use the same.
    constexpr bool has_narrow_params =
        is_split<Param> || (std::is_same_v<Param, bfloat16> && std::is_void_v<WeightOut>);
    constexpr bool interleaved = has_narrow_params && std::is_same_v<Grad, bfloat16> &&
                                 std::is_same_v<ExpAvg, bfloat16> && std::is_same_v<ExpAvgSq, bfloat16>;
    constexpr std::size_t vectors = interleaved ? simd::vectors_of_bfloat16 : simd::vectors;
    constexpr std::size_t elems = vectors * simd::lanes;
    random_vectors<ExpAvgSq> for_exp_avg_sq;
    random_vectors<Param> for_param;
    for_exp_avg_sq.template begin<interleaved>(scalars.rounding.exp_avg_sq, scalars.lines.exp_avg_sq, begin);
    for_param.template begin<interleaved>(scalars.rounding.param, scalars.lines.param, begin);
    started_group<recorder_type, vectors> group;
    std::size_t i = begin;
    for (;; i += elems) {
        started_group<recorder_type, vectors> next;
        bool const started = i < end && start_group<Path, interleaved, Param, Grad, ExpAvg, ExpAvgSq>(
                                            a, i, c, next, access, recorder, for_exp_avg_sq);
        if (i != begin)
            finish_group<Path, interleaved, Param, WeightOut>(a, i - elems, c, group, access, recorder, for_param);
        if (!started) [[unlikely]]
            break;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < vectors; ++k)
            group.updates[k] = next.updates[k];
        group.recorded = next.recorded;
    }
    record = recorder;
    return i;
}

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut, class Record>
std::size_t ordinary_step(step_pointers const& a, std::size_t begin, std::size_t end, step_scalars const& c,
                          memory_access const& access, bool stream, Record& record) noexcept
{
    constexpr bool stores_bfloat16 = std::is_same_v<Param, bfloat16> || std::is_same_v<ExpAvg, bfloat16> ||
                                     std::is_same_v<ExpAvgSq, bfloat16> || std::is_same_v<WeightOut, bfloat16>;
    if constexpr (simd::may_have_bfloat16 && stores_bfloat16 && std::is_same_v<Record, no_record>) {
        if (access.native_bfloat16)
            return fast_step<path::ordinary, native_bfloat16::yes, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
                a, begin, end, c, access, stream, record);
        return fast_step<path::ordinary, native_bfloat16::no, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
            a, begin, end, c, access, stream, record);
    } else {
        return fast_step<path::ordinary, native_bfloat16::either, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(
            a, begin, end, c, access, stream, record);
    }
}

// A function that steps whole groups of an array while they pass the checks of its path. stream: whether it streams
// weight_out, whatever memory_access permits. Returns where it stopped.
template <class Record>
using path_function = std::size_t (*)(step_pointers const&, std::size_t, std::size_t, step_scalars const&,
                                      memory_access const&, bool stream, Record&) noexcept;

// Copies the group that begins at element i of an array, whose elements have 2 or 4 bytes. Stores whole vectors, as a
// step loads them: a load waits for all earlier stores that it spans.
ADAMANT_SIMD void copy_group(std::byte* target, std::byte const* array, std::size_t i, std::size_t elem_bytes)
{
    constexpr std::size_t vector_bytes = simd::lanes * sizeof(float);
    constexpr std::size_t half = group_elems * sizeof(std::uint16_t);
    static_assert(half % vector_bytes == 0);
    std::byte const* const source = array + i * elem_bytes;
    ADAMANT_UNROLL
    for (std::size_t byte = 0; byte < half; byte += vector_bytes)
        simd::template store<float>(target + byte, simd::template load<float>(source + byte));
    if (elem_bytes == sizeof(std::uint16_t))
        return;
    ADAMANT_UNROLL
    for (std::size_t byte = half; byte < 2 * half; byte += vector_bytes)
        simd::template store<float>(target + byte, simd::template load<float>(source + byte));
}
// Steps elements [begin, begin + n), which are a part of the group that begins at element `group`, in a copy of that
// group: `ordinary` is the ordinary path for these types. None of its elements may have been stepped yet. Returns
// false, with nothing written, if the group fails the checks of the path. One function for all types.
[[gnu::noinline]] inline bool step_part(step_pointers const& a, array_types const& types, std::size_t group,
                                        std::size_t begin, std::size_t n, step_scalars const& c,
                                        memory_access const& access, path_function<no_record> ordinary) noexcept
{
    alignas(64) std::byte copies[5][group_elems * sizeof(float)];
    std::uint64_t changed = 0;
    static_assert(group_elems <= changed_word_elems);
    step_pointers const copy{
        copies[0], copies[1], copies[2], copies[3], copies[4], {}, a.changed == nullptr ? nullptr : &changed};
    copy_group(copies[0], a.param, group, types.elem_bytes[0]);
    copy_group(copies[1], a.grad, group, types.elem_bytes[1]);
    copy_group(copies[2], a.exp_avg, group, types.elem_bytes[2]);
    copy_group(copies[3], a.exp_avg_sq, group, types.elem_bytes[3]);
    if (types.param == dtype::split_float32)
        copy_group(copies[4], a.weight_out, group, types.elem_bytes[4]);
    no_record none;
    step_scalars const copy_scalars = c.from(group);
    if (ordinary(copy, 0, group_elems, copy_scalars, access, false, none) != group_elems) [[unlikely]]
        return false;
    if (a.copies != nullptr && !records_codes(types))
        copy_few_states(a, types, begin, n);
    copy_results(types, a, begin, copy, begin - group, n);
    if (a.changed != nullptr)
        set_changed(a.changed, begin, changed >> (begin - group) & ((std::uint64_t{1} << n) - 1), n);
    return true;
}

#include <adamant/detail/kernels/step_walk.inl>
