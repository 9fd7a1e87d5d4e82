// Sums and ReLU masks of BF16 maps that lie alike in memory, each in one pass over them.
//
// They are bound by memory, so that what counts is how often a value is fetched: an operator of its
// own for each sum and for the mask would read and write the result again and again. Sums are
// float32 and rounded once. Results overwrite the first term, whose memory is in the cache already.

#include "bfloat16.h"

namespace {

constexpr int64_t kChunk = 8192;  // values that a thread takes at a time: 16 KB of each map
constexpr int64_t kMostTerms = 4;

// The number of terms is a template argument, so that the loop over the values has no branch.
template <int64_t terms>
void masked_sum_chunk(Bfloat16* first, const Bfloat16* const* others, const Bfloat16* gate,
                      int64_t begin, int64_t end) {
    const Bfloat16* second = terms > 1 ? others[0] : nullptr;
    const Bfloat16* third = terms > 2 ? others[1] : nullptr;
    const Bfloat16* fourth = terms > 3 ? others[2] : nullptr;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
        Bfloat16 value = first[i];
        if (terms > 1) {
            float sum = widened(first[i]) + widened(second[i]);
            if (terms > 2) sum += widened(third[i]);
            if (terms > 3) sum += widened(fourth[i]);
            value = rounded(sum);
        }
        first[i] = is_open(gate[i]) ? value : Bfloat16{0};
    }
}

}  // namespace

extern "C" {

// first = (first + others[0] + …) where gate is open, else 0; `terms`, with the first, up to 4.
void masked_sum(Bfloat16* first, const Bfloat16* const* others, int64_t terms, const Bfloat16* gate,
                int64_t values, int32_t threads) {
    using Chunk = void (*)(Bfloat16*, const Bfloat16* const*, const Bfloat16*, int64_t, int64_t);
    constexpr Chunk chunks[kMostTerms] = {masked_sum_chunk<1>, masked_sum_chunk<2>,
                                          masked_sum_chunk<3>, masked_sum_chunk<4>};
    const Chunk chunk = chunks[terms - 1];
    over_chunks<kChunk>(values, threads,
                [=](int64_t begin, int64_t end) { chunk(first, others, gate, begin, end); });
}

// maps = max(maps + added, 0); NaN stays NaN.
void add_relu(Bfloat16* maps, const Bfloat16* added, int64_t values, int32_t threads) {
    over_chunks<kChunk>(values, threads, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
            const Bfloat16 sum = rounded(widened(maps[i]) + widened(added[i]));
            maps[i] = is_open(sum) ? sum : Bfloat16{0};
        }
    });
}

}  // extern "C"
