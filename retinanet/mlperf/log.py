"""The `mlperf.log` of a run: its events, writing and reading.

Events and their order follow MLPerf Training's logging rules, for `retinanet` under rules 5.x and
`ssd` under 2.0 to 4.1; each line is written by MLCommons' `mllog`.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from common.errors import InputError
from common.files import LineFile, or_refused, or_unreadable, read_text, write_atomically
from common.machine import processor_name
from common.program import IMPORT_FOLDER
from common.wording import counted
from data.annotations import as_size
from retinanet.mlperf.rules import RULES, Rules, benchmark_name

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from launch.process_group import ProcessGroup
    from retinanet.config import Config


class MlperfLog:
    """The events of one run.

    They are buffered until the run has a folder. Ranks other than 0 have none and write nothing.
    """

    def __init__(self) -> None:
        # Not registered by logging.getLogger, so that no handler and level of the root applies.
        logger = logging.Logger("mlperf.log")
        self._events: SimpleQueue[logging.LogRecord] = SimpleQueue()
        logger.addHandler(QueueHandler(self._events))
        # mllog inserts `root_dir` into a regular expression. The offset makes an event name the
        # file and line that called `event`, `start` or `stop`.
        self._mllog = MLLogger(
            logger, root_dir=re.escape(str(IMPORT_FOLDER)), default_stack_offset=2
        )
        self._file: LineFile | None = None
        self._has_stopped = False
        self._images, self._seconds = 0, 0.0

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Log a value, or an event at a point in time."""
        self._mllog.event(key, value, metadata=metadata)
        self._write()

    def start(self, key: str, **metadata: Any) -> None:
        """Log the beginning of an interval."""
        self._mllog.start(key, metadata=metadata)
        self._write()

    def stop(self, key: str, **metadata: Any) -> None:
        """Log the end of an interval."""
        self._mllog.end(key, metadata=metadata)
        self._write()

    def events(self, values: Mapping[str, Any]) -> None:
        """Log several values."""
        for key, value in values.items():
            self._mllog.event(key, value)
        self._write()

    def write_to(self, file: Path, *, step: int, is_evaluated: bool) -> None:
        """Write buffered and all later events to a file.

        An existing file is from an earlier part of the run, which resumes after `step` optimizer
        steps: the clock continues, and events that will be logged again are removed.
        `is_evaluated`: whether the weights after these steps have been evaluated.

        Raises:
            InputError: It cannot be written.
        """
        # A run has one `run_start`, even if it is resumed: what an earlier start has logged is not
        # repeated. A changed setting is logged again, and the checker then rejects the run.
        logged = {line.content for line in truncate_log(file, step=step, is_evaluated=is_evaluated)}
        buffered = [self._events.get().getMessage() for _ in range(self._events.qsize())]
        with or_refused(file):
            self._file = LineFile(file)
        with suppress(OSError):
            for line in parse_events(buffered):
                if line.content not in logged:  # skip events that an earlier start has logged
                    self._file.write(line.text)

    def epoch_started(self, epoch: int, *, step: int) -> None:
        """Log that the first step of an epoch, counted from 1, is next."""
        self.start(constants.EPOCH_START, epoch_num=epoch, step_num=step)

    def stepped(self, *, images: int, seconds: float) -> None:
        """Count an optimizer step for the epoch's throughput."""
        self._images += images
        self._seconds += seconds

    def epoch_stopped(self, epoch: int, *, step: int) -> None:
        """Log that the last step of an epoch was taken."""
        if self._seconds:
            # In images per second of the optimizer steps: evaluations and checkpoints do not count.
            throughput = {"throughput": self._images / self._seconds}
            self.event("tracked_stats", throughput, epoch_num=epoch, step_num=step)
        self._images, self._seconds = 0, 0.0
        self.stop(constants.EPOCH_STOP, epoch_num=epoch, step_num=step)

    def evaluation_started(self, *, epoch: float, step: int) -> None:
        """Log the start of an evaluation of the current weights."""
        self.start(constants.EVAL_START, epoch_num=format_epoch(epoch), step_num=step)

    def evaluated(self, accuracy: float, *, epoch: float, step: int) -> None:
        """Log the weights' mAP."""
        position = {"epoch_num": format_epoch(epoch), "step_num": step}
        self.event(constants.EVAL_ACCURACY, accuracy, **position)
        self.stop(constants.EVAL_STOP, **position)

    def reached_target(self) -> None:
        """Log convergence: the clock stops here, before pictures and charts are drawn."""
        self.stop(constants.RUN_STOP, status=constants.SUCCESS)
        self._has_stopped = True

    def close(self) -> None:
        """Log the end of the run; one that has not converged may be resumed later."""
        if not self._has_stopped:
            self.stop(constants.RUN_STOP, status=constants.ABORTED)
        if self._file:
            self._file.close()

    def _write(self) -> None:
        """Write buffered events; a full disk must not end a training, `LineFile` retries later."""
        while self._file and not self._events.empty():
            with suppress(OSError):
                self._file.write(self._events.get().getMessage())


def format_epoch(epoch: float) -> float:
    """Return epochs as MLPerf counts them: 3, or 0.125 if a run ends within an epoch."""
    return int(epoch) if epoch == int(epoch) else round(epoch, 3)


DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@contextmanager
def running_log(config: "Config", *, group: "ProcessGroup", local_rank: int) -> Iterator[MlperfLog]:
    """Open the log of a run and start its clock; called by all ranks together.

    It is called before any data is read and before model and optimizer are created.

    Raises:
        InputError: `mlperf.clear_caches` is set, but only root can drop the page cache.
    """
    log, mlperf = MlperfLog(), config.mlperf
    hosts = len(set(group.hosts))  # assumes the same processor on all hosts
    platform = f"{counted(hosts, 'host')} of {processor_name()}"
    submission = {
        constants.SUBMISSION_BENCHMARK: benchmark_name(mlperf.rules),
        constants.SUBMISSION_DIVISION: mlperf.division,
        constants.SUBMISSION_ORG: mlperf.organization,
        constants.SUBMISSION_PLATFORM: mlperf.platform or platform,
        constants.SUBMISSION_STATUS: mlperf.status,
    }
    log.events(submission)
    log.start(constants.INIT_START)
    cleared = mlperf.clear_caches
    # The page cache belongs to the host: one of its ranks drops the cache for all of them.
    if cleared and local_rank == 0:
        # The kernel drops clean pages only. 3 also drops cached directory entries and inodes.
        os.sync()
        advice = "start as root, or set it to false and run `sysctl vm.drop_caches=3` before"
        with or_refused(f"mlperf.clear_caches: {DROP_CACHES}", advice=advice):
            DROP_CACHES.write_text("3\n", encoding="ascii")
    # The exchange is a barrier as well: the clock starts after all hosts have dropped their caches.
    log.event(constants.CACHE_CLEAR, all(group.all_gather(cleared, bool)))
    log.events(describe_settings(config, ranks=group.size))
    log.stop(constants.INIT_STOP)
    log.start(constants.RUN_START)
    try:
        yield log
    finally:
        log.close()


def describe_settings(config: "Config", *, ranks: int) -> dict[str, Any]:
    """Return the settings under MLPerf's names; `begin_log` adds the optimizer's parameters."""
    # Each compute group takes optimizer steps by itself, so the ranks of one group make up a batch.
    training, ranks_per_group = config.training, ranks // config.distributed.groups
    batch_size = ranks_per_group * training.batch_size * training.gradient_accumulation
    settings: dict[str, Any] = {
        constants.SEED: config.run.seed,
        constants.GLOBAL_BATCH_SIZE: batch_size,
        constants.GRADIENT_ACCUMULATION_STEPS: training.gradient_accumulation,
        constants.MAX_IMAGE_SIZE: max(as_size(config.data.image_size)),
        constants.OPT_NAME: training.optimizer,
        constants.OPT_BASE_LR: training.learning_rate,
        constants.OPT_WEIGHT_DECAY: training.weight_decay,
        constants.OPT_LR_WARMUP_EPOCHS: training.warmup_epochs,
        constants.OPT_LR_WARMUP_FACTOR: training.warmup_factor,
        constants.OPT_LR_DECAY_SCHEDULE: training.schedule,
    }
    if training.schedule == "step":
        settings[constants.OPT_LR_DECAY_BOUNDARY_EPOCHS] = list(training.milestones)
        settings[constants.OPT_LR_DECAY_FACTOR] = training.milestone_factor
    if training.clip_gradient_norm is not None:
        settings[constants.OPT_GRADIENT_CLIP_NORM] = training.clip_gradient_norm
    return settings


def begin_log(
    log: MlperfLog,
    *,
    model: "nn.Module",
    optimizer: "Optimizer",
    name: str,
    training_images: int,
    validation_images: int,
) -> None:
    """Log the facts known once a run is built; `name` is that of the optimizer, such as `adam`."""
    # Imported here, because the commands that check a log load this module, but not torch.
    from retinanet.model.retinanet import mlperf_key  # noqa: PLC0415

    numbers = optimizer.param_groups[0]
    if "betas" in numbers:
        for number, beta in enumerate(numbers["betas"], start=1):
            log.event(f"opt_{name}_beta_{number}", beta)
        log.event(f"opt_{name}_epsilon", numbers["eps"])
    if "momentum" in numbers:
        log.event(f"opt_{name}_momentum", numbers["momentum"])
    for key, _ in model.named_parameters():
        log.event(constants.WEIGHTS_INITIALIZATION, tensor=mlperf_key(key))
    log.event(constants.TRAIN_SAMPLES, training_images)
    log.event(constants.EVAL_SAMPLES, validation_images)


BEGIN = ":::MLLOG "
MOST_BYTES = 256_000_000  # Limit of a log: some contain the output of all ranks
GZIP = "\x1f\ufffd"  # The first two bytes of a gzip file, the second of which is no UTF-8
LATEST_MS, LARGEST = 2**53, 1e15  # Larger times and numbers are invalid
EVALUATION_KEYS = (constants.EVAL_START, constants.EVAL_ACCURACY, constants.EVAL_STOP)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One event; `text` is its line without line break, `time_ms` counts from 1970."""

    text: str
    key: str
    value: Any
    time_ms: int
    metadata: dict[str, Any]

    @property
    def content(self) -> str:
        """Key and value as text, to compare events."""
        return json.dumps([self.key, self.value])


def parse_events(texts: Iterable[str]) -> list[LogLine]:
    """Return the events among lines of text; other lines and truncated ones are skipped."""
    return [line for text in texts if (line := parse_event(text)) is not None]


def parse_event(text: str) -> LogLine | None:
    """Parse a line; return None if it is not an event."""
    # Launchers may put a rank before a line. The last mark counts, as in the RCP checker.
    text = text[max(text.rfind(BEGIN), 0) :]
    try:
        fields = json.loads(text.removeprefix(BEGIN))
        key, value, time_ms = fields["key"], fields["value"], fields["time_ms"]
        metadata = fields["metadata"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    # `type` instead of isinstance: `true` in JSON is an int for isinstance.
    is_event = isinstance(key, str) and isinstance(metadata, dict) and type(time_ms) is int
    if not is_event or not 0 <= time_ms < LATEST_MS:
        return None
    return LogLine(text=text, key=key, value=value, time_ms=time_ms, metadata=metadata)


def finite_number(value: object) -> float | None:
    """Return a value if it is a finite number, else None."""
    if type(value) not in (int, float):
        return None
    # Python parses NaN in JSON. The comparison is false for NaN, which is refused as well.
    return value if abs(value) <= LARGEST else None  # type: ignore[arg-type,return-value]


def read_events(file: Path) -> list[LogLine]:
    """Read the events of a file.

    Raises:
        OSError: The file cannot be read.
    """
    return parse_events(read_lines(file))


def read_lines(file: Path) -> list[str]:
    """Read the lines of a file.

    Raises:
        OSError: The file cannot be read.
    """
    return read_text(file, most_bytes=MOST_BYTES, errors="replace").splitlines()


def truncate_log(file: Path, *, step: int, is_evaluated: bool) -> list[LogLine]:
    """Remove the events that a run resumed after `step` will log again; return the other events.

    Removed are the end of the run, everything after `step`, the start of the next epoch, and an
    evaluation that has to be repeated.

    Raises:
        InputError: It cannot be written.
    """
    if not file.exists():
        return []
    # Events have the number of completed steps: an `epoch_start` at `step` begins the next epoch.
    last = dict.fromkeys(EVALUATION_KEYS, step if is_evaluated else step - 1)
    last[constants.EPOCH_START] = step - 1
    # Events without a number of steps, such as the settings, precede the first step and remain.
    remaining = [
        line
        for line in read_events(file)
        if line.key != constants.RUN_STOP
        and (finite_number(line.metadata.get("step_num")) or 0) <= last.get(line.key, step)
    ]
    write_atomically(file, "".join(f"{line.text}\n" for line in remaining))
    return remaining


NAME = "mlperf.log"
RESULT = re.compile(r"result_([0-9]{1,9})\.txt")


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """The log of one run."""

    file: Path
    lines: tuple[LogLine, ...]
    damaged: tuple[int, ...] = ()
    """The numbers, from 1, of lines that start like an event but are cut or invalid."""

    def value(self, key: str) -> Any:
        """Return the first value of a key, or None."""
        return next((line.value for line in self.lines if line.key == key), None)

    def last(self, key: str) -> LogLine | None:
        """Return the last event of a key, or None."""
        return next((line for line in reversed(self.lines) if line.key == key), None)

    @property
    def status(self) -> str:
        """`success`, `aborted`, or `running` if no end is logged."""
        stop = self.last(constants.RUN_STOP)
        return "running" if stop is None else str(stop.metadata.get(constants.STATUS))

    @property
    def epochs(self) -> float | None:
        """Epochs until the last evaluation."""
        evaluation = self.last(constants.EVAL_ACCURACY)
        return finite_number(evaluation.metadata.get("epoch_num")) if evaluation else None

    @property
    def accuracy(self) -> float | None:
        """The mAP of the last evaluation."""
        evaluation = self.last(constants.EVAL_ACCURACY)
        return finite_number(evaluation.value) if evaluation else None

    @property
    def minutes(self) -> float | None:
        """The time that MLPerf scores, from `run_start` to `run_stop`."""
        start, stop = self.last(constants.RUN_START), self.last(constants.RUN_STOP)
        return None if start is None or stop is None else (stop.time_ms - start.time_ms) / 60_000

    def rules(self, given: Rules | None) -> Rules:
        """Return the given rules, or the newest that have the log's benchmark name.

        Raises:
            InputError: The benchmark has another name under the given rules.
        """
        name = self.value(constants.SUBMISSION_BENCHMARK)
        matching = [rules for rules in RULES if benchmark_name(rules) == name]
        if not matching:
            raise InputError(f"{self.file}: submission_benchmark is {name}, not RetinaNet's")
        if given is not None and given not in matching:
            raise InputError(
                f"{self.file}: submission_benchmark is {name}, which is not in rules "
                f"{given}; give --rules {matching[0]}, or train with mlperf.rules={given}"
            )
        return given or matching[0]


def read_run_log(path: Path) -> RunLog:
    """Read the log in a run's folder, or a log file.

    Raises:
        InputError: The file is missing or has no MLPerf events.
    """
    file = path / NAME if path.is_dir() else path
    with or_unreadable(file, advice=f"give the folder of a run, such as runs/demo, or its {NAME}"):
        texts = read_lines(file)
    parsed = [parse_event(text) for text in texts]
    if not any(parsed) and texts and texts[0].startswith(GZIP):
        raise InputError(f"{file}: is compressed; unpack it, as by gunzip -k, and give the result")
    if not any(parsed):
        raise InputError(f"{file}: no lines of an MLPerf log (:::MLLOG …); give a run's {NAME}")
    numbered = enumerate(zip(texts, parsed, strict=True), start=1)
    return RunLog(
        file=file,
        lines=tuple(filter(None, parsed)),
        damaged=tuple(number for number, (text, line) in numbered if BEGIN in text and not line),
    )


def read_run_logs(paths: Sequence[Path]) -> list[RunLog]:
    """Return the logs of runs' folders, of folders of `result_N.txt`, and of files.

    Raises:
        InputError: A path has no log, or a file has no MLPerf events.
    """
    logs = []
    for path in paths:
        results = []
        if path.is_dir() and not (path / NAME).exists():
            with or_unreadable(path):
                matches = [(RESULT.fullmatch(file.name), file) for file in path.iterdir()]
            # Sorted as numbers: as text, result_10.txt would precede result_2.txt.
            results = sorted((int(match[1]), file) for match, file in matches if match)
        logs += [read_run_log(file) for _, file in results] or [read_run_log(path)]
    return logs
