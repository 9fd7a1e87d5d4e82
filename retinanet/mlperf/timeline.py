"""The times in the log of one run, ours or another submitter's.

A log follows MLPerf's logging rules, but these leave much open. `train_samples` counts images or
batches, epochs count from 0 or 1 and may be blocks of several, an evaluation may run beside the
next epoch, and the number of ranks is not in every log. `Timeline` takes what the log says;
what it does not say is None. Each number that follows from others, and each that is missing, has a
note.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from retinanet.mlperf.log import NAME, LogLine, RunLog, finite_number
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


def median_speed(epochs: Iterable[Epoch]) -> float | None:
    """Return the median images per second of epochs, or None if no images or times are known."""
    speeds = [
        epoch.images / epoch.count / epoch.seconds
        for epoch in epochs
        if epoch.images is not None and epoch.seconds > 0
    ]
    return median(speeds) if speeds else None


def seconds_between(start_ms: int | None, stop_ms: int | None) -> float | None:
    """Return a duration; None if an end is missing or before the start."""
    if start_ms is None or stop_ms is None or stop_ms < start_ms:
        return None
    return (stop_ms - start_ms) / 1000


def positive_integer(value: object) -> int | None:
    """Return a value if it is a whole number of at least 1 that fits a machine or a data set."""
    return value if type(value) is int and 1 <= value <= 10**12 else None


BLOCKS = {constants.BLOCK_START: "start", constants.BLOCK_STOP: "stop"}
EPOCHS = {constants.EPOCH_START: "start", constants.EPOCH_STOP: "stop", **BLOCKS}
EVALUATIONS = {
    constants.EVAL_START: "start",
    constants.EVAL_STOP: "stop",
    constants.EVAL_ACCURACY: "accuracy",
}
"""Events of an epoch, which have its number."""


def numbered_by(line: LogLine) -> float | None:
    """Return the epoch, or the first epoch of a block, that an event is about."""
    name = constants.FIRST_EPOCH_NUM if line.key in BLOCKS else constants.EPOCH_NUM
    number = finite_number(line.metadata.get(name))
    # The value of other events may be the number too.
    is_number = number is None and line.key != constants.EVAL_ACCURACY
    return finite_number(line.value) if is_number else number


def file_beside(log: RunLog, name: str) -> Mapping[str, Any]:
    """Return a file beside the log of our own run; empty if there is none, or not readable."""
    content: Any = None
    if log.file.name == NAME:
        path = log.file.with_name(name)
        with suppress(OSError, ValueError):  # InputError is a ValueError
            content = read_yaml(read_text(path), str(path))  # JSON is YAML
    return content if isinstance(content, dict) else {}


class Timeline:
    """What a log says about speed and convergence; times are in seconds unless they say minutes."""

    def __init__(self, log: RunLog, *, size: Machine | None = None) -> None:
        """Read the log of a run; `size` is what the user knows about its machines.

        Raises:
            InputError: The log is of another benchmark, or contradicts `size`.
        """
        if log.value(constants.SUBMISSION_BENCHMARK) is not None:
            log.rules(None)  # raises an error for another benchmark
        self.log = log
        self.notes: list[str] = []
        environment, config = file_beside(log, "environment.json"), file_beside(log, "config.yaml")
        self._is_ours = bool(environment)
        ranks, training = environment.get("ranks"), config.get("training")
        self._own_ranks: Mapping[str, Any] = ranks if isinstance(ranks, dict) else {}
        self._own_training: Mapping[str, Any] = training if isinstance(training, dict) else {}
        self.batch_size = self._count(constants.GLOBAL_BATCH_SIZE)
        epochs = self._read_epochs()
        steps = self._read_steps(epochs)
        self.epoch_images, self.dataset_images = self._read_images(
            max(steps.values(), default=None)
        )
        """Images of a whole epoch as it was run, in which a last batch may be left out or filled
        up; and training images of the data set."""
        self.epochs = self._with_images(epochs, steps)
        start, stop = self._time(constants.RUN_START), self._last_time(constants.RUN_STOP)
        seconds = seconds_between(start, stop) if log.status == constants.SUCCESS else None
        self.target, self.has_no_target = self._read_target()
        self.machine = self._read_machine(size)
        self.image_size = self._read_image_size()
        self.initialization = seconds_between(
            self._time(constants.INIT_START), self._last_time(constants.INIT_STOP)
        )
        self.to_first_step = seconds_between(start, self._first_start())
        self.evaluations = self._read_evaluations(start)
        self.minutes_to_target = None if seconds is None else seconds / 60
        self._note_speeds()
        self._note_missing()

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

    def _lines(self, key: str) -> Iterator[LogLine]:
        """Yield the events of a key."""
        return (line for line in self.log.lines if line.key == key)

    def _time(self, key: str) -> int | None:
        """Return the time of the first event of a key. [ms]"""
        return min((line.time_ms for line in self._lines(key)), default=None)

    def _last_time(self, key: str) -> int | None:
        """Return the time of the last event of a key. [ms]"""
        return max((line.time_ms for line in self._lines(key)), default=None)

    def _count(self, key: str) -> int | None:
        """Return the value of a key that counts something."""
        return positive_integer(self.log.value(key))

    def _times(self, names: Mapping[str, str]) -> list[tuple[float, dict[str, int]]]:
        """Return the times of events by epoch, under the `names` of their keys, in order. [ms]

        All ranks may have logged them: the last `stop` counts, and the first of all else.
        """
        times: dict[float, dict[str, int]] = {}
        for line in self.log.lines:
            name, number = names.get(line.key), numbered_by(line)
            if name is not None and number is not None:
                pick, of_epoch = max if name == "stop" else min, times.setdefault(number, {})
                of_epoch[name] = pick(line.time_ms, of_epoch.get(name, line.time_ms))
        return sorted(times.items())

    def _read_epochs(self) -> tuple[Epoch, ...]:
        """Return the epochs that have a start and a stop, in order."""
        counts = {
            numbered_by(line): positive_integer(line.metadata.get(constants.EPOCH_COUNT)) or 1
            for line in self.log.lines
            if line.key in BLOCKS
        }
        times = self._times(EPOCHS)
        shift = (times[:1] or [(1, {})])[0][0] == 0 or self.log.value("first_epoch_num") == 0
        epochs = []
        for number, ends in times:
            start, stop, count = ends.get("start"), ends.get("stop"), counts.get(number, 1)
            if start is None or stop is None or stop < start:
                event = "stop" if stop is None else "start" if start is None else "valid stop"
                self.notes.append(f"epoch {number + shift:g}: left out, it has no {event}")
            else:
                last = number + shift + count - 1
                epochs.append(Epoch(number=last, count=count, start_ms=start, stop_ms=stop))
        return tuple(epochs)

    def _first_start(self) -> int | None:
        """Return the time at which the first epoch started, even if it has no stop. [ms]"""
        for start_key, stop_key in (
            (constants.EPOCH_START, constants.EPOCH_STOP),
            (constants.BLOCK_START, constants.BLOCK_STOP),
        ):
            first = self._time(start_key)
            # If its line is lost, the first one of the log is that of a later epoch.
            earlier = (self._time(stop_key), self._time(constants.EVAL_START))
            if first is not None and all(time is None or time > first for time in earlier):
                return first
        return None

    def _read_steps(self, epochs: Sequence[Epoch]) -> dict[float, int]:
        """Return the steps of the global batch size in each epoch, for logs that number steps."""
        at = {(line.key, line.time_ms): line.metadata.get("step_num") for line in self.log.lines}
        # Each compute group of ours has the logged batch size, and all take a step together.
        groups = positive_integer(self._own_ranks.get("compute_groups")) or 1
        steps = {}
        for epoch in epochs:
            first = finite_number(at.get((constants.EPOCH_START, epoch.start_ms)))
            last = finite_number(at.get((constants.EPOCH_STOP, epoch.stop_ms)))
            if first is not None and last is not None and last > first:
                steps[epoch.number] = int(last - first) * groups
        return steps

    def _read_images(self, steps: int | None) -> tuple[int | None, int | None]:
        """Return the images of an epoch and of the data set; `steps`: of the longest epoch."""
        samples, batch = self._count(constants.TRAIN_SAMPLES), self.batch_size
        # Ours counts images.
        if samples is None or samples == TRAINING_IMAGES or self._is_ours:
            return samples, samples
        if batch is not None:
            text = f"train_samples counts batches: {samples:,} × {batch:,} = "
            text += f"{samples * batch:,} images an epoch"
            if counts_batches(samples, batch):
                self.notes.append(f"{text}; MLPerf's data set has {TRAINING_IMAGES:,}")
                return samples * batch, TRAINING_IMAGES
            is_images = steps is not None and steps in (samples // batch, -(-samples // batch))
            if samples == steps and batch != 1:
                self.notes.append(f"{text}, which has {steps:,} steps")
                return samples * batch, samples * batch
            if is_images:
                return samples, samples
            if samples < batch:
                self.notes.append(f"{text}, since a batch has more")
                return samples * batch, samples * batch
        self.notes.append(f"train_samples {samples:,} is taken as images; nothing confirms it")
        return samples, samples

    def _with_images(
        self, epochs: Sequence[Epoch], steps: Mapping[float, int]
    ) -> tuple[Epoch, ...]:
        """Return epochs with their images, and note those that were cut short."""
        counted, batch, whole = [], self.batch_size, self.epoch_images
        for epoch in epochs:
            images, is_whole = None if whole is None else whole * epoch.count, True
            number, seconds = f"epoch {epoch.number:g}", significant(epoch.seconds, 3)
            if epoch.number in steps and batch is not None and whole is not None:
                taken = steps[epoch.number] * batch
                images, is_whole = min(taken, whole), taken > whole - batch
                if not is_whole:
                    part = f"{steps[epoch.number]:,} of {-(-whole // batch):,} steps"
                    self.notes.append(f"{number}: cut short after {part}, {seconds} s")
            elif epoch is epochs[-1] and self._ended_within(epoch):
                images, is_whole = None, False
                self.notes.append(f"{number}: left out, the run ended in it after {seconds} s")
            counted.append(replace(epoch, images=images, is_whole=is_whole))
        return tuple(counted)

    def _ended_within(self, epoch: Epoch) -> bool:
        """Return whether the last evaluation, beside which the epoch ran, ended the run."""
        # A log without its end may lack the evaluation of a whole epoch.
        if self.log.last(constants.RUN_STOP) is None:
            return False
        start = self._last_time(constants.EVAL_START)
        return (start is None or start < epoch.stop_ms) and any(
            epoch.start_ms < line.time_ms <= epoch.stop_ms
            for line in self._lines(constants.EVAL_ACCURACY)
        )

    def _read_evaluations(self, start_ms: int | None) -> tuple[Evaluation, ...]:
        """Return the evaluations in order; `start_ms` is MLPerf's clock's start."""
        accuracies: dict[float | None, float | None] = {}
        for line in self._lines(constants.EVAL_ACCURACY):
            accuracies.setdefault(numbered_by(line), finite_number(line.value))
        evaluations = []
        for number, times in self._times(EVALUATIONS):
            seconds, accuracy = (
                seconds_between(start_ms, times.get("accuracy")),
                accuracies.get(number),
            )
            evaluations.append(
                Evaluation(
                    epoch=number,
                    accuracy=accuracy,
                    minutes=None if seconds is None else seconds / 60,
                    seconds=seconds_between(times.get("start"), times.get("stop")),
                )
            )
            known = times if accuracy is not None else times.keys() - {"accuracy"}
            lost = [key for key, name in EVALUATIONS.items() if name not in known]
            if lost:
                self.notes.append(f"evaluation after epoch {number:g}: no {', '.join(lost)}")
        return tuple(evaluations)

    def _read_target(self) -> tuple[float | None, bool]:
        """Return the mAP at which the run stops, and whether it is known to have no target."""
        if "target_map" in self._own_training:
            target = finite_number(self._own_training["target_map"])
            return target, target is None
        if not self._is_closed:
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
    def _is_closed(self) -> bool:
        """Whether the log says that MLPerf's rules fix target and image size."""
        return self.log.value(constants.SUBMISSION_DIVISION) == constants.CLOSED

    def _read_image_size(self) -> int | None:
        """Return the side of the square of images. [pixels]"""
        size = self._count(constants.MAX_IMAGE_SIZE)
        if size is None and self._is_closed:
            self.notes.append(
                f"target mAP {TARGET_MAP} and images of {CLOSED_IMAGE_SIZE}×{CLOSED_IMAGE_SIZE} "
                "pixels are rules of the closed division; the log has neither"
            )
            return CLOSED_IMAGE_SIZE
        return size

    def _read_machine(self, size: Machine | None) -> Machine:
        """Return hosts, ranks and cores: of our environment.json, the log, and the user."""
        machine = machine_of_run(self._own_ranks)
        if machine.ranks is None:
            machine = Machine(hosts=hosts_of_platform(self.log), ranks=self._read_ranks())
        elif machine.cores is not None:
            per_rank = machine.cores // machine.ranks
            self.notes.append(
                f"cores {machine.cores} = ranks {machine.ranks} × {per_rank}, the cores on which "
                "rank 0 computes (environment.json)"
            )
        if size is None:
            return machine
        logged = asdict(machine)
        given = {name: number for name, number in asdict(size).items() if number is not None}
        for name, number in given.items():
            if logged[name] not in (None, number):
                raise InputError(
                    f"--size: {number} {name} in all, but {self.log.file} has {logged[name]}; "
                    "correct it"
                )
        return Machine(**(logged | given))

    def _read_ranks(self) -> int | None:
        """Return the number of ranks, from the batch sizes."""
        batch, local = self.batch_size, self._count("local_batch_size")
        if batch is None or local is None or batch % local:
            return None
        # Submitters differ in whether a local batch is accumulated.
        if self._count(constants.GRADIENT_ACCUMULATION_STEPS) != 1:
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
        values = [line.value for line in self._lines("tracked_stats")]
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
        """Note lines that cannot be read, and events without which cells stay empty."""
        starts = [line.time_ms for line in self._lines(constants.RUN_START)]
        if starts and max(starts) - min(starts) > 60_000:
            self.notes.append("run_start several times: several runs in a file? give one each")
        numbered = EPOCHS | EVALUATIONS
        unnumbered = {
            line.key
            for line in self.log.lines
            if line.key in numbered and numbered_by(line) is None
        }
        if unnumbered:
            names = ", ".join(sorted(unnumbered))
            self.notes.append(f"left out, without the number of an epoch: {names}")
        keys = {line.key for line in self.log.lines}
        is_known = {
            constants.SUBMISSION_BENCHMARK: self.log.value(constants.SUBMISSION_BENCHMARK)
            is not None,
            constants.GLOBAL_BATCH_SIZE: self.batch_size is not None,
            constants.TRAIN_SAMPLES: self.dataset_images is not None,
            **{key: key in keys for key in (constants.INIT_START, constants.INIT_STOP)},
            constants.RUN_START: constants.RUN_START in keys,
            constants.EPOCH_START: bool(keys & {constants.EPOCH_START, constants.BLOCK_START}),
            constants.EVAL_ACCURACY: bool(self.evaluations),
            constants.RUN_STOP: constants.RUN_STOP in keys,
        }
        if missing := [key for key, known in is_known.items() if not known]:
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
