// The weight gradient of grouped 3×3 convolutions with padding 1, from BF16 maps, in float32.
//
// For output channel o, channel i of its group and tap (ky, kx) it is the sum over images and pixels
//   w[o][ky][kx][i] = Σ gradient[y][x][o] * features[stride * y + ky - 1][stride * x + kx - 1][i],
// so pixels are the sum of a matrix product. Channels are taken in units of 32, one cache line of a
// pixel, in two blocks of 16. The product of a block of the gradient with a block of the features is
// one tile, of which the squares on the diagonal, one for each group, are kept.
//
// A "cell" is 64 bytes: two neighbouring pixels of 16 channels, channel by channel in pairs. Rows of
// pixels lie one after the other, `pitch` pixels apart, with zeros around each, so that a tap is one
// offset for all pixels. Features are packed once for each way of pairing pixels: a "plane". Where
// the gradient's padding is zero, features of a neighbouring row are multiplied by that zero.
//
// Maps are channels_last: [N, H, W, C].

#include "grouped_shape.h"
#include "tiles.h"

constexpr int64_t BLOCK = 16;            // channels of a block; a unit has two
constexpr int64_t CELL = 32;             // BF16 values of a cell
constexpr int64_t SUM_TILES = TAPS + 1;  // of a pair of blocks: the taps', and the bias's
constexpr int64_t SUM_VALUES = 256;      // float32 values of a tile

struct Maps {
    const Bfloat16* features;
    const Bfloat16* gradient;
};

// How the work is cut: a job has a range of units and a range of strips; a strip is some output rows.
struct Plan {
    GroupedShape shape;
    int64_t row_cells;                            // of a packed row
    Strips strips;
    int64_t units, unit_parts, strip_parts, job_units;
    int64_t planes, plane_cells, gradient_cells;  // of one block
    int64_t block_pairs;                          // of a unit: those that have groups in common

    int64_t packed_values() const { return 2 * (planes * plane_cells + gradient_cells) * CELL; }
    int64_t unit_sums() const { return block_pairs * SUM_TILES * SUM_VALUES; }
    int64_t job_bytes() const {
        return packed_values() * int64_t{sizeof(Bfloat16)} + job_units * unit_sums() * int64_t{sizeof(float)};
    }
};

static Plan make_plan(const GroupedShape& shape, int64_t threads) {
    const int64_t row_cells = (shape.out_width + 2) / 2;
    Plan plan{shape, row_cells, Strips(shape, 2 * row_cells)};
    plan.units = shape.channels / UNIT;
    // Of all ways to share units and strips among the threads, the one whose largest job is smallest; of equal
    // ones that with the most parts of the units, as parts of the strips have sums to be added at the end.
    plan.unit_parts = plan.strip_parts = 1;
    int64_t least = plan.units * plan.strips.count;
    for (int64_t parts = std::min(plan.units, threads); parts >= 1; parts--) {
        const int64_t others = std::min(threads / parts, plan.strips.count);
        const int64_t load = divided_up(plan.units, parts) * divided_up(plan.strips.count, others);
        if (load >= least) continue;
        least = load;
        plan.unit_parts = parts;
        plan.strip_parts = others;
    }
    plan.job_units = divided_up(plan.units, plan.unit_parts);
    plan.planes = shape.stride == 1 ? 2 : 6;
    // The last tile reads up to 16 cells further than the last row.
    plan.plane_cells = (plan.strips.rows + (shape.stride == 1 ? 2 : 1)) * plan.row_cells + TILE_PAIRS + 1;
    plan.gradient_cells = rounded_up(plan.strips.rows * plan.row_cells, TILE_PAIRS);
    plan.block_pairs = shape.group_width > BLOCK ? 4 : 2;
    return plan;
}

#if defined(__AVX512BW__)
// 32 channels of a pixel, in the order in which `store_pair` splits them into blocks.
using Line = __m512i;

static inline Line zero_line() { return _mm512_setzero_si512(); }

static inline Line load_line(const Bfloat16* from) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_loadu_si512(from));
}

// A pair of pixels as a cell of each block.
static inline void store_pair(Line first, Line second, Bfloat16* low, Bfloat16* high) {
    _mm512_storeu_si512(low, _mm512_unpacklo_epi16(first, second));
    _mm512_storeu_si512(high, _mm512_unpackhi_epi16(first, second));
}

// 16 cells [pair][channel] to a tile [channel][pair], in place.
static void transpose_cells(Bfloat16* cells) {
    __m512i rows[16];
    for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(cells + i * CELL);
    transpose(rows);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(cells + i * CELL, rows[i]);
}
#else
struct Line {
    Bfloat16 values[UNIT];
};

static inline Line zero_line() { return Line{}; }

static inline Line load_line(const Bfloat16* from) {
    Line line;
    std::memcpy(line.values, from, sizeof line.values);
    return line;
}

static inline void store_pair(const Line& first, const Line& second, Bfloat16* low, Bfloat16* high) {
    for (int64_t i = 0; i < BLOCK; i++) {
        low[2 * i] = first.values[i];
        low[2 * i + 1] = second.values[i];
        high[2 * i] = first.values[BLOCK + i];
        high[2 * i + 1] = second.values[BLOCK + i];
    }
}

static void transpose_cells(Bfloat16* cells) {
    for (int64_t row = 0; row < 16; row++) {
        for (int64_t column = 0; column < row; column++) {
            for (int64_t i = 0; i < 2; i++) {
                std::swap(cells[row * CELL + 2 * column + i], cells[column * CELL + 2 * row + i]);
            }
        }
    }
}
#endif

// A row of the features, with a zero before it and zeros after it, as cells. `row` is null above and
// below the map. `planes` [2 blocks] at this row of the first plane, the others `plane` values apart.
template <int stride>
static void pack_features_row(const Bfloat16* row, const Plan& plan, Bfloat16* const* planes, int64_t plane) {
    const int64_t width = plan.shape.in_width, channels = plan.shape.channels;
    const auto pixel = [=](int64_t place) {
        return row && place >= 1 && place <= width ? load_line(row + (place - 1) * channels) : zero_line();
    };
    Line before = pixel(0);
    for (int64_t cell = 0; cell < plan.row_cells; cell++) {
        Bfloat16 *low = planes[0] + cell * CELL, *high = planes[1] + cell * CELL;
        if (stride == 1) {
            const Line middle = pixel(2 * cell + 1), after = pixel(2 * cell + 2);
            store_pair(before, middle, low, high);
            store_pair(middle, after, low + plane, high + plane);
            before = after;
        } else {
            const Line middle = pixel(4 * cell + 2), after = pixel(4 * cell + 4);
            store_pair(before, middle, low, high);
            store_pair(pixel(4 * cell + 1), pixel(4 * cell + 3), low + plane, high + plane);
            store_pair(middle, after, low + 2 * plane, high + 2 * plane);
            before = after;
        }
    }
}

// Where a tap's first cell lies in a block's planes.
static int64_t tap_cell(const Plan& plan, int64_t ky, int64_t kx) {
    if (plan.shape.stride == 1) return (kx == 1 ? plan.plane_cells : 0) + ky * plan.row_cells + (kx == 2 ? 1 : 0);
    return ((ky & 1) * 3 + kx) * plan.plane_cells + (ky >> 1) * plan.row_cells;
}

static void pack_features(const Maps& maps, const Plan& plan, const Strip& strip, int64_t unit, Bfloat16* packed) {
    const GroupedShape& shape = plan.shape;
    const int64_t plane = plan.plane_cells * CELL, stride = shape.stride;
    const int64_t rows = stride * (strip.rows - 1) + 3;
    for (int64_t place = 0; place < rows; place++) {
        const int64_t y = stride * strip.row + place - 1;
        const Bfloat16* row = nullptr;
        if (y >= 0 && y < shape.in_height) {
            row = maps.features + (strip.image * shape.in_height + y) * shape.in_width * shape.channels + unit * UNIT;
        }
        const int64_t first_plane = stride == 1 ? 0 : place % 2 * 3;
        Bfloat16* low = packed + first_plane * plane + place / stride * plan.row_cells * CELL;
        Bfloat16* const blocks[2] = {low, low + plan.planes * plane};
        if (stride == 1) pack_features_row<1>(row, plan, blocks, plane);
        else pack_features_row<2>(row, plan, blocks, plane);
    }
}

// The gradient's rows as cells of both blocks, zero up to the last tile's end. Returns the tiles.
static int64_t pack_gradient(const Maps& maps, const Plan& plan, const Strip& strip, int64_t unit, Bfloat16* packed) {
    const GroupedShape& shape = plan.shape;
    const int64_t width = shape.out_width, channels = shape.channels;
    Bfloat16 *low = packed, *high = packed + plan.gradient_cells * CELL;
    for (int64_t y = strip.row; y < strip.row + strip.rows; y++) {
        const int64_t place = (strip.image * shape.out_height + y) * width * channels + unit * UNIT;
        const auto pixel = [&](int64_t x) {
            return x < width ? load_line(maps.gradient + place + x * channels) : zero_line();
        };
        for (int64_t cell = 0; cell < plan.row_cells; cell++, low += CELL, high += CELL) {
            store_pair(pixel(2 * cell), pixel(2 * cell + 1), low, high);
        }
    }
    const int64_t cells = strip.rows * plan.row_cells, tiles = divided_up(cells, TILE_PAIRS);
    std::fill(low, low + (tiles * TILE_PAIRS - cells) * CELL, Bfloat16{0});
    std::fill(high, high + (tiles * TILE_PAIRS - cells) * CELL, Bfloat16{0});
    return tiles;
}

// sums [tap] += gradient · features, and the last of `sums` += gradient · 1. Columns of taps that
// share a way of pairing pixels are taken together: six taps at once, then three.
template <typename Tiles>
static void multiply_tiles(const Bfloat16* gradient, const Bfloat16* const* taps, int64_t tiles, float* sums) {
    static const struct alignas(64) Ones {
        Bfloat16 values[TILE_VALUES];
        Ones() { std::fill(values, values + TILE_VALUES, Bfloat16{0x3f80}); }
    } ones;
    begin_sums<Tiles, 6>(sums, false);
    for (int64_t place = 0; place < tiles * TILE_VALUES; place += TILE_VALUES) {
        Tiles::template load<6>(gradient + place, 64);
        for_each<6>([&](auto tap) __attribute__((always_inline)) {
            Tiles::template load<7>(taps[tap] + place, 64);
            Tiles::template multiply<tap, 6, 7>();
        });
    }
    store_sums<Tiles, 6>(sums);
    sums += 6 * SUM_VALUES;
    begin_sums<Tiles, 4>(sums, false);
    Tiles::template load<4>(ones.values, 64);
    for (int64_t place = 0; place < tiles * TILE_VALUES; place += TILE_VALUES) {
        Tiles::template load<6>(gradient + place, 64);
        Tiles::template load<7>(taps[6] + place, 64);
        Tiles::template multiply<0, 6, 7>();
        Tiles::template load<5>(taps[7] + place, 64);
        Tiles::template multiply<1, 6, 5>();
        Tiles::template load<7>(taps[8] + place, 64);
        Tiles::template multiply<2, 6, 7>();
        Tiles::template multiply<3, 6, 4>();
    }
    store_sums<Tiles, 4>(sums);
}

#if defined(HAS_VECTOR_TILES)
// Adds to the sums [16][16] of three taps, for `rows` of the channels of each group, from channel `first` of it on. A
// lane is a channel of the features, so that no product is of two groups. The gradient's cells are not transposed.
template <int rows>
WITH_BF16 static void multiply_rows(
    const Bfloat16* gradient, const Bfloat16* const* taps, int64_t cells, int64_t first, int64_t width, float* sums) {
    __m512i channels[rows];  // of the gradient, by lane
    __m512 totals[rows][3];
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i groups = _mm512_andnot_si512(_mm512_set1_epi32(int32_t(width - 1)), lanes);  // their first channels
    const auto over_sums = [&](const auto& work) {
        for (int64_t group = 0; group < BLOCK; group += width) {
            const __mmask16 of_group = __mmask16(((1 << width) - 1) << group);
            for (int row = 0; row < rows; row++) {
                float* at = sums + (group + first + row) * BLOCK;
                for (int tap = 0; tap < 3; tap++, at += SUM_VALUES) work(at, of_group, totals[row][tap]);
            }
        }
    };
    for (int row = 0; row < rows; row++) {
        channels[row] = _mm512_add_epi32(groups, _mm512_set1_epi32(int32_t(first + row)));
        for (int tap = 0; tap < 3; tap++) totals[row][tap] = _mm512_setzero_ps();
    }
    over_sums([](const float* at, __mmask16 lanes, __m512& total) { total = _mm512_mask_loadu_ps(total, lanes, at); });
    for (int64_t place = 0; place < cells * CELL; place += CELL) {
        const __m512i line = _mm512_loadu_si512(gradient + place);
        __m512bh of_tap[3];
        for (int tap = 0; tap < 3; tap++) of_tap[tap] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(taps[tap] + place));
        for (int row = 0; row < rows; row++) {
            const __m512bh values = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi32(channels[row], line));
            for (int tap = 0; tap < 3; tap++) totals[row][tap] = _mm512_dpbf16_ps(totals[row][tap], values, of_tap[tap]);
        }
    }
    over_sums([](float* at, __mmask16 lanes, __m512 total) { _mm512_mask_storeu_ps(at, lanes, total); });
}

// As `multiply_tiles`. Groups of `width` channels, 16 at most.
WITH_BF16 static void multiply_cells(
    const Bfloat16* gradient, const Bfloat16* const* taps, int64_t cells, int64_t width, float* sums) {
    const auto multiply = width == 4 ? multiply_rows<4> : multiply_rows<8>;
    for (int64_t tap = 0; tap < TAPS; tap += 3, sums += 3 * SUM_VALUES) {
        for (int64_t row = 0; row < width; row += 8) multiply(gradient, taps + tap, cells, row, width, sums);
    }
    const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    __m512 total = _mm512_setzero_ps();
    for (int64_t place = 0; place < cells * CELL; place += CELL) {
        total = _mm512_dpbf16_ps(total, reinterpret_cast<__m512bh>(_mm512_loadu_si512(gradient + place)), ones);
    }
    float of_bias[BLOCK];
    _mm512_storeu_ps(of_bias, total);
    for (int64_t channel = 0; channel < BLOCK; channel++) sums[channel * BLOCK] += of_bias[channel];
}

template <typename Tiles>
constexpr bool TAKES_CELLS = std::is_same_v<Tiles, VectorTiles>;
#else
static void multiply_cells(const Bfloat16*, const Bfloat16* const*, int64_t, int64_t, float*) {}

template <typename Tiles>
constexpr bool TAKES_CELLS = false;
#endif

// The order in which `multiply_tiles` takes the taps' columns.
constexpr int64_t COLUMNS[3] = {0, 2, 1};

template <typename Tiles>
static void sum_strip(const Maps& maps, const Plan& plan, const Strip& strip, int64_t unit, Bfloat16* packed, float* sums) {
    const int64_t block_values = plan.planes * plan.plane_cells * CELL;
    Bfloat16* gradient = packed + 2 * block_values;
    pack_features(maps, plan, strip, unit, packed);
    const int64_t tiles = pack_gradient(maps, plan, strip, unit, gradient);
    for (int64_t tile = 0; !TAKES_CELLS<Tiles> && tile < tiles; tile++) {
        transpose_cells(gradient + tile * TILE_VALUES);
        transpose_cells(gradient + plan.gradient_cells * CELL + tile * TILE_VALUES);
    }
    for (int64_t pair = 0; pair < plan.block_pairs; pair++) {
        // Two pairs are a block with itself; four are each block with each.
        const int64_t output = plan.block_pairs == 2 ? pair : pair / 2, input = pair % 2;
        const Bfloat16* taps[TAPS];
        for (int64_t tap = 0; tap < TAPS; tap++) {
            taps[tap] = packed + input * block_values + tap_cell(plan, tap % 3, COLUMNS[tap / 3]) * CELL;
        }
        const Bfloat16* of_block = gradient + output * plan.gradient_cells * CELL;
        float* of_pair = sums + pair * SUM_TILES * SUM_VALUES;
        if constexpr (TAKES_CELLS<Tiles>) {
            multiply_cells(of_block, taps, strip.rows * plan.row_cells, std::min(plan.shape.group_width, BLOCK), of_pair);
        } else {
            multiply_tiles<Tiles>(of_block, taps, tiles, of_pair);
        }
    }
}

template <typename Tiles>
static void sum_job(const Maps& maps, const Plan& plan, int64_t job, char* scratch) {
    const int64_t unit_part = job % plan.unit_parts, strip_part = job / plan.unit_parts;
    const int64_t first_unit = plan.units * unit_part / plan.unit_parts;
    const int64_t last_unit = plan.units * (unit_part + 1) / plan.unit_parts;
    Bfloat16* packed = reinterpret_cast<Bfloat16*>(scratch);
    float* sums = reinterpret_cast<float*>(packed + plan.packed_values());
    std::memset(scratch, 0, plan.job_bytes());
    Tiles::begin();
    for (int64_t index = plan.strips.count * strip_part / plan.strip_parts; index < plan.strips.count * (strip_part + 1) / plan.strip_parts; index++) {
        const Strip strip = plan.strips.find(index);
        for (int64_t unit = first_unit; unit < last_unit; unit++) {
            sum_strip<Tiles>(maps, plan, strip, unit, packed, sums + (unit - first_unit) * plan.unit_sums());
        }
    }
    Tiles::end();
}

// Where in its unit's sums those of an output channel lie: its row of the tiles for an input block.
static int64_t sums_place(const Plan& plan, int64_t channel, int64_t block) {
    const int64_t output = channel / BLOCK % 2;
    const int64_t pair = plan.block_pairs == 2 ? output : 2 * output + block;
    return pair * SUM_TILES * SUM_VALUES + channel % BLOCK * BLOCK;
}

// Gather one output channel's gradients, summed over the jobs that share its unit.
static void write_channel(const Plan& plan, const char* scratch, int64_t channel, float* of_weight, float* of_bias) {
    const int64_t width = plan.shape.group_width, first = channel / width * width, unit = channel / UNIT;
    std::fill(of_weight + channel * TAPS * width, of_weight + (channel + 1) * TAPS * width, 0.0f);
    if (of_bias) of_bias[channel] = 0.0f;
    for (int64_t job = 0; job < plan.unit_parts * plan.strip_parts; job++) {
        const int64_t part = job % plan.unit_parts;
        const int64_t first_unit = plan.units * part / plan.unit_parts;
        if (unit < first_unit || unit >= plan.units * (part + 1) / plan.unit_parts) continue;
        const char* job_scratch = scratch + job * plan.job_bytes() + plan.packed_values() * sizeof(Bfloat16);
        const float* sums = reinterpret_cast<const float*>(job_scratch) + (unit - first_unit) * plan.unit_sums();
        for (int64_t input = 0; input < width; input += BLOCK) {
            const float* row = sums + sums_place(plan, channel, (first + input) / BLOCK % 2) + (first + input) % BLOCK;
            for (int64_t tap = 0; tap < TAPS; tap++, row += SUM_VALUES) {
                float* to = of_weight + (channel * TAPS + tap % 3 * 3 + COLUMNS[tap / 3]) * width + input;
                for (int64_t i = 0; i < std::min(width, BLOCK); i++) to[i] += row[i];
            }
        }
        if (of_bias) of_bias[channel] += sums[sums_place(plan, channel, 0) + TAPS * SUM_VALUES];
    }
}

extern "C" {

int64_t grouped_gradient_bytes(const GroupedShape* shape, int32_t threads) {
    const Plan plan = make_plan(*shape, threads);
    return plan.unit_parts * plan.strip_parts * plan.job_bytes();
}

// `of_weight` float32 [channels, 3, 3, group_width]; `of_bias` float32 [channels], or null.
void grouped_weight_gradient(
    const GroupedShape* shape, const Maps* maps, float* of_weight, float* of_bias, char* scratch, int32_t tiles,
    int32_t threads) {
    const Plan plan = make_plan(*shape, threads);
    const int64_t jobs = plan.unit_parts * plan.strip_parts;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static, 1)
        for (int64_t job = 0; job < jobs; job++) {
            char* job_scratch = scratch + job * plan.job_bytes();
            with_tiles(tiles, [&](auto kind) { sum_job<decltype(kind)>(*maps, plan, job, job_scratch); });
        }
#pragma omp for schedule(static)
        for (int64_t channel = 0; channel < plan.shape.channels; channel++) {
            write_channel(plan, scratch, channel, of_weight, of_bias);
        }
    }
}

}  // extern "C"
