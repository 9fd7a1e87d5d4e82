"""`retinanet evaluate`: COCO's metric of a checkpoint."""

import json
import math
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from common.console import make_console, print_line
from common.errors import FINISHED, InputError
from common.files import require_free_outputs, write_atomically
from common.machine import slow_bf16
from common.outputs import require_no_input
from common.walk import real_path
from data.annotations import SAME_CATEGORIES, ClassMap, Split, TrainingRules, require_split
from data.dataset import DetectionDataset
from data.decoding import resolve_decoder
from data.index import open_annotations
from data.loader import evaluation_loader
from data.tiling import Tiling
from retinanet.commands import EvaluateOptions
from retinanet.config_file import config_from_tree, configured_split
from retinanet.config_sections import DataConfig
from retinanet.config_types import (
    DEFAULT_LIBRARY,
    MetricLibrary,
    Precision,
    chosen_precision,
    refuse_what_is_no_checkpoint,
)
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_pictures, detect_split
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.output import (
    SplitResult,
    evaluation_files,
    evaluation_name,
    evaluation_sheet,
    save_picture,
    write_evaluation,
)
from retinanet.evaluation.tiles import detect_in_tiles, detect_split_in_tiles
from retinanet.training.checkpoint import Checkpoint, read_checkpoint
from retinanet.training.recorder import print_evaluation


def evaluate(options: EvaluateOptions) -> int:
    """Print the metric of a checkpoint, by default on the validation split of its run.

    Raises:
        InputError: A file is missing or invalid, or an output exists.
    """
    out, annotations, tiling = options.out, options.annotations, options.tiles.tiling()
    trained = read_trained(options.checkpoint)
    name = evaluation_name(trained.position.step)
    sheet_file = Path(out or "", f"{name}.pictures.png")
    outputs = [] if out is None else [*evaluation_files(out, name=name), sheet_file]
    require_free_outputs(outputs, overwrite=options.overwrite)
    files = [*outputs, *([options.json] if options.json else [])]
    require_no_input(files, [*trained.folder.iterdir(), *([annotations] if annotations else [])])
    dataset = validation_split(trained, annotations=annotations, images=options.images)
    console = make_console()
    precision = noted_precision(options.precision, console)
    result = evaluate_split(
        trained,
        dataset,
        precision=precision,
        batch_size=options.batch_size,
        library=options.metric,
        tiling=tiling,
        console=console,
    )
    title = f"{trained.folder}, step {trained.position.step}, {len(dataset)} images, {precision}"
    title += f", {tiling}" if tiling else ""
    print_evaluation(console, result.evaluation, title=title)
    if out is not None:
        write_evaluation(result, out, name=name)
        sheet = evaluation_sheet(
            dataset.annotations, dataset.image_folder, result.detections, count=options.pictures
        )
        if sheet is not None:
            save_picture(sheet, sheet_file)
        contents = "boxes, classes, chart" + (" and pictures" if sheet is not None else "")
        console.print(f"{contents}: {out}/{name}.*", soft_wrap=True, markup=False)
    if options.json is not None:
        content: dict[str, object] = {"precision": precision}
        content |= {
            # JSON has no NaN.
            name: None if math.isnan(value) else value
            for name, value in result.evaluation.summary.items()
        }
        if tiling is not None:
            content["tiles"] = asdict(tiling)
        content["per_class"] = result.evaluation.per_class
        write_atomically(options.json, json.dumps(content, indent=1))
    return FINISHED


def noted_precision(name: Precision, console: Console) -> str:
    """Return the precision that `--precision` means here; print a note if it is slow."""
    precision = chosen_precision(name)
    if precision == "bf16" and (slow := slow_bf16()):
        print_line(console, f"note: --precision bf16: {slow}")
    return precision


def evaluate_split(
    checkpoint: Checkpoint,
    dataset: DetectionDataset,
    *,
    precision: str,
    batch_size: int,
    library: MetricLibrary = DEFAULT_LIBRARY,
    tiling: Tiling | None = None,
    console: Console,
) -> SplitResult:
    """Detect in every image of a split and compute COCO's metric, in this process.

    `precision`: "bf16" or "float32". With a `tiling` images are cut into tiles, of which
    `batch_size` are computed at a time.

    Raises:
        InputError: An image cannot be read.
    """
    model = checkpoint.build_model().eval()
    forward = torch_forward(model, precision=precision)
    start = time.perf_counter()
    if tiling is None:
        loader, classes = evaluation_loader(dataset, batch_size=batch_size), dataset.class_map
        found = detect_split(model, loader, classes=classes, forward=forward, console=console)
        assert found is not None, "None is returned only after a stop request"
        detections = found
    else:
        detect = partial(
            detect_pictures,
            model,
            classes=dataset.class_map,
            forward=forward,
            image_size=dataset.rules.image_size,
            resize=dataset.rules.resize,
        )
        find = partial(detect_in_tiles, detect=detect, tiling=tiling, batch_size=batch_size)
        detections = detect_split_in_tiles(dataset, find, console=console)
    evaluation = coco_metric(dataset.annotations, detections, library=library)
    return SplitResult(evaluation, detections, seconds=time.perf_counter() - start)


def read_trained(path: Path) -> Checkpoint:
    """Read a run's checkpoint, without its tensors.

    Raises:
        InputError: It is a pickle, an exported model or no checkpoint at all.
    """
    refuse_what_is_no_checkpoint(path)
    return read_checkpoint(path)


def validation_split(
    checkpoint: Checkpoint, *, annotations: Path | None, images: Path | None
) -> DetectionDataset:
    """Return the split to evaluate on, with the image size and classes of the checkpoint.

    Categories may have other ids than in training, if their names are the same.

    Raises:
        InputError: Only one of the paths is given, a file is missing, or categories differ.
    """
    if (annotations is None) != (images is None):
        missing = "--images" if images is None else "--annotations"
        raise InputError(f"command line: {missing}: give --annotations and --images together")
    settings = config_from_tree(checkpoint.state.config, str(checkpoint.folder / "state.json")).data
    is_converted = (settings.scenes, settings.root, settings.validation_annotations) == (None,) * 3
    advice = SAME_CATEGORIES
    if annotations is not None and images is not None:
        given = Split(annotations, images)
        split = require_split(given, names=("--annotations", "--images"))
        if is_converted:
            advice += f", or convert the detector again with --classes {split.annotations}"
    elif is_converted:
        raise InputError(
            f"{checkpoint.folder}: a converted checkpoint has no validation images; give "
            "--annotations and --images"
        )
    else:
        split = split_of_run(checkpoint, settings)
    content = open_annotations(split.annotations)
    categories = content.category_ids, content.category_names
    classes = ClassMap.from_json(checkpoint.model.classes).with_ids_of(*categories)
    classes.check_categories(*categories, file=split.annotations, advice=advice)
    return DetectionDataset(
        content,
        split.images,
        classes,
        TrainingRules(
            image_size=checkpoint.model.image_size,
            resize=checkpoint.model.resize,
            decoder=resolve_decoder("auto"),  # all decoders give the same pixels
        ),
        train=False,
        source=str(split.annotations),
    )


def split_of_run(checkpoint: Checkpoint, settings: DataConfig) -> Split:
    """Return the validation split of the training; raise InputError if it is not here."""
    # Synthetic data is in the run's folder, which may have been moved since.
    run_folder = real_path(checkpoint.folder).parent.parent
    root = settings.root if settings.scenes is None else run_folder / "scenes"
    try:
        return configured_split(settings, "validation", root=root)
    except InputError as error:
        # What follows is advice on settings, which this command does not have.
        problem = str(error).partition("; ")[0]
        raise InputError(
            f"{checkpoint.folder}: the validation images of its training are not here: {problem}; "
            "give --annotations and --images"
        ) from error
