"""Commands, options, settings and YAML that pages name exist."""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from common.errors import InputError
from common.yaml_text import read_yaml
from profiling.ablate.definition import read_ablation
from retinanet.config import SECTIONS, field_names
from retinanet.config_file import load_config
from tests.docs.pages import REPOSITORY, all_pages, blocks_and_prose, page_commands
from tests.docs.rules import is_a_name, plain
from tests.docs.runner import run_in_process

PAGES = {str(page.relative_to(REPOSITORY)): page.read_text("utf-8") for page in all_pages()}

PROGRAMS = ("data", "launch", "profiling", "retinanet", "tests.torture", "tests.fuzz")

OTHER_PROGRAMS = {
    "mpirun": ("--allow-run-as-root", "--bind-to", "--mca", "--prtemca"),
    "srun": (
        *("--cpu-bind", "--cpus-per-task", "--exact", "--exclusive", "--kill-on-bad-exit"),
        *("--mpi", "--ntasks"),
    ),
    "sbatch": ("--export", "--signal"),
    "docker": (
        *("--build-arg", "--cap-add", "--cpuset-cpus", "--cpuset-mems", "--ipc", "--pid"),
        *("--privileged", "--read-only", "--shm-size", "--stop-timeout", "--tmpfs", "--user"),
    ),
    "ld": ("--disable-new-dtags",),
    "podman": ("--format", "--userns"),
    "torchrun": (
        *("--master-addr", "--master-port", "--nnodes", "--node-rank"),
        *("--rdzv-backend", "--rdzv-endpoint", "--shutdown-timeout"),
    ),
}
"""Options of other programs that the pages name."""

PLACEHOLDER = re.compile(r"[A-Z…<$]|^$")

REFUSED = (
    "distributed.timeout_s=1e300",
    "model.pretrained_backbone=backbone.pth",
)
"""Values that the pages show as mistakes."""


class ParserCaught(Exception):  # noqa: N818
    """Carries a command's parser out of it."""


def inline_code(text: str) -> Iterator[str]:
    _, prose = blocks_and_prose(text)
    for _, line in prose:
        yield from re.findall(r"`([^`]+)`", line)


def catch_parser(program: str, folder: Path, *arguments: str) -> argparse.ArgumentParser:
    """Return the parser of `python PROGRAM ARGUMENTS`, before it parses anything."""

    def catch(parser: argparse.ArgumentParser, *_: Sequence[str]) -> argparse.Namespace:
        raise ParserCaught(parser)

    with (
        patch.object(argparse.ArgumentParser, "parse_args", catch),
        patch.object(argparse.ArgumentParser, "parse_intermixed_args", catch),
        pytest.raises(ParserCaught) as caught,
    ):
        run_in_process([program, *arguments], folder)
    parser = caught.value.args[0]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def options_of_program(program: str, folder: Path) -> set[str]:
    """Return the options of a program and of its commands; each loads only if it is named."""
    parser = catch_parser(program, folder)
    commands = [name for action in parser._actions for name in command_names(action)]
    loaded = [catch_parser(program, folder, name) for name in commands]
    return set().union(*(parser_options(parser) for parser in (parser, *loaded)))


def command_names(action: argparse.Action) -> list[str]:
    """Return the commands that a parser's action offers; none if it offers no commands."""
    return list(action.choices) if isinstance(action, argparse._SubParsersAction) else []


def parser_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a parser and of all commands below it."""
    options = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                options |= parser_options(command)
    return options


NAMES = sorted(
    {
        plain(command.text).removesuffix(" …")
        for page, text in PAGES.items()
        for command in page_commands(text, page)
        if is_a_name(command) and plain(command.text).startswith("retinanet")
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_named_command_has_help(name: str, tmp_path: Path) -> None:
    command, *options = name.split(" --")
    done = run_in_process([*shlex.split(command), "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {command} ")
    assert [
        option for option in options if f"--{option} " not in done.stdout.replace("\n", " ")
    ] == []


def test_named_options_exist(tmp_path: Path) -> None:
    ours = set().union(*(options_of_program(program, tmp_path) for program in PROGRAMS))
    others = {option for options in OTHER_PROGRAMS.values() for option in options}
    named = {
        (page, option)
        for page, text in PAGES.items()
        for code in inline_code(text)
        for option in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", code)
        if code.startswith("--")
    }
    assert [pair for pair in sorted(named) if pair[1] not in ours | others] == []
    assert others - {option for _, option in named} == set()


TOP = "|".join(sorted({name.partition(".")[0] for name in SECTIONS}))
FIELD = rf"(?:{TOP})(?:\.[a-z]\w*)+"


def named_settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield fields that a page names (`data.root`), with their values, in blocks too."""
    blocks, _ = blocks_and_prose(text)
    code = list(inline_code(text))
    for line in [*code, *(line for block in blocks for line in block.lines)]:
        for name, value in re.findall(rf"(?<![\w./'-])({FIELD})=(\S*)", line):
            yield name, value.rstrip(",;)")
    for name in code:
        if re.fullmatch(FIELD, name) and not name.endswith((".log", ".yaml")):
            yield name, ""


@pytest.mark.parametrize("page", PAGES)
def test_named_settings_are_valid(page: str) -> None:
    known = {*field_names(), *SECTIONS}
    faults = []
    for name, value in sorted(set(named_settings(PAGES[page]))):
        if name not in known:
            faults.append(f"{name}: no such field")
        elif not PLACEHOLDER.search(value) and f"{name}={value}" not in REFUSED:
            faults += refused(f"{name}={value}", name)
    assert faults == []


def refused(pair: str, name: str) -> list[str]:
    """Return the error of this field; errors of other fields depend on the whole command."""
    try:
        # With BF16, which `auto` chooses by the processor, and some settings need.
        load_config("demo.yaml", ["profile.onednn.steps=1-2", "engine.precision=bf16", pair])
    except InputError as error:
        return [str(error)] if f": {name}: " in str(error) else []
    return []


@pytest.mark.parametrize("page", PAGES)
def test_yaml_is_a_configuration_or_an_ablation(page: str, tmp_path: Path) -> None:
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
