"""How many values a forward pass keeps for the backward pass, counted layer by layer.

A convolution keeps its input, and a ReLU that overwrites its input keeps its output, which is the
next one's input: one copy of every map. A norm that trains keeps its input besides, so that it is
two. What comes before the first layer that trains keeps nothing.
"""

STEM = (64, 2)
"""Channels, and pixels of the image to each side of a position."""
STAGES = ((3, 128, 256, 4), (4, 256, 512, 8), (6, 512, 1024, 16), (3, 1024, 2048, 32))
"""ResNeXt50-32x4d: blocks, channels within a block, channels after it, pixels as above."""
PYRAMID = 256
"""Channels of the pyramid and of the heads."""
HIDDEN = 8
"""Hidden layers of both heads."""
ANCHORS = 9
"""At a position."""
INDEX_BYTES = 8
"""torch's max pooling keeps where each maximum was."""


def kept_values(image_size: int, *, trainable_layers: int, norm: str, num_classes: int) -> int:
    """Values of one image that are kept; one has the bytes of the precision."""
    first = 4 - min(trainable_layers, 4)  # the first stage that trains; 4: none
    values = sum(
        stage_values(stage, image_size, norm=norm)
        if stage >= first
        else inputs_of_others(stage, image_size, first=first)
        for stage in range(4)
    )
    if trainable_layers >= 4:  # the pooled stem is the first block's input
        values += STEM[0] * positions(image_size, 2 * STEM[1])
    if trainable_layers == 5:
        copies = 2 if norm == "batch" else 1
        values += 3 * image_size**2 + copies * STEM[0] * positions(image_size, STEM[1])
    return values + pyramid_values(image_size) + head_values(image_size, num_classes=num_classes)


def index_bytes(image_size: int, *, trainable_layers: int) -> int:
    """What the stem's pooling keeps of one image, where the stem trains. [bytes]"""
    if trainable_layers < 5:
        return 0
    return INDEX_BYTES * STEM[0] * positions(image_size, 2 * STEM[1])


def stage_values(stage: int, image_size: int, *, norm: str) -> int:
    """Of a stage that trains: the outputs of its convolutions."""
    blocks, inner, outer, stride = STAGES[stage]
    here = positions(image_size, stride)
    before = positions(image_size, STAGES[max(0, stage - 1)][3])  # the stride is its second one's
    once = inner * before + (inner + outer) * here + (blocks - 1) * (2 * inner + outer) * here
    return 2 * once + outer * here if norm == "batch" else once


def inputs_of_others(stage: int, image_size: int, *, first: int) -> int:
    """The output of a frozen stage, where a layer that trains takes it: the pyramid, or a stage."""
    _, _, outer, stride = STAGES[stage]
    return outer * positions(image_size, stride) if stage >= 1 or stage + 1 == first else 0


def pyramid_values(image_size: int) -> int:
    """The merged maps, and the levels that the heads take."""
    merged = sum(positions(image_size, stride) for _, _, _, stride in STAGES[1:])
    coarse = positions(image_size, 64)  # once more behind a ReLU, as P7's input
    return PYRAMID * (merged + level_positions(image_size) + coarse)


def head_values(image_size: int, *, num_classes: int) -> int:
    """The hidden maps of both heads, the gradients of logits, and the boxes."""
    return (HIDDEN * PYRAMID + ANCHORS * (num_classes + 4)) * level_positions(image_size)


def logit_values(image_size: int, *, num_classes: int) -> int:
    """Logits of one image."""
    return ANCHORS * num_classes * level_positions(image_size)


def level_positions(image_size: int) -> int:
    """Positions of all five levels."""
    return sum(positions(image_size, stride) for stride in (8, 16, 32, 64, 128))


def positions(image_size: int, stride: int) -> int:
    """Of a square map; a side that does not divide is rounded up."""
    side = -(-image_size // stride)
    return side * side
