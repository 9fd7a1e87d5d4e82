// Weights of 1×1 and 3×3 convolutions, scaled, rounded to BF16 and packed as the tiles that pixels are
// multiplied with, for outputs and for input gradients at once: float32 weights are read once a step.
//
// A tile is [16 pairs of summed channels][16 columns][2]. They lie in the order in which they are
// read: [tiles of 16 columns][blocks of 32 summed channels][taps]. For outputs the columns are output
// channels; for input gradients they are input channels, and the taps go backwards.

#include "tiles.h"

struct Weights {
    const float* values;  // [outputs][taps][inputs]
    const float* scale;   // of each output, or none
    int64_t outputs, inputs, taps;
};

constexpr int64_t AHEAD = 4;  // blocks that are fetched before they are packed

// The 32 outputs × 32 inputs of a tap, rounded, with zeros where there are none.
static void round_block(const Weights& weights, int64_t output, int64_t input, int64_t tap, Bfloat16* block) {
    const int64_t rows = std::min(TILE_SUM, weights.outputs - output);
    const int64_t columns = std::min(TILE_SUM, weights.inputs - input);
    if (rows < TILE_SUM || columns < TILE_SUM) std::memset(block, 0, TILE_SUM * TILE_SUM * sizeof *block);
    for (int64_t row = 0; row < rows; row++) {
        const float* from = weights.values + ((output + row) * weights.taps + tap) * weights.inputs + input;
        const float scale = weights.scale ? weights.scale[output + row] : 1.0f;
        Bfloat16* to = block + row * TILE_SUM;
        // A later block's, as rows are far apart in memory.
        for (int64_t line = 0; line < TILE_SUM; line += 16) __builtin_prefetch(from + AHEAD * weights.taps * TILE_SUM + line);
        if (columns == TILE_SUM) {
            for (int64_t column = 0; column < TILE_SUM; column++) to[column] = rounded(from[column] * scale);
        } else {
            for (int64_t column = 0; column < columns; column++) to[column] = rounded(from[column] * scale);
        }
    }
}

// 16 rows of a block become columns: their values are summed.
static void pack_for_outputs(const Bfloat16* rows, Bfloat16* tile) {
#if defined(__AVX512BW__)
    __m512i columns[TILE_ROWS];
    for (int64_t column = 0; column < TILE_ROWS; column++) columns[column] = _mm512_loadu_si512(rows + column * TILE_SUM);
    transpose(columns);
    for (int64_t pair = 0; pair < TILE_PAIRS; pair++) _mm512_storeu_si512(tile + pair * TILE_ROWS * 2, columns[pair]);
#else
    for (int64_t column = 0; column < TILE_ROWS; column++) {
        uint32_t pairs[TILE_PAIRS];
        std::memcpy(pairs, rows + column * TILE_SUM, sizeof pairs);
        for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
            std::memcpy(tile + (pair * TILE_ROWS + column) * 2, pairs + pair, sizeof *pairs);
        }
    }
#endif
}

// 16 columns of a block stay columns: its rows are summed.
static void pack_for_gradients(const Bfloat16* block, Bfloat16* tile) {
#if defined(__AVX512BW__)
    const __m512i interleaved = interleaved_halves();
    for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
        const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2 * pair * TILE_SUM));
        const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + (2 * pair + 1) * TILE_SUM));
        const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
        _mm512_storeu_si512(tile + pair * TILE_ROWS * 2, _mm512_permutexvar_epi16(interleaved, both));
    }
#else
    for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
        const Bfloat16 *even = block + 2 * pair * TILE_SUM, *odd = even + TILE_SUM;
        for (int64_t column = 0; column < TILE_ROWS; column++) {
            tile[(pair * TILE_ROWS + column) * 2] = even[column];
            tile[(pair * TILE_ROWS + column) * 2 + 1] = odd[column];
        }
    }
#endif
}

extern "C" {

// Whether this process may use the processor's tiles.
int32_t tile_weights_permitted() { return tiles_permitted(); }

// Write `weights` times their scales, rounded, in the order in which they lie.
void tile_weights_round(const Weights* weights, Bfloat16* values, int32_t threads) {
    const int64_t row = weights->taps * weights->inputs;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t output = 0; output < weights->outputs; output++) {
        const float* from = weights->values + output * row;
        const float scale = weights->scale ? weights->scale[output] : 1.0f;
        for (int64_t place = 0; place < row; place++) values[output * row + place] = rounded(from[place] * scale);
    }
}

// Pack `weights`, float32 [outputs][taps][inputs] in memory, for outputs and, unless `for_gradients`
// is null, for input gradients: divided_up(outputs, 32) · divided_up(inputs, 32) · taps · 1024 values each.
void tile_weights_pack(const Weights* weights, Bfloat16* for_outputs, Bfloat16* for_gradients, int32_t threads) {
    const int64_t output_blocks = divided_up(weights->outputs, TILE_SUM);
    const int64_t input_blocks = divided_up(weights->inputs, TILE_SUM), taps = weights->taps;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t output = 0; output < output_blocks; output++) {
        for (int64_t input = 0; input < input_blocks; input++) {
            for (int64_t tap = 0; tap < taps; tap++) {
                Bfloat16 block[TILE_SUM * TILE_SUM];
                round_block(*weights, output * TILE_SUM, input * TILE_SUM, tap, block);
                // A block of 32 × 32 is two tiles each way, as tiles have 16 columns and 32 summed channels.
                for (int64_t half = 0; half < 2; half++) {
                    const int64_t forward = ((2 * output + half) * input_blocks + input) * taps + tap;
                    pack_for_outputs(block + half * TILE_ROWS * TILE_SUM, for_outputs + forward * TILE_VALUES);
                    if (!for_gradients) continue;
                    const int64_t backward = ((2 * input + half) * output_blocks + output) * taps + taps - 1 - tap;
                    pack_for_gradients(block + half * TILE_ROWS, for_gradients + backward * TILE_VALUES);
                }
            }
        }
    }
}

}  // extern "C"
