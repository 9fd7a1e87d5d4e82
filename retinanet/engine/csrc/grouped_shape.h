// What is convolved by the kernels of grouped 3×3 convolutions with padding 1, as their callers pass it.
#pragma once

#include <cstdint>

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
