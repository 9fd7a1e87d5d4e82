// Dense convolutions and their gradients in BF16 for maps of few pixels, by AVX-512.
//
// Small maps leave little to compute, and reading the weights takes most of the time. So the float32 weights,
// [outputs][taps][inputs] in memory, are read as they lie, scaled and rounded on the way, and no packed form
// of them is ever written: outputs and input gradients read them once each, weight gradients write theirs once.
// Kernels are 1×1 or 3×3 with a padding of half of it, strides 1 or 2, and inputs are a multiple of 32.
// Sums are float32. Maps are channels_last: [N, H, W, C].

#include <omp.h>

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include <vector>

#include "panel_products.h"
#include "tile_writer.h"

struct Shape {
    int64_t outputs, inputs, kernel, stride;

    int64_t taps() const { return kernel * kernel; }
    int64_t row() const { return taps() * inputs; }  // values of an output's weight
};

// A level: what is read, and what is written from it or, for weight gradients, the outputs' gradient.
struct Maps {
    const Bfloat16* source;
    Bfloat16* result;
    const Bfloat16 *added, *gate;  // see `Target`
    int64_t images, source_height, source_width, height, width;

    int64_t pixels() const { return images * height * width; }
};

constexpr int64_t LINE = 64;
constexpr int64_t FLOATS_OF_LINE = 16;
constexpr int64_t ROWS_AT_ONCE = 12;       // with two registers of sums each
constexpr int64_t PAIRS_A_STEP = 64;       // of products, between which weights are fetched
constexpr int64_t SUMS_BYTES = 256 << 10;  // beside panels in the level-2 cache

static int64_t count_pixels(const Maps* levels, int64_t level_count) {
    int64_t pixels = 0;
    for (int64_t l = 0; l < level_count; l++) pixels += levels[l].pixels();
    return pixels;
}

// Channels of the sources; behind an odd number is one of zeros.
static int64_t count_channels(const Shape& shape, bool backward) {
    return rounded_up(backward ? shape.outputs : shape.inputs, 2);
}

// Where each tap of each result's pixel reads its source, and where the pixels' results are.
struct Places {
    std::vector<Bfloat16> zeros;           // what taps read where there is no source
    std::vector<const Bfloat16*> sources;  // [pixels][taps]
    std::vector<int64_t> results;          // [pixels], in their level's map
};

// `backward`: the results are inputs of the convolution, the sources its outputs. Behind a stride of 2 not all
// taps have a source; pixels that have the same ones follow each other, so that others can be left out.
static Places find_places(const Maps* levels, int64_t level_count, const Shape& shape, bool backward) {
    const int64_t channels = count_channels(shape, backward), result_channels = backward ? shape.inputs : shape.outputs;
    const int64_t pixels = count_pixels(levels, level_count);
    Places places{std::vector<Bfloat16>(channels), std::vector<const Bfloat16*>(pixels * shape.taps()), std::vector<int64_t>(pixels)};
    const int64_t kernel = shape.kernel, stride = shape.stride, around = kernel / 2, phases = backward ? stride : 1;
    const Bfloat16** source = places.sources.data();
    int64_t* result = places.results.data();
    const auto along = [&](int64_t at, int64_t tap, int64_t size) -> int64_t {
        if (!backward) at = at * stride + tap - around;
        else if ((at += around - tap) % stride != 0) return -1;
        else at /= stride;
        return at < size ? at : -1;
    };
    const auto add_pixel = [&](const Maps& maps, int64_t image, int64_t y, int64_t x) {
        for (int64_t tap_y = 0; tap_y < kernel; tap_y++) {
            const int64_t from_y = along(y, tap_y, maps.source_height);
            const int64_t row = (image * maps.source_height + from_y) * maps.source_width;
            for (int64_t tap_x = 0; tap_x < kernel; tap_x++) {
                const int64_t from_x = along(x, tap_x, maps.source_width);
                *source++ = from_y >= 0 && from_x >= 0 ? maps.source + (row + from_x) * channels : places.zeros.data();
            }
        }
        *result++ = ((image * maps.height + y) * maps.width + x) * result_channels;
    };
    for (const Maps* maps = levels; maps < levels + level_count; maps++) {
        for (int64_t phase = 0; phase < phases * phases; phase++) {
            for (int64_t image = 0; image < maps->images; image++) {
                for (int64_t y = phase / phases; y < maps->height; y += phases) {
                    for (int64_t x = phase % phases; x < maps->width; x += phases) add_pixel(*maps, image, y, x);
                }
            }
        }
    }
    return places;
}

// Writes 32 channels of all results from their sums [pixels][32].
static void write_results(
    const Maps* levels, int64_t level_count, int64_t channels, int64_t channel, const float* bias, bool relu,
    const float* sums, const int64_t* places) {
    for (const Maps* maps = levels; maps < levels + level_count; maps++) {
        const Target target{maps->result, maps->added, maps->gate, bias, relu, channels};
        Writer(target, channel, sums, places, maps->pixels(), 0).template finish<VectorTiles>();
        sums += maps->pixels() * COLUMNS, places += maps->pixels();
    }
}

// Fetches the weights of the next block while this one's products are computed: segments of `length` floats that are
// `stride` apart. `steps`: how often `step` is called.
struct Fetcher {
    const float* segment;
    int64_t count, stride, length, share, at = 0;

    Fetcher(const float* first, int64_t count, int64_t stride, int64_t length, int64_t steps)
        : segment(first), count(count), stride(stride), length(length),
          share(divided_up(count * length / FLOATS_OF_LINE, steps)) {}

    void step() {
        for (int64_t line = 0; line < share && count > 0; line++) {
            _mm_prefetch(reinterpret_cast<const char*>(segment + at), _MM_HINT_T1);
            if ((at += FLOATS_OF_LINE) < length) continue;
            at = 0, segment += stride, count--;
        }
    }
};

// Two times 16 weights times their scales, rounded.
WITH_BF16 static inline __m512i rounded_pair(const float* low, const float* high, __m512 low_scale, __m512 high_scale) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
        _mm512_mul_ps(_mm512_loadu_ps(high), high_scale), _mm512_mul_ps(_mm512_loadu_ps(low), low_scale)));
}

WITH_BF16 static inline __m512 factor(const float* scale, int64_t output) {
    return _mm512_set1_ps(scale ? scale[output] : 1.0f);
}

// c [pixels][32] (+)= over the taps, channels of the sources by the tap's panel, which has `panel` values.
WITH_BF16 static void multiply_pixels(
    const Places& places, int64_t taps, int64_t first, const Bfloat16* panels, int64_t panel, int64_t pairs, float* c,
    bool accumulate, Fetcher& fetcher) {
    const int64_t pixels = places.results.size();
    const auto multiply_some = [&](auto rows, int64_t pixel) {
        bool is_begun = accumulate;
        for (int64_t tap = 0; tap < taps; tap++) {
            const Bfloat16* const* sources = &places.sources[pixel * taps + tap];
            bool is_read = false;
            for (int64_t row = 0; row < rows; row++) is_read |= sources[row * taps] != places.zeros.data();
            for (int64_t pair = 0; pair < pairs; pair += PAIRS_A_STEP) {
                fetcher.step();
                if (!is_read) continue;
                multiply<rows>(
                    [&](int64_t row) { return sources[row * taps] + first + 2 * pair; }, 2,
                    panels + tap * panel + pair * 2 * PANEL_COLUMNS, std::min(PAIRS_A_STEP, pairs - pair),
                    c + pixel * PANEL_COLUMNS, PANEL_COLUMNS, is_begun);
                is_begun = true;
            }
        }
        if (!is_begun) std::fill_n(c + pixel * PANEL_COLUMNS, rows * PANEL_COLUMNS, 0.0f);
    };
    int64_t pixel = 0;
    for (; pixel + ROWS_AT_ONCE <= pixels; pixel += ROWS_AT_ONCE) {
        multiply_some(std::integral_constant<int, ROWS_AT_ONCE>{}, pixel);
    }
    for (; pixel + 4 <= pixels; pixel += 4) multiply_some(std::integral_constant<int, 4>{}, pixel);
    for (; pixel < pixels; pixel++) multiply_some(std::integral_constant<int, 1>{}, pixel);
}

// How often `multiply_pixels` calls `Fetcher::step`.
static int64_t count_steps(int64_t pixels, int64_t taps, int64_t pairs) {
    const int64_t blocks = pixels / ROWS_AT_ONCE + pixels % ROWS_AT_ONCE / 4 + pixels % 4;
    return blocks * taps * divided_up(pairs, PAIRS_A_STEP);
}

// The weights of 32 outputs as panels, [taps][pairs of inputs]; the last outputs may not exist.
WITH_BF16 static void pack_outputs(
    const Shape& shape, const float* weight, const float* scale, int64_t output, Bfloat16* panels) {
    for (int64_t half = 0; half < 2; half++) {
        __m512 scales[16];
        const float* rows[16];
        for (int64_t column = 0; column < 16; column++) {
            const int64_t from = std::min(output + 16 * half + column, shape.outputs - 1);
            scales[column] = factor(scale, from), rows[column] = weight + from * shape.row();
        }
        for (int64_t place = 0; place < shape.row(); place += 32) {
            __m512i pairs[16];
            for (int64_t column = 0; column < 16; column++) {
                const float* values = rows[column] + place;
                pairs[column] = rounded_pair(values, values + 16, scales[column], scales[column]);
            }
            transpose(pairs);
            for (int64_t pair = 0; pair < 16; pair++) {
                _mm512_storeu_si512(panels + (place / 2 + pair) * 2 * PANEL_COLUMNS + 32 * half, pairs[pair]);
            }
        }
    }
}

// How the input gradients' channels are shared: tasks of some blocks of 32, whose sums stay in the level-2 cache.
struct InputPlan {
    int64_t blocks, task_blocks, tasks, pairs;  // pairs: of outputs whose weights are panels at once
    int64_t panel;                              // values; not a power of two, or all would share few sets of the caches
    int64_t panel_values, sum_values;           // of a task

    InputPlan(const Shape& shape, int64_t pixels, int64_t threads) {
        blocks = shape.inputs / PANEL_COLUMNS;
        const int64_t fitting = std::max<int64_t>(1, SUMS_BYTES / (pixels * PANEL_COLUMNS * int64_t{sizeof(float)}));
        task_blocks = std::min(divided_up(blocks, threads), fitting);
        tasks = divided_up(blocks, task_blocks);
        pairs = 32;
        panel = (pairs + 1) * 2 * PANEL_COLUMNS;
        panel_values = shape.taps() * task_blocks * panel;
        sum_values = task_blocks * pixels * PANEL_COLUMNS;
    }
};

// The weights of some pairs of outputs and blocks of 32 inputs as panels, [blocks][taps][pairs of outputs], `panel`
// values each.
WITH_BF16 static void pack_inputs(
    const Shape& shape, const float* weight, const float* scale, int64_t output, int64_t pairs, int64_t first_block,
    int64_t blocks, int64_t panel, Bfloat16* panels) {
    const __m512i interleaved = interleaved_halves();
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t even = output + 2 * pair, odd = std::min(even + 1, shape.outputs - 1);
        const __m512 even_scale = factor(scale, even);
        const __m512 odd_scale = odd > even ? factor(scale, odd) : _mm512_setzero_ps();
        for (int64_t tap = 0; tap < shape.taps(); tap++) {
            const int64_t place = tap * shape.inputs + first_block * PANEL_COLUMNS;
            const float *evens = weight + even * shape.row() + place, *odds = weight + odd * shape.row() + place;
            Bfloat16* to = panels + tap * panel + pair * 2 * PANEL_COLUMNS;
            for (int64_t block = 0; block < blocks; block++, to += shape.taps() * panel) {
                for (int64_t half = 0; half < 2; half++, evens += 16, odds += 16) {
                    const __m512i made = rounded_pair(evens, odds, even_scale, odd_scale);
                    _mm512_storeu_si512(to + 32 * half, _mm512_permutexvar_epi16(interleaved, made));
                }
            }
        }
    }
}

// The sums of the task's inputs, [blocks][pixels][32].
WITH_BF16 static void sum_inputs(
    const Places& places, const Shape& shape, const InputPlan& plan, const float* weight, const float* scale,
    int64_t first_block, int64_t blocks, Bfloat16* panels, float* sums) {
    const int64_t taps = shape.taps(), pixels = places.results.size(), panel = plan.panel;
    for (int64_t output = 0, next; output < shape.outputs; output = next) {
        next = std::min(output + 2 * plan.pairs, shape.outputs);
        const int64_t pairs = divided_up(next - output, 2);
        Fetcher fetcher(
            weight + next * shape.row() + first_block * PANEL_COLUMNS, std::min(2 * plan.pairs, shape.outputs - next) * taps,
            shape.inputs, blocks * PANEL_COLUMNS, blocks * count_steps(pixels, taps, pairs));
        pack_inputs(shape, weight, scale, output, pairs, first_block, blocks, panel, panels);
        for (int64_t block = 0; block < blocks; block++) {
            multiply_pixels(
                places, taps, output, panels + block * taps * panel, panel, pairs, sums + block * pixels * PANEL_COLUMNS,
                output > 0, fetcher);
        }
    }
}

// Rows of 32 weights' gradients, each `row` values from the next, from panels of both maps. They pass the caches by,
// which would read the lines first; nothing reads them again soon.
template <int rows>
WITH_BF16 static void write_gradient(
    const Bfloat16* of_gradients, const Bfloat16* of_inputs, int64_t pairs, const float* scale, float* gradient, int64_t row) {
    float sums[rows * PANEL_COLUMNS];
    multiply<rows>(
        [&](int64_t r) { return of_gradients + 2 * r; }, 2 * PANEL_COLUMNS, of_inputs, pairs, sums, PANEL_COLUMNS, false);
    for (int64_t r = 0; r < rows; r++) {
        const __m512 scales = factor(scale, r);
        for (int64_t half = 0; half < PANEL_COLUMNS; half += 16) {
            _mm512_stream_ps(gradient + r * row + half, _mm512_mul_ps(_mm512_loadu_ps(sums + r * PANEL_COLUMNS + half), scales));
        }
    }
}

extern "C" {

// Bytes of scratch memory that each of the functions needs, for all threads together; `results`: pixels of them, or of
// gradients.
int64_t few_pixels_bytes(const Shape* shape, int64_t results, int32_t threads) {
    const InputPlan plan(*shape, results, threads);
    const int64_t of_outputs = PANEL_COLUMNS * shape->row() * 2 + results * COLUMNS * 4;
    const int64_t of_inputs = plan.panel_values * 2 + plan.sum_values * 4;
    const int64_t of_weights = (divided_up(shape->outputs, PANEL_COLUMNS) + shape->row() / PANEL_COLUMNS) * PANEL_VALUES * 2;
    return std::max(threads * rounded_up(std::max(of_outputs, of_inputs), LINE), of_weights);
}

// Outputs of all levels: convolutions times `scale` plus `bias`, each [outputs] or none.
WITH_BF16 void few_pixels_outputs(
    const Maps* levels, int64_t level_count, const Shape* shape, const float* weight, const float* scale,
    const float* bias, int32_t relu, char* scratch, int32_t threads) {
    const Places places = find_places(levels, level_count, *shape, false);
    const int64_t pixels = count_pixels(levels, level_count);
    const int64_t thread_bytes = rounded_up(PANEL_COLUMNS * shape->row() * 2 + pixels * COLUMNS * 4, LINE);
    const int64_t taps = shape->taps(), pairs = shape->inputs / 2;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t output = 0; output < shape->outputs; output += COLUMNS) {
        float* sums = reinterpret_cast<float*>(scratch + omp_get_thread_num() * thread_bytes);
        Bfloat16* panels = reinterpret_cast<Bfloat16*>(sums + pixels * COLUMNS);
        const int64_t next = std::min(output + COLUMNS, shape->outputs);
        Fetcher fetcher(
            weight + next * shape->row(), std::min(COLUMNS, shape->outputs - next), shape->row(), shape->row(),
            count_steps(pixels, taps, pairs));
        pack_outputs(*shape, weight, scale, output, panels);
        multiply_pixels(places, taps, 0, panels, pairs * 2 * PANEL_COLUMNS, pairs, sums, false, fetcher);
        write_results(levels, level_count, shape->outputs, output, bias, relu != 0, sums, places.results.data());
    }
}

// Gradients of all levels' inputs; `source` are those of the outputs.
WITH_BF16 void few_pixels_inputs(
    const Maps* levels, int64_t level_count, const Shape* shape, const float* weight, const float* scale,
    char* scratch, int32_t threads) {
    const int64_t pixels = count_pixels(levels, level_count);
    const Places places = find_places(levels, level_count, *shape, true);
    const InputPlan plan(*shape, pixels, threads);
    const int64_t thread_bytes = rounded_up(plan.panel_values * 2 + plan.sum_values * 4, LINE);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < plan.tasks; task++) {
        float* sums = reinterpret_cast<float*>(scratch + omp_get_thread_num() * thread_bytes);
        Bfloat16* panels = reinterpret_cast<Bfloat16*>(sums + plan.sum_values);
        const int64_t first = task * plan.task_blocks, blocks = std::min(plan.task_blocks, plan.blocks - first);
        sum_inputs(places, *shape, plan, weight, scale, first, blocks, panels, sums);
        for (int64_t block = 0; block < blocks; block++) {
            write_results(
                levels, level_count, shape->inputs, (first + block) * COLUMNS, nullptr, false,
                sums + block * pixels * COLUMNS, places.results.data());
        }
    }
}

// The gradients of the weight, float32 [outputs][taps][inputs] in memory from the beginning of a cache line, times
// `scale` [outputs] or none, and of the bias [outputs], summed over the levels. There are at most `SUMMED` pixels.
WITH_BF16 void few_pixels_weights(
    const Maps* levels, int64_t level_count, const Shape* shape, const float* scale, float* gradient, float* bias,
    char* scratch, int32_t threads) {
    const Places places = find_places(levels, level_count, *shape, false);
    const int64_t taps = shape->taps(), pixels = places.results.size(), pairs = divided_up(pixels, 2);
    std::vector<const Bfloat16*> gradients;
    for (const Maps* maps = levels; maps < levels + level_count; maps++) {
        for (int64_t pixel = 0; pixel < maps->pixels(); pixel++) gradients.push_back(maps->result + pixel * shape->outputs);
    }
    Bfloat16* of_gradients = reinterpret_cast<Bfloat16*>(scratch);
    const int64_t columns = shape->row() / PANEL_COLUMNS, shared = divided_up(shape->outputs, PANEL_COLUMNS) * PANEL_VALUES;
    const int64_t part = divided_up(columns, threads), blocks = shape->inputs / PANEL_COLUMNS;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t output = 0; output < shape->outputs; output += PANEL_COLUMNS) {
            const int64_t channels = std::min<int64_t>(PANEL_COLUMNS, shape->outputs - output);
            float totals[PANEL_COLUMNS] = {};
            fill_panels(
                gradients.data(), pixels, output, channels, of_gradients + output / PANEL_COLUMNS * PANEL_VALUES, totals);
            std::memcpy(bias + output, totals, channels * sizeof *bias);
        }
#pragma omp for schedule(static)
        for (int64_t begin = 0; begin < columns; begin += part) {
            const int64_t end = std::min(begin + part, columns);
            Bfloat16* panels = of_gradients + shared + begin * PANEL_VALUES;
            for (int64_t column = begin; column < end; column++) {
                const Bfloat16* of_tap[SUMMED];
                for (int64_t pixel = 0; pixel < pixels; pixel++) of_tap[pixel] = places.sources[pixel * taps + column / blocks];
                fill_panels(
                    of_tap, pixels, column % blocks * PANEL_COLUMNS, PANEL_COLUMNS, panels + (column - begin) * PANEL_VALUES, nullptr);
            }
            for (int64_t output = 0; output < shape->outputs; output += GRADIENT_ROWS) {
                const Bfloat16* left = of_gradients + output / PANEL_COLUMNS * PANEL_VALUES + 2 * (output % PANEL_COLUMNS);
                const int64_t rows = std::min(GRADIENT_ROWS, shape->outputs - output);
                for (int64_t column = begin; column < end; column++) {
                    const Bfloat16* right = panels + (column - begin) * PANEL_VALUES;
                    float* to = gradient + output * shape->row() + column * PANEL_COLUMNS;
                    if (rows == GRADIENT_ROWS) {
                        write_gradient<GRADIENT_ROWS>(left, right, pairs, scale ? scale + output : nullptr, to, shape->row());
                        continue;
                    }
                    for (int64_t row = 0; row < rows; row++) {
                        write_gradient<1>(
                            left + 2 * row, right, pairs, scale ? scale + output + row : nullptr, to + row * shape->row(), shape->row());
                    }
                }
            }
        }
        _mm_sfence();  // before another thread reads what `write_gradient` streamed
    }
}

}  // extern "C"
#endif
