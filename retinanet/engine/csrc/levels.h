// A level of the pyramid, as the kernels' callers pass it; maps are channels_last: [N, H, W, C].
#pragma once

#include "bfloat16.h"

struct Level {
    const Bfloat16* input;
    Bfloat16* output;  // or, for Winograd's weight gradients, the output's gradient
    // None, or of the output's shape and what a ReLU returned. The output is zero where this is closed.
    const Bfloat16* gate;
    int64_t images, height, width;
};

// Of weight gradients.
struct GradientLevel {
    const Bfloat16* input;
    const Bfloat16* gradient;       // of the output
    int64_t images, height, width;  // of the output; a 1×1 of stride 2 reads every second pixel of the input
    int64_t input_height, input_width;
};
