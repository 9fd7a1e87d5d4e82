"""What a run is told: typed sections with one line and a unit for each field.

A configuration is a YAML file, then `section.field=value` pairs from the command line on top of it.
Unknown names and wrong types are errors that name the place and the nearest valid name. Importing
this module loads no torch, because ranks are pinned after the configuration is known and
before torch is loaded.
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from retinanet.errors import InputError

SHIPPED = Path(__file__).resolve().parent.parent / "configs"
"""Where `--config openimages.yaml` is found from any working directory."""

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass(config=STRICT, frozen=True, kw_only=True)
class RunConfig:
    """Where a run writes and how its randomness starts."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Folder below `root`; nothing outside it is written. [letters, digits, . _ -]"""
    root: Path = Path("runs")
    """Folder that holds the runs. [path]"""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of weights, order of images and augmentation. [integer]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ScenesConfig:
    """How many drawn scenes stand in for a data set."""

    train: Annotated[int, Field(ge=1)] = 1000
    """Scenes to train on. [images]"""
    validation: Annotated[int, Field(ge=1)] = 150
    """Held-out scenes to evaluate on. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class DataConfig:
    """Which pictures and boxes, and how they reach the model."""

    scenes: ScenesConfig | None = None
    """Draw scenes below the run's folder instead of reading a data set. [section or null]"""
    root: Path | None = None
    """Folder with COCO's own tree or MLPerf's OpenImages tree. [path or null]"""
    train_annotations: Path | None = None
    """COCO-format JSON to train on, where `root` does not fit. [path or null]"""
    train_images: Path | None = None
    """Folder of the training images. [path or null]"""
    validation_annotations: Path | None = None
    """COCO-format JSON to evaluate on. [path or null]"""
    validation_images: Path | None = None
    """Folder of the validation images. [path or null]"""
    image_size: Annotated[int, Field(ge=64, multiple_of=32)] = 800
    """Images are resized to this square, whatever their shape. [pixels]"""
    class_indices: Literal["contiguous", "category_id"] = "contiguous"
    """Class numbers of the model: the JSON's categories in order, or its category ids. [name]"""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that load images; 0 loads in the training process. [processes]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ModelConfig:
    """The detector: RetinaNet with a ResNeXt50-32x4d backbone."""

    norm: Literal["frozen", "batch"] = "frozen"
    """Batch norms as constants (needs pretrained weights), or trained with the rest. [name]"""
    trainable_layers: Annotated[int, Field(ge=0, le=5)] = 3
    """Backbone stages that train, counted from the last; 5 trains all. MLPerf: 3. [stages]"""
    pretrained_backbone: str | None = None
    """Weights to start from: .safetensors or .pth file, or `torchvision` (download). [or null]"""
    num_classes: Annotated[int, Field(ge=1)] | None = None
    """Outputs of the classification head; null takes what the categories need. [classes]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TrainingConfig:
    """The schedule: MLPerf's, unless changed."""

    epochs: Annotated[int, Field(ge=1)] = 8
    """Passes over the training images. [epochs]"""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """End after so many optimizer steps, with an evaluation, whatever `epochs` says. [steps]"""
    batch_size: Annotated[int, Field(ge=1)] = 2
    """Images a rank takes through the model at once. [images]"""
    gradient_accumulation: Annotated[int, Field(ge=1)] = 1
    """Batches whose gradients are averaged into one optimizer step. [batches]"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Adam's step size after warm-up. [1/step]"""
    warmup_epochs: Annotated[float, Field(ge=0)] = 1.0
    """Length of the linear warm-up, which advances every step. [epochs]"""
    warmup_factor: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Share of the learning rate at the first step. [factor]"""
    schedule: Literal["constant", "cosine"] = "constant"
    """The learning rate after warm-up: as it is, or falling to zero at the last step. [name]"""
    target_map: Annotated[float, Field(gt=0, le=1)] | None = None
    """End when an evaluation reaches this mAP (IoU 0.50:0.95); MLPerf: 0.34. [mAP or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured and drawn after epochs."""

    every: Annotated[int, Field(ge=1)] = 1
    """Evaluate and write a checkpoint after so many epochs, and at the end. [epochs]"""
    batch_size: Annotated[int, Field(ge=1)] = 8
    """Images evaluated at once. [images]"""
    pictures: Annotated[int, Field(ge=0)] = 6
    """Validation images drawn with predicted and true boxes at each evaluation. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EngineConfig:
    """How the arithmetic is done."""

    precision: Literal["bf16", "float32"] = "bf16"
    """BF16 autocast around the model (the loss stays in float32), or float32 throughout. [name]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Config:
    """A whole run."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()


SCHEMA = TypeAdapter(Config)

SECTIONS = {
    "run": RunConfig,
    "data": DataConfig,
    "data.scenes": ScenesConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "engine": EngineConfig,
}


def field_names() -> list[str]:
    """Every valid dotted name, such as `training.batch_size`."""
    return [
        f"{section}.{field.name}"
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
    ]


def find_config(name: str) -> Path:
    """The file that `--config NAME` means: a path, or a name in `configs/` with or without `.yaml`.

    Raises:
        InputError: There is no such file; names the nearest shipped one.
    """
    for candidate in (Path(name), SHIPPED / name, SHIPPED / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.name for path in SHIPPED.glob("**/*.yaml"))
    by_stem = {Path(one).stem: one for one in shipped}
    nearest = difflib.get_close_matches(Path(name).stem, by_stem, n=1)
    known = f"shipped are {', '.join(shipped)}"
    advice = f"did you mean {by_stem[nearest[0]]}?" if nearest else known
    raise InputError(f"{name}: no such configuration file; {advice}")


def read_yaml(text: str, source: str) -> Any:
    """Parse YAML 1.2 safely: no objects, no duplicate keys, `1e-4` is a number.

    Raises:
        InputError: The text is not YAML, or holds more than JSON could (a list as a key, a section
            within itself); names the source and, where it is known, the line.
    """
    try:
        tree = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())
        raise InputError(f"{source}{line}: not valid YAML: {problem}") from error
    except (YAMLError, ValueError) as error:
        raise InputError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    try:
        json.dumps(tree, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{source}: expected sections and plain values: {error}") from error
    return tree


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and put `section.field=value` pairs on top.

    Args:
        name: A path, or a name in `configs/`.
        overrides: Pairs such as `training.batch_size=4`; values are YAML.

    Raises:
        InputError: One line naming the file or the pair, the field, and the nearest valid name.
    """
    path = find_config(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from error
    tree = read_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected sections such as `training:`, found {described(tree)}")
    tree.setdefault("run", {})
    if isinstance(tree["run"], dict):
        tree["run"].setdefault("name", path.stem)
    tree.setdefault("data", {})
    origins = {pair.partition("=")[0].strip(): "command line" for pair in overrides}
    for pair in overrides:
        apply_override(tree, pair)
    return validated(tree, source=str(path), origins=origins)


def config_from_tree(tree: Mapping[str, Any], source: str) -> Config:
    """A configuration from plain values, such as those kept in a checkpoint."""
    return validated(tree, source=source, origins={})


def config_to_tree(config: Config) -> dict[str, Any]:
    """Plain values for YAML and JSON; `config_from_tree` gives the same configuration back."""
    return SCHEMA.dump_python(config, mode="json")


def apply_override(tree: dict[str, Any], pair: str) -> None:
    """Put one `section.field=value` pair into the tree.

    Raises:
        InputError: The pair has no `=`, or its name goes through something that is not a section.
    """
    name, equals, value = pair.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InputError(f"command line: {pair!r} is not section.field=value; {suggestion(name)}")
    *sections, leaf = name.split(".")
    inner = tree
    for section in sections:
        if inner.get(section) is None:
            inner[section] = {}
        inner = inner[section]
        if not isinstance(inner, dict):
            advice = f"{section} is not a section; {suggestion(name)}"
            raise InputError(f"command line: {name}: {advice}")
    inner[leaf] = read_yaml(value, f"command line: {name}")


def validated(tree: Mapping[str, Any], *, source: str, origins: Mapping[str, str]) -> Config:
    """Check names, types and ranges.

    Raises:
        InputError: The first thing wrong, in one line.
    """
    try:
        # As JSON, where strict means: no number from a text, but sections from mappings.
        return SCHEMA.validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"] if str(part) in valid_parts(tree))
    place = next((origins[key] for key in origins if is_within(key, name)), source)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        # A misspelt section is told with the field that was meant in it.
        name = next((key for key in origins if key.startswith(f"{name}.")), name)
        raise InputError(f"{place}: {name}: no such field; {suggestion(name)}")
    if first["type"] in ("missing", "missing_argument"):
        raise InputError(f"{place}: {name}: is missing")
    message = first["msg"][0].lower() + first["msg"][1:]
    message = message.replace("an object", "a section of fields")
    raise InputError(f"{place}: {name}: {message}, found {described(first['input'])}")


def valid_parts(tree: Mapping[str, Any]) -> set[str]:
    """The keys in a tree, at all depths.

    pydantic puts the kinds of a union into a location; only what the user wrote should be shown.
    """
    return set(keys_within(tree)) | {part for name in field_names() for part in name.split(".")}


def keys_within(tree: Mapping[str, Any]) -> Iterator[str]:
    """All keys of nested mappings, as text."""
    for key, value in tree.items():
        yield str(key)
        if isinstance(value, Mapping):
            yield from keys_within(value)


def is_within(key: str, name: str) -> bool:
    """Whether one dotted name is the other, or holds it."""
    return key == name or name.startswith(f"{key}.") or key.startswith(f"{name}.")


def suggestion(name: str) -> str:
    """Advice with the nearest valid name: by its last part first, since sections are forgotten."""
    names = field_names()
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in names if known.rpartition(".")[2] == leaf]
    if same_leaf:
        nearest = difflib.get_close_matches(name, same_leaf, n=1, cutoff=0)
    else:
        # The section that a name is rightly in is no advice.
        right = [section for section in SECTIONS if f"{name}.".startswith(f"{section}.")]
        candidates = [known for known in (*names, *SECTIONS) if known not in right]
        nearest = difflib.get_close_matches(name, candidates, n=1)
    if not nearest:
        leaves = {known.rpartition(".")[2]: known for known in names}
        nearest = [leaves[close] for close in difflib.get_close_matches(leaf, leaves, n=1)]
    return f"did you mean {nearest[0]}?" if nearest else "`train.py --help` lists all fields"


def described(value: object) -> str:
    """A value as an error message shows it: short, on one line."""
    shown = re.sub(r"\s+", " ", repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def field_help() -> str:
    """All fields with their meaning and default, for `--help`."""
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"{section}: {(kind.__doc__ or '').strip()}")
        properties = TypeAdapter(kind).json_schema()["properties"]
        for field in dataclasses.fields(kind):
            described_field = properties[field.name]["description"]
            default = "" if field.default is dataclasses.MISSING else f" (default {field.default})"
            lines.append(f"  {section}.{field.name}: {described_field}{default}")
    return "\n".join(lines)
