"""Every command of README and docs is run, as it is written, where what it names is in place."""

import re
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from common.errors import CONDITION_MET, FINISHED
from tests.conftest import NOT_AS_WRITTEN
from tests.data.download.datasets import coco, openimages
from tests.data.download.server import serving
from tests.docs.made import THINGS, checkout, put_in_place
from tests.docs.pages import REPOSITORY, Command, all_pages, commands_of, unmarked_commands
from tests.docs.rules import CHANGES, RULES, How, Rule, is_a_name, plain, rule_of
from tests.docs.running import parse_only, run_by_bash, run_in_process, words_of
from tests.docs.shown import missing_lines

PAGES = {str(page.relative_to(REPOSITORY)): page.read_text("utf-8") for page in all_pages()}


def all_commands() -> dict[str, list[Command]]:
    """What is run, each once, and where it stands; whole commands, not names of such."""
    found: dict[str, list[Command]] = {}
    for page, text in PAGES.items():
        for command in commands_of(text, page):
            if not is_a_name(command):
                found.setdefault(changed(command), []).append(command)
    return found


def changed(command: Command) -> str:
    """The command that is run in its place."""
    rule = rule_of(command)
    text = plain(command.text)
    for pattern, other in (*CHANGES, *(rule.instead if rule else ())):
        text = re.sub(pattern, other, text)
    return f"{text} {rule.more if rule else ''}".strip()


COMMANDS = all_commands()


def parameters() -> Iterator[object]:
    """One for each command; what needs two cores is run with the tests that do."""
    for ran, same in COMMANDS.items():
        rule = rule_of(same[0])
        marks = [pytest.mark.whole_machine] * bool(rule and rule.whole_machine)
        page = same[0].place.partition(":")[0]
        words = plain(same[0].text).replace("…", "...").replace("\n", " ")
        yield pytest.param(ran, id=f"{page}: {words}", marks=marks)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where things are made that many commands need."""
    path = tmp_path_factory.mktemp("made")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A checkout that a command may write into."""
    checkout(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)  # a checkpoint has 400 MB


@pytest.mark.parametrize("ran", list(parameters()))
def test_command_of_a_page_does_what_the_page_says(
    ran: str, made: Path, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = COMMANDS[ran][0]
    place, rule = first.place, rule_of(first)
    assert rule, f"{place}: no rule of tests/docs/rules.py is for: {first.text}"
    if rule.why:
        record_property(NOT_AS_WRITTEN, (rule.why, first.text))
    for name in [*rule.needs, *(thing for thing in THINGS if names(ran, thing))]:
        put_in_place(name, made, folder)
    before = set(folder.rglob("*"))
    done = try_command(ran, rule, folder)
    printed = done.stdout + done.stderr
    assert done.returncode == rule.status, f"{place}: {ran}\n{printed}"
    for pattern in [*rule.writes, *files_of(ran, rule)]:
        assert files_at(folder, pattern) - before, f"{place}: {ran}\nwrote no {pattern}"
    assert [part for part in rule.prints if part not in printed] == [], printed
    if rule.how in (How.RUN, How.BASH):
        for one in COMMANDS[ran]:
            missing = missing_lines(one.shown, printed, unlike=rule.unlike)
            assert not missing, f"{one.place}: {ran}\n{printed}\nthe page has also {missing}"


def test_every_rule_is_for_a_command_of_some_page() -> None:
    used = {rule_of(one) for same in COMMANDS.values() for one in same}
    assert [rule.of for rule in RULES if rule not in used] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_block_of_commands_is_marked_as_such(page: str) -> None:
    assert unmarked_commands(PAGES[page]) == [], "mark the block as bash, or put `$ ` before each"


def files_of(text: str, rule: Rule) -> list[str]:
    """What a command is told to write."""
    if rule.how not in (How.RUN, How.BASH) or rule.status not in (FINISHED, CONDITION_MET):
        return []
    options = {"--out", "--json", "--chart", "--slurm"}
    words = words_of(text)
    return [word for option, word in pairwise(words) if option in options]


def files_at(folder: Path, pattern: str) -> set[Path]:
    """What a pattern finds, and what is in it: a folder may have been there before."""
    found = set(folder.glob(pattern))
    return found.union(*(one.rglob("*") for one in found))


def names(text: str, thing: str) -> bool:
    """Whether a command names the thing, or something in it, and does not write it."""
    is_read = r"(?<!--out )(?<!--json )(?<!> )(?<![\w./\"-])"
    return bool(re.search(rf"{is_read}{re.escape(thing)}(?![\w.-])", text))


def try_command(text: str, rule: Rule, folder: Path) -> CompletedProcess[str]:
    """As the rule says."""
    if rule.how is How.RUN:
        if " data download " in text:
            return download(text, folder)
        return run_in_process(words_of(text), folder)
    if rule.how is How.BASH:
        return run_by_bash(text, folder)
    if rule.how is How.MAKE:
        return try_make(text, folder)
    if rule.how is How.PARSED:
        return parse_only(words_of(text), folder)
    return try_inner(text, folder)


def try_inner(text: str, folder: Path) -> CompletedProcess[str]:
    """What of ours a launcher or a container would start: a training's plan, others' options."""
    files = re.findall(r"(?<!\S)(?:launch|configs|docs)/[\w./-]+", text)
    assert [name for name in files if not (folder / name).exists()] == []
    training = re.search(r"train\.py.*", text)
    if training:
        return run_in_process([*words_of(training[0]), "--dry-run"], folder)
    module = re.search(r"python -m (?:data|launch|profiling|retinanet) .*", text)
    if module:
        return parse_only(words_of(module[0]), folder)
    return CompletedProcess(text, 0, "", "")


def download(text: str, folder: Path) -> CompletedProcess[str]:
    """From a server of this machine."""
    files = openimages(train=6, validation=2) | coco(train=6, validation=2)
    with serving(files) as server:
        return run_in_process([*words_of(text), "--mirror", server.url], folder)


def try_make(text: str, folder: Path) -> CompletedProcess[str]:
    """What make would run, and of it what has a rule, unless make is only told a variable."""
    done = run_by_bash(f"{text} --dry-run", folder)
    for line in done.stdout.splitlines():
        recipe = Command(line, "Makefile")
        rule = rule_of(recipe)
        if rule and rule.how is not How.MAKE and "=" not in text:
            tried = try_command(changed(recipe), rule, folder)
            assert tried.returncode == rule.status, f"{line}\n{tried.stderr}"
    return done
