"""Forecast a training on hosts that cannot be measured, from a description of them.

A description gives cores, memory bandwidth, peak rate and network, and the parts of a step that
were measured elsewhere. Each part scales by what bounds it:

- computing: with the number of cores and, where it is arithmetic, with their peak rate;
- moving bytes: with the memory bandwidth of a rank (roofline, Williams et al. 2009);
- the serial part: not at all (Amdahl's law);
- the exchange: as `Exchange` describes it; its bytes are moved too.

One measurement does not show how far a step computes while it waits for memory. Both limits are
forecast: full overlap, where the longer of the two counts, and none, where their sum does.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common.errors import InputError
from common.files import or_unreadable, read_text
from common.numbers import require_moderate
from common.program import FOLDER
from common.stored import first_fault
from common.yaml_text import read_yaml
from profiling.bench.job import wire_bytes
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import EpochsModel, Estimate, Exchange, Network, StepTime
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES

SEARCHED = 16.0  # A value that would explain a published time is sought up to so many times away
UNKNOWNS = 4  # Numbers into which the steps of a plan are split

STRICT = ConfigDict(extra="forbid")
LEAST, LARGEST = 1e-9, 1e9
"""Of the numbers in a description: far from any machine, and all products of them are finite."""
# Strict: `true` is no number.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Megabytes = Annotated[float, Field(ge=0.001, le=10_000, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(gt=0, le=10**6, strict=True)]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Part:
    """A part of a measured step."""

    name: Text
    seconds: NotNegative  # Of a whole step with the program's `images` and `threads`
    scales: Literal["rate", "cores", "nothing"]
    """rate: arithmetic, with cores and their peak rate; cores: with cores; nothing: serial."""
    per: Literal["image", "step"] = "image"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Program:
    """A program whose step was measured on a machine that can be."""

    name: Text
    source: Text  # What measured each number
    images: Count
    threads: Count
    core_gflops: Positive  # Peak rate of a core of that machine
    memory_gb_per_s: Positive  # Memory bandwidth that `threads` threads reach there
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    gigabytes_per_image: NotNegative  # Bytes that operators read and write
    gigabytes_per_step: NotNegative
    gradient_megabytes: Megabytes  # As they are sent between hosts
    forward_share: Annotated[float, Field(gt=0, lt=1)]
    """The evaluation of an image as a share of its training; the rest is the backward pass."""
    metric_seconds: NotNegative  # COCO's metric of the validation split, by one thread
    compress: Literal["bf16", "none"] = "bf16"
    """As `distributed.compress`; none: gradients are sent in float32."""

    def seconds(self, *scales: str, batch_size: int) -> float:
        """Return the measured time of the parts that scale so, of a step of `batch_size` images."""
        images = batch_size / self.images
        return sum(
            part.seconds * (images if part.per == "image" else 1)
            for part in self.parts
            if part.scales in scales
        )

    def gigabytes(self, batch_size: int) -> float:
        """Return the bytes that a step moves. [10⁹]"""
        return self.gigabytes_per_image * batch_size + self.gigabytes_per_step

    def with_serial(self, factor: float) -> "Program":
        """Return the program with its serial parts multiplied."""
        return replace(
            self,
            parts=tuple(
                replace(part, seconds=factor * part.seconds) if part.scales == "nothing" else part
                for part in self.parts
            ),
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Published:
    """What is published of a training on these hosts, to compare with."""

    source: Text
    program: Text  # Of whom these are the times: a name in `programs`
    hosts: Count  # Of that training, as all that follows
    ranks: Count  # Of a host
    batch_size: Count  # Images of a rank
    epoch_seconds: Positive
    evaluation_seconds: Positive | None = None
    minutes_to_target: Positive | None = None
    remarks: tuple[Text, ...] = ()  # What the forecast leaves out


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cluster:
    """Equal hosts, and the ranks on them."""

    name: Text
    hosts: Count
    sockets: Count  # Of a host, as all that follows until `network_gbit_per_s`
    cores: Count
    memory_gb_per_s: Positive  # What large copies reach, not the product of channels and clock
    network_gbit_per_s: Positive  # All cards together, in one direction
    latency_us: NotNegative  # Of a message between hosts
    core_gflops: Positive  # Peak rate of a core, in the step's precision
    ranks: Count  # Of a host
    threads: Count  # Of a rank, that compute; a core beyond them exchanges gradients
    batch_size: Count  # Images of a rank
    core_memory_gb_per_s: Positive | None = None
    """What one thread reads and writes; None: a core's share where a step was measured."""
    assumptions: tuple[Text, ...] = ()  # What the numbers above are taken from
    programs: tuple[Program, ...] = ()
    published: Published | None = None

    @property
    def all_ranks(self) -> int:
        """Ranks over all hosts."""
        return self.hosts * self.ranks

    @property
    def global_batch(self) -> int:
        """Images of a step over all ranks."""
        return self.all_ranks * self.batch_size

    @property
    def steps(self) -> int:
        """Steps of an epoch on OpenImages; an incomplete last batch is dropped."""
        return TRAINING_IMAGES // self.global_batch

    @property
    def memory_of_rank(self) -> float:
        """The memory bandwidth of a rank, which no rank spans two sockets for. [10⁹ bytes/s]"""
        return self.memory_gb_per_s / max(self.ranks, self.sockets)

    @property
    def comparable(self) -> Published | None:
        """What is published, if it is of as many hosts, ranks and images as the forecast."""
        published = self.published
        own = (self.hosts, self.ranks, self.batch_size)
        if published is None or (published.hosts, published.ranks, published.batch_size) != own:
            return None
        return published

    @property
    def network(self) -> Network:
        """The network between hosts."""
        return Network(
            latency=1e-6 * self.latency_us,
            bandwidth=1e9 * self.network_gbit_per_s / 8,
            source=self.name,
        )


SCHEMA = TypeAdapter(Cluster)
EXAMPLE = FOLDER / "launch" / "recipes" / "16-hosts.yaml"


def read_cluster(file: Path) -> Cluster:
    """Read the description of a cluster.

    Raises:
        InputError: The file cannot be read, or a value is missing, unknown or impossible; names
            file and field.
    """
    try:
        with or_unreadable(file, advice=f"see {EXAMPLE}"):
            text = read_text(file)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: cannot be read: {error}; see {EXAMPLE}") from error
    tree = read_yaml(text, str(file))
    if not isinstance(tree, dict):
        raise InputError(f"{file}: expected fields such as `hosts: 16`; see {EXAMPLE}")
    require_moderate(tree, str(file), least=LEAST, largest=LARGEST, advice=f"; see {EXAMPLE}")
    try:
        cluster = SCHEMA.validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        fault = first_fault(error)
        problem = {
            "unexpected_keyword_argument": "no such field",
            "missing": "is missing",
            "missing_argument": "is missing",
        }.get(fault.kind, fault.after_name)
        raise InputError(f"{file}: {fault.field}: {problem}; see {EXAMPLE}") from error
    for is_there, problem in problems(cluster):
        if is_there:
            raise InputError(f"{file}: {problem}")
    require_names(cluster.programs, file)
    return cluster


def problems(cluster: Cluster) -> Iterator[tuple[bool, str]]:
    """Yield what cannot be, by fields that are each possible, and whether it is so."""
    ranks, sockets, fewest = cluster.all_ranks, cluster.sockets, cluster.cores // cluster.ranks
    images = f"the {TRAINING_IMAGES:,}"
    yield (
        cluster.threads > fewest,
        f"threads: {cluster.ranks} ranks of {cluster.threads} threads are more than "
        f"{cluster.cores} cores; give at most {fewest}",
    )
    yield (
        cluster.ranks > sockets and cluster.ranks % sockets > 0,
        f"ranks: {cluster.ranks} ranks do not share {sockets} sockets evenly; give a multiple of "
        f"{sockets}",
    )
    yield (
        ranks > TRAINING_IMAGES,
        f"hosts: {ranks:,} ranks are more than {images} images of OpenImages; give fewer hosts",
    )
    yield (
        cluster.steps == 0,
        f"batch_size: {ranks} ranks of {cluster.batch_size:,} images are more than {images} of "
        f"OpenImages; give at most {TRAINING_IMAGES // ranks:,}",
    )
    if published := cluster.published:
        names = [program.name for program in cluster.programs]
        choice = " or ".join(names) or "a name, and add the program"
        yield (
            published.program not in names,
            f"published.program: no program is named {published.program}; choose {choice}",
        )


def require_names(programs: Sequence[Program], file: Path) -> None:
    """Refuse programs of the same name, of which published times could not be told apart.

    Raises:
        InputError: Names the file and the program.
    """
    names = [program.name for program in programs]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{file}: programs: two are named {name}; give each a name of its own")


def measured_program(measured: Measurements, file: Path) -> Program:
    """Return this program's step from the measurements of a plan.

    The steps of one rank are split into `serial + moved · images + (fixed + per_image · images) /
    threads`: what grows with the images and not with fewer threads is taken for moving bytes, at
    the bandwidth of all cores.

    Raises:
        InputError: The plan has no peak rates, or too few steps to split.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # noqa: PLC0415

    if measured.peaks is None:
        raise InputError(
            f"{file}: was measured by an older version, without peak rates; measure again with "
            "another --plan"
        )
    times = [time for time in measured.steps if time.shape.ranks == 1]
    if not can_be_split(times):
        raise InputError(
            f"{file}: has no steps of one rank with several numbers of threads and of images, from "
            "which the serial part follows; measure a host of several cores"
        )
    rows = np.array(
        [
            (1.0, images, 1 / count, images / count)
            for time in times
            for images, count in [(time.shape.batch_size, time.shape.threads)]
        ]
    )
    seconds = np.array([time.seconds for time in times])
    # Divided by the times: relative errors.
    (serial, moved, fixed, per_image), _ = nnls(rows / seconds[:, None], np.ones(len(times)))
    most = max(time.shape.threads for time in times)
    images = max(time.shape.batch_size for time in times)
    bandwidth = measured.peaks.memory_gb_per_s
    of_image = moved + per_image / most
    return Program(
        name=f"this program on {measured.environment['cpu']}",
        source=f"{file}: {measured.command}",
        images=images,
        threads=most,
        core_gflops=measured.peaks.core_gflops,
        memory_gb_per_s=bandwidth,
        parts=(
            Part(name="computing, per image", seconds=of_image * images, scales="rate"),
            Part(name="computing, per step", seconds=fixed / most, scales="rate", per="step"),
            Part(name="serial", seconds=serial, scales="nothing", per="step"),
        ),
        gigabytes_per_image=moved * bandwidth,
        gigabytes_per_step=0.0,
        gradient_megabytes=measured.gradient_bytes / 1e6,
        forward_share=min(0.9, measured.evaluation_seconds / measured.cores / of_image),
        metric_seconds=measured.metric_seconds,
        compress="bf16" if measured.compress == "bf16" else "none",
    )


def can_be_split(times: Sequence[StepTime]) -> bool:
    """Return whether steps of one rank have several numbers of threads and of images."""
    threads = {time.shape.threads for time in times}
    return len(threads) > 1 and len({time.shape.batch_size for time in times}) > 1


def without_each_step(measured: Measurements) -> Iterator[Measurements]:
    """Yield measurements with one step of one rank left out, if the others can still be split.

    How far their programs differ shows what the noise of a step does to the serial part: on few
    cores the noise can be the longer of the two.
    """
    times = [time for time in measured.steps if time.shape.ranks == 1]
    if len(times) <= UNKNOWNS:
        return
    for left_out in times:
        if can_be_split([time for time in times if time is not left_out]):
            steps = tuple(time for time in measured.steps if time is not left_out)
            yield replace(measured, steps=steps)


@dataclass(frozen=True, kw_only=True)
class StepForecast:
    """The step of a rank on a cluster. [seconds]"""

    serial: float
    computing: float
    """Without the serial part: measured core time on more cores, waiting for memory as there."""
    computing_alone: float  # The same, less the time in which bytes were moved there
    moving: float  # All bytes of operators at the bandwidth of a rank
    beside: float  # Bytes of the exchange during the backward pass. [10⁹]
    moving_beside: float  # These at the bandwidth of a rank
    exchange: float  # The part that the backward pass does not hide

    @property
    def seconds(self) -> Estimate:
        """The step between full overlap of computing with moving bytes, and none."""
        moving = self.moving + self.moving_beside
        overlapped = max(self.computing, moving)
        added = self.computing_alone + moving
        low, high = sorted((overlapped, added))
        rest = self.serial + self.exchange
        return Estimate(low=rest + low, middle=rest + (low + high) / 2, high=rest + high)

    @property
    def without_exchange(self) -> "StepForecast":
        """The step of a single rank."""
        return replace(self, beside=0.0, moving_beside=0.0, exchange=0.0)

    @property
    def bound(self) -> str:
        """What a step takes longest for."""
        parts = {
            "the serial part": self.serial,
            "computing": self.computing,
            "memory bandwidth": self.moving + self.moving_beside,
            "the exchange of gradients": self.exchange,
        }
        return max(parts, key=lambda name: parts[name])


def forecast_step(program: Program, cluster: Cluster) -> StepForecast:
    """Return the step of one rank of a cluster, by what bounds each part."""
    batch = cluster.batch_size
    by_cores = program.threads / cluster.threads
    by_rate = by_cores * program.core_gflops / cluster.core_gflops
    rated = program.seconds("rate", batch_size=batch)
    plain = program.seconds("cores", batch_size=batch)
    computing = by_rate * rated + by_cores * plain
    gigabytes = program.gigabytes(batch)
    # Caches may have served more than the memory could: then moving took all of the time there.
    there = min(1.0, gigabytes / program.memory_gb_per_s / (rated + plain)) if computing else 0.0
    moving = gigabytes / cluster.memory_of_rank
    serial = program.seconds("nothing", batch_size=batch)
    shortest = min(max(computing, moving), (1 - there) * computing + moving)
    exchange = gradient_exchange(program, cluster)
    beside = exchange.bytes_beside / 1e9
    return StepForecast(
        serial=serial,
        computing=computing,
        computing_alone=(1 - there) * computing,
        moving=moving,
        beside=beside,
        moving_beside=beside / cluster.memory_of_rank,
        # The shorter backward pass hides less.
        exchange=exchange.added_seconds((1 - program.forward_share) * (serial + shortest)),
    )


def memory_of_core(program: Program, cluster: Cluster) -> float:
    """Return the memory bandwidth of the thread that averages gradients. [10⁹ bytes/s]"""
    measured = program.memory_gb_per_s / program.threads
    return min(cluster.memory_of_rank, cluster.core_memory_gb_per_s or measured)


def gradient_exchange(program: Program, cluster: Cluster) -> Exchange:
    """Return the exchange of a program's gradients on a cluster."""
    memory = 1e9 * cluster.memory_of_rank
    return Exchange(
        values=round(1e6 * program.gradient_megabytes) // wire_bytes(program.compress),
        compress=program.compress == "bf16",
        hosts=cluster.hosts,
        ranks=cluster.ranks,
        network=cluster.network,
        rank_bandwidth=memory,
        core_bandwidth=1e9 * memory_of_core(program, cluster),
        has_own_core=cluster.cores // cluster.ranks > cluster.threads,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterForecast:
    """The training of a program on a cluster until MLPerf's target."""

    program: Program
    step: StepForecast
    step_seconds: Estimate
    serial_seconds: Estimate  # Of a step; a range only where it follows from a plan's steps
    epoch_seconds: Estimate  # Without evaluation
    evaluation_seconds: Estimate
    minutes_to_target: Estimate  # From the first step on
    epochs: Estimate


def forecast_cluster(
    program: Program, cluster: Cluster, epochs: EpochsModel, *, variants: Sequence[Program] = ()
) -> ClusterForecast:
    """Return the times of a training on OpenImages.

    `variants` are the same program from fewer measurements; the ranges have their times too.
    """
    step = forecast_step(program, cluster)
    seconds, serial = step.seconds, Estimate.exactly(step.serial)
    inference = inference_seconds(program, cluster, step)
    for variant in variants:
        other = forecast_step(variant, cluster)
        seconds = seconds.spanning(other.seconds)
        serial = serial.spanning(Estimate.exactly(other.serial))
        inference = inference.spanning(inference_seconds(variant, cluster, other))
    epoch = seconds.times(cluster.steps)
    needed = epochs.epochs(cluster.global_batch)
    evaluation = inference.plus(program.metric_seconds)
    return ClusterForecast(
        program=program,
        step=step,
        step_seconds=seconds,
        serial_seconds=serial,
        epoch_seconds=epoch,
        evaluation_seconds=evaluation,
        minutes_to_target=needed.times(epoch.plus(evaluation)).times(1 / 60),
        epochs=needed,
    )


def inference_seconds(program: Program, cluster: Cluster, step: StepForecast) -> Estimate:
    """Return the time in which all ranks find the boxes of the validation split."""
    batches = math.ceil(VALIDATION_IMAGES / cluster.all_ranks / cluster.batch_size)
    return step.without_exchange.seconds.times(batches * program.forward_share)


ASSUMED = {
    "peak rate of a core": "core_gflops",
    "memory bandwidth": "memory_gb_per_s",
    "memory bandwidth of a core": "core_memory_gb_per_s",
    "serial part": "",  # The program's, not the cluster's
    "network": "network_gbit_per_s",
}
"""The numbers that a measurement on the cluster would replace, and their fields."""


def changed_step(program: Program, cluster: Cluster, name: str, factor: float) -> float:
    """Return the middle of the step's time with one assumption multiplied. [s]"""
    field = ASSUMED[name]
    if not field:
        program = program.with_serial(factor)
    else:
        # Of a core it may be left open.
        now = replace(cluster, core_memory_gb_per_s=memory_of_core(program, cluster))
        cluster = replace(cluster, **{field: factor * getattr(now, field)})
    return forecast_step(program, cluster).seconds.middle


def explaining_factor(
    program: Program, cluster: Cluster, name: str, *, step_seconds: float
) -> float | None:
    """Return by what to multiply an assumption for a step to take `step_seconds`.

    None: no value within a factor of `SEARCHED` does.
    """
    from scipy.optimize import brentq  # noqa: PLC0415

    def excess(logarithm: float) -> float:
        return changed_step(program, cluster, name, math.exp(logarithm)) - step_seconds

    low, high = -math.log(SEARCHED), math.log(SEARCHED)
    # A step's time is monotonic in each assumption.
    if excess(low) * excess(high) > 0:
        return None
    return math.exp(brentq(excess, low, high))
