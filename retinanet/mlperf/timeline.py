"""The times in the log of one run, ours or another submitter's.

A log follows MLPerf's logging rules, but these leave much open. `train_samples` counts images or
batches, epochs count from 0 or 1, an evaluation may run beside the next epoch, and the number of
ranks is not in every log. A `Timeline` has what the log says; what it does not say is None. Each
number that follows from others, and each that is missing, has a note.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from mlperf_logging.mllog import constants

from common.console import significant
from common.errors import InputError
from common.files import read_text
from common.yaml_text import read_yaml
from retinanet.mlperf.commands import Machine
from retinanet.mlperf.log import EVALUATION_KEYS, NAME, LogLine, RunLog, finite_number
from retinanet.mlperf.rules import TARGET_MAP, TRAINING_IMAGES, counts_batches

CLOSED_IMAGE_SIZE = 800
"""The side of the images in the closed division [pixels]."""
UNEVEN = 2.0
"""Epoch times that differ by more than this factor need an explanation."""
EPOCH_KEYS = (constants.EPOCH_START, constants.EPOCH_STOP)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The interval of training between two events."""

    number: float  # Counted from 1
    start_ms: int
    stop_ms: int
    steps: int | None  # Of the global batch size, in logs that number steps
    images: int | None = None
    is_whole: bool = True

    @property
    def seconds(self) -> float:
        """The time of the epoch."""
        return (self.stop_ms - self.start_ms) / 1000


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation after an epoch; `minutes` is MLPerf's clock when its mAP was logged."""

    epoch: float
    accuracy: float | None
    minutes: float | None
    seconds: float | None


class Timeline:
    """What a log says about speed and convergence; times are in seconds unless they say minutes."""

    def __init__(self, log: RunLog, *, size: Machine | None = None) -> None:
        """`size` is what the user knows about the machines.

        Raises:
            InputError: The log is of another benchmark, or contradicts `size`.
        """
        if log.value(constants.SUBMISSION_BENCHMARK) is not None:
            log.rules(None)  # raises an error for another benchmark
        self.log = log
        self.notes: list[str] = []
        environment, config = file_beside(log, "environment.json"), file_beside(log, "config.yaml")
        self._own_ranks = section(environment, "ranks")
        training = section(config, "training")
        is_closed = log.value(constants.SUBMISSION_DIVISION) == constants.CLOSED
        self.batch_size = self._count(constants.GLOBAL_BATCH_SIZE)
        epochs = self._read_epochs()
        self.epoch_images, self.dataset_images = self._count_images(is_ours=bool(environment))
        """Images of a whole epoch as it was run, whose last batch may be left out or filled up, and
        of the data set."""
        self.epochs = [self._with_images(epoch, epoch is epochs[-1]) for epoch in epochs]
        self.target = TARGET_MAP if is_closed else None
        if "target_map" in training:
            self.target = finite_number(training["target_map"])
        self.has_no_target = "target_map" in training and self.target is None
        self.machine = self._read_machine(size)
        self.image_size = self._count(constants.MAX_IMAGE_SIZE)
        """The side of the square of images. [pixels]"""
        if self.image_size is None and is_closed:
            self.image_size = CLOSED_IMAGE_SIZE
            self.notes.append(
                f"target mAP {TARGET_MAP} and images of {CLOSED_IMAGE_SIZE}×{CLOSED_IMAGE_SIZE} "
                "pixels are rules of the closed division; the log has neither"
            )
        start = min(self._times(constants.RUN_START), default=None)
        self.initialization = seconds_between(
            min(self._times(constants.INIT_START), default=None),
            max(self._times(constants.INIT_STOP), default=None),
        )
        first = min(self._times(constants.EPOCH_START), default=None)
        # If the line of the first start is lost, the first one of the log is that of a later epoch.
        others = (*self._times(constants.EPOCH_STOP), *self._times(constants.EVAL_START))
        is_first = first is None or all(time > first for time in others)
        self.to_first_step = seconds_between(start, first) if is_first else None
        self.evaluations = self._read_evaluations(start)
        seconds = seconds_between(start, max(self._times(constants.RUN_STOP), default=None))
        is_success = log.status == constants.SUCCESS
        self.minutes_to_target = seconds / 60 if is_success and seconds is not None else None
        self._note_speeds()
        self._note_missing()

    @property
    def status(self) -> str | None:
        """`success` or `aborted`; None if the log has no end."""
        return None if self.log.status == "running" else self.log.status

    @property
    def epoch_seconds(self) -> list[float]:
        """The times of epochs that were not cut short."""
        return [epoch.seconds for epoch in self.epochs if epoch.is_whole]

    @property
    def periods(self) -> list[float]:
        """The times from the start of an epoch to that of the next, evaluation included."""
        return [
            (following.start_ms - epoch.start_ms) / 1000
            for epoch, following in zip(self.epochs, self.epochs[1:], strict=False)
            if epoch.is_whole and following.number == epoch.number + 1
        ]

    @property
    def images_per_second(self) -> float | None:
        """The median over whole epochs or, if there are none, over parts of one."""
        speeds = [
            epoch.images / epoch.seconds
            for epoch in [epoch for epoch in self.epochs if epoch.is_whole] or self.epochs
            if epoch.images is not None and epoch.seconds > 0
        ]
        return median(speeds) if speeds else None

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

    def _times(self, key: str) -> list[int]:
        """Return the times of the events of a key. [ms]"""
        return [line.time_ms for line in self.log.lines if line.key == key]

    def _count(self, key: str) -> int | None:
        """Return the value of a key that counts something."""
        return positive_integer(self.log.value(key))

    def _by_epoch(self, *keys: str) -> list[tuple[float, dict[str, LogLine]]]:
        """Return the events of these keys by epoch, in order.

        All ranks may have logged them: the last `stop` counts, and the first of all else.
        """
        events: dict[float, dict[str, LogLine]] = {}
        for line in self.log.lines:
            number = epoch_number(line)
            if line.key in keys and number is not None:
                of_epoch = events.setdefault(number, {})
                pick = max if line.key.endswith("stop") else min
                pair = of_epoch.get(line.key, line), line
                of_epoch[line.key] = pick(pair, key=lambda each: each.time_ms)
        return sorted(events.items())

    def _read_epochs(self) -> list[Epoch]:
        """Return the epochs that have a start and a stop, in order."""
        events = self._by_epoch(*EPOCH_KEYS)
        # Each compute group of ours has the logged batch size, and all take a step together.
        groups = positive_integer(self._own_ranks.get("compute_groups")) or 1
        shift = any(number == 0 for number, _ in events) or self.log.value("first_epoch_num") == 0
        epochs = []
        for number, ends in events:
            start, stop = map(ends.get, EPOCH_KEYS)
            if start is None or stop is None or stop.time_ms < start.time_ms:
                event = "stop" if stop is None else "start" if start is None else "valid stop"
                self.notes.append(f"epoch {number + shift:g}: left out, it has no {event}")
                continue
            first, last = (finite_number(line.metadata.get("step_num")) for line in (start, stop))
            is_counted = first is not None and last is not None and last > first
            epochs.append(Epoch(
                number=number + shift, start_ms=start.time_ms, stop_ms=stop.time_ms,
                steps=int(last - first) * groups if is_counted else None,  # type: ignore[operator]
            ))  # fmt: skip
        return epochs

    def _count_images(self, *, is_ours: bool) -> tuple[int | None, int | None]:
        """Return the images of an epoch and of the data set."""
        samples, batch = self._count(constants.TRAIN_SAMPLES), self.batch_size
        # Ours counts images.
        if samples is None or samples == TRAINING_IMAGES or is_ours:
            return samples, samples
        if batch is not None and counts_batches(samples, batch):
            self.notes.append(
                f"train_samples counts batches: {samples:,} × {batch:,} = {samples * batch:,} "
                f"images an epoch; MLPerf's data set has {TRAINING_IMAGES:,}"
            )
            return samples * batch, TRAINING_IMAGES
        self.notes.append(f"train_samples {samples:,} is taken as images; nothing confirms it")
        return samples, samples

    def _with_images(self, epoch: Epoch, is_last: bool) -> Epoch:
        """Return an epoch with its images, and note if it was cut short."""
        batch, whole, steps = self.batch_size, self.epoch_images, epoch.steps
        number, seconds = f"epoch {epoch.number:g}", significant(epoch.seconds, 3)
        if steps is not None and batch is not None and whole is not None:
            is_whole = steps * batch > whole - batch
            if not is_whole:
                part = f"{steps:,} of {-(-whole // batch):,} steps"
                self.notes.append(f"{number}: cut short after {part}, {seconds} s")
            return replace(epoch, images=min(steps * batch, whole), is_whole=is_whole)
        if is_last and self._ended_within(epoch):
            self.notes.append(f"{number}: left out, the run ended in it after {seconds} s")
            return replace(epoch, is_whole=False)
        return replace(epoch, images=whole)

    def _ended_within(self, epoch: Epoch) -> bool:
        """Return whether the last evaluation, beside which the epoch ran, ended the run."""
        # A log without its end may lack the evaluation of a whole epoch.
        return (
            bool(self._times(constants.RUN_STOP))
            and all(time < epoch.stop_ms for time in self._times(constants.EVAL_START))
            and any(
                epoch.start_ms < time <= epoch.stop_ms
                for time in self._times(constants.EVAL_ACCURACY)
            )
        )

    def _read_evaluations(self, start_ms: int | None) -> list[Evaluation]:
        """Return the evaluations in order; `start_ms` is MLPerf's clock's start."""
        evaluations = []
        for number, events in self._by_epoch(*EVALUATION_KEYS):
            start, logged, stop = map(events.get, EVALUATION_KEYS)
            seconds = seconds_between(start_ms, time_of(logged))
            accuracy = finite_number(logged.value) if logged else None
            evaluations.append(Evaluation(
                epoch=number, accuracy=accuracy,
                minutes=None if seconds is None else seconds / 60,
                seconds=seconds_between(time_of(start), time_of(stop)),
            ))  # fmt: skip
            known = {constants.EVAL_START: start, constants.EVAL_STOP: stop,
                     constants.EVAL_ACCURACY: accuracy}  # fmt: skip
            lost = [key for key, value in known.items() if value is None]
            if lost:
                self.notes.append(f"evaluation after epoch {number:g}: no {', '.join(lost)}")
        return evaluations

    def _read_machine(self, size: Machine | None) -> Machine:
        """Return hosts, ranks and cores: of our environment.json, the log, and the user."""
        own = self._own_ranks
        ranks, hosts = positive_integer(own.get("size")), own.get("hosts")
        if ranks is None or not isinstance(hosts, list):
            # A platform's name as we write it, such as `2 hosts of …`.
            platform = str(self.log.value(constants.SUBMISSION_PLATFORM))
            match = re.match(r"([1-9][0-9]{0,5}) hosts? of ", platform)
            machine = Machine(hosts=int(match[1]) if match else None, ranks=self._divide_batch())
        else:
            # A rank that is not bound to cores has a number of threads, and no cores of its own.
            cpus = own.get("cpus_of_rank_0") if own.get("pinned") is True else None
            cores = len(cpus) if isinstance(cpus, list) else 0
            machine = Machine(
                hosts=len(set(map(str, hosts))) or None, ranks=ranks, cores=ranks * cores or None
            )
            if cores:
                self.notes.append(
                    f"cores {ranks * cores} = ranks {ranks} × {cores}, the cores on which rank 0 "
                    "computes (environment.json)"
                )
        logged = asdict(machine)
        for name, number in asdict(size).items() if size else ():
            if number is not None and logged[name] not in (None, number):
                raise InputError(
                    f"--size: {number} {name} in all, but {self.log.file} has {logged[name]}; "
                    "correct it"
                )
            logged[name] = logged[name] or number
        return Machine(**logged)

    def _divide_batch(self) -> int | None:
        """Return the number of ranks, from the batch sizes."""
        batch, local = self.batch_size, self._count("local_batch_size")
        # Submitters differ in whether a local batch is accumulated.
        steps = self._count(constants.GRADIENT_ACCUMULATION_STEPS)
        if batch is None or local is None or batch % local or steps != 1:
            return None
        ranks = batch // local
        self.notes.append(f"ranks {ranks} = global_batch_size {batch} / local_batch_size {local}")
        return ranks

    def _note_speeds(self) -> None:
        """Note where epochs are uneven, or the log has another throughput."""
        times, speed = self.epoch_seconds, self.images_per_second
        if times and max(times) > UNEVEN * min(times):
            self.notes.append(
                f"epochs take {significant(min(times), 3)} to {significant(max(times), 3)} s: the "
                "run paused, or training and evaluation overlap; images/s is that of the median"
            )
        values = [line.value for line in self.log.lines if line.key == "tracked_stats"]
        stats = [value.get("throughput") for value in values if isinstance(value, dict)]
        logged = [number for number in map(finite_number, stats) if number]
        if not logged or speed is None:
            return
        throughput = median(logged)
        text = f"tracked_stats has a throughput of {significant(throughput)}"
        units = {"that of a rank": self.machine.ranks, "in batches": self.batch_size}
        for unit, factor in units.items():
            if factor is not None and factor > 1 and abs(throughput * factor / speed - 1) < 0.1:
                total = significant(throughput * factor)
                self.notes.append(f"{text}, {unit}: × {factor:,} = {total} images/s")
                return
        if abs(throughput / speed - 1) > 0.1:
            self.notes.append(f"{text}, but the time of epochs gives {significant(speed)} images/s")

    def _note_missing(self) -> None:
        """Note events that cannot be used, and those without which cells stay empty."""
        numbered = (*EPOCH_KEYS, *EVALUATION_KEYS)
        unnumbered = {line.key for line in self.log.lines if epoch_number(line) is None}
        if names := ", ".join(sorted(unnumbered.intersection(numbered))):
            self.notes.append(f"left out, without the number of an epoch: {names}")
        keys = {line.key for line in self.log.lines}
        is_known = {
            constants.SUBMISSION_BENCHMARK: self.log.value(constants.SUBMISSION_BENCHMARK)
            is not None,
            constants.GLOBAL_BATCH_SIZE: self.batch_size is not None,
            constants.TRAIN_SAMPLES: self.dataset_images is not None,
            **{key: key in keys for key in (constants.INIT_START, constants.INIT_STOP)},
            **{key: key in keys for key in (constants.RUN_START, constants.EPOCH_START)},
            constants.EVAL_ACCURACY: bool(self.evaluations),
            constants.RUN_STOP: constants.RUN_STOP in keys,
        }
        if missing := [key for key, known in is_known.items() if not known]:
            self.notes.append(f"not in the log: {', '.join(missing)}")


def seconds_between(start_ms: int | None, stop_ms: int | None) -> float | None:
    """Return a duration; None if an end is missing or before the start."""
    if start_ms is None or stop_ms is None or stop_ms < start_ms:
        return None
    return (stop_ms - start_ms) / 1000


def time_of(line: LogLine | None) -> int | None:
    """Return the time of an event that may be missing. [ms]"""
    return None if line is None else line.time_ms


def positive_integer(value: object) -> int | None:
    """Return a value if it is a whole number of at least 1 that fits a machine or a data set."""
    return value if type(value) is int and 1 <= value <= 10**12 else None


def epoch_number(line: LogLine) -> float | None:
    """Return the epoch that an event is about."""
    return finite_number(line.metadata.get(constants.EPOCH_NUM))


def file_beside(log: RunLog, name: str) -> Mapping[str, Any]:
    """Return a file beside the log of our own run; empty if there is none, or not readable."""
    content: Any = None
    if log.file.name == NAME:
        path = log.file.with_name(name)
        with suppress(OSError, ValueError):  # InputError is a ValueError
            content = read_yaml(read_text(path), str(path))  # JSON is YAML
    return content if isinstance(content, dict) else {}


def section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a file; empty if there is none."""
    part = content.get(name)
    return part if isinstance(part, dict) else {}
