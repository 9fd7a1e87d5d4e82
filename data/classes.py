"""The model's class indices and the JSON's category ids: which is which."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retinanet.errors import InputError

UNNAMED = "N/A"
"""The name of a class that no category uses, as in torchvision's list of COCO's names."""


@dataclass(frozen=True)
class ClassMap:
    """For every label (the model's class index, from 0): its category id and its name.

    Stored in the checkpoint, so that predictions carry the ids of the training JSON.
    """

    category_ids: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def contiguous(cls, ids: NDArray[np.int64], names: Sequence[str]) -> "ClassMap":
        """Labels 0, 1, 2, … in the order of the JSON's categories (MLPerf's OpenImages)."""
        return cls(tuple(ids.tolist()), tuple(names))

    @classmethod
    def by_category_id(
        cls,
        ids: NDArray[np.int64],
        names: Sequence[str],
        num_classes: int,
        *,
        source: str = "annotations",
    ) -> "ClassMap":
        """Labels equal category ids, as torchvision's COCO checkpoints have them (91 outputs).

        Raises InputError, opening with `source`, for an id below 0 or not below `num_classes`.
        """
        table = [UNNAMED] * num_classes
        for index, (category_id, name) in enumerate(zip(ids.tolist(), names, strict=True)):
            if not 0 <= category_id < num_classes:
                raise InputError(
                    f"{source}: categories[{index}].id: {category_id} ({name}) is not from 0 to "
                    f"{num_classes - 1}; allow more classes or use contiguous labels"
                )
            table[category_id] = name
        return cls(tuple(range(num_classes)), tuple(table))

    @property
    def num_classes(self) -> int:
        """The number of the model's outputs per anchor."""
        return len(self.category_ids)

    def labels_of(self, category_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels [N] of category ids [N]. Raises InputError for an id that has no label."""
        known = np.array(self.category_ids, dtype=np.int64)
        order = np.argsort(known)
        found = np.searchsorted(known[order], category_ids)
        labels = order[np.minimum(found, len(known) - 1)]
        unknown = np.flatnonzero(known[labels] != category_ids)
        if len(unknown):
            raise InputError(
                f"category id {category_ids[unknown[0]]} is none of the model's "
                f"{self.num_classes} classes; use annotations with the training set's categories"
            )
        return labels

    def category_id_of(self, label: int) -> int:
        """The JSON's category id of one label."""
        return self.category_ids[label]

    def category_ids_of(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The JSON's category ids [N] of labels [N]."""
        return np.array(self.category_ids, dtype=np.int64)[labels]

    def name_of(self, label: int) -> str:
        """The category's name, or "N/A" for a label that no category uses."""
        return self.names[label]

    def check_categories(
        self, category_ids: NDArray[np.int64], category_names: Sequence[str], *, file: Path
    ) -> None:
        """Raise InputError, naming the first that differs, unless `file` has these categories.

        Their order is free: boxes find their label by id.
        """
        expected = dict(zip(self.category_ids, self.names, strict=True))
        for index, (category_id, name) in enumerate(
            zip(category_ids.tolist(), category_names, strict=True)
        ):
            if expected.get(category_id, UNNAMED) != name:
                known = expected.get(category_id, UNNAMED)
                trained = "unknown" if known == UNNAMED else f"{known!r}"
                raise InputError(
                    f"{file}: categories[{index}]: id {category_id} is {name!r} here and {trained} "
                    "in the training set; use annotations with the same categories"
                )
        missing = set(expected) - set(category_ids.tolist())
        for category_id in sorted(missing):
            if expected[category_id] != UNNAMED:
                raise InputError(
                    f"{file}: categories: id {category_id} ({expected[category_id]!r}) of the "
                    "training set is missing; use annotations with the same categories"
                )

    def to_json(self) -> dict[str, Any]:
        """A plain dict for the checkpoint; `from_json` reads it."""
        return {"category_ids": list(self.category_ids), "names": list(self.names)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ClassMap":
        """The inverse of `to_json`. Raises InputError where the dict is not one of its making."""
        ids, names = content.get("category_ids"), content.get("names")
        if not (
            isinstance(ids, list)
            and isinstance(names, list)
            and set(map(type, ids)) <= {int}
            and len(ids) == len(names) == len(set(ids))
            and set(map(type, names)) <= {str}
        ):
            raise InputError(
                "classes: expected lists category_ids and names of one length, distinct integers "
                "and strings; the checkpoint is damaged or not of this program's making"
            )
        return cls(tuple(ids), tuple(names))
