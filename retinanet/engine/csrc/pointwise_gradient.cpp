// Weight gradients of 1×1 convolutions (stride 1 or 2, no padding) in BF16, by AVX-512.
//
//   dW[o][i] = scale[o] · sum over pixels p of dY[p][o] · X[p][i]
//
// A matrix product over the pixels of all levels and images. 256 pixels of both maps at a time become
// panels, see panel_products.h; a stride of 2 only skips pixels of X. The float32 sums are the result's
// own memory: they are read and written once for each 256 pixels. Channels are multiples of 32. Maps are
// channels_last: [N, H, W, C].

#include <omp.h>

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include "levels.h"
#include "panel_products.h"

struct Shape {
    int64_t inputs, outputs, stride;
};

static int64_t count_pixels(const GradientLevel* levels, int64_t level_count) {
    int64_t pixels = 0;
    for (int64_t l = 0; l < level_count; l++) pixels += levels[l].images * levels[l].height * levels[l].width;
    return pixels;
}

// How the work is shared. An item is a block of output channels, a block of input channels and a part of
// the pixels; it shares nothing with the others.
struct Plan {
    int64_t output_block, input_block;  // channels
    int64_t output_blocks, input_blocks, parts;
    int64_t part_pixels, step, steps;  // step: pixels in a panel; steps: of a part
    int64_t thread_values;             // of panels
};

// About how many cycles a plan takes; only the order of plans matters.
static double estimate_cycles(const Plan& plan, int64_t threads) {
    const double products = static_cast<double>(plan.output_block) * plan.input_block;
    const double sums = products * sizeof(float);
    // One product a cycle; maps come from memory, sums from the level-3 cache unless they fit the level-2
    // cache beside the panels.
    const double packing = 0.7 * (plan.output_block + plan.input_block) * plan.part_pixels;
    const double moving = (sums > 400e3 ? 1.0 / 32 : 1.0 / 128) * sums * plan.steps;
    const int64_t items = plan.output_blocks * plan.input_blocks * plan.parts;
    const double rounds = static_cast<double>(divided_up(items, threads));
    // Each further part's sums are written to memory, read and added.
    const double adding = plan.parts > 1 ? sums * items / threads / 4 : 0;
    return rounds * (products * plan.part_pixels / 32 + packing + moving) + adding;
}

static Plan plan_gradient(int64_t pixels, const Shape& shape, int64_t threads) {
    Plan best{};
    double least = 0;
    const int64_t most_parts = std::max<int64_t>(1, std::min(threads, pixels / SUMMED));
    for (int64_t parts = 1; parts <= most_parts; parts++) {
        Plan plan{};
        plan.part_pixels = rounded_up(divided_up(pixels, parts), 2);
        plan.parts = divided_up(pixels, plan.part_pixels);  // each has some
        plan.step = rounded_up(divided_up(plan.part_pixels, divided_up(plan.part_pixels, SUMMED)), 2);
        plan.steps = divided_up(plan.part_pixels, plan.step);
        for (int64_t outputs = shape.outputs; ; outputs = rounded_up(outputs / 2, PANEL_COLUMNS)) {
            plan.output_block = outputs, plan.output_blocks = divided_up(shape.outputs, outputs);
            for (int64_t inputs = shape.inputs; ; inputs = rounded_up(inputs / 2, PANEL_COLUMNS)) {
                plan.input_block = inputs, plan.input_blocks = divided_up(shape.inputs, inputs);
                const double cycles = estimate_cycles(plan, threads);
                if (least == 0 || cycles < least) best = plan, least = cycles;
                if (inputs == PANEL_COLUMNS) break;
            }
            if (outputs == PANEL_COLUMNS) break;
        }
    }
    best.thread_values = (best.output_block + best.input_block) / PANEL_COLUMNS * PANEL_VALUES;
    return best;
}

// The places of `count` pixels from `first` on, of all levels in turn.
static void find_pixels(
    const GradientLevel* level, const Shape& shape, int64_t first, int64_t count, const Bfloat16** inputs, const Bfloat16** gradients) {
    for (; count > 0 && first >= count_pixels(level, 1); level++) first -= count_pixels(level, 1);
    int64_t x = first % level->width, row = first / level->width;  // a row of one of the images
    for (int64_t p = 0; p < count; p++) {
        const int64_t image = row / level->height, y = row % level->height;
        inputs[p] = level->input + ((image * level->input_height + shape.stride * y) * level->input_width + shape.stride * x) * shape.inputs;
        gradients[p] = level->gradient + (row * level->width + x) * shape.outputs;
        if (++x < level->width) continue;
        x = 0;
        if (++row < level->images * level->height) continue;
        row = 0;
        level++;
    }
}

// One item: its block of sums, in tiles, and of `totals` [outputs] unless null.
WITH_BF16 static void sum_block(
    const GradientLevel* levels, const Shape& shape, const Plan& plan, int64_t output, int64_t input, int64_t begin, int64_t end,
    Bfloat16* panels, float* sums, float* totals) {
    const int64_t outputs = std::min(plan.output_block, shape.outputs - output);
    const int64_t inputs = std::min(plan.input_block, shape.inputs - input);
    Bfloat16* of_gradients = panels + plan.input_block / PANEL_COLUMNS * PANEL_VALUES;
    const Bfloat16 *input_pixels[SUMMED], *gradient_pixels[SUMMED];
    if (totals) std::fill(totals + output, totals + output + outputs, 0.0f);
    int64_t count = std::min(plan.step, end - begin);
    find_pixels(levels, shape, begin, count, input_pixels, gradient_pixels);
    for (int64_t first = begin; first < end; first += plan.step) {
        const int64_t pairs = (count + 1) / 2;
        fill_panels(input_pixels, count, input, inputs, panels, nullptr);
        fill_panels(gradient_pixels, count, output, outputs, of_gradients, totals ? totals + output : nullptr);
        count = std::max<int64_t>(0, std::min(plan.step, end - first - plan.step));
        find_pixels(levels, shape, first + plan.step, count, input_pixels, gradient_pixels);
        const int64_t tiles = outputs / GRADIENT_ROWS * (inputs / PANEL_COLUMNS);
        Ahead input_lines(input_pixels, count, input, inputs, tiles), gradient_lines(gradient_pixels, count, output, outputs, tiles);
        add_products(
            of_gradients, outputs / PANEL_COLUMNS, panels, inputs / PANEL_COLUMNS, pairs, sums, first > begin,
            [&] { input_lines.fetch(), gradient_lines.fetch(); });
    }
}

// The sums of all parts, times `scale` unless that is null, of 32 outputs and 32 inputs.
WITH_BF16 static void write_tile(
    const float* sums, const Plan& plan, const Shape& shape, int64_t output, int64_t input, const float* scale, float* gradient) {
    for (int64_t row = output; row < output + PANEL_COLUMNS; row++) {
        const __m512 factor = _mm512_set1_ps(scale ? scale[row] : 1.0f);
        for (int64_t column = 0; column < PANEL_COLUMNS; column += 16, sums += 16) {
            __m512 total = _mm512_loadu_ps(sums);
            for (int64_t part = 1; part < plan.parts; part++) {
                total = _mm512_add_ps(total, _mm512_loadu_ps(sums + part * shape.outputs * shape.inputs));
            }
            _mm512_storeu_ps(gradient + row * shape.inputs + input + column, _mm512_mul_ps(factor, total));
        }
    }
}

// Where the sums of a tile are, or those of an item at its first one.
static int64_t tile_place(const Plan& plan, const Shape& shape, int64_t output, int64_t input) {
    const int64_t first_output = output / plan.output_block * plan.output_block, first_input = input / plan.input_block * plan.input_block;
    const int64_t outputs = std::min(plan.output_block, shape.outputs - first_output);
    const int64_t inputs = std::min(plan.input_block, shape.inputs - first_input);
    return first_output * shape.inputs + outputs * first_input + sum_place(output - first_output, input - first_input, inputs);
}

extern "C" {

// Bytes of scratch memory that `pointwise_gradient_sum` needs, for all threads together.
int64_t pointwise_gradient_bytes(const GradientLevel* levels, int64_t level_count, const Shape* shape, int32_t threads) {
    const Plan plan = plan_gradient(count_pixels(levels, level_count), *shape, threads);
    return threads * plan.thread_values * int64_t{sizeof(Bfloat16)} +
           plan.parts * (shape->inputs + 1) * shape->outputs * int64_t{sizeof(float)};
}

// The weight's gradient, float32 [outputs, inputs] in memory, summed over the levels and times `scale`
// [outputs] unless that is null, and the bias's [outputs].
WITH_BF16 void pointwise_gradient_sum(
    const GradientLevel* levels, int64_t level_count, const Shape* shape, const float* scale, float* gradient, float* bias,
    char* scratch, int32_t threads) {
    const int64_t pixels = count_pixels(levels, level_count), outputs = shape->outputs, inputs = shape->inputs;
    const Plan plan = plan_gradient(pixels, *shape, threads);
    Bfloat16* panels = reinterpret_cast<Bfloat16*>(scratch);
    float* sums = reinterpret_cast<float*>(panels + threads * plan.thread_values);  // [parts, outputs, inputs] in tiles
    float* totals = sums + plan.parts * outputs * inputs;  // [parts, outputs]: the bias's gradient
#pragma omp parallel num_threads(threads)
    {
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t part = 0; part < plan.parts; part++) {
            for (int64_t output = 0; output < outputs; output += plan.output_block) {
                for (int64_t input = 0; input < inputs; input += plan.input_block) {
                    const int64_t begin = part * plan.part_pixels;
                    sum_block(
                        levels, *shape, plan, output, input, begin, std::min(pixels, begin + plan.part_pixels),
                        panels + omp_get_thread_num() * plan.thread_values,
                        sums + part * outputs * inputs + tile_place(plan, *shape, output, input),
                        input == 0 ? totals + part * outputs : nullptr);
                }
            }
        }
#pragma omp for collapse(2) schedule(static)
        for (int64_t output = 0; output < outputs; output += PANEL_COLUMNS) {
            for (int64_t input = 0; input < inputs; input += PANEL_COLUMNS) {
                write_tile(sums + tile_place(plan, *shape, output, input), plan, *shape, output, input, scale, gradient);
            }
        }
#pragma omp for schedule(static)
        for (int64_t output = 0; output < outputs; output++) {
            bias[output] = 0.0f;
            for (int64_t part = 0; part < plan.parts; part++) bias[output] += totals[part * outputs + output];
        }
    }
}

}  // extern "C"
#endif
