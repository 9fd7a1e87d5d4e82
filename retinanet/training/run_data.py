"""The data that a configuration names: a data set's two splits, or drawn scenes."""

from functools import partial
from pathlib import Path

from rich.console import Console

from data.decoding import resolve_decoder
from data.opening import DetectionData, open_data
from data.scenes.drawing import make_scenes
from launch.group.process_group import ProcessGroup
from retinanet.cache_folder import one_process_at_a_time
from retinanet.config import Config, DataConfig, ScenesConfig
from retinanet.configured_splits import configured_split
from retinanet.errors import InputError
from retinanet.progress import progress
from retinanet.training.agreement import in_turn


def open_run_data(
    config: Config, *, scenes_folder: Path, console: Console, group: ProcessGroup | None = None
) -> DetectionData:
    """Open both splits, on rank 0 first; draw the scenes before where they are asked for.

    Args:
        config: Its section `data`, `model.num_classes`, and `run.seed` for drawing.
        scenes_folder: Where drawn scenes go.
        console: Shows the progress of drawing, and of making indexes.
        group: All ranks, each of which calls this.

    Raises:
        InputError: Fields contradict each other, the decoder is not installed, or files are
            missing or not what they should be.
    """
    opened = partial(opened_here, config, scenes_folder=scenes_folder, console=console)
    return in_turn(group or ProcessGroup(), opened)


def opened_here(config: Config, *, scenes_folder: Path, console: Console) -> DetectionData:
    """`open_run_data` on one rank."""
    settings = config.data
    decoder = resolve_decoder(settings.decoder)
    root = settings.root
    if settings.scenes is not None:
        require_no_files(settings)
        root = scenes_folder
        draw_scenes(root, settings.scenes, seed=config.run.seed, console=console)
    return open_data(
        configured_split(settings, "train", root=root),
        configured_split(settings, "validation", root=root),
        image_size=settings.image_size,
        class_indices=settings.class_indices,
        num_classes=config.model.num_classes,
        skip_images_without_boxes=settings.images_without_boxes == "skip",
        console=console,
        decoder=decoder,
        replace_bad_images=settings.on_bad_image == "skip",
    )


def draw_scenes(root: Path, settings: ScenesConfig, *, seed: int, console: Console) -> None:
    """Draw both splits' scenes, unless they are there, and show the progress."""
    total = settings.train + settings.validation
    root.parent.mkdir(parents=True, exist_ok=True)
    with (
        # Ranks on hosts with disks of their own draw there; one of each host is enough.
        one_process_at_a_time(root.with_name(f".{root.name}.lock")),
        progress(console, "drawing scenes", total=total) as advance,
    ):
        make_scenes(
            root,
            seed=seed,
            train=settings.train,
            validation=settings.validation,
            advance=advance,
        )


def require_no_files(settings: DataConfig) -> None:
    """Refuse a configuration that asks for drawn scenes and for a data set.

    Raises:
        InputError: Names the field that was given beside `data.scenes`.
    """
    files = {
        "data.root": settings.root,
        "data.train_annotations": settings.train_annotations,
        "data.train_images": settings.train_images,
        "data.validation_annotations": settings.validation_annotations,
        "data.validation_images": settings.validation_images,
    }
    for name, value in files.items():
        if value is not None:
            raise InputError(
                f"{name}: {value} is given beside data.scenes; add data.scenes=null to train on "
                "it, or start from --config coco.yaml or openimages.yaml"
            )
