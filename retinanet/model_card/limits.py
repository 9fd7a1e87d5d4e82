"""What a model is for, and what it is not: sentences that follow from facts."""

import math
from collections.abc import Iterator

from retinanet.model_card.facts import CardFacts

WEAK = 0.1
"""mAP of a class that is hardly found."""
FEW = 1000
"""Training pictures below which a detector of photographs has seen little."""


def sentences(facts: CardFacts) -> Iterator[str]:
    """In order of weight, plain text."""
    if facts.is_drawn:
        yield (
            "It was trained on drawn scenes: it shows that training works here, and finds nothing "
            "useful in photographs."
        )
    else:
        yield (
            "It is for pictures like those that it was trained on, and for the classes below alone."
        )
    if facts.is_its_own_test:
        yield (
            "It was evaluated on the pictures that it was trained on: the numbers say how well it "
            "has learnt them by heart, and nothing of how it does on others."
        )
    if facts.step < facts.total_steps:
        yield f"It is of step {facts.step} of {facts.total_steps}: the training was not at its end."
    if not facts.is_drawn and facts.train.number_of_images < FEW:
        yield f"{facts.train.number_of_images} pictures are few to learn from."
    if not facts.is_pretrained:
        yield "The training began with random weights, not with those of a pretrained backbone."
    yield from sentences_on_classes(facts)
    small, large = facts.summary["map_small"], facts.summary["map_large"]
    if small < large / 2:  # false where one is not known
        yield (
            f"Small objects are found less well: mAP {small:.3f} below 32×32 pixels, {large:.3f} "
            "above 96×96."
        )
    yield (
        f"Pictures are squeezed to {facts.image_size}×{facts.image_size} pixels: what is a few "
        "pixels wide after that is lost."
    )
    yield (
        "Other cameras, places, seasons and people than those of its pictures were not measured. "
        "Before it decides anything that matters, evaluate it on pictures of where it is to work."
    )


def sentences_on_classes(facts: CardFacts) -> Iterator[str]:
    """Those that were not measured, and those that are hardly found."""
    measured = [one for one in facts.classes if not math.isnan(one.map)]
    unknown = len(facts.classes) - len(measured)
    if unknown:
        yield (
            f"{unknown} of {len(facts.classes)} classes have no box in the pictures of the "
            "evaluation: how well they are found is not known."
        )
    weak = sum(one.map < WEAK for one in measured)
    if weak:
        yield f"{weak} of {len(measured)} measured classes have a mAP below {WEAK}."
