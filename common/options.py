"""Options of a command: each is a field of the record that the command's function takes.

  @dataclass(frozen=True, kw_only=True)
  class SplitOptions:
      annotations: Path = argument("annotations, COCO format", metavar="JSON")
      seed: int = option("seed of the random split", default=0, metavar="N")
      out: Path = option("folder for both files", metavar="DIR")
      overwrite: bool = flag("replace existing files")
      json: Path | None = json_option()

A field's type says how its text is read: `Path`, `int`, `float`, the values of a `Literal`, or else
`parse`. A field whose type is another record has that record's options. Files that a command
writes are marked, so that they are checked once, before every command's work.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from common.errors import InputError
from common.files import require_free, require_free_outputs
from common.outputs import require_no_input

ADDED = "added"
"""The entry of a field's metadata with the arguments of `add_argument`."""


def option(
    what: str,
    *,
    default: Any = MISSING,
    name: str | None = None,
    parse: Callable[[str], Any] | None = None,
    exclusive: str | None = None,
    group: str | None = None,
    writes: bool | Sequence[str] = False,
    reads: Callable[[Any], Iterable[Path]] | None = None,
    **added: Any,
) -> Any:
    """Return a field that is the option `--field-name`; without a default it must be given.

    Args:
        what: The text of --help; the default value is added to it.
        default: The value without the option.
        name: Another name, such as `--json`.
        parse: A function from the text to the value.
        exclusive: Of the options with this word, at most one can be given.
        group: The heading above it in --help.
        writes: The value is a file that the command writes, or the folder `out`, in which it
            writes files of these names.
        reads: A function from the value, or one of several, to the files that the command reads,
            where it is no file itself, such as a folder of logs.
        **added: Other arguments of `ArgumentParser.add_argument`.
    """
    if name is not None:
        added["name"] = name
    if parse is not None:
        added["type"] = parse
    added |= {"help": what, "exclusive": exclusive, "group": group}
    marks = {"writes": writes is True, "inside": writes if isinstance(writes, Sequence) else ()}
    return field(default=default, metadata={ADDED: added, **marks, "reads": reads})


def argument(what: str, *, metavar: str, **added: Any) -> Any:
    """Return a field that is given by its place, not by a name; see `option`."""
    return option(what, metavar=metavar, positional=True, **added)


def flag(what: str, *, default: bool = False, **added: Any) -> Any:
    """Return a field that is true if the option is given; if it is by default, `--no-…` negates."""
    return option(what, default=default, **added)


def overwrite_option(what: str = "replace existing files") -> Any:
    """Return the field of `--overwrite`: the command's own files may replace earlier ones."""
    return flag(what)


def json_option(what: str = "also write the results to this file, as JSON") -> Any:
    """Return the field of `--json FILE`, None if it is not given."""
    return option(what, default=None, name="--json", metavar="FILE", writes=True)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The options `--out DIR`, `--overwrite` and `--json FILE`; see `included` for its files."""

    out: Path | None = option("write tables and charts to DIR", default=None, metavar="DIR")
    overwrite: bool = overwrite_option("replace files of an earlier call in DIR")
    json: Path | None = json_option()


def overrides_argument() -> Any:
    """Return a field of `section.field=value` arguments, which may be anywhere among the options.

    argparse takes positional arguments from one place only, and its intermixed parsing does not
    support subcommands.
    """
    return field(default_factory=list, metadata={ADDED: add_overrides})


def included(record: Any, *, writes: Sequence[str] = (), unless_given: Sequence[str] = ()) -> Any:
    """Return a field that holds another record, whose options the command has, too.

    `writes` are names of files that the command writes in the record's `out`; `unless_given` are
    those of files that it only writes if an option does not name an earlier one, which is read.
    """
    return field(metadata={ADDED: record, "inside": writes, "unless_given": unless_given})


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add `section.field=value` arguments, as `overrides`; see `overrides_argument`."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="settings that override the file, such as data.root=/data/coco",
    )
    parse = parser.parse_known_args

    def parse_all(*arguments: Any) -> tuple[argparse.Namespace, list[str]]:
        options, others = parse(*arguments)
        # Overrides behind an option are among the arguments that argparse could not place. Those
        # with a dash are unknown options, which the caller reports.
        options.overrides += [argument for argument in others if not argument.startswith("-")]
        return options, [argument for argument in others if argument.startswith("-")]

    parser.parse_known_args = parse_all  # type: ignore[method-assign, assignment]


def add_options(parser: argparse.ArgumentParser, record: type[Any]) -> None:
    """Add the options of a record's fields to a parser, in their order."""
    groups: dict[str, Any] = {}
    types = get_type_hints(record)
    for each in fields(record):
        added = each.metadata[ADDED]
        if is_dataclass(added):
            add_options(parser, types[each.name])
        elif callable(added):
            added(parser)
        else:
            place: Any = parser
            if heading := added["group"]:
                if heading not in groups:
                    groups[heading] = parser.add_argument_group(heading)
                place = groups[heading]
            if word := added["exclusive"]:
                if word not in groups:
                    groups[word] = place.add_mutually_exclusive_group()
                place = groups[word]
            add_option(place, each, types[each.name])


def add_option(place: Any, each: "Field[Any]", kind: Any) -> None:
    """Add a field's option, read as its type says, to a parser or a group."""
    own = ("name", "positional", "group", "exclusive")
    added = {key: value for key, value in each.metadata[ADDED].items() if key not in own}
    is_positional = each.metadata[ADDED].get("positional", False)
    default = None if each.default is MISSING else each.default
    inner = get_args(kind)
    alternatives = [kind, *inner, *chain.from_iterable(map(get_args, inner))]  # list[Path] | None
    if kind is bool:
        added["action"] = argparse.BooleanOptionalAction if default else "store_true"
    elif get_origin(kind) is Literal:
        added.setdefault("choices", get_args(kind))
    elif "type" not in added:
        kinds = {Path: parse_path, int: int, float: float}
        added["type"] = next((kinds[t] for t in kinds if t in alternatives), str)
    if not is_positional:
        added |= {"dest": each.name, "required": each.default is MISSING}
    elif default is not None or ("nargs" not in added and each.default is not MISSING):
        added.setdefault("nargs", "?")
    if not isinstance(default, bool | None) and "(default" not in added["help"]:
        # argparse fills in what `set_defaults` may have changed.
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else "%(default)s"
        added["help"] += f" (default: {shown})"
    place.add_argument(each.name if is_positional else option_name(each), default=default, **added)


def parse_path(text: str) -> Path:
    """Read a path; refuse an empty one, of an unset variable, which would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found ''; give . for this folder")
    return Path(text)


def option_name(each: "Field[Any]") -> str:
    """Return what is typed for a field, such as `--batch-size`."""
    name: str = each.metadata[ADDED].get("name", f"--{each.name.replace('_', '-')}")
    return name


def take_options(record: type[Any], values: dict[str, Any]) -> Any:
    """Return a record of parsed values, which are removed from `values`."""
    types = get_type_hints(record)
    return record(
        **{
            each.name: take_options(types[each.name], values)
            if is_dataclass(each.metadata[ADDED])
            else values.pop(each.name)
            for each in fields(record)
        }
    )


def check_outputs(options: Any) -> None:
    """Refuse files to write that exist, are read by the same command, or cannot be written.

    Existing files may be replaced where the record has a true `overwrite`, except those read.

    Raises:
        InputError: Names the first such file, and the option.
    """
    written: dict[str, Path] = {}
    read: list[Path] = []
    folder: list[Path] = []  # `out`: a folder, or a file; the command checks what is in it
    overwrite: bool | None = None
    for each, value in option_values(options):
        values = value if isinstance(value, list) else [value]
        paths = [v for v in values if isinstance(v, Path)]
        if each.metadata.get("writes") and paths:
            written[option_name(each)] = value
        elif each.name == "out":
            folder = paths
        elif reads := each.metadata.get("reads"):
            read += chain.from_iterable(reads(v) for v in values if v is not None)
        else:
            read += paths
        if each.name == "overwrite":
            overwrite = value
    inside, others = list[Path](), list[Path]()
    for each, out in product(fields(options), folder):
        inside += [out / name for name in each.metadata.get("inside", ())]
        others += [out / name for name in each.metadata.get("unless_given", ())]
    require_no_input([*written.values(), *folder, *inside], read)
    if inside and folder[0].exists() and not folder[0].is_dir():
        raise InputError(f"--out: {folder[0]} is a file; give a folder")
    require_free_outputs([*inside, *others], overwrite=bool(overwrite))
    for name, file in written.items():
        advice = f"give {name} another file"
        if overwrite is not None:
            advice = f"give --overwrite or another {name}"
        same = [other for other in (*written.values(), *inside, *others) if other == file]
        require_free(same, overwrite=bool(overwrite), advice=advice)


def option_values(options: Any) -> "list[tuple[Field[Any], Any]]":
    """Return the fields of a record, and of the records that it includes, with their values."""
    found: list[tuple[Field[Any], Any]] = []
    for each in fields(options):
        value = getattr(options, each.name)
        found += option_values(value) if is_dataclass(value) else [(each, value)]
    return found
