// 3×3 convolutions of stride 1 and padding 1 in BF16 by AMX's tiles.
//
// The pixels of all images of a level are taken as one sequence, row after row, with one zero after
// each row and a row of zeros after each image: position (image · (height + 1) + y) · (width + 1) + x.
// A window's nine pixels are then at fixed distances from each other, without a case for borders, and
// tiles are full on small maps as well. Each task copies a block of the sequence, and what its windows
// reach beyond it, to scratch [blocks of 32 channels][positions][32]: a tile's rows follow each other
// there, and padding costs nothing later. The weights are tiles too, see tile_weights.cpp. A sum of many
// channels is done in chunks, so that a chunk's pixels and the float32 sums stay in the level-2 cache.
//
// Without a bias, which is how gradients are computed, tiles of pixels whose windows have no values are left out.
//
// Of the eight tile registers six hold sums, one the weights and one the pixels: each tile of weights,
// which comes from the level-2 cache, is used six times. The usual 2×2 sums use each twice.

#include <omp.h>

#include <atomic>

#include "levels.h"
#include "tile_writer.h"

constexpr int64_t TAPS = 9;
constexpr int64_t MOST_TILES = 6;          // of pixels that one tile of weights is multiplied with
constexpr int64_t PIXELS = MOST_TILES * TILE_ROWS;
constexpr int64_t CHUNK = 8;  // blocks of 32 input channels that are summed at once; 6 were 10 % slower
constexpr int64_t LARGEST_BLOCK = 6 * PIXELS;  // positions of a task; 4 to 8 times PIXELS are within 1 %
constexpr int64_t SMALLEST_BLOCK = PIXELS;
constexpr int64_t PIXELS_AHEAD = 4;        // that are fetched before they are copied
constexpr int64_t TASK_BYTES = 1280 << 10;  // of the level-2 cache, whose rest is for weights
constexpr int64_t TASKS_PER_THREAD = 4;

static int64_t row_pitch(const Level& level) { return level.width + 1; }

static int64_t count_positions(const Level& level) {
    return level.images * (level.height + 1) * row_pitch(level);
}

// A walk along the sequence of positions, from before the first pixel to behind the last.
struct Position {
    const Level& level;
    int64_t image, y, x;

    Position(const Level& level, int64_t index) : level(level) {
        const int64_t plane = (level.height + 1) * row_pitch(level);
        // The largest distance before the first pixel is a row and a pixel, less than two planes.
        image = (index + 2 * plane) / plane - 2;
        y = (index - image * plane) / row_pitch(level);
        x = (index - image * plane) % row_pitch(level);
    }

    void advance() {
        if (++x < row_pitch(level)) return;
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
    for (int64_t index = 0; index < level_count; index++) pitch = std::max(pitch, row_pitch(levels[index]));
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

// Copies channels `channel` … `channel + 32 · blocks` of some positions of a level to `rows`
// [blocks][plane][32], with zeros where there are none: 32 values at each step. Pixels are the outer loop,
// since a pixel's channels lie together in the map.
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

// sums [tiles · 16 pixels][32 outputs, of which 16] (+)= the products of the windows that begin at `starts` in
// `rows` with the weights of a chunk. One tile of weights, which comes from the level-2 cache, serves up to
// six of pixels, which stay in the level-1 cache for all nine taps. Between the tile instructions, whose unit
// is the bottleneck, the previous sums are written and the next pixels are copied.
template <typename Tiles, int tiles>
static inline __attribute__((always_inline)) void multiply_windows(
    const Bfloat16* rows, const int64_t* starts, const int64_t* taps, const Plan& plan, int64_t blocks,
    const Bfloat16* weights, bool accumulate, float* sums, Writer& writer, Copier& copier) {
    constexpr int64_t SUMS_STRIDE = COLUMNS * sizeof(float), ROW_BYTES = TILE_SUM * sizeof(Bfloat16);
    begin_sums<Tiles, tiles>(sums, !accumulate, TILE_ROWS * COLUMNS, SUMS_STRIDE);
    for (int64_t block = 0; block < blocks; block++, rows += plan.reach * TILE_SUM) {
        for (int64_t tap = 0; tap < TAPS; tap++, weights += TILE_VALUES) {
            const Bfloat16* window = rows + taps[tap];
            Tiles::template load<6>(weights, ROW_BYTES);
            // The next tile of weights, to the level-1 cache while this one is used: 2 % of the time.
            for (int64_t line = 0; line < TILE_ROWS; line++) {
                __builtin_prefetch(weights + TILE_VALUES + line * TILE_SUM, 0, 3);
            }
            for_each<tiles>([&](auto tile) __attribute__((always_inline)) {
                Tiles::template load<7>(window + starts[tile], ROW_BYTES);
                Tiles::template multiply<tile, 7, 6>();
                // Spread over the products, so that neither delays the tile unit.
                if constexpr (tile == (tiles - 1) / 3) writer.template step<Tiles>();
                if constexpr (tile == tiles / 2) copier.step();
            });
        }
    }
    store_sums<Tiles, tiles>(sums, TILE_ROWS * COLUMNS, SUMS_STRIDE);
}

// The same for a number of tiles that is known at run time only.
template <typename Tiles, typename... Arguments>
static void multiply_some(int64_t tiles, Arguments&&... arguments) {
    switch (tiles) {
        case 1: return multiply_windows<Tiles, 1>(arguments...);
        case 2: return multiply_windows<Tiles, 2>(arguments...);
        case 3: return multiply_windows<Tiles, 3>(arguments...);
        case 4: return multiply_windows<Tiles, 4>(arguments...);
        case 5: return multiply_windows<Tiles, 5>(arguments...);
        default: return multiply_windows<Tiles, 6>(arguments...);
    }
}

// A part of a call: a block of positions of a level, and some pairs of tiles of output channels.
struct Task {
    const Level* level;
    int64_t first, count;  // positions
    int64_t first_pair, end_pair;
    int64_t tiles = 0;     // that are computed
    int64_t starts[LARGEST_BLOCK / TILE_ROWS];  // of their windows, in a plane of scratch

    Task() = default;

    Task(const Plan& plan, const Level* levels, int64_t index) : level(levels) {
        const int64_t parts = divided_up(plan.pairs, plan.pairs_of_task);
        int64_t block = index / parts;
        for (; block >= count_blocks(level, 1, plan.block); level++) block -= count_blocks(level, 1, plan.block);
        first = block * plan.block;
        count = std::min(plan.block, count_positions(*level) - first);
        first_pair = index % parts * plan.pairs_of_task;
        end_pair = std::min(plan.pairs, first_pair + plan.pairs_of_task);
    }

    // Lists the tiles whose windows have values, or all; the outputs of others become zeros.
    void list_tiles(const Plan& plan, bool all) {
        const int64_t channel = first_pair * COLUMNS, channels = std::min(end_pair * COLUMNS, plan.outputs) - channel;
        for (int64_t tile = first; tile < first + end(); tile += TILE_ROWS) {
            bool found = all;
            for (int64_t row = -1; row <= 1 && !found; row++) {
                Position position(*level, tile + row * row_pitch(*level) - 1);
                for (int64_t index = 0; index < TILE_ROWS + 2 && !found; index++, position.advance()) {
                    const int64_t pixel = position.pixel();
                    found = pixel >= 0 && has_values(level->input + pixel * plan.inputs, plan.inputs);
                }
            }
            if (found) starts[tiles++] = (tile - first) * TILE_SUM;
            Position position(*level, tile);
            for (int64_t index = 0; index < TILE_ROWS && !found; index++, position.advance()) {
                const int64_t pixel = position.pixel();
                if (pixel >= 0) std::fill_n(level->output + pixel * plan.outputs + channel, channels, Bfloat16{0});
            }
        }
    }

    int64_t first_copied() const { return first - row_pitch(*level) - 1; }
    // The positions of whole tiles, and what their windows reach.
    int64_t end() const { return rounded_up(count, TILE_ROWS); }
    int64_t count_copied() const { return end() + 2 * row_pitch(*level) + 2; }

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
// which is what this thread does then, is copied meanwhile, if it has any tiles.
template <typename Tiles>
static void convolve_task(
    const Plan& plan, const Task& task, const Task& next, const Bfloat16* weights, const float* bias, bool relu,
    Scratch& scratch) {
    int64_t* places = scratch.places;
    const Level& level = *task.level;
    const int64_t pitch = row_pitch(level), end = task.tiles * TILE_ROWS;
    int64_t taps[TAPS];
    for (int64_t tap = 0; tap < TAPS; tap++) taps[tap] = (tap / 3 * pitch + tap % 3) * TILE_SUM;
    for (int64_t index = 0; index < end; index += TILE_ROWS) {
        Position position(level, task.first + task.starts[index / TILE_ROWS] / TILE_SUM);
        for (int64_t row = 0; row < TILE_ROWS; row++, position.advance()) {
            const int64_t pixel = position.pixel();
            places[index + row] = pixel < 0 ? -1 : pixel * plan.outputs;
        }
    }
    // Behind the last pixels the first ones are written again, of the next pair of tiles of channels.
    for (int64_t index = 0; index < PIXELS; index++) places[end + index] = places[index] + COLUMNS;
    const Target target{level.output, nullptr, level.gate, bias, relu, plan.outputs};
    Writer writer;
    for (int64_t chunk = 0; chunk < plan.sum_blocks; chunk += plan.chunk) {
        const int64_t blocks = std::min(plan.chunk, plan.sum_blocks - chunk);
        const bool is_last = chunk + blocks == plan.sum_blocks;
        Copier copier = is_last ? (next.tiles ? next : task).copier(plan, 0, scratch.other_rows)
                                : task.copier(plan, chunk + plan.chunk, scratch.other_rows);
        if (is_last && !next.tiles) copier.positions = 0;
        int64_t number = 0;
        for (int64_t pair = task.first_pair; pair < task.end_pair; pair++) {
            const int64_t channel = pair * COLUMNS, columns = std::min(COLUMNS, plan.outputs - channel);
            const int64_t tile = TAPS * TILE_VALUES, row = pair * 2 * plan.sum_blocks + chunk;
            for (int64_t pixel = 0; pixel < end; pixel += PIXELS, number++) {
                // With one chunk two buffers take turns: the writer reads one while the other is summed.
                // With several, all sums stay until the last chunk.
                float* sum = scratch.sums + (plan.has_one_chunk() ? number % 2 : number) * PIXELS * COLUMNS;
                const int64_t pixels = std::min(PIXELS, end - pixel);
                for (int64_t half = 0; half * TILE_ROWS < columns; half++) {
                    multiply_some<Tiles>(
                        pixels / TILE_ROWS, scratch.rows, task.starts + pixel / TILE_ROWS, taps, plan, blocks,
                        weights + (row + half * plan.sum_blocks) * tile, chunk > 0, sum + half * TILE_ROWS, writer,
                        copier);
                }
                writer.template finish<Tiles>();
                if (!is_last) continue;
                writer = Writer(target, channel, sum, places + pixel, pixels, PIXELS);
            }
        }
        copier.finish();
        std::swap(scratch.rows, scratch.other_rows);
    }
    writer.template finish<Tiles>();
}

template <typename Tiles>
static void convolve(
    const Plan& plan, const Level* levels, int64_t level_count, const Bfloat16* weights, const float* bias,
    bool relu, char* scratch, int32_t threads) {
    const int64_t tasks =
        count_blocks(levels, level_count, plan.block) * divided_up(plan.pairs, plan.pairs_of_task);
    // A counter, not OpenMP's dynamic schedule: the next task's pixels are copied during this one.
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads)
    {
        Tiles::begin();
        Scratch thread_scratch(plan, scratch + omp_get_thread_num() * rounded_up(plan.thread_bytes(), 64));
        const auto take = [&] {
            for (int64_t index = taken++; index < tasks; index = taken++) {
                Task task(plan, levels, index);
                task.list_tiles(plan, bias != nullptr);
                if (task.tiles) return task;
            }
            return Task();
        };
        // Taken one ahead, so that its pixels can be copied meanwhile.
        Task task = take();
        if (task.tiles) task.copier(plan, 0, thread_scratch.rows).finish();
        while (task.tiles) {
            const Task next = take();
            convolve_task<Tiles>(plan, task, next, weights, bias, relu, thread_scratch);
            task = next;
        }
        Tiles::end();
    }
}

extern "C" {

// Bytes of scratch of all threads, whose address is a multiple of 64.
int64_t tile_convolution_scratch_bytes(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, int32_t threads) {
    return rounded_up(make_plan(levels, level_count, inputs, outputs, threads).thread_bytes(), 64) * threads;
}

// Outputs of all levels from weights as tiles; `bias` float32 [outputs] or none. Without one they are zero where the
// windows are, and not computed there.
void tile_convolution(
    const Level* levels, int64_t level_count, int64_t inputs, int64_t outputs, const Bfloat16* weights,
    const float* bias, int32_t relu, void* scratch, int32_t threads, int32_t tiles) {
    const Plan plan = make_plan(levels, level_count, inputs, outputs, threads);
    with_tiles(tiles, [&](auto kind) {
        convolve<decltype(kind)>(
            plan, levels, level_count, weights, bias, relu, static_cast<char*>(scratch), threads);
    });
}

}  // extern "C"
