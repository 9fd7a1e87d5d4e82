// 1×1 convolutions of stride 1 in BF16 by AMX's tiles, or by AVX-512 alone, with what follows them: the bias, the
// sum with a residual, ReLU or its mask.
//
// They are bound by memory more than by arithmetic, so each map is read and written once. A task is
// some pixels, whose channels lie one after the other in memory and are tiles as they are. The
// weights are tiles too, see tile_weights.cpp. They stay in the level-2 cache while the pixels pass by,
// 32 at a time; where they are too large, and always without AMX, those of 32 outputs stay in the level-1
// cache while the task's pixels, which stay in the level-2 cache, pass by. What the next task reads is fetched
// meanwhile.

#include <omp.h>

#include <atomic>

#include "tile_writer.h"
#if defined(HAS_VECTOR_TILES)
#include "panel_products.h"
#endif

constexpr int64_t PIXELS = 32;  // two tiles of rows
constexpr int64_t ROWS = 12;    // without tiles: 12 pixels × 2 vectors of outputs are 24 of the 32 vector registers
constexpr int64_t LINE = 64;
constexpr int64_t MOST_PIXELS = 256;        // of a task
constexpr int64_t TASK_BYTES = 512 << 10;   // of maps; the level-2 cache holds those of two tasks
constexpr int64_t WEIGHT_BYTES = 640 << 10;  // that stay in the level-2 cache beside them
constexpr int64_t TASKS_PER_THREAD = 4;     // so that a thread that is delayed leaves tasks to the others

struct Plan {
    int64_t pixels, inputs, outputs;
    int64_t blocks, pairs;           // of 32 inputs, of 32 outputs
    int64_t task_pixels, pairs_of_task;
    int64_t tasks;

    bool weights_fit() const { return inputs * outputs * int64_t{sizeof(Bfloat16)} <= WEIGHT_BYTES; }
    int64_t tail_bytes() const { return PIXELS * inputs * int64_t{sizeof(Bfloat16)}; }
    int64_t sums_bytes() const { return 2 * PIXELS * COLUMNS * int64_t{sizeof(float)}; }
    int64_t places_bytes() const { return (task_pixels + 2 * PIXELS) * int64_t{sizeof(int64_t)}; }
    int64_t thread_bytes() const { return rounded_up(tail_bytes() + sums_bytes() + places_bytes(), LINE); }
};

// `maps`: how many of the output's shape are read or written. `rows`: pixels that are multiplied at once.
static Plan make_plan(int64_t pixels, int64_t inputs, int64_t outputs, int64_t maps, int64_t threads, int64_t rows) {
    Plan plan{pixels, inputs, outputs, inputs / TILE_SUM, outputs / COLUMNS, 0, 0, 0};
    const int64_t pixel_bytes = (inputs + maps * outputs) * int64_t{sizeof(Bfloat16)};
    // In units of `rows`.
    const int64_t most = std::max<int64_t>(std::min(TASK_BYTES / pixel_bytes, MOST_PIXELS) / rows, 2);
    const int64_t all = divided_up(pixels, rows);
    if (rows == ROWS) {  // as many for each thread, in as few tasks as the caches permit
        plan.task_pixels = divided_up(all, rounded_up(divided_up(all, most), threads)) * rows;
    } else {
        plan.task_pixels = std::min(most, std::max<int64_t>(divided_up(all, TASKS_PER_THREAD * threads), 2)) * rows;
    }
    const int64_t groups = divided_up(pixels, plan.task_pixels);
    const int64_t parts = std::min(plan.pairs, divided_up(TASKS_PER_THREAD * threads, groups));
    plan.pairs_of_task = divided_up(plan.pairs, parts);
    plan.tasks = groups * divided_up(plan.pairs, plan.pairs_of_task);
    return plan;
}

// Where results lie in maps that have more rows and columns: every `step`-th of both is one.
struct Spread {
    int64_t height, width;            // of the results
    int64_t map_height, map_width;
    int64_t step;

    int64_t place(int64_t pixel) const {
        if (step == 1) return pixel;
        const int64_t image = pixel / (height * width), y = pixel / width % height, x = pixel % width;
        return (image * map_height + step * y) * map_width + step * x;
    }
};

struct Task {
    int64_t first, end;  // pixels
    int64_t first_pair, end_pair;

    Task(const Plan& plan, int64_t index) {
        const int64_t parts = divided_up(plan.pairs, plan.pairs_of_task);
        first = index / parts * plan.task_pixels;
        end = std::min(first + plan.task_pixels, plan.pixels);
        first_pair = index % parts * plan.pairs_of_task;
        end_pair = std::min(first_pair + plan.pairs_of_task, plan.pairs);
    }
};

// Fetches what a task will read to the level-2 cache, a line at each step.
struct Fetcher {
    const char* next[3] = {};
    const char* end[3] = {};
    int64_t range = 0;

    Fetcher() = default;

    Fetcher(const Plan& plan, const Bfloat16* input, const Target& target, const Task& task) {
        const Bfloat16* maps[] = {input, target.added, target.gate};
        const int64_t channels[] = {plan.inputs, plan.outputs, plan.outputs};
        for (int index = 0; index < 3; index++) {
            if (!maps[index]) continue;
            next[index] = reinterpret_cast<const char*>(maps[index] + task.first * channels[index]);
            end[index] = reinterpret_cast<const char*>(maps[index] + task.end * channels[index]);
        }
    }

    inline __attribute__((always_inline)) void step() {
        if (next[range] == end[range]) {
            if (range < 2) range++;
            return;
        }
        __builtin_prefetch(next[range], 0, 2);
        next[range] += LINE;
    }
};

// sums [32 pixels][32 outputs] = rows [32][inputs] times the weights of a pair. Between the tile
// instructions the previous sums are written, `writes` pixels at a time, and `fetches` lines prefetched.
template <typename Tiles>
static inline __attribute__((always_inline)) void multiply(
    const Plan& plan, const Bfloat16* rows, const Bfloat16* weights, float* sums, Writer& writer, int64_t writes,
    Fetcher& fetcher, int64_t fetches) {
    constexpr int64_t SUMS_STRIDE = COLUMNS * sizeof(float), ROW_BYTES = TILE_SUM * sizeof(Bfloat16);
    const int64_t pixel_bytes = plan.inputs * int64_t{sizeof(Bfloat16)};
    begin_sums<Tiles, 4>(sums, true);
    for (int64_t block = 0; block < plan.blocks; block++, rows += TILE_SUM, weights += TILE_VALUES) {
        Tiles::template load<6>(weights, ROW_BYTES);
        Tiles::template load<4>(rows, pixel_bytes);
        Tiles::template load<5>(rows + TILE_ROWS * plan.inputs, pixel_bytes);
        Tiles::template load<7>(weights + plan.blocks * TILE_VALUES, ROW_BYTES);
        Tiles::template multiply<0, 4, 6>();
        Tiles::template multiply<2, 5, 6>();
        for (int64_t count = 0; count < writes; count++) writer.template step<Tiles>();
        Tiles::template multiply<1, 4, 7>();
        Tiles::template multiply<3, 5, 7>();
        for (int64_t count = 0; count < fetches; count++) fetcher.step();
    }
    store_sums<Tiles, 2>(sums, TILE_ROWS, SUMS_STRIDE);
    store_sums<Tiles, 2, 2>(sums + TILE_ROWS * COLUMNS, TILE_ROWS, SUMS_STRIDE);
}

template <typename Tiles>
static void convolve_task(
    const Plan& plan, const Bfloat16* input, const Bfloat16* weights, const Target& target, const Spread& spread,
    const Task& task, Fetcher fetcher, char* scratch) {
    Bfloat16* tail = reinterpret_cast<Bfloat16*>(scratch);
    float* sums = reinterpret_cast<float*>(scratch + plan.tail_bytes());
    int64_t* places = reinterpret_cast<int64_t*>(scratch + plan.tail_bytes() + plan.sums_bytes());
    for (int64_t index = 0; index < plan.task_pixels + 2 * PIXELS; index++) {
        const int64_t pixel = task.first + index;
        places[index] = pixel < task.end ? spread.place(pixel) * plan.outputs : -1;
    }
    const int64_t tail_pixels = (task.end - task.first) % PIXELS;
    if (tail_pixels > 0) {  // copied, as a tile load of 16 rows would read past the map; zeros behind
        std::memset(tail, 0, plan.tail_bytes());
        std::memcpy(tail, input + (task.end - tail_pixels) * plan.inputs, tail_pixels * plan.inputs * sizeof *tail);
    }
    const int64_t writes = divided_up(PIXELS, plan.blocks);
    const int64_t maps = 1 + (target.added != nullptr) + (target.gate != nullptr);
    const int64_t lines = PIXELS * (plan.inputs + (maps - 1) * plan.outputs) * int64_t{sizeof *input} / LINE;
    const int64_t fetches = divided_up(lines, plan.blocks * (task.end_pair - task.first_pair));
    Writer writer;
    int64_t number = 0;
    const auto convolve_pair = [&](int64_t first, int64_t pair) {
        const int64_t pixels = std::min(PIXELS, task.end - first);
        float* sum = sums + number++ % 2 * PIXELS * COLUMNS;
        const Bfloat16* rows = pixels < PIXELS ? tail : input + first * plan.inputs;
        const Bfloat16* tiles = weights + pair * plan.blocks * 2 * TILE_VALUES;
        multiply<Tiles>(plan, rows, tiles, sum, writer, writes, fetcher, fetches);
        writer.template finish<Tiles>();
        writer = Writer(target, pair * COLUMNS, sum, places + (first - task.first), pixels, PIXELS);
    };
    // While the weights stay in the cache, a pixel's outputs are written one after the other: 2.2 ms in place
    // of 2.4 for 256 → 512 channels. Larger weights are read once a task instead.
    if (plan.weights_fit()) {
        for (int64_t first = task.first; first < task.end; first += PIXELS) {
            for (int64_t pair = task.first_pair; pair < task.end_pair; pair++) convolve_pair(first, pair);
        }
    } else {
        for (int64_t pair = task.first_pair; pair < task.end_pair; pair++) {
            for (int64_t first = task.first; first < task.end; first += PIXELS) convolve_pair(first, pair);
        }
    }
    writer.template finish<Tiles>();
}

#if defined(HAS_VECTOR_TILES)
// 32 outputs of `count` pixels. Without tiles they are written from the registers that they are summed in, for which
// their memory is fetched meanwhile. `places`: where they lie in the maps.
WITH_BF16 static void convolve_rows(
    const Plan& plan, const Bfloat16* const* pixels, const Bfloat16* weights, const Target& target, const int64_t* places,
    int64_t count) {
    const Bfloat16* at[ROWS];
    __m512 sums[ROWS][2];
    for (int row = 0; row < ROWS; row++) {
        target.fetch<3>(places[row]);
        at[row] = pixels[row];
        sums[row][0] = sums[row][1] = _mm512_setzero_ps();
    }
    accumulate_pairs<ROWS>(at, 2, weights, weights + plan.blocks * TILE_VALUES, 2 * TILE_ROWS, plan.inputs / 2, sums);
    const __m512 low = target.bias ? _mm512_loadu_ps(target.bias) : _mm512_setzero_ps();
    const __m512 high = target.bias ? _mm512_loadu_ps(target.bias + 16) : _mm512_setzero_ps();
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++) {
        if (row == count) break;
        target.write_line(_mm512_add_ps(sums[row][0], low), _mm512_add_ps(sums[row][1], high), places[row]);
    }
}

template <>
void convolve_task<VectorTiles>(
    const Plan& plan, const Bfloat16* input, const Bfloat16* weights, const Target& target, const Spread& spread,
    const Task& task, Fetcher fetcher, char*) {
    const Bfloat16* pixels[MOST_PIXELS + ROWS];
    int64_t places[MOST_PIXELS + ROWS];
    const int64_t count = task.end - task.first;
    for (int64_t index = 0; index < rounded_up(count, ROWS); index++) {
        const int64_t pixel = std::min(task.first + index, task.end - 1);
        pixels[index] = input + pixel * plan.inputs;
        places[index] = spread.place(pixel) * plan.outputs;
    }
    const int64_t lines = count * plan.inputs * int64_t{sizeof *input} / LINE;
    const int64_t fetches = divided_up(lines, divided_up(count, ROWS) * (task.end_pair - task.first_pair));
    for (int64_t pair = task.first_pair; pair < task.end_pair; pair++) {
        for (int64_t first = 0; first < count; first += ROWS) {
            for (int64_t fetch = 0; fetch < fetches; fetch++) fetcher.step();
            convolve_rows(
                plan, pixels + first, weights + pair * plan.blocks * 2 * TILE_VALUES, target.from(pair * COLUMNS), places + first,
                count - first);
        }
    }
}
#endif

template <typename Tiles>
static void convolve(
    const Plan& plan, const Bfloat16* input, const Bfloat16* weights, const Target& target, const Spread& spread,
    char* scratch, int32_t threads) {
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads)
    {
        Tiles::begin();
        char* thread_scratch = scratch + omp_get_thread_num() * plan.thread_bytes();
        for (int64_t index = taken++, next; index < plan.tasks; index = next) {
            next = taken++;
            Fetcher fetcher;
            if (next < plan.tasks) fetcher = Fetcher(plan, input, target, Task(plan, next));
            convolve_task<Tiles>(plan, input, weights, target, spread, Task(plan, index), fetcher, thread_scratch);
        }
        Tiles::end();
    }
}

extern "C" {

// Bytes of scratch of all threads, whose address is a multiple of 64.
int64_t pointwise_scratch_bytes(int64_t pixels, int64_t inputs, int64_t outputs, int32_t maps, int32_t threads) {
    return make_plan(pixels, inputs, outputs, maps, threads, PIXELS).thread_bytes() * threads;
}

// Outputs [pixels][outputs], spread over larger maps or not, from inputs [pixels][inputs], both multiples
// of 32, and weights as tiles.
void pointwise_convolution(
    const Bfloat16* input, int64_t pixels, int64_t inputs, const Bfloat16* weights, const Target* target,
    const Spread* spread, int32_t maps, void* scratch, int32_t threads, int32_t tiles) {
    const Plan plan = make_plan(pixels, inputs, target->outputs, maps, threads, tiles == TILES_OF_VECTORS ? ROWS : PIXELS);
    with_tiles(tiles, [&](auto kind) {
        convolve<decltype(kind)>(plan, input, weights, *target, *spread, static_cast<char*>(scratch), threads);
    });
}

}  // extern "C"
