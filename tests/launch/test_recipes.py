"""The recipes on one or two ranks; Slurm and containers are replaced by small programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from launch.hosts import Host, read_hostfile
from tests.support.commands import run_program, write_program

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = REPOSITORY / "launch" / "recipes"
SCRIPTS = sorted([*RECIPES.glob("*.sh"), *RECIPES.glob("*.sbatch")])

uses_its_environment = pytest.mark.skipif(
    Path(sys.prefix) != REPOSITORY / ".venv", reason="the recipes use .venv of this folder"
)


def run_recipe(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return run_program("bash", RECIPES / name, *arguments, env=environment, timeout=60)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_recipe_is_short_and_documented(script: Path) -> None:
    text = script.read_text()
    head = text.partition("\nset -")[0]
    assert "# Needs:" in head and "# Prints:" in head and f"launch/recipes/{script.name}" in head
    assert len(text.splitlines()) <= 50
    subprocess.run(["bash", "-n", script], check=True)


def test_example_of_a_hostfile_is_valid() -> None:
    assert read_hostfile(RECIPES / "hosts.example") == (Host("node1", 8), Host("node2", 8))


@uses_its_environment
@pytest.mark.slow
def test_recipe_for_one_host_prints_the_plan_and_starts_ranks() -> None:
    done = run_recipe(
        "one-host-8-sockets.sh", "--config", "demo.yaml", "--dry-run", RANKS="1", DATA="null"
    )
    assert done.returncode == 0, done.stderr
    assert "rank" in done.stdout and "image_size: 128" in done.stdout


@pytest.mark.whole_machine
@uses_its_environment
def test_recipe_for_several_hosts_reads_the_hostfile(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# this host\nlocalhost:2\n")
    arguments = ("--config", "demo.yaml", "--dry-run")
    done = run_recipe("several-hosts.sh", *arguments, HOSTS=str(hosts), DATA="null")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("image_size: 128") == 1


def test_recipe_for_several_hosts_needs_a_hostfile() -> None:
    done = run_recipe("several-hosts.sh", HOSTS="none")
    assert done.returncode == 2
    assert "none" in done.stderr and "hosts.example" in done.stderr


@uses_its_environment
def test_container_of_each_rank_gets_its_variables(tmp_path: Path) -> None:
    engine = write_program(tmp_path / "engine", 'echo "$*" >"$RUNS/$PMI_RANK"')
    runs = tmp_path / "runs"
    done = run_recipe(
        "container.sh",
        *("--config", "coco.yaml", "run.name=a b"),
        PATH=f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        **{"ENGINE": str(engine), "RANKS": "2", "DATA": "/d", "RUNS": str(runs)},
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        command = (runs / str(rank)).read_text()
        assert command.startswith("run --rm ")
        assert (
            f"-e RANK={rank} -e WORLD_SIZE=2 -e LOCAL_RANK={rank} -e LOCAL_WORLD_SIZE=2" in command
        )
        assert "-e MASTER_ADDR=127.0.0.1 -e MASTER_PORT=29500 -v /d:/d:ro" in command
        assert f"train.py --config coco.yaml run.name=a b data.root=/d run.root={runs}\n" in command


JOBS = {
    "slurm.sbatch": ".venv/bin/python train.py",
    "apptainer.sbatch": "apptainer exec --pwd /app --bind /d:/d:ro --bind RUNS:/app/runs a.sif "
    "python train.py",
}


@pytest.mark.parametrize("recipe", JOBS)
@pytest.mark.parametrize(("status", "restarts"), [("0", "0"), ("75", "0"), ("3", "2")])
def test_slurm_job_requeues_itself_and_resumes(
    recipe: str, status: str, restarts: str, tmp_path: Path
) -> None:
    write_program(tmp_path / "bin" / "srun", f'echo "$*"\nexit {status}')
    write_program(tmp_path / "bin" / "scontrol", 'echo "$*"')
    folder = REPOSITORY if recipe == "slurm.sbatch" else tmp_path
    done = run_recipe(
        recipe,
        *("--config", "coco.yaml"),
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        IMAGE="a.sif",
        DATA="/d",
        SLURM_SUBMIT_DIR=str(folder),
        SLURM_JOB_ID="17",
        SLURM_RESTART_COUNT=restarts,
        SLURM_CPUS_ON_NODE="112",
        SLURM_NTASKS_PER_NODE="8",
    )
    command = JOBS[recipe].replace("RUNS", str(folder / "runs"))
    line = f"--cpu-bind=none --cpus-per-task=14 {command} --config coco.yaml"
    first = line if restarts == "0" else f"{line} --auto-resume"
    assert done.stdout.splitlines() == [first, *(["requeue 17"] if status == "75" else [])]
    assert done.returncode == (0 if status == "75" else int(status))


@pytest.mark.slow
def test_mpi_job_of_kubernetes_is_consistent() -> None:
    job = YAML(typ="safe").load((RECIPES / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    [starter] = launcher["template"]["spec"]["containers"]
    mpirun, _, count, python, *arguments = starter["args"]
    assert (mpirun, python) == ("mpirun", "python")
    assert int(count) == spec["slotsPerWorker"] * worker["replicas"]
    [waiter] = worker["template"]["spec"]["containers"]
    *_, settings = waiter["command"]
    text = (REPOSITORY / settings).read_text()
    assert f"Port {waiter['readinessProbe']['tcpSocket']['port']}\n" in text
    assert f"HostKey {spec['sshAuthMountPath']}/id_rsa\n" in text
    assert {mount["name"] for mount in waiter["volumeMounts"]} == {
        volume["name"] for volume in worker["template"]["spec"]["volumes"]
    }
    mounted = {mount["mountPath"] for mount in waiter["volumeMounts"]}
    assert {item.partition("=")[2] for item in arguments if ".root=" in item} <= mounted
    done = run_program(sys.executable, *arguments, "--dry-run")
    assert done.returncode == 0, done.stderr
