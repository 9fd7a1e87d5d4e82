"""`retinanet report`: from a run to a page about its detector."""

import math
from dataclasses import asdict
from typing import Any

from common.console import make_console, print_line
from common.errors import FINISHED, InputError, printable
from common.files import require_free, write_atomically, write_json
from common.outputs import require_no_input
from common.page import render_page
from retinanet.commands import ReportOptions
from retinanet.evaluation.command import read_trained
from retinanet.report.material import Material, find_run, read_material
from retinanet.report.sections import (
    all_sections,
    curve_records,
    label_section,
    pairs_table,
    summarize,
)
from retinanet.report.unlabelled import Candidate, propose
from retinanet.training.run_folder import REPORT


def report(options: ReportOptions) -> int:
    """Write the page of a run or a checkpoint, by default into the folder of the run.

    Raises:
        InputError: A file is missing or invalid, or an output exists.
    """
    folder, json_file = read_trained(options.checkpoint).folder, options.json
    run = find_run(folder)
    page = options.out or (run.path if run else folder) / REPORT
    unlabelled, listed = options.unlabelled, page.with_suffix(".next.txt")
    if unlabelled is not None and not unlabelled.is_dir():
        raise InputError(f"--unlabelled: {unlabelled} is not a folder")
    files = [page, *([listed] if unlabelled else [])]
    advice = "give --overwrite, or another file with --out"
    require_free(files, overwrite=options.overwrite, advice=advice)
    outputs = [*files, *([json_file] if json_file else [])]
    require_no_input(outputs, [*folder.iterdir(), *([run.metrics] if run else [])])
    console = make_console()
    material = read_material(
        options.checkpoint,
        annotations=options.annotations,
        images=options.images,
        precision=options.precision,
        console=console,
    )
    summary = summarize(material)
    title = f"{material.name}: what the detector finds and misses"
    sections, numbers = all_sections(material, page=page), to_json(material)
    if unlabelled is not None:
        searched, found = propose(unlabelled, material, count=options.next, console=console)
        sections.insert(2, label_section(found, material))
        write_atomically(listed, "".join(f"{each.file}\n" for each in found))
        numbers["label_next"] = [
            dict(zip(Candidate._fields, each[:3], strict=False)) for each in found
        ]
        summary.append(f"Label next: {len(found)} of {searched:,} pictures, listed in {listed}.")
    text = render_page(sections, title=title, summary=summary)
    write_atomically(page, text)
    if json_file is not None:
        write_json(json_file, numbers)
    for sentence in summary:
        print_line(console, printable(sentence))
    print_line(console, f"page: {page}, {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
    return FINISHED


def to_json(material: Material) -> dict[str, Any]:
    """Return all numbers of the page; null where nothing was measured."""
    names, mistakes = list(material.annotations.category_names), material.mistakes
    return {
        "name": material.name,
        "checkpoint": str(material.checkpoint.folder),
        "precision": material.precision,
        "step": material.checkpoint.position.step,
        "images": len(material.annotations),
        "trained_images": material.trained_images,
        "true_boxes": material.joint.true_boxes,
        "metrics": {name: number(value) for name, value in material.evaluation.summary.items()},
        "best": material.best and asdict(material.best),
        "classes": [
            {
                "category_id": result.category_id,
                "name": result.name,
                "map": number(result.map),
                "map_50": number(result.map_50),
                "true_boxes": result.true_boxes,
                "best": curve.best and asdict(curve.best),
                "threshold": float(threshold),
                "curve": curve_records(curve),
            }
            for curve, result, threshold in zip(
                material.curves, material.evaluation.classes, material.thresholds, strict=True
            )
        ],
        "confusion": {
            "true": [*names, None],
            "predicted": [*names, None],
            "boxes": mistakes.matrix.tolist(),
        },
        "pairs": pairs_table(material).records(),
        "boxes": {kind.name.lower(): count for kind, count in mistakes.kinds.items()},
        "missed": mistakes.missed,
        "images_with_mistakes": mistakes.images_with_mistakes,
        "worst_images": [
            {
                "image_id": result.detections.image_id,
                "file_name": material.annotations.file_names[result.index],
                "missed": result.missed,
                "false_positives": result.false_positives,
                "swaps": result.swaps,
            }
            for result in mistakes.worst
        ],
    }


def number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if math.isnan(value) else value
