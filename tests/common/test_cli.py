"""Command lines: exit statuses, options, and output in any encoding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import train
from common.cli import installed, resuming_command, run_command
from common.errors import InputError
from common.machine import fastest_precision
from launch.limits import Allowance
from retinanet.config import field_names
from retinanet.config_file import parse_run_arguments
from tests.launch.topologies import cores_in_a_row
from tests.support.commands import RunHere, run_program

REPOSITORY = Path(__file__).resolve().parents[2]


def train_py(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    train = REPOSITORY / "train.py"
    return run_program(sys.executable, train, *arguments, env={**os.environ, **environment})


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("file: field: wrong"), 2, "error: file: field: wrong\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_error_is_one_line_and_an_exit_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    assert run_command(lambda: fail(error)) == status
    assert capsys.readouterr().err == line


def test_other_errors_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


@pytest.mark.parametrize(
    "command",
    ["print('text')", "import argparse; argparse.ArgumentParser().parse_args(['--help'])"],
)
def test_closed_pipe_ends_a_command_quietly(command: str) -> None:
    body = f"def main():\n    {command}\n    return 0\n"
    code = f"{body}import sys\nfrom common.cli import run_command\nsys.exit(run_command(main))"
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, stdout=writing,
        stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_options_between_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "train.py run.seed=1 --config coco run.name=x --resume data.root=y"
    monkeypatch.setattr(sys, "argv", command.split())
    arguments = parse_run_arguments("")
    assert arguments.overrides == ["run.seed=1", "run.name=x", "data.root=y"]
    assert arguments.config == "coco" and arguments.resume and not arguments.overwrite


def test_resume_and_overwrite_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", "--overwrite"])
    with pytest.raises(SystemExit) as caught:
        parse_run_arguments("")
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_resuming_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--overwrite", "run.root=a b"])
    assert resuming_command() == f"{installed('python')} train.py 'run.root=a b' --resume"


@pytest.mark.parametrize(
    ("program", "launcher", "command"),
    [
        ("/env/bin/retinanet", (), "{retinanet} train a.b=1 --resume"),
        (
            "/env/bin/retinanet",
            ("mpirun", "-np", "2"),
            "mpirun -np 2 {retinanet} train a.b=1 --resume",
        ),
        (
            "/env/bin/retinanet",
            ("torchrun",),
            "torchrun --no-python {retinanet} train a.b=1 --resume",
        ),
        ("/code/retinanet/__main__.py", (), "{retinanet} train a.b=1 --resume"),
        (
            "/code/retinanet/__main__.py",
            ("torchrun",),
            "torchrun -m retinanet train a.b=1 --resume",
        ),
    ],
)
def test_resuming_command_of_retinanet_train(
    monkeypatch: pytest.MonkeyPatch, program: str, launcher: tuple[str, ...], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "train", "--overwrite", "a.b=1"])
    assert resuming_command(launcher) == command.format(retinanet=installed("retinanet"))


def test_path_of_installed_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python3"))
    monkeypatch.chdir(tmp_path)
    assert installed("tensorboard") == ".venv/bin/tensorboard"
    monkeypatch.chdir("/")
    assert installed("python") == str((tmp_path / ".venv/bin/python").relative_to("/"))
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python3")
    monkeypatch.chdir(tmp_path)
    assert installed("python") == "/elsewhere/bin/python"


@pytest.mark.slow
def test_help_lists_every_field_and_loads_no_torch() -> None:
    done = train_py("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert all(f"{name}:" in done.stdout for name in field_names())
    assert " torch\n" not in done.stderr and " retinanet.config\n" in done.stderr


def test_dry_run_prints_the_configuration_and_writes_nothing(
    tmp_path: Path, run_here: RunHere
) -> None:
    done = run_here(train.main, "--dry-run", "training.epochs=3", f"run.root={tmp_path / 'runs'}")
    assert done.returncode == 0 and done.stderr == ""
    assert "epochs: 3" in done.stdout and f"precision: {fastest_precision()}" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_dry_run_names_the_binding_that_its_plan_leaves_out(
    run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinanet.placement.read_topology", lambda: cores_in_a_row((0, 4, 0, 0)))
    monkeypatch.setattr("retinanet.placement.host_cpus", lambda ranks: frozenset(range(4)))
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    for cpus, is_named in ((range(4), False), (range(1), True)):
        given = Allowance(cpus=frozenset(cpus), quota=None, memory_nodes=frozenset())
        monkeypatch.setattr("retinanet.placement.read_allowance", lambda given=given: given)
        done = run_here(train.main, "--dry-run")
        assert done.returncode == 0 and "0-1" in done.stdout
        assert ("# note: open-mpi bound this rank to CPUs 0, which" in done.stdout) == is_named


@pytest.mark.parametrize(
    ("arguments", "ranks", "start"),
    [
        (["training.epocks=3"], None, "error: command line: training.epocks: no such field"),
        (["training.epochs=x"], None, "error: command line: training.epochs: "),
        (["--config", "none.yaml"], None, "error: none.yaml: "),
        ([], "2", "error: PMI_SIZE=2: "),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
    *,
    arguments: list[str],
    ranks: str | None,
    start: str,
) -> None:
    if ranks:
        monkeypatch.setenv("PMI_SIZE", ranks)
    done = run_here(train.main, *arguments, f"run.root={tmp_path / 'runs'}")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(start) and done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


ASCII = {"PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize(
    "command",
    [
        "train.py --dry-run run.root=räume",
        "-m launch plan --np 2 --cpus 0-1",
        *(
            pytest.param(command, marks=pytest.mark.exhaustive)
            for command in (
                "train.py --help",
                "-m data --help",
                "-m launch plan --help",
                "-m profiling ablate list",
                "-m retinanet --help",
            )
        ),
    ],
)
@pytest.mark.slow
def test_commands_print_any_character_as_ascii(command: str) -> None:
    done = run_program(sys.executable, *command.split(), env={**os.environ, **ASCII})
    assert "Traceback" not in done.stderr and "UnicodeEncodeError" not in done.stderr
    assert done.returncode == 0 or "--cpus" in done.stderr, done.stderr
    assert (done.stdout + done.stderr).isascii()


@pytest.mark.exhaustive
def test_training_prints_any_character_as_ascii(tmp_path: Path) -> None:
    done = train_py(
        f"run.root={tmp_path / 'räume'}",
        "data.scenes.train=2",
        "data.scenes.validation=1",
        "data.image_size=64",
        "data.workers=0",
        "engine.precision=float32",
        "training.max_steps=1",
        "launch.pin=false",
        **ASCII,
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and "r\\xe4ume" in done.stdout
    assert (tmp_path / "räume" / "demo" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_missing_glyph_prints_no_warning() -> None:
    program = (
        "from common.charts import as_png, new_figure\n"
        "from common.cli import run_command\n"
        "def draw():\n"
        "    figure = new_figure(width=3, height=2)\n"
        "    figure.suptitle('\\U0001f984 $\\\\bad$')\n"
        "    return len(as_png(figure)) == 0\n"
        "raise SystemExit(run_command(draw))\n"
    )
    done = run_program(sys.executable, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_silenced_ranks_print_any_character() -> None:
    program = (
        "import io\n"
        "from launch.rendezvous import silenced\n"
        "with silenced(io.StringIO()):\n"
        "    print('\\u00d7 \\udcff')\n"
    )
    variables = ASCII | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = run_program(
        sys.executable, "-X", "utf8=0", "-c", program, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
