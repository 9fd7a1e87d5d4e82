"""Every command of README and docs is run, with the files in place that it names.

Most take seconds: `make test` runs the commands of README and of make, `make test-all` all.
Of commands that need another program or another machine only the options are read.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from common.errors import CONDITION_MET, FINISHED
from tests.conftest import NOT_AS_WRITTEN
from tests.data.download.samples import coco, openimages
from tests.data.download.server import serving
from tests.docs.fixtures import FIXTURES, checkout, put_in_place
from tests.docs.output import missing_lines
from tests.docs.pages import REPOSITORY, Command, all_pages, page_commands, unmarked_commands
from tests.docs.rules import CHANGES, NAMED_BY, RULES, How, Rule, is_a_name, matching_rule, plain
from tests.docs.runner import parse_only, run_by_bash, run_in_process

PAGES = {str(page.relative_to(REPOSITORY)): page.read_text("utf-8") for page in all_pages()}


def all_commands() -> dict[str, list[Command]]:
    """Return the commands to run, each once, with where they stand; names of commands are not."""
    commands: dict[str, list[Command]] = {}
    for page, text in PAGES.items():
        for command in page_commands(text, page):
            if not is_a_name(command):
                commands.setdefault(changed(command), []).append(command)
    return commands


def changed(command: Command) -> str:
    """Return the modified command of a test."""
    rule = matching_rule(command)
    text = plain(command.text)
    for pattern, other in (*CHANGES, *(rule.instead if rule else ())):
        text = re.sub(pattern, other, text)
    return f"{text} {rule.more if rule else ''}".strip()


COMMANDS = all_commands()


def parameters() -> Iterator[object]:
    """Yield a parameter for each command, with its markers."""
    for text, commands in COMMANDS.items():
        rule, page = matching_rule(commands[0]), commands[0].place.partition(":")[0]
        how = rule.how if rule else How.CANNOT
        in_readme = any(command.place.startswith("README") for command in commands)
        is_main = in_readme and how is How.RUN and "--resume" not in text
        marks = [pytest.mark.slow] * (is_main or how is How.MAKE)
        if how in (How.RUN, How.BASH) and not is_main:
            marks = [pytest.mark.exhaustive]
        marks += [pytest.mark.whole_machine] * bool(rule and rule.whole_machine)
        name = plain(commands[0].text).replace("…", "...").replace("\n", " ")
        yield pytest.param(text, id=f"{page}: {name}", marks=marks)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a checkout in which a command may write."""
    checkout(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)  # a checkpoint has 400 MB


@pytest.mark.parametrize("text", list(parameters()))
def test_command_of_a_page_does_what_the_page_says(
    text: str, root: Path, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = COMMANDS[text][0]
    place, rule = first.place, matching_rule(first)
    assert rule, f"{place}: no rule of tests/docs/rules.py is for: {first.text}"
    if rule.why:
        record_property(NOT_AS_WRITTEN, (rule.why, first.text))
    for name in needed_files(text, rule):
        put_in_place(name, root, folder)
    before = set(folder.rglob("*"))
    done = run_command(text, rule, folder)
    printed = done.stdout + done.stderr
    assert done.returncode == rule.status, f"{place}: {text}\n{printed}"
    for pattern in [*rule.writes, *output_files(text, rule)]:
        assert files_at(folder, pattern) - before, f"{place}: {text}\nwrote no {pattern}"
    assert [part for part in rule.prints if part not in printed] == [], printed
    if rule.how in (How.RUN, How.BASH):
        for command in COMMANDS[text]:
            missing = missing_lines(command.shown, printed, unlike=rule.unlike)
            assert not missing, f"{command.place}: {text}\n{printed}\nnot printed: {missing}"


def test_every_command_has_a_rule_and_every_rule_a_command() -> None:
    commands = [command for group in COMMANDS.values() for command in group]
    assert [command for command in commands if matching_rule(command) is None] == []
    used = {matching_rule(command) for command in commands}
    assert [rule.pattern for rule in RULES if rule not in used] == []


@pytest.mark.parametrize("page", PAGES)
def test_block_of_commands_is_marked_as_such(page: str) -> None:
    assert unmarked_commands(PAGES[page]) == [], "mark the block as bash, or put `$ ` before each"


def output_files(text: str, rule: Rule) -> list[str]:
    """Return the files that a command's options name as its output."""
    if rule.how not in (How.RUN, How.BASH) or rule.status not in (FINISHED, CONDITION_MET):
        return []
    options = {"--out", "--json", "--chart", "--slurm"}
    return [value for option, value in pairwise(shlex.split(text)) if option in options]


def files_at(folder: Path, pattern: str) -> set[Path]:
    """Return the matches of a pattern, and their content: a folder may have existed before."""
    matches = set(folder.glob(pattern))
    return matches.union(*(path.rglob("*") for path in matches))


def needed_files(text: str, rule: Rule) -> list[str]:
    """Return what has to be in place: what the rule, the command, or a file in it names."""
    named = [name for name in FIXTURES if is_input(text, name)]
    behind = (name for key, names in NAMED_BY.items() if is_input(text, key) for name in names)
    return [*dict.fromkeys((*rule.needs, *named, *behind))]


def is_input(text: str, name: str) -> bool:
    """Return whether a command names a file, or something in it, and does not write it."""
    is_read = r"(?<!--out )(?<!--json )(?<!> )(?<![\w./\"-])"
    return bool(re.search(rf"{is_read}{re.escape(name)}(?![\w.-])", text))


def run_command(text: str, rule: Rule, folder: Path) -> CompletedProcess[str]:
    """Run a command as its rule says."""
    if rule.how is How.RUN:
        if " data download " in text:
            return run_download(text, folder)
        return run_in_process(shlex.split(text), folder)
    if rule.how is How.BASH:
        return run_by_bash(text, folder)
    if rule.how is How.MAKE:
        return run_make(text, folder)
    if rule.how is How.PARSED:
        return parse_only(shlex.split(text), folder)
    return run_inner(text, folder)


def run_inner(text: str, folder: Path) -> CompletedProcess[str]:
    """Read our command that a launcher or a container would start."""
    files = re.findall(r"(?<!\S)(?:launch|configs|docs)/[\w./-]+", text)
    assert [name for name in files if not (folder / name).exists()] == []
    ours = re.search(r"(?<!\S)retinanet (\w+).*", text)
    if ours is None:
        return CompletedProcess(text, 0, "", "")
    if ours[1] == "train":
        return run_in_process([*shlex.split(ours[0]), "--dry-run"], folder)
    return parse_only(shlex.split(ours[0]), folder)


def run_download(text: str, folder: Path) -> CompletedProcess[str]:
    """Download from a server on this machine."""
    files = openimages(train=6, validation=2) | coco(train=6, validation=2)
    with serving(files) as server:
        return run_in_process([*shlex.split(text), "--mirror", server.url], folder)


def run_make(text: str, folder: Path) -> CompletedProcess[str]:
    """Print a target's recipe and run those of its commands that have a rule.

    A command that only sets a variable of make repeats a recipe that is tested already.
    """
    done = run_by_bash(f"{text} --dry-run", folder)
    for line in done.stdout.splitlines():
        recipe = Command(line, "Makefile")
        rule = matching_rule(recipe)
        if rule and rule.how is not How.MAKE and "=" not in text:
            ended = run_command(changed(recipe), rule, folder)
            assert ended.returncode == rule.status, f"{line}\n{ended.stderr}"
    return done
