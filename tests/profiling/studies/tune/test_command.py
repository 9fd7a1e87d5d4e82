"""`retinanet launch tune` with stored measurements."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import BAD_INPUT
from profiling.studies.tune import command
from profiling.studies.tune.command import launch_command, slurm_script, training_arguments
from profiling.studies.tune.measurements import write_measurements
from tests.launch.ranks import run_python
from tests.profiling.studies.tune.samples import Tune, measurements, probes
from tests.profiling.studies.tune.test_forecast import choose, grouped
from tests.support.commands import error_line

NETWORK = ("--network", "24Gbit/s,20us")


@pytest.fixture
def probed(tmp_path: Path) -> Path:
    """Write a plan of synthetic data with probe runs."""
    file = tmp_path / "demo.json"
    small = ("data.image_size=96",)
    demo = replace(measurements(), data="demo.yaml", config="demo.yaml", overrides=small)
    write_measurements(file, replace(demo, images=1000, evaluated_images=150, probes=probes()))
    return file


def test_plan_has_its_output_and_files(plan: Path, tmp_path: Path, tune: Tune) -> None:
    chart, slurm, numbers = (tmp_path / name for name in ("a.png", "job.sbatch", "all.json"))
    files = ("--chart", chart, "--slurm", slurm, "--json", numbers)
    output = tune("--plan", plan, "--hosts", "256", *NETWORK, "--groups", "4,1.2", *files).stdout
    assert "largest error on 4 not in fit: 0.0%" in output
    assert "\nbest: " in output and "\nnot 256 hosts × 2 ranks × 28 threads, 8 images" in output
    assert "command: retinanet launch run --np" in output and "training.learning_rate=" in output
    assert "┃ groups ┃" in output and "--groups multiplies its epochs by 1.2" in output
    assert chart.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    hosts = content["winner"]["allocation"]["hosts"]
    assert f"--nodes={hosts}\n" in slurm.read_text()
    assert content["ranking"][0] == content["winner"]
    assert content["epochs"]["target"] == "mAP 0.34"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--hosts", "4"), "--hosts 4: the network between the hosts is unknown; give --network"),
        (("data.image_size=64",), "was measured with no overrides"),
        (("--deadline", "0.01"), "--deadline 0.01: the fastest"),
        (("--data", "demo.yaml"), "was measured with --data openimages; omit --data"),
        (("--probe", "8,16"), "--probe: the epochs of openimages are MLPerf's"),
        (("--probe-target", "0.3"), "--probe-target: the epochs of openimages are MLPerf's"),
        (("--measure-hosts", "a"), "--measure-hosts a: a network needs at least two hosts"),
        (("--hostfile", "none"), "--hostfile: none: No such file"),
    ],
)
def test_wrong_options_for_a_plan_are_one_line(
    arguments: tuple[str, ...], error: str, plan: Path, tune: Tune
) -> None:
    assert error in error_line(tune("--plan", plan, *arguments))


@pytest.mark.parametrize("option", ["--plan", "--chart", "--slurm"])
def test_unwritable_output_is_refused_before_measuring(
    option: str, plan: Path, tmp_path: Path, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "gathered", None)  # would fail if it were called
    (tmp_path / "file").touch()
    given = [] if option == "--plan" else ["--plan", plan]
    done = tune(*given, option, tmp_path / "file" / "output.png", "--hosts", 1)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert str(tmp_path / "file" / "output.png") in done.stderr


def test_epochs_of_mlperf_are_doubted_under_other_settings(tmp_path: Path, tune: Tune) -> None:
    file, doubt = tmp_path / "small.json", "note: MLPerf's epochs may not hold"
    write_measurements(file, replace(measurements(), overrides=("data.image_size=96",)))
    assert f"\n{doubt}: data.image_size is 800, not 96\n" in tune("--plan", file).stdout
    write_measurements(file, replace(measurements(), overrides=("data.workers=2",)))
    assert doubt not in tune("--plan", file).stdout


def value_after(command: str, option: str) -> float:
    return float(command.partition(option)[2].split()[0])


def test_probed_plan_has_its_own_epochs_and_learning_rate(probed: Path, tune: Tune) -> None:
    output = tune("--plan", probed, "--hosts", "8", *NETWORK).stdout
    assert "\nforecast to mAP 0.3 " in output
    assert "epochs to mAP 0.3: 6 probe runs of demo.yaml" in output
    assert "global batch sizes 8, 16, 32" in output
    command = output.splitlines()[-1]
    assert "--config demo.yaml" in command and command.count("data.image_size=96") == 1
    assert "training.target_map=0.3" in command and "training.warmup" not in command
    batch = value_after(command, "--np") * value_after(command, "training.batch_size=")
    rate = value_after(command, "training.learning_rate=")
    assert rate == pytest.approx(3e-4 * (batch / 8) ** 0.5, rel=0.01)
    lower = tune("--plan", probed, "--probe-target", "0.15").stdout
    assert "\nforecast to mAP 0.15 " in lower


def test_probed_plan_is_read_where_its_configuration_is_not(probed: Path, tune: Tune) -> None:
    probed.write_text(probed.read_text(encoding="utf-8").replace("demo.yaml", "mine.yaml"))
    assert "--config mine.yaml" in tune("--plan", probed).stdout.splitlines()[-1]


def test_missing_probe_runs_are_not_trained_without_probe(probed: Path, tune: Tune) -> None:
    before = probed.read_bytes()
    done = tune("--plan", probed, "--probe-seeds", "3")
    assert done.returncode == BAD_INPUT
    assert "3 of 9 probe runs" in done.stderr and "--probe 8,16,32" in done.stderr
    assert probed.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--data demo.yaml", "--data demo.yaml: probe runs take long"),
        ("--data dem.yaml --plan new.json", "--data dem.yaml: the number of epochs is unknown"),
        ("--data dem.yaml --plan new.json --probe 8,16", "did you mean demo.yaml?"),
        ("--data coco.yaml --plan new.json --probe 8,16", "--probe-target: is missing"),
        (
            "--data demo.yaml --plan new.json --probe 8,16 training.gradient_accumulation=2",
            "training.gradient_accumulation=2: ",
        ),
    ],
)
def test_missing_options_of_probes_are_one_line(
    arguments: str, error: str, tune: Tune, tmp_path: Path
) -> None:
    done = tune(*arguments.replace("new.json", f"{tmp_path}/new.json").split())
    assert error in error_line(done)
    assert not list(tmp_path.iterdir())


def test_probe_runs_of_another_plan_are_refused(tune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "new-probes"
    folder.mkdir()
    done = tune("--data", "demo.yaml", "--plan", tmp_path / "new.json", "--probe", "8,16")
    assert done.returncode == BAD_INPUT and f"error: {folder}: " in done.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--probe", sizes) for sizes in ("8", "8,8", "0,8", "8,x")),
        *(("--network", text) for text in ("", "25", "25Gbit/s", "0Gbit/s,20us", "25Gbit/s,20")),
        ("--network", "fast,20us"),
        ("--probe-target", "1.5"),
        ("--groups", "4"),
    ],
)
def test_wrong_values_are_refused(option: str, value: str, tune: Tune) -> None:
    done = tune(option, value)
    assert done.returncode == BAD_INPUT and f"argument {option}: expected" in done.stderr
    assert option != "--network" or "such as 25Gbit/s,20us" in done.stderr


@pytest.mark.slow
def test_stored_plan_needs_no_torch(probed: Path) -> None:
    program = f"""
import sys
sys.argv = ["launch", "tune", "--plan", {str(probed)!r}]
from launch.__main__ import main
main()
sys.exit("torch" in sys.modules)
"""
    assert run_python(program).code == 0


def test_command_and_slurm_script_have_the_chosen_allocation(tmp_path: Path) -> None:
    winner = choose().winner
    measured = ["training.batch_size=64", "launch.threads=1"]  # what was measured besides
    settings = ["training.learning_rate=0.0001", *measured]
    arguments = training_arguments(winner, config="openimages.yaml", settings=settings)
    allocation = winner.allocation
    command = launch_command(winner, arguments)
    assert f"--np {allocation.ranks} --hostfile hosts -- retinanet train" in command
    assert f"training.batch_size={allocation.on_host.batch_size}" in command
    assert f"launch.threads={allocation.on_host.threads}" in command
    assert (command.count("training.batch_size="), command.count("launch.threads=")) == (1, 1)
    text = slurm_script(winner, arguments)
    assert f"\n#SBATCH --nodes={allocation.hosts}\n" in text
    assert f"\n#SBATCH --ntasks-per-node={allocation.on_host.ranks}\n" in text
    assert f"set -- {' '.join(arguments)}\n" in text
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    subprocess.run(["bash", "-n", script], check=True)
    others = ("distributed.groups=2", "distributed.batch_split=[3,1]")
    for groups, of_groups in ((4, ["distributed.groups=4"]), (1, [])):
        winner = grouped(8, groups)
        arguments = training_arguments(winner, config="openimages.yaml", settings=others)
        assert [each for each in arguments if each.startswith("distributed.")] == of_groups
