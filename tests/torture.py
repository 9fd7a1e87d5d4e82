"""Kill a run of two ranks at random moments, resume it each time, and compare its end.

python -m tests.torture                # 50 kills of a small demo run: `make torture`
python -m tests.torture --kills 10 --precision float32   # where bf16 is the default
python -m tests.torture --stopped-rank 1                 # 50 runs in which rank 1 is stopped

A life of the run begins by mpirun and ends by SIGKILL to one rank, to all, or to mpirun alone, at a
random moment: while it starts, in a step, while a checkpoint is written or an old one removed, in
an evaluation. The next life resumes it. What the last one leaves (weights, optimizer, random
states, running statistics) must be that of a run that nobody disturbed, bit for bit. If a run
ends before there were enough kills, another one follows. The exit status is 1 if anything differs.

With --stopped-rank N a rank gets SIGSTOP in a step instead, under bare mpirun and with several
values of `distributed.timeout_s`. mpirun, its helpers and all ranks must be gone at most 30 s after
the rank has been found to be silent. The exit status is 1 if a run was not.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from common.machine import fastest_precision
from tests.launch.ranks import ended, start_ranks
from tests.support.processes import (
    child_processes,
    rank_processes,
    wait_until_ended,
    wait_until_gone,
)

VICTIMS = ("rank 0", "rank 1", "both ranks", "mpirun")
MOMENTS = ("starting", "in a step", "writing a checkpoint", "evaluating")
TIMEOUTS_S = (10, 15, 16)
SECONDS_TO_END = 30.0
"""After a silent rank was noticed."""


@dataclass(frozen=True)
class Run:
    """A small demo run on two ranks."""

    root: Path
    name: str
    precision: str
    steps: int

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.root / self.name

    def arguments(self) -> list[str]:
        """The configuration: 8 steps per epoch; a checkpoint is nearly always being written."""
        return [
            *("--config", "demo.yaml", f"run.root={self.root}", f"run.name={self.name}"),
            *("data.scenes.train=16", "data.scenes.validation=4", "data.image_size=64"),
            *("training.batch_size=1", "training.epochs=1000", f"training.max_steps={self.steps}"),
            *("training.target_map=null", "evaluation.every=2", "evaluation.batch_size=2"),
            *("evaluation.pictures=1", "checkpoint.every=2 steps", "checkpoint.keep=2"),
            *(f"engine.precision={self.precision}", "distributed.timeout_s=60"),
        ]

    def start(self, *changes: str) -> subprocess.Popen[str]:
        """Start or resume the run."""
        resume = ["--resume"] if (self.folder / "config.yaml").exists() else ["--overwrite"]
        return start_ranks(2, "train.py", *self.arguments(), *changes, *resume)

    def last_step(self) -> int:
        """The step in the last complete line of the metrics."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        steps = [json.loads(line)["step"] for line in lines]
        return max(steps, default=0)

    def final_state(self) -> dict[str, object]:
        """The parts, position and random states in the last checkpoint."""
        state = json.loads((self.folder / "checkpoints" / "last" / "state.json").read_text())
        return {name: state[name] for name in ("parts", "position", "random_states")}


@dataclass
class Outcome:
    """The result of a torture test."""

    kills: int = 0
    runs: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    steps_repeated: int = 0
    differing: list[str] = field(default_factory=list)


def undisturbed(run: Run) -> dict[str, object]:
    """Train the run to its end without interruptions."""
    job = ended(run.start(), timeout=1800)
    assert job.code == 0, job.errors
    return run.final_state()


def life(run: Run, *, seconds: float, victim: str, outcome: Outcome) -> bool:
    """Run until killed at a random moment; return whether the run had ended before."""
    before = run.last_step()
    job = run.start()
    try:
        job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass
    else:
        assert job.returncode == 0, job.stderr
        return True
    moment = run_phase(run, since=before)
    kill(job, run, victim)
    reached = run.last_step()
    job.communicate(timeout=120)
    wait_until_gone(f"run.name={run.name}", seconds=60)
    outcome.kills += 1
    outcome.victims[victim] += 1
    outcome.moments[moment] += 1
    print(f"kill {outcome.kills}: {victim}, {moment}, after step {reached}", flush=True)
    return False


def run_phase(run: Run, *, since: int) -> str:
    """Return the present phase of a run, according to its folder."""
    checkpoints = run.folder / "checkpoints"
    if checkpoints.exists() and any(checkpoints.glob(".step-*")):
        return "writing a checkpoint"
    step = run.last_step()
    if step == since:
        return "starting"
    return "evaluating" if step % 16 == 0 else "in a step"


def kill(job: subprocess.Popen[str], run: Run, victim: str) -> None:
    """Send SIGKILL to processes; ignore those that have ended."""
    if victim == "mpirun":
        job.kill()
        return
    ranks = [rank for rank in (0, 1) if victim in (f"rank {rank}", "both ranks")]
    signal_ranks(run, ranks, signal.SIGKILL)


def signal_ranks(run: Run, ranks: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to all processes of some ranks, as far as they still exist."""
    for rank in ranks:
        for process in rank_processes(f"run.name={run.name}", rank):
            with suppress(ProcessLookupError):
                os.kill(process, number)


def torture(
    root: Path, *, kills: int, precision: str, steps: int, longest_s: float, seed: int
) -> Outcome:
    """Kill runs a number of times, and compare each result with the undisturbed run's."""
    draw = random.Random(seed)
    outcome = Outcome()
    expected = undisturbed(Run(root, "undisturbed", precision, steps))
    print(f"undisturbed: {steps} steps", flush=True)
    while outcome.kills < kills:
        outcome.runs += 1
        run = Run(root, f"killed-{outcome.runs}", precision, steps)
        is_over = False
        while not is_over and outcome.kills < kills:
            seconds, victim = draw.uniform(0.5, longest_s), draw.choice(VICTIMS)
            is_over = life(run, seconds=seconds, victim=victim, outcome=outcome)
        state = run.final_state() if is_over else undisturbed(run)
        outcome.differing += [
            f"{run.name}: {name}" for name in state if state[name] != expected[name]
        ]
        print(f"{run.name}: {'differs' if outcome.differing else 'the same, bit for bit'}")
        shutil.rmtree(run.folder)
    return outcome


def seconds_to_end(root: Path, *, rank: int, timeout_s: float, precision: str) -> float:
    """Stop a rank of a run; return the seconds from its detection to the end of all processes.

    Returns:
        Seconds; infinity if anything was left `SECONDS_TO_END` later.
    """
    run = Run(root, f"stopped-{os.getpid()}", precision, steps=100_000)
    job = run.start(f"distributed.timeout_s={timeout_s}", "evaluation.every=100000")
    while run.last_step() < 2:
        assert job.poll() is None, job.communicate()
        time.sleep(0.1)
    processes = descendant_processes(job.pid)
    signal_ranks(run, [rank], signal.SIGSTOP)
    noticed = time.monotonic() + 0.8 * timeout_s
    try:
        _, errors = job.communicate(timeout=0.8 * timeout_s + SECONDS_TO_END)
        wait_until_ended(processes, seconds=noticed + SECONDS_TO_END - time.monotonic())
        seconds = time.monotonic() - noticed
    except (subprocess.TimeoutExpired, AssertionError):
        signal_ranks(run, [0, 1], signal.SIGKILL)
        _, errors = job.communicate(timeout=60)
        seconds = math.inf
    assert f"error: rank {rank} on " in errors, errors
    shutil.rmtree(run.folder)
    print(f"timeout_s={timeout_s}: status {job.returncode}, {seconds:.1f} s after it was noticed")
    return seconds


def descendant_processes(process: int) -> list[int]:
    """Return the process numbers of all descendants of a process."""
    children = child_processes(process)
    return children + [below for child in children for below in descendant_processes(child)]


def stop_ranks(root: Path, *, rank: int, trials: int, precision: str) -> int:
    """Stop a rank in many runs; return how many did not end in time."""
    durations = [
        seconds_to_end(
            root, rank=rank, timeout_s=TIMEOUTS_S[trial % len(TIMEOUTS_S)], precision=precision
        )
        for trial in range(trials)
    ]
    in_time = sum(seconds < math.inf for seconds in durations)
    print(f"rank {rank} stopped: {in_time} of {trials} runs ended within {SECONDS_TO_END:g} s")
    return trials - in_time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how often (default: 50)")
    parser.add_argument(
        "--precision",
        choices=("bf16", "float32"),
        default=fastest_precision(),
        help="of the run (default: bf16 where the processor has it)",
    )
    parser.add_argument("--steps", type=int, default=160, help="of the run (default: 160)")
    parser.add_argument(
        "--longest", type=float, default=25.0, metavar="SECONDS", help="life (default: 25)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims (default: 0)")
    parser.add_argument(
        "--stopped-rank",
        type=int,
        choices=(0, 1),
        metavar="N",
        help="stop this rank in each of --kills runs, and kill none",
    )
    chosen = parser.parse_args(arguments)
    if chosen.stopped_rank is not None:
        with tempfile.TemporaryDirectory(prefix="torture-") as root:
            late = stop_ranks(
                Path(root),
                rank=chosen.stopped_rank,
                trials=chosen.kills,
                precision=chosen.precision,
            )
        return 1 if late else 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as root:
        outcome = torture(
            Path(root),
            kills=chosen.kills,
            precision=chosen.precision,
            steps=chosen.steps,
            longest_s=chosen.longest,
            seed=chosen.seed,
        )
    minutes = (time.monotonic() - begin) / 60
    victims = ", ".join(f"{name} {outcome.victims[name]}" for name in VICTIMS)
    moments = ", ".join(f"{name} {outcome.moments[name]}" for name in MOMENTS)
    print(f"{outcome.kills} kills of {outcome.runs} runs in {minutes:.0f} minutes")
    print(f"killed: {victims}\nwhile: {moments}")
    if outcome.differing:
        print(f"differs from the undisturbed run: {', '.join(outcome.differing)}")
        return 1
    print(
        f"{chosen.precision}: weights, optimizer, random states and running statistics are those "
        "of the undisturbed run, bit for bit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
