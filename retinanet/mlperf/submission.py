"""The folder of a submission, as MLCommons' package checker expects it.

systems/SYSTEM.json                                      what the runs ran on
results/SYSTEM/retinanet/result_0.txt …                  their logs
benchmarks/retinanet/implementations/SYSTEM/README.md    how to run the code again
benchmarks/retinanet/implementations/SYSTEM/result_0/    configuration and environment of each

`submission` and `submit` add runs and have the folder checked. The description of the system is
filled from this machine as far as it reports itself; the other fields are left to fill in by hand.
"""

import json
import platform
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants
from rich.console import Console

from common.cli import installed
from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import read_json_object, read_text, write_whole
from common.machine import cpu_field, processor_name, read_proc_text, read_status
from launch.topology import count_cores, list_sockets, read_topology
from retinanet.mlperf.log import RunLog, read_run_log
from retinanet.mlperf.official import check_package, print_verdict
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION, Rules

SAME = (
    constants.SUBMISSION_ORG,
    constants.SUBMISSION_PLATFORM,
    constants.SUBMISSION_DIVISION,
    constants.SUBMISSION_BENCHMARK,
    constants.GLOBAL_BATCH_SIZE,
)
"""Keys that have one value in the logs of all runs of a result."""


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
        """The folder of the runs' logs."""
        return self.folder / "results" / self.system / self.benchmark

    @property
    def code(self) -> Path:
        """The folder with all that reproduces the runs."""
        return self.folder / "benchmarks" / self.benchmark / "implementations" / self.system

    def logs(self) -> list[Path]:
        """Return the logs of the runs that are there, in their order."""
        return [file for file in map(self.result, range(RUNS_OF_SUBMISSION)) if file.exists()]

    def result(self, number: int) -> Path:
        """Return the path of a run's log."""
        return self.results / f"result_{number}.txt"


def add_run(folder: Path, run: Path) -> Submission:
    """Add a run to a submission's folder, which is made if it is not there.

    A run that is there already is left as it is; so is a description of the system. The run's
    folder is on the machine that trained.

    Raises:
        InputError: The folder's runs and this one do not belong together, it is full, something
            cannot be read or written, or this would be the second run that has not converged.
    """
    log = read_run_log(run)
    environment = read_json_object(run / "environment.json", advice="expected the folder of a run")
    hardware = str(log.value(constants.SUBMISSION_PLATFORM))
    system = re.sub(r"[^A-Za-z0-9.@-]+", "_", hardware).strip("_")
    submission = Submission(folder, system, str(log.value(constants.SUBMISSION_BENCHMARK)))
    logs = [read_run_log(file) for file in submission.logs()]
    text = read_text(log.file)
    for other in logs:
        for key in SAME:
            if log.value(key) != other.value(key):
                raise InputError(
                    f"{log.file}: {key} is {log.value(key)}, but {other.file} has "
                    f"{other.value(key)}; give another folder"
                )
        if read_text(other.file) == text:
            return submission
    # One may be dropped as the slowest (MLPerf Training Rules, Benchmark Results).
    failed = [item for item in (*logs, log) if item.status != constants.SUCCESS]
    if len(failed) > 1:
        raise InputError(
            f"{failed[-1].file}: {failed[-1].status}, as {failed[0].file} is: only one run of a "
            "submission may have missed its target"
        )
    if len(logs) == RUNS_OF_SUBMISSION:
        raise InputError(f"{submission.results}: has its {len(logs)} runs; give another folder")
    if not submission.description.exists():
        description = system_description(submission, log, environment=environment, storage=run)
        write_whole(submission.description, json.dumps(description, indent=1) + "\n")
    readme = submission.code / "README.md"
    if not readme.exists():
        write_whole(readme, how_to_run(environment))
    number = len(logs)
    for name in ("config.yaml", "environment.json"):
        write_whole(submission.code / f"result_{number}" / name, (run / name).read_bytes())
    write_whole(submission.result(number), text)  # last: what has a result is complete
    return submission


def how_to_run(environment: dict[str, Any]) -> str:
    """Return instructions for those who reproduce the runs."""
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
    """Add runs to the submission's folder `out` and check it; 4 where the official checker fails.

    `rules=None`: the newest that have a benchmark of the logs' name.

    Raises:
        InputError: A run cannot be added, see `add_run`; those before it were.
    """
    for run in runs:
        rules = read_run_log(run).rules(rules)
    for run in runs:
        added = add_run(out, run)
    assert rules is not None, "there is at least one run"
    passed = print_submission(added, rules=rules, console=make_console())
    return FINISHED if passed else CONDITION_MET


def submit(run: Path, out: Path, *, console: Console) -> None:
    """Add a run that has just finished to its submission; print why not if it has not converged.

    Raises:
        InputError: It cannot be added; the message has the command that adds it later.
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
    print_submission(added, rules=log.rules(None), console=console)


def print_submission(submission: Submission, *, rules: Rules, console: Console) -> bool:
    """Print a submission's runs and the official checker's verdict; return whether it passes."""
    runs = f"{submission.results}: {len(submission.logs())} of {RUNS_OF_SUBMISSION} runs"
    console.print(runs, soft_wrap=True)
    advice = "expected the system's description"
    fields = read_json_object(submission.description, advice=advice)
    empty = [name for name, value in fields.items() if value == ""]
    if empty:
        console.print(f"{submission.description}: fill in {', '.join(empty)}", soft_wrap=True)
    verdict = check_package(submission.folder, rules=rules)
    result = verdict.summary if verdict.passed else "not passed"
    print_verdict(console, "package checker", verdict, result=result)
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

HOST = ("processor_interconnect", "storage_type", "networking", "networking_topology")
NOT_KNOWN = [f"host_{name}" for name in (*HOST, "memory_configuration")]
NOT_KNOWN += ["cooling", "hw_notes", "sw_notes"]
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
    submission: Submission, log: RunLog, *, environment: Mapping[str, Any], storage: Path
) -> dict[str, str]:
    """Return all fields that MLCommons' checker of system descriptions requires, or empty."""
    topology = read_topology()
    sockets = list_sockets(topology)
    hosts = environment.get("ranks", {}).get("hosts", [])
    packages = environment.get("packages", {})
    software = [f"Python {environment.get('python', '')}"]
    software += [f"{name} {version}" for name, version in packages.items() if name != "torch"]
    # The highest frequency, or where a virtual machine hides it, the one that Linux measured.
    highest = read_proc_text(CPU_0 / "cpufreq" / "cpuinfo_max_freq").strip()
    megahertz = float(highest) / 1000 if highest else float(cpu_field(("cpu MHz",)) or 0)
    kilobytes = read_status(MEMORY).get("MemTotal", "").partition(" ")[0]
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    return {
        "submitter": str(log.value(constants.SUBMISSION_ORG)),
        "division": str(log.value(constants.SUBMISSION_DIVISION)),
        "status": AVAILABILITY[str(log.value(constants.SUBMISSION_STATUS))],
        "system_name": submission.system,
        "number_of_nodes": str(max(1, len(set(hosts)))),
        "host_processors_per_node": str(len(sockets)),
        "host_processor_model_name": processor_name(),
        "host_processor_core_count": str(count_cores(sockets) // len(sockets)),
        "host_processor_vcpu_count": str(len(topology.cpus) // len(sockets)),
        "host_processor_frequency": f"{megahertz / 1000:.2f} GHz" if megahertz else "",
        "host_processor_caches": caches(),
        "host_memory_capacity": f"{int(kilobytes) * 1024 / 1e9:.0f} GB" if kilobytes else "",
        "host_storage_capacity": f"{shutil.disk_usage(storage).total / 1e9:.0f} GB",
        "accelerators_per_node": "0",
        **dict.fromkeys(OF_ACCELERATORS, "none"),
        "framework": f"PyTorch {packages.get('torch', '')}",
        "other_software_stack": ", ".join(software),
        "operating_system": ", ".join(filter(None, (distribution, f"Linux {platform.release()}"))),
        **dict.fromkeys(NOT_KNOWN, ""),
    }


def caches() -> str:
    """Return those of one core: `L1 Data 32K, L1 Instruction 32K, L2 Unified 1024K`."""
    texts = []
    for folder in sorted((CPU_0 / "cache").glob("index*")):
        fields = ("level", "type", "size")
        level, kind, size = (read_proc_text(folder / name).strip() for name in fields)
        texts.append(f"L{level} {kind} {size}")
    return ", ".join(texts)
