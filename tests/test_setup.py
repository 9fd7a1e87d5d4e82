"""setup.sh with stand-ins for apt-get and id: nothing is installed."""

import errno
import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import run_program, write_program
from tests.support.without_locks import built_library, without_locks

SETUP = Path(__file__).resolve().parents[1] / "setup.sh"
SKIPPED = "the test of the report's page, which is skipped without"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return the only folder on PATH, with the programs that the script itself needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "chmod", "env"):
        (folder / name).symlink_to(shutil.which(name) or name)
    write_program(folder / "id", "echo 0")
    return folder


def apt_get(programs: Path, *, installs: str) -> None:
    """Write an apt-get that records its arguments and creates the program of a known package."""
    write_program(
        programs / "apt-get",
        f"""echo "$*" >>{programs}/asked
        for last in "$@"; do :; done
        case $last in
        update) exit 100 ;;
        {installs}) echo '#!/bin/sh' >{programs}/$last; chmod +x {programs}/$last ;;
        *) exit 100 ;;
        esac""",
    )


def set_up(programs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program(programs / "bash", SETUP, *words, env={"PATH": str(programs)}, timeout=60)


def requested(programs: Path) -> list[str]:
    """Return the last argument of each call of apt-get."""
    file = programs / "asked"
    return [line.split()[-1] for line in file.read_text().splitlines()] if file.exists() else []


def test_installed_browser_is_used(programs: Path) -> None:
    write_program(programs / "chromium", "exit 0")
    apt_get(programs, installs="*")
    done = set_up(programs, "browser")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert requested(programs) == []


def test_root_installs_a_browser(programs: Path) -> None:
    apt_get(programs, installs="chromium")
    done = set_up(programs, "browser")
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing chromium by apt-get" in done.stdout
    assert requested(programs) == ["update", "chromium"]


def test_placeholder_script_is_not_taken_for_a_browser(programs: Path) -> None:
    write_program(programs / "chromium-browser", "echo needs snap >&2; exit 1")
    done = set_up(programs, "browser")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert SKIPPED in done.stderr


def test_missing_browser_is_reported_without_failing(programs: Path) -> None:
    apt_get(programs, installs="nothing")
    done = set_up(programs, "browser")
    assert done.returncode == 0
    assert SKIPPED in done.stderr
    write_program(programs / "id", "echo 1000")
    (programs / "asked").unlink()
    done = set_up(programs, "browser")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert SKIPPED in done.stderr
    assert requested(programs) == []


def test_unknown_argument_is_named(programs: Path) -> None:
    done = set_up(programs, "browsers")
    assert done.returncode == 2
    known = "dev, serving, fuzz, ipex, intel-mpi, open-mpi, compiler, tools, browser, pythons, uv"
    assert f"unknown argument browsers; known are: {known}\n" in done.stderr


def test_second_set_up_waits_for_the_first(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "chromium", "exit 0")
    (programs / "flock").symlink_to(shutil.which("flock") or "flock")
    script = tmp_path / "setup.sh"
    shutil.copy(SETUP, script)
    with script.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            [str(programs / "bash"), str(script), "browser"],
            env={"PATH": str(programs)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout is not None
        assert "another set-up is running" in waiting.stdout.readline()
        assert waiting.poll() is None
        fcntl.flock(other, fcntl.LOCK_UN)
        assert waiting.wait(timeout=30) == 0


def test_set_up_works_on_a_file_system_without_locks(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "chromium", "exit 0")
    (programs / "flock").symlink_to(shutil.which("flock") or "flock")
    refused = without_locks(built_library(tmp_path), errno.ENOSYS)
    refused |= {"PATH": str(programs)}
    done = run_program(programs / "bash", SETUP, "browser", env=refused, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_installed_compiler_is_used(programs: Path) -> None:
    write_program(programs / "c++", "exit 0")
    apt_get(programs, installs="*")
    done = set_up(programs, "compiler")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert requested(programs) == []


def test_root_installs_a_compiler(programs: Path) -> None:
    apt_get(programs, installs="g++")
    done = set_up(programs, "compiler")
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing g++ by apt-get" in done.stdout
    assert requested(programs) == ["update", "g++"]


def test_missing_compiler_is_one_line_with_the_package(
    programs: Path,
) -> None:
    write_program(programs / "id", "echo 1000")
    done = set_up(programs, "compiler")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "apt-get install g++" in done.stderr


def test_root_installs_the_programs_that_tests_call(programs: Path) -> None:
    write_program(programs / "c++", "exit 0")
    apt_get(programs, installs="git")
    done = set_up(programs, "tools")  # procps brings no program of that name: none is made here
    assert "installing git by apt-get, for tests" in done.stdout
    assert requested(programs) == ["update", "git", "update", "procps"]
    assert done.returncode == 2
    for name in ("pgrep", "ip"):
        write_program(programs / name, "exit 0")
    done = set_up(programs, "tools")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("missing", "package"), [("git", "git"), ("pgrep", "procps"), ("ip", "iproute2")]
)
def test_missing_program_is_named_to_a_user_who_is_not_root(
    programs: Path, missing: str, package: str
) -> None:
    write_program(programs / "id", "echo 1000")
    for name in {"c++", "git", "pgrep", "ip"} - {missing}:
        write_program(programs / name, "exit 0")
    done = set_up(programs, "tools")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"no {missing} on PATH" in done.stderr
    assert f"apt-get install {package})" in done.stderr
