"""From a plan to its result: variants in turn, written down after every round."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from profiling.ablate.calls import calls_of
from profiling.ablate.jobs import job_starter
from profiling.ablate.photos import Photos, with_photos
from profiling.ablate.plan import JOBS, Plan
from profiling.ablate.result import Result, read_result, with_round, write_result
from profiling.bench.crew import Crew
from profiling.bench.environment import environment
from profiling.bench.other_load import other_load
from profiling.bench.turns import rounds_of
from profiling.bench.worker_process import contestant_worker
from retinanet.code_version import code_version
from retinanet.errors import InputError
from retinanet.progress import progress
from retinanet.versions import installed_versions

OTHER_PACKAGES = ("simplejpeg", "pillow", "numpy", "mlperf-logging", "mpich")
MAY_DIFFER = ("code", "kernel")
"""Between the rounds of one result: a commit more changes nothing, or the definition too."""


def measured_on() -> dict[str, str | int]:
    """Machine, packages and code; asks git, so once for all results of a command."""
    return {**environment(), **installed_versions(OTHER_PACKAGES), "code": code_words()}


def fresh_result(plan: Plan, *, command: str, on: Mapping[str, str | int]) -> Result:
    """A result without rounds; `on`: see `measured_on`."""
    return Result(
        ablation=plan.name,
        size=plan.size,
        command=command,
        environment=on,
        definition=plan.definition,
        left_out=plan.left_out,
        rounds_wanted=plan.rounds,
        began=now(),
        ended=now(),
    )


def code_words() -> str:
    """The commit that runs."""
    code = code_version()
    return f"{code['commit'] or 'unknown'}{' and changes' if code['is_modified'] else ''}"


def begun_result(
    plan: Plan, file: Path, *, command: str, on: Mapping[str, str | int], overwrite: bool
) -> Result:
    """What is there of a plan's result already, else one without rounds; `on`: `measured_on`.

    Raises:
        InputError: The file is of another machine, other packages or another definition.
    """
    fresh = fresh_result(plan, command=command, on=on)
    if overwrite or not file.exists():
        return fresh
    found = read_result(file)
    advice = "--overwrite measures anew, --out DIR keeps both"
    for name, there in {**found.environment, "definition": found.definition}.items():
        here = fresh.definition if name == "definition" else fresh.environment.get(name)
        if name not in MAY_DIFFER and there != here:
            what = f"{name} {there}, here {here}"
            if name == "definition":
                parts = [part for part, value in fresh.definition.items() if there[part] != value]
                what = f"another definition ({', '.join(parts)})"
            raise InputError(f"{file}: was measured with {what}; {advice}")
    return replace(
        found, rounds_wanted=max(found.rounds_wanted, plan.rounds), left_out=plan.left_out
    )


def measure(plan: Plan, begun: Result, file: Path, *, photos: Photos, console: Console) -> Result:
    """Measure the rounds that are missing; each is in the file as soon as it is there.

    Args:
        plan: What to measure.
        begun: The rounds that there are.
        file: The result's.
        photos: Those that decoders read; in their scratch folder is what ablations share.
        console: Where progress is shown.

    Raises:
        WorkerDiedError, JobFailedError: A variant could not go on.
        InputError: The file cannot be written.
    """
    started = now()
    result = begun if begun.rounds else replace(begun, began=started, ended=started)
    if result.is_complete:
        write_result(file, result)
        return result
    missing = result.rounds_wanted - len(result.rounds)
    contestants = list(plan.contestants.values())
    total = len(contestants) * (plan.warm_up + missing)
    start = contestant_worker
    if plan.ablation.recipe == JOBS:
        start = job_starter(photos.scratch / "scenes", partial(console.print, soft_wrap=True))  # type: ignore[assignment]
    with ExitStack() as stack:
        others = stack.enter_context(other_load())
        crew = stack.enter_context(
            Crew(
                # Where a run draws random numbers, each round has its own, resumed or not.
                replace(plan.workload, seed=len(result.rounds)),
                warm_up=plan.warm_up,
                say=console.print,
                start=lambda one, workload: start(with_photos(one, photos), workload),
            )
        )
        advance = stack.enter_context(progress(console, f"{plan.name}, runs", total=total))
        rounds = rounds_of(
            crew,
            contestants,
            rounds=missing,
            advance=advance,
            settling=plan.ablation.settling,
        )
        for of_round in rounds:
            if plan.ablation.calls is not None and result.calls is None:
                # With the first round, so that no result is complete without them.
                calls = calls_of(plan.ablation.calls, crew, plan.contestants, folder=file.parent)
                result = replace(result, calls=calls)
            result = with_round(replace(result, facts=crew.facts), of_round, ended=now())
            write_result(file, result)
    result = replace(result, busy_cores=(*result.busy_cores, round(others.cores, 3)))
    write_result(file, result)
    return result


def now() -> str:
    """The time of day in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
