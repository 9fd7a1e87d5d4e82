"""The times in the log of one run, ours or another submitter's.

A log follows MLPerf's logging rules, but these leave much open. `train_samples` counts images or
batches, epochs count from 0 or 1 and may be blocks of several, an evaluation may run beside the
next epoch, and the number of ranks is not in every log. `read_timeline` takes what the log says;
what it does not say is None. Each number that follows from others, and each that is missing, has a
note.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from mlperf_logging.mllog import constants

from common.console import significant
from common.errors import InputError
from common.files import read_json_object, read_text
from common.yaml_text import read_yaml
from retinanet.mlperf.commands import Machine
from retinanet.mlperf.log import EVALUATION_KEYS, NAME, LogLine, RunLog, finite_number
from retinanet.mlperf.rules import TARGET_MAP, TRAINING_IMAGES, counts_batches

CLOSED_IMAGE_SIZE = 800
"""The side of the images in the closed division [pixels]."""
UNEVEN = 2.0
"""Epoch times that differ by more than this factor need an explanation."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """An interval of training between two events; `seconds` and `images` are of all of it."""

    number: float  # Counted from 1, the last one of a block of several epochs
    count: int  # Epochs in the interval
    start_ms: int
    stop_ms: int
    images: int | None = None
    is_whole: bool = True

    @property
    def seconds(self) -> float:
        """The time of one epoch."""
        return (self.stop_ms - self.start_ms) / 1000 / self.count


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation after an epoch; `minutes` is MLPerf's clock when its mAP was logged."""

    epoch: float
    accuracy: float | None
    minutes: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a log says about speed and convergence; times are in seconds unless they say minutes."""

    log: RunLog
    machine: Machine
    batch_size: int | None
    dataset_images: int | None
    """Training images of the data set."""
    epoch_images: int | None
    """Images of a whole epoch as it was run: a last batch may be left out or filled up."""
    image_size: int | None
    target: float | None
    has_no_target: bool
    initialization: float | None
    to_first_step: float | None
    epochs: tuple[Epoch, ...]
    evaluations: tuple[Evaluation, ...]
    minutes_to_target: float | None
    notes: tuple[str, ...]

    @property
    def whole_epochs(self) -> list[Epoch]:
        """The epochs that were not cut short."""
        return [epoch for epoch in self.epochs if epoch.is_whole]

    @property
    def epoch_seconds(self) -> list[float]:
        """The times of whole epochs."""
        return [epoch.seconds for epoch in self.whole_epochs]

    @property
    def periods(self) -> list[float]:
        """The times from the start of an epoch to that of the next, evaluation included."""
        pairs = zip(self.epochs, self.epochs[1:], strict=False)
        return [
            (following.start_ms - epoch.start_ms) / 1000 / epoch.count
            for epoch, following in pairs
            if epoch.is_whole and following.number == epoch.number + following.count
        ]

    @property
    def images_per_second(self) -> float | None:
        """The median over whole epochs or, if there are none, over parts of one."""
        return median_speed(self.whole_epochs or self.epochs)

    @property
    def step_seconds(self) -> float | None:
        """The time of one step of the global batch size."""
        speed = self.images_per_second
        return None if speed is None or self.batch_size is None else self.batch_size / speed

    def per(self, number: int | None) -> float | None:
        """Return the images per second of one of `number` hosts, ranks or cores."""
        speed = self.images_per_second
        return None if speed is None or number is None else speed / number

    @property
    def evaluation_seconds(self) -> list[float]:
        """The times of evaluations."""
        return [item.seconds for item in self.evaluations if item.seconds is not None]


def median_speed(epochs: Iterable[Epoch]) -> float | None:
    """Return the median images per second of epochs, or None if no images or times are known."""
    speeds = [
        epoch.images / epoch.count / epoch.seconds
        for epoch in epochs
        if epoch.images is not None and epoch.seconds > 0
    ]
    return median(speeds) if speeds else None


def read_timeline(log: RunLog, *, size: Machine | None = None) -> Timeline:
    """Return the times of a run; `size` is what the user knows about its machines.

    Raises:
        InputError: The log is of another benchmark, or contradicts `size`.
    """
    if log.value(constants.SUBMISSION_BENCHMARK) is not None:
        log.rules(None)  # raises an error for another benchmark
    reader = Reader(log)
    epochs, batch = reader.epochs(), reader.count(constants.GLOBAL_BATCH_SIZE)
    steps = reader.steps(epochs)
    epoch_images, dataset_images = reader.images(batch, steps=max(steps.values(), default=None))
    epochs = reader.with_images(epochs, steps, batch=batch, whole=epoch_images)
    start, stop = reader.time(constants.RUN_START), reader.last_time(constants.RUN_STOP)
    target, has_no_target = reader.target()
    timeline = Timeline(
        log=log,
        machine=reader.machine(batch, size),
        batch_size=batch,
        dataset_images=dataset_images,
        epoch_images=epoch_images,
        image_size=reader.image_size(),
        target=target,
        has_no_target=has_no_target,
        initialization=seconds_between(
            reader.time(constants.INIT_START), reader.last_time(constants.INIT_STOP)
        ),
        to_first_step=seconds_between(start, reader.first_start()),
        epochs=epochs,
        evaluations=reader.evaluations(start),
        minutes_to_target=None,
        notes=(),
    )
    seconds = seconds_between(start, stop)
    if log.status == constants.SUCCESS and seconds is not None:
        timeline = replace(timeline, minutes_to_target=seconds / 60)
    reader.note_speeds(timeline)
    reader.note_missing(timeline)
    return replace(timeline, notes=tuple(reader.notes))


def seconds_between(start_ms: int | None, stop_ms: int | None) -> float | None:
    """Return a duration; None if an end is missing or before the start."""
    is_known = start_ms is not None and stop_ms is not None and stop_ms >= start_ms
    return (stop_ms - start_ms) / 1000 if is_known else None  # type: ignore[operator]


def positive_integer(value: object) -> int | None:
    """Return a value if it is a whole number of at least 1 that fits a machine or a data set."""
    return value if type(value) is int and 1 <= value <= 10**12 else None


BLOCKS = (constants.BLOCK_START, constants.BLOCK_STOP)
EPOCHS = (constants.EPOCH_START, constants.EPOCH_STOP)
NUMBERED = (*BLOCKS, *EPOCHS, *EVALUATION_KEYS)
"""Events of an epoch, which have its number."""


def numbered_by(line: LogLine) -> float | None:
    """Return the epoch, or the first epoch of a block, that an event is about."""
    name = constants.FIRST_EPOCH_NUM if line.key in BLOCKS else constants.EPOCH_NUM
    number = finite_number(line.metadata.get(name))
    # The value of other events may be the number too.
    is_number = number is None and line.key != constants.EVAL_ACCURACY
    return finite_number(line.value) if is_number else number


@dataclass(frozen=True)
class Reader:
    """Reads one log, and collects notes on it."""

    log: RunLog
    notes: list[str] = field(default_factory=list)
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def lines(self, key: str) -> Iterator[LogLine]:
        """Yield the events of a key."""
        return (line for line in self.log.lines if line.key == key)

    def time(self, key: str) -> int | None:
        """Return the time of the first event of a key. [ms]"""
        return min((line.time_ms for line in self.lines(key)), default=None)

    def last_time(self, key: str) -> int | None:
        """Return the time of the last event of a key. [ms]"""
        return max((line.time_ms for line in self.lines(key)), default=None)

    def count(self, key: str) -> int | None:
        """Return the value of a key that counts something."""
        return positive_integer(self.log.value(key))

    def file_of_run(self, name: str) -> Mapping[str, Any]:
        """Return a file beside the log of our own run; empty if there is none, or not readable."""
        if name not in self.files:
            content: Any = None
            path = self.log.file.with_name(name)
            if self.log.file.name == NAME:
                try:
                    is_json = path.suffix == ".json"
                    content = (
                        read_json_object(path, advice="")
                        if is_json
                        else read_yaml(read_text(path), str(path))
                    )
                except (OSError, ValueError):  # InputError is a ValueError
                    content = None
            self.files[name] = content if isinstance(content, dict) else {}
        return self.files[name]

    def section(self, file: str, name: str) -> Mapping[str, Any]:
        """Return a section of a file beside our own log, empty if there is none."""
        section = self.file_of_run(file).get(name)
        return section if isinstance(section, dict) else {}

    def epochs(self) -> tuple[Epoch, ...]:
        """Return the epochs that have a start and a stop, in order."""
        pairs: dict[float, list[int | None]] = {}
        counts: dict[float, int] = {}
        for key, place, pick in (
            (constants.EPOCH_START, 0, min),
            (constants.EPOCH_STOP, 1, max),
            (constants.BLOCK_START, 0, min),
            (constants.BLOCK_STOP, 1, max),
        ):
            for line in self.lines(key):
                number, count = numbered_by(line), 1
                if key in BLOCKS:
                    count = positive_integer(line.metadata.get(constants.EPOCH_COUNT)) or 1
                if number is None:
                    continue
                pair = pairs.setdefault(number, [None, None])
                # All ranks may have logged it: the first start and the last stop count.
                time = pair[place]
                pair[place] = line.time_ms if time is None else pick(time, line.time_ms)
                counts[number] = count
        shift = 1 if min(pairs, default=1) == 0 or self.log.value("first_epoch_num") == 0 else 0
        epochs = []
        for number, (start, stop) in sorted(pairs.items()):
            if start is not None and stop is not None and stop >= start:
                epochs.append(
                    Epoch(
                        number=number + shift + counts[number] - 1,
                        count=counts[number],
                        start_ms=start,
                        stop_ms=stop,
                    )
                )
            else:
                event = "stop" if stop is None else "start" if start is None else "valid stop"
                self.notes.append(f"epoch {number + shift:g}: left out, it has no {event}")
        return tuple(epochs)

    def first_start(self) -> int | None:
        """Return the time at which the first epoch started, even if it has no stop. [ms]"""
        for start_key, stop_key in (
            (constants.EPOCH_START, constants.EPOCH_STOP),
            (constants.BLOCK_START, constants.BLOCK_STOP),
        ):
            first = self.time(start_key)
            # If its line is lost, the first one of the log is that of a later epoch.
            earlier = (self.time(stop_key), self.time(constants.EVAL_START))
            if first is not None and all(time is None or time > first for time in earlier):
                return first
        return None

    def steps(self, epochs: Sequence[Epoch]) -> dict[float, int]:
        """Return the steps of the global batch size in each epoch, for logs that number steps."""
        at = {(line.key, line.time_ms): line.metadata.get("step_num") for line in self.log.lines}
        # Each compute group of ours has the logged batch size, and all take a step together.
        groups = positive_integer(self.section("environment.json", "ranks").get("compute_groups"))
        steps = {}
        for epoch in epochs:
            first = finite_number(at.get((constants.EPOCH_START, epoch.start_ms)))
            last = finite_number(at.get((constants.EPOCH_STOP, epoch.stop_ms)))
            if first is not None and last is not None and last > first:
                steps[epoch.number] = int(last - first) * (groups or 1)
        return steps

    def images(self, batch: int | None, *, steps: int | None) -> tuple[int | None, int | None]:
        """Return the images of an epoch and of the data set; `steps`: of the longest epoch."""
        samples = self.count(constants.TRAIN_SAMPLES)
        # Ours counts images, and has the file.
        is_ours = bool(self.file_of_run("environment.json"))
        if samples is None or samples == TRAINING_IMAGES or is_ours:
            return samples, samples
        is_steps = samples == steps and batch != 1
        is_checked = batch and steps and steps in (samples // batch, -(-samples // batch))
        are_few = batch is not None and samples < batch and not is_checked
        if batch is not None and (counts_batches(samples, batch) or is_steps or are_few):
            images = samples * batch
            text = f"train_samples counts batches: {samples:,} × {batch:,} = {images:,} images"
            if counts_batches(samples, batch):
                self.notes.append(f"{text} an epoch; MLPerf's data set has {TRAINING_IMAGES:,}")
                return images, TRAINING_IMAGES
            reason = f"which has {steps:,} steps" if is_steps else "since a batch has more"
            self.notes.append(f"{text} an epoch, {reason}")
            return images, images
        if not is_checked:
            self.notes.append(f"train_samples {samples:,} is taken as images; nothing confirms it")
        return samples, samples

    def with_images(
        self,
        epochs: Sequence[Epoch],
        steps: Mapping[float, int],
        *,
        batch: int | None,
        whole: int | None,
    ) -> tuple[Epoch, ...]:
        """Return epochs with their images, and note those that were cut short."""
        counted = []
        for epoch in epochs:
            images, is_whole = None if whole is None else whole * epoch.count, True
            number, seconds = f"epoch {epoch.number:g}", significant(epoch.seconds, 3)
            if epoch.number in steps and batch is not None and whole is not None:
                taken = steps[epoch.number] * batch
                images, is_whole = min(taken, whole), taken > whole - batch
                if not is_whole:
                    part = f"{steps[epoch.number]:,} of {-(-whole // batch):,} steps"
                    self.notes.append(f"{number}: cut short after {part}, {seconds} s")
            elif self.ended_within(epoch) and epoch is epochs[-1]:
                images, is_whole = None, False
                self.notes.append(f"{number}: left out, the run ended in it after {seconds} s")
            counted.append(replace(epoch, images=images, is_whole=is_whole))
        return tuple(counted)

    def ended_within(self, epoch: Epoch) -> bool:
        """Return whether the last evaluation, beside which the epoch ran, ended the run."""
        results = [line.time_ms for line in self.lines(constants.EVAL_ACCURACY)]
        starts = [line.time_ms for line in self.lines(constants.EVAL_START)]
        is_last = all(time < epoch.stop_ms for time in starts)
        # A log without its end may lack the evaluation of a whole epoch.
        has_end = self.log.last(constants.RUN_STOP) is not None
        return (
            has_end and is_last and any(epoch.start_ms < time <= epoch.stop_ms for time in results)
        )

    def evaluations(self, start_ms: int | None) -> tuple[Evaluation, ...]:
        """Return the evaluations in order; `start_ms` is MLPerf's clock's start."""
        times: dict[float, dict[str, int]] = {}
        accuracies: dict[float, float | None] = {}
        for key in EVALUATION_KEYS:
            for line in self.lines(key):
                number = numbered_by(line)
                if number is None:
                    continue
                times.setdefault(number, {}).setdefault(key, line.time_ms)
                if key == constants.EVAL_ACCURACY:
                    accuracies.setdefault(number, finite_number(line.value))
        evaluations = []
        for number, by_key in sorted(times.items()):
            seconds = seconds_between(start_ms, by_key.get(constants.EVAL_ACCURACY))
            evaluations.append(
                Evaluation(
                    epoch=number,
                    accuracy=accuracies.get(number),
                    minutes=None if seconds is None else seconds / 60,
                    seconds=seconds_between(
                        by_key.get(constants.EVAL_START), by_key.get(constants.EVAL_STOP)
                    ),
                )
            )
            lost = [key for key in (constants.EVAL_START, constants.EVAL_STOP) if key not in by_key]
            if accuracies.get(number) is None:
                lost.append(constants.EVAL_ACCURACY)
            if lost:
                self.notes.append(f"evaluation after epoch {number:g}: no {', '.join(lost)}")
        return tuple(evaluations)

    def target(self) -> tuple[float | None, bool]:
        """Return the mAP at which the run stops, and whether it is known to have no target."""
        training = self.section("config.yaml", "training")
        if "target_map" in training:
            target = finite_number(training["target_map"])
            return target, target is None
        if not self.is_closed:
            return None, False
        accuracy = self.log.accuracy
        if self.log.status == constants.SUCCESS and accuracy is not None and accuracy < TARGET_MAP:
            self.notes.append(
                f"success at mAP {accuracy:.3f}, below RetinaNet's {TARGET_MAP}: before rules 2.0, "
                "ssd was another model, on another data set"
            )
            return None, False
        return TARGET_MAP, False

    @property
    def is_closed(self) -> bool:
        """Whether the log says that MLPerf's rules fix target and image size."""
        return self.log.value(constants.SUBMISSION_DIVISION) == constants.CLOSED

    def image_size(self) -> int | None:
        """Return the side of the square of images. [pixels]"""
        size = self.count(constants.MAX_IMAGE_SIZE)
        if size is None and self.is_closed:
            self.notes.append(
                f"target mAP {TARGET_MAP} and images of {CLOSED_IMAGE_SIZE}×{CLOSED_IMAGE_SIZE} "
                "pixels are rules of the closed division; the log has neither"
            )
            return CLOSED_IMAGE_SIZE
        return size

    def machine(self, batch: int | None, size: Machine | None) -> Machine:
        """Return hosts, ranks and cores: of our environment.json, the log, and the user."""
        ranks_section = self.section("environment.json", "ranks")
        machine = machine_of_run(ranks_section)
        if machine.ranks is None:
            machine = Machine(hosts=hosts_of_platform(self.log), ranks=self.ranks(batch))
        elif machine.cores is not None:
            per_rank = machine.cores // machine.ranks
            self.notes.append(
                f"cores {machine.cores} = ranks {machine.ranks} × {per_rank}, the cores on which "
                "rank 0 computes (environment.json)"
            )
        if size is None:
            return machine
        for name in ("hosts", "ranks", "cores"):
            logged, given = getattr(machine, name), getattr(size, name)
            if logged is not None and given is not None and logged != given:
                raise InputError(
                    f"--size: {given} {name} in all, but {self.log.file} has {logged}; correct it"
                )
        given_cores = size.cores if size.cores is not None else machine.cores
        return Machine(hosts=size.hosts, ranks=size.ranks, cores=given_cores)

    def ranks(self, batch: int | None) -> int | None:
        """Return the number of ranks, from the batch sizes."""
        local = self.count("local_batch_size")
        if batch is None or local is None or batch % local:
            return None
        # Submitters differ in whether a local batch is accumulated.
        if self.count(constants.GRADIENT_ACCUMULATION_STEPS) != 1:
            return None
        ranks = batch // local
        self.notes.append(f"ranks {ranks} = global_batch_size {batch} / local_batch_size {local}")
        return ranks

    def note_speeds(self, timeline: Timeline) -> None:
        """Note where epochs are uneven, or the log has another throughput."""
        times, speed = timeline.epoch_seconds, timeline.images_per_second
        if times and max(times) > UNEVEN * min(times):
            self.notes.append(
                f"epochs take {significant(min(times), 3)} to {significant(max(times), 3)} s: the "
                "run paused, or training and evaluation overlap; images/s is that of the median"
            )
        logged = [
            throughput
            for line in self.lines("tracked_stats")
            if isinstance(line.value, dict)
            and (throughput := finite_number(line.value.get("throughput")))
        ]
        if not logged or speed is None:
            return
        throughput = median(logged)
        text = f"tracked_stats has a throughput of {significant(throughput)}"
        units = {"that of a rank": timeline.machine.ranks, "in batches": timeline.batch_size}
        for unit, factor in units.items():
            if factor is not None and factor > 1 and abs(throughput * factor / speed - 1) < 0.1:
                total = significant(throughput * factor)
                self.notes.append(f"{text}, {unit}: × {factor:,} = {total} images/s")
                return
        if abs(throughput / speed - 1) > 0.1:
            self.notes.append(f"{text}, but the time of epochs gives {significant(speed)} images/s")

    def note_missing(self, timeline: Timeline) -> None:
        """Note lines that cannot be read, and events without which cells stay empty."""
        starts = [line.time_ms for line in self.lines(constants.RUN_START)]
        if starts and max(starts) - min(starts) > 60_000:
            self.notes.append("run_start several times: several runs in a file? give one each")
        has_epochs = any(map(self.time, (constants.EPOCH_START, constants.BLOCK_START)))
        required = {
            constants.SUBMISSION_BENCHMARK: self.log.value(constants.SUBMISSION_BENCHMARK),
            constants.GLOBAL_BATCH_SIZE: timeline.batch_size,
            constants.TRAIN_SAMPLES: timeline.dataset_images,
            constants.INIT_START: self.time(constants.INIT_START),
            constants.INIT_STOP: self.time(constants.INIT_STOP),
            constants.RUN_START: self.time(constants.RUN_START),
            constants.EPOCH_START: has_epochs or None,
            constants.EVAL_ACCURACY: timeline.evaluations or None,
            constants.RUN_STOP: self.time(constants.RUN_STOP),
        }
        unnumbered = sorted(
            {
                line.key
                for line in self.log.lines
                if line.key in NUMBERED and numbered_by(line) is None
            }
        )
        if unnumbered:
            self.notes.append(f"left out, without the number of an epoch: {', '.join(unnumbered)}")
        missing = [key for key, value in required.items() if value is None]
        if missing:
            self.notes.append(f"not in the log: {', '.join(missing)}")


def machine_of_run(ranks: Mapping[str, Any]) -> Machine:
    """Return the machine in the section `ranks` of a run's environment.json."""
    size, hosts, cpus = (ranks.get(name) for name in ("size", "hosts", "cpus_of_rank_0"))
    number = positive_integer(size)
    if number is None or not isinstance(hosts, list):
        return Machine()
    # A rank that is not bound to cores has a number of threads, and no cores of its own.
    cores = len(cpus) if ranks.get("pinned") is True and isinstance(cpus, list) else 0
    return Machine(
        hosts=len(set(map(str, hosts))) or None,
        ranks=number,
        cores=number * cores or None,
    )


def hosts_of_platform(log: RunLog) -> int | None:
    """Return the number of hosts in a platform's name as we write it, such as `2 hosts of …`."""
    name = re.match(r"([1-9][0-9]{0,5}) hosts? of ", str(log.value(constants.SUBMISSION_PLATFORM)))
    return int(name[1]) if name else None
