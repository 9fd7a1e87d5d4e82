"""Which pictures to label next: those from which the detector would learn most.

Three measures of active learning propose pictures in turn, each with its reason:

- uncertain: boxes whose score is near the threshold of their class, summed over a picture (margin
  sampling, Settles 2009, Active Learning Literature Survey; for detectors Brust et al. 2019,
  https://arxiv.org/abs/1809.09875)
- rare: boxes of a class with few labelled objects, weighted by the inverse class frequency
- unlike: pictures farther from all training pictures than 95 % of those are from their nearest one,
  in the mean of the network's maps C3 (Sun et al. 2022, https://arxiv.org/abs/2204.06507), the
  farthest first; one that was chosen counts as labelled (k-center greedy, Sener and Savarese 2018,
  https://arxiv.org/abs/1708.00489)
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch.nn.functional import normalize as to_unit_length

from common.console import print_line, progress
from common.errors import InputError, printable
from common.wording import counted
from data.annotations import images_in_other, input_size
from data.decoding import decode_annotated
from data.parts import read_ahead
from data.transforms import fit_image, normalize
from retinanet.detector import THREADS, Detector
from retinanet.evaluation.detect import SCORE_THRESHOLD
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.output import Pixels, spread_indices
from retinanet.model.retinanet import RetinaNet
from retinanet.predict.command import read
from retinanet.predict.search import find_sources
from retinanet.report.material import Material

REASONS = ("uncertain", "rare", "unlike")
SAMPLE = 500  # Training pictures, spread over all, with which others are compared
FAR = 0.95
COPY = 0.1  # Distance of near copies, relative to the median one of training pictures
RARE = 2.0  # Weight of a class with half as many boxes as the mean class
Features = NDArray[np.float32]  # [N, F] of unit length
Value = tuple[float, str]  # of a picture for one reason, and its evidence


class Candidate(NamedTuple):
    """A picture to label, and why."""

    file: str
    reason: str
    evidence: str
    detections: ImageDetections
    names: dict[int, str]  # of all classes


def propose(
    folder: Path, material: Material, *, count: int, console: Console
) -> tuple[int, list[Candidate]]:
    """Return how many pictures of a folder were searched, and at most `count` to label next.

    Those of the training and the validation are left out. Raises InputError if no other is there.
    """
    sources = find_sources([folder], out=folder / "predictions").pictures
    names = [str(source.file.relative_to(folder)) for source in sources]
    for split in filter(None, (material.trained, material.dataset)):
        others, place = split.annotations.file_names, split.image_folder
        for row in images_in_other(names, folder, other_names=others, other_folder=place)[::-1]:
            del names[row], sources[row]
    detector = Detector(material.checkpoint, precision=material.precision)
    files, found, features = [], [], []
    shown = progress(console, "pictures without labels", total=len(sources))
    with ThreadPoolExecutor(THREADS) as pool, shown as advance:
        for [(source, pixels)] in read_ahead(sources, read, pool, batch_size=1):
            if isinstance(pixels, InputError):
                print_line(console, printable(f"note: left out: {pixels}"))
                continue
            files.append(str(source.file))
            found += detector.detect([pixels], least_score=SCORE_THRESHOLD)
            features.append(pool_features(detector.network, pixels, material))
            advance(len(files), "")
    if not files:
        raise InputError(f"{folder}: no picture without labels; give a folder that has some")
    trained = training_features(detector.network, material, console)
    values = value_boxes(found, detector.names, material)
    return len(files), [
        Candidate(files[row], reason, evidence, found[row], detector.names)
        for row, reason, evidence in choose(values, np.stack(features), trained, count=count)
    ]


def pool_features(network: RetinaNet, pixels: Pixels, material: Material) -> NDArray[np.float32]:
    """Return the features [F] of a picture: C3, its colours and textures, averaged over places."""
    model = material.checkpoint.model
    size = input_size((pixels.shape[0], pixels.shape[1]), model.image_size)
    image = fit_image(pixels, size=size, resize=model.resize)
    with torch.inference_mode():
        # C4 and C5, which know objects, hardly tell a night from a day after a short training.
        maps = next(iter(network.backbone.body(normalize(image[None])).values()))
        features: NDArray[np.float32] = to_unit_length(maps.mean(dim=(2, 3)))[0].numpy()
    return features


def training_features(network: RetinaNet, material: Material, console: Console) -> Features:
    """Return the features of a sample of the training pictures; none if those are not here."""
    trained, found = material.trained, list[NDArray[np.float32]]()
    if trained is None:
        return np.zeros((0, 1), np.float32)
    rows = trained.rows[spread_indices(len(trained), SAMPLE)].tolist()
    with progress(console, "training pictures", total=len(rows)) as advance:
        for row in rows:
            pixels = decode_annotated(trained.annotations, trained.image_folder, row)
            found.append(pool_features(network, pixels, material))
            advance(len(found), "")
    return np.stack(found)


def value_boxes(
    pictures: Sequence[ImageDetections], names: dict[int, str], material: Material
) -> list[tuple[Value, Value]]:
    """Return how uncertain the boxes of each picture are, and how rare their classes."""
    # Validation annotations may have other ids for the same names.
    thresholds = dict(zip(material.annotations.category_names, material.thresholds, strict=True))
    trained = material.trained.annotations.box_category_ids if material.trained else np.zeros(0)
    boxes = {number: int((trained == number).sum()) for number in names}
    mean = len(trained) / len(names)
    values = []
    for found in pictures:
        unsure, rare = list[Value](), [(0.0, "")]
        for number, score in zip(found.category_ids.tolist(), found.scores.tolist(), strict=True):
            name, threshold = names[number], float(thresholds.get(names[number], 0.5))
            # The score as if the threshold were 0.5: linear below it and above it.
            level = float(np.interp(score, [0, threshold, 1], [0, 0.5, 1]))
            if 0.25 <= level <= 0.75:  # others are noise, or sure
                near = f"{name} {score:.2f}, threshold {threshold:.2g}"
                unsure.append((1 - abs(2 * level - 1), near))
            weight = mean / max(1, boxes[number])
            if weight >= RARE and level >= 0.25:
                few = f"perhaps {name} {score:.2f}; {boxes[number]:,} of its objects are labelled"
                rare.append((weight * level, few))
        many = counted(len(unsure), "unsure box", "unsure boxes")
        doubt = sum(value for value, _ in unsure), f"{many}: {max(unsure, default=rare[0])[1]}"
        values.append((doubt, max(rare)))
    return values


def distances(some: Features, others: Features) -> NDArray[np.float32]:
    """Return Euclidean distances [N, M]."""
    return np.sqrt(np.maximum(0, 2 - 2 * some @ others.T))


def choose(
    values: Sequence[tuple[Value, Value]], features: Features, trained: Features, *, count: int
) -> list[tuple[int, str, str]]:
    """Return row, reason and evidence of at most `count` pictures, one for each reason in turn.

    Near copies of a chosen picture, such as the next frame of a video, are passed over.
    """
    usual, far, nearest = 0.0, np.inf, np.zeros(len(values), np.float32)
    if len(trained) > 1:
        among = distances(trained, trained)
        np.fill_diagonal(among, np.inf)
        usual, far = np.quantile(among.min(axis=1), (0.5, FAR)).tolist()
        nearest = distances(features, trained).min(axis=1)
    times = [f"{each:.1f} times as far from the nearest training picture as those are from theirs"
             for each in nearest / max(usual, 1e-6)]  # fmt: skip
    of_boxes = np.array([[value for value, _ in pair] for pair in values]).T  # [2, N]
    is_free, chosen, in_vain = np.ones(len(values), np.bool_), list[tuple[int, str, str]](), 0
    for place, reason in cycle(enumerate(REASONS)):
        if len(chosen) == count or in_vain == len(REASONS):
            break
        value = of_boxes[place] if place < 2 else np.where(nearest > far, nearest, 0)
        row = int((value * is_free).argmax())
        in_vain += 1
        if value[row] > 0 and is_free[row]:
            chosen.append((row, reason, values[row][place][1] if place < 2 else times[row]))
            apart = distances(features, features[row : row + 1])[:, 0]
            nearest = np.minimum(nearest, apart)
            is_free &= apart >= COPY * usual
            is_free[row], in_vain = False, 0
    return chosen
