"""The replay that a log is compared with: from a file, or made now."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from profiling.bench.other_load import other_load
from profiling.efficiency.steps import steps_of
from profiling.onednn_log.log import OneDnnLog
from profiling.replay.benchdnn.program import find_benchdnn
from profiling.replay.benchdnn.run import replay_with_benchdnn
from profiling.replay.conditions import conditions_of
from profiling.replay.replay import Replay
from profiling.replay.torch_runner.run import replay_with_torch
from retinanet.errors import InputError
from retinanet.progress import progress

RUNNERS = ("auto", "benchdnn", "torch")


def chosen_benchdnn(runner: str, benchdnn: Path | None) -> Path | None:
    """The benchdnn to replay with; None: torch does it.

    Raises:
        InputError: It is asked for and not there, or torch is asked for beside it.
    """
    if runner == "torch":
        if benchdnn is not None:
            raise InputError("--benchdnn: --runner torch runs none; leave one of them out")
        return None
    found = find_benchdnn(benchdnn)
    if found is None and runner == "benchdnn":
        raise InputError(
            "--runner benchdnn: there is none on PATH; name it with --benchdnn, or use torch"
        )
    return found


def replay_now(
    log: OneDnnLog,
    *,
    benchdnn: Path | None,
    threads: int | None,
    repeats: int,
    cold: bool,
    console: Console,
) -> Replay:
    """Run the log's problems again.

    Raises:
        InputError: They cannot be run under such conditions.
    """

    def say(text: str) -> None:
        console.print(f"note: {text}", markup=False, soft_wrap=True)

    conditions = conditions_of(log, threads=threads, cpus=None, say=say)
    calls = log.calls(steps_of(log).holds)
    name = f"benchdnn ({benchdnn})" if benchdnn else "torch's oneDNN"
    with (
        other_load() as others,
        progress(console, f"replaying through {name}, problems", total=len(calls)) as advance,
    ):

        def show(done: int, _of: int) -> None:
            advance(done, "")

        if benchdnn is not None:
            replay = replay_with_benchdnn(
                calls,
                benchdnn=benchdnn,
                conditions=conditions,
                repeats=repeats,
                cold=cold,
                progress=show,
            )
        else:
            replay = replay_with_torch(
                calls,
                conditions=conditions,
                repeats=repeats,
                cold=cold,
                progress=show,
                say=say,
            )
    return replace(replay, other_cores=others.cores)
