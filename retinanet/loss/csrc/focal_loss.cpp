// The focal loss and its gradient in one pass over the logits (Lin et al., "Focal Loss", eq. 5).
//
// With p = sigmoid(x), a class that an anchor is not costs (1 - alpha) f(x), the class that it is
// costs w alpha f(-x), w being the weight of that class, where
//     f(x)  = p^gamma * log(1 + e^x)
//     f'(x) = p^gamma * (gamma (1 - p) log(1 + e^x) + p).
// All but one class of an anchor are of the first kind. So a run of background anchors is one
// plain loop over memory, and a foreground anchor is such a loop with a hole in it.
//
// A BF16 logit has only 65,536 values: on levels larger than that f and f' are computed for each
// value once, and the loop looks them up. It then runs at the speed of memory, whatever gamma is.

#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../../engine/csrc/bfloat16.h"

namespace {

constexpr int64_t kIgnored = -2;  // any other negative class is background

constexpr long kLanes = 16;           // float32 values of the widest vector
constexpr long kBlock = 256;          // values that stay in the first cache between two loops
constexpr long kTableBlock = 64;      // values summed in float32 before going on in float64
constexpr long kChunkValues = 65536;  // work of a thread at a time; sums do not depend on threads
constexpr long kTableEntries = 65536;
constexpr long kTablePaysFrom = 4 * kTableEntries;  // values of an image for which filling it pays

float to_real(Bfloat16 value) { return widened(value); }
float to_real(float value) { return value; }
double to_real(double value) { return value; }

template <typename T>
using Real = decltype(to_real(T{}));

void from_real(float real, Bfloat16& value) { value = rounded(real); }
void from_real(float real, float& value) { value = real; }
void from_real(double real, double& value) { value = real; }

// e^x for x <= 0, relative error 1e-7 above e^-87, that value below. NaN stays NaN.
inline float exp_of_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float shifted = x * 1.44269504f + shifter;
    const float n = shifted - shifter;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2, the first part exact
    float polynomial = 0.001383675526f;
    polynomial = polynomial * r + 0.008374898089f;
    polynomial = polynomial * r + 0.04166823156f;
    polynomial = polynomial * r + 0.166664192f;
    polynomial = polynomial * r + 0.4999999203f;
    polynomial = polynomial * r + 1.000000037f;
    polynomial = polynomial * r + 1.000000001f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;  // 2^n
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return polynomial * scale;
}

// log(1 + e) for 0 <= e <= 1, relative error 1e-7.
inline float log_of_one_plus(float e) {
    float polynomial = -0.003244001708f;
    polynomial = polynomial * e + 0.0198513495f;
    polynomial = polynomial * e - 0.05695930636f;
    polynomial = polynomial * e + 0.1060362988f;
    polynomial = polynomial * e - 0.1530557647f;
    polynomial = polynomial * e + 0.1967593312f;
    polynomial = polynomial * e - 0.2495413234f;
    polynomial = polynomial * e + 0.3332996228f;
    polynomial = polynomial * e - 0.4999990242f;
    polynomial = polynomial * e + 0.9999999953f;
    return polynomial * e;
}

inline double exp_of_negative(double x) { return std::exp(x); }
inline double log_of_one_plus(double e) { return std::log1p(e); }

// f(x) and f'(x). Small results keep their relative precision: 1 - p is never formed by subtraction.
template <bool gamma_is_two, typename R>
inline void focal_curve(R x, R gamma, R& loss, R& slope) {
    const R e = exp_of_negative(x < 0 ? x : -x);
    const R log_term = log_of_one_plus(e);
    const R larger = 1 / (1 + e), smaller = e * larger;
    const R p = x > 0 ? larger : smaller;
    const R one_minus_p = x > 0 ? smaller : larger;
    const R softplus = (x > 0 ? x : 0) + log_term;
    R power;
    if (gamma_is_two) {
        power = p * p;
    } else {
        const R log_p = (x > 0 ? 0 : std::max(x, R(-3e38))) - log_term;  // 0 * log_p must be 0
        power = exp_of_negative(gamma * log_p);
    }
    loss = power * softplus;
    slope = power * (gamma * one_minus_p * softplus + p);
}

template <bool gamma_is_two, typename R>
void focal_vectors(const R* x, R gamma, R* loss, R* slope, long count) {
    for (long begin = 0; begin < count; begin += kLanes) {
#pragma omp simd
        for (long i = begin; i < begin + kLanes; ++i) {
            focal_curve<gamma_is_two>(x[i], gamma, loss[i], slope[i]);
        }
    }
}

// f and f' of up to kBlock logits.
template <typename T>
struct Block {
    alignas(64) Real<T> loss[kBlock], slope[kBlock];

    Block(const T* logits, long count, Real<T> gamma) {
        alignas(64) Real<T> x[kBlock];
        const long padded = (count + kLanes - 1) / kLanes * kLanes;
        for (long i = 0; i < count; ++i) x[i] = to_real(logits[i]);
        for (long i = count; i < padded; ++i) x[i] = 0;
        if (gamma == 2) {
            focal_vectors<true>(x, gamma, loss, slope, padded);
        } else {
            focal_vectors<false>(x, gamma, loss, slope, padded);
        }
    }
};

// Loss and gradient of one BF16 value as a background class; 8 bytes, so that one load fetches both.
struct TableEntry {
    float loss;        // f(x)
    int32_t gradient;  // the BF16 bits of the gradient, with their sign
};

// One image of one level. Null `losses` and `gradient` are not written.
template <typename T>
struct Image {
    const T* logits;         // [anchors, classes]
    T* gradient;             // [anchors, classes]
    Real<T>* losses;         // [anchors, classes]
    const int64_t* classes;  // [anchors]
    const double* class_weights;  // [classes], or null: all 1
    Real<T> gamma;
    Real<T> background_scale;  // (1 - alpha) * weight
    Real<T> foreground_scale;  // alpha * weight
};

// Background classes first to last of the image's values; returns the sum of f.
template <typename T>
double background(const Image<T>& image, long first, long last) {
    double sum = 0;
    for (long begin = first; begin < last; begin += kBlock) {
        const long count = std::min(kBlock, last - begin);
        const Block<T> block(image.logits + begin, count, image.gamma);
        Real<T> block_sum = 0;
#pragma omp simd reduction(+ : block_sum)
        for (long i = 0; i < count; ++i) block_sum += block.loss[i];
        sum += block_sum;
        if (image.gradient) {
            for (long i = 0; i < count; ++i) {
                from_real(image.background_scale * block.slope[i], image.gradient[begin + i]);
            }
        }
        if (image.losses) {
            for (long i = 0; i < count; ++i) {
                image.losses[begin + i] = image.background_scale * block.loss[i];
            }
        }
    }
    return sum;
}

// As above, from the table. Losses are summed in float32 over 64 values and in float64 beyond: a fresh head has
// millions of equal losses, whose rounding errors in a float32 sum would all have one sign.
template <bool with_gradient>
double look_up(const Bfloat16* logits, Bfloat16* gradient, long count, const TableEntry* table) {
    double sum = 0;
    long i = 0;
#ifdef __SSE2__
    const auto entry = [=](long index) {
        return reinterpret_cast<const double*>(table + logits[index]);
    };
    __m128d sums = _mm_setzero_pd();
    for (; i + kTableBlock <= count; i += kTableBlock) {
        __m128 partial = _mm_setzero_ps();
#pragma GCC unroll 4
        for (long j = i; j < i + kTableBlock; j += 4) {
            // Two entries fill a register: loss, gradient, loss, gradient.
            const __m128 a = _mm_castpd_ps(_mm_loadh_pd(_mm_load_sd(entry(j)), entry(j + 1)));
            const __m128 b = _mm_castpd_ps(_mm_loadh_pd(_mm_load_sd(entry(j + 2)), entry(j + 3)));
            partial = _mm_add_ps(partial, _mm_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
            if (with_gradient) {
                const __m128 bits = _mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1));
                const __m128i wide = _mm_castps_si128(bits);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(gradient + j),
                                 _mm_packs_epi32(wide, wide));
            }
        }
        sums = _mm_add_pd(sums, _mm_cvtps_pd(partial));
        sums = _mm_add_pd(sums, _mm_cvtps_pd(_mm_movehl_ps(partial, partial)));
    }
    sum = _mm_cvtsd_f64(sums) + _mm_cvtsd_f64(_mm_unpackhi_pd(sums, sums));
#endif
    for (; i < count; ++i) {
        const TableEntry& entry = table[logits[i]];
        sum += entry.loss;
        if (with_gradient) gradient[i] = Bfloat16(entry.gradient);
    }
    return sum;
}

void fill_table(TableEntry* table, long first, long last, const Image<Bfloat16>& image) {
    Bfloat16 values[kBlock], gradient[kBlock];
    for (long begin = first; begin < last; begin += kBlock) {
        for (long i = 0; i < kBlock; ++i) values[i] = Bfloat16(begin + i);
        const Block<Bfloat16> block(values, kBlock, image.gamma);
        for (long i = 0; i < kBlock; ++i) {
            from_real(image.background_scale * block.slope[i], gradient[i]);
        }
        for (long i = 0; i < kBlock; ++i) {
            table[begin + i] = {block.loss[i], int16_t(gradient[i])};
        }
    }
}

template <typename T>
double background(const Image<T>& image, long first, long last, const TableEntry*) {
    return background(image, first, last);
}
double background(const Image<Bfloat16>& image, long first, long last, const TableEntry* table) {
    if (!table) return background(image, first, last);
    const Bfloat16* logits = image.logits + first;
    if (!image.gradient) return look_up<false>(logits, nullptr, last - first, table);
    return look_up<true>(logits, image.gradient + first, last - first, table);
}

// The true class of a foreground anchor; returns w f(-x). Not worth vectors: there is one in a row of classes.
template <typename T>
double foreground(const Image<T>& image, long index, int64_t label) {
    Real<T> loss, slope;
    focal_curve<false>(-to_real(image.logits[index]), image.gamma, loss, slope);
    const double weight = image.class_weights ? image.class_weights[label] : 1;
    const Real<T> scale = image.foreground_scale * Real<T>(weight);
    if (image.gradient) from_real(-scale * slope, image.gradient[index]);
    if (image.losses) image.losses[index] = scale * loss;
    return weight * loss;
}

struct Sums {
    double background = 0, foreground = 0;
    bool labels_are_valid = true;
};

template <typename T>
Sums anchors(const Image<T>& image, long first, long last, long num_classes,
             const TableEntry* table) {
    Sums sums;
    long done = first * num_classes;  // values before this one are finished
    const auto background_until = [&](long end) {
        if (end > done) sums.background += background(image, done, end, table);
        done = end;
    };
    for (long anchor = first; anchor < last; ++anchor) {
        const int64_t label = image.classes[anchor];
        const long begin = anchor * num_classes;
        if (label < 0 && label != kIgnored) continue;
        if (label >= num_classes) {
            sums.labels_are_valid = false;
        } else if (label == kIgnored) {
            background_until(begin);
            done = begin + num_classes;
            if (image.gradient) std::fill(image.gradient + begin, image.gradient + done, T{});
            if (image.losses) std::fill(image.losses + begin, image.losses + done, Real<T>{});
        } else {
            background_until(begin + label);
            sums.foreground += foreground(image, done, label);
            ++done;
        }
    }
    background_until(last * num_classes);
    return sums;
}

template <typename T>
Sums image_sums(const Image<T>& image, long num_anchors, long num_classes, int threads) {
    std::unique_ptr<TableEntry[]> table;
    if (std::is_same<T, Bfloat16>::value && !image.losses &&
        num_anchors * num_classes >= kTablePaysFrom) {
        table.reset(new TableEntry[kTableEntries]);
    }
    const long chunk = std::max(1L, kChunkValues / num_classes);
    std::vector<Sums> sums((num_anchors + chunk - 1) / chunk);
#pragma omp parallel num_threads(threads)
    {
        if constexpr (std::is_same<T, Bfloat16>::value) {
            if (table) {
#pragma omp for
                for (long part = 0; part < kTableEntries; part += 8 * kBlock) {
                    fill_table(table.get(), part, part + 8 * kBlock, image);
                }
            }
        }
#pragma omp for schedule(dynamic)
        for (long i = 0; i < long(sums.size()); ++i) {
            const long last = std::min(num_anchors, (i + 1) * chunk);
            sums[i] = anchors(image, i * chunk, last, num_classes, table.get());
        }
    }
    Sums total;
    for (const Sums& part : sums) {
        total.background += part.background;
        total.foreground += part.foreground;
        total.labels_are_valid &= part.labels_are_valid;
    }
    return total;
}

template <typename T>
bool focal_loss(const T* logits, const int64_t* classes, const double* weights,
                const double* class_weights, T* gradient, Real<T>* losses, double* sum,
                const long* sizes, double alpha, double gamma, int threads) {
    const long num_images = sizes[0], num_anchors = sizes[1], num_classes = sizes[2];
    const long logits_stride = sizes[3], classes_stride = sizes[4];
    const long values = num_anchors * num_classes;
    bool labels_are_valid = true;
    *sum = 0;
    for (long i = 0; i < num_images; ++i) {
        Image<T> image;
        image.logits = logits + i * logits_stride;
        image.gradient = gradient ? gradient + i * values : nullptr;
        image.losses = losses ? losses + i * values : nullptr;
        image.classes = classes + i * classes_stride;
        image.class_weights = class_weights;
        image.gamma = Real<T>(gamma);
        const double background_scale = weights[i] * (alpha < 0 ? 1 : 1 - alpha);
        const double foreground_scale = weights[i] * (alpha < 0 ? 1 : alpha);
        image.background_scale = Real<T>(background_scale);
        image.foreground_scale = Real<T>(foreground_scale);
        const Sums sums = image_sums(image, num_anchors, num_classes, threads);
        *sum += background_scale * sums.background + foreground_scale * sums.foreground;
        labels_are_valid &= sums.labels_are_valid;
    }
    return labels_are_valid;
}

}  // namespace

// logits: [images, anchors, classes], dense but for the step from image to image; classes: [images,
// anchors], the same; weights: [images]; class_weights: [classes], or null; gradient, losses: dense,
// or null; sizes: images, anchors, classes, then the steps from image to image of the logits and of
// the classes, in values; alpha below 0 leaves both kinds unweighted. Returns 0 if a label is not
// below the number of classes.
#define FOCAL_LOSS(NAME, TYPE)                                                                  \
    extern "C" int NAME(const void* logits, const int64_t* classes, const double* weights,      \
                        const double* class_weights, void* gradient, void* losses, double* sum, \
                        const long* sizes, double alpha, double gamma, int threads) {           \
        return focal_loss(static_cast<const TYPE*>(logits), classes, weights, class_weights,    \
                          static_cast<TYPE*>(gradient), static_cast<Real<TYPE>*>(losses), sum,  \
                          sizes, alpha, gamma, threads);                                        \
    }
FOCAL_LOSS(focal_loss_bfloat16, Bfloat16)
FOCAL_LOSS(focal_loss_float32, float)
FOCAL_LOSS(focal_loss_float64, double)
