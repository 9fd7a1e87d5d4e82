"""`python -m profiling layers`: time the layers of a network, print, write."""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from launch.host.allowance import read_allowance
from profiling.bench.environment import environment
from profiling.bench.other_load import other_load
from profiling.bench.worker_process import WorkerDiedError
from profiling.huge_pages import huge_pages_remark
from profiling.layers.gpu import require_gpu
from profiling.layers.measured import Measured
from profiling.layers.output import as_json, layers_csv, output_files
from profiling.layers.report import print_study
from profiling.layers.study import run_study
from profiling.layers.subject import (
    CLASSIFIER_SIZE,
    DEFAULT_BATCH,
    DEFAULT_SIZE,
    Configuration,
    Subject,
)
from profiling.memory_choice import memory_remark, parse_memory
from profiling.peaks.cores import choose_cores
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED, OUR_BUG
from retinanet.output_files import require_free_json, require_free_outputs, write_whole
from retinanet.terminal import make_console

SWITCH = {"off": (False,), "on": (True,), "both": (False, True)}
SLOW_BF16 = (
    "without oneDNN, BF16 is multiplied number by number; the 2017 study's engines both computed "
    "in float32: --precision float32"
)


def layers_command(
    model: str,
    *,
    batch: int | None,
    image_size: int | None,
    precision: str,
    iterations: int,
    warm_up: int,
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    device: str,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Run the study, print it, write it; returns the exit code.

    Raises:
        InputError: Something asked for is not known or not here, or a file exists.
    """
    require_outputs(out, overwrite=overwrite, json_file=json_file)
    subject = subject_of(model, batch, image_size, precision=precision, device=device)
    configurations = combine(
        onednn=onednn, threads=threads, memory=memory, huge_pages=huge_pages, device=device
    )
    remarks = remarks_on(subject, configurations)
    with other_load() as others:
        try:
            measured = study(subject, configurations, remarks, counts=(iterations, warm_up))
        except WorkerDiedError as error:
            print(f"error: {error}", file=sys.stderr)
            return OUR_BUG
    print_study(make_console(), subject, measured, remarks=remarks, other_cores=others.cores)
    if json_file is not None:
        text = as_json(subject, measured, remarks=remarks, other_cores=others.cores)
        write_whole(json_file, text + "\n")
    if out is not None:
        write_files(subject, measured, out)
    return FINISHED


def study(
    subject: Subject,
    configurations: Sequence[Configuration],
    remarks: Sequence[str],
    *,
    counts: tuple[int, int],
) -> list[Measured]:
    """Tell what will have no effect, and run; `counts` are iterations that count, and warm-up."""
    console = make_console(stderr=True)
    for remark in remarks:
        console.print(remark, soft_wrap=True, markup=False)
    iterations, warm_up = counts
    return run_study(
        subject, configurations, iterations=iterations, warm_up=warm_up, console=console
    )


def require_outputs(out: Path | None, *, overwrite: bool, json_file: Path | None) -> None:
    """Refuse to replace files, before the work that fills them.

    Raises:
        InputError: Names the first.
    """
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(output_files(out), overwrite=overwrite)


def subject_of(
    model: str, batch: int | None, image_size: int | None, *, precision: str, device: str
) -> Subject:
    """The network, with its usual batch where none is asked for.

    Raises:
        InputError: The network is not known.
    """
    if model not in DEFAULT_BATCH:
        names = ", ".join(DEFAULT_BATCH)
        raise InputError(f"MODEL: {model!r} is not known; choose from {names}")
    return Subject(
        model=model,
        batch=batch or DEFAULT_BATCH[model],
        image_size=image_size or DEFAULT_SIZE.get(model, CLASSIFIER_SIZE),
        precision=precision,
        device=device,
    )


def combine(
    *,
    onednn: str | None,
    threads: tuple[int, ...] | None,
    memory: list[str] | None,
    huge_pages: str,
    device: str,
) -> list[Configuration]:
    """All combinations of what is to be compared.

    Raises:
        InputError: There is no GPU or too few cores, a memory policy is not known, or a
            processor's choice was made for a GPU.
    """
    if device == "cuda" and onednn is not None:
        raise InputError("--onednn: is the processor's; leave it out with --device cuda")
    if device == "cuda":
        require_gpu()
    nodes = read_allowance().memory_nodes
    for text in memory or ():
        parse_memory(text, allowed=nodes)
    counts = threads or (choose_cores(threads=None).threads,)
    for count in counts:
        choose_cores(threads=count)
    return [
        Configuration(onednn=engine, threads=count, memory=policy, huge_pages=pages)
        for count, policy, pages, engine in product(
            counts, memory or (None,), SWITCH[huge_pages], SWITCH[onednn or "on"]
        )
    ]


def remarks_on(subject: Subject, configurations: Sequence[Configuration]) -> list[str]:
    """Sentences about choices that have no effect here, or not the one that is expected."""
    nodes = read_allowance().memory_nodes
    policies = dict.fromkeys(one.memory for one in configurations if one.memory)
    found = [memory_remark(text, allowed=nodes) for text in policies]
    if any(one.huge_pages for one in configurations):
        found.append(huge_pages_remark())
    if subject.precision == "bf16" and any(not one.onednn for one in configurations):
        found.append(SLOW_BF16)
    return [f"note: {line}" for line in found if line]


def write_files(subject: Subject, measured: Sequence[Measured], folder: Path) -> None:
    """The table and the chart, and say where they are.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from profiling.layers.chart import draw_layers  # noqa: PLC0415
    from profiling.pictures import write_picture  # noqa: PLC0415

    write_whole(folder / "layers.csv", layers_csv(measured))
    device = measured[0].facts["device"]
    name = environment()["cpu"] if device == "cpu" else device
    write_picture(draw_layers(measured, title=f"{subject}; {name}"), folder / "layers")
    make_console().print(f"table and chart: {folder}", soft_wrap=True)
