"""The folder of a submission, as MLCommons' package checker expects it.

systems/SYSTEM.json                                      description of the system
results/SYSTEM/retinanet/result_0.txt …                  logs of the runs
benchmarks/retinanet/implementations/SYSTEM/README.md    how to reproduce the runs
benchmarks/retinanet/implementations/SYSTEM/result_0/    configuration and environment of each

`submission` adds runs and runs the checker. The description of the system is filled
with facts about this machine; fields that cannot be determined are left for the user.
"""

import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants
from rich.console import Console

from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import read_json_object, read_text, write_atomically, write_json
from common.machine import cpu_field, processor_name, read_proc_text, read_status
from launch.host_state import HostState
from launch.topology import count_cores, list_sockets, read_topology
from retinanet.mlperf.commands import SubmissionOptions
from retinanet.mlperf.log import RunLog, read_run_log
from retinanet.mlperf.official import check_package, print_verdict
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION, Rules

SHARED_KEYS = (
    constants.SUBMISSION_ORG,
    constants.SUBMISSION_PLATFORM,
    constants.SUBMISSION_DIVISION,
    constants.SUBMISSION_BENCHMARK,
    constants.GLOBAL_BATCH_SIZE,
)
"""Keys whose values must be equal in the logs of all runs of a result."""


@dataclass(frozen=True)
class Submission:
    """Paths of one system's runs in a submission's folder."""

    folder: Path
    system: str
    benchmark: str

    @property
    def description(self) -> Path:
        """The JSON file that describes the system."""
        return self.folder / "systems" / f"{self.system}.json"

    @property
    def results(self) -> Path:
        """The folder of the runs' logs."""
        return self.folder / "results" / self.system / self.benchmark

    @property
    def code(self) -> Path:
        """The folder with everything needed to reproduce the runs."""
        return self.folder / "benchmarks" / self.benchmark / "implementations" / self.system

    def logs(self) -> list[Path]:
        """Return the existing logs of runs, in order."""
        return [file for file in map(self.result, range(RUNS_OF_SUBMISSION)) if file.exists()]

    def result(self, number: int) -> Path:
        """Return the path of a run's log."""
        return self.results / f"result_{number}.txt"


def add_run(folder: Path, run: Path) -> Submission:
    """Add a run to a submission's folder, which is created if it does not exist.

    A run that was added before is not changed, nor is an existing description of the system. To be
    called on the machine that trained.

    Raises:
        InputError: The run does not match the runs in the folder, the folder is full, a file cannot
            be read or written, or this would be the second run that has not converged.
    """
    log = read_run_log(run)
    environment = read_json_object(run / "environment.json", advice="give the folder of a run")
    hardware = str(log.value(constants.SUBMISSION_PLATFORM))
    # The package checker finds systems/NAME.json by the name of the folder in results/, so the name
    # has to be valid for both.
    system = re.sub(r"[^A-Za-z0-9.@-]+", "_", hardware).strip("_")
    submission = Submission(folder, system, str(log.value(constants.SUBMISSION_BENCHMARK)))
    logs = [read_run_log(file) for file in submission.logs()]
    text = read_text(log.file)
    for other in logs:
        for key in SHARED_KEYS:
            if log.value(key) != other.value(key):
                raise InputError(
                    f"{log.file}: {key} is {log.value(key)}, but {other.value(key)} in "
                    f"{other.file}; give another folder"
                )
        # The same run again: logs of two runs differ at least in their times.
        if read_text(other.file) == text:
            return submission
    # One may fail: the slowest run is dropped (MLPerf Training Rules, Benchmark Results).
    failed = [item for item in (*logs, log) if item.status != constants.SUCCESS]
    if len(failed) > 1:
        raise InputError(
            f"{failed[-1].file}: {failed[-1].status}, like {failed[0].file}: only one run of a "
            "submission may miss the target; leave it out"
        )
    if len(logs) == RUNS_OF_SUBMISSION:
        raise InputError(
            f"{submission.results}: complete with {len(logs)} runs; give another folder"
        )
    if not submission.description.exists():
        description = system_description(submission, log, environment=environment, storage=run)
        write_json(submission.description, description)
    readme = submission.code / "README.md"
    if not readme.exists():
        write_atomically(readme, how_to_run(environment))
    number = len(logs)
    for name in ("config.yaml", "environment.json"):
        write_atomically(submission.code / f"result_{number}" / name, (run / name).read_bytes())
    # Last, so that a run with a result is complete.
    write_atomically(submission.result(number), text)
    return submission


def how_to_run(environment: dict[str, Any]) -> str:
    """Return instructions to reproduce the runs."""
    code = environment.get("code", {})
    commit = code.get("commit") or "unknown"
    changes = ", with uncommitted changes" if code.get("is_modified") else ""
    return f"""# RetinaNet-ResNeXt50 on CPUs

Code: {code.get("repository") or "this repository"}, commit {commit}{changes}.
The configuration and environment of each run, including the command line, are in `result_N/`.

    git checkout {commit}
    ./setup.sh
    .venv/bin/retinanet data download openimages --out /data/open-images-v6-mlperf
    .venv/bin/retinanet train --config result_0/config.yaml data.root=/data/open-images-v6-mlperf
"""


def submission(options: SubmissionOptions) -> int:
    """Add runs to a submission's folder and check it; return 4 if the official checker fails.

    Raises:
        InputError: A run cannot be added, see `add_run`; the runs before it have been added.
    """
    # All logs are read before the first is added, so that a wrong path adds nothing. The rules of
    # the first log apply to all.
    rules = options.rules
    for run in options.runs:
        rules = read_run_log(run).rules(rules)
    for run in options.runs:
        added = add_run(options.out, run)
    assert rules is not None, "argparse requires at least one run"
    passed = print_submission(added, rules=rules, console=make_console())
    return FINISHED if passed else CONDITION_MET


def print_submission(submission: Submission, *, rules: Rules, console: Console) -> bool:
    """Print a submission's runs and the official checker's verdict; return whether it passes."""
    runs = f"{submission.results}: {len(submission.logs())} of {RUNS_OF_SUBMISSION} runs"
    console.print(runs, soft_wrap=True)
    advice = "this is the system's description"
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
"""Values of `mlperf.status` as written in the description."""

HOST = ("processor_interconnect", "storage_type", "networking", "networking_topology")
UNKNOWN_FIELDS = [f"host_{name}" for name in (*HOST, "memory_configuration")]
UNKNOWN_FIELDS += ["cooling"]
"""Fields that are left empty, for the user to fill in."""

ACCELERATOR_FIELDS = (
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
    """Return all fields that MLCommons' checker requires; unknown ones are empty."""
    topology = read_topology()
    sockets = list_sockets(topology)
    hosts = environment.get("ranks", {}).get("hosts", [])
    packages = environment.get("packages", {})
    software = [f"Python {environment.get('python', '')}"]
    software += [f"{name} {version}" for name, version in packages.items() if name != "torch"]
    # The maximum frequency, or the measured one: virtual machines often hide the maximum.
    # `cpuinfo_max_freq` is in kHz, the field of /proc/cpuinfo in MHz.
    highest = read_proc_text(CPU_0 / "cpufreq" / "cpuinfo_max_freq").strip()
    megahertz = float(highest) / 1000 if highest else float(cpu_field(("cpu MHz",)) or 0)
    # The kernel's kB are 1024 bytes.
    kilobytes = read_status(MEMORY).get("MemTotal", "").partition(" ")[0]
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        # Minimal images have no os-release file.
        distribution = ""
    return {
        "submitter": str(log.value(constants.SUBMISSION_ORG)),
        "division": str(log.value(constants.SUBMISSION_DIVISION)),
        "status": AVAILABILITY[str(log.value(constants.SUBMISSION_STATUS))],
        "system_name": submission.system,
        "number_of_nodes": str(max(1, len(set(hosts)))),
        "host_processors_per_node": str(len(sockets)),
        "host_processor_model_name": processor_name(),
        # Cores and hardware threads are counted per processor, not per host.
        "host_processor_core_count": str(count_cores(sockets) // len(sockets)),
        "host_processor_vcpu_count": str(len(topology.cpus) // len(sockets)),
        "host_processor_frequency": f"{megahertz / 1000:.2f} GHz" if megahertz else "",
        "host_processor_caches": caches(),
        "host_memory_capacity": f"{int(kilobytes) * 1024 / 1e9:.0f} GB" if kilobytes else "",
        "host_storage_capacity": f"{shutil.disk_usage(storage).total / 1e9:.0f} GB",
        "accelerators_per_node": "0",
        **dict.fromkeys(ACCELERATOR_FIELDS, "none"),
        "framework": f"PyTorch {packages.get('torch', '')}",
        "other_software_stack": ", ".join(software),
        "operating_system": ", ".join(filter(None, (distribution, f"Linux {platform.release()}"))),
        **dict.fromkeys(UNKNOWN_FIELDS, ""),
        **notes_on_hosts(environment),
    }


HARDWARE = ("turbo", "hyperthreads", "memory_speed")
SOFTWARE = (
    *("frequency_driver", "governor", "energy_preference"),
    *("numa_balancing", "huge_pages", "swappiness"),
)


def notes_on_hosts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the hosts at the start of the run, as notes on hard- and software."""
    states = environment.get("host_state", {})
    labels = {item.name: item.metadata["label"] for item in fields(HostState) if item.metadata}
    notes = {}
    for field, names in (("hw_notes", HARDWARE), ("sw_notes", SOFTWARE)):
        parts = []
        for name in names:
            # Of hosts that differ, each value once.
            values = dict.fromkeys(str(state[name]) for state in states.values() if name in state)
            if values:
                parts.append(f"{labels[name]} {' or '.join(values)}")
        notes[field] = ", ".join(parts)
    return notes


def caches() -> str:
    """Return the caches of one core, such as `L1 Data 32K, L1 Instruction 32K`."""
    texts = []
    for folder in sorted((CPU_0 / "cache").glob("index*")):
        fields = ("level", "type", "size")
        level, kind, size = (read_proc_text(folder / name).strip() for name in fields)
        texts.append(f"L{level} {kind} {size}")
    return ", ".join(texts)
