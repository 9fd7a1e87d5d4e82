"""What pages name in the middle of a sentence is there: commands, options, settings."""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from common.errors import InputError
from profiling.ablate.definition import read_ablation
from retinanet.config import SECTIONS, field_names
from retinanet.config_file import load_config, read_yaml
from tests.docs.pages import REPOSITORY, all_pages, blocks_and_prose, commands_of
from tests.docs.rules import is_a_name, plain
from tests.docs.running import run_in_process, words_of

PAGES = {str(page.relative_to(REPOSITORY)): page.read_text("utf-8") for page in all_pages()}

PROGRAMS = ("train.py", "data", "launch", "profiling", "retinanet", "tests.torture", "tests.fuzz")

OF_OTHERS = {
    "mpirun": ("--allow-run-as-root", "--bind-to", "--mca", "--prtemca"),
    "srun": (
        "--cpu-bind",
        "--cpus-per-task",
        "--exclusive",
        "--kill-on-bad-exit",
        "--mpi",
        "--ntasks",
    ),
    "sbatch": ("--signal",),
    "docker": (
        *("--build-arg", "--cap-add", "--cpuset-cpus", "--cpuset-mems", "--ipc", "--pid"),
        *("--privileged", "--read-only", "--shm-size", "--stop-timeout", "--tmpfs", "--user"),
    ),
    "podman": ("--format", "--userns"),
    "apptainer": ("--bind", "--pwd"),
    "torchrun": ("--nnodes", "--rdzv-backend", "--rdzv-endpoint"),
    "benchdnn": ("--cfg", "--dt"),
}
"""Options of other programs that the pages name."""

PLACEHOLDER = re.compile(r"[A-Z…<$]|^$")

REFUSED = ("distributed.timeout_s=1e300", "model.pretrained_backbone=backbone.pth")
"""Values that the pages show as mistakes."""


class FoundParser(Exception):  # noqa: N818
    """Carries a command's parser out of it."""


def inline_code(text: str) -> Iterator[str]:
    _, prose = blocks_and_prose(text)
    for _, line in prose:
        yield from re.findall(r"`([^`]+)`", line)


def parser_of(program: str, folder: Path, *words: str) -> argparse.ArgumentParser:
    """The parser of `python PROGRAM WORDS`, before it parses anything."""

    def found(parser: argparse.ArgumentParser, *arguments: Sequence[str]) -> argparse.Namespace:
        raise FoundParser(parser)

    with (
        patch.object(argparse.ArgumentParser, "parse_args", found),
        patch.object(argparse.ArgumentParser, "parse_intermixed_args", found),
        pytest.raises(FoundParser) as caught,
    ):
        run_in_process([program, *words], folder)
    parser = caught.value.args[0]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def options_of_program(program: str, folder: Path) -> set[str]:
    """Return the options of a program and of its commands; each loads only if it is named."""
    parser = parser_of(program, folder)
    commands = [name for action in parser._actions for name in command_names(action)]
    loaded = [parser_of(program, folder, name) for name in commands]
    return set().union(*(options_of(parser) for parser in (parser, *loaded)))


def command_names(action: argparse.Action) -> list[str]:
    """Return the commands that a parser's action offers; none if it offers no commands."""
    return list(action.choices) if isinstance(action, argparse._SubParsersAction) else []


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Its own, and those of all commands below it."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= options_of(command)
    return found


NAMES = sorted(
    {
        plain(command.text).removesuffix(" …")
        for page, text in PAGES.items()
        for command in commands_of(text, page)
        if is_a_name(command) and "python -m " in command.text
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_named_has_help(name: str, tmp_path: Path) -> None:
    command, *options = name.split(" --")
    done = run_in_process([*words_of(command), "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {command} ")
    assert [one for one in options if f"--{one} " not in done.stdout.replace("\n", " ")] == []


def test_every_option_that_a_page_names_is_some_commands(tmp_path: Path) -> None:
    ours = set().union(*(options_of_program(program, tmp_path) for program in PROGRAMS))
    others = {option for options in OF_OTHERS.values() for option in options}
    named = {
        (page, option)
        for page, text in PAGES.items()
        for code in inline_code(text)
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)
        if code.startswith("--")
    }
    assert [one for one in sorted(named) if one[1] not in ours | others] == []
    assert others - {option for _, option in named} == set()


TOP = "|".join(sorted({name.partition(".")[0] for name in SECTIONS}))
FIELD = rf"(?:{TOP})(?:\.[a-z]\w*)+"


def settings_of(text: str) -> Iterator[tuple[str, str]]:
    """Fields that are named (`data.root`), and such with values, in blocks too."""
    blocks, _ = blocks_and_prose(text)
    code = list(inline_code(text))
    for line in [*code, *(line for block in blocks for line in block.lines)]:
        for name, value in re.findall(rf"(?<![\w./'-])({FIELD})=(\S*)", line):
            yield name, value.rstrip(",;)")
    for name in code:
        if re.fullmatch(FIELD, name) and not name.endswith(".log"):
            yield name, ""


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_a_page_is_a_field_that_takes_the_value(page: str) -> None:
    known = {*field_names(), *SECTIONS}
    faults = []
    for name, value in sorted(set(settings_of(PAGES[page]))):
        if name not in known:
            faults.append(f"{name}: no such field")
        elif not PLACEHOLDER.search(value) and f"{name}={value}" not in REFUSED:
            faults += refused(f"{name}={value}", name)
    assert faults == []


def refused(pair: str, name: str) -> list[str]:
    """The fault that is found in this field; what does not fit others is another command's."""
    try:
        load_config("demo.yaml", ["profile.onednn.steps=1-2", pair])
    except InputError as error:
        return [str(error)] if f": {name}: " in str(error) else []
    return []


@pytest.mark.parametrize("page", PAGES)
def test_every_yaml_of_a_page_is_a_configuration_or_an_ablation(page: str, tmp_path: Path) -> None:
    blocks, _ = blocks_and_prose(PAGES[page])
    for block in blocks:
        if block.language not in ("yaml", "yml"):
            continue
        text = "\n".join(block.lines)
        file = tmp_path / f"line{block.line}.yaml"
        file.write_text(text)
        if set(read_yaml(text, page)) <= set(SECTIONS):
            load_config(str(file))
        else:
            read_ablation(file)
