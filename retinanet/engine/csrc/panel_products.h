// Matrix products in BF16 by AVX-512: register tiles, and sums over a block of panels.
//
// A "panel" is what the vector side of a matrix product reads in order: for each pair of values along
// the sum, 32 columns of two BF16 values each.
#pragma once

#include "bfloat16.h"

constexpr int PANEL_COLUMNS = 32;
// Of weight gradients, whose sums run over pixels or tiles of them:
constexpr int64_t SUMMED = 256;       // values along the sum that a panel has, at most
constexpr int64_t GRADIENT_ROWS = 8;  // of a register tile
// Values from a panel to the next. Not a power of two, or the places that a pixel is written to would share
// one set of the cache.
constexpr int64_t PANEL_VALUES = (SUMMED + 2) * PANEL_COLUMNS;

// Panels [channels / 32, pairs of pixels, 32, 2] of pixels, whose channels are contiguous in memory; the last panel
// is filled up with zeros. `totals` [as many channels], unless null: the sum over the pixels is added.
WITH_BF16 static void fill_panels(
    const Bfloat16* const* pixels, int64_t count, int64_t first_channel, int64_t channels, Bfloat16* panels, float* totals) {
    const __m512i left = interleaved_halves();
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    for (int64_t p = 0; p < count; p += 2) {
        const Bfloat16* first = pixels[p] + first_channel;
        const Bfloat16* second = p + 1 < count ? pixels[p + 1] + first_channel : nullptr;
        for (int64_t channel = 0; channel < channels; channel += PANEL_COLUMNS) {
            const __mmask32 lanes = first_lanes(channels - channel);
            const __m512i a = _mm512_maskz_loadu_epi16(lanes, first + channel);
            const __m512i b = second ? _mm512_maskz_loadu_epi16(lanes, second + channel) : _mm512_setzero_si512();
            __m512i pairs[2] = {
                _mm512_permutexvar_epi16(left, _mm512_shuffle_i64x2(a, b, 0x44)),
                _mm512_permutexvar_epi16(left, _mm512_shuffle_i64x2(a, b, 0xee))};
            Bfloat16* to = panels + channel / PANEL_COLUMNS * PANEL_VALUES + p * PANEL_COLUMNS;
            for (int half = 0; half < 2; half++) {
                _mm512_storeu_si512(to + 32 * half, pairs[half]);
                if (!totals) continue;
                float* total = totals + channel + 16 * half;
                _mm512_storeu_ps(total, _mm512_dpbf16_ps(
                    _mm512_loadu_ps(total), reinterpret_cast<__m512bh>(pairs[half]), reinterpret_cast<__m512bh>(ones)));
            }
        }
    }
}

// sums[row] += sum over pairs of the row's pair · the pair of each of 32 columns, of which 16 are at `left` and the
// others at `right`, `step` values further for each pair. A row's pairs, one at least, are `apart` values from each other.
template <int rows>
WITH_BF16 static inline __attribute__((always_inline)) void accumulate_pairs(
    const Bfloat16* const (&at)[rows], int64_t apart, const Bfloat16* left, const Bfloat16* right, int64_t step, int64_t pairs,
    __m512 (&sums)[rows][2]) {
    int64_t pair = 0;
    do {  // not `for`: the compiler would keep all sums in memory as well, for a loop that might have nothing to do
        const __m512bh first = reinterpret_cast<__m512bh>(_mm512_loadu_si512(left + pair * step));
        const __m512bh second = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + pair * step));
        for (int row = 0; row < rows; row++) {
            int32_t values;
            std::memcpy(&values, at[row] + pair * apart, sizeof values);
            const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(values));
            sums[row][0] = _mm512_dpbf16_ps(sums[row][0], both, first);
            sums[row][1] = _mm512_dpbf16_ps(sums[row][1], both, second);
        }
    } while (++pair < pairs);
}

// c[row, 0 … 32) (+)= the products of rows and a panel. `find_row(row)`: where a row begins.
template <int rows, class FindRow>
WITH_BF16 static inline void multiply(
    const FindRow& find_row, int64_t apart, const Bfloat16* panel, int64_t pairs, float* c, int64_t c_row, bool accumulate) {
    const Bfloat16* at[rows];
    __m512 sums[rows][2];
    for (int row = 0; row < rows; row++) {
        at[row] = find_row(row);
        for (int half = 0; half < 2; half++) {
            sums[row][half] = accumulate ? _mm512_loadu_ps(c + row * c_row + 16 * half) : _mm512_setzero_ps();
        }
    }
    accumulate_pairs<rows>(at, apart, panel, panel + PANEL_COLUMNS, 2 * PANEL_COLUMNS, pairs, sums);
    for (int row = 0; row < rows; row++) {
        for (int half = 0; half < 2; half++) {
            _mm512_storeu_ps(c + row * c_row + 16 * half, sums[row][half]);
        }
    }
}

// Prefetches channels of pixels a share at a time, so that the maps of the next block come from memory while
// the products of this one are computed.
class Ahead {
public:
    // `calls`: the number of calls of `fetch`.
    Ahead(const Bfloat16* const* pixels, int64_t count, int64_t first_channel, int64_t channels, int64_t calls)
        : pixels_(pixels), end_(pixels + count), first_(first_channel), channels_(channels),
          share_(count * ((channels + 31) / 32) / calls + 1) {}

    void fetch() {
        for (int64_t line = 0; line < share_ && pixels_ < end_; line++) {
            _mm_prefetch(reinterpret_cast<const char*>(*pixels_ + first_ + channel_), _MM_HINT_T1);
            if ((channel_ += 32) < channels_) continue;
            channel_ = 0;
            pixels_++;
        }
    }

private:
    const Bfloat16 *const *pixels_, *const *end_;
    int64_t first_, channels_, share_, channel_ = 0;
};

// Where the sum of a row and a column is in a block of sums that is `columns` wide, a multiple of 32. Tiles of
// 32 × 32 are contiguous: rows a power of two apart would share few sets of the caches.
static inline int64_t sum_place(int64_t row, int64_t column, int64_t columns) {
    return row / PANEL_COLUMNS * PANEL_COLUMNS * columns + column / PANEL_COLUMNS * PANEL_COLUMNS * PANEL_COLUMNS +
           row % PANEL_COLUMNS * PANEL_COLUMNS + column % PANEL_COLUMNS;
}

// Adds the products of two blocks of panels, `pairs` long, to a block of sums or, unless `accumulate`,
// begins it. `between` is called after each register tile, whose products take about 2,000 cycles.
template <class Between>
WITH_BF16 static inline void add_products(
    const Bfloat16* rows, int64_t row_panels, const Bfloat16* columns, int64_t column_panels, int64_t pairs,
    float* sums, bool accumulate, Between between) {
    constexpr int64_t TILE = GRADIENT_ROWS * PANEL_COLUMNS;
    for (int64_t block = 0; block < row_panels; block++) {
        for (int64_t panel = 0; panel < column_panels; panel++) {
            for (int64_t row = 0; row < PANEL_COLUMNS; row += GRADIENT_ROWS, sums += TILE) {
                // The sums that are read next, which do not fit the level-2 cache.
                for (int64_t line = 0; line < TILE; line += 16) {
                    _mm_prefetch(reinterpret_cast<const char*>(sums + TILE + line), _MM_HINT_T0);
                }
                const Bfloat16* first = rows + block * PANEL_VALUES + 2 * row;
                multiply<GRADIENT_ROWS>(
                    [&](int64_t r) { return first + 2 * r; }, 2 * PANEL_COLUMNS, columns + panel * PANEL_VALUES, pairs, sums,
                    PANEL_COLUMNS, accumulate);
                between();
            }
        }
    }
}
