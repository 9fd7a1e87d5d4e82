// 3×3 convolutions of stride 1 and padding 1 in BF16 by AMX's tiles.
//
// The pixels of all images of a level are taken as one sequence, row after row, with one zero after
// each row and a row of zeros after each image: position (image · (height + 1) + y) · (width + 1) + x.
// A window's nine pixels are then at fixed distances from each other, without a case for borders, and
// tiles are full on small maps as well. Each task copies a block of the sequence, and what its windows
// reach beyond it, to scratch [blocks of 32 channels][positions][32]: a tile's rows follow each other
// there, and padding costs nothing later. The weights are packed in the order in which they
// are read: [pairs of output tiles][blocks of 32 inputs][9][2] tiles. A sum of many channels is done in
// chunks, so that a chunk's pixels and the float32 sums stay in the level-2 cache.

#include <omp.h>

#include <algorithm>
#include <atomic>

#include "tiles.h"

constexpr int64_t TAPS = 9;
constexpr int64_t PIXELS = 32;             // two tiles of rows
constexpr int64_t COLUMNS = 32;            // two tiles of output channels
constexpr int64_t CHUNK = 8;               // blocks of 32 input channels that are summed at once
constexpr int64_t LARGEST_BLOCK = 512;    // positions of a task
constexpr int64_t SMALLEST_BLOCK = 128;
constexpr int64_t PIXELS_AHEAD = 4;        // that are fetched before they are copied
constexpr int64_t TASK_BYTES = 1280 << 10;  // of the level-2 cache, whose rest is for weights
constexpr int64_t TASKS_PER_THREAD = 4;

struct Level {
    const Bfloat16* input;
    Bfloat16* output;
    // None, or of the output's shape and what a ReLU returned: the output is zero where this is.
    const Bfloat16* gate;
    int64_t images, height, width;
};

static int64_t divided_up(int64_t value, int64_t step) { return (value + step - 1) / step; }

static int64_t pitch_of(const Level& level) { return level.width + 1; }

static int64_t count_positions(const Level& level) {
    return level.images * (level.height + 1) * pitch_of(level);
}

// A walk along the sequence of positions, from before the first pixel to behind the last.
struct Position {
    const Level& level;
    int64_t image, y, x;

    Position(const Level& level, int64_t index) : level(level) {
        const int64_t plane = (level.height + 1) * pitch_of(level);
        // The largest distance before the first pixel is a row and a pixel, less than two planes.
        image = (index + 2 * plane) / plane - 2;
        y = (index - image * plane) / pitch_of(level);
        x = (index - image * plane) % pitch_of(level);
    }

    void advance() {
        if (++x < pitch_of(level)) return;
        x = 0;
        if (++y <= level.height) return;
        y = 0;
        image++;
    }

    // The pixel's number in the level's memory; negative at zeros between and around the images.
    int64_t pixel() const {
        if (image < 0 || image >= level.images || y == level.height || x == level.width) return -1;
        return (image * level.height + y) * level.width + x;
    }
};

struct Plan {
    int64_t inputs, outputs;
    int64_t sum_blocks, chunk;       // blocks of 32 input channels, and how many are summed at once
    int64_t block;                   // positions of a task
    int64_t reach;                   // positions that are copied: the block and what its windows reach
    int64_t pairs, pairs_of_task;    // of tiles of output channels
    int64_t rows_bytes, sums_bytes;  // of a thread's scratch

    int64_t thread_bytes() const { return 2 * rows_bytes + sums_bytes + (block + PIXELS) * int64_t{sizeof(int64_t)}; }
    bool has_one_chunk() const { return chunk >= sum_blocks; }
};

static int64_t count_blocks(const Level* levels, int64_t level_count, int64_t block) {
    int64_t blocks = 0;
    for (int64_t index = 0; index < level_count; index++) {
        blocks += divided_up(count_positions(levels[index]), block);
    }
    return blocks;
}

static Plan make_plan(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, int32_t threads) {
    Plan plan{};
    plan.inputs = inputs;
    plan.outputs = outputs;
    plan.sum_blocks = divided_up(inputs, TILE_SUM);
    plan.chunk = divided_up(plan.sum_blocks, divided_up(plan.sum_blocks, CHUNK));
    plan.pairs = divided_up(outputs, COLUMNS);
    int64_t pitch = 0;
    for (int64_t index = 0; index < level_count; index++) pitch = std::max(pitch, pitch_of(levels[index]));
    // Blocks are large, as each reads the weights once and its surroundings, but enough for all threads.
    for (plan.block = LARGEST_BLOCK;; plan.block -= PIXELS) {
        // An odd number of positions: planes a power of two apart would share sets of the cache.
        plan.reach = (plan.block + 2 * pitch + 2) | 1;
        plan.rows_bytes = plan.chunk * plan.reach * TILE_SUM * int64_t{sizeof(Bfloat16)};
        const int64_t sums = plan.has_one_chunk() ? 2 * PIXELS * COLUMNS : plan.block * plan.pairs * COLUMNS;
        plan.sums_bytes = sums * int64_t{sizeof(float)};
        if (plan.block <= SMALLEST_BLOCK) break;
        const bool fits = 2 * plan.rows_bytes + plan.sums_bytes <= TASK_BYTES;
        if (fits && count_blocks(levels, level_count, plan.block) >= TASKS_PER_THREAD * threads) break;
    }
    const int64_t blocks = count_blocks(levels, level_count, plan.block);
    const int64_t parts = std::min(plan.pairs, divided_up(TASKS_PER_THREAD * threads, blocks));
    plan.pairs_of_task = divided_up(plan.pairs, parts);
    return plan;
}

// As `rounded`, but without a branch, so that loops over it are vectorized.
static inline Bfloat16 rounded_value(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return static_cast<Bfloat16>((bits & 0x7fffffff) > 0x7f800000 ? nan : nearest);
}

// Whether ReLU returned its input: it is positive, or NaN, which keeps its gradient as in torch.
static inline bool is_open(Bfloat16 gate) {
    const bool positive = static_cast<int16_t>(gate) > 0;  // as an integer where it is as a number
    const bool nan = (gate & 0x7fff) > 0x7f80;
    return positive | nan;
}

// Copies channels `channel` … `channel + 32 · blocks` of some positions of a level to `rows`
// [blocks][plane][32], with zeros where there are none: 32 values at each step.
struct Copier {
    Position position;
    int64_t positions;  // to come
    int64_t pixel = 0;
    int64_t inputs, channel, blocks, plane, block = 0;
    Bfloat16* rows;

    Copier(const Level& level, int64_t first, int64_t positions, int64_t inputs, int64_t channel, int64_t blocks,
           int64_t plane, Bfloat16* rows)
        : position(level, first), positions(positions), pixel(position.pixel()), inputs(inputs), channel(channel),
          blocks(blocks), plane(plane), rows(rows) {}

    inline __attribute__((always_inline)) void step() {
        if (positions <= 0) return;
        Bfloat16* row = rows + block * plane * TILE_SUM;
        const int64_t from = channel + block * TILE_SUM;
        if (pixel < 0) {
            std::memset(row, 0, TILE_SUM * sizeof *row);
        } else if (inputs - from >= TILE_SUM) {
            const Bfloat16* source = position.level.input + pixel * inputs + from;
            __builtin_prefetch(source + PIXELS_AHEAD * inputs);
            std::memcpy(row, source, TILE_SUM * sizeof *row);
        } else {
            std::memset(row, 0, TILE_SUM * sizeof *row);
            std::memcpy(row, position.level.input + pixel * inputs + from, (inputs - from) * sizeof *row);
        }
        if (++block < blocks) return;
        block = 0;
        rows += TILE_SUM;
        positions--;
        position.advance();
        pixel = position.pixel();
    }

    void finish() {
        while (positions > 0) step();
    }
};

// Writes sums [32 pixels][32 outputs], one pixel at each step.
struct Writer {
    const float* sums;
    const int64_t* places;  // of each pixel in both maps, negative if it is not one
    int64_t pixel = PIXELS;  // the next one
    Bfloat16* output;
    const Bfloat16* gate;
    int64_t count;  // of real outputs
    bool relu;
    float bias[COLUMNS];

    inline __attribute__((always_inline)) void step() {
        if (pixel >= PIXELS) return;
        const int64_t place = places[pixel];
        const float* values = sums + pixel * COLUMNS;
        const int64_t later = std::max<int64_t>(places[pixel++ + PIXELS], 0);
        __builtin_prefetch(output + later, 1, 2);
        if (gate) __builtin_prefetch(gate + later, 0, 2);
        if (place < 0) return;
        if (count == COLUMNS) {
            write(values, place, COLUMNS);
        } else {
            write(values, place, count);
        }
    }

    inline __attribute__((always_inline)) void write(const float* values, int64_t place, int64_t columns) const {
        Bfloat16 gates[COLUMNS] = {}, results[COLUMNS];
        for (int64_t column = 0; column < COLUMNS; column++) {
            const float value = values[column] + bias[column];
            results[column] = rounded_value(relu && value < 0.0f ? 0.0f : value);  // NaN stays, as in torch
        }
        if (gate) {
            std::memcpy(gates, gate + place, columns * sizeof *gates);
            for (int64_t column = 0; column < COLUMNS; column++) {
                results[column] = is_open(gates[column]) ? results[column] : Bfloat16{0};
            }
        }
        std::memcpy(output + place, results, columns * sizeof *results);
    }

    void finish() {
        while (pixel < PIXELS) step();
    }
};

// sums [32 pixels][32 outputs] (+)= the windows' products with the weights of a chunk. Between the
// tile instructions, whose unit is the bottleneck, the sums before are written and what comes next
// is copied.
template <typename Tiles>
static inline __attribute__((always_inline)) void multiply_windows(
    const Bfloat16* rows, const int64_t* taps, const Plan& plan, int64_t blocks, const Bfloat16* weights,
    bool accumulate, float* sums, Writer& writer, Copier& copier) {
    constexpr int64_t SUMS_STRIDE = COLUMNS * sizeof(float), ROW_BYTES = TILE_SUM * sizeof(Bfloat16);
    constexpr int64_t LOWER = TILE_ROWS * COLUMNS;
    if (accumulate) {
        Tiles::template load<0>(sums, SUMS_STRIDE);
        Tiles::template load<1>(sums + TILE_ROWS, SUMS_STRIDE);
        Tiles::template load<2>(sums + LOWER, SUMS_STRIDE);
        Tiles::template load<3>(sums + LOWER + TILE_ROWS, SUMS_STRIDE);
    } else {
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
        Tiles::template zero<3>();
    }
    for (int64_t block = 0; block < blocks; block++, rows += plan.reach * TILE_SUM) {
        for (int64_t tap = 0; tap < TAPS; tap++, weights += 2 * TILE_VALUES) {
            Tiles::template load<6>(weights, ROW_BYTES);
            Tiles::template load<4>(rows + taps[tap], ROW_BYTES);
            Tiles::template load<5>(rows + taps[tap] + TILE_VALUES, ROW_BYTES);
            Tiles::template load<7>(weights + TILE_VALUES, ROW_BYTES);
            Tiles::template multiply<0, 4, 6>();
            Tiles::template multiply<2, 5, 6>();
            Tiles::template multiply<1, 4, 7>();
            Tiles::template multiply<3, 5, 7>();
            writer.step();
            copier.step();
        }
    }
    Tiles::template store<0>(sums, SUMS_STRIDE);
    Tiles::template store<1>(sums + TILE_ROWS, SUMS_STRIDE);
    Tiles::template store<2>(sums + LOWER, SUMS_STRIDE);
    Tiles::template store<3>(sums + LOWER + TILE_ROWS, SUMS_STRIDE);
}

// A part of a call: a block of positions of a level, and some pairs of tiles of output channels.
struct Task {
    const Level* level;
    int64_t first, count;  // positions
    int64_t first_pair, end_pair;

    Task(const Plan& plan, const Level* levels, int64_t index) : level(levels) {
        const int64_t parts = divided_up(plan.pairs, plan.pairs_of_task);
        int64_t block = index / parts;
        for (; block >= count_blocks(level, 1, plan.block); level++) block -= count_blocks(level, 1, plan.block);
        first = block * plan.block;
        count = std::min(plan.block, count_positions(*level) - first);
        first_pair = index % parts * plan.pairs_of_task;
        end_pair = std::min(plan.pairs, first_pair + plan.pairs_of_task);
    }

    int64_t first_copied() const { return first - pitch_of(*level) - 1; }
    // The positions of whole tiles, and what their windows reach.
    int64_t end() const { return divided_up(count, PIXELS) * PIXELS; }
    int64_t count_copied() const { return end() + 2 * pitch_of(*level) + 2; }

    Copier copier(const Plan& plan, int64_t chunk, Bfloat16* rows) const {
        const int64_t blocks = std::min(plan.chunk, plan.sum_blocks - chunk);
        return {*level, first_copied(), count_copied(), plan.inputs, chunk * TILE_SUM, blocks, plan.reach, rows};
    }
};

// A thread's scratch memory.
struct Scratch {
    Bfloat16* rows;        // of the chunk at hand
    Bfloat16* other_rows;  // of the one that follows
    float* sums;
    int64_t* places;

    Scratch(const Plan& plan, char* memory)
        : rows(reinterpret_cast<Bfloat16*>(memory)),
          other_rows(reinterpret_cast<Bfloat16*>(memory + plan.rows_bytes)),
          sums(reinterpret_cast<float*>(memory + 2 * plan.rows_bytes)),
          places(reinterpret_cast<int64_t*>(memory + 2 * plan.rows_bytes + plan.sums_bytes)) {}
};

// One task through all input channels, of which the first chunk is copied already; that of `next`,
// which is what this thread does then, or none, is copied meanwhile.
template <typename Tiles>
static void convolve_task(
    const Plan& plan, const Task& task, const Task* next, const Bfloat16* weights, const float* bias, bool relu,
    Scratch& scratch) {
    int64_t* places = scratch.places;
    const Level& level = *task.level;
    const int64_t pitch = pitch_of(level), end = task.end();
    int64_t taps[TAPS];
    for (int64_t tap = 0; tap < TAPS; tap++) taps[tap] = (tap / 3 * pitch + tap % 3) * TILE_SUM;
    Position position(level, task.first);
    for (int64_t index = 0; index < end + PIXELS; index++, position.advance()) {
        const int64_t pixel = position.pixel();
        places[index] = pixel < 0 ? -1 : pixel * plan.outputs;
    }
    Writer writer{};
    for (int64_t chunk = 0; chunk < plan.sum_blocks; chunk += plan.chunk) {
        const int64_t blocks = std::min(plan.chunk, plan.sum_blocks - chunk);
        const bool is_last = chunk + blocks == plan.sum_blocks;
        Copier copier = is_last ? (next ? *next : task).copier(plan, 0, scratch.other_rows)
                                : task.copier(plan, chunk + plan.chunk, scratch.other_rows);
        if (is_last && !next) copier.positions = 0;
        int64_t number = 0;
        for (int64_t pair = task.first_pair; pair < task.end_pair; pair++) {
            const int64_t channel = pair * COLUMNS, columns = std::min(COLUMNS, plan.outputs - channel);
            const Bfloat16* tiles = weights + (pair * plan.sum_blocks + chunk) * TAPS * 2 * TILE_VALUES;
            for (int64_t pixel = 0; pixel < end; pixel += PIXELS, number++) {
                float* sum = scratch.sums + (plan.has_one_chunk() ? number % 2 : number) * PIXELS * COLUMNS;
                multiply_windows<Tiles>(
                    scratch.rows + pixel * TILE_SUM, taps, plan, blocks, tiles, chunk > 0, sum, writer, copier);
                writer.finish();
                if (!is_last) continue;
                writer = {sum, places + pixel, 0, level.output + channel, nullptr, columns, relu, {}};
                if (level.gate) writer.gate = level.gate + channel;
                if (bias) std::memcpy(writer.bias, bias + channel, columns * sizeof *bias);
            }
        }
        copier.finish();
        std::swap(scratch.rows, scratch.other_rows);
    }
    writer.finish();
}

template <typename Tiles>
static void convolve(
    const Plan& plan, const Level* levels, int64_t level_count, const Bfloat16* weights, const float* bias,
    bool relu, char* scratch, int32_t threads) {
    const int64_t tasks =
        count_blocks(levels, level_count, plan.block) * divided_up(plan.pairs, plan.pairs_of_task);
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads)
    {
        Tiles::begin();
        Scratch own(plan, scratch + omp_get_thread_num() * divided_up(plan.thread_bytes(), 64) * 64);
        // Taken one ahead, so that its pixels can be copied meanwhile.
        int64_t index = taken++;
        if (index < tasks) Task(plan, levels, index).copier(plan, 0, own.rows).finish();
        for (int64_t next; index < tasks; index = next) {
            next = taken++;
            const Task task(plan, levels, index), following(plan, levels, std::min(next, tasks - 1));
            convolve_task<Tiles>(plan, task, next < tasks ? &following : nullptr, weights, bias, relu, own);
        }
        Tiles::end();
    }
}

// The tile of a tap: 16 pairs of summed channels from `summed` on, 16 columns from `column` on.
// `sums` and `columns`: how many of both are real; `sum_step` and `column_step`: from one to the next.
static void pack_tile(
    const Bfloat16* weight, int64_t sums, int64_t sum_step, int64_t columns, int64_t column_step, Bfloat16* tile) {
    Bfloat16 values[TILE_SUM][TILE_ROWS] = {};
    if (sum_step == 1) {
        for (int64_t column = 0; column < std::min(columns, TILE_ROWS); column++) {
            for (int64_t sum = 0; sum < std::min(sums, TILE_SUM); sum++) {
                values[sum][column] = weight[column * column_step + sum];
            }
        }
    } else {
        for (int64_t sum = 0; sum < std::min(sums, TILE_SUM); sum++) {
            for (int64_t column = 0; column < std::min(columns, TILE_ROWS); column++) {
                values[sum][column] = weight[sum * sum_step + column];
            }
        }
    }
    for (int64_t pair = 0; pair < TILE_PAIRS; pair++) {
        for (int64_t column = 0; column < TILE_ROWS; column++) {
            tile[(pair * TILE_ROWS + column) * 2] = values[2 * pair][column];
            tile[(pair * TILE_ROWS + column) * 2 + 1] = values[2 * pair + 1][column];
        }
    }
}

extern "C" {

// Whether this process may use the processor's tiles.
int32_t tile_convolution_permitted() { return tiles_permitted(); }

// BF16 values of packed weights.
int64_t tile_convolution_weight_values(int64_t inputs, int64_t outputs) {
    return divided_up(inputs, TILE_SUM) * divided_up(outputs, COLUMNS) * TAPS * 2 * TILE_VALUES;
}

// Pack `weight`, BF16 [rows, 3, 3, columns] in memory, for outputs from inputs, where rows are
// outputs and columns are inputs; or, if `turned`, for the inputs' gradients from the outputs'.
void tile_convolution_pack(
    const Bfloat16* weight, int64_t rows, int64_t columns, int32_t turned, Bfloat16* packed, int32_t threads) {
    const int64_t inputs = turned ? rows : columns, outputs = turned ? columns : rows;
    const int64_t sum_step = turned ? TAPS * columns : 1, column_step = turned ? 1 : TAPS * columns;
    const int64_t sum_blocks = divided_up(inputs, TILE_SUM), pairs = divided_up(outputs, COLUMNS);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t pair = 0; pair < pairs; pair++) {
        for (int64_t block = 0; block < sum_blocks; block++) {
            Bfloat16* tile = packed + (pair * sum_blocks + block) * TAPS * 2 * TILE_VALUES;
            for (int64_t tap = 0; tap < TAPS; tap++) {
                for (int64_t half = 0; half < 2; half++, tile += TILE_VALUES) {
                    const int64_t sum = block * TILE_SUM, column = pair * COLUMNS + half * TILE_ROWS;
                    const int64_t from = (turned ? TAPS - 1 - tap : tap) * columns;
                    pack_tile(
                        weight + from + sum * sum_step + column * column_step, inputs - sum, sum_step,
                        outputs - column, column_step, tile);
                }
            }
        }
    }
}

// Bytes of scratch of all threads, whose address is a multiple of 64.
int64_t tile_convolution_scratch_bytes(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, int32_t threads) {
    return divided_up(make_plan(levels, level_count, inputs, outputs, threads).thread_bytes(), 64) * 64 * threads;
}

// Outputs of all levels from packed weights; `bias` float32 [outputs] or none.
void tile_convolution(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, const Bfloat16* weights,
    const float* bias, int32_t relu, void* scratch, int32_t threads, int32_t emulated) {
    const Plan plan = make_plan(levels, level_count, inputs, outputs, threads);
    char* bytes = static_cast<char*>(scratch);
#if defined(HAS_TILE_INSTRUCTIONS)
    if (!emulated) return convolve<HardwareTiles>(plan, levels, level_count, weights, bias, relu, bytes, threads);
#endif
    convolve<EmulatedTiles>(plan, levels, level_count, weights, bias, relu, bytes, threads);
}

}  // extern "C"
