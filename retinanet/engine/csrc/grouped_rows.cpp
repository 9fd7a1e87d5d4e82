// Grouped 3×3 convolutions with padding 1, and the gradients of their inputs, by AVX-512 BF16.
//
// A unit is 32 channels, one cache line of a pixel. Its sums are two vectors whose lanes are output channels.
// A "step" multiplies each lane by one pair of input channels of the lane's own group, so all lanes are useful,
// and a group has as many steps as pairs. Where a group is narrower than a vector, one permutation of the
// pixel's line gives every lane its pair; else all lanes of a vector have the same pair, which is broadcast.
// The sums of several neighbouring pixels stay in registers: a step's six weight vectors (three taps of a row ×
// two vectors) serve all of them, and an input pixel serves its three taps.
//
// Three patterns of taps: convolutions of stride 1 (also input gradients, with the weight turned round) and 2,
// and input gradients of stride 2, where a gradient's pixel reaches three of a row's columns.
//
// Maps are channels_last: [N, H, W, C]. Pixels outside of them are not read.

#include <type_traits>
#include <utility>

#include "grouped_shape.h"

#if defined(__AVX512BW__)
constexpr int LANES = 16;  // of a vector of sums; a unit has two
constexpr int STEP_VALUES = 6 * 2 * LANES;  // weights of a step: [tap of a row][vector][lane][2]

// How taps lie. A block has some columns of results and begins at a multiple of SPREAD. Tap kx of its input pixel j
// adds to its column `target`, if there is one; `first` is where its first input pixel is.
struct Convolution1 {
    static constexpr int SPREAD = 1;
    static constexpr int inputs(int columns) { return columns + 2; }
    static constexpr int target(int j, int kx) { return j - kx; }
    static int64_t first(int64_t column) { return column - 1; }
};
struct Convolution2 {
    static constexpr int SPREAD = 1;
    static constexpr int inputs(int columns) { return 2 * columns + 1; }
    static constexpr int target(int j, int kx) { return j < kx || (j - kx) % 2 ? -1 : (j - kx) / 2; }
    static int64_t first(int64_t column) { return 2 * column - 1; }
};
struct Gradient2 {
    static constexpr int SPREAD = 2;
    static constexpr int inputs(int columns) { return columns / 2 + 1; }
    static constexpr int target(int j, int kx) { return 2 * j + kx - 1; }
    static int64_t first(int64_t column) { return column / 2; }
};

struct Task {
    const GroupedShape& shape;
    const ConvolutionMaps& maps;
    const Bfloat16* weights;  // as `pack_weight` lays them out, unit by unit
    const float* bias;        // [unit][vector][lane]
    bool backward;
    int64_t source_height, source_width, result_height, result_width;
};

// A row of the result and what it is computed from; pointers are to the first channel of the first pixel.
struct Row {
    int64_t source_count, ahead_count;
    const Bfloat16* sources[3];
    const Bfloat16* weights[3];  // of each source's taps, in the first unit
    const Bfloat16* ahead[3];    // sources of the next row that this one does not have
    Bfloat16* result;
    const Bfloat16* gate;
};

alignas(64) static const Bfloat16 ZEROS[UNIT] = {};  // a pixel outside of the map

static constexpr int64_t unit_weights(int64_t group_width) { return UNIT * TAPS * group_width; }

// The channel of its unit that a lane of a vector sums.
static constexpr int64_t lane_channel(int64_t group_width, int64_t vector, int64_t lane) {
    return group_width == LANES ? LANES * vector + lane : 2 * lane + vector;
}

// Which pair of its group a lane multiplies in a step.
static constexpr int64_t lane_pair(int64_t group_width, int64_t lane, int64_t step) {
    return group_width < LANES ? (lane ^ step) % (group_width / 2) : step;
}

// What the two vectors multiply in a step, from a pixel's line.
template <int width>
WITH_BF16 static inline __attribute__((always_inline)) void load_pairs(
    const Bfloat16* pixel, int64_t step, __m512i order, __m512bh* pairs) {
    if constexpr (width < LANES) {
        pairs[0] = pairs[1] = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi32(order, _mm512_loadu_si512(pixel)));
    } else {
        for (int vector = 0; vector < (width == LANES ? 2 : 1); vector++) {
            __m512i both;  // in assembly: the compiler would broadcast again for each product
            asm("vpbroadcastd %1, %0" : "=v"(both) : "m"(*reinterpret_cast<const int32_t*>(pixel + vector * LANES + 2 * step)));
            pairs[vector] = reinterpret_cast<__m512bh>(both);
        }
        if constexpr (width > LANES) pairs[1] = pairs[0];
    }
}

// Round the sums to BF16 and write them in the order of the channels.
template <int width, int columns>
WITH_BF16 static inline __attribute__((always_inline)) void write_columns(
    const Task& task, const Row& row, int64_t x, int64_t channel, const __m512 (*sums)[2]) {
    alignas(64) static const struct Order {
        uint16_t place[UNIT];
        Order() {
            for (int i = 0; i < UNIT; i++) place[lane_channel(width, i / LANES, i % LANES)] = static_cast<uint16_t>(i);
        }
    } order;
    const __m512i places = _mm512_load_si512(order.place);
    const int64_t channels = task.shape.channels, count = task.result_width - x;
#pragma GCC unroll 10
    for (int column = 0; column < columns; column++) {
        if (column >= count) break;  // an input gradient of stride 2 may have an odd number of columns
        const int64_t place = (x + column) * channels + channel;
        __m512 low = sums[column][0], high = sums[column][1];
        if (task.maps.relu) low = positive(low), high = positive(high);
        __m512i line = _mm512_permutexvar_epi16(places, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
        if (row.gate) line = _mm512_maskz_mov_epi16(open_lanes(_mm512_loadu_si512(row.gate + place)), line);
        // Past the caches: nothing is read back soon, and the line need not be fetched first.
        _mm512_stream_si512(reinterpret_cast<__m512i*>(row.result + place), line);
    }
}

// Fetch what the next row reads where this one is computed, which halves the time of large maps.
static inline __attribute__((always_inline)) void prefetch(
    const Task& task, const Row& row, int64_t first_input, int64_t inputs, int64_t x, int64_t columns, int64_t channel) {
    const int64_t channels = task.shape.channels;
    for (int64_t index = 0; index < row.ahead_count; index++) {
        const Bfloat16* ahead = row.ahead[index] + std::max<int64_t>(first_input, 0) * channels + channel;
        for (int64_t j = 0; j < inputs; j++) __builtin_prefetch(ahead + j * channels, 0, 2);
    }
    if (!row.gate) return;
    const Bfloat16* gate = row.gate + (task.result_width + x) * channels + channel;
    for (int64_t column = 0; column < columns; column++) __builtin_prefetch(gate + column * channels, 0, 2);
}

// A unit's results in `columns` columns of a row, from all taps.
template <typename Pattern, int width, int columns>
WITH_BF16 static void compute_block(const Task& task, const Row& row, int64_t x, int64_t channel) {
    constexpr int INPUTS = Pattern::inputs(columns), STEPS = width / 2;
    const int64_t channels = task.shape.channels, first = Pattern::first(x);
    prefetch(task, row, first, INPUTS, x, columns, channel);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 sums[columns][2];
#pragma GCC unroll 10
    for (int column = 0; column < columns; column++) {
        sums[column][0] = _mm512_loadu_ps(task.bias + channel);
        sums[column][1] = _mm512_loadu_ps(task.bias + channel + LANES);
    }
    for (int64_t index = 0; index < row.source_count; index++) {
        const Bfloat16* pixels = row.sources[index] + first * channels + channel;
        const Bfloat16* left = first < 0 ? ZEROS : pixels;
        const Bfloat16* right = first + INPUTS > task.source_width ? ZEROS : pixels + (INPUTS - 1) * channels;
        const Bfloat16* weights = row.weights[index] + channel / UNIT * unit_weights(width);
        for (int64_t step = 0; step < STEPS; step++, weights += STEP_VALUES) {
            const __m512i order = _mm512_xor_si512(lanes, _mm512_set1_epi32(static_cast<int>(step)));
            __m512bh factors[3][2];
#pragma GCC unroll 3
            for (int kx = 0; kx < 3; kx++) {
                factors[kx][0] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + kx * 2 * UNIT));
                factors[kx][1] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + kx * 2 * UNIT + UNIT));
            }
            const Bfloat16* pixel = pixels;
#pragma GCC unroll 32
            for (int j = 0; j < INPUTS; j++, pixel += channels) {
                __m512bh pairs[2];
                load_pairs<width>(j == 0 ? left : j == INPUTS - 1 ? right : pixel, step, order, pairs);
#pragma GCC unroll 3
                for (int kx = 0; kx < 3; kx++) {
                    const int column = Pattern::target(j, kx);
                    if (column < 0 || column >= columns) continue;
                    sums[column][0] = _mm512_dpbf16_ps(sums[column][0], factors[kx][0], pairs[0]);
                    sums[column][1] = _mm512_dpbf16_ps(sums[column][1], factors[kx][1], pairs[1]);
                }
            }
        }
    }
    write_columns<width, columns>(task, row, x, channel, sums);
}

// The weights of a unit, [row of taps][step][tap of the row][vector][lane][2]; `weight` is [channels, 3, 3, group_width].
WITH_BF16 static void pack_weight(const Bfloat16* weight, const GroupedShape& shape, int64_t unit, bool backward, Bfloat16* packed) {
    const int64_t width = shape.group_width, steps = width / 2;
    for (int64_t step = 0; step < steps; step++) {
        for (int64_t vector = 0; vector < 2; vector++) {
            // Of each lane's first value for the first tap: the word that has it, and where in the word.
            alignas(64) int32_t words[LANES], shifts[LANES];
            for (int64_t lane = 0; lane < LANES; lane++) {
                const int64_t channel = lane_channel(width, vector, lane), within = channel % width;
                const int64_t pair = 2 * lane_pair(width, lane, step);
                const int64_t output = unit * UNIT + (backward ? channel - within + pair : channel);
                words[lane] = static_cast<int32_t>((output * TAPS * width + (backward ? within : pair)) / 2);
                shifts[lane] = within % 2 * 16;
            }
            const __m512i places = _mm512_load_si512(words), shift = _mm512_load_si512(shifts);
            for (int64_t tap = 0; tap < TAPS; tap++) {
                const int64_t place = backward && shape.stride == 1 ? TAPS - 1 - tap : tap;
                const Bfloat16* from = weight + tap * width;
                __m512i pairs = _mm512_i32gather_epi32(places, from, 4);
                if (backward) {  // values of two outputs, of which each word has two inputs'
                    const __m512i next = _mm512_i32gather_epi32(places, from + TAPS * width, 4);
                    const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(pairs, shift), _mm512_set1_epi32(0xffff));
                    pairs = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_srlv_epi32(next, shift), 16));
                }
                _mm512_storeu_si512(packed + ((place / 3 * steps + step) * 3 + place % 3) * 2 * UNIT + vector * UNIT, pairs);
            }
        }
    }
}

static Task make_task(const GroupedShape& shape, const ConvolutionMaps& maps, const Bfloat16* weights, const float* bias, bool backward) {
    Task task{shape, maps, weights, bias, backward, shape.in_height, shape.in_width, shape.out_height, shape.out_width};
    if (backward) {
        std::swap(task.source_height, task.result_height);
        std::swap(task.source_width, task.result_width);
    }
    return task;
}

// The row of the source that a row of taps reads for row y of the result, or -1.
static int64_t source_row(const Task& task, int64_t y, int64_t ky) {
    int64_t row = task.shape.stride * y + ky - 1;
    if (task.backward && task.shape.stride == 2) {
        if ((y + 1 - ky) % 2 != 0) return -1;
        row = (y + 1 - ky) / 2;
    }
    return row < task.source_height ? row : -1;
}

static Row find_row(const Task& task, int64_t image, int64_t y) {
    const int64_t channels = task.shape.channels;
    const auto source = [&](int64_t row) {
        return task.maps.source + (image * task.source_height + row) * task.source_width * channels;
    };
    const int64_t place = (image * task.result_height + y) * task.result_width * channels;
    Row row{};
    row.result = task.maps.result + place;
    row.gate = task.maps.gate ? task.maps.gate + place : nullptr;
    int64_t last = -1;
    for (int64_t ky = 0; ky < 3; ky++) {
        const int64_t from = source_row(task, y, ky);
        if (from < 0) continue;
        last = std::max(last, from);
        row.sources[row.source_count] = source(from);
        row.weights[row.source_count++] = task.weights + ky * unit_weights(task.shape.group_width) / 3;
    }
    for (int64_t ky = 0; ky < 3 && y + 1 < task.result_height; ky++) {
        const int64_t from = source_row(task, y + 1, ky);
        if (from > last) row.ahead[row.ahead_count++] = source(from);
    }
    return row;
}

// Channels `first` … `end` of a row of the result, unit by unit: a unit's weights stay in the first cache, three
// rows of the map in the second.
template <typename Pattern, int width>
WITH_BF16 static void compute_row(const Task& task, int64_t image, int64_t y, int64_t first, int64_t end) {
    const Row row = find_row(task, image, y);
    constexpr int SPREAD = Pattern::SPREAD;
    for (int64_t channel = first; channel < end; channel += UNIT) {
        int64_t x = 0, left = (task.result_width + SPREAD - 1) / SPREAD * SPREAD;
        // Sums of 10 columns are 20 of the 32 registers.
        const auto compute = [&](auto columns) {
            compute_block<Pattern, width, columns>(task, row, x, channel);
            x += columns;
            left -= columns;
        };
        while (left >= 10) compute(std::integral_constant<int, 10>{});
        while (left >= 5) compute(std::integral_constant<int, 6 - SPREAD % 2>{});
        while (left >= 2) compute(std::integral_constant<int, 2>{});
        if (left == 1) compute(std::integral_constant<int, 1>{});
    }
}

using ComputeRow = void (*)(const Task&, int64_t, int64_t, int64_t, int64_t);

template <typename Pattern>
static ComputeRow row_of_width(int64_t group_width) {
    switch (group_width) {
        case 4: return compute_row<Pattern, 4>;
        case 8: return compute_row<Pattern, 8>;
        case 16: return compute_row<Pattern, 16>;
        default: return compute_row<Pattern, 32>;
    }
}

extern "C" {

// Bytes of scratch memory: the weights and biases in the order of the lanes.
int64_t grouped_rows_bytes(const GroupedShape* shape) {
    return shape->channels * (TAPS * shape->group_width * int64_t{sizeof(Bfloat16)} + int64_t{sizeof(float)});
}

// The output from the input or, `backward`, the input's gradient from the output's. `weight`
// [channels, 3, 3, group_width].
void grouped_rows_convolve(
    const GroupedShape* shape, const ConvolutionMaps* maps, const Bfloat16* weight, char* scratch, int32_t backward, int32_t threads) {
    const int64_t width = shape->group_width, units = shape->channels / UNIT;
    Bfloat16* weights = reinterpret_cast<Bfloat16*>(scratch);
    float* bias = reinterpret_cast<float*>(weights + units * unit_weights(width));
    const Task task = make_task(*shape, *maps, weights, bias, backward);
    const ComputeRow compute =
        shape->stride == 1 ? row_of_width<Convolution1>(width)
        : backward ? row_of_width<Gradient2>(width)
        : row_of_width<Convolution2>(width);
    const int64_t rows = shape->images * task.result_height;
    // Rows that follow each other read the same rows of the source.
    const int64_t step = std::max<int64_t>(rows / (8 * threads), 1), blocks = divided_up(rows, step);
    // Small maps have too few rows for all threads: then units of a row are shared, too.
    const int64_t parts = std::min(units, divided_up(4 * threads, blocks));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < units; unit++) {
            pack_weight(weight, *shape, unit, backward, weights + unit * unit_weights(width));
            for (int64_t place = 0; place < UNIT; place++) {
                const int64_t channel = unit * UNIT + lane_channel(width, place / LANES, place % LANES);
                bias[unit * UNIT + place] = maps->bias[channel];
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < blocks * parts; job++) {
            const int64_t first = job / parts * step, part = job % parts;
            for (int64_t row = first; row < std::min(first + step, rows); row++) {
                compute(
                    task, row / task.result_height, row % task.result_height, units * part / parts * UNIT,
                    units * (part + 1) / parts * UNIT);
            }
            _mm_sfence();  // other threads read the result next
        }
    }
}

}  // extern "C"
#endif
