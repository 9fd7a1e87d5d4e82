"""Check a data set before a run depends on it.

Reads the annotations of both splits and decodes every image with the run's decoder, on all cores.
Reports what would stop training, what training leaves out or fixes (boxes without
area, boxes partly outside their image, …), notes, and the counts of the classes.

  retinanet data verify --config coco.yaml data.root=/data/coco
  retinanet data verify --config coco.yaml data.root=/data/coco --no-images      # seconds
  retinanet data verify --config coco.yaml data.root=/data/coco --sample 1000
  retinanet data verify --config coco.yaml data.root=/data/coco --json found.json
  retinanet data verify --config coco.yaml data.root=/data/coco --chart objects.png
  retinanet data verify --config coco.yaml data.root=/data/coco --write-clean clean

For each split the boxes are counted whose IoU with every anchor of the detector is below 0.5, at
data.image_size: small, very large or elongated ones. The proposed image size is the smallest
multiple of 32 at which at most 1 % more of the training boxes are such than at the best size.

--chart draws sizes, shapes and classes. --write-clean writes an index of each split without the bad
images and boxes, and prints the command that trains on it. The annotations and the images are not
changed.

Exit status: 0 nothing stops training, 1 something does, 2 wrong arguments or missing file,
130 Ctrl-C.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.cli import add_command, chart_file, installed_command, positive
from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.options import flag, json_option, option, overrides_argument
from data.annotations import SPLITS, Size, SplitName
from data.decoding import resolve_decoder
from data.verify.objects import AnchorRule
from data.verify.report import VerifyOutputs, require_free_folder, verify
from retinanet.commands import Commands
from retinanet.config_file import configured_split, load_config, training_rules

if TYPE_CHECKING:
    from retinanet.model.matching import AnchorShapes

BOXES_AT_ONCE = 1000
"""Compared with all shapes of anchors in one go: the intermediate results stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of `retinanet data verify`."""

    config: str = option("a YAML file, or a name in configs/, as for train", metavar="NAME")
    overrides: list[str] = overrides_argument()
    split: SplitName | None = option(
        "check only this split (default: both, and compare their categories)",
        default=None,
        choices=SPLITS,
    )
    no_images: bool = flag("check only the annotations (fast)", exclusive="how many")
    sample: int | None = option(
        "decode only N images of each split",
        default=None,
        parse=positive,
        metavar="N",
        exclusive="how many",
    )
    json: Path | None = json_option(
        "also write all findings to this file: the first 1000 places of each kind"
    )
    chart: Path | None = option(
        "draw the objects and classes",
        default=None,
        parse=chart_file,
        metavar="FILE.png",
        writes=True,
    )
    write_clean: Path | None = option(
        "write DIR/train.index and DIR/validation.index without the bad entries",
        default=None,
        metavar="DIR",
    )


def add_verify(commands: Commands) -> None:
    """Add the command `verify`."""
    # The docstring of this module is the text of --help.
    add_command(commands, "verify", about=__doc__ or "", options=VerifyOptions, run=run)


def run(options: VerifyOptions) -> int:
    """Check what a configuration names and return the exit code.

    Raises:
        InputError: The configuration is wrong, a file is missing, or an output exists.
    """
    clean_folder, config, overrides = options.write_clean, options.config, options.overrides
    if options.sample is not None and clean_folder is not None:
        raise InputError(
            "--write-clean: not allowed with --sample, which checks only some images; remove one"
        )
    names: Sequence[SplitName] = SPLITS if options.split is None else (options.split,)
    settings = load_config(config, overrides)
    data = settings.data
    console = make_console()
    if clean_folder is not None:
        require_free_folder(clean_folder, names)
    root = data.root
    if data.scenes is not None:
        # These load torch, 400 MB and seconds that checking a data set does without.
        from retinanet.training.data import require_no_files
        from retinanet.training.run_folder import RunFolder

        require_no_files(data)
        root = RunFolder(settings.run.root / settings.run.name).scenes
        if not root.is_dir():
            print_line(console, f"{root}: does not exist before the run; nothing to verify")
            return FINISHED

    def command_with_config(group: str, *options: str) -> str:
        command = [*installed_command(group), *(["verify"] if group == "data" else [])]
        return shlex.join([*command, "--config", config, *overrides, *options])

    return verify(
        {name: configured_split(data, name, root=root) for name in names},
        training_rules(settings, decoder=resolve_decoder(data.decoder)),
        VerifyOutputs(options.json, options.chart, clean_folder),
        sample=0 if options.no_images else options.sample,
        make_anchor_rule=anchor_rule,
        command_with_config=command_with_config,
        console=console,
    )


def anchor_rule() -> AnchorRule:
    """Return the detector's anchors, and from which IoU on they match a box."""
    import torch

    from retinanet.model.anchors import anchors_for, feature_sizes_of
    from retinanet.model.matching import FOREGROUND_IOU, anchor_shapes, overlaps_with

    @cache
    def shapes_of(size: Size) -> "AnchorShapes":
        return anchor_shapes(anchors_for(size, feature_sizes_of(size)))

    def best_ious(boxes: NDArray[np.float64], size: Size) -> NDArray[np.float32]:
        shapes, parts = shapes_of(size), torch.from_numpy(boxes).split(BOXES_AT_ONCE)
        threads = torch.get_num_threads()
        # For parts so small the threads would wait for each other longer than they compute.
        torch.set_num_threads(1)
        try:
            best = torch.cat([overlaps_with(shapes, part).best for part in parts])
        finally:
            torch.set_num_threads(threads)
        return best.numpy().astype(np.float32)

    sides = shapes_of((512, 512)).sizes.numpy()
    areas, ratios = sides.prod(axis=1), sides[:, 0] / sides[:, 1]
    return AnchorRule(
        best_ious=best_ious,
        iou=FOREGROUND_IOU,
        smallest=float(areas.min() ** 0.5),
        largest=float(areas.max() ** 0.5),
        ratio=float(ratios.max()),
    )
