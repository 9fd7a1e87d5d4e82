// Grouped 3×3 convolutions with padding 1, and the gradients of their inputs, in BF16.
//
// Channels are taken in units of 32, one cache line of a pixel. A group of 4 by itself would fill 4 of a tile's 32
// summed channels and 4 of its 16 columns; a unit does eight such groups with two tiles a tap. Some rows of a unit are copied to
// scratch memory, pixel after pixel with a zero before each row, so that the 16 rows of a tile are 16
// neighbouring pixels and a tap is one offset for all of them. Weights are laid out as tiles with
// zeros between the groups. A convolution of stride 2 reads rows and columns of one parity: they are
// copied to a "plane" each. The input gradient of stride 2 writes those of one parity: a "class" of
// pixels each, with taps of its own. Sums are float32 and rounded once.
//
// Maps are channels_last: [N, H, W, C].

#include <omp.h>

#include "grouped_shape.h"
#include "tiles.h"

constexpr int64_t BLOCK = 16;   // channels of a block, the columns of a tile of results; a unit has two
constexpr int64_t STEP = 32;    // pixels that are taken together, in two tiles
constexpr int64_t UNIT_WEIGHTS = TAPS * 2 * TILE_VALUES;

// Pixels of the result whose taps lie alike: all, or those of one parity of row and column.
struct Class {
    int64_t taps;
    int64_t offset[TAPS], weight[TAPS];  // in copied pixels, and which of the nine
    int64_t row, column;                 // of the first such pixel
};

struct Plan {
    Strips strips;
    int64_t channels, units;
    int64_t source_height, source_width, split;        // split: planes of rows, and of columns
    int64_t lead;                                      // rows that are copied before a strip's first
    int64_t grid_height, grid_width, pitch;            // pixels of a class; of a copied row
    int64_t result_height, result_width, result_step;  // step: from a class's pixel to the next
    int64_t unit_parts, plane_pixels;
    int64_t class_count;
    Class classes[4];

    int64_t thread_bytes() const {
        return 2 * STEP * BLOCK * int64_t{sizeof(float)} + split * split * plane_pixels * UNIT * int64_t{sizeof(Bfloat16)};
    }
};

static void add_tap(Class& pixel_class, int64_t offset, int64_t weight) {
    pixel_class.offset[pixel_class.taps] = offset;
    pixel_class.weight[pixel_class.taps++] = weight;
}

static void plan_result_taps(Plan& plan) {
    for (int64_t tap = 0; tap < TAPS; tap++) {
        const int64_t ky = tap / 3, kx = tap % 3;
        const int64_t plane = plan.split == 1 ? 0 : ky % 2 * 2 + kx % 2;
        add_tap(plan.classes[0], plane * plan.plane_pixels + ky / plan.split * plan.pitch + kx / plan.split, tap);
    }
    plan.class_count = 1;
}

static void plan_gradient_taps(Plan& plan, int64_t stride) {
    plan.class_count = stride * stride;
    for (int64_t index = 0; index < plan.class_count; index++) {
        Class& pixel_class = plan.classes[index];
        pixel_class.row = index / stride;
        pixel_class.column = index % stride;
        for (int64_t tap = 0; tap < TAPS; tap++) {
            // The result's pixel is at stride * y + ky - 1 for the gradient's y.
            const int64_t row = pixel_class.row + 1 - tap / 3, column = pixel_class.column + 1 - tap % 3;
            if (row % stride != 0 || column % stride != 0) continue;
            add_tap(pixel_class, (row / stride + plan.lead) * plan.pitch + column / stride + 1, tap);
        }
    }
}

static Plan make_plan(const GroupedShape& shape, bool backward, int64_t threads) {
    const int64_t pitch = shape.out_width + 1;  // a row's last zero is the next row's first
    Plan plan{Strips(shape, pitch)};
    plan.channels = shape.channels;
    plan.units = shape.channels / UNIT;
    plan.split = backward ? 1 : shape.stride;
    plan.lead = backward && shape.stride == 2 ? 0 : 1;
    plan.source_height = backward ? shape.out_height : shape.in_height;
    plan.source_width = backward ? shape.out_width : shape.in_width;
    plan.result_height = backward ? shape.in_height : shape.out_height;
    plan.result_width = backward ? shape.in_width : shape.out_width;
    plan.result_step = backward ? shape.stride : 1;
    plan.grid_height = shape.out_height;
    plan.grid_width = shape.out_width;
    plan.pitch = pitch;
    plan.unit_parts = std::min(divided_up(4 * threads, plan.strips.count), plan.units);
    plan.plane_pixels = (plan.strips.rows + 2) * plan.pitch + STEP + 2;
    if (backward) plan_gradient_taps(plan, shape.stride);
    else plan_result_taps(plan);
    return plan;
}

// The weights of a unit as tiles [tap][block of results], `weight` [channels, 3, 3, group_width].
static void pack_weight(const Bfloat16* weight, int64_t group_width, int64_t unit, bool backward, Bfloat16* packed) {
    std::fill(packed, packed + UNIT_WEIGHTS, Bfloat16{0});
    for (int64_t output = 0; output < UNIT; output++) {
        const int64_t group = output / group_width * group_width;
        for (int64_t tap = 0; tap < TAPS; tap++) {
            const Bfloat16* row = weight + ((unit * UNIT + output) * TAPS + tap) * group_width;
            for (int64_t i = 0; i < group_width; i++) {
                const int64_t summed = backward ? output : group + i, column = backward ? group + i : output;
                const int64_t tile = tap * 2 + column / BLOCK;
                packed[tile * TILE_VALUES + summed / 2 * 32 + column % BLOCK * 2 + summed % 2] = row[i];
            }
        }
    }
}

// Copy a unit's rows, with a zero before each and zeros above and below the map.
static void copy_rows(const ConvolutionMaps& maps, const Plan& plan, const Strip& strip, int64_t unit, Bfloat16* copied) {
    constexpr size_t LINE = UNIT * sizeof(Bfloat16);
    const int64_t rows = plan.split * (strip.rows - 1) + (plan.lead == 0 ? 2 : 3), plane = plan.plane_pixels * UNIT;
    const int64_t columns = plan.split * (plan.grid_width - 1) + 3;
    for (int64_t place = 0; place < rows; place++) {
        const int64_t y = plan.split * strip.row + place - plan.lead;
        const bool inside = y >= 0 && y < plan.source_height;
        const Bfloat16* row = maps.source + unit * UNIT;
        if (inside) row += (strip.image * plan.source_height + y) * plan.source_width * plan.channels;
        const int64_t last = inside ? std::min(plan.source_width + 1, columns) : 0;
        for (int64_t parity = 0; parity < plan.split; parity++) {
            Bfloat16* to = copied + (place % plan.split * plan.split + parity) * plane + place / plan.split * plan.pitch * UNIT;
            for (int64_t column = parity; column < columns; column += plan.split, to += UNIT) {
                if (column >= 1 && column < last) std::memcpy(to, row + (column - 1) * plan.channels, LINE);
                else std::memset(to, 0, LINE);
            }
        }
    }
}

#if defined(__AVX512BW__)
static inline __m512i rounded_bits(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
}

// 32 sums, in two blocks, as a pixel's line.
static inline void write_line(const float* low, const float* high, const Bfloat16* gate, bool relu, Bfloat16* to) {
    __m512 first = _mm512_loadu_ps(low), second = _mm512_loadu_ps(high);
    if (relu) first = positive(first), second = positive(second);
    const __m256i left = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(first), 16));
    const __m256i right = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(second), 16));
    __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(left), right, 1);
    if (gate) line = _mm512_maskz_mov_epi16(open_lanes(_mm512_loadu_si512(gate)), line);
    // Past the caches: nothing is read back soon, and the line need not be fetched first.
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
}
#else
static inline void write_line(const float* low, const float* high, const Bfloat16* gate, bool relu, Bfloat16* to) {
    for (int64_t i = 0; i < UNIT; i++) {
        const float sum = i < BLOCK ? low[i] : high[i - BLOCK];
        const bool open = !(relu && sum < 0) && !(gate && !is_open(gate[i]));
        to[i] = open ? rounded(sum) : 0;
    }
}
#endif

// sums [2 tiles of pixels][2 blocks] = bias + Σ over taps of copied pixels · weights.
template <typename Tiles>
static void multiply_step(const Bfloat16* copied, const Class& pixel_class, const Bfloat16* weights, const float* bias, float* sums) {
    constexpr int64_t LINE = UNIT * sizeof(Bfloat16);
    // A stride of 0 gives every row the same 16 values: sums begin with the bias.
    begin_sums<Tiles, 2>(bias, false, BLOCK, 0);
    begin_sums<Tiles, 2, 2>(bias, false, BLOCK, 0);
    for (int64_t tap = 0; tap < pixel_class.taps; tap++) {
        const Bfloat16* pixels = copied + pixel_class.offset[tap] * UNIT;
        const Bfloat16* tiles = weights + pixel_class.weight[tap] * 2 * TILE_VALUES;
        Tiles::template load<6>(tiles, LINE);
        Tiles::template load<4>(pixels, LINE);
        Tiles::template multiply<0, 4, 6>();
        Tiles::template load<7>(tiles + TILE_VALUES, LINE);
        Tiles::template multiply<1, 4, 7>();
        Tiles::template load<5>(pixels + TILE_ROWS * UNIT, LINE);
        Tiles::template multiply<2, 5, 6>();
        Tiles::template multiply<3, 5, 7>();
    }
    store_sums<Tiles, 4>(sums);
}

// Write the pixels of a step that exist; `place` is the first one's, in pixels of the pitch.
static void write_step(
    const ConvolutionMaps& maps, const Plan& plan, const Strip& strip, const Class& pixel_class, int64_t unit, int64_t place, const float* sums) {
    int64_t row = place / plan.pitch, column = place % plan.pitch;
    for (int64_t pixel = 0; pixel < STEP && row < strip.rows; pixel++) {
        const int64_t y = (strip.row + row) * plan.result_step + pixel_class.row, x = column * plan.result_step + pixel_class.column;
        if (column < plan.grid_width && x < plan.result_width && y < plan.result_height) {
            const int64_t to = ((strip.image * plan.result_height + y) * plan.result_width + x) * plan.channels + unit * UNIT;
            const float* low = sums + (pixel / TILE_ROWS * 2 * TILE_ROWS + pixel % TILE_ROWS) * BLOCK;
            write_line(low, low + TILE_ROWS * BLOCK, maps.gate ? maps.gate + to : nullptr, maps.relu, maps.result + to);
        }
        if (++column == plan.pitch) {
            column = 0;
            row++;
        }
    }
}

template <typename Tiles>
static void convolve_strip(
    const ConvolutionMaps& maps, const Plan& plan, int64_t index, int64_t part, const Bfloat16* weights, char* scratch) {
    float* sums = reinterpret_cast<float*>(scratch);
    Bfloat16* copied = reinterpret_cast<Bfloat16*>(sums + 2 * STEP * BLOCK);
    const Strip strip = plan.strips.find(index);
    Tiles::begin();
    for (int64_t unit = plan.units * part / plan.unit_parts; unit < plan.units * (part + 1) / plan.unit_parts; unit++) {
        copy_rows(maps, plan, strip, unit, copied);
        const Bfloat16* unit_weights = weights + unit * UNIT_WEIGHTS;
        for (int64_t place = 0; place < strip.rows * plan.pitch; place += STEP) {
            for (int64_t type = 0; type < plan.class_count; type++) {
                const Class& pixel_class = plan.classes[type];
                multiply_step<Tiles>(copied + place * UNIT, pixel_class, unit_weights, maps.bias + unit * UNIT, sums);
                write_step(maps, plan, strip, pixel_class, unit, place, sums);
            }
        }
    }
    Tiles::end();
#if defined(__AVX512BW__)
    _mm_sfence();  // other threads read the result next
#endif
}

extern "C" {

// Bytes of scratch memory: the weights' tiles, then what each thread needs.
int64_t grouped_convolution_bytes(const GroupedShape* shape, int32_t backward, int32_t threads) {
    const Plan plan = make_plan(*shape, backward, threads);
    return plan.units * UNIT_WEIGHTS * int64_t{sizeof(Bfloat16)} + threads * plan.thread_bytes();
}

// The output from the input or, `backward`, the input's gradient from the output's. `weight`
// [channels, 3, 3, group_width].
void grouped_convolve(
    const GroupedShape* shape, const ConvolutionMaps* maps, const Bfloat16* weight, char* scratch, int32_t backward,
    int32_t tiles, int32_t threads) {
    const Plan plan = make_plan(*shape, backward, threads);
    Bfloat16* weights = reinterpret_cast<Bfloat16*>(scratch);
    char* thread_scratch = scratch + plan.units * UNIT_WEIGHTS * sizeof(Bfloat16);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < plan.units; unit++) {
            pack_weight(weight, shape->group_width, unit, backward, weights + unit * UNIT_WEIGHTS);
        }
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < plan.strips.count * plan.unit_parts; job++) {
            char* memory = thread_scratch + omp_get_thread_num() * plan.thread_bytes();
            const int64_t strip = job / plan.unit_parts, part = job % plan.unit_parts;
            with_tiles(tiles, [&](auto kind) { convolve_strip<decltype(kind)>(*maps, plan, strip, part, weights, memory); });
        }
    }
}

}  // extern "C"
