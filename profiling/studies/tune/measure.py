"""Measure this host and its network for the planner, part after part, in minutes.

A measurement has training steps by ranks, threads and local batch, evaluation, COCO's metric, the
optimizer's step and peak rates. Each part is stored as soon as it is measured, so that an
interrupted measurement can continue. The data set is MLPerf's part of OpenImages, or that of any
configuration; without a data set, steps are measured on synthetic data. The network between named
hosts is measured by exchanges of gradients between a rank on each, by the trainer's own way.
"""

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from common.errors import InputError
from common.machine import anonymous_bytes, environment
from common.program import command_words
from data.rare_classes import places_per_epoch
from launch.hosts import expand_hosts, hosts_with_ranks, read_hostfile
from launch.limits import free_memory, read_allowance
from launch.mpirun import Mpirun
from launch.placement import fitting_shapes
from launch.topology import count_cores, list_sockets_of_ranks, read_topology
from profiling.ablate.result import PINNED
from profiling.bench.job import (
    JobFailedError,
    MeasuredJob,
    doubling,
    measure_exchanges,
    wire_bytes,
)
from profiling.bench.results import RECIPES, background_load
from profiling.bench.single import FOUND, measured_metric
from profiling.bench.variant import Variant, Workload
from profiling.bench.worker_pool import runs_alone
from profiling.peaks import measure_peaks
from profiling.studies.rounds import Rounds, Shape, run_rounds
from profiling.studies.tune.measurements import (
    Added,
    BetweenHosts,
    HostPeaks,
    Measurements,
    PartialMeasurement,
)
from profiling.studies.tune.model import StepTime
from retinanet.config import Config
from retinanet.config_file import load_config, side_of_square
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES
from retinanet.placement import core_request

STEPS = 2  # Steps of a job that count; beside each is one without exchange
WARM_UP = 2
ROUNDS = 2
EVALUATION_IMAGES = 2
RUNS, WARM_UP_RUNS = 3, 2  # Runs of evaluation and optimizer
METRIC_SHARE = 10  # The metric of all images takes ten times as long as that of a tenth
NETWORK_SIZES = (2**12, 2**16, 2**20, 2**23, 2**25)
"""Exchanges that are measured between hosts, up to about a bucket of gradients. [bytes]"""
OPENIMAGES = "openimages"  # The data whose epochs are those of MLPerf's reference points
CLASSES = 264  # Classes of MLPerf's part of OpenImages v6
SCENES = 96
"""Synthetic images for the measured jobs, where there is no data set or it is synthetic itself."""
MOST_PAIRS = 4  # Ways to divide the host that are measured
BATCH_SIZES = (1, 2, 4)
"""Images of a rank, measured and planned beside the configuration's own number: more gain little,
and make global batches large."""
PLANNED = ("rounds", "jobs")  # Of the question, which `Measurements` do not have
MEMORY_SHARE = 0.9  # Share of the free memory that ranks may be estimated to take


@dataclass(frozen=True)
class TrainedData:
    """A data set as `--data` names it, the configuration that trains on it, and its images.

    Fields are those of `Measurements`.
    """

    data: str
    config: str
    images: int
    evaluated_images: int
    classes: int


def trained_data(name: str, overrides: Sequence[str], *, console: Console) -> TrainedData:
    """Return the data of `openimages`, or of a configuration: a path, or a name in `configs/`.

    The console shows the progress of making an index, which annotations need once.

    Raises:
        InputError: The configuration is wrong, or its data is not there.
    """
    if name == OPENIMAGES:
        return TrainedData(name, "openimages.yaml", TRAINING_IMAGES, VALIDATION_IMAGES, CLASSES)
    from retinanet.training.data import open_run_data  # noqa: PLC0415

    config = load_config(name, overrides)
    parts = config.training.gradient_accumulation
    if parts > 1:
        raise InputError(
            f"training.gradient_accumulation={parts}: the planner chooses the global batch; set "
            "training.gradient_accumulation=1"
        )
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        data = open_run_data(config, scenes_folder=Path(folder, "scenes"), console=console)
        classes, images = data.classes.num_classes, places_per_epoch(data.train.images)
        return TrainedData(name, name, images, len(data.validation), classes)


def facts(config: Config) -> dict[str, Any]:
    """Return the settings that are fields of `Measurements`."""
    return {
        "batch_size": config.training.batch_size,
        "every": config.evaluation.every,
        "image_size": side_of_square(config.data, who="the planner"),
        "precision": config.engine.precision,
        "compress": config.distributed.compress,
        "comm_cores": config.launch.comm_cores,
    }


def what_to_measure(data: TrainedData, *, overrides: Sequence[str]) -> PartialMeasurement:
    """Return the empty measurement of this host, within the cores and memory of this process.

    Raises:
        InputError: A setting is wrong, or there is not enough memory.
    """
    from retinanet.engine.engines import chosen_engine  # noqa: PLC0415
    from retinanet.memory import memory_need, model_bytes  # noqa: PLC0415

    config, classes = load_config(data.config, overrides), data.classes
    allowance, free = read_allowance(), free_memory()
    sockets = list_sockets_of_ranks(read_topology().restricted(allowance.cpus))
    pairs = fitting_shapes(sockets, quota=allowance.quota, request=core_request(config))
    sizes = model_bytes(config.model, config.training, num_classes=classes)
    engine = chosen_engine(config.engine.name)

    def fits(shape: Shape) -> bool:
        """Return whether a shape's ranks find the memory that they are estimated to take."""
        trained = replace(config, training=replace(config.training, batch_size=shape.batch_size))
        need = memory_need(
            trained, sizes, num_classes=classes, engine=engine, ranks_on_host=shape.ranks
        )
        # The checkpoint is in memory once: rank 0 copies and writes it.
        wanted = shape.ranks * (need.all + anonymous_bytes()) + sizes.checkpoint
        return free is None or wanted <= MEMORY_SHARE * free.size

    configured = config.training.batch_size
    shapes = tuple(filter(fits, with_batches(pairs, configured=configured)))
    if not shapes:
        raise InputError(
            "memory: too little for one image per rank; give a smaller data.image_size"
        )
    chosen = measured_pairs(pairs, most=MOST_PAIRS)
    # Gradients are float32, or half as large when sent in BF16.
    gradient_bytes = sizes.trained * wire_bytes(config.distributed.compress) // wire_bytes("none")
    return PartialMeasurement(
        command=shlex.join((*command_words("launch"), "tune", "--data", data.data, *overrides)),
        environment=environment(),
        data=data.data,
        overrides=tuple(overrides),
        question={
            **asdict(data),
            **facts(config),
            "cores": count_cores(sockets),
            "sockets": len(sockets),
            "overrides": list(overrides),
            "gradient_bytes": gradient_bytes,
            "rounds": ROUNDS,
            # Without a data set, jobs measure on synthetic data.
            "jobs": [*overrides, *synthetic_data(config, classes=classes)],
        },
        measured=tuple(filter(fits, with_batches(chosen, configured=configured))),
        shapes=shapes,
    )


def synthetic_data(config: Config, *, classes: int) -> tuple[str, ...]:
    """Return overrides for few synthetic images, if the data is synthetic or there is no data set.

    In place of a data set they have as many classes.
    """
    data = config.data
    count = SCENES if data.scenes is None else min(SCENES, data.scenes.train)
    # One validation image, as the jobs evaluate nothing.
    few_scenes = f"data.scenes={{train: {count}, validation: 1}}"
    if data.scenes is not None:
        return (few_scenes,)
    if data.train_annotations is not None or (data.root is not None and data.root.exists()):
        return ()
    alike = (f"model.num_classes={classes}", "data.class_indices=category_id")
    return ("data.root=null", few_scenes, *alike)


def measured_pairs(shapes: Sequence[tuple[int, int]], *, most: int) -> list[tuple[int, int]]:
    """Return ranks and threads to measure: a limited number, and the one with most ranks.

    Also single ranks with these numbers of threads, to separate the effect of threads from that of
    ranks that share memory bandwidth.
    """
    # Rounded up, so that at most `most` pairs are taken, and the last one.
    chosen = {*shapes[:: max(1, -(-len(shapes) // most))], shapes[-1]}
    return sorted(chosen | {(1, threads) for _, threads in chosen})


def with_batches(pairs: Sequence[tuple[int, int]], *, configured: int) -> list[Shape]:
    """Return every pair of ranks and threads with each of `BATCH_SIZES` and `configured` images."""
    return [
        Shape(ranks=ranks, threads=threads, batch_size=batch_size)
        for ranks, threads in pairs
        for batch_size in sorted({*BATCH_SIZES, configured})
    ]


def measure_host(
    begun: PartialMeasurement,
    *,
    keep: Callable[[PartialMeasurement], None],
    mpirun: Mpirun,
    console: Console,
) -> Measurements:
    """Measure what `begun` lacks: that of `what_to_measure`, or of an earlier command.

    `keep` is called after every job, and after every other part.

    Raises:
        JobFailedError: Ranks failed; they have printed the reason.
        WorkerDiedError: The evaluation could not.
        KeyboardInterrupt: Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="tune-") as folder, background_load() as others:
        template = MeasuredJob(
            ranks=1,
            config=begun.question["config"],
            overrides=tuple(begun.question["jobs"]),
            warm_up=WARM_UP,
            steps=STEPS,
            alternate=True,
            scenes=Path(folder, "scenes"),
            own_model=True,
        )
        jobs = {of_shape.shape: of_shape.jobs for of_shape in begun.jobs}
        study = Rounds(begun.measured, ROUNDS, title="planner, steps", jobs=jobs)
        run_rounds(
            study,
            template,
            mpirun=mpirun,
            console=console,
            keep=lambda: keep(replace(begun, jobs=study.measured)),
        )
        result = replace(begun, jobs=study.measured)
        parts: tuple[tuple[str, str, Callable[[PartialMeasurement], Any]], ...] = (
            ("evaluation …", "evaluation_seconds", evaluation_seconds),
            ("COCO's metric …", "metric_seconds", metric_seconds),
            ("optimizer step …", "update_seconds", update_seconds),
            ("peak rates …", "peaks", host_peaks),
        )
        for title, field, measure in parts:
            if getattr(result, field) is None:
                console.print(title)
                result = replace(result, **{field: measure(begun)})
                keep(result)
    return finished(result, busy_cores=others.cores)


def finished(result: PartialMeasurement, *, busy_cores: float) -> Measurements:
    """Return the planner's measurements from a complete measurement."""
    names = (
        *("command", "environment", "shapes"),
        *("evaluation_seconds", "metric_seconds", "update_seconds", "peaks"),
    )
    known = {name: value for name, value in result.question.items() if name not in PLANNED}
    measured = result.jobs
    ranks = [rank for of_shape in measured for job in of_shape.jobs for rank in job]
    return Measurements(
        **known,
        **{name: getattr(result, name) for name in names},
        steps=tuple(
            StepTime(shape=of_shape.shape, seconds=of_shape.seconds_without_exchange)
            for of_shape in measured
        ),
        # As a share of the step without exchange.
        added=tuple(
            Added(ranks=shape.ranks, batch_size=shape.batch_size, share=share / (1 - share))
            for shape, share in ((each.shape, each.added_share) for each in measured)
            if share is not None
        ),
        # Of a step that is neither forward pass, loss nor waiting for data.
        backward_share=median(
            1 - (forward + data) / whole
            for rank in ranks
            for forward, data, whole in zip(
                rank.forward_seconds, rank.data_seconds, rank.seconds, strict=True
            )
        ),
        data_share=max(of_shape.data_share for of_shape in measured),
        busy_cores=busy_cores,
    )


def metric_seconds(begun: PartialMeasurement) -> float:
    """Estimate the time of COCO's metric on the validation split from a tenth of it. [s]"""
    images = begun.question["evaluated_images"]
    tenth = max(1, images // METRIC_SHARE)
    seconds = measured_metric("faster-coco-eval", images=tenth, found=FOUND).seconds
    return seconds * images / tenth


def evaluation_seconds(begun: PartialMeasurement) -> float:
    """Measure the evaluation of an image, by one thread."""
    config = load_config(begun.question["config"], begun.overrides)
    evaluation = Variant(
        name="evaluation",
        about="from images to boxes, as in a training",
        recipe=f"{RECIPES}.evaluation",
        options={"whose": "ours", "norm": config.model.norm, "precision": config.engine.precision},
        environment=PINNED,
    )
    seconds = median_seconds(evaluation, begun, images=EVALUATION_IMAGES)
    # All cores were used, and evaluation scales with them.
    return seconds * begun.question["cores"] / EVALUATION_IMAGES


def update_seconds(begun: PartialMeasurement) -> float:
    """Measure the optimizer's step over all weights, by one thread."""
    config = load_config(begun.question["config"], begun.overrides)
    step = Variant(
        name="optimizer",
        about="optimizer step of compute groups",
        recipe=f"{RECIPES}.optimizer_step",
        options={"name": config.training.optimizer, "fused": True},
        environment=PINNED | {"OMP_NUM_THREADS": "1"},
    )
    return median_seconds(step, begun, images=1)


def host_peaks(begun: PartialMeasurement) -> HostPeaks:
    """Measure the peak rate of a core and the memory bandwidth, with one thread on each core.

    Raises:
        InputError: Other work disturbed the measurement.
    """
    peaks = measure_peaks(threads=None)
    rates = peaks.matrix_gflop_per_s
    # A processor that only emulates BF16 has no peak for it, and computes in float32.
    wanted = "bf16" if begun.question["precision"] == "bf16" and "bf16" in rates else "f32"
    if wanted not in rates:
        reason = peaks.left_out.get(wanted, "not measured")
        raise InputError(
            f"peak rates: {wanted}: {reason}, while other processes kept {peaks.other_cores:.2f} "
            "cores busy; stop them, and repeat the command"
        )
    rate = rates[wanted] / peaks.threads
    return HostPeaks(core_gflops=rate, memory_gb_per_s=peaks.bandwidth_gb_per_s)


def median_seconds(variant: Variant, begun: PartialMeasurement, *, images: int) -> float:
    """Return the median of some runs, the first of which do not count."""
    size, classes = begun.question["image_size"], begun.question["classes"]
    workload = Workload(images=images, image_size=size, classes=classes)
    runs = runs_alone(variant, workload, count=WARM_UP_RUNS + RUNS)
    return median(run.seconds for run in runs[WARM_UP_RUNS:])


def named_hosts(text: str | None, hostfile: Path | None) -> tuple[str, ...]:
    """Return the hosts that the command line names, as for `launch run`; none: no network.

    Raises:
        InputError: The list or the file is none, or names fewer than two hosts.
    """
    if hostfile is not None:
        hosts = tuple(host.name for host in read_hostfile(hostfile))
    elif text is not None and ":" in text:
        hosts = tuple(name for name, _ in hosts_with_ranks(text, ranks=None))
    else:
        hosts = expand_hosts(text) if text is not None else ()
    if len(hosts) == 1:
        option = f"--hostfile {hostfile}" if hostfile else f"--measure-hosts {text}"
        raise InputError(f"{option}: a network needs at least two hosts; add another one")
    return hosts


def measure_between(hosts: tuple[str, ...], *, config: Config, mpirun: Mpirun) -> BetweenHosts:
    """Time exchanges between a rank on each of the first two, four and so on, and of all.

    Raises:
        InputError: Ranks could not be started on all of them, or share a host.
    """
    results = []
    for count in doubling(len(hosts))[1:]:
        names = ",".join(hosts[:count])
        on_hosts = tuple((host, 1) for host in hosts[:count])
        try:
            result = measure_exchanges(
                sizes=NETWORK_SIZES, ranks=count, config=config, mpirun=mpirun, hosts=on_hosts
            )
        except JobFailedError as error:
            raise InputError(
                f"{names}: the measurement failed ({error}); check the hosts with "
                f"retinanet launch run --np {count} --hosts {names} -- hostname"
            ) from error
        if result.hosts < count:
            raise InputError(
                f"{names}: are only {result.hosts} different hosts; give different hosts"
            )
        results.append(result)
    times = tuple(chain.from_iterable(result.times for result in results))
    return BetweenHosts(hosts=hosts, exchanges=times, over=results[-1].over)
