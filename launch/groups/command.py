"""`python -m launch groups`: probe, choose, and train to the target."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.groups.kept import Kept, Probed, Trained, read_kept, write_kept
from launch.groups.loss_curve import map_curve, mean_staleness, points_of
from launch.groups.report import (
    best,
    choice_words,
    probes_table,
    sooner_words,
    trained_table,
)
from launch.groups.search import Setting, for_whole, search
from launch.groups.training import (
    Job,
    cold_start,
    probe,
    whole,
    words_of,
)
from launch.start.mpirun import choose_mpirun
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.exit_codes import FINISHED
from retinanet.momentum import BETA1
from retinanet.output_files import write_whole
from retinanet.processor import processor_name
from retinanet.progress import progress
from retinanet.terminal import make_console

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
    from launch.groups.chart import loss_chart  # noqa: PLC0415 - matplotlib: 1 s

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
    from launch.groups.chart import map_chart  # noqa: PLC0415 - matplotlib: 1 s

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
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=BETA1))):
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
