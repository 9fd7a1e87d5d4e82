"""The recipes on one or two ranks; Slurm and containers are replaced by small programs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from torch.distributed.run import get_args_parser

from launch.hosts import Host, read_hostfile
from launch.placement import place_ranks
from launch.shares import CoreRequest
from tests.launch.topologies import cores_in_a_row
from tests.support.commands import run_program, write_program
from tests.support.processes import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = REPOSITORY / "launch" / "recipes"
SCRIPTS = (
    sorted(RECIPES.glob("*.sh")) + sorted(RECIPES.glob("*.sbatch")) + sorted(RECIPES.glob("*.pbs"))
)

IN_A_JOB = {"SLURM_JOB_ID": "17", "PBS_JOBID": "17.server"}
SLURM = {"SLURM_JOB_ID": "17", "SLURM_CPUS_ON_NODE": "112"}
PBS = {"PBS_O_WORKDIR": str(REPOSITORY), "PBS_JOBID": "17", "PBS_O_QUEUE": "night"}

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


@pytest.mark.parametrize("recipe", ["several-hosts.sh", "16-hosts.sh"])
def test_recipe_outside_of_a_job_needs_a_hostfile(recipe: str) -> None:
    done = run_recipe(recipe, HOSTS="none", **dict.fromkeys(IN_A_JOB, ""))
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
        assert (
            f"retinanet train --config coco.yaml run.name=a b data.root=/d run.root={runs}\n"
            in command
        )


JOBS = {
    "slurm.sbatch": ".venv/bin/retinanet train",
    "apptainer.sbatch": "apptainer exec --pwd /app --bind /d:/d:ro --bind RUNS:/app/runs a.sif "
    "retinanet train",
}


@pytest.mark.parametrize("recipe", JOBS)
@pytest.mark.parametrize(("status", "restarts"), [("0", "0"), ("75", "0"), ("3", "2"), ("5", "1")])
def test_slurm_job_requeues_itself_and_resumes(
    recipe: str, status: str, restarts: str, tmp_path: Path
) -> None:
    write_program(tmp_path / "bin" / "srun", f'echo "$*"\nexit {status}')
    write_program(tmp_path / "bin" / "scontrol", 'echo "$*"')
    write_program(tmp_path / "bin" / "squeue", "echo NONE")
    folder = REPOSITORY if recipe == "slurm.sbatch" else tmp_path
    (tmp_path / "launch").symlink_to(RECIPES.parent)
    done = run_recipe(
        recipe,
        *("--config", "coco.yaml"),
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        IMAGE="a.sif",
        DATA="/d",
        SLURM_SUBMIT_DIR=str(folder),
        SLURM_RESTART_COUNT=restarts,
        SLURM_NTASKS_PER_NODE="8",
        **SLURM,
    )
    command = JOBS[recipe].replace("RUNS", str(folder / "runs"))
    line = f"--cpu-bind=none --cpus-per-task=14 {command} --config coco.yaml"
    first = line if restarts == "0" else f"{line} --auto-resume"
    assert done.stdout.splitlines() == [first, *(["requeue 17"] if status == "75" else [])]
    assert done.returncode == (0 if status == "75" else int(status))


@pytest.mark.parametrize(
    ("left_s", "margin", "starts"), [(480, "", False), (480, "60", True), (3600, "", True)]
)
def test_slurm_job_that_is_stopped_in_its_start_does_not_begin(
    left_s: int, margin: str, starts: bool, tmp_path: Path
) -> None:
    write_program(tmp_path / "bin" / "srun", "echo started")
    end = datetime.now() + timedelta(seconds=left_s)
    write_program(tmp_path / "bin" / "squeue", f"echo {end:%Y-%m-%dT%H:%M:%S}")
    done = run_recipe(
        "slurm.sbatch",
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        MARGIN=margin,
        SLURM_SUBMIT_DIR=str(REPOSITORY),
        SLURM_NTASKS_PER_NODE="8",
        **SLURM,
    )
    assert done.returncode == (0 if starts else 2)
    assert done.stdout == ("started\n" if starts else "")
    assert done.stderr.count("\n") == (0 if starts else 1)


@pytest.fixture
def cluster_mpi(tmp_path: Path) -> str:
    """Return a PATH whose first mpirun is Intel's by its version, and prints its arguments."""
    write_program(tmp_path / "mpi" / "squeue", "echo NONE")
    write_program(
        tmp_path / "mpi" / "mpirun",
        '[ "$1" = --version ] && { echo "Intel(R) MPI Library"; exit; }\n'
        'echo "srun of mpirun: ${SLURM_CPU_BIND:-} ${SRUN_CPUS_PER_TASK:-}"\n'
        'echo "${UCX_NET_DEVICES:-} $*"\nexit "${STATUS:-0}"',
    )
    return f"{tmp_path / 'mpi'}:{os.environ['PATH']}"


RANKS_OF_16_HOSTS = (
    "retinanet train --config openimages.yaml data.root=/d training.batch_size=4 "
    "launch.comm_cores=2 distributed.compress=bf16"
)


@uses_its_environment
@pytest.mark.parametrize("job", [None, *IN_A_JOB])
def test_16_hosts_are_those_of_the_job_or_of_a_file(
    job: str | None, tmp_path: Path, cluster_mpi: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"node{number}:4\n" for number in range(1, 17)))
    environment = dict.fromkeys(IN_A_JOB, "") | ({job: IN_A_JOB[job]} if job else {})
    done = run_recipe(
        "16-hosts.sh",
        "run.name=a",
        PATH=cluster_mpi,
        HOSTS=str(hosts),
        DATA="/d",
        UCX_NET_DEVICES="mlx5_0:1,mlx5_1:1",
        # Otherwise the names are looked up, and reached by ssh.
        HYDRA_LAUNCHER_EXEC="true",
        I_MPI_HYDRA_BOOTSTRAP_EXEC="true",
        **environment,
    )
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    names = ",".join(f"node{number}" for number in range(1, 17))
    where = "" if job else f"-hosts {names} -ppn 4 "
    start = f"mlx5_0:1,mlx5_1:1 -genv I_MPI_PIN off -disable-auto-cleanup {where}-np 64 "
    assert command.startswith(start)
    assert command.endswith(f"{RANKS_OF_16_HOSTS} run.name=a")


@uses_its_environment
@pytest.mark.parametrize(("status", "restarts"), [("75", "0"), ("3", "2")])
def test_slurm_job_of_16_hosts_requeues_itself(
    status: str, restarts: str, tmp_path: Path, cluster_mpi: str
) -> None:
    write_program(tmp_path / "mpi" / "scontrol", 'echo "$*"')
    done = run_recipe(
        "16-hosts.sbatch",
        PATH=cluster_mpi,
        STATUS=status,
        DATA="/d",
        SLURM_SUBMIT_DIR=str(REPOSITORY),
        SLURM_RESTART_COUNT=restarts,
        **SLURM,
    )
    *_, last = [line for line in done.stdout.splitlines() if "retinanet train" in line]
    assert "srun of mpirun: none 112" in done.stdout
    assert last.endswith(RANKS_OF_16_HOSTS + ("" if restarts == "0" else " --auto-resume"))
    assert ("requeue 17" in done.stdout) == (status == "75")
    assert done.returncode == (0 if status == "75" else int(status))


@uses_its_environment
@pytest.mark.parametrize(
    ("recipe", "variables"),
    [
        ("16-hosts.sbatch", {**SLURM, "SLURM_SUBMIT_DIR": str(REPOSITORY)}),
        ("16-hosts.pbs", PBS),
    ],
)
def test_ranks_write_a_checkpoint_before_the_limit_of_the_job(
    recipe: str, variables: dict[str, str], tmp_path: Path, cluster_mpi: str
) -> None:
    ready = tmp_path / "ready"
    write_program(
        tmp_path / "mpi" / "mpirun",
        '[ "$1" = --version ] && { echo "Intel(R) MPI Library"; exit; }\n'
        f"trap 'echo checkpoint written; exit 75' TERM\ntouch {ready}\n"
        "while :; do sleep 0.1; done",
    )
    write_program(tmp_path / "mpi" / "scontrol", 'echo "scontrol $*"')
    write_program(tmp_path / "mpi" / "qsub", 'echo "qsub for $ARGUMENTS $RESUME"')
    write_program(tmp_path / "mpi" / "qstat", "echo '    Resource_List.walltime = 24:00:00'")
    job = subprocess.Popen(
        ["bash", RECIPES / recipe],
        env={**os.environ, **variables, "PATH": cluster_mpi, "ARGUMENTS": "run.name=a"},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(ready.exists, seconds=60)
    if recipe.endswith(".sbatch"):
        job.send_signal(signal.SIGUSR1)
    else:
        # `timeout` passes this signal on as it does at its end.
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0
    assert "checkpoint written" in output
    is_slurm = recipe.endswith(".sbatch")
    again = "scontrol requeue 17" if is_slurm else "qsub for run.name=a --auto-resume"
    assert output.splitlines()[-1] == again


QSTAT = """cat <<'END'
Job Id: 17.server
    Job_Name = retinanet
    Resource_List.ncpus = 896
    Resource_List.place = scatter:excl
    Resource_List.select = 8:ncpus=112:mpiprocs=4:ompthreads=1:model=a_long_name_of_a_k
\tind_of_hosts
    Resource_List.walltime = %s
END"""


def run_pbs(
    folder: Path, path: str, *, walltime: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the job of PBS whose ranks stop with a checkpoint; return the environment of its qsub."""
    write_program(folder / "mpi" / "qstat", QSTAT % walltime)
    write_program(folder / "mpi" / "timeout", 'echo "limit $4"; shift 4; exec "$@"')
    record = folder / "environment"
    write_program(folder / "mpi" / "qsub", f'env -0 >{record}; printf "%s\\n" "$@"')
    done = run_recipe(
        "16-hosts.pbs",
        PATH=path,
        STATUS="75",
        **{**PBS, "PBS_JOBID": "17.server", **variables},
    )
    pairs = (item.partition("=") for item in record.read_text().split("\0") if item)
    return done, {name: value for name, _, value in pairs}


@uses_its_environment
def test_pbs_job_submits_itself_with_variables_and_resources(
    tmp_path: Path, cluster_mpi: str
) -> None:
    user = {
        "ARGUMENTS": "run.name=a distributed.batch_split=[3,1]",
        "DATA": "/d,e",
        "RANKS": "32",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
    }
    done, environment = run_pbs(tmp_path, cluster_mpi, walltime="12:00:00", **user)
    assert done.returncode == 0, done.stderr
    *_, first = [line for line in done.stdout.splitlines() if "retinanet train" in line]
    assert "-np 32 " in first and first.endswith(user["ARGUMENTS"])
    options = done.stdout.splitlines()
    options = options[options.index("-q") :]
    assert options[-3] == "-v" and options[-1] == "launch/recipes/16-hosts.pbs"
    assert options[:-3] == [
        *("-q", "night"),
        *("-l", "select=8:ncpus=112:mpiprocs=4:ompthreads=1:model=a_long_name_of_a_kind_of_hosts"),
        *("-l", "place=scatter:excl"),
        *("-l", "walltime=12:00:00"),
    ]
    # Only names, so that no value is split at a comma; qsub takes the values from its environment.
    names = options[-2].split(",")
    assert {*user, "RESUME"} <= set(names) and not any("=" in name for name in names)
    assert set(names) <= set(environment) and "PBS_JOBID" not in names
    submitted = {name: environment[name] for name in user}
    assert submitted == user and environment["RESUME"] == "--auto-resume"
    resumed, _ = run_pbs(tmp_path, cluster_mpi, walltime="12:00:00", RESUME="--auto-resume")
    *_, second = [line for line in resumed.stdout.splitlines() if "retinanet train" in line]
    assert second.endswith(" --auto-resume")


@uses_its_environment
@pytest.mark.parametrize(
    ("walltime", "limit"),
    [("24:00:00", 85800), ("12:30:08", 44408), ("00:08:09", 244), ("", 0)],
)
def test_pbs_job_ends_before_its_own_limit(
    walltime: str, limit: int, tmp_path: Path, cluster_mpi: str
) -> None:
    done, _ = run_pbs(tmp_path, cluster_mpi, walltime=walltime)
    assert f"limit {limit}\n" in done.stdout


def test_pbs_job_without_qstat_does_not_start(tmp_path: Path, cluster_mpi: str) -> None:
    write_program(tmp_path / "mpi" / "qstat", "echo cannot connect >&2; exit 1")
    done = run_recipe("16-hosts.pbs", PATH=cluster_mpi, **PBS)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "qstat -f 17 does not answer: submit again"


def read_job(name: str) -> Any:
    return YAML(typ="safe").load((RECIPES / name).read_text())


@pytest.fixture(scope="module")
def job_set() -> Any:
    return read_job("jobset.yaml")


@pytest.fixture(scope="module")
def pod(job_set: Any) -> Any:
    """The only template of the job set's pods, which has one container."""
    [replicated] = job_set["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


def test_job_set_of_kubernetes_is_consistent(job_set: Any, pod: Any) -> None:
    job = job_set
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    [replicated] = job["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 16
    [ranks] = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in ranks["env"]}
    assert variables["HOSTS"] == str(spec["completions"])
    # The name that JobSet gives the pod with index 0.
    network = job["spec"]["network"]
    first = f"{job['metadata']['name']}-{replicated['name']}-0-0.{network['subdomain']}"
    assert network["enableDNSHostnames"] and variables["FIRST"] == first
    assert {mount["name"] for mount in ranks["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    [script] = ranks["args"]
    program, _, arguments = script.partition(" train.py ")
    mounted = {mount["mountPath"] for mount in ranks["volumeMounts"]}
    roots = {item.partition("=")[2] for item in arguments.split() if ".root=" in item}
    assert len(roots) == 2 and roots <= mounted
    done = subprocess.run(
        ["bash", "-c", program.replace("exec torchrun", "echo")],
        env={**variables, "JOB_COMPLETION_INDEX": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    options = get_args_parser().parse_args([*done.stdout.split(), "train.py"])
    assert (options.nnodes, options.nproc_per_node, options.node_rank) == ("16", "4", 3)
    assert (options.master_addr, options.master_port) == (first, 29500)
    # torchrun kills ranks before Kubernetes kills the pod.
    assert 30 < options.shutdown_timeout < pod["terminationGracePeriodSeconds"]


def test_pods_of_the_job_set_are_on_hosts_of_their_own(job_set: Any, pod: Any) -> None:
    # JobSet's exclusive topology keeps all pods of a Job in one domain, so that it fits only Jobs
    # of one pod, if the domain is a host.
    assert "exclusive-topology" not in json.dumps(job_set)
    # JobSet gives each pod its name as a label.
    [rule] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name = {"jobset.sigs.k8s.io/jobset-name": job_set["metadata"]["name"]}
    selector = {"matchLabels": name}
    assert rule == {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}


def test_cores_of_a_pod_of_the_job_set_are_all_used(pod: Any) -> None:
    """A host of 2 × 56 cores without those of kubelet, two of each socket."""
    [ranks] = pod["containers"]
    resources = ranks["resources"]
    assert resources["limits"] == resources["requests"]
    host = cores_in_a_row((0, 56, 0, 0), (56, 56, 1, 1), sibling_offset=112)
    rest = host.restricted([cpu for cpu in range(224) if cpu % 56 >= 2])
    assert int(resources["limits"]["cpu"]) == len(rest.cpus)
    shares = place_ranks(rest, ranks=4, request=CoreRequest(comm_cores=2))
    assert [(share.threads, len(share.comm_cpus)) for share in shares] == [(25, 2)] * 4


def pods_of(job: Any) -> Iterator[Any]:
    """Yield the specifications of pods anywhere in a manifest."""
    if isinstance(job, dict) and "containers" in job:
        yield job
    elif isinstance(job, dict | list):
        for item in job.values() if isinstance(job, dict) else job:
            yield from pods_of(item)


@pytest.mark.parametrize("name", ["mpijob.yaml", "jobset.yaml"])
def test_pods_are_restricted_but_for_what_the_recipe_says_to_delete(name: str) -> None:
    text = (RECIPES / name).read_text()
    job = YAML(typ="safe").load(text)
    assert "`restricted`" in text and list(pods_of(job))
    for pod in pods_of(job):
        assert pod.get("hostNetwork") is (True if name == "jobset.yaml" else None)
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            capabilities = container["securityContext"]["capabilities"]
            assert capabilities["drop"] == ["ALL"]
            assert capabilities.get("add", ["SYS_NICE"]) == ["SYS_NICE"]


@pytest.mark.slow
def test_mpi_job_of_kubernetes_is_consistent() -> None:
    job = read_job("mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    [starter] = launcher["template"]["spec"]["containers"]
    mpirun, _, count, program, *arguments = starter["args"]
    assert (mpirun, program, arguments[0]) == ("mpirun", "retinanet", "train")
    assert int(count) == spec["slotsPerWorker"] * worker["replicas"]
    [waiter] = worker["template"]["spec"]["containers"]
    python, option, module = waiter["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, option) == ("python", "-m") and find_spec(module)
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] > 30
    *_, settings = waiter["command"]
    text = (REPOSITORY / settings).read_text()
    assert f"Port {waiter['readinessProbe']['tcpSocket']['port']}\n" in text
    assert f"HostKey {spec['sshAuthMountPath']}/id_rsa\n" in text
    assert {mount["name"] for mount in waiter["volumeMounts"]} == {
        volume["name"] for volume in worker["template"]["spec"]["volumes"]
    }
    mounted = {mount["mountPath"] for mount in waiter["volumeMounts"]}
    assert {item.partition("=")[2] for item in arguments if ".root=" in item} <= mounted
    done = run_program(sys.executable, "-m", "retinanet", *arguments, "--dry-run")
    assert done.returncode == 0, done.stderr
