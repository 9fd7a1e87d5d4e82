// Weight gradients of 3×3 (stride 1, padding 1) and 1×1 convolutions in BF16, by AMX's tiles.
//
//   dW[o][ky][kx][i] = sum over images n and pixels (y, x) of dY[n][y][x][o] · X[n][y + ky - 1][x + kx - 1][i]
//
// Pixels are what is summed over. A tile of dY is 16 output channels × 32 pixels, one of X is 16 pairs of
// pixels × 16 input channels. All images of a map are one long sequence of pixels, row after row, each row
// `pitch` pixels long and ending in zeros, so that each of the nine taps is a constant distance in it. The
// pairs of X are packed twice, from even and from odd pixels on, so that each tap is a plain tile load.
// Maps are channels_last: [N, H, W, C]. Sums are float32.
//
// Channels go in units of 32: one tile has the unit's even channels, the next one its odd ones. So a pair is
// made by shifts alone, and the order is put right when the sums are written.
//
// Where the gradient is zero there are no products: rows that no value's taps reach are left out of the sequence,
// and of the others the tiles of dY that have no values.
//
// Registers: six tiles of sums share one tile of dY. For 3×3 these are the left and the right tap of three
// rows, which begin at even pixels alike: 2 KB from the level-2 cache for six products, where 2×2 sums read
// 4 KB for four.

#include <omp.h>

#include <vector>

#include "levels.h"
#include "tiles.h"

constexpr int64_t UNIT = 32;         // channels packed at once
// Tiles of dY that a block of pixels has, at most: 512 KB of the L2 cache. Larger blocks push the sums out,
// smaller ones read and write the sums more often (256, 768 and 1,024 were slower).
constexpr int64_t PACKED = 512;
constexpr int64_t MOST_BLOCKS = 16;  // of 16 output channels in a group, for 3×3; twice as many for 1×1
constexpr int64_t CHUNK = 12;        // tiles along the sum whose X stays in the L1 cache, for 1×1
constexpr int64_t TILE_BYTES = 1024;
constexpr int64_t L2_BYTES = 1 << 21;  // of every processor with AMX so far
constexpr int64_t TILE_SUMS = TILE_ROWS * TILE_ROWS;

struct Shape {
    int64_t inputs, outputs, kernel, stride;
};

// How the work is cut: groups of output channels × parts of the pixels.
struct Plan {
    int64_t output_units, input_units, taps;
    int64_t blocks, groups;  // blocks of 16 output channels in a group, an even number; groups
    int64_t steps;           // tiles along the sum in a block of pixels
    int64_t parts;
    int64_t unit_sums;       // float32 values of a block of outputs and a unit of inputs
    int64_t block_sums;      // of a block of outputs and all inputs
    int64_t sums;            // of a group
    int64_t most_pixels;     // of X in a block
    int64_t thread_bytes;
};

// A row of a level's long sequence, and where it lies in the maps; nowhere if it is the zeros after an image.
struct Row {
    const GradientLevel* level;
    const Bfloat16 *gradient = nullptr, *input = nullptr;
};

// Rows `first` … `end`, of one level.
struct Strip {
    const std::vector<Row>& rows;
    int64_t first, end;

    const GradientLevel& level() const { return *rows[first].level; }
};

// The tiles along the sum of a strip that have values of the gradient, by number.
struct Steps {
    const int32_t* numbers;
    int64_t count;
};

// Pixels from a row to the next. A 3×3's rows end in at least one zero, and their lengths are even, so that
// pairs begin alike in all rows; a 1×1's rows follow each other without a gap.
static int64_t row_pitch(const GradientLevel& level, const Shape& shape) {
    return shape.kernel == 1 ? level.width : rounded_up(level.width + 1, 2);
}

// Rows of a level's sequence; a 3×3's images have a row of zeros between them.
static int64_t count_rows(const GradientLevel& level, const Shape& shape) {
    return level.images * (level.height + (shape.kernel == 1 ? 0 : 1));
}

// The rows of all levels that have values of the gradient, and those around them, which their taps reach. Of a 1×1
// all, since no layer's gradients are known to have rows of zeros.
static std::vector<Row> list_rows(const GradientLevel* levels, int64_t level_count, const Shape& shape, int32_t threads) {
    std::vector<Row> rows, kept;
    for (const GradientLevel* level = levels; level < levels + level_count; level++) {
        const int64_t image_rows = count_rows(*level, shape) / level->images;
        for (int64_t row = 0; row < count_rows(*level, shape); row++) {
            const int64_t image = row / image_rows, y = row % image_rows;
            rows.push_back({level});
            if (y == level->height) continue;
            rows.back().gradient = level->gradient + (image * level->height + y) * level->width * shape.outputs;
            rows.back().input = level->input + (image * level->input_height + y * shape.stride) * level->input_width * shape.inputs;
        }
    }
    if (shape.kernel == 1) return rows;
    const int64_t count = rows.size(), around = 1;
    std::vector<char> found(count + 2 * around);  // with one before the first row and one after the last
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < count; row++) {
        found[row + around] = rows[row].gradient && has_values(rows[row].gradient, rows[row].level->width * shape.outputs);
    }
    for (int64_t row = 0; row < count; row++) {
        if (std::count(&found[row], &found[row] + 2 * around + 1, true)) kept.push_back(rows[row]);
    }
    return kept;
}

// About how many cycles a plan takes, by what each part took in measurements; only the order of plans matters.
static double estimate_cycles(const Plan& plan, int64_t pixels, int64_t threads) {
    const double steps = static_cast<double>(pixels) / (TILE_SUM * plan.parts);
    const double inputs = 2.0 * plan.input_units;
    const double a_step = plan.blocks * (inputs * plan.taps * 24 + 390) + inputs * (plan.taps > 1 ? 485 : 400);
    const double sums = static_cast<double>(plan.sums * sizeof(float));
    // Sums that the L2 cache does not hold beside what is packed wait for the L3 cache in every pass.
    const double in_cache = plan.thread_bytes + sums <= L2_BYTES;
    const double passes = std::max(1.0, steps / plan.steps) * sums / (in_cache ? 16 : 3);
    const int64_t tasks = plan.groups * plan.parts;
    // A thread that is late, since another program or its core's other thread runs, leaves tasks to the others.
    const double rounds = std::max(1.0, static_cast<double>(tasks) / threads + 0.5);
    // The parts' sums go from core to core, at a rate that does not grow with the threads.
    return rounds * (steps * a_step + passes) + (plan.parts > 1 ? tasks * sums / 10 : 0);
}

static Plan plan_gradient(const GradientLevel* levels, int64_t level_count, const Shape& shape, int64_t threads) {
    Plan best{};
    double least = 0;
    int64_t rows = 0, pixels = 0, widest = 0;
    for (int64_t l = 0; l < level_count; l++) {
        rows += count_rows(levels[l], shape);
        pixels += count_rows(levels[l], shape) * row_pitch(levels[l], shape);
        widest = std::max(widest, row_pitch(levels[l], shape));
    }
    const int64_t all_blocks = rounded_up(shape.outputs, UNIT) / TILE_ROWS;
    const int64_t most = std::min(all_blocks, shape.kernel == 1 ? 2 * MOST_BLOCKS : MOST_BLOCKS);
    for (int64_t wanted = most; wanted >= 2; wanted -= 2) {
        for (int64_t parts = 1; parts <= std::min(threads, rows); parts++) {
            Plan plan{};
            plan.taps = shape.kernel * shape.kernel;
            plan.output_units = all_blocks / 2;
            plan.input_units = rounded_up(shape.inputs, UNIT) / UNIT;
            plan.groups = divided_up(all_blocks, wanted);
            plan.blocks = rounded_up(divided_up(all_blocks, plan.groups), 2);
            plan.groups = divided_up(all_blocks, plan.blocks);
            plan.steps = std::max(PACKED / plan.blocks, divided_up(widest, TILE_SUM));
            plan.parts = parts;
            plan.unit_sums = 2 * plan.taps * TILE_SUMS;
            plan.block_sums = plan.unit_sums * plan.input_units;
            plan.sums = plan.blocks * plan.block_sums;
            plan.most_pixels = plan.steps * TILE_SUM + (shape.kernel == 1 ? 0 : 2 * widest) + 4;
            const int64_t copies = shape.kernel == 1 ? 1 : 2;
            plan.thread_bytes = plan.blocks * plan.steps * TILE_BYTES + 2 * copies * plan.most_pixels * 32 +
                                2 * plan.most_pixels * int64_t{sizeof(void*)} +
                                (std::max(shape.inputs, shape.outputs) + 2 * UNIT) * 2 + plan.blocks * TILE_ROWS * 4;
            plan.thread_bytes = rounded_up(plan.thread_bytes, 4096);
            const double cycles = estimate_cycles(plan, pixels, threads);
            if (least == 0 || cycles < least) best = plan, least = cycles;
        }
    }
    return best;
}

// A thread's memory.
struct Workspace {
    Bfloat16* gradients;  // [blocks, steps] tiles
    Bfloat16* even;       // [2 tiles' channels][pairs of pixels][16 channels of 2], from even pixels on
    Bfloat16* odd;        // the same from odd pixels on
    const Bfloat16 **gradient_places, **input_places;  // where each pixel of the sequences lies
    Bfloat16* zeros;      // stands in for pixels that are not there
    float* bias;
    std::vector<int32_t> steps;  // of the strip at hand

    Workspace(char* memory, const Plan& plan, const Shape& shape) {
        const int64_t packed = plan.most_pixels * 32;
        gradients = reinterpret_cast<Bfloat16*>(memory);
        memory += plan.blocks * plan.steps * TILE_BYTES;
        even = reinterpret_cast<Bfloat16*>(memory);
        memory += 2 * packed;
        odd = reinterpret_cast<Bfloat16*>(memory);
        if (shape.kernel != 1) memory += 2 * packed;
        gradient_places = reinterpret_cast<const Bfloat16**>(memory);
        input_places = gradient_places + plan.most_pixels;
        memory += 2 * plan.most_pixels * int64_t{sizeof(void*)};
        bias = reinterpret_cast<float*>(memory);
        memory += plan.blocks * TILE_ROWS * 4;
        zeros = reinterpret_cast<Bfloat16*>(memory);
        std::memset(zeros, 0, (std::max(shape.inputs, shape.outputs) + 2 * UNIT) * 2);
    }
};

// Where the pixels of a strip's rows lie in one of the maps, `values` apart, and those of `around` rows and columns
// before and behind them: `count` in all.
static void place_pixels(
    const Strip& strip, const Bfloat16* Row::*map, int64_t values, int64_t around, int64_t pitch, int64_t count, const Bfloat16* zeros,
    const Bfloat16** places) {
    const int64_t rows = strip.rows.size(), width = strip.level().width;
    std::fill(places, places + count, zeros);
    for (int64_t row = std::max<int64_t>(0, strip.first - around); row < std::min(strip.end + around, rows); row++) {
        // Another level's rows may be shorter.
        const Bfloat16* from = strip.rows[row].level == &strip.level() ? strip.rows[row].*map : nullptr;
        const Bfloat16** to = places + (row - strip.first + around) * pitch + around;
        for (int64_t x = 0; from && x < width; x++) to[x] = from + x * values;
    }
}

#if defined(__AVX512BW__)
// The pairs of two pixels of a unit's even channels, and of its odd ones.
static inline void pair_up(const Bfloat16* const* pixels, int64_t channel, __mmask32 lanes, __m512i* pairs) {
    const __mmask32 upper = 0xaaaaaaaa;
    const __m512i first = _mm512_maskz_loadu_epi16(lanes, pixels[0] + channel);
    const __m512i second = _mm512_maskz_loadu_epi16(lanes, pixels[1] + channel);
    pairs[0] = _mm512_mask_blend_epi16(upper, first, _mm512_slli_epi32(second, 16));
    pairs[1] = _mm512_mask_blend_epi16(upper, _mm512_srli_epi32(first, 16), second);
}

static inline void add_pairs(__m512i pairs, __m512* sum) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 second = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
    *sum = _mm512_add_ps(*sum, _mm512_add_ps(first, second));
}
#endif

// 32 pixels of a unit of the gradient as two tiles, `apart` values apart; adds them to the bias [32].
static void pack_gradient(
    const Bfloat16* const* places, int64_t channel, int64_t channels, Bfloat16* tiles, int64_t apart, float* bias) {
#if defined(__AVX512BW__)
    const __mmask32 lanes = first_lanes(channels - channel);
    __m512i rows[2][16];
    __m512 sums[2] = {_mm512_loadu_ps(bias), _mm512_loadu_ps(bias + 16)};
    for (int pair = 0; pair < 16; pair++) {
        __m512i made[2];
        pair_up(places + 2 * pair, channel, lanes, made);
        for (int half = 0; half < 2; half++) {
            rows[half][pair] = made[half];
            add_pairs(made[half], &sums[half]);
        }
    }
    for (int half = 0; half < 2; half++) {
        transpose(rows[half]);
        for (int row = 0; row < 16; row++) _mm512_storeu_si512(tiles + half * apart + row * TILE_SUM, rows[half][row]);
        _mm512_storeu_ps(bias + 16 * half, sums[half]);
    }
#else
    for (int64_t c = 0; c < UNIT; c++) {
        for (int64_t pixel = 0; pixel < TILE_SUM; pixel++) {
            const Bfloat16 value = channel + c < channels ? places[pixel][channel + c] : 0;
            tiles[c % 2 * apart + c / 2 * TILE_SUM + pixel] = value;
            bias[c % 2 * 16 + c / 2] += widened(value);
        }
    }
#endif
}

// A unit of the input as pairs of pixels, `pairs` of them from place 0 on: [2][pairs][16 channels of 2].
static void pack_input(
    const Bfloat16* const* places, int64_t pairs, int64_t channel, int64_t channels, Bfloat16* packed, int64_t apart) {
#if defined(__AVX512BW__)
    const __mmask32 lanes = first_lanes(channels - channel);
    for (int64_t pair = 0; pair < pairs; pair++) {
        __m512i made[2];
        pair_up(places + 2 * pair, channel, lanes, made);
        _mm512_storeu_si512(packed + pair * 32, made[0]);
        _mm512_storeu_si512(packed + apart + pair * 32, made[1]);
    }
#else
    for (int64_t pixel = 0; pixel < 2 * pairs; pixel++) {
        for (int64_t c = 0; c < UNIT; c++) {
            packed[c % 2 * apart + pixel / 2 * 32 + c / 2 * 2 + pixel % 2] =
                channel + c < channels ? places[pixel][channel + c] : 0;
        }
    }
#endif
}

// The nine taps of a block of 16 output channels lie one after another: for the three rows those on the left
// and on the right, then for the three rows those in the middle.
constexpr int64_t MIDDLE = 6;

static int64_t tap_place(int64_t taps, int64_t row, int64_t column) {
    if (taps == 1) return 0;
    return column == 1 ? MIDDLE + row : 2 * row + column / 2;
}

template <class Tiles, int tile>
static inline void multiply_at(const Bfloat16* input) {
    Tiles::template load<7>(input, 64);
    Tiles::template multiply<tile, 6, 7>();
}

// What is read next from beyond the L2 cache is fetched meanwhile, a little in every step: here pixels of a
// unit of the input.
struct Ahead {
    const Bfloat16* const* places;
    int64_t remaining;  // pixels
    int64_t channel;  // the unit's first
    int64_t share;    // pixels in a step

    Ahead(const Bfloat16* const* places, int64_t count, int64_t channel, int64_t steps)
        : places(places), remaining(count), channel(channel), share((count + steps - 1) / std::max<int64_t>(steps, 1)) {}

    void fetch() {
        const int64_t taken = std::min(share, remaining);
        for (int64_t pixel = 0; pixel < taken; pixel++) __builtin_prefetch(places[pixel] + channel, 0, 2);
        places += taken, remaining -= taken;
    }
};

// Prefetch a step's share of the `tiles` tiles of sums that the next pass adds to: where the sums do not fit
// the L2 cache beside the packed blocks, each pass would wait for them (10.0 in place of 8.5 ms).
static inline void fetch_sums(const float* sums, int64_t tiles, int64_t step, int64_t steps) {
    if (!sums) return;
    const int64_t lines = tiles * TILE_BYTES / 64, share = divided_up(lines, steps);
    const char* from = reinterpret_cast<const char*>(sums);
    for (int64_t line = step * share; line < std::min(lines, (step + 1) * share); line++) __builtin_prefetch(from + 64 * line, 1, 3);
}

// The taps on the left and on the right, which both begin at even pixels: six tiles for one of the gradient.
template <class Tiles>
static void sum_sides(
    const Bfloat16* gradients, const Bfloat16* even, Steps steps, int64_t pitch, float* sums, const float* next_sums, bool first,
    Ahead& ahead) {
    begin_sums<Tiles, 6>(sums, first);
    const int64_t row = pitch / 2 * 32;  // pairs from a row to the next, in values
    for (int64_t step = 0; step < steps.count; step++) {
        const Bfloat16* input = even + steps.numbers[step] * TILE_VALUES;
        ahead.fetch();
        fetch_sums(next_sums, 6, step, steps.count);
        Tiles::template load<6>(gradients + step * TILE_VALUES, 64);
        multiply_at<Tiles, 0>(input);
        multiply_at<Tiles, 1>(input + 32);
        multiply_at<Tiles, 2>(input + row);
        multiply_at<Tiles, 3>(input + row + 32);
        multiply_at<Tiles, 4>(input + 2 * row);
        multiply_at<Tiles, 5>(input + 2 * row + 32);
    }
    store_sums<Tiles, 6>(sums);
}

// The taps in the middle, for two blocks of output channels at once.
template <class Tiles>
static void sum_middle(
    const Bfloat16* gradients, int64_t next_block, const Bfloat16* odd, Steps steps, int64_t pitch, float* sums,
    float* next_sums, int64_t after, bool first, Ahead& ahead) {
    begin_sums<Tiles, 3>(sums, first);
    begin_sums<Tiles, 3, 3>(next_sums, first);
    const int64_t row = pitch / 2 * 32;
    for (int64_t step = 0; step < steps.count; step++) {
        const Bfloat16* input = odd + steps.numbers[step] * TILE_VALUES;
        ahead.fetch();
        if (after) {
            fetch_sums(sums + after, 3, step, steps.count);
            fetch_sums(next_sums + after, 3, step, steps.count);
        }
        Tiles::template load<6>(gradients + step * TILE_VALUES, 64);
        multiply_at<Tiles, 0>(input);
        multiply_at<Tiles, 1>(input + row);
        multiply_at<Tiles, 2>(input + 2 * row);
        Tiles::template load<6>(gradients + next_block + step * TILE_VALUES, 64);
        Tiles::template multiply<5, 6, 7>();
        multiply_at<Tiles, 3>(input);
        multiply_at<Tiles, 4>(input + row);
    }
    store_sums<Tiles, 3>(sums);
    store_sums<Tiles, 3, 3>(next_sums);
}

// A 1×1's products of two blocks of output channels with a unit of input channels.
template <class Tiles>
static void sum_unit(
    const Bfloat16* gradients, int64_t next_block, const Bfloat16* inputs, int64_t next_input, Steps steps, float* sums,
    float* next_sums, int64_t after, bool first, Ahead& ahead) {
    begin_sums<Tiles, 2>(sums, first);
    begin_sums<Tiles, 2, 2>(next_sums, first);
    for (int64_t step = 0; step < steps.count; step++) {
        const Bfloat16* input = inputs + steps.numbers[step] * TILE_VALUES;
        ahead.fetch();
        if (after) {
            fetch_sums(sums + after, 2, step, steps.count);
            fetch_sums(next_sums + after, 2, step, steps.count);
        }
        Tiles::template load<4>(gradients + step * TILE_VALUES, 64);
        Tiles::template load<6>(input, 64);
        Tiles::template multiply<0, 4, 6>();
        Tiles::template load<7>(input + next_input, 64);
        Tiles::template multiply<1, 4, 7>();
        Tiles::template load<5>(gradients + next_block + step * TILE_VALUES, 64);
        Tiles::template multiply<2, 5, 6>();
        Tiles::template multiply<3, 5, 7>();
    }
    store_sums<Tiles, 2>(sums);
    store_sums<Tiles, 2, 2>(next_sums);
}

// A strip's products of one unit of input channels with a group of output channels. `sums`: of the unit's first
// 16 channels and the group's first block.
template <class Tiles>
static void sum_strip(
    const Workspace& work, const Plan& plan, Steps steps, int64_t pitch, int64_t blocks, float* sums, bool first, Ahead ahead) {
    const int64_t block = plan.steps * TILE_VALUES;                        // of the packed gradient
    const int64_t next = plan.block_sums;
    const int64_t half = plan.most_pixels * 16;                            // of the packed input
    if (plan.taps == 1) {
        for (int64_t begin = 0; begin < steps.count; begin += CHUNK) {
            const Steps taken{steps.numbers + begin, std::min(CHUNK, steps.count - begin)};
            for (int64_t b = 0; b < blocks; b += 2) {
                sum_unit<Tiles>(
                    work.gradients + b * block + begin * TILE_VALUES, block, work.even, half, taken,
                    sums + b * next, sums + (b + 1) * next, b + 2 < blocks ? 2 * next : 0, first && begin == 0, ahead);
            }
        }
        return;
    }
    // Even channels of the input, then odd ones. The middle taps take two blocks of dY at a time: there are
    // only three of them, and with one block half of the sums' registers would be unused.
    for (int64_t which = 0; which < 2; which++) {
        float* of_half = sums + which * plan.taps * TILE_SUMS;
        for (int64_t b = 0; b < blocks; b++) {
            float* block_sums = of_half + b * next;
            sum_sides<Tiles>(
                work.gradients + b * block, work.even + which * half, steps, pitch, block_sums, b + 1 < blocks ? block_sums + next : nullptr, first,
                ahead);
        }
        for (int64_t b = 0; b < blocks; b += 2) {
            sum_middle<Tiles>(
                work.gradients + b * block, block, work.odd + which * half, steps, pitch, of_half + b * next + MIDDLE * TILE_SUMS,
                of_half + (b + 1) * next + MIDDLE * TILE_SUMS, b + 2 < blocks ? 2 * next : 0, first, ahead);
        }
    }
}

// Where a group's part of the sums begins and which channels it has.
struct Group {
    int64_t first_unit, units;

    int64_t outputs(const Shape& shape) const { return std::min(units * UNIT, shape.outputs - first_unit * UNIT); }
};

static Group find_group(const Plan& plan, int64_t index) {
    const int64_t first = index * plan.blocks / 2;
    return {first, std::min(plan.blocks / 2, plan.output_units - first)};
}

// Lists those of a strip's `count` steps in which a group's gradients have values.
static Steps list_steps(const Shape& shape, const Group& group, int64_t count, Workspace& work) {
    work.steps.clear();
    const auto found = [&](const Bfloat16* pixel) { return has_values(pixel + group.first_unit * UNIT, group.outputs(shape)); };
    for (int64_t step = 0; step < count; step++) {
        const Bfloat16* const* places = work.gradient_places + step * TILE_SUM;
        if (std::any_of(places, places + TILE_SUM, found)) work.steps.push_back(step);
    }
    return {work.steps.data(), static_cast<int64_t>(work.steps.size())};
}

// One strip: packs the group's gradients once, each unit of the inputs once, and sums their products. Returns whether
// there are any.
template <class Tiles>
static bool add_strip(const Strip& strip, const Shape& shape, const Plan& plan, const Group& group, Workspace& work, float* sums, bool first) {
    const int64_t pitch = row_pitch(strip.level(), shape);
    const int64_t most_steps = ((strip.end - strip.first) * pitch + TILE_SUM - 1) / TILE_SUM;
    const int64_t halo = plan.taps == 1 ? 0 : 2 * pitch + 2;
    const int64_t pixels = most_steps * TILE_SUM + halo, pairs = pixels / 2, half = plan.most_pixels * 16;
    place_pixels(strip, &Row::gradient, shape.outputs, 0, pitch, most_steps * TILE_SUM, work.zeros, work.gradient_places);
    const Steps steps = list_steps(shape, group, most_steps, work);
    if (!steps.count) return false;
    place_pixels(
        strip, &Row::input, shape.stride * shape.inputs, shape.kernel / 2, pitch, pixels + 1, work.zeros, work.input_places);
    Ahead first_unit(work.input_places, pixels, 0, steps.count);
    for (int64_t step = 0; step < steps.count; step++) {
        const Bfloat16* const* places = work.gradient_places + steps.numbers[step] * TILE_SUM;
        const Bfloat16* const* next = work.gradient_places + steps.numbers[std::min(step + 1, steps.count - 1)] * TILE_SUM;
        first_unit.fetch();
        for (int64_t unit = 0; unit < group.units; unit++) {
            const int64_t channel = (group.first_unit + unit) * UNIT;
            for (int64_t pixel = 0; pixel < TILE_SUM; pixel++) __builtin_prefetch(next[pixel] + channel, 0, 2);
            pack_gradient(
                places, channel, shape.outputs, work.gradients + (2 * unit * plan.steps + step) * TILE_VALUES,
                plan.steps * TILE_VALUES, work.bias + unit * UNIT);
        }
    }
    const int64_t passes = group.units * (plan.taps == 1 ? 1 : 6);  // over the steps, of a unit of the input
    for (int64_t unit = 0; unit < plan.input_units; unit++) {
        pack_input(work.input_places, pairs, unit * UNIT, shape.inputs, work.even, half);
        if (plan.taps != 1) pack_input(work.input_places + 1, pairs, unit * UNIT, shape.inputs, work.odd, half);
        const Ahead ahead(work.input_places, unit + 1 < plan.input_units ? pixels : 0, (unit + 1) * UNIT, passes * steps.count);
        sum_strip<Tiles>(work, plan, steps, pitch, 2 * group.units, sums + unit * plan.unit_sums, first, ahead);
    }
    return true;
}

// Rows `begin` … `end`, of any levels.
template <class Tiles>
static void add_rows(
    const std::vector<Row>& rows, int64_t begin, int64_t end, const Shape& shape, const Plan& plan, const Group& group, Workspace& work,
    float* sums) {
    bool first = true;
    std::fill(work.bias, work.bias + plan.blocks * TILE_ROWS, 0.0f);
    while (begin < end) {
        Strip strip{rows, begin, begin};
        const int64_t at_once = std::max<int64_t>(1, plan.steps * TILE_SUM / row_pitch(strip.level(), shape));
        while (strip.end < std::min(end, begin + at_once) && rows[strip.end].level == &strip.level()) strip.end++;
        if (add_strip<Tiles>(strip, shape, plan, group, work, sums, first)) first = false;
        begin = strip.end;
    }
    if (first) std::fill_n(sums, plan.sums, 0.0f);
}

// The row at which part `part` begins: all have about as many pixels.
static int64_t part_begin(const std::vector<Row>& rows, const Shape& shape, const Plan& plan, int64_t part) {
    int64_t pixels = 0, begin = 0;
    for (const Row& row : rows) pixels += row_pitch(*row.level, shape);
    int64_t wanted = pixels * part / plan.parts;
    for (const Row& row : rows) begin += (wanted -= row_pitch(*row.level, shape)) >= 0;
    return begin;
}

// Where the results go: weights [outputs, kernel, kernel, inputs], times `scale` unless that is null, and biases.
struct Result {
    const float* scale;
    float *weights, *bias;
};

// The sums of an output, of `parts` parts, become its weights. `sums` are those of its group, where it is `place`.
static void write_weights(
    const float* sums, int64_t parts, const Shape& shape, const Plan& plan, int64_t place, int64_t output, const Result& result) {
    const int64_t kernel = shape.kernel;
    const float scale = result.scale ? result.scale[output] : 1.0f;
    const float* row = sums + (place / UNIT * 2 + place % 2) * plan.block_sums + place % UNIT / 2 * 16;
    float* weights = result.weights + output * plan.taps * shape.inputs;
    for (int64_t y = 0; y < kernel; y++) {
        for (int64_t x = 0; x < kernel; x++) {
            const float* tap = row + tap_place(plan.taps, y, x) * TILE_SUMS;
            float* to = weights + (y * kernel + x) * shape.inputs;
            for (int64_t unit = 0; unit < plan.input_units; unit++) {
                float even[16] = {}, odd[16] = {}, both[UNIT];
                const float* from = tap + unit * plan.unit_sums;
                for (int64_t part = 0; part < parts; part++) {
                    for (int c = 0; c < 16; c++) even[c] += from[part * plan.sums + c];
                    for (int c = 0; c < 16; c++) odd[c] += from[part * plan.sums + plan.taps * TILE_SUMS + c];
                }
                for (int c = 0; c < 16; c++) both[2 * c] = scale * even[c], both[2 * c + 1] = scale * odd[c];
                std::memcpy(to + unit * UNIT, both, std::min(UNIT, shape.inputs - unit * UNIT) * sizeof(float));
            }
        }
    }
}

// The biases of an output, of `parts` parts that are `apart` values apart.
static void write_bias(const float* biases, int64_t parts, int64_t apart, int64_t place, int64_t output, const Result& result) {
    if (!result.bias) return;
    const int64_t from = place / UNIT * UNIT + place % 2 * 16 + place % UNIT / 2;
    float sum = 0.0f;
    for (int64_t part = 0; part < parts; part++) sum += biases[part * apart + from];
    result.bias[output] = sum;
}

// How many groups' sums are kept at a time.
static int64_t count_sums(const Plan& plan, int64_t threads) { return plan.parts > 1 ? plan.groups * plan.parts : threads; }

template <class Tiles>
static void weight_gradient(
    const GradientLevel* levels, int64_t level_count, const Shape& shape, const Result& result, char* scratch, int32_t threads) {
    const Plan plan = plan_gradient(levels, level_count, shape, threads);
    const std::vector<Row> rows = list_rows(levels, level_count, shape, threads);
    const int64_t tasks = plan.groups * plan.parts;
    float* sums = reinterpret_cast<float*>(scratch + threads * plan.thread_bytes);
    float* biases = sums + count_sums(plan, threads) * plan.sums;
    const int64_t group_channels = plan.blocks * TILE_ROWS;
#pragma omp parallel num_threads(threads)
    {
        Workspace work(scratch + omp_get_thread_num() * plan.thread_bytes, plan, shape);
        Tiles::begin();
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t part = task % plan.parts;
            const Group group = find_group(plan, task / plan.parts);
            // Where pixels are not divided, each thread has one place for its sums, which stays in its cache.
            float* task_sums = sums + (plan.parts > 1 ? task : omp_get_thread_num()) * plan.sums;
            add_rows<Tiles>(
                rows, part_begin(rows, shape, plan, part), part_begin(rows, shape, plan, part + 1), shape, plan, group, work, task_sums);
            if (plan.parts > 1) {
                std::copy(work.bias, work.bias + group_channels, biases + task * group_channels);
                continue;
            }
            for (int64_t place = 0; place < group.outputs(shape); place++) {
                const int64_t output = group.first_unit * UNIT + place;
                write_weights(task_sums, 1, shape, plan, place, output, result);
                write_bias(work.bias, 1, 0, place, output, result);
            }
        }
        Tiles::end();
        if (plan.parts > 1) {
#pragma omp for schedule(static)
            for (int64_t output = 0; output < shape.outputs; output++) {
                const int64_t task = output / group_channels * plan.parts, place = output % group_channels;
                write_weights(sums + task * plan.sums, plan.parts, shape, plan, place, output, result);
                write_bias(biases + task * group_channels, plan.parts, group_channels, place, output, result);
            }
        }
    }
}

extern "C" {

// Bytes of scratch memory that `weight_gradient` needs, for all threads together.
int64_t weight_gradient_bytes(const GradientLevel* levels, int64_t level_count, const Shape* shape, int32_t threads) {
    const Plan plan = plan_gradient(levels, level_count, *shape, threads);
    const int64_t biases = plan.groups * plan.parts * plan.blocks * TILE_ROWS;
    return threads * plan.thread_bytes + (count_sums(plan, threads) * plan.sums + biases) * int64_t{sizeof(float)};
}

// The weight's gradient, float32 [outputs, kernel, kernel, inputs] in memory, summed over the levels and times
// `scale` [outputs] unless that is null, and the bias's [outputs] unless that is null. `tiles`: see tiles.h.
void weight_gradient_sum(
    const GradientLevel* levels, int64_t level_count, const Shape* shape, const float* scale, float* gradient, float* bias, char* scratch,
    int32_t threads, int32_t tiles) {
    with_tiles(tiles, [&](auto kind) {
        weight_gradient<decltype(kind)>(levels, level_count, *shape, {scale, gradient, bias}, scratch, threads);
    });
}

}  // extern "C"
