"""Categories against the model's outputs, and one split's against the other's."""

import numpy as np

from data.classes import UNNAMED
from data.verify.entries import Entries
from data.verify.findings import Findings, Place


def check_categories_fit(
    entries: Entries, findings: Findings, *, class_indices: str, num_classes: int | None
) -> None:
    """Find categories for which the model has no output: see `data.opening.class_map_of`."""
    ids = entries.category_ids
    if class_indices == "contiguous":
        if num_classes not in (None, len(ids)):
            found = f"{len(ids)} categories; model.num_classes is {num_classes}"
            findings.add("categories_do_not_fit", Place("categories", found))
        return
    outside = ids < 0 if num_classes is None else (ids < 0) | (ids >= num_classes)
    outputs = "from 0 on" if num_classes is None else f"below model.num_classes={num_classes}"
    findings.add_rows(
        "categories_do_not_fit",
        np.flatnonzero(outside),
        lambda row: entries.category_place(row, ".id", f"{ids[row]}, expected {outputs}"),
    )


def check_categories_agree(train: Entries, validation: Entries, findings: Findings) -> None:
    """Find categories of the validation split that are not the training split's.

    Their order is free: see `data.classes.ClassMap.check_categories`.
    """
    pairs = zip(train.category_ids.tolist(), train.category_names, strict=True)
    expected = dict(pairs)
    for row, category_id in enumerate(validation.category_ids.tolist()):
        name, known = validation.category_names[row], expected.get(category_id)
        if name != known:
            trained = "unknown" if known in (None, UNNAMED) else repr(known)
            what = f"{category_id} is {name!r} here, {trained} in the training split"
            findings.add("categories_differ", validation.category_place(row, "", what))
    for category_id in sorted(expected.keys() - set(validation.category_ids.tolist())):
        if expected[category_id] != UNNAMED:
            what = f"{category_id} ({expected[category_id]!r}) is missing here"
            findings.add("categories_differ", Place("categories", what))
