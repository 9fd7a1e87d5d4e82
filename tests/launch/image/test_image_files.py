"""The Dockerfile and its files; launch/image/try_it.sh builds and runs the image."""

import re
import subprocess
from pathlib import Path

import pytest

from common.program import program_version
from tests.support.commands import run_program

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")


def packages() -> set[str]:
    """Folders of the program's code, of which there are no others beside tests and fuzzing."""
    return {file.parent.name for file in REPOSITORY.glob("*/__init__.py")} - {"tests", "fuzz"}


def test_image_contains_the_program_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    taken = {line[1:].rstrip("/") for line in lines if line.startswith("!")}
    others = {"configs", "train.py", "setup.sh", "requirements.txt", "requirements"}
    assert packages() | others | {"pyproject.toml"} <= taken  # `--version` reads pyproject.toml
    assert not taken & {"tests", "docs", ".git", ".venv", "runs"}
    for name in taken:
        assert list(REPOSITORY.glob(name)), name


def test_each_build_argument_is_documented() -> None:
    page = (REPOSITORY / "docs" / "docker.md").read_text(encoding="utf-8")
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert arguments >= {"BASE", "TORCH_INDEX", "SERVING"}
    assert {name for name in arguments if f"`{name}" not in page} == set()


@pytest.mark.parametrize(
    ("version", "status"), [(program_version(), 0), ("unknown", 0), ("0.0.1", 2), ("1.0", 2)]
)
def test_label_has_the_version_of_the_program(version: str, status: int) -> None:
    assert 'org.opencontainers.image.version="$VERSION"' in DOCKERFILE
    [check] = re.findall(r'^RUN (\[ "\$VERSION".*\n.*)', DOCKERFILE, re.MULTILINE)
    done = run_program("sh", "-c", check, VERSION=version)
    message = f"VERSION={version} is not the version in pyproject.toml\n"
    assert (done.returncode, done.stderr) == (status, message if status else "")


def test_make_image_gives_commit_and_version() -> None:
    done = run_program("make", "image", "DOCKER=echo", check=True)
    assert re.search(r"--build-arg COMMIT=[0-9a-f]{40} ", done.stdout)
    assert f"--build-arg VERSION={program_version()} " in done.stdout


def test_user_is_a_number() -> None:
    """Kubernetes cannot tell whether a name is root's."""
    [user] = re.findall(r"^USER (.*)", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert f"--uid {user.partition(':')[0]} " in DOCKERFILE


def test_copied_files_exist() -> None:
    named = re.findall(r"launch[/.]image[/.]\w+(?:\.sh)?", DOCKERFILE)
    assert named
    for name in named:
        path = REPOSITORY / (name if "/" in name else name.replace(".", "/") + ".py")
        assert path.exists(), name


def test_scripts_have_valid_syntax() -> None:
    scripts = list((REPOSITORY / "launch" / "image").glob("*.sh"))
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
