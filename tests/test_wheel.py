"""The wheel: one package in site-packages, and a program that works from there."""

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import data.__main__
import launch.__main__
import profiling.__main__
import retinanet.__main__
from common.errors import STOPPED_BY_SIGNAL
from tests.support.commands import REPOSITORY, run_program
from tests.support.training_runs import read_records, wait_for_steps

pytestmark = pytest.mark.slow

SITE_PACKAGES = [path for path in sys.path if path.endswith("site-packages")]
SMALL = (
    *("--config", "demo.yaml", "data.image_size=64", "data.scenes.train=4"),
    *("data.scenes.validation=2", "training.batch_size=2", "training.target_map=null"),
    "training.optimizer=sgd",
    *("training.epochs=1", "evaluation.pictures=0", "engine.precision=float32"),
)
Installed = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout's files, with some that git does not know."""
    copy = tmp_path_factory.mktemp("checkout")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for file in filter(lambda file: (REPOSITORY / file).is_file(), files):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, copy / file)
    for words in (("init", "--quiet"), ("add", "--all")):
        run_program("git", *words, cwd=copy, check=True)
    # Untracked files of a checkout in use.
    names = (
        "data/__pycache__/x.pyc",
        "common/compiled/old.so",
        "data/mine/a.jpg",
        "data/labels.txt",
    )
    for name in names:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"\xff")
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run_program(
        *(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder),
        cwd=checkout, check=True,
    )  # fmt: skip
    [built] = folder.glob("*.whl")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    archive = zipfile.ZipFile(wheel)
    return {name: archive.read(name) for name in archive.namelist()}


def test_source_distribution_gives_the_same_wheel(checkout: Path, tmp_path: Path) -> None:
    clone = shutil.copytree(checkout, tmp_path / "clone")
    git = ("git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("clean", "-fdxq"), ("commit", "--quiet", "--message=a")):
        run_program(*git, *words, check=True)
    commit = run_program(*git, "rev-parse", "HEAD", check=True).stdout.strip()
    build = (sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t")
    run_program(*build, "wheel", cwd=clone, check=True)
    [wheel] = tmp_path.glob("*.whl")
    expected = contents(wheel)
    wheel.unlink()
    run_program(*build, "sdist", cwd=clone, check=True)
    [source] = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(source, tmp_path, filter="data")
    run_program(*build, "wheel", cwd=tmp_path / source.name.removesuffix(".tar.gz"), check=True)
    assert contents(wheel) == expected
    assert expected["retinanet/COMMIT"].decode() == commit


def make_environment(folder: Path, *installed: str | Path) -> Path:
    """Return a virtual environment with all packages of this one and what pip installs."""
    # Without a pip of its own, which takes seconds.
    run_program(sys.executable, "-m", "venv", "--without-pip", folder, check=True)
    python = folder / "bin" / "python"
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (folder / site / "others.pth").write_text("\n".join(SITE_PACKAGES))
    options = ("--no-deps", "--no-index", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    run_program(*pip, *options, *installed, check=True)
    return folder


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel."""
    return make_environment(tmp_path_factory.mktemp("environment") / "venv", wheel)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another project, whose packages are named as the checkout's."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("common", "data", "launch", "profiling", "configs"):
        (folder / name).mkdir()
        for module in ("__init__.py", "names.py"):
            (folder / name / module).write_text('WHOSE = "another\'s"\n')
    return folder


@pytest.fixture
def installed(environment: Path, project: Path) -> Installed:
    """A function that runs a program of the environment in the other project's folder."""
    folders = [Path(path).parents[2] / "bin" for path in SITE_PACKAGES]
    with_mpirun = next(folder for folder in folders if (folder / "mpirun").exists())

    def run(program: str, *arguments: str | Path, code: int = 0) -> CompletedProcess[str]:
        folder = with_mpirun if program == "mpirun" else environment / "bin"
        path = f"{environment / 'bin'}:{with_mpirun}:/usr/bin:/bin"
        done = run_program(
            folder / program, *arguments, cwd=project, timeout=300, PATH=path,
            PYTHONPATH="", MPI4PY_LIBMPI=str(with_mpirun.parent / "lib/libmpi.so.12"),
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_one_package_with_all_resources(wheel: Path) -> None:
    from hatch_build import MOVED, OF_CHECKOUTS

    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"retinanet"}
    tracked = run_program("git", "ls-files", "retinanet", *MOVED, check=True).stdout.split()
    expected = {
        f"retinanet/{file.removeprefix('retinanet/')}"
        for file in tracked
        if not any(fnmatch(part, rule) for part in Path(file).parts for rule in OF_CHECKOUTS)
    }
    expected = {
        name.replace("retinanet/train.py", "retinanet/train_script.py") for name in expected
    }
    present = {name for name in names if name.startswith("retinanet/")} - {"retinanet/COMMIT"}
    assert expected <= present
    foreign = (".pyc", ".so", ".jpg", "labels.txt")
    assert not [name for name in present if name.endswith(foreign) or "tests" in name]


def test_texts_name_installed_commands(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    of_checkouts = re.compile(
        r"python3? -m\s*(\"\n|(data|launch|profiling|retinanet)(?![\w.]))"
        r"|(?<!-ipex/bin/python )train\.py|\.venv/bin"
    )
    for name in archive.namelist():
        # These have both forms.
        if not name.endswith(("common/program.py", "common/cli.py", "RECORD")):
            assert not of_checkouts.search(archive.read(name).decode()), name


def test_only_absolute_imports_change() -> None:
    from hatch_build import with_prefix

    text = (
        "import os, data.index as index\n"
        "from common import charts\n"
        'from data.loader import x; y = "from data.loader import x"\n'
        "from dataclasses import dataclass\n"
        "from retinanet.config import Config\n"
        "def f():\n    from train import main\n"
    )
    assert with_prefix(text, "x.py") == (
        "import os, retinanet.data.index as index\n"
        "from retinanet.common import charts\n"
        'from retinanet.data.loader import x; y = "from data.loader import x"\n'
        "from dataclasses import dataclass\n"
        "from retinanet.config import Config\n"
        "def f():\n    from retinanet.train_script import main\n"
    )


@pytest.mark.parametrize("text", ["import data.index\n", "from  data import x\n"])
def test_import_that_cannot_be_moved_stops_the_build(text: str) -> None:
    from hatch_build import with_prefix

    with pytest.raises(SyntaxError, match=r"x\.py:1"):
        with_prefix(text, "x.py")


def test_training_and_detection_from_python_beside_another_project(
    installed: Installed, environment: Path, project: Path
) -> None:
    settings = {name: yaml for name, _, yaml in (word.partition("=") for word in SMALL[2:])}
    text = (
        "import data, retinanet.train_script, retinanet.data.loader, data.names\n"
        "from retinanet import Detector, train\n"
        "print(data.WHOSE, data.names.WHOSE, Detector.__module__, train.__module__)\n"
        "print(retinanet.__file__)\n"
        "from ruamel.yaml import YAML\n"
        f"settings = {{name: YAML(typ='safe').load(text) for name, text in {settings}.items()}}\n"
        "result = train('demo', **settings, run={'name': 'python'}, launch={'threads': 1}).wait()\n"
        "pictures = sorted((result.run / 'scenes/validation/data').iterdir())\n"
        "print(len(Detector.load(result.run).predict(pictures, min_score=0)), result.steps)"
    )
    *names, file, found, steps = installed("python", "-c", text).stdout.split()
    assert names == [*["another's"] * 2, "retinanet.detector", "retinanet.train_in_child"]
    assert Path(file).is_relative_to(environment)
    assert (found, steps) == ("2", "2")
    assert (project / "runs" / "python" / "metrics.jsonl").is_file()


def test_editable_installation_follows_the_checkout(
    checkout: Path, project: Path, tmp_path: Path
) -> None:
    environment = make_environment(tmp_path / "venv", "--no-build-isolation", "-e", checkout)
    retinanet = environment / "bin" / "retinanet"
    done = run_program(retinanet, "train", *SMALL, "run.name=editable", cwd=project, PYTHONPATH="")
    assert "finished after 2 steps" in done.stdout, done.stderr
    assert (project / "runs" / "editable" / "metrics.jsonl").is_file()
    module = checkout / "retinanet" / "__main__.py"
    text = module.read_text()
    module.write_text(f"print('changed')\n{text}")
    done = run_program(retinanet, "--version", cwd=project, PYTHONPATH="")
    module.write_text(text)
    assert done.stdout.splitlines()[0] == "changed"


@pytest.mark.exhaustive
def test_help_of_each_command(installed: Installed) -> None:
    assert "retinanet train" in installed("retinanet", "train", "--help").stdout
    groups = {
        "data": data.__main__.COMMANDS,
        "launch": launch.__main__.COMMANDS,
        "profile": profiling.__main__.COMMANDS,
    }
    commands: list[tuple[str, ...]] = [(name,) for name in retinanet.__main__.COMMANDS]
    commands += [(group, name) for group, names in groups.items() for name in names]
    for command in ((), *commands):
        text = installed("retinanet", *command, "--help").stdout
        assert text.startswith(" ".join(("usage: retinanet", *command)))
        assert "python -m" not in text and "train.py" not in text


def stopped_training(environment: Path, project: Path) -> str:
    """Return the output of a training that SIGTERM stopped after some steps."""
    command = (environment / "bin/retinanet", "train", *SMALL, "run.name=stopped")
    job = subprocess.Popen(
        [*map(str, command), "training.epochs=50", "evaluation.every=50"],
        cwd=project, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_steps(project / "runs" / "stopped", job, count=2)
    job.terminate()
    output, _ = job.communicate(timeout=120)
    assert job.returncode == STOPPED_BY_SIGNAL
    return output


def test_training_continues_with_the_printed_command_then_profile_and_pictures(
    installed: Installed, environment: Path, project: Path
) -> None:
    stopped = stopped_training(environment, project)
    program, *arguments = shlex.split(stopped.partition("continue with: ")[2].splitlines()[0])
    assert Path(program).name == "retinanet" and "--resume" in arguments
    done = read_records(project / "runs" / "stopped", kind="step")[-1]["step"]
    more = (f"training.max_steps={done + 2}", f"profile.onednn.steps={done + 2}-{done + 2}")
    resumed = installed("retinanet", *arguments, *more).stdout
    assert f"finished after {done + 2} steps" in resumed
    assert re.search(r"bin/retinanet profile stats runs/stopped/onednn/rank0.log", resumed)
    shown = installed("retinanet", "profile", "stats", "runs/stopped/onednn/rank0.log")
    assert "convolution" in shown.stdout
    [predict] = re.findall(r"bin/(retinanet) (predict --checkpoint \S+ \S+)", resumed)
    installed(predict[0], *predict[1].split(), "--json", "found.json")
    assert (project / "found.json").is_file()


@pytest.mark.whole_machine
@pytest.mark.parametrize("launcher", [("mpirun",), ("retinanet", "launch", "run")])
def test_ranks(installed: Installed, launcher: tuple[str, ...]) -> None:
    program, *words = launcher
    end = ["--"] if words else []
    ranks = ("-np" if not words else "--np", "2", *end, "retinanet", "train", *SMALL)
    done = installed(program, *words, *ranks, "--overwrite", "run.name=ranks")
    assert "finished after 1 steps" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command",
    [
        ("profile", "layers", "alexnet", "--batch=2", "--image-size=64", "--iterations=1"),
        ("profile", "bench", "optimizer", "--rounds=2", "--warm-up=1", "--image-size=64"),
    ],
)
def test_workers(installed: Installed, command: tuple[str, ...]) -> None:
    assert installed("retinanet", *command).stdout
