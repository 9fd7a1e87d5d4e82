"""The folder of a submission, as MLCommons' package checker expects it.

systems/SYSTEM.json                                      what the runs ran on
results/SYSTEM/retinanet/result_0.txt …                  their logs
benchmarks/retinanet/implementations/SYSTEM/README.md    how to run the code again
benchmarks/retinanet/implementations/SYSTEM/result_0/    configuration and environment of each
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from retinanet.errors import InputError
from retinanet.json_objects import read_json_object
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION
from retinanet.mlperf.run_log import RunLog, read_run_log
from retinanet.mlperf.system_description import system_description
from retinanet.output_files import write_whole
from retinanet.regular_files import read_text

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
