"""`python -m launch groups`: probe compute groups, momenta and learning rates, choose, train."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common.cli import add_command, add_overrides, positive
from common.console import make_console, progress
from common.errors import FINISHED
from common.machine import processor_name
from launch.hosts import add_where
from launch.mpirun import choose_mpirun
from profiling.studies.async_groups.study import (
    Job,
    Probed,
    Results,
    Trained,
    best,
    cold_start,
    for_whole,
    map_curve,
    mean_staleness,
    points_of,
    probe,
    read_results,
    search,
    whole,
    write_results,
)
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_BETA1


def groups_command(
    *,
    ranks: int,
    hosts: str | None,
    hostfile: Path | None,
    mpirun: Path | None,
    config: str,
    overrides: list[str],
    out: Path,
    seconds: int,
    cold_start: int,  # the option's name
    whole: bool,
) -> int:
    """Find which groups and momentum to take, and print them; returns the exit code.

    Raises:
        InputError: A training cannot be started or did not end well, or the folder has other ones.
    """
    settings = load_config(config, overrides)
    choose_mpirun(mpirun)  # refuses at once where there is none
    console = make_console(pipe_width=140)
    where = ["--hosts", hosts] if hosts is not None else []
    where += ["--hostfile", str(hostfile.resolve())] if hostfile is not None else []
    where += ["--mpirun", str(mpirun.resolve())] if mpirun is not None else []
    job = Job(
        ranks=ranks,
        config=config,
        overrides=tuple(overrides),
        learning_rate=settings.training.learning_rate,
        where=tuple(where),
        folder=out.resolve(),
    )
    about = {
        "config": config,
        "overrides": overrides,
        "ranks": ranks,
        "seconds": seconds,
        "cold start": cold_start,
        "processor": processor_name(),
    }
    results = read_results(job.folder, about)
    write_results(job.folder, results)  # from now on the folder belongs to these settings
    run_probes(job, results, seconds=seconds, cold_seconds=cold_start, console=console)
    # Here, because matplotlib is slow to load.
    from profiling.studies.async_groups.report import print_probes, print_trained  # noqa: PLC0415

    title = title_of(job, settings)
    taken = for_whole(best(results.probes))
    command = shlex.join(job.command("python", *taken.overrides(job.learning_rate)))
    print_probes(results.probes, command=command, title=title, folder=job.folder, console=console)
    if whole:
        train_whole(job, results, settings, console=console)
        print_trained(results.trained, title=title, folder=job.folder, console=console)
    return FINISHED


def run_probes(
    job: Job, results: Results, *, seconds: int, cold_seconds: int, console: Console
) -> None:
    """Probe what the search asks for and has not been probed; adds to the results."""
    with progress(console, "cold start, seconds", total=cold_seconds) as advance:
        after_step = cold_start(job, seconds=cold_seconds, advance=advance)
    for setting in search(job.ranks, best_of=lambda some: best(results.probes_of(some))):
        if results.probes_of([setting]):
            continue
        with progress(console, f"probe of {setting.words}, seconds", total=seconds) as advance:
            records = probe(job, setting, seconds=seconds, after_step=after_step, advance=advance)
        probed = Probed(
            setting=setting, points=points_of(records), staleness=mean_staleness(records)
        )
        results.probes.append(probed)
        write_results(job.folder, results)


def train_whole(job: Job, results: Results, settings: Config, *, console: Console) -> None:
    """Train to the target what has not been: one group, tuned groups, and these untuned.

    Each with the learning rate after its best probe's, see `for_whole`; untuned is the momentum.
    """
    plain, tuned = (
        for_whole(best([one for one in results.probes if (one.setting.groups > 1) == is_grouped]))
        for is_grouped in (False, True)
    )
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=DEFAULT_BETA1))):
        if setting in [trained.setting for trained in results.trained]:
            continue
        title, epochs = f"whole training of {setting.words}, epochs", settings.training.epochs
        with progress(console, title, total=epochs) as advance:
            records = whole(job, setting, advance=advance)
        trained = Trained(
            setting=setting,
            curve=map_curve(records),
            steps=sum(record["kind"] == "step" for record in records),
            staleness=mean_staleness(records),
            target=settings.training.target_map,
        )
        results.trained.append(trained)
        write_results(job.folder, results)


def title_of(job: Job, settings: Config) -> str:
    """Return what was trained, on what."""
    size, precision = settings.data.image_size, settings.engine.precision
    what = f"{job.config} on {job.ranks} ranks, {size}×{size}, {precision}"
    return f"{what}; {processor_name()}"


ABOUT = """\
Find how many compute groups (distributed.groups), how much momentum (training.beta1) and which
learning rate train soonest on these ranks.

Groups that do not wait for one another take more steps a second. But their gradients are late: that
acts as momentum, about 1 - 1/g of it with g groups, so that the optimizer's own has to be lowered,
and it needs a smaller learning rate to be stable. How far, and whether it pays at all, depends on
model, data and hosts. As Omnivore does, this command trains synchronously for a while (the cold
start), then from there for some seconds with each of several momenta and learning rates, beginning
with as many groups as there are ranks, and with half as many as long as no momentum at all is the
best. The lowest training loss at equal time is taken.

--whole then trains to the configuration's target: one group, the best groups that were found, these
from the cold start on, and the same with the optimizer's own momentum. Each takes the next larger
learning rate than its best probe's, as a short probe favours small ones. Everything goes to a
folder; the same command goes on there."""

EXAMPLES = """\
examples:
  python -m launch groups --np 2 --out runs/groups --whole                          # drawn scenes
  python -m launch groups --np 16 --hostfile hosts --out runs/groups --seconds 600 \\
      --config openimages.yaml training.warmup_epochs=0.001"""


def add_groups(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `groups` to the commands of a command line."""
    parser = add_command(commands, "groups", about=ABOUT, examples=EXAMPLES)
    parser.add_argument(
        "--np", dest="ranks", type=several, required=True, metavar="N", help="ranks on all hosts"
    )
    add_where(parser, hosts_help="hosts, with ranks of each if not even: A:8,B:4")
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="of all runs, results and chart"
    )
    for name, default, what in (
        ("--seconds", 60, "seconds of steps of each probe"),
        ("--cold-start", 60, "seconds of synchronous steps before"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="S", help=help_text)
    parser.add_argument(
        "--whole", action="store_true", help="also train to the target, with and without"
    )
    parser.set_defaults(run=groups_command)


def several(text: str) -> int:
    """Return a whole number above 1."""
    count = positive(text)
    if count == 1:
        raise argparse.ArgumentTypeError("one rank makes no groups: expected 2 or more")
    return count
