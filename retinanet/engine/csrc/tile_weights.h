// Packs weights as the tiles that pixels are multiplied with: [16 pairs of summed channels][16 columns][2].
#pragma once

#include "tiles.h"

// From rows of a column each: 32 summed channels follow one another, columns are `step` apart.
static inline void pack_columns(const Bfloat16* weight, int64_t step, Bfloat16* tile) {
    for (int64_t column = 0; column < TILE_ROWS; column++) {
        uint32_t pairs[TILE_PAIRS];
        std::memcpy(pairs, weight + column * step, sizeof pairs);
        for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
            std::memcpy(tile + (pair * TILE_ROWS + column) * 2, pairs + pair, sizeof *pairs);
        }
    }
}

// From rows of a summed channel each: 16 columns follow one another, summed channels are `step` apart.
static inline void pack_rows(const Bfloat16* weight, int64_t step, Bfloat16* tile) {
    for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
        const Bfloat16 *even = weight + 2 * pair * step, *odd = even + step;
        for (int64_t column = 0; column < TILE_ROWS; column++) {
            tile[(pair * TILE_ROWS + column) * 2] = even[column];
            tile[(pair * TILE_ROWS + column) * 2 + 1] = odd[column];
        }
    }
}
