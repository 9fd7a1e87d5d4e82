"""`python -m launch scale`: measure the throughput of training by ranks and threads."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.cli import add_command, add_json_option, add_overrides, numbers, positive
from common.console import make_console
from common.errors import InputError
from common.files import require_free
from launch.hosts import add_where
from launch.limits import read_allowance
from launch.mpirun import choose_mpirun
from launch.run import chosen_hosts
from launch.topology import read_topology
from profiling.bench.job import MeasuredJob
from profiling.bench.results import background_load
from profiling.studies.scale.study import Combination, Rounds, combine, misfits, run_rounds
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import core_request

DECIDED_HERE = {
    "launch.threads": "--threads decides it",
    "training.batch_size": "give --batch-size or --global-batch instead",
}


def scale_command(
    *,
    config: str,
    overrides: list[str],
    ranks: tuple[int, ...],
    threads: tuple[int, ...],
    batch_size: int | None,
    global_batch: int | None,
    steps: int,
    warm_up: int,
    rounds: int,
    hosts: str | None,
    hostfile: Path | None,
    mpirun: Path | None,
    json_file: Path | None,
    chart: Path | None,
) -> int:
    """Run the study, print it, write it; returns the exit code.

    Raises:
        InputError: Nothing fits, there is no mpirun, or a file cannot be read or written.
    """
    chart = chart or (json_file.with_suffix(".png") if json_file else None)
    outputs = [file for file in (json_file, chart) if file is not None]
    require_free(outputs, overwrite=False, advice="give --json or --chart another file")
    require_undecided(overrides)
    settings = load_config(config, overrides)
    combinations = combine_here(
        settings,
        ranks=ranks,
        threads=threads,
        batch_size=batch_size,
        global_batch=global_batch,
        hosts=hosts,
        hostfile=hostfile,
    )
    study = Rounds([one for one in combinations if not one.misfit], rounds)
    template = MeasuredJob(
        ranks=1,
        config=config,
        overrides=tuple(overrides),
        warm_up=warm_up,
        steps=steps,
        alternate=True,  # so that the cost of the exchange shows within one job
        scenes=Path(),
    )
    run(study, template, mpirun=mpirun)
    if study.done:
        from profiling.studies.scale.report import put_out_study  # noqa: PLC0415

        put_out_study(
            study,
            combinations,
            template,
            config=settings,
            global_batch=global_batch,
            json_file=json_file,
            chart=chart,
        )
    if study.ended_by:
        so_far = f"; incomplete: {study.done} of {len(study.order)} jobs" if study.done else ""
        print(f"{study.ended_by}{so_far}", file=sys.stderr)
    return study.code


def require_undecided(overrides: Sequence[str]) -> None:
    """Refuse fields that the study sets itself.

    Raises:
        InputError: Names the first of them.
    """
    for override in overrides:
        field = override.partition("=")[0]
        if field in DECIDED_HERE:
            raise InputError(f"{field}: {DECIDED_HERE[field]}; leave {override} out")


def combine_here(
    settings: Config,
    *,
    ranks: Sequence[int],
    threads: Sequence[int],
    batch_size: int | None,
    global_batch: int | None,
    hosts: str | None,
    hostfile: Path | None,
) -> list[Combination]:
    """Return all combinations, planned on what this process may use of this host.

    Raises:
        InputError: None of them fits.
    """
    allowance = read_allowance()
    combinations = combine(
        ranks,
        threads,
        batch_size=batch_size or settings.training.batch_size,
        global_batch=global_batch,
        place_on_hosts=lambda count: chosen_hosts(hosts, hostfile, ranks=count),
        allowed=read_topology().restricted(allowance.cpus),
        quota=allowance.quota,
        request=core_request(settings),
    )
    if all(one.misfit for one in combinations):
        reasons = "; ".join(line.removeprefix("– ") for line in misfits(combinations))
        raise InputError(f"--ranks, --threads: no combination fits: {reasons}; give smaller ones")
    return combinations


def run(study: Rounds, template: MeasuredJob, *, mpirun: Path | None) -> None:
    """Measure; synthetic data, if the configuration has it, is drawn once for all jobs.

    Raises:
        InputError: There is no mpirun.
    """
    program = choose_mpirun(mpirun)
    with (
        tempfile.TemporaryDirectory(prefix="scaling-study-") as folder,
        background_load() as others,
    ):
        job = replace(template, scenes=Path(folder, "scenes"))
        run_rounds(study, job, mpirun=program, console=make_console())
    if not any(one.hosts for one in study.combinations):
        study.other_cores = others.cores


ABOUT = """\
The scaling study: how many images a second different numbers of ranks and threads train.

Each combination of --ranks and --threads is a job of its own, started by mpirun, with its ranks
pinned as train.py pins them. They train MLPerf's model with weights from random numbers on the
configuration's data, one job after another, in rounds. Every other step exchanges no gradients,
so that the cost of the exchange shows within one job. Combinations for which there are too few
cores are shown as –, with the reason. Use a machine on which nothing else runs.

With --batch-size each rank has as many images in a step, whatever the number of ranks: weak
scaling. With --global-batch all ranks together have as many, as in training with one recipe on
different numbers of ranks. In practice more ranks of fewer threads are often faster so."""

EXAMPLES = """\
examples:
  python -m launch scale --ranks 1,2 --threads 1,2                    # drawn scenes, minutes
  python -m launch scale --ranks 1,2,4,8 --threads 7,14,28,56 --config coco.yaml \\
      data.root=/data/coco --json scaling.json                        # and scaling.png beside it
  python -m launch scale --ranks 1,2 --threads 1,2 --global-batch 2 \\
      data.image_size=800 distributed.compress=bf16                   # the project's targets
  python -m launch scale --ranks 2,4,8 --threads 28 --hosts a,b --config coco.yaml \\
      data.root=/data/coco --chart scaling.png                        # over two hosts"""


def add_scale(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `scale` to the commands of a command line."""
    parser = add_command(commands, "scale", about=ABOUT, examples=EXAMPLES)
    parser.add_argument(
        "--config",
        default="demo.yaml",
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it (default: demo.yaml)",
    )
    add_overrides(parser)
    for name, what in (
        ("--ranks", "numbers of ranks over all hosts"),
        ("--threads", "numbers of compute threads of each rank"),
    ):
        parser.add_argument(
            name, type=numbers, default=(1, 2, 4), metavar="A,B", help=f"{what} (default: 1,2,4)"
        )
    add_workload_options(parser)
    add_where(parser, hosts_help="hosts that share the ranks evenly; all are alike")
    add_json_option(parser, "write everything here too, and the chart beside it")
    parser.add_argument(
        "--chart",
        type=chart_file,
        nargs="?",
        const=Path("scaling.png"),
        metavar="FILE.png",
        help="draw the chart (default: beside --json, or scaling.png where no file is given)",
    )
    parser.set_defaults(run=scale_command)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add how much each job does."""
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="images of each rank in a step (default: training.batch_size)",
    )
    images.add_argument(
        "--global-batch", type=positive, metavar="N", help="images of all ranks in a step"
    )
    for name, default, what in (
        ("--steps", 5, "steps of a job that count; beside each is one without exchange"),
        ("--warm-up", 3, "steps before them"),
        ("--rounds", 2, "jobs of each combination"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=help_text)


def chart_file(text: str) -> Path:
    """Return a path whose name ends in .png."""
    if not text.endswith(".png"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, found {text!r}")
    return Path(text)
