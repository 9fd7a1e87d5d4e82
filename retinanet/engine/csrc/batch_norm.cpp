// Batch normalization of BF16 maps that lie pixel after pixel, [pixels][channels], with the residual sum
// and the ReLU that follow it. Forward and backward read their maps twice: for the sums over the
// pixels, and to write the result. Sums of a block of pixels are float32, of all blocks float64, in an
// order that does not depend on the number of threads.
//
// Ioffe and Szegedy 2015, "Batch Normalization", arXiv 1502.03167, section 3.

#include <cmath>

#include "bfloat16.h"

constexpr int64_t BLOCK = 64;  // pixels whose sums are float32

static int64_t count_blocks(int64_t pixels) { return divided_up(pixels, BLOCK); }

// [blocks][2][channels]: sums of the differences to `shift`, and of their squares. `shift` is the map's first
// pixel: the variance is a difference of sums, which would cancel where the mean is large.
static void sum_block(
    const Bfloat16* maps, int64_t first, int64_t end, int64_t channels, const Bfloat16* shift, float* sums) {
    float *sum = sums, *squares = sums + channels;
    std::fill(sums, sums + 2 * channels, 0.0f);
    for (int64_t pixel = first; pixel < end; pixel++) {
        const Bfloat16* values = maps + pixel * channels;
#pragma omp simd
        for (int64_t channel = 0; channel < channels; channel++) {
            const float difference = widened(values[channel]) - widened(shift[channel]);
            sum[channel] += difference;
            squares[channel] += difference * difference;
        }
    }
}

// [blocks][2][channels]: sums of the gradient, and of its products with the normalized map.
static void sum_gradient_block(
    const Bfloat16* gradient, const Bfloat16* maps, int64_t first, int64_t end, int64_t channels, const float* mean,
    const float* inverse, float* sums) {
    float *sum = sums, *products = sums + channels;
    std::fill(sums, sums + 2 * channels, 0.0f);
    for (int64_t pixel = first; pixel < end; pixel++) {
        const Bfloat16 *values = maps + pixel * channels, *slopes = gradient + pixel * channels;
#pragma omp simd
        for (int64_t channel = 0; channel < channels; channel++) {
            const float slope = widened(slopes[channel]);
            sum[channel] += slope;
            products[channel] += slope * ((widened(values[channel]) - mean[channel]) * inverse[channel]);
        }
    }
}

static double sum_over_blocks(const float* sums, int64_t blocks, int64_t channels, int64_t place) {
    double total = 0.0;
    for (int64_t block = 0; block < blocks; block++) total += sums[block * 2 * channels + place];
    return total;
}

struct Norm {
    int64_t pixels, channels;
    const float* weight;
    const float* bias;
    float* mean;     // [channels], of this batch
    float* inverse;  // [channels], of its standard deviation
    float* sums;     // scratch: `batch_norm_sums`
};

extern "C" {

// Floats of scratch.
int64_t batch_norm_sums(int64_t pixels, int64_t channels) { return (count_blocks(pixels) + 1) * 2 * channels; }

// results = norm(maps) [+ added] [, ReLU], whose NaN stays. `variance`: [channels], of this batch, biased.
void batch_norm_forward(
    const Norm* norm, const Bfloat16* maps, const Bfloat16* added, Bfloat16* results, float* variance, double eps,
    int32_t relu, int32_t threads) {
    const int64_t pixels = norm->pixels, channels = norm->channels, blocks = count_blocks(pixels);
    float* scale = norm->sums + blocks * 2 * channels;
    float* shift = scale + channels;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            sum_block(
                maps, block * BLOCK, std::min(block * BLOCK + BLOCK, pixels), channels, maps,
                norm->sums + block * 2 * channels);
        }
#pragma omp for schedule(static)
        for (int64_t channel = 0; channel < channels; channel++) {
            const double mean = sum_over_blocks(norm->sums, blocks, channels, channel) / pixels;
            const double square = sum_over_blocks(norm->sums, blocks, channels, channels + channel) / pixels;
            const double spread = square - mean * mean;
            variance[channel] = spread < 0.0 ? 0.0f : static_cast<float>(spread);  // NaN stays
            norm->mean[channel] = static_cast<float>(mean + widened(maps[channel]));
            norm->inverse[channel] = static_cast<float>(1.0 / std::sqrt(variance[channel] + eps));
            scale[channel] = norm->weight[channel] * norm->inverse[channel];
            shift[channel] = norm->bias[channel] - norm->mean[channel] * scale[channel];
        }
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
            const Bfloat16* values = maps + pixel * channels;
            const Bfloat16* others = added ? added + pixel * channels : nullptr;
            Bfloat16* to = results + pixel * channels;
            const float least = relu ? 0.0f : -INFINITY;
#pragma omp simd
            for (int64_t channel = 0; channel < channels; channel++) {
                float value = widened(values[channel]) * scale[channel] + shift[channel];
                if (others) value += widened(others[channel]);
                to[channel] = rounded(value < least ? least : value);
            }
        }
    }
}

// Gradients of the maps, and of weight and bias [channels], from that of the norm's result.
void batch_norm_backward(
    const Norm* norm, const Bfloat16* gradient, const Bfloat16* maps, Bfloat16* of_maps, float* of_weight,
    float* of_bias, int32_t threads) {
    const int64_t pixels = norm->pixels, channels = norm->channels, blocks = count_blocks(pixels);
    const float *mean = norm->mean, *inverse = norm->inverse;
    float* of_value = norm->sums + blocks * 2 * channels;  // what multiplies the map, and what is added
    float* constant = of_value + channels;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            sum_gradient_block(
                gradient, maps, block * BLOCK, std::min(block * BLOCK + BLOCK, pixels), channels, mean, inverse,
                norm->sums + block * 2 * channels);
        }
#pragma omp for schedule(static)
        for (int64_t channel = 0; channel < channels; channel++) {
            const double sum = sum_over_blocks(norm->sums, blocks, channels, channel);
            const double products = sum_over_blocks(norm->sums, blocks, channels, channels + channel);
            const double slope = double{norm->weight[channel]} * inverse[channel];
            of_bias[channel] = static_cast<float>(sum);
            of_weight[channel] = static_cast<float>(products);
            of_value[channel] = static_cast<float>(-slope * products * inverse[channel] / pixels);
            constant[channel] = static_cast<float>(-slope * sum / pixels);
        }
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
            const Bfloat16 *values = maps + pixel * channels, *slopes = gradient + pixel * channels;
            Bfloat16* to = of_maps + pixel * channels;
#pragma omp simd
            for (int64_t channel = 0; channel < channels; channel++) {
                const float slope = norm->weight[channel] * inverse[channel];
                const float centred = widened(values[channel]) - mean[channel];
                to[channel] = rounded(widened(slopes[channel]) * slope + centred * of_value[channel] + constant[channel]);
            }
        }
    }
}

}  // extern "C"
