"""The files of configs/ablations."""

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from profiling.ablate.ablation import Ablation, Ablations
from retinanet.config_file import SHIPPED, described, read_yaml
from retinanet.errors import InputError
from retinanet.regular_files import read_text

FOLDER = SHIPPED / "ablations"
SCHEMA = TypeAdapter(Ablation)


def read_all(folder: Path = FOLDER) -> Ablations:
    """All ablations by name, in order.

    Raises:
        InputError: A file is not what it should be.
    """
    found = {file.stem: read_ablation(file) for file in sorted(folder.glob("*.yaml"))}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def chosen(names: Sequence[str], known: Ablations) -> Ablations:
    """The named ones, in order; all where none is named.

    Raises:
        InputError: A name is not known; says the nearest.
    """
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
            raise InputError(f"{name}: no such ablation; {advice}")
    return {name: one for name, one in known.items() if name in names or not names}


def measured_by(ablations: Ablations, known: Ablations) -> Ablations:
    """Those that have to be measured for these: some are answered by the runs of another."""
    names = {one.runs_of or name for name, one in ablations.items()}
    return {name: one for name, one in known.items() if name in names}


def read_ablation(file: Path) -> Ablation:
    """One file.

    Raises:
        InputError: It cannot be read, or a field is not what it should be; names file and field.
    """
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text: {error}") from error
    tree = read_yaml(text, str(file))
    try:
        ablation = SCHEMA.validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        message = first["msg"][0].lower() + first["msg"][1:]
        raise InputError(
            f"{file}: {field}: {message}, found {described(first['input'])}"
        ) from error
    for field, name in names_in(ablation):
        if name not in ablation.variants:
            known = ", ".join(ablation.variants)
            raise InputError(f"{file}: {field}: {name} is no variant; there are {known}")
    return ablation


def names_in(ablation: Ablation) -> Iterator[tuple[str, str]]:
    """Where a variant is named, and how."""
    for place, one in enumerate(ablation.comparisons):
        yield f"comparisons.{place}.change", one.change
        yield f"comparisons.{place}.baseline", one.baseline
    for name in ablation.calls or ():
        yield "calls", name
