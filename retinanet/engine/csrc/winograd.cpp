// 3×3 convolutions of stride 1 and padding 1 in BF16, by Winograd's F(2×2, 3×3): 16 products for
// four output pixels where the direct form takes 36.
//
// Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.1:
//   Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A
// for a 4×4 tile d of the input, a 3×3 kernel g and a 2×2 tile Y of the output. The products over
// channels are 16 matrix products, one for each position of the 4×4 tile. Transforms and sums are
// float32; their operands are rounded to BF16 once. Maps are channels_last: [N, H, W, C]. Panels: see
// panel_products.h.

#include <numeric>
#include <omp.h>
#include <vector>

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include "levels.h"
#include "panel_products.h"

constexpr int POSITIONS = 16;
// Rows of a register tile: 12 rows × 2 vectors of sums, 2 vectors of the panel and one broadcast pair are 27
// of the 32 vector registers. A prefetch in the loop would push sums out of them, at half the speed.
constexpr int ROWS = 12;
constexpr int64_t TILES = 108;       // taken through all channels at once, a multiple of ROWS; 48 and 84 were slower
constexpr int64_t SUM_BLOCK = 256;   // input channels transformed at once
constexpr int64_t NARROW = 128;      // output channels at once, where the sum has one block
constexpr int64_t WIDE = 256;        // the same where it has several
// The time that the transform of an input takes, in that of products for so many outputs.
constexpr int64_t TRANSFORM = 16;
constexpr int64_t BEGINNING = 6;            // the time of a block's first reads, in that of so many tiles
constexpr int64_t AHEAD = 4;                // tiles that are fetched before they are read or written
constexpr int64_t GRADIENT_TILES = 160;     // taken through all channels of a weight gradient at once; SUMMED at most
constexpr int64_t GRADIENT_BLOCK = 1216;    // output channels of a weight gradient at once, at most; 512 was 6 % slower for 2376

struct Tile {
    const Level* level;
    int64_t image, y, x;  // of the output's upper left pixel
};

static int64_t count_tiles(const Level& level) {
    return level.images * ((level.height + 1) / 2) * ((level.width + 1) / 2);
}

static int64_t count_tiles(const Level* levels, int64_t level_count) {
    int64_t tiles = 0;
    for (int64_t level = 0; level < level_count; level++) tiles += count_tiles(levels[level]);
    return tiles;
}

static Tile find_tile(const Level* levels, int64_t index) {
    while (index >= count_tiles(*levels)) index -= count_tiles(*levels++);
    const int64_t columns = (levels->width + 1) / 2, rows = (levels->height + 1) / 2;
    return {levels, index / (rows * columns), index / columns % rows * 2, index % columns * 2};
}

static void find_tiles(const Level* levels, const int32_t* indices, int64_t count, Tile* tiles) {
    for (int64_t t = 0; t < count; t++) tiles[t] = find_tile(levels, indices[t]);
}

WITH_BF16 static inline __m256i rounded(__m512 values) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
}

// A pixel of a map [images, height, width, channels]. Outside of the map no lane is read.
struct Pixel {
    const Bfloat16* values;
    __mmask32 inside;
};

static inline Pixel find_pixel(const Bfloat16* map, const Tile& tile, int64_t row, int64_t column, int64_t channels) {
    const int64_t y = tile.y + row, x = tile.x + column, height = tile.level->height, width = tile.level->width;
    if (y < 0 || y >= height || x < 0 || x >= width) return {map, 0};
    return {map + ((tile.image * height + y) * width + x) * channels, 0xffffffff};
}

// The indices of the tiles that have values in a map `of_level(level)`, within their rows and columns `first` to
// `last`, and one tile at least. `at_empty` is called with the others.
template <int first, int last, class OfLevel, class Work>
static std::vector<int32_t> list_tiles_with_values(
    const Level* levels, int64_t level_count, int64_t channels, int32_t threads, const OfLevel& of_level, const Work& at_empty) {
    std::vector<int32_t> indices(count_tiles(levels, level_count));
    const int64_t tiles = indices.size();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t index = 0; index < tiles; index++) {
        const Tile tile = find_tile(levels, index);
        bool found = false;
        for (int row = first; row <= last && !found; row++) {
            for (int column = first; column <= last && !found; column++) {
                const Pixel pixel = find_pixel(of_level(*tile.level), tile, row, column, channels);
                found = pixel.inside && has_values(pixel.values, channels);
            }
        }
        indices[index] = found;
        if (!found) at_empty(tile);
    }
    int64_t count = 0;
    for (int64_t index = 0; index < tiles; index++) {
        if (indices[index]) indices[count++] = index;
    }
    indices.resize(std::max<int64_t>(count, 1));  // without any, the first one: its entry is 0
    return indices;
}

// Prefetches channels of a pixel, which come from memory or the level-3 cache. Inlined, since a call writes
// out the vector registers: convolutions took 5 % longer.
WITH_BF16 static inline __attribute__((always_inline)) void fetch(const Pixel& pixel, int64_t channel, int64_t count) {
    if (!pixel.inside) return;
    for (int64_t end = channel + count; channel < end; channel += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(pixel.values + channel), _MM_HINT_T0);
    }
}

// Every second of 32 values, from the first one on or the second.
template <int parity>
WITH_BF16 static inline __m512 widened(__m512i values) {
    return _mm512_castsi512_ps(parity ? _mm512_and_si512(values, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(values, 16));
}

// Row `place` of Bᵀ d takes these two rows of d.
constexpr int FIRST_ROW[] = {0, 1, 2, 1}, SECOND_ROW[] = {2, 2, 1, 3};

static inline void find_input_row(const Tile& tile, int64_t row, int64_t channels, Pixel* pixels) {
    for (int column = 0; column < 4; column++) pixels[column] = find_pixel(tile.level->input, tile, row - 1, column - 1, channels);
}

// 32 values of each pixel, zero outside of the map.
WITH_BF16 static inline void load_row(const Pixel* pixels, int columns, int64_t channel, __mmask32 lanes, __m512i* d) {
    for (int column = 0; column < columns; column++) {
        d[column] = _mm512_maskz_loadu_epi16(lanes & pixels[column].inside, pixels[column].values + channel);
    }
}

// Row `place` of Bᵀ d, times B, of every second channel; of d [4][4] only the two rows that it takes are read.
template <int place, int parity>
WITH_BF16 static inline void transform_input_row(const __m512i (*d)[4], __m512* v) {
    __m512 row[4];
    for (int column = 0; column < 4; column++) {
        const __m512 first = widened<parity>(d[FIRST_ROW[place]][column]), second = widened<parity>(d[SECOND_ROW[place]][column]);
        row[column] = place == 1 ? _mm512_add_ps(first, second) : _mm512_sub_ps(first, second);
    }
    v[0] = _mm512_sub_ps(row[0], row[2]);
    v[1] = _mm512_add_ps(row[1], row[2]);
    v[2] = _mm512_sub_ps(row[2], row[1]);
    v[3] = _mm512_sub_ps(row[1], row[3]);
}

// Row `place` of A dY, times Aᵀ, of every second channel; the first [2][2] of `pixels` are those of dY.
template <int place, int parity>
WITH_BF16 static inline void transform_gradient_row(const __m512i (*pixels)[4], __m512* z) {
    const __m512 zero = _mm512_setzero_ps();
    __m512 d[2];
    for (int column = 0; column < 2; column++) {
        const __m512 top = place == 3 ? zero : widened<parity>(pixels[0][column]);
        const __m512 bottom = place == 0 ? zero : widened<parity>(pixels[1][column]);
        d[column] = place == 1 ? _mm512_add_ps(top, bottom) : _mm512_sub_ps(top, bottom);
    }
    z[0] = d[0];
    z[1] = _mm512_add_ps(d[0], d[1]);
    z[2] = _mm512_sub_ps(d[0], d[1]);
    z[3] = _mm512_sub_ps(zero, d[1]);
}

// Aᵀ M A of a tile, plus the bias, rounded: `sums` [16, TILES, width] from `channel` on. Zero where the gate is closed.
WITH_BF16 static void write_outputs(
    const Tile& tile, const float* sums, int64_t width, int64_t channel, int64_t count, int64_t channels,
    const float* bias, bool relu) {
    const Level& level = *tile.level;
    const int64_t image = tile.image * level.height;
    for (int64_t first = 0; first < count; first += 16) {
        const __mmask16 lanes = first_lanes(count - first);
        __m512 half[2][4];
        for (int column = 0; column < 4; column++) {
            __m512 m[4];
            for (int row = 0; row < 4; row++) m[row] = _mm512_loadu_ps(sums + (4 * row + column) * TILES * width + first);
            half[0][column] = _mm512_add_ps(_mm512_add_ps(m[0], m[1]), m[2]);
            half[1][column] = _mm512_sub_ps(_mm512_sub_ps(m[1], m[2]), m[3]);
        }
        const __m512 shift = bias ? _mm512_maskz_loadu_ps(lanes, bias + channel + first) : _mm512_setzero_ps();
        for (int row = 0; row < 2; row++) {
            const __m512* m = half[row];
            __m512 pixels[2] = {
                _mm512_add_ps(_mm512_add_ps(m[0], m[1]), _mm512_add_ps(m[2], shift)),
                _mm512_add_ps(_mm512_sub_ps(m[1], m[2]), _mm512_sub_ps(shift, m[3]))};
            for (int column = 0; column < 2; column++) {
                const int64_t y = tile.y + row, x = tile.x + column;
                if (y >= level.height || x >= level.width) continue;
                // The comparison keeps NaN, as torch's ReLU does.
                const __mmask16 negative = relu ? _mm512_cmp_ps_mask(pixels[column], _mm512_setzero_ps(), _CMP_LT_OQ) : 0;
                const __m512 clamped = _mm512_mask_blend_ps(negative, pixels[column], _mm512_setzero_ps());
                const int64_t place = ((image + y) * level.width + x) * channels + channel + first;
                __m256i values = rounded(clamped);
                if (level.gate) {
                    const __m512i gates = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, level.gate + place));
                    values = _mm256_maskz_mov_epi16(static_cast<__mmask16>(open_lanes(gates)), values);
                }
                _mm256_mask_storeu_epi16(level.output + place, lanes, values);
            }
        }
    }
}

static void write_zeros(const Tile& tile, int64_t channels) {
    const int64_t height = tile.level->height, width = tile.level->width;
    const int64_t columns = std::min<int64_t>(2, width - tile.x);
    for (int64_t y = tile.y; y < std::min(height, tile.y + 2); y++) {
        std::fill_n(tile.level->output + ((tile.image * height + y) * width + tile.x) * channels, columns * channels, Bfloat16{});
    }
}

// The four positions of a row of a transformed tile, 32 channels of each.
template <int place>
WITH_BF16 static inline void fill_positions(const __m512i (*d)[4], Bfloat16* rows) {
    const __m512i interleaved = interleaved_halves();
    __m512 even[4], odd[4];
    transform_input_row<place, 0>(d, even);
    transform_input_row<place, 1>(d, odd);
    for (int position = 0; position < 4; position++) {
        const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd[position], even[position]));
        _mm512_storeu_si512(rows + (4 * place + position) * TILES * SUM_BLOCK, _mm512_permutexvar_epi16(interleaved, both));
    }
}

// Transformed tiles as rows [16, TILES, SUM_BLOCK]: channels `channel` … `channel + count` of `channels`.
WITH_BF16 static void fill_rows(
    const Tile* tiles, int64_t tile_count, int64_t channels, int64_t channel, int64_t count, Bfloat16* rows) {
    for (int64_t t = 0; t < rounded_up(tile_count, ROWS); t++) {
        Pixel pixels[4][4];
        if (t + AHEAD < tile_count) {
            const Tile& later = tiles[t + AHEAD];
            // The left half is the right one of the tile before, unless that was left out.
            for (int row = 0; row < 4; row++) {
                for (int column : {2, 3}) fetch(find_pixel(later.level->input, later, row - 1, column - 1, channels), channel, count);
            }
        }
        if (t < tile_count) {
            for (int row = 0; row < 4; row++) find_input_row(tiles[t], row, channels, pixels[row]);
        } else {
            std::fill(pixels[0], pixels[4], Pixel{tiles[0].level->input, 0});
        }
        Bfloat16* row = rows + t * SUM_BLOCK;
        for (int64_t first = 0; first < count; first += 32, row += 32) {
            const __mmask32 lanes = first_lanes(count - first);
            __m512i d[4][4];
            for (int of_tile = 0; of_tile < 4; of_tile++) load_row(pixels[of_tile], 4, channel + first, lanes, d[of_tile]);
            fill_positions<0>(d, row);
            fill_positions<1>(d, row);
            fill_positions<2>(d, row);
            fill_positions<3>(d, row);
        }
    }
}

// How a convolution is shared: blocks of `step` tiles × parts of the outputs.
struct ConvolutionPlan {
    int64_t tiles, step, part;  // part: outputs, but for the last one
    int64_t parts, items;
};

static ConvolutionPlan plan_convolution(int64_t tiles, int64_t inputs, int64_t outputs, int64_t threads) {
    ConvolutionPlan best{};
    // Small inputs in smaller blocks, so that every thread gets several.
    const int64_t most = std::min(TILES, rounded_up(divided_up(tiles, 4 * threads), ROWS));
    int64_t least = 0;
    for (int64_t step = most; 2 * step >= most; step -= ROWS) {
        const int64_t blocks = divided_up(tiles, step), rest = tiles - (blocks - 1) * step;
        // Each part transforms the tiles again, so there are several only where threads would wait.
        for (int64_t part = rounded_up(outputs, NARROW); part > 0; part -= NARROW) {
            const int64_t parts = divided_up(outputs, part), whole = (blocks - 1) * parts;
            const int64_t rounds = divided_up(whole, threads), is_longer = rounds * threads - whole < parts;
            const int64_t taken = rounds * (step + BEGINNING) + is_longer * (rest + BEGINNING);
            const int64_t transforms = inputs <= SUM_BLOCK ? 1 : divided_up(part, WIDE);
            const int64_t time = taken * (part + transforms * TRANSFORM);
            if (least == 0 || time < least) best = {tiles, step, part, parts, blocks * parts}, least = time;
        }
    }
    return best;
}

// One block of tiles through all channels, for outputs from `first_output` to `end`. Where the sum has one
// block (256 channels), the tiles are transformed once, and few outputs at a time keep the sums in the cache;
// where it has several, they are transformed again for each range of outputs, which is therefore wide.
WITH_BF16 static void convolve_block(
    const Level* levels, const int32_t* indices, int64_t tiles, int64_t inputs, int64_t outputs, int64_t first_output, int64_t end,
    const Bfloat16* panels, const float* bias, bool relu, Bfloat16* rows, float* sums) {
    const bool one_sum = inputs <= SUM_BLOCK;
    const int64_t width = one_sum ? NARROW : WIDE;
    const int64_t pairs = (inputs + 1) / 2;
    const int64_t panels_a_position = rounded_up(outputs, PANEL_COLUMNS) / PANEL_COLUMNS;
    Tile listed[TILES];
    find_tiles(levels, indices, tiles, listed);
    if (one_sum) fill_rows(listed, tiles, inputs, 0, inputs, rows);
    for (int64_t output = first_output; output < end; output += width) {
        const int64_t count = std::min(width, end - output);
        for (int64_t input = 0; input < inputs; input += SUM_BLOCK) {
            const int64_t summed = std::min(SUM_BLOCK, inputs - input);
            if (!one_sum) fill_rows(listed, tiles, inputs, input, summed, rows);
            // Lines of a panel for each of the row tiles that it is multiplied with.
            const int64_t row_tiles = (tiles + ROWS - 1) / ROWS, lines = (summed + 1) / 2 * 2 / row_tiles + 1;
            for (int position = 0; position < POSITIONS; position++) {
                for (int64_t column = 0; column < count; column += PANEL_COLUMNS) {
                    const int64_t panel = position * panels_a_position + (output + column) / PANEL_COLUMNS;
                    const bool is_last = column + PANEL_COLUMNS >= count;
                    const Bfloat16* next = panels + ((is_last ? panel - column / PANEL_COLUMNS + panels_a_position : panel + 1) * pairs + input / 2) * 64;
                    for (int64_t t = 0; t < tiles; t += ROWS, next += lines * 32) {
                        // A part of the next panel, while this one is multiplied: the sums of all
                        // positions and the rows fill the level-2 cache, and panels come from beyond.
                        for (int64_t line = 0; line < lines; line++) {
                            _mm_prefetch(reinterpret_cast<const char*>(next + line * 32), _MM_HINT_T1);
                        }
                        const Bfloat16* first = rows + (position * TILES + t) * SUM_BLOCK;
                        multiply<ROWS>(
                            [&](int64_t row) { return first + row * SUM_BLOCK; }, 2, panels + (panel * pairs + input / 2) * 64, (summed + 1) / 2,
                            sums + (position * TILES + t) * width + column, width, input > 0);
                    }
                }
            }
        }
        for (int64_t t = 0; t < tiles; t++) {
            if (t + AHEAD < tiles) {
                const Tile& later = listed[t + AHEAD];
                const Bfloat16* maps[] = {later.level->output, later.level->gate};
                for (const Bfloat16* map : maps) {
                    for (int pixel = 0; map && pixel < 4; pixel++) fetch(find_pixel(map, later, pixel / 2, pixel % 2, outputs), output, count);
                }
            }
            write_outputs(listed[t], sums + t * width, width, output, count, outputs, bias, relu);
        }
    }
}

// Values from one position's panels to the next one's; like PANEL_VALUES not a power of two.
static int64_t position_values(int64_t panels) { return panels * PANEL_VALUES + PANEL_COLUMNS * 2; }

// Calls `work` with the pixels that a row of a transformed tile is made of. Of the input's four columns two are
// the neighbours' as well, and left to them.
template <bool of_gradient, int place, typename Work>
WITH_BF16 static inline __attribute__((always_inline)) void over_pixels(const Tile& tile, int64_t channels, const Work& work) {
    for (int row = 0; row < 2; row++) {
        if (of_gradient && place == 3 * (1 - row)) continue;  // not read
        for (int column = 0; column < 2; column++) {
            const int y = of_gradient ? row : (row == 0 ? FIRST_ROW : SECOND_ROW)[place] - 1;
            const Level& level = *tile.level;
            work(find_pixel(of_gradient ? level.output : level.input, tile, y, column, channels));
        }
    }
}

// Lists the pixels that `count` tiles are made of, for prefetching; returns their number.
template <bool of_gradient, int place>
WITH_BF16 static int64_t list_pixels(const Tile* tiles, int64_t count, int64_t channels, const Bfloat16** pixels) {
    const Bfloat16** to = pixels;
    for (int64_t t = 0; t < count; t++) {
        over_pixels<of_gradient, place>(tiles[t], channels, [&](const Pixel& pixel) {
            if (pixel.inside) *to++ = pixel.values;
        });
    }
    return to - pixels;
}

// The four positions of a row of transformed tiles, as panels [4, panels, pairs of tiles, 32, 2].
// `totals`, for row 1 of gradients, which holds it: the sum over all pixels is added, by channel.
template <bool of_gradient, int place>
WITH_BF16 static void fill_panels(
    const Tile* tiles, int64_t count, int64_t channels, int64_t first_channel, int64_t panel_count, Bfloat16* panels,
    float* totals) {
    // Pairs of tiles, channel by channel: of the even channels' two halves, and of the odd ones'.
    const __m512i left = _mm512_set_epi16(
        55, 39, 23, 7, 54, 38, 22, 6, 53, 37, 21, 5, 52, 36, 20, 4, 51, 35, 19, 3, 50, 34, 18, 2, 49, 33, 17, 1, 48, 32, 16, 0);
    const __m512i right = _mm512_add_epi16(left, _mm512_set1_epi16(8));
    const int64_t position_step = position_values(panel_count);
    // A pair of tiles through all its channels, which are contiguous in memory.
    for (int64_t t = 0; t < count; t += 2) {
        Pixel pixels[2][4][4];  // of a gradient only [2][2][2]
        for (int which = 0; which < 2; which++) {
            const bool present = t + which < count;
            const Tile& tile = tiles[present ? t + which : t];
            if (of_gradient) {
                for (int row = 0; row < 2; row++) {
                    for (int column = 0; column < 2; column++) pixels[which][row][column] = find_pixel(tile.level->output, tile, row, column, channels);
                }
            } else {
                for (int row : {FIRST_ROW[place], SECOND_ROW[place]}) find_input_row(tile, row, channels, pixels[which][row]);
            }
            if (!present) for (auto& row : pixels[which]) for (Pixel& pixel : row) pixel.inside = 0;
        }
        for (int64_t later = t + AHEAD; later < std::min(count, t + AHEAD + 2); later++) {
            over_pixels<of_gradient, place>(tiles[later], channels, [&](const Pixel& pixel) WITH_BF16 __attribute__((always_inline)) {
                fetch(pixel, first_channel, panel_count * PANEL_COLUMNS);
            });
        }
        Bfloat16* pairs = panels + t * PANEL_COLUMNS;
        for (int64_t panel = 0; panel < panel_count; panel++, pairs += PANEL_VALUES) {
            const int64_t channel = first_channel + panel * PANEL_COLUMNS;
            const __mmask32 lanes = first_lanes(channels - channel);
            __m512 even[2][4], odd[2][4];
            for (int which = 0; which < 2; which++) {
                __m512i d[4][4];
                if (of_gradient) {
                    if (place != 3) load_row(pixels[which][0], 2, channel, lanes, d[0]);
                    if (place != 0) load_row(pixels[which][1], 2, channel, lanes, d[1]);
                    transform_gradient_row<place, 0>(d, even[which]);
                    transform_gradient_row<place, 1>(d, odd[which]);
                } else {
                    for (int row : {FIRST_ROW[place], SECOND_ROW[place]}) load_row(pixels[which][row], 4, channel, lanes, d[row]);
                    transform_input_row<place, 0>(d, even[which]);
                    transform_input_row<place, 1>(d, odd[which]);
                }
            }
            if (of_gradient && place == 1) {
                // Sums of the even channels, then of the odd ones.
                float* total = totals + panel * PANEL_COLUMNS;
                const __m512 of_even = _mm512_add_ps(even[0][1], even[1][1]), of_odd = _mm512_add_ps(odd[0][1], odd[1][1]);
                _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), of_even));
                _mm512_storeu_ps(total + 16, _mm512_add_ps(_mm512_loadu_ps(total + 16), of_odd));
            }
            for (int position = 0; position < 4; position++) {
                const __m512i of_even = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(even[1][position], even[0][position]));
                const __m512i of_odd = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd[1][position], odd[0][position]));
                Bfloat16* pair = pairs + position * position_step;
                _mm512_storeu_si512(pair, _mm512_permutex2var_epi16(of_even, left, of_odd));
                _mm512_storeu_si512(pair + 32, _mm512_permutex2var_epi16(of_even, right, of_odd));
            }
        }
    }
}

// How the work of a weight gradient is shared. An item is a block of output channels, a row of four
// positions and a part of the tiles; it shares nothing with the others. Panels that threads
// shared took up to 1.8 times as long on cores without a common cache.
struct GradientPlan {
    int64_t tiles, columns, blocks, block, parts, part_tiles, plane, thread_values;

    // Shares so many tiles among at most so many parts; each has some.
    void share(int64_t count, int64_t most_parts) {
        tiles = count;
        part_tiles = rounded_up(divided_up(count, most_parts), 2);
        parts = divided_up(count, part_tiles);
    }
};

static GradientPlan plan_gradient(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, int64_t threads) {
    GradientPlan plan{};
    plan.tiles = count_tiles(levels, level_count);
    plan.columns = rounded_up(inputs, PANEL_COLUMNS);
    plan.blocks = (outputs + GRADIENT_BLOCK - 1) / GRADIENT_BLOCK;
    plan.block = rounded_up((outputs + plan.blocks - 1) / plan.blocks, PANEL_COLUMNS);
    // Parts of the tiles cost memory, so: as few as keep all threads busy for most of the time.
    for (plan.parts = 1; plan.parts * GRADIENT_TILES < plan.tiles; plan.parts++) {
        const int64_t items = 4 * plan.blocks * plan.parts;
        if (10 * items >= 9 * rounded_up(items, threads)) break;
    }
    plan.share(plan.tiles, plan.parts);
    // Where small maps have too few parts, smaller blocks, though each transforms the inputs again.
    int64_t least = 0;
    for (int64_t block = plan.block; block > 0; block -= PANEL_COLUMNS) {
        const int64_t blocks = divided_up(outputs, block);
        const int64_t time = divided_up(4 * blocks * plan.parts, threads) * (block + TRANSFORM);
        if (least == 0 || time < least) plan.blocks = blocks, plan.block = block, least = time;
    }
    plan.plane = plan.blocks * plan.block * plan.columns;
    plan.thread_values = 4 * (position_values(plan.columns / PANEL_COLUMNS) + position_values(plan.block / PANEL_COLUMNS));
    return plan;
}

// One item: `sums` [4 positions, a plane apart], each [block, columns] in tiles, from tile `first_tile` to `end`.
template <int place>
WITH_BF16 static void sum_gradient(
    const Level* levels, const GradientPlan& plan, const int32_t* indices, int64_t first_tile, int64_t end, int64_t inputs,
    int64_t outputs, int64_t output, Bfloat16* scratch, float* sums, float* totals) {
    const int64_t input_panels = plan.columns / PANEL_COLUMNS;
    const int64_t gradient_panels = rounded_up(std::min(plan.block, outputs - output), PANEL_COLUMNS) / PANEL_COLUMNS;
    if (place == 1) std::fill(totals, totals + gradient_panels * PANEL_COLUMNS, 0.0f);
    Bfloat16* of_inputs = scratch;
    Bfloat16* of_gradients = scratch + 4 * position_values(input_panels);
    Tile blocks[2][GRADIENT_TILES], *tiles = blocks[0], *later = blocks[1];
    const Bfloat16 *input_pixels[4 * GRADIENT_TILES], *gradient_pixels[4 * GRADIENT_TILES];
    const int64_t calls = 4 * gradient_panels * input_panels * (PANEL_COLUMNS / GRADIENT_ROWS);
    find_tiles(levels, indices + first_tile, std::min(GRADIENT_TILES, end - first_tile), tiles);
    for (int64_t first = first_tile; first < end; first += GRADIENT_TILES, std::swap(tiles, later)) {
        const int64_t taken = std::min(GRADIENT_TILES, end - first);
        fill_panels<false, place>(tiles, taken, inputs, 0, input_panels, of_inputs, nullptr);
        fill_panels<true, place>(tiles, taken, outputs, output, gradient_panels, of_gradients, totals);
        const int64_t next = std::max<int64_t>(0, std::min(GRADIENT_TILES, end - first - GRADIENT_TILES));
        find_tiles(levels, indices + first + GRADIENT_TILES, next, later);
        Ahead of_input(input_pixels, list_pixels<false, place>(later, next, inputs, input_pixels), 0, inputs, calls);
        Ahead of_gradient(
            gradient_pixels, list_pixels<true, place>(later, next, outputs, gradient_pixels), output,
            std::min(plan.block, outputs - output), calls);
        for (int position = 0; position < 4; position++) {
            add_products(
                of_gradients + position * position_values(gradient_panels), gradient_panels,
                of_inputs + position * position_values(input_panels), input_panels, (taken + 1) / 2,
                sums + position * plan.plane, first > first_tile,
                [&] { of_input.fetch(), of_gradient.fetch(); });
        }
    }
}

// Gᵀ S G of 16 weights: the gradient of the 3×3 kernel; `sums` is [parts, 16, plane].
WITH_BF16 static inline void write_kernel_gradient(
    const float* sums, const GradientPlan& plan, float* gradient, int64_t inputs, __mmask16 lanes) {
    const __m512 half = _mm512_set1_ps(0.5f);
    __m512 rows[3][4];
    for (int column = 0; column < 4; column++) {
        __m512 s[4];
        for (int row = 0; row < 4; row++) {
            const float* of_part = sums + (4 * row + column) * plan.plane;
            s[row] = _mm512_loadu_ps(of_part);
            for (int64_t part = 1; part < plan.parts; part++) {
                s[row] = _mm512_add_ps(s[row], _mm512_loadu_ps(of_part += POSITIONS * plan.plane));
            }
        }
        const __m512 even = _mm512_mul_ps(half, _mm512_add_ps(s[1], s[2]));
        rows[0][column] = _mm512_add_ps(s[0], even);
        rows[1][column] = _mm512_mul_ps(half, _mm512_sub_ps(s[1], s[2]));
        rows[2][column] = _mm512_add_ps(even, s[3]);
    }
    for (int row = 0; row < 3; row++) {
        const __m512* s = rows[row];
        const __m512 even = _mm512_mul_ps(half, _mm512_add_ps(s[1], s[2]));
        _mm512_mask_storeu_ps(gradient + (3 * row) * inputs, lanes, _mm512_add_ps(s[0], even));
        _mm512_mask_storeu_ps(gradient + (3 * row + 1) * inputs, lanes, _mm512_mul_ps(half, _mm512_sub_ps(s[1], s[2])));
        _mm512_mask_storeu_ps(gradient + (3 * row + 2) * inputs, lanes, _mm512_add_ps(even, s[3]));
    }
}

// G g Gᵀ of 16 weights, `inputs` apart from kernel place to kernel place. `turned`: of the kernel
// turned by 180 degrees, which swaps the first and the last row and column. `next`: how far away the
// weights are that are taken next, which are fetched: packing took twice as long without.
WITH_BF16 static inline void transform_kernel(
    const float* kernel, int64_t inputs, int64_t next, __mmask16 lanes, bool turned, __m256i* u) {
    const __m512 half = _mm512_set1_ps(0.5f);
    __m512 rows[4][3];
    for (int column = 0; column < 3; column++) {
        __m512 g[3];
        for (int row = 0; row < 3; row++) {
            const float* from = kernel + (3 * row + column) * inputs;
            g[row] = _mm512_maskz_loadu_ps(lanes, from);
            _mm_prefetch(reinterpret_cast<const char*>(from + next), _MM_HINT_T0);
        }
        const __m512 even = _mm512_add_ps(g[0], g[2]);
        rows[0][column] = g[0];
        rows[1][column] = _mm512_mul_ps(half, _mm512_add_ps(even, g[1]));
        rows[2][column] = _mm512_mul_ps(half, _mm512_sub_ps(even, g[1]));
        rows[3][column] = g[2];
    }
    for (int row = 0; row < 4; row++) {
        const __m512* g = rows[row];
        const __m512 even = _mm512_add_ps(g[0], g[2]);
        const int to = 4 * (turned && (row == 0 || row == 3) ? 3 - row : row);
        u[to + (turned ? 3 : 0)] = rounded(g[0]);
        u[to + 1] = rounded(_mm512_mul_ps(half, _mm512_add_ps(even, g[1])));
        u[to + 2] = rounded(_mm512_mul_ps(half, _mm512_sub_ps(even, g[1])));
        u[to + (turned ? 0 : 3)] = rounded(g[2]);
    }
}

constexpr int64_t PACKED = 32;  // values along the sum that are packed at once, 16 pairs

// Panels of the forward pass: sums run over `inputs`, columns are outputs; for 32 outputs and 32 inputs.
WITH_BF16 static void pack_forward(
    const float* weight, int64_t outputs, int64_t inputs, int64_t panel, int64_t input, int64_t panels_a_position, Bfloat16* panels) {
    const int64_t pairs = (inputs + 1) / 2, taken = std::min(PACKED / 2, pairs - input / 2);
    for (int half = 0; half < 2; half++) {
        __m512i rows[POSITIONS][16];  // columns of pairs, until they are transposed
        for (int column = 0; column < 16; column++) {
            const int64_t output = panel * PANEL_COLUMNS + 16 * half + column;
            __m256i u[2][POSITIONS];
            for (int which = 0; which < 2; which++) {
                const int64_t first = input + 16 * which;
                const __mmask16 lanes = output < outputs ? first_lanes(inputs - first) : 0;
                transform_kernel(weight + output * 9 * inputs + first, inputs, PACKED, lanes, false, u[which]);
            }
            for (int position = 0; position < POSITIONS; position++) {
                rows[position][column] = _mm512_inserti64x4(_mm512_castsi256_si512(u[0][position]), u[1][position], 1);
            }
        }
        for (int position = 0; position < POSITIONS; position++) {
            transpose(rows[position]);
            Bfloat16* to = panels + ((position * panels_a_position + panel) * pairs + input / 2) * 64 + 32 * half;
            for (int64_t pair = 0; pair < taken; pair++) _mm512_storeu_si512(to + pair * 64, rows[position][pair]);
        }
    }
}

// Panels of the backward pass: sums run over `outputs`, columns are inputs; for 32 inputs and 32 outputs.
WITH_BF16 static void pack_backward(
    const float* weight, int64_t outputs, int64_t inputs, int64_t panel, int64_t first, int64_t panels_a_position, Bfloat16* panels) {
    const int64_t pairs = (outputs + 1) / 2;
    for (int64_t pair = first / 2; pair < std::min((first + PACKED) / 2, pairs); pair++) {
        for (int half = 0; half < 2; half++) {
            const int64_t input = panel * PANEL_COLUMNS + 16 * half;
            __m256i u[2][POSITIONS];
            for (int which = 0; which < 2; which++) {
                const int64_t output = 2 * pair + which;
                const __mmask16 lanes = output < outputs ? first_lanes(inputs - input) : 0;
                transform_kernel(weight + output * 9 * inputs + input, inputs, 18 * inputs, lanes, true, u[which]);
            }
            for (int position = 0; position < POSITIONS; position++) {
                const __m512i low = _mm512_cvtepu16_epi32(u[0][position]);
                const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(u[1][position]), 16);
                Bfloat16* to = panels + ((position * panels_a_position + panel) * pairs + pair) * 64 + 32 * half;
                _mm512_storeu_si512(to, _mm512_or_si512(low, high));
            }
        }
    }
}

extern "C" {

// Values of BF16 that `winograd_pack` fills: sums run over `summed`, columns are `columns`.
int64_t winograd_panel_values(int64_t summed, int64_t columns) {
    return POSITIONS * rounded_up(columns, PANEL_COLUMNS) * ((summed + 1) / 2) * 2;
}

// Bytes of scratch memory a thread of `winograd_convolve` needs.
int64_t winograd_thread_bytes() {
    return POSITIONS * TILES * (SUM_BLOCK * int64_t{sizeof(Bfloat16)} + WIDE * int64_t{sizeof(float)});
}

// Bytes of scratch memory `winograd_weight_gradient` needs, for all threads together.
int64_t winograd_gradient_bytes(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, int32_t threads) {
    const GradientPlan plan = plan_gradient(levels, level_count, inputs, outputs, threads);
    return plan.parts * (POSITIONS * plan.plane + plan.blocks * plan.block) * int64_t{sizeof(float)} + threads * plan.thread_values * int64_t{sizeof(Bfloat16)};
}

// `weight` float32 [outputs, 3, 3, inputs] in memory, to the panels of the forward pass, or of the
// backward pass to the input.
WITH_BF16 void winograd_pack(
    const float* weight, int64_t outputs, int64_t inputs, int32_t backward, Bfloat16* panels, int32_t threads) {
    const int64_t count = divided_up(backward ? inputs : outputs, PANEL_COLUMNS), summed = backward ? outputs : inputs;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < count; panel++) {
        for (int64_t first = 0; first < summed; first += PACKED) {
            if (backward) pack_backward(weight, outputs, inputs, panel, first, count, panels);
            else pack_forward(weight, outputs, inputs, panel, first, count, panels);
        }
    }
}

// Each level's output from its input: [N, H, W, inputs] to [N, H, W, outputs]. Without a bias it is zero where the
// input is, and not computed there.
WITH_BF16 void winograd_convolve(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, const Bfloat16* panels,
    const float* bias, int32_t relu, char* scratch, int32_t threads) {
    std::vector<int32_t> indices;
    if (bias) {
        indices.resize(count_tiles(levels, level_count));
        std::iota(indices.begin(), indices.end(), 0);
    } else {
        indices = list_tiles_with_values<-1, 2>(
            levels, level_count, inputs, threads, [](const Level& level) { return level.input; },
            [&](const Tile& tile) { write_zeros(tile, outputs); });
    }
    const ConvolutionPlan plan = plan_convolution(indices.size(), inputs, outputs, threads);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = 0; item < plan.items; item++) {
        const int64_t first = item / plan.parts * plan.step, output = item % plan.parts * plan.part;
        char* thread_scratch = scratch + winograd_thread_bytes() * omp_get_thread_num();
        float* sums = reinterpret_cast<float*>(thread_scratch);
        Bfloat16* rows = reinterpret_cast<Bfloat16*>(sums + POSITIONS * TILES * WIDE);
        convolve_block(
            levels, indices.data() + first, std::min(plan.step, plan.tiles - first), inputs, outputs, output, std::min(output + plan.part, outputs),
            panels, bias, relu != 0, rows, sums);
    }
}

// The gradients of the weight, float32 [outputs, 3, 3, inputs] in memory, and of the bias [outputs]; a
// level's `output` is the gradient of what `winograd_convolve` wrote there.
WITH_BF16 void winograd_weight_gradient(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, float* gradient, float* bias_gradient,
    char* scratch, int32_t threads) {
    const std::vector<int32_t> indices = list_tiles_with_values<0, 1>(
        levels, level_count, outputs, threads, [](const Level& level) { return level.output; }, [](const Tile&) {});
    GradientPlan plan = plan_gradient(levels, level_count, inputs, outputs, threads);
    plan.share(indices.size(), plan.parts);
    const decltype(&sum_gradient<0>) of_place[] = {sum_gradient<0>, sum_gradient<1>, sum_gradient<2>, sum_gradient<3>};
    float* sums = reinterpret_cast<float*>(scratch);
    float* totals = sums + plan.parts * POSITIONS * plan.plane;  // [parts, blocks * block]: the bias's gradients
    Bfloat16* panels = reinterpret_cast<Bfloat16*>(totals + plan.parts * plan.blocks * plan.block);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t block = 0; block < plan.blocks; block++) {
            for (int64_t part = 0; part < plan.parts; part++) {
                for (int place = 0; place < 4; place++) {
                    const int64_t first = part * plan.part_tiles, output = block * plan.block;
                    of_place[place](
                        levels, plan, indices.data(), first, std::min(plan.tiles, first + plan.part_tiles), inputs, outputs, output,
                        panels + omp_get_thread_num() * plan.thread_values,
                        sums + (part * POSITIONS + 4 * place) * plan.plane + output * plan.columns,
                        totals + part * plan.blocks * plan.block + output);
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t output = 0; output < outputs; output++) {
            bias_gradient[output] = 0.0f;
            // A panel's even channels are first, see fill_panels.
            const float* total = totals + output / PANEL_COLUMNS * PANEL_COLUMNS + output % 2 * 16 + output % PANEL_COLUMNS / 2;
            for (int64_t part = 0; part < plan.parts; part++) bias_gradient[output] += total[part * plan.blocks * plan.block];
            for (int64_t input = 0; input < inputs; input += 16) {
                write_kernel_gradient(
                    sums + sum_place(output, input, plan.columns), plan, gradient + output * 9 * inputs + input, inputs,
                    first_lanes(inputs - input));
            }
        }
    }
}

}  // extern "C"
#endif
