"""The folder of a submission, as MLCommons' package checker expects it.

systems/SYSTEM.json                                      what the runs ran on
results/SYSTEM/retinanet/result_0.txt …                  their logs
benchmarks/retinanet/implementations/SYSTEM/README.md    how to run the code again
benchmarks/retinanet/implementations/SYSTEM/result_0/    configuration and environment of each

TODO-DOC `python -m retinanet mlperf submission`: runs as a submission, checked by MLCommons' own.

TODO-DOC A submission's description of the system, filled from this machine as far as it tells.
"""

import json
import platform
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants
from rich.console import Console

from common.cli import installed
from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import read_json_object, read_text, write_whole
from common.machine import cpu_field, processor_name, read_proc_text, read_status
from launch.topology import Topology, count_cores, read_topology, sockets_of
from retinanet.mlperf.log import RunLog, read_run_log
from retinanet.mlperf.official import check_package, official_version
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION, Rules

SAME = (
    constants.SUBMISSION_ORG,
    constants.SUBMISSION_PLATFORM,
    constants.SUBMISSION_DIVISION,
    constants.SUBMISSION_BENCHMARK,
    constants.GLOBAL_BATCH_SIZE,
)
"""What all runs of a result must have said alike."""


@dataclass(frozen=True)
class Submission:
    """Paths of one system's runs in a submission's folder."""

    folder: Path
    system: str
    benchmark: str

    @property
    def description(self) -> Path:
        """JSON."""
        return self.folder / "systems" / f"{self.system}.json"

    @property
    def results(self) -> Path:
        """Logs of runs."""
        return self.folder / "results" / self.system / self.benchmark

    @property
    def code(self) -> Path:
        """What to run again."""
        return self.folder / "benchmarks" / self.benchmark / "implementations" / self.system

    def logs(self) -> list[Path]:
        """Those of the runs that are there, in their order."""
        return [file for file in map(self.result, range(RUNS_OF_SUBMISSION)) if file.exists()]

    def result(self, number: int) -> Path:
        """The log of a run."""
        return self.results / f"result_{number}.txt"


def add_run(folder: Path, run: Path) -> Submission:
    """Add a run to a submission's folder, which is made if it is not there.

    A run that is there already is left as it is; so is a description of the system.

    Args:
        folder: The submission's.
        run: The run's, on the machine that trained.

    Raises:
        InputError: The folder's runs and this one do not belong together, it is full, something
            cannot be read or written, or this would be the second run that has not converged.
    """
    log = read_run_log(run)
    environment = read_json_object(run / "environment.json", advice="expected the folder of a run")
    submission = submission_of(folder, log)
    logs = [read_run_log(file) for file in submission.logs()]
    text = read_text(log.file)
    for other in logs:
        require_same(log, other)
        if read_text(other.file) == text:
            return submission
    require_convergence([*logs, log])
    if len(logs) == RUNS_OF_SUBMISSION:
        raise InputError(f"{submission.results}: has its {len(logs)} runs; give another folder")
    if not submission.description.exists():
        described = described_system(submission, log, environment=environment, run=run)
        write_whole(submission.description, json.dumps(described, indent=1) + "\n")
    readme = submission.code / "README.md"
    if not readme.exists():
        write_whole(readme, how_to_run(environment))
    number = len(logs)
    for name in ("config.yaml", "environment.json"):
        write_whole(submission.code / f"result_{number}" / name, (run / name).read_bytes())
    write_whole(submission.result(number), text)  # last: what has a result is complete
    return submission


def submission_of(folder: Path, log: RunLog) -> Submission:
    """Where a log belongs in a submission's folder."""
    platform = str(log.value(constants.SUBMISSION_PLATFORM))
    system = re.sub(r"[^A-Za-z0-9.@-]+", "_", platform).strip("_")
    return Submission(folder, system, str(log.value(constants.SUBMISSION_BENCHMARK)))


def require_convergence(logs: Sequence[RunLog]) -> None:
    """Refuse more than one run that has not reached its target (MLPerf Training Rules, Benchmark
    Results: one may be dropped as the slowest).

    Raises:
        InputError: There are two.
    """
    failed = [log for log in logs if log.status != constants.SUCCESS]
    if len(failed) > 1:
        raise InputError(
            f"{failed[-1].file}: {failed[-1].status}, as {failed[0].file} is: only one run of a "
            "submission may have missed its target"
        )


def require_same(log: RunLog, other: RunLog) -> None:
    """Refuse runs that are not of one result.

    Raises:
        InputError: Names what differs.
    """
    for key in SAME:
        if log.value(key) != other.value(key):
            raise InputError(
                f"{log.file}: {key} is {log.value(key)}, but {other.file} has {other.value(key)}; "
                "give another folder"
            )


def described_system(
    submission: Submission, log: RunLog, *, environment: dict[str, Any], run: Path
) -> dict[str, str]:
    """The description of the system that a run ran on."""
    return system_description(
        submitter=str(log.value(constants.SUBMISSION_ORG)),
        system_name=submission.system,
        division=str(log.value(constants.SUBMISSION_DIVISION)),
        status=str(log.value(constants.SUBMISSION_STATUS)),
        environment=environment,
        storage=run,
    )


def empty_fields(submission: Submission) -> list[str]:
    """Of the system's description, those that somebody has to fill in.

    Raises:
        InputError: The description is no JSON.
    """
    described = read_json_object(submission.description, advice="expected the system's description")
    return [name for name, value in described.items() if value == ""]


def how_to_run(environment: dict[str, Any]) -> str:
    """Instructions for whoever reproduces the runs."""
    code = environment.get("code", {})
    commit = code.get("commit") or "unknown"
    changes = ", with changes that are not in it" if code.get("is_modified") else ""
    return f"""# RetinaNet-ResNeXt50 on CPUs

Code: {code.get("repository") or "this repository"}, commit {commit}{changes}.
Each run's configuration and environment, with the command as it was typed, are in `result_N/`.

    git checkout {commit}
    ./setup.sh
    .venv/bin/python -m data download openimages --out /data/open-images-v6-mlperf
    .venv/bin/python train.py --config result_0/config.yaml data.root=/data/open-images-v6-mlperf
"""


def submission(*, runs: Sequence[Path], out: Path, rules: Rules | None) -> int:
    """Add runs to a submission's folder and check the folder.

    Args:
        runs: Their folders.
        out: The submission's.
        rules: Rule set; None: the newest that has a benchmark of the logs' name.

    Returns:
        0 where the official checker passes, 4 where it does not.

    Raises:
        InputError: A run cannot be added, see `add_run`; those before it were.
    """
    for run in runs:
        rules = read_run_log(run).rules(rules)
    for run in runs:
        added = add_run(out, run)
    assert rules is not None, "there is at least one run"
    return FINISHED if tell(added, rules=rules, console=make_console()) else CONDITION_MET


def submit(run: Path, out: Path, *, console: Console) -> None:
    """Add a run that has just finished to its submission; where it has not converged, say so.

    Raises:
        InputError: It cannot be added; says how to add it later.
    """
    log = read_run_log(run)
    again = [installed("python"), "-m", "retinanet", "mlperf", "submission", str(run)]
    if log.status != constants.SUCCESS:
        command = shlex.join([*again, "--out", str(out)])
        console.print(
            f"{out}: this run is not added, since it missed its target; one of five may: {command}",
            soft_wrap=True,
        )
        return
    try:
        added = add_run(out, run)
    except InputError as error:
        command = shlex.join([*again, "--out", "DIR"])
        raise InputError(f"{error}; the run itself is whole; add it by {command}") from error
    tell(added, rules=log.rules(None), console=console)


def tell(submission: Submission, *, rules: Rules, console: Console) -> bool:
    """Say what is in a submission's folder and what the official checker says of it; whether it
    passes.
    """
    say = partial(console.print, soft_wrap=True)

    say(f"{submission.results}: {len(submission.logs())} of {RUNS_OF_SUBMISSION} runs")
    empty = empty_fields(submission)
    if empty:
        say(f"{submission.description}: fill in {', '.join(empty)}")
    verdict = check_package(submission.folder, rules=rules)
    words = verdict.summary if verdict.passed else "not passed"
    say(f"official package checker ({official_version()}): {words}")
    for fault in verdict.faults:
        say(f"  ✗ {fault}")
    for warning in verdict.warnings:
        say(f"  – {warning}")
    return verdict.passed


CPU_0 = Path("/sys/devices/system/cpu/cpu0")
MEMORY = Path("/proc/meminfo")

AVAILABILITY = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""`mlperf.status` in the words of the description."""

TOLD_BY_NOBODY = (
    "host_processor_interconnect",
    "host_storage_type",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "cooling",
    "hw_notes",
    "sw_notes",
)
"""Fields that are left empty, for somebody to fill in."""

OF_ACCELERATORS = (
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
)


def system_description(
    *,
    submitter: str,
    system_name: str,
    division: str,
    status: str,
    environment: Mapping[str, Any],
    storage: Path,
) -> dict[str, str]:
    """All fields that MLCommons' system description checker asks for; what is not known is empty.

    Args:
        submitter: Who submits.
        system_name: What the system is called.
        division: `open` or `closed`.
        status: See `AVAILABILITY`.
        environment: A run's `environment.json`.
        storage: A folder on the disk that it used.
    """
    hosts = environment.get("ranks", {}).get("hosts", [])
    packages = environment.get("packages", {})
    return {
        "submitter": submitter,
        "division": division,
        "status": AVAILABILITY[status],
        "system_name": system_name,
        "number_of_nodes": str(max(1, len(set(hosts)))),
        **host_facts(read_topology()),
        "host_storage_capacity": f"{shutil.disk_usage(storage).total / 1e9:.0f} GB",
        "accelerators_per_node": "0",
        **dict.fromkeys(OF_ACCELERATORS, "none"),
        "framework": f"PyTorch {packages.get('torch', '')}",
        "other_software_stack": ", ".join(
            [f"Python {environment.get('python', '')}"]
            + [f"{name} {version}" for name, version in packages.items() if name != "torch"]
        ),
        "operating_system": operating_system(),
        **dict.fromkeys(TOLD_BY_NOBODY, ""),
    }


def host_facts(topology: Topology) -> dict[str, str]:
    """Processors and memory of a host."""
    sockets = sockets_of(topology)
    threads = len(topology.cpus) // len(sockets)
    return {
        "host_processors_per_node": str(len(sockets)),
        "host_processor_model_name": processor_name(),
        "host_processor_core_count": str(count_cores(sockets) // len(sockets)),
        "host_processor_vcpu_count": str(threads),
        "host_processor_frequency": frequency(),
        "host_processor_caches": caches(),
        "host_memory_capacity": memory(),
    }


def frequency() -> str:
    """The highest, or where a virtual machine hides it, the one that Linux measured."""
    highest = read_proc_text(CPU_0 / "cpufreq" / "cpuinfo_max_freq").strip()
    if highest:
        return f"{int(highest) / 1e6:.2f} GHz"
    measured = cpu_field(("cpu MHz",))
    return f"{float(measured) / 1000:.2f} GHz" if measured else ""


def caches() -> str:
    """Of one core, as sysfs has them: `L1 Data 32K, L1 Instruction 32K, L2 Unified 1024K`."""
    found = []
    for folder in sorted((CPU_0 / "cache").glob("index*")):
        level, kind, size = (
            read_proc_text(folder / name).strip() for name in ("level", "type", "size")
        )
        found.append(f"L{level} {kind} {size}")
    return ", ".join(found)


def memory() -> str:
    """All of the host's."""
    kilobytes = read_status(MEMORY).get("MemTotal", "").partition(" ")[0]
    return f"{int(kilobytes) * 1024 / 1e9:.0f} GB" if kilobytes else ""


def operating_system() -> str:
    """Distribution and kernel."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return ", ".join(part for part in (name, f"Linux {platform.release()}") if part)
