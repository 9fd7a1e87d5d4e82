"""`python -m launch groups`: probe, choose, and train to the target.

TODO-DOC The command line of `python -m launch groups`.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_overrides, positive
from common.console import make_console, progress
from common.errors import FINISHED
from common.files import write_whole
from common.machine import processor_name
from launch.hosts import add_where
from launch.mpirun import choose_mpirun
from profiling.studies.async_groups.report import (
    best,
    choice_words,
    probes_table,
    sooner_words,
    trained_table,
)
from profiling.studies.async_groups.search import (
    Kept,
    Probed,
    Setting,
    Trained,
    for_whole,
    map_curve,
    mean_staleness,
    points_of,
    read_kept,
    search,
    write_kept,
)
from profiling.studies.training_runs import Job, cold_start, probe, whole, words_of
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_BETA1

PROBES_CHART, TRAINED_CHART = "probes.png", "trained.png"


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
    """Answer which groups and momentum to take; returns the exit code.

    Raises:
        InputError: A training cannot be started or did not end well, or the folder has other ones.
    """
    settings = load_config(config, overrides)
    choose_mpirun(mpirun)  # tells at once where there is none
    console = make_console(pipe_width=140)
    job = Job(
        ranks=ranks,
        config=config,
        overrides=tuple(overrides),
        learning_rate=settings.training.learning_rate,
        where=tuple(where_words(hosts, hostfile, mpirun)),
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
    kept = read_kept(job.folder, about)
    write_kept(job.folder, kept)  # from now on the folder is this question's
    kept = probed(job, kept, seconds=seconds, cold_seconds=cold_start, console=console)
    say_probes(job, kept, settings, console=console)
    if whole:
        kept = trained(job, kept, settings, console=console)
        say_trained(job, kept, settings, console=console)
    return FINISHED


def where_words(hosts: str | None, hostfile: Path | None, mpirun: Path | None) -> list[str]:
    """The options of `python -m launch run` that this command was given."""
    words = ["--hosts", hosts] if hosts is not None else []
    words += ["--hostfile", str(hostfile.resolve())] if hostfile is not None else []
    return words + (["--mpirun", str(mpirun.resolve())] if mpirun is not None else [])


def probed(job: Job, kept: Kept, *, seconds: int, cold_seconds: int, console: Console) -> Kept:
    """Probe what the search asks for and has not been probed."""
    with progress(console, "cold start, seconds", total=cold_seconds) as advance:
        after_step = cold_start(job, seconds=cold_seconds, advance=advance)
    for setting in search(job.ranks, best_of=lambda some: best(of_settings(kept, some))):
        if of_settings(kept, [setting]):
            continue
        with progress(console, f"probe of {setting.words}, seconds", total=seconds) as advance:
            records = probe(
                job,
                setting,
                seconds=seconds,
                after_step=after_step,
                advance=advance,
            )
        found = Probed(
            setting=setting, points=points_of(records), staleness=mean_staleness(records)
        )
        kept.probes.append(found)
        write_kept(job.folder, kept)
    return kept


def of_settings(kept: Kept, settings: Sequence[Setting]) -> list[Probed]:
    """The probes of some settings, as far as there are any."""
    return [one for one in kept.probes if one.setting in settings]


def say_probes(job: Job, kept: Kept, settings: Config, *, console: Console) -> None:
    """Print the probes and the choice, and draw them."""
    from profiling.studies.async_groups.report import loss_chart  # noqa: PLC0415

    chosen = best(kept.probes)
    chart = loss_chart(kept.probes, chosen, title=title_of(job, settings))
    write_whole(job.folder / PROBES_CHART, chart)
    console.print(probes_table(kept.probes))
    console.print(choice_words(kept.probes), soft_wrap=True)
    taken = for_whole(chosen)
    larger = f", with learning rate × {taken.rate:g}, as a short probe favours small ones"
    note = larger if taken != chosen else ""
    console.print(f"command{note}: {command_of(job, taken)}", soft_wrap=True, markup=False)
    console.print(f"chart: {job.folder / PROBES_CHART}", soft_wrap=True)


def say_trained(job: Job, kept: Kept, settings: Config, *, console: Console) -> None:
    """Print the whole trainings, and draw them."""
    from profiling.studies.async_groups.report import map_chart  # noqa: PLC0415

    chart = map_chart(kept.trained, title=title_of(job, settings))
    write_whole(job.folder / TRAINED_CHART, chart)
    console.print(trained_table(kept.trained))
    for line in sooner_words(kept.trained):
        console.print(line, soft_wrap=True)
    console.print(f"chart: {job.folder / TRAINED_CHART}", soft_wrap=True)


def title_of(job: Job, settings: Config) -> str:
    """What was trained, on what."""
    size, precision = settings.data.image_size, settings.engine.precision
    what = f"{job.config} on {job.ranks} ranks, {size}×{size}, {precision}"
    return f"{what}; {processor_name()}"


def command_of(job: Job, setting: Setting) -> str:
    """What trains with this setting."""
    words = ["python", "-m", "launch", "run", "--np", str(job.ranks), *job.where, "--", "train.py"]
    words += ["--config", job.config, *job.overrides, *words_of(setting, job.learning_rate)]
    return shlex.join(words)


def trained(job: Job, kept: Kept, settings: Config, *, console: Console) -> Kept:
    """Train to the target what has not been: one group, tuned groups, and these untuned.

    Each with the learning rate after its best probe's, see `for_whole`; untuned is the momentum.
    """
    plain, tuned = (
        for_whole(best([one for one in kept.probes if (one.setting.groups > 1) == is_grouped]))
        for is_grouped in (False, True)
    )
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=DEFAULT_BETA1))):
        if setting in [one.setting for one in kept.trained]:
            continue
        title, epochs = f"whole training of {setting.words}, epochs", settings.training.epochs
        with progress(console, title, total=epochs) as advance:
            records = whole(job, setting, advance=advance)
        found = Trained(
            setting=setting,
            curve=map_curve(records),
            steps=sum(one["kind"] == "step" for one in records),
            staleness=mean_staleness(records),
            target=settings.training.target_map,
        )
        kept.trained.append(found)
        write_kept(job.folder, kept)
    return kept


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
    parser = commands.add_parser(
        "groups",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    parser.set_defaults(run=run)


def several(text: str) -> int:
    """A whole number above 1."""
    found = positive(text)
    if found == 1:
        raise argparse.ArgumentTypeError("one rank makes no groups: expected 2 or more")
    return found


def run(**chosen: Any) -> int:
    """`groups_command`, loaded where it runs."""
    return groups_command(**chosen)
