"""Training from Python: `train(config, …)` starts it, and yields its metrics as they come."""

import atexit
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from common.errors import InputError, names_checked, require_count
from common.files import read_json_lines
from common.program import module_command
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.training_job import TrainingJob

LOSSES = ("classification", "bbox_regression")
PLAIN_METRICS = ("map", "map_50", "map_75")


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step; numbers are NaN in a step that was skipped for its loss."""

    step: int  # Steps since the start of the run, from 1
    epoch: float  # Completed epochs, with the fraction of the current one
    loss: float
    losses: dict[str, float]  # The terms of the loss: `classification`, `bbox_regression`
    learning_rate: float
    gradient_norm: float
    images_per_second: float
    seconds: float

    def __str__(self) -> str:
        """Return step, loss and speed on a line."""
        return (
            f"step {self.step}, epoch {self.epoch:.2f}: loss {self.loss:.4f}, "
            f"{self.images_per_second:.2f} images/s"
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """One evaluation on the validation images; a metric is NaN if there was nothing to measure."""

    step: int  # Steps before it
    epoch: float
    map: float  # COCO's mAP, IoU 0.50:0.95
    map_50: float  # mAP at an IoU of 0.50
    map_75: float
    metrics: dict[str, float]  # COCO's twelve, by the names in metrics.jsonl
    per_class: dict[str, float]  # mAP by class
    seconds: float

    def __str__(self) -> str:
        """Return step and mAP on a line."""
        return (
            f"step {self.step}, epoch {self.epoch:.2f}: mAP {self.map:.3f}, mAP50 {self.map_50:.3f}"
        )


Record: TypeAlias = StepRecord | EvaluationRecord


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a training has left: `Detector.load(result.run)` loads its best checkpoint."""

    run: Path  # The folder with all files of the run
    is_finished: bool  # False: it was stopped, and `train(…, resume=True)` continues
    steps: int  # Steps since the start of the run
    best_map: float | None  # None: no evaluation yet
    best_checkpoint: Path | None  # None: no evaluation yet
    last_checkpoint: Path | None  # None: it was stopped before the first


@names_checked()
def train(
    config: str | os.PathLike[str] | Mapping[str, Any] = "demo.yaml",
    *,
    resume: bool = False,
    overwrite: bool = False,
    ranks: int = 1,
    **settings: Any,
) -> "Training":
    """Start a training in a process of its own; iterating over the result yields its metrics.

    `config` is the path of a YAML file, a name in `configs/`, or a mapping of sections, such as
    `{"data": {"root": "/data/coco"}, "run": {"name": "mine"}}`. `settings` go before it, by
    section: `training={"epochs": 3}, engine="torch"`; only the fields that are named change.
    `resume` continues the run from its last checkpoint, `overwrite` removes its files first.
    `ranks` processes of this host take each step together, as `mpirun -np` starts them.

    Leaving the loop (`break`, Ctrl-C), `stop()`, and the end of Python stop the training after its
    step, with a checkpoint. So use a loop or `wait()`.

    Raises:
        InputError: A setting is wrong; see also `Training.wait`.
    """
    return Training(config, resume=resume, overwrite=overwrite, ranks=ranks, settings=settings)


class Training:
    """A training that runs in another process; `train` starts one.

    Iterating yields a `StepRecord` for each step and an `EvaluationRecord` for each evaluation as
    they are written, until the training ends, and raises what `wait` raises. Leaving the loop
    before stops the training. It is for one thread.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any],
        *,
        resume: bool,
        overwrite: bool,
        ranks: int,
        settings: Mapping[str, Any],
    ) -> None:
        """Check the settings, and start the process; arguments as in `train`."""
        if resume and overwrite:
            raise InputError("resume and overwrite: give one of them")
        require_count(ranks, name="ranks")
        self._temporary = tempfile.TemporaryDirectory(prefix="retinanet-")
        overrides = [*override_pairs(settings)]
        file = config_file(config, folder=Path(self._temporary.name))
        self._config = checked_config(file, overrides, is_mapping=isinstance(config, Mapping))
        self.run: Path = (self._config.run.root / self._config.run.name).absolute()
        """The folder of the run."""
        self.result: TrainingResult | None = None
        """None until the training has ended."""
        self._last: Record | None = None
        options = ["--config", file, *overrides]
        options += ["--resume"] * resume + ["--overwrite"] * overwrite
        launcher = [*module_command("launch"), "run", "--np", str(ranks), "--"]
        self._job = TrainingJob(
            self.run,
            options,
            log=Path(self._temporary.name) / "output",
            launcher=launcher if ranks > 1 else (),
        )
        self._owner = os.getpid()
        # This also keeps the object, and so the training, until it has ended.
        atexit.register(self._end_with_python)

    @property
    def output(self) -> str:
        """What the training has printed so far, such as the table of each evaluation."""
        return self._job.output

    @property
    def progress(self) -> float:
        """How much of the training is done, from 0 to 1, as of the last record that was yielded."""
        if self.result is not None and self.result.is_finished:
            return 1.0
        if self._last is None:
            return 0.0
        settings = self._config.training
        parts = [self._last.epoch / settings.epochs]
        if settings.max_steps is not None:
            parts.append(self._last.step / settings.max_steps)
        return min(1.0, max(parts))

    def __iter__(self) -> Iterator[Record]:
        """Yield records until the training ends; stop it if the loop is left before."""
        try:
            for content in self._job.follow():
                if record := parse_record(content):
                    self._last = record
                    yield record
        except BaseException:  # GeneratorExit, when a loop is left
            self._stop()
            raise
        self._stop()
        self._raise_failure()

    def wait(self) -> TrainingResult:
        """Wait for the end of the training; Ctrl-C stops it.

        Raises:
            InputError: The settings do not fit the data or the machine; as of `retinanet train`.
            NonFiniteLossError: The loss was infinite or NaN.
            WorkerDiedError: The process ended otherwise, such as by a lack of memory.
        """
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def stop(self) -> TrainingResult:
        """Stop after the current step, with a checkpoint, and return what there is.

        Ctrl-C ends the process without a checkpoint. Raises what `wait` raises, if the training had
        failed before.
        """
        self._stop()
        self._raise_failure()
        assert self.result is not None
        return self.result

    def __enter__(self) -> Self:
        """Return the training, which is stopped at the end of the context if it still runs."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the training."""
        self._stop()

    def __repr__(self) -> str:
        """Return a line with the folder of the run and its progress."""
        if self.result is None:
            state = f"{self.progress:.0%}"
        else:
            state = "finished" if self.result.is_finished else "stopped"
        return f"<Training {self.run}, {state}>"

    def _stop(self) -> None:
        try:
            self._job.stop()
        finally:
            self._close()

    def _close(self) -> None:
        if self.result is not None:
            return
        self.result = read_result(self.run, is_finished=self._job.is_finished)
        self._temporary.cleanup()
        atexit.unregister(self._end_with_python)

    def _raise_failure(self) -> None:
        try:
            self._job.raise_failure()
        except InputError as error:
            raise InputError(as_python(str(error))) from None

    def _end_with_python(self) -> None:
        if os.getpid() != self._owner:  # a fork that ends, and is not the caller
            return
        print(f"{self.run}: stopped, since Python ends; wait() trains to the end", file=sys.stderr)
        self._stop()


def parse_record(content: Mapping[str, Any]) -> Record | None:
    """Return a line of `metrics.jsonl`; None for the other kinds, such as an unreadable image."""

    def number(value: float | None) -> float:
        return math.nan if value is None else float(value)

    def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
        return {name: number(value) for name, value in values.items()}

    if content["kind"] == "step":
        rates = ("loss", "learning_rate", "gradient_norm", "images_per_second", "seconds")
        return StepRecord(
            step=content["step"],
            epoch=content["epoch"],
            losses=numbers({name: content[name] for name in LOSSES}),
            **{name: number(content[name]) for name in rates},
        )
    if content["kind"] == "evaluation":
        metrics = {key: value for key, value in content.items() if key.startswith(("map", "mar"))}
        return EvaluationRecord(
            step=content["step"],
            epoch=content["epoch"],
            **{name: number(content[name]) for name in PLAIN_METRICS},
            metrics=numbers(metrics),
            per_class=numbers(content["per_class"]),
            seconds=content["seconds"],
        )
    return None


def read_result(run: Path, *, is_finished: bool) -> TrainingResult:
    """Return what is in the folder of a run that has ended."""
    with_steps: list[dict[str, Any]] = []
    with suppress(OSError):
        with_steps = [entry for entry in read_json_lines(run / "metrics.jsonl") if "step" in entry]
    maps = [entry["map"] for entry in with_steps if entry["kind"] == "evaluation"]
    best, last = (
        # `Path.exists` raises an error for a name that is too long, which the training has printed.
        path if os.path.exists(path) else None  # noqa: PTH110
        for path in (run / "checkpoints" / name for name in ("best", "last"))
    )
    return TrainingResult(
        run=run,
        is_finished=is_finished,
        steps=max((entry["step"] for entry in with_steps), default=0),
        best_map=max((value for value in maps if value is not None), default=None),
        best_checkpoint=best,
        last_checkpoint=last,
    )


def override_pairs(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `section.field=value` for each field of nested mappings; values are JSON."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from override_pairs(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={as_json(value, name=f'{prefix}{name}')}"


def as_json(value: object, *, name: str) -> str:
    """Return the value of the setting `name` as JSON, which is YAML too; a path is text."""
    return json.dumps(plain_value(value, name=name), ensure_ascii=False)


def plain_value(value: object, *, name: str) -> object:
    """Return a value of plain types; numbers of numpy and torch are numbers, paths text.

    Raises:
        InputError: It is, or contains, something else; the message begins with its setting.
    """
    if isinstance(value, Mapping):
        prefix = f"{name}." if name else ""
        return {str(key): plain_value(item, name=f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, name=f"{name}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # A number that is an array without dimensions; neither library is loaded for it.
    if getattr(value, "ndim", None) == 0 and callable(item := getattr(value, "item", None)):
        value = item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(
        f"{name}: expected a number, text, list or mapping, found {type(value).__name__}"
    )


def config_file(config: str | os.PathLike[str] | Mapping[str, Any], *, folder: Path) -> str:
    """Return the name for `--config`; a mapping is written into the folder."""
    if isinstance(config, str | os.PathLike):
        return os.fspath(config)
    if not isinstance(config, Mapping):
        raise InputError(
            "config: expected a path, a name in configs/ or a mapping of sections, found "
            f"{type(config).__name__}"
        )
    # The run is named after the file, unless the mapping has a name.
    file = folder / "python.yaml"
    try:
        file.write_text(as_json(config, name=""), encoding="utf-8")
    except InputError as error:
        raise InputError(f"config: {error}") from None
    return str(file)


def checked_config(file: str, overrides: Sequence[str], *, is_mapping: bool) -> Config:
    """Return the configuration; the message of an InputError names the arguments of `train`."""
    try:
        return load_config(file, overrides)
    except InputError as error:
        message = str(error)
        if is_mapping:
            message = message.replace(file, "config", 1)
        raise InputError(as_python(message)) from None


def as_python(message: str) -> str:
    """Return a message of the command line with what it advises as arguments of `train`."""
    message = re.sub(r"--(resume|overwrite)\b", r"\1=True", message)
    message = message.replace("run.name=NEW", "run={'name': 'NEW'}")
    return message.removeprefix("command line: ")
