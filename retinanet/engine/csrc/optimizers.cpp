// Steps of Adam, AdamW, SGD and LAMB (You et al. 2019, algorithm 2), and the norm of all gradients, over all
// tensors in one call, float32.
//
// All are bound by memory, so each value is fetched as seldom as can be: by LAMB twice, since the norms
// of the whole tensor are needed before a weight can change. Threads share chunks, not tensors. The
// sums are added in the order of the chunks, whichever thread made them, so that the result does
// not depend on the number of threads. Steps of Adam, AdamW and SGD are those of torch's fused ones to the
// last bit, where torch computes in vectors.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kChunk = 16384;  // values that a thread takes at a time

// Values for each thread between LAMB's two passes: the second one finds what the first one has
// fetched, 12 bytes of weight and moments for each, in the cache.
constexpr int64_t kCachedPerThread = 1 << 18;

}  // namespace

extern "C" {

struct Tensor {  // the same as in optimizers.py
    float* weight;
    const float* gradient;
    float* exp_avg;     // SGD: the momentum, or none
    float* exp_avg_sq;  // of all but SGD
    int64_t size;
    double correction1;  // 1 - beta1^step
    double correction2;  // 1 - beta2^step
    double weight_decay;
    int32_t use_trust_ratio;
};

struct Settings {  // the same as in optimizers.py
    double learning_rate;
    double beta1;  // SGD: the momentum
    double beta2;
    double eps;
    int32_t is_decoupled;  // AdamW
};

}  // extern "C"

namespace {

struct Chunk {
    const Tensor* tensor;
    int64_t begin, end;
    double weight_squares = 0, update_squares = 0;
};

std::vector<Chunk> make_chunks(const Tensor* first, const Tensor* last) {
    std::vector<Chunk> chunks;
    for (const Tensor* tensor = first; tensor != last; ++tensor)
        for (int64_t begin = 0; begin < tensor->size; begin += kChunk)
            chunks.push_back({tensor, begin, std::min(begin + kChunk, tensor->size)});
    return chunks;
}

inline float moved(float average, float value, float beta, float rest) {
    return beta * average + rest * value;
}

// The update before decay and scaling. The factors are 1 / correction.
inline float direction(float exp_avg, float exp_avg_sq, float factor1, float factor2, float eps) {
    return exp_avg * factor1 / (std::sqrt(exp_avg_sq * factor2) + eps);
}

// LAMB's first pass: the moments, and the squares of the weight and of the update.
void lamb_moments(Chunk& chunk, const Settings& settings) {
    const Tensor& tensor = *chunk.tensor;
    const float beta1 = settings.beta1, beta2 = settings.beta2, eps = settings.eps;
    // The differences are taken in double: in float they would lose half of their digits.
    const float rest1 = 1 - settings.beta1, rest2 = 1 - settings.beta2;
    const float factor1 = 1 / float(tensor.correction1), factor2 = 1 / float(tensor.correction2);
    const float decay = tensor.weight_decay;
    const float* weight = tensor.weight;
    const float* gradient = tensor.gradient;
    float* exp_avg = tensor.exp_avg;
    float* exp_avg_sq = tensor.exp_avg_sq;
    float weight_squares = 0, update_squares = 0;
#pragma omp simd reduction(+ : weight_squares, update_squares)
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        const float m = moved(exp_avg[i], gradient[i], beta1, rest1);
        const float v = moved(exp_avg_sq[i], gradient[i] * gradient[i], beta2, rest2);
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        const float update = direction(m, v, factor1, factor2, eps) + decay * weight[i];
        weight_squares += weight[i] * weight[i];
        update_squares += update * update;
    }
    chunk.weight_squares = weight_squares;
    chunk.update_squares = update_squares;
}

// LAMB's second pass: the same update once more, now at its rate.
void lamb_weights(const Chunk& chunk, const Settings& settings, float rate) {
    const Tensor& tensor = *chunk.tensor;
    const float eps = settings.eps, decay = tensor.weight_decay;
    const float factor1 = 1 / float(tensor.correction1), factor2 = 1 / float(tensor.correction2);
    float* weight = tensor.weight;
    const float* exp_avg = tensor.exp_avg;
    const float* exp_avg_sq = tensor.exp_avg_sq;
#pragma omp simd
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        const float update = direction(exp_avg[i], exp_avg_sq[i], factor1, factor2, eps);
        weight[i] -= rate * (update + decay * weight[i]);
    }
}

// Each tensor's learning rate times its trust ratio, which is 1 where a norm is zero.
std::vector<float> lamb_rates(const Tensor* first, const Tensor* last,
                              const std::vector<Chunk>& chunks, float learning_rate) {
    std::vector<double> weight_squares(last - first), update_squares(last - first);
    for (const Chunk& chunk : chunks) {
        weight_squares[chunk.tensor - first] += chunk.weight_squares;
        update_squares[chunk.tensor - first] += chunk.update_squares;
    }
    std::vector<float> rates(last - first, learning_rate);
    for (int64_t i = 0; i < last - first; ++i)
        if (first[i].use_trust_ratio && weight_squares[i] > 0 && update_squares[i] > 0)
            rates[i] *= std::sqrt(weight_squares[i] / update_squares[i]);
    return rates;
}

constexpr int64_t kVector = 8;  // values of torch's shortest vector

// torch's loop over vectors and the one over what remains of a tensor are compiled differently: which products
// are rounded, and which go into a multiply-add.
int64_t end_of_vectors(const Chunk& chunk) {
    const int64_t size = chunk.tensor->size;
    return std::max(chunk.begin, std::min(chunk.end, size - size % kVector));
}

#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")

void adam_chunk(const Chunk& chunk, const Settings& settings) {
    const Tensor& tensor = *chunk.tensor;
    const double decay = tensor.weight_decay;
    const float gradient_decay = settings.is_decoupled ? 0 : decay;
    const float weight_factor = settings.is_decoupled ? 1 - settings.learning_rate * decay : 1;
    const float rest1 = 1 - settings.beta1, beta2 = settings.beta2, rest2 = 1 - settings.beta2;
    const float root2 = std::sqrt(tensor.correction2), eps = settings.eps;
    const float step = -(settings.learning_rate / tensor.correction1);
    const bool is_short = rest1 < 0.5f;  // as in torch.lerp, which starts at the nearer end
    const int64_t vectors_end = end_of_vectors(chunk);
    float* weight = tensor.weight;
    const float* gradient = tensor.gradient;
    float* exp_avg = tensor.exp_avg;
    float* exp_avg_sq = tensor.exp_avg_sq;
    const auto update = [&](int64_t i, auto next_square) {
        const float slope = std::fma(weight[i], gradient_decay, gradient[i]);
        const float change = slope - exp_avg[i];
        exp_avg[i] = is_short ? std::fma(rest1, change, exp_avg[i]) : std::fma(rest1 - 1, change, slope);
        exp_avg_sq[i] = next_square(exp_avg_sq[i], slope);
        const float root = std::sqrt(exp_avg_sq[i]) / root2 + eps;
        weight[i] = weight[i] * weight_factor + step * exp_avg[i] / root;
    };
#pragma omp simd
    for (int64_t i = chunk.begin; i < vectors_end; ++i)
        update(i, [&](float square, float slope) { return std::fma(rest2 * slope, slope, square * beta2); });
    for (int64_t i = vectors_end; i < chunk.end; ++i)
        update(i, [&](float square, float slope) { return std::fma(square, beta2, rest2 * slope * slope); });
}

void sgd_chunk(const Chunk& chunk, const Settings& settings) {
    const Tensor& tensor = *chunk.tensor;
    const float decay = tensor.weight_decay, step = -settings.learning_rate, factor = settings.beta1;
    float* weight = tensor.weight;
    const float* gradient = tensor.gradient;
    float* momentum = tensor.exp_avg;
    if (!momentum) {
#pragma omp simd
        for (int64_t i = chunk.begin; i < chunk.end; ++i)
            weight[i] = std::fma(step, std::fma(weight[i], decay, gradient[i]), weight[i]);
        return;
    }
    const auto update = [&](int64_t i, auto next_momentum) {
        const float slope = std::fma(weight[i], decay, gradient[i]);
        momentum[i] = next_momentum(momentum[i], slope);
        weight[i] = std::fma(step, momentum[i], weight[i]);
    };
    const int64_t vectors_end = end_of_vectors(chunk);
#pragma omp simd
    for (int64_t i = chunk.begin; i < vectors_end; ++i)
        update(i, [&](float value, float slope) { return value * factor + slope; });
    for (int64_t i = vectors_end; i < chunk.end; ++i)
        update(i, [&](float value, float slope) { return std::fma(value, factor, slope); });
}

#pragma GCC pop_options

void step_chunks(
    const Tensor* tensors, int64_t count, const Settings& settings, int threads, void (*step)(const Chunk&, const Settings&)) {
    const std::vector<Chunk> chunks = make_chunks(tensors, tensors + count);
    const int64_t chunk_count = chunks.size();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < chunk_count; ++i) step(chunks[i], settings);
}

void lamb_group(const Tensor* first, const Tensor* last, const Settings& settings, int threads) {
    std::vector<Chunk> chunks = make_chunks(first, last);
    const int64_t count = chunks.size();
    // Static schedules: in the second pass a thread gets the chunks that are in its own cache.
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) lamb_moments(chunks[i], settings);
    const std::vector<float> rates = lamb_rates(first, last, chunks, settings.learning_rate);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i)
        lamb_weights(chunks[i], settings, rates[chunks[i].tensor - first]);
}

}  // namespace

extern "C" {

void adam_step(const Tensor* tensors, int64_t count, const Settings* settings, int threads) {
    step_chunks(tensors, count, *settings, threads, adam_chunk);
}

void sgd_step(const Tensor* tensors, int64_t count, const Settings* settings, int threads) {
    step_chunks(tensors, count, *settings, threads, sgd_chunk);
}

void lamb_step(const Tensor* tensors, int64_t count, const Settings* settings, int threads) {
    const Tensor *first = tensors, *end = tensors + count;
    // In groups of tensors that fit the caches: with all tensors at once, the second pass would fetch everything
    // from memory again.
    while (first != end) {
        const Tensor* last = first;
        int64_t values = 0;
        while (last != end && values < kCachedPerThread * threads) values += (last++)->size;
        lamb_group(first, last, *settings, threads);
        first = last;
    }
}

// The sum of the squares of all gradients, the only field of the tensors that is read.
double gradient_squares(const Tensor* tensors, int64_t count, int threads) {
    const std::vector<Chunk> chunks = make_chunks(tensors, tensors + count);
    const int64_t chunk_count = chunks.size();
    std::vector<double> sums(chunk_count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < chunk_count; ++i) {
        const float* gradient = chunks[i].tensor->gradient;
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t place = chunks[i].begin; place < chunks[i].end; ++place)
            squares += static_cast<double>(gradient[place]) * gradient[place];
        sums[i] = squares;
    }
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

}  // extern "C"
