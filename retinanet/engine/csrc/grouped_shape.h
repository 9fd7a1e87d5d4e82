// What is convolved by the kernels of grouped 3×3 convolutions with padding 1, as their callers pass it.
#pragma once

#include "bfloat16.h"

struct GroupedShape {
    int64_t images, channels, group_width, in_height, in_width, out_height, out_width, stride;
};

// The maps of outputs from inputs, or of input gradients from those of outputs.
struct ConvolutionMaps {
    const Bfloat16* source;
    Bfloat16* result;
    const Bfloat16* gate;  // as large as the result, which is zero where the ReLU that returned this was closed; or null
    const float* bias;     // [channels]
    int32_t relu;
};

constexpr int64_t UNIT = 32;  // channels that are taken together, one cache line of a pixel
constexpr int64_t TAPS = 9;

// Some rows of an image's output grid, which are copied or packed at once.
struct Strip {
    int64_t image, row, rows;
};

// All strips of a map.
struct Strips {
    int64_t grid_height;
    int64_t rows, in_image, count;  // of a strip at most; strips of an image, and of all

    // `pitch`: pixels of a copied row. A strip has about 1,024 pixels.
    Strips(const GroupedShape& shape, int64_t pitch) : grid_height(shape.out_height) {
        const int64_t most = std::min(std::max<int64_t>(1024 / pitch, 1), grid_height);
        in_image = divided_up(grid_height, most);
        rows = divided_up(grid_height, in_image);
        count = shape.images * in_image;
    }

    Strip find(int64_t index) const {
        const int64_t row = index % in_image * rows;
        return {index / in_image, row, std::min(rows, grid_height - row)};
    }
};
