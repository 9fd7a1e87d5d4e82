"""setup.sh with stand-ins for apt-get, id and uv: nothing is installed."""

import errno
import fcntl
import shutil
import subprocess
import sys
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
    known = "dev, serving, openvino, fuzz, ipex, intel-mpi, open-mpi, compiler, tools, browser"
    assert f"unknown argument browsers; known are: {known}, pythons, uv\n" in done.stderr


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
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        assert "another set-up is running" in waiting.stderr.readline()
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


@pytest.fixture
def checkout(tmp_path: Path, programs: Path) -> Path:
    """A folder with the script, and a uv on PATH that only records its arguments."""
    folder = tmp_path / "checkout"
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(SETUP, folder)
    for name in ("requirements.txt", "requirements/dev.txt", "requirements/ipex.txt"):
        (folder / name).write_text("numpy==2.4.6\ntorch==2.15.0\nnvidia-nccl-cu13==2.30.7\n")
    for name in ("cat", "rm", "mkdir", "touch", "grep", "sha256sum", "df", "tail", "tr", "head"):
        (programs / name).symlink_to(shutil.which(name) or name)
    write_program(
        programs / "uv",
        f"""case "$*" in *--help) exit ;; esac
        case "$1" in
        venv)
            for last in "$@"; do :; done
            mkdir -p "$last/bin"
            touch "$last/pyvenv.cfg"
            printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' >"$last/bin/python"
            chmod +x "$last/bin/python" ;;
        pip) [ ! -e {folder}/no-network ] || exit 1 ;;
        esac
        echo "$*" >>{folder}/asked""",
    )
    return folder


def install(
    checkout: Path, *words: str, python: Path | str = sys.executable, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script; return also what it asked uv for: `venv`, `pip`."""
    programs = checkout.parent / "bin"
    environment = {"PATH": str(programs), "PYTHON": str(python), **variables}
    done = run_program(programs / "bash", checkout / "setup.sh", *words, env=environment)
    asked = checkout / "asked"
    lines = asked.read_text().splitlines() if asked.exists() else []
    asked.unlink(missing_ok=True)
    return done, lines


def commands(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def test_packages_are_installed_once_and_looked_at_again(checkout: Path) -> None:
    done, asked = install(checkout)
    assert (done.returncode, commands(asked)) == (0, ["venv", "pip"]), done.stderr
    assert "installing 3 packages into .venv" in done.stdout
    done, asked = install(checkout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert commands(asked) == ["pip"] and "--quiet" in asked[0]  # mends what was changed by hand
    _, first = install(checkout, "dev")
    _, second = install(checkout, "dev")
    assert (commands(first), second) == (["pip"], [])
    (checkout / "requirements/dev.txt").write_text("numpy==2.5.0\n")
    assert commands(install(checkout, "dev")[1]) == ["pip"]


def test_old_uv_on_path_is_left_alone(checkout: Path, programs: Path) -> None:
    own = checkout / ".uv" / "bin" / "uv"
    own.parent.mkdir(parents=True)
    (programs / "uv").rename(own)
    old = f"""case "$*" in *--help) exit 2 ;; esac; echo old >>{checkout}/asked"""
    write_program(programs / "uv", old)
    done, asked = install(checkout)
    assert done.returncode == 0, done.stderr
    assert commands(asked) == ["venv", "pip"]


def test_environment_keeps_the_index_of_torch_until_another_is_given(checkout: Path) -> None:
    of_cpus = {"TORCH_INDEX": "https://index/cpu"}
    _, asked = install(checkout, **of_cpus)
    assert commands(asked) == ["venv", "pip"] and "--index https://index/cpu" in asked[1]
    assert "nvidia" not in (checkout / ".venv" / "for-cpus.txt").read_text()
    _, asked = install(checkout, "dev")
    assert commands(asked) == ["pip"] and "--index https://index/cpu" in asked[0]
    _, asked = install(checkout, TORCH_INDEX="https://index/other")
    assert commands(asked) == ["venv", "pip"]


def test_environment_without_the_index_is_made_anew_with_it(checkout: Path) -> None:
    install(checkout)
    _, asked = install(checkout, TORCH_INDEX="https://index/cpu")
    assert commands(asked) == ["venv", "pip"]


def test_interrupted_set_up_begins_anew(checkout: Path) -> None:
    (checkout / "no-network").touch()
    done, _ = install(checkout)
    assert done.returncode == 2 and "installing failed" in done.stderr
    (checkout / "no-network").unlink()
    (checkout / ".venv" / "half-installed").touch()
    done, asked = install(checkout)
    assert (done.returncode, commands(asked)) == (0, ["venv", "pip"])
    assert not (checkout / ".venv" / "half-installed").exists()


def test_environment_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    install(checkout, "dev")
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert commands(install(checkout, "dev")[1]) == ["venv", "pip"]


def test_another_python_makes_the_environment_anew_and_a_wrong_one_keeps_it(
    checkout: Path, tmp_path: Path
) -> None:
    install(checkout)
    (checkout / ".venv" / "kept").touch()
    done, asked = install(checkout, python="/nowhere/python")
    assert (done.returncode, asked) == (2, []) and "found /nowhere/python" in done.stderr
    assert (checkout / ".venv" / "kept").exists()
    other = tmp_path / "other"
    write_program(other, '[ "$1" = -c ] || echo Python 3.12.99')
    done, asked = install(checkout, python=other)
    assert (done.returncode, commands(asked)) == (0, ["venv", "pip"]), done.stderr
    assert not (checkout / ".venv" / "kept").exists()


def test_folder_that_is_no_environment_is_kept(checkout: Path) -> None:
    (checkout / "docs").mkdir()
    (checkout / "docs" / "page.md").write_text("mine")
    done, asked = install(checkout, SETUP_VENV="docs")
    assert (done.returncode, asked, done.stderr.count("\n")) == (2, [], 1)
    assert "docs is not an environment of Python" in done.stderr
    assert (checkout / "docs" / "page.md").read_text() == "mine"


def test_environment_of_somebody_else_is_kept(checkout: Path) -> None:
    folder = checkout / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    write_program(folder / "bin" / "python", f'exec {sys.executable} "$@"')
    assert commands(install(checkout)[1]) == ["pip"]
    assert commands(install(checkout, TORCH_INDEX="https://index/cpu")[1]) == ["pip"]


def test_pins_and_environment_are_those_of_the_variables(checkout: Path) -> None:
    (checkout / ".pins" / "requirements").mkdir(parents=True)
    (checkout / ".pins" / "requirements" / "dev.txt").write_text("numpy==9\n")
    done, asked = install(checkout, "dev", PINS=".pins", SETUP_VENV=".venv-update")
    assert "installing 1 packages into .venv-update" in done.stdout
    assert asked[1].endswith("--requirements .pins/requirements/dev.txt")


def test_intels_extension_gets_a_python_that_its_torch_knows(checkout: Path) -> None:
    newest = checkout / "python3.14"
    write_program(newest, """case "$*" in *"'3.14 "*) exit 0 ;; *) exit 1 ;; esac""")
    assert install(checkout, python=newest)[0].returncode == 0
    done, _ = install(checkout, "ipex", python=newest)
    assert done.returncode == 2
    assert "needs Python 3.11 to 3.13, found" in done.stderr
