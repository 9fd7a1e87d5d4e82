"""From a configuration to a verdict: both splits, and what to do next."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from data.decoding import resolve_decoder
from data.sources import SPLITS, Split, SplitName
from data.verify.advice import advise
from data.verify.category_checks import check_categories_agree
from data.verify.clean import require_no_index, require_writable
from data.verify.image_checks import add_image_findings
from data.verify.json_report import as_json
from data.verify.report import conclusion, print_split, say
from data.verify.request import Request
from data.verify.split_check import CheckedSplit, check_annotations, check_images
from data.verify.unused_files import check_unused_files
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.configured_splits import configured_split
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, write_whole
from retinanet.terminal import make_console

STOPS_TRAINING = 1
"""The exit status when something would stop training."""


def verify(request: Request) -> int:
    """Check what a configuration names; returns the exit code.

    Raises:
        InputError: The configuration is wrong, a file is missing, or an output exists.
    """
    config = load_config(request.config, request.overrides)
    console = make_console()
    if request.json_file is not None:
        require_free_json(request.json_file)
        require_writable(request.json_file.absolute().parent)
    if request.clean_folder is not None:
        require_no_index(request.clean_folder, request.splits)
    root = config.data.root
    if config.data.scenes is not None:
        root = scenes_of(config)
        if not root.is_dir():
            say(console, f"{root}: not drawn yet; there is nothing to verify before the run does")
            return FINISHED
    decoder = resolve_decoder(config.data.decoder)
    splits = {
        name: configured_split(config.data, name, root=root)
        for name in SPLITS
        if name in request.splits
    }
    checked = check(request, config, splits, decoder=decoder, console=console)
    for one in checked:
        print_split(console, one)
    if request.json_file is not None:
        write_whole(request.json_file, json.dumps(as_json(checked, decoder=decoder), indent=1))
    console.print()
    say(console, conclusion(checked), wrap=True)
    advise(request, checked, console)
    return STOPS_TRAINING if any(one.findings.stopping() for one in checked) else FINISHED


def scenes_of(config: Config) -> Path:
    """Where a run draws its scenes.

    Raises:
        InputError: Files are given beside them.
    """
    # These load torch, 400 MB and seconds that checking a data set does without.
    from retinanet.training.run_data import require_no_files  # noqa: PLC0415
    from retinanet.training.run_folder import RunFolder  # noqa: PLC0415

    require_no_files(config.data)
    return RunFolder(config.run.root / config.run.name).scenes


def check(
    request: Request,
    config: Config,
    splits: dict[SplitName, Split],
    *,
    decoder: str,
    console: Console,
) -> list[CheckedSplit]:
    """All checks: of annotations first, which take less time, then of images."""
    checked = [
        check_annotations(name, split, config, console=console) for name, split in splits.items()
    ]
    contents = [one.contents for one in checked if one.contents is not None]
    whole = not any(one.entries.unreadable_categories for one in contents)
    if whole and len(contents) == len(SPLITS):
        check_categories_agree(contents[0].entries, contents[1].entries, checked[1].findings)
    if request.images:
        for one in checked:
            check_images(one, decoder=decoder, sample=request.sample, console=console)
        add_image_findings(checked, config.data)
        # One split's files may lie in the other's folder.
        if request.sample is None and len(checked) == len(SPLITS):
            find_unused(checked)
    return checked


def find_unused(checked: Sequence[CheckedSplit]) -> None:
    """Find files without annotations, in every folder whose splits' annotations can be read.

    A folder that both splits share is the first one's.
    """
    sharing: dict[Path, list[CheckedSplit]] = {}
    for one in checked:
        sharing.setdefault(one.split.images.resolve(), []).append(one)
    for folder, sharers in sharing.items():
        contents = [one.contents for one in sharers if one.contents is not None]
        if len(contents) == len(sharers):
            names = chain.from_iterable(one.entries.file_names for one in contents)
            check_unused_files(folder, names, sharers[0].findings)
