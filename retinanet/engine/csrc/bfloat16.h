// What the kernels share: BF16 values in memory and in vectors, and how work is split.
//
// A BF16 value is the upper half of a float32.
#pragma once

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

using Bfloat16 = uint16_t;

static inline int64_t divided_up(int64_t value, int64_t step) { return (value + step - 1) / step; }
static inline int64_t rounded_up(int64_t value, int64_t step) { return divided_up(value, step) * step; }

// Calls `work(begin, end)` for chunks of `size` values, on some threads.
template <int64_t chunk, typename Work>
static void over_chunks(int64_t size, int32_t threads, const Work& work) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t begin = 0; begin < size; begin += chunk) work(begin, std::min(begin + chunk, size));
}

static inline float widened(Bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// To the nearest, ties to even. NaN stays NaN: the addition alone would make infinity or zero of some, so NaN is
// truncated, with its quiet bit set. Without a branch, so that loops over it are vectorized.
static inline Bfloat16 rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return static_cast<Bfloat16>((bits & 0x7fffffff) > 0x7f800000 ? nan : nearest);
}

// Whether ReLU returned its input: it is positive, or NaN of either sign, which keeps its gradient as in torch.
// As integers, all of these are positive, or unsigned and beyond minus infinity.
static inline bool is_open(Bfloat16 gate) { return (static_cast<int16_t>(gate) > 0) | (gate > 0xff80); }

#if defined(__AVX512BW__)
#define WITH_BF16 __attribute__((target("avx512bf16,avx512bw,avx512vl,avx512dq")))

static inline __mmask32 open_lanes(__m512i gates) {
    return _mm512_cmpgt_epi16_mask(gates, _mm512_setzero_si512()) |
           _mm512_cmpgt_epu16_mask(gates, _mm512_set1_epi16(static_cast<int16_t>(0xff80)));
}

static inline __mmask32 first_lanes(int64_t count) {
    return count >= 32 ? 0xffffffffu : static_cast<__mmask32>((1u << std::max<int64_t>(count, 0)) - 1);
}

static inline __m512 widened(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// ReLU: of two operands of which one is NaN, the instruction returns the second.
static inline __m512 positive(__m512 values) { return _mm512_max_ps(_mm512_setzero_ps(), values); }

// The permutation that makes pairs of the 16 values in the lower half of a register and of those in the upper.
static inline __m512i interleaved_halves() {
    return _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
}

// rows[r] lane c to rows[c] lane r, 16 × 16.
static inline void transpose(__m512i* rows) {
    __m512i t[16];
    for (int r = 0; r < 16; r += 2) {
        t[r] = _mm512_unpacklo_epi32(rows[r], rows[r + 1]);
        t[r + 1] = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
    }
    for (int r = 0; r < 16; r += 4) {
        rows[r] = _mm512_unpacklo_epi64(t[r], t[r + 2]);
        rows[r + 1] = _mm512_unpackhi_epi64(t[r], t[r + 2]);
        rows[r + 2] = _mm512_unpacklo_epi64(t[r + 1], t[r + 3]);
        rows[r + 3] = _mm512_unpackhi_epi64(t[r + 1], t[r + 3]);
    }
    for (int r = 0; r < 4; r++) {
        t[r] = _mm512_shuffle_i32x4(rows[r], rows[r + 4], 0x88);
        t[r + 4] = _mm512_shuffle_i32x4(rows[r + 8], rows[r + 12], 0x88);
        t[r + 8] = _mm512_shuffle_i32x4(rows[r], rows[r + 4], 0xdd);
        t[r + 12] = _mm512_shuffle_i32x4(rows[r + 8], rows[r + 12], 0xdd);
    }
    for (int r = 0; r < 4; r++) {
        rows[r] = _mm512_shuffle_i32x4(t[r], t[r + 4], 0x88);
        rows[r + 4] = _mm512_shuffle_i32x4(t[r + 8], t[r + 12], 0x88);
        rows[r + 8] = _mm512_shuffle_i32x4(t[r], t[r + 4], 0xdd);
        rows[r + 12] = _mm512_shuffle_i32x4(t[r + 8], t[r + 12], 0xdd);
    }
}
#endif

// Whether any value is not zero, as NaN is. Gradients of boxes are zero but around the objects, so that most pixels
// contribute nothing; elsewhere the first values tell.
static inline bool has_values(const Bfloat16* values, int64_t count) {
#if defined(__AVX512BW__)
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    for (int64_t index = 0; index < count; index += 32) {
        const __m512i some = _mm512_maskz_loadu_epi16(first_lanes(count - index), values + index);
        if (_mm512_test_epi16_mask(some, magnitude)) return true;
    }
#else
    for (int64_t index = 0; index < count; index++) {
        if (values[index] & 0x7fff) return true;
    }
#endif
    return false;
}
