// BF16 values in memory: the upper half of a float32.
#pragma once

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

using Bfloat16 = uint16_t;

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
static inline __mmask32 open_lanes(__m512i gates) {
    return _mm512_cmpgt_epi16_mask(gates, _mm512_setzero_si512()) |
           _mm512_cmpgt_epu16_mask(gates, _mm512_set1_epi16(static_cast<int16_t>(0xff80)));
}
#endif
