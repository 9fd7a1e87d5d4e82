"""Configurations from a YAML file and `section.field=value` pairs; the command line of trainings.

For editors of such files, pydantic makes a JSON schema from `retinanet/config.py`.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from common.cli import add_command, number_of_ranks
from common.errors import FINISHED, InputError
from common.files import read_text, write_atomically
from common.options import (
    add_options,
    flag,
    option,
    overrides_argument,
    overwrite_option,
    take_options,
)
from common.program import FOLDER
from common.stored import first_fault
from common.yaml_text import read_yaml
from data.annotations import Split, SplitName, TrainingRules, as_setting, find_split
from retinanet.config import (
    SCHEMA,
    SECTIONS,
    Config,
    config_to_tree,
    field_help,
    field_names,
)
from retinanet.config_sections import DataConfig
from retinanet.config_types import augmentation_names

SHIPPED = FOLDER / "configs"
"""The folder of `--config openimages.yaml`, from any working directory."""

MOST_SECTIONS = max(name.count(".") for name in field_names())  # Dots in the longest field name

COMMAND_LINE = "command line"

SHORTHANDS = {"engine": "name"}
"""The field that a section given as a single word sets: `engine: ipex` is `engine.name: ipex`."""


def find_config(name: str) -> Path:
    """Find the file of `--config NAME`: a path, or a name in `configs/` with or without `.yaml`."""
    for candidate in (Path(name), SHIPPED / name, SHIPPED / f"{name}.yaml"):
        # Not is_file(): <(…) of a shell is a pipe. A folder named `demo` does not hide demo.yaml.
        if candidate.exists() and not candidate.is_dir():
            return candidate
    shipped = sorted(path.name for path in SHIPPED.glob("*.yaml"))
    by_stem = {Path(name).stem: name for name in shipped}
    nearest = difflib.get_close_matches(Path(name).stem, by_stem, n=1)
    known = f"choose one of {', '.join(shipped)}, or a path"
    advice = f"did you mean {by_stem[nearest[0]]}?" if nearest else known
    raise InputError(f"{name}: no such configuration file; {advice}")


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, see `find_config`, and put `section.field=value` pairs on top.

    The values of pairs such as `training.batch_size=4` are YAML.

    Raises:
        InputError: One line naming the file or the pair, the field, and the nearest valid name.
    """
    path = find_config(name)
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read as text: {reason}") from error
    tree = read_yaml(text, str(path))
    if not isinstance(tree, dict):
        value = format_value(tree)
        raise InputError(f"{path}: expected sections such as `training:`, found {value}")
    tree.setdefault("run", {})
    # Anything else is reported when the configuration is validated.
    if isinstance(tree["run"], dict):
        tree["run"].setdefault("name", path.stem)
    tree.setdefault("data", {})
    for section, field in SHORTHANDS.items():
        if isinstance(tree.get(section), str):
            tree[section] = {field: tree[section]}
    tree = without_former(tree, source=str(path))
    origins = {pair.partition("=")[0].strip(): COMMAND_LINE for pair in overrides}
    for pair in overrides:
        apply_override(tree, pair)
    tree = without_former(tree, source=COMMAND_LINE)
    return validated(tree, source=str(path), origins=origins)


def config_from_tree(tree: Mapping[str, Any], source: str) -> Config:
    """Return a configuration from plain values, such as those of a checkpoint."""
    return validated(without_former(tree), source=source, origins={})


FORMER = {
    "evaluation.metric": ("faster-coco-eval", "retinanet evaluate --metric"),
    "mlperf.submission": (None, "retinanet mlperf submission"),
}
"""Settings of earlier versions, whose files and checkpoints have them: default, and replacement."""

RENAMED: dict[str, str] = {}
"""Deprecated settings, and the names that replace them; docs/stability.md says how long."""


def without_former(tree: Mapping[str, Any], *, source: str = "") -> dict[str, Any]:
    """Return a tree without the settings of earlier versions; a renamed one has its new name.

    A note on stderr names a renamed one, if there is a `source`; those of checkpoints stay silent.

    Raises:
        InputError: There is a `source`, and a setting has a value that asks for something, or a
            file has it under both names.
    """
    result: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()
    }
    for name in (*FORMER, *RENAMED):
        section, _, field = name.partition(".")
        if not isinstance(result.get(section), dict) or field not in result[section]:
            continue
        value = result[section].pop(field)
        if name in RENAMED:
            section, _, field = RENAMED[name].partition(".")
            result[section] = result.get(section) or {}
            if source != COMMAND_LINE and field in result[section]:
                raise InputError(f"{source}: {name}: is now {RENAMED[name]}, which is set too")
            result[section][field] = value
            if source:
                print(f"note: {source}: {name} is now {RENAMED[name]}", file=sys.stderr)
        elif source and value != FORMER[name][0]:
            raise InputError(f"{source}: {name}: is no setting any more; use {FORMER[name][1]}")
    return result


def apply_override(tree: dict[str, Any], pair: str) -> None:
    """Put one `section.field=value` pair into the tree."""
    name, equals, value = pair.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InputError(f"command line: {pair!r} is not section.field=value; {suggestion(name)}")
    *sections, leaf = name.split(".")
    if len(sections) > MOST_SECTIONS:
        raise InputError(f"command line: {name}: no such field; {suggestion(name)}")
    inner = tree
    for section in sections:
        # Also a section that the file leaves empty or sets to null.
        if inner.get(section) is None:
            inner[section] = {}
        inner = inner[section]
        if not isinstance(inner, dict):
            advice = f"{section} is not a section; {suggestion(name)}"
            raise InputError(f"command line: {name}: {advice}")
    content = read_yaml(value, f"command line: {name}")
    if name in SHORTHANDS and isinstance(content, str):
        # Set one field instead of replacing the section, whose other fields must stay.
        apply_override(tree, f"{name}.{SHORTHANDS[name]}={value}")
    else:
        inner[leaf] = content


def validated(tree: Mapping[str, Any], *, source: str, origins: Mapping[str, str]) -> Config:
    """Check names, types and ranges."""
    # As JSON: pydantic's strict mode accepts a mapping for a dataclass only from JSON.
    text = json.dumps(tree, default=str)
    if r"\u0000" in text.replace(r"\\", ""):  # that of an escaped backslash is none
        raise InputError(f"{source}, or a setting given with it: has a NUL character; remove it")
    try:
        return SCHEMA.validate_json(text)
    except ValidationError as error:
        fault = first_fault(error)
    name = ".".join(fault.path)
    place = next((origins[key] for key in origins if is_within(key, name)), source)
    if fault.kind in ("unexpected_keyword_argument", "extra_forbidden"):
        # A misspelt section is named together with its field, which the suggestion needs.
        name = next((key for key in origins if key.startswith(f"{name}.")), name)
        raise InputError(f"{place}: {name}: no such field; {suggestion(name)}")
    if fault.kind in ("missing", "missing_argument"):
        raise InputError(f"{place}: {name}: is missing")
    # pydantic validates JSON, where a section is an object.
    message = fault.after_name.replace("an object", "a section of fields")
    # For a whole section the message is enough.
    actual = "" if isinstance(fault.found, dict) else f", found {format_value(fault.found)}"
    if not is_written(tree, name):
        # Another field, which the message names, rules the default out.
        place = next((origins[key] for key in origins if key in message), source)
        actual = ""
    raise InputError(f"{place}: {name}: {message}{actual}")


def is_written(tree: Mapping[str, Any], name: str) -> bool:
    """Return whether the tree has a value under a dotted name."""
    value: Any = tree
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def is_within(key: str, name: str) -> bool:
    """Return whether a dotted name equals another, or contains it."""
    return key == name or name.startswith(f"{key}.") or key.startswith(f"{name}.")


def suggestion(name: str) -> str:
    """Return advice with the nearest valid name; the last part counts most: users omit sections."""
    names = field_names()
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in names if known.rpartition(".")[2] == leaf]
    if same_leaf:
        # No cutoff: a field of the same name in any other section is a good suggestion.
        nearest = difflib.get_close_matches(name, same_leaf, n=1, cutoff=0)
    else:
        # Do not suggest the section that the user has already spelt right.
        correct = [section for section in SECTIONS if f"{name}.".startswith(f"{section}.")]
        candidates = [known for known in (*names, *SECTIONS) if known not in correct]
        nearest = difflib.get_close_matches(name, candidates, n=1)
    if not nearest:
        leaves = {known.rpartition(".")[2]: known for known in names}
        nearest = [leaves[close] for close in difflib.get_close_matches(leaf, leaves, n=1)]
    return f"did you mean {nearest[0]}?" if nearest else "`retinanet train --help` lists all fields"


def format_value(value: object) -> str:
    """Return a value as an error message shows it: short, on one line."""
    shown = re.sub(r"\s+", " ", repr(value))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def configured_split(settings: DataConfig, split: SplitName, *, root: Path | None) -> Split:
    """Return a split's annotations and images, by `root` where `settings` gives no paths.

    `root` is `settings.root`, or the folder of synthetic data. Raises InputError as `find_split`.
    """
    is_train = split == "train"
    annotations = settings.train_annotations if is_train else settings.validation_annotations
    images = settings.train_images if is_train else settings.validation_images
    return find_split(root, split, annotations=annotations, images=images)


def side_of_square(data: DataConfig, *, who: str) -> int:
    """Return the side of the configured squares, for `who` takes no others.

    Raises:
        InputError: The images have the size of a rectangle.
    """
    if isinstance(data.image_size, int):
        return data.image_size
    raise InputError(
        f"data.image_size: {who} takes squares, not {as_setting(data.image_size)}; give the side "
        "of one with about as many pixels"
    )


def training_rules(config: Config, *, decoder: str) -> TrainingRules:
    """Return what the data module needs to know; `decoder` as `resolve_decoder` returns it."""
    data = config.data
    return TrainingRules(
        image_size=data.image_size,
        resize=data.resize,
        augmentation=augmentation_names(data.augmentation),
        decoder=decoder,
        class_indices=data.class_indices,
        num_classes=config.model.num_classes,
        skip_images_without_boxes=data.images_without_boxes == "skip",
        repeat_rare=data.repeat_rare,
        bad_image_limit=data.bad_image_limit if data.on_bad_image == "skip" else None,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `retinanet train`."""

    config: str = option(
        "a YAML file, or a name in configs/ (default: demo.yaml, synthetic data)",
        default="demo.yaml",
        metavar="NAME",
    )
    overrides: list[str] = overrides_argument()
    dry_run: bool = flag(
        "print the resolved configuration and the placement of the ranks, and exit"
    )
    check: bool = flag(
        "check data, disk space, /dev/shm, memory, placement, packages and permissions in seconds, "
        "without training; exit status 0: the run can start, 2: it cannot; with mpirun every host "
        "is checked"
    )
    check_ranks: int | None = option(
        "with --check, without mpirun: number of ranks planned on this host (default: 1)",
        default=None,
        parse=number_of_ranks,
        metavar="N",
    )
    resume: bool = flag("continue from the run's last checkpoint", exclusive="existing run")
    auto_resume: bool = flag(
        "resume the run if it exists, else start it (for requeued batch jobs)",
        exclusive="existing run",
    )
    overwrite: bool = flag(
        "remove the files of an earlier run and start over", exclusive="existing run"
    )


def parse_run_arguments(
    description: str, *, prog: str | None = None, words: Sequence[str] | None = None
) -> RunOptions:
    """Parse the command line of `retinanet train`, or the `words` after `prog`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"fields, by section:\n\n{field_help()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, RunOptions)
    options: RunOptions = take_options(RunOptions, vars(parser.parse_args(words)))
    if options.check_ranks and not options.check:
        parser.error("--check-ranks needs --check")
    return options


def add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `train`, which parses its options itself."""
    add_options(add_command(commands, "train", about="Train a detector."), RunOptions)


def print_config(config: Config) -> None:
    """Print the complete configuration as YAML, including defaults."""
    YAML().dump(config_to_tree(config), sys.stdout)


DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest dialect that editors' YAML support knows."""

SCHEMA_ABOUT = """\
Write the JSON schema of configuration files. With it an editor completes sections, fields and
values, shows what a field means, and underlines what a run would refuse. Rules that involve several
fields are checked by `retinanet train --dry-run` only.

A file names its schema in its first line, by a path relative to the file. The first form, which the
shipped files have, is for VS Code (extension YAML) and other editors with yaml-language-server, the
second for PyCharm:

  # yaml-language-server: $schema=schema.json
  # $schema: schema.json"""

SCHEMA_EXAMPLES = """\
examples:
  retinanet config schema --out schema.json
  retinanet config schema | less"""


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The options of `retinanet config schema`."""

    out: Path | None = option(
        "write it to this file (default: print it)", default=None, metavar="FILE", writes=True
    )
    overwrite: bool = overwrite_option("replace --out if it exists")


def add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `config` and its command."""
    parser = add_command(commands, "config", about="Describe the settings of configuration files.")
    add_command(
        parser.add_subparsers(required=True, metavar="COMMAND"),
        "schema",
        summary="JSON schema of configuration files: fields, values, defaults",
        about=SCHEMA_ABOUT,
        examples=SCHEMA_EXAMPLES,
        options=SchemaOptions,
        run=write_schema,
    )


def write_schema(options: SchemaOptions) -> int:
    """Write or print the schema; return the exit code."""
    text = f"{json.dumps(file_schema(), indent=2, ensure_ascii=False)}\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(options.out, text)
    return FINISHED


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of configuration files.

    It differs from that of a complete configuration: a file may leave out sections and the name of
    the run, which is then its own, and may write `engine: ipex` for `engine: {name: ipex}`.
    """
    schema = without_titles(SCHEMA.json_schema())
    del schema["required"]
    del schema["$defs"]["RunConfig"]["required"]
    for name, section in schema["properties"].items():
        # That of `engine` would depend on the processor; the fields have theirs.
        section.pop("default", None)
        if name in SHORTHANDS:
            values = resolve(schema, section)["properties"][SHORTHANDS[name]]["enum"]
            schema["properties"][name] = {"anyOf": [section, {"enum": values}]}
    return {"$schema": DIALECT, **schema}


def without_titles(node: Any) -> Any:
    """Return a schema without pydantic's titles, such as `Timeout S` of `timeout_s`."""
    if isinstance(node, list):
        return [without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A field may be called title.
    is_title = {key for key, value in node.items() if key == "title" and isinstance(value, str)}
    return {key: without_titles(value) for key, value in node.items() if key not in is_title}


def resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a node refers to, or the node itself."""
    definition: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return definition


@dataclass(frozen=True)
class Setting:
    """A field as `section.field=value` sets it."""

    name: str
    meaning: str
    values: tuple[str, ...]
    """Values that have names; other fields take numbers, texts or paths"""
    is_path: bool


def all_settings() -> Iterator[Setting]:
    """Yield every field that is not a section itself."""
    definitions = SCHEMA.json_schema()["$defs"]
    for section, kind in SECTIONS.items():
        for name, field in definitions[kind.__name__]["properties"].items():
            forms = [field, *field.get("anyOf", ())]
            if any("$ref" in form for form in forms):
                continue  # a section, which has an entry of its own
            values = [value for form in forms for value in form.get("enum", [])]
            values += [form["const"] for form in forms if "const" in form]
            if any(form.get("type") == "boolean" for form in forms):
                values += ["true", "false"]
            is_path = any(form.get("format") == "path" for form in forms)
            yield Setting(f"{section}.{name}", field["description"], tuple(values), is_path)
