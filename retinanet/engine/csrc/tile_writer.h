// Writes the float32 sums of a convolution's tiles as BF16 pixels, between the tile instructions.
#pragma once

#include "tiles.h"

constexpr int64_t COLUMNS = 32;  // output channels that are written together: two tiles, a cache line

// Where the results of a call go, and what becomes of the sums on the way: the bias and `added` are
// added, then comes ReLU, and where `gate` is closed the result is zero.
struct Target {
    Bfloat16* output;       // [pixels][outputs]
    const Bfloat16* added;  // none, or of the output's shape
    const Bfloat16* gate;   // none, or of the output's shape and what a ReLU returned
    const float* bias;      // none, or [outputs]
    bool relu;
    int64_t outputs;

    // The same from a channel on, and without what is not there for a channel.
    Target from(int64_t channel) const {
        const auto moved = [&](auto map) { return map ? map + channel : nullptr; };
        return {output + channel, moved(added), moved(gate), moved(bias), relu, outputs - channel};
    }

    // Fetches what is read and written of the pixel at `place`, to a cache: the nearest is 3.
    template <int locality>
    inline __attribute__((always_inline)) void fetch(int64_t place) const {
        __builtin_prefetch(output + place, 1, locality);
        if (gate) __builtin_prefetch(gate + place, 0, locality);
        if (added) __builtin_prefetch(added + place, 0, locality);
    }

#if defined(HAS_VECTOR_TILES)
    // Writes 32 sums, to which the bias is added already, with the rounding of AVX-512 BF16, which every
    // processor with tiles has.
    inline __attribute__((always_inline)) void write_line(__m512 low, __m512 high, int64_t place) const {
        if (added) {
            const __m512i others = _mm512_loadu_si512(added + place);
            low = _mm512_add_ps(low, widened(_mm512_castsi512_si256(others)));
            high = _mm512_add_ps(high, widened(_mm512_extracti64x4_epi64(others, 1)));
        }
        if (relu) low = positive(low), high = positive(high);
        __m512i results;
        asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(results) : "v"(high), "v"(low));
        if (gate) results = _mm512_maskz_mov_epi16(open_lanes(_mm512_loadu_si512(gate + place)), results);
        _mm512_storeu_si512(output + place, results);
    }
#endif
};

// Writes sums [pixels][32 outputs], one pixel at each step. It has steps, and no loop, so that its caller
// can put them between tile instructions, which leave the other units of the core idle.
struct Writer {
    const float* sums;
    const int64_t* places;  // of each pixel in the maps, negative for padding; `ahead` more behind the last
    int64_t pixels = 0, pixel = 0;  // how many, and the next one
    int64_t ahead;  // the memory of the pixel that many places later is prefetched now
    Target target;  // from the first of the 32 on
    int64_t count;  // of real outputs
    float bias[COLUMNS];

    Writer() = default;

    Writer(const Target& of_all, int64_t channel, const float* sums, const int64_t* places, int64_t pixels, int64_t ahead)
        : sums(sums), places(places), pixels(pixels), ahead(ahead), target(of_all.from(channel)),
          count(std::min(COLUMNS, target.outputs)), bias{} {
        if (target.bias) std::memcpy(bias, target.bias, count * sizeof *bias);
    }

    template <typename Tiles>
    inline __attribute__((always_inline)) void step() {
        if (pixel >= pixels) return;
        const int64_t place = places[pixel];
        const float* values = sums + pixel * COLUMNS;
        target.fetch<2>(std::max<int64_t>(places[pixel++ + ahead], 0));
        if (place < 0) return;
#if defined(HAS_VECTOR_TILES)
        if (count == COLUMNS && !std::is_same_v<Tiles, EmulatedTiles>) {
            const __m512 low = _mm512_add_ps(_mm512_loadu_ps(values), _mm512_loadu_ps(bias));
            return target.write_line(low, _mm512_add_ps(_mm512_loadu_ps(values + 16), _mm512_loadu_ps(bias + 16)), place);
        }
#endif
        write(values, place);
    }

    inline __attribute__((always_inline)) void write(const float* values, int64_t place) const {
        Bfloat16 others[COLUMNS] = {}, results[COLUMNS];
        float totals[COLUMNS];
        for (int64_t column = 0; column < COLUMNS; column++) totals[column] = values[column] + bias[column];
        if (target.added) {
            std::memcpy(others, target.added + place, count * sizeof *others);
            for (int64_t column = 0; column < COLUMNS; column++) totals[column] += widened(others[column]);
        }
        for (int64_t column = 0; column < COLUMNS; column++) {
            const float value = totals[column];
            results[column] = rounded(target.relu && value < 0.0f ? 0.0f : value);  // NaN stays, as in torch
        }
        if (target.gate) {
            std::memcpy(others, target.gate + place, count * sizeof *others);
            for (int64_t column = 0; column < COLUMNS; column++) {
                results[column] = is_open(others[column]) ? results[column] : Bfloat16{0};
            }
        }
        std::memcpy(target.output + place, results, count * sizeof *results);
    }

    template <typename Tiles>
    void finish() {
        while (pixel < pixels) step<Tiles>();
    }
};
