"""The configuration of a run: typed sections with one line and a unit for each field.

A configuration is a YAML file, then `section.field=value` pairs from the command line on top of it.
Unknown names and wrong types are errors that name the place and the nearest valid name. Importing
this module loads no torch, because ranks are pinned after the configuration is known and
before torch is loaded.

What a field means elsewhere is marked in its annotation: `Resume` (a run that is resumed), `closed`
(MLPerf's closed division), `LogitCopies` (the memory estimate).
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from common.machine import fastest_precision
from retinanet.config_types import (
    DEFAULT_BETA1,
    DEFAULT_LIBRARY,
    MOST_IMAGES,
    MOST_STEPS,
    BatchSplit,
    LogitCopies,
    MetricLibrary,
    Resume,
    is_interval,
    is_window,
    marks_of,
    require_split,
    window_of,
)
from retinanet.mlperf.rules import NEWEST, TARGET_MAP, Closed, Rules, broken_rules, closed

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

MOST_STEPS_OF_RUN = 10**12
MOST_EPOCHS = 10**9
MOST_CORES = 10**5


def accepting(is_valid: Callable[[Any], bool], advice: str, **numbers: int) -> BeforeValidator:
    """Return a check whose message names all that is valid: pydantic's own, of a union, do not."""

    def require(value: object) -> object:
        if not is_valid(value):
            raise PydanticCustomError("value", advice, numbers)
        return value

    return BeforeValidator(require)


def number_or_auto(*, least: int, most: int) -> BeforeValidator:
    """Return a check of a number from `least` to `most`, or `auto`."""
    return accepting(
        lambda value: value == "auto" or (type(value) is int and least <= value <= most),
        "input should be a number from {least} to {most}, or auto",
        least=least,
        most=most,
    )


Steps = Annotated[
    str | None,
    accepting(
        lambda value: value is None or (isinstance(value, str) and is_window(value)),
        "input should be at most {most} steps, counted from 1, such as 20-22 or 20",
        most=MOST_STEPS,
    ),
    # Runs first: a single step may be given as a number.
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
]
"""A window of a run's steps; see `retinanet.config_types`."""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class RunConfig:
    """Where a run writes and how its randomness starts."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200), Resume.FREE
    ]
    """Folder below `root`; nothing outside it is written. [letters, digits, . _ -]"""
    root: Annotated[Path, Resume.FREE] = Path("runs")
    """Folder that holds the runs. [path]"""
    seed: Annotated[int, Field(ge=0, lt=2**32), Resume.MUST_MATCH] = 0
    """Seed of weights, order of images and augmentation. [integer]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ScenesConfig:
    """How many drawn scenes stand in for a data set."""

    train: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Scenes to train on. [images]"""
    validation: Annotated[int, Field(ge=1, le=10**7)] = 150
    """Held-out scenes to evaluate on. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class DataConfig:
    """Which pictures and boxes, and how they reach the model."""

    scenes: Annotated[ScenesConfig | None, Resume.MUST_MATCH] = None
    """Draw scenes below the run's folder instead of reading a data set. [section or null]"""
    root: Annotated[Path | None, Resume.FREE] = None
    """Folder with COCO's own tree or MLPerf's OpenImages tree. [path or null]"""
    train_annotations: Annotated[Path | None, Resume.FREE] = None
    """COCO-format JSON, or index, to train on, where `root` does not fit. [path or null]"""
    train_images: Annotated[Path | None, Resume.FREE] = None
    """Folder of the training images. [path or null]"""
    validation_annotations: Annotated[Path | None, Resume.FREE] = None
    """COCO-format JSON, or index, to evaluate on. [path or null]"""
    validation_images: Annotated[Path | None, Resume.FREE] = None
    """Folder of the validation images. [path or null]"""
    image_size: Annotated[
        int, Field(ge=64, le=16384, multiple_of=32), Resume.MUST_MATCH, closed(800)
    ] = 800
    """Images are resized to this square, whatever their shape. [pixels]"""
    class_indices: Annotated[Literal["contiguous", "category_id"], Resume.MUST_MATCH] = "contiguous"
    """Class numbers of the model: the JSON's categories in order, or its category ids. [name]"""
    images_without_boxes: Annotated[
        Literal["skip", "train"], Resume.MUST_MATCH, closed("train")
    ] = "skip"
    """Leave them out of training, as torchvision does, or train on them as MLPerf does. [name]"""
    decoder: Literal["auto", "pillow", "accimage", "torchvision", "simplejpeg"] = "auto"
    """What decodes JPEGs; auto: the fastest that is installed. Pillow does the rest. [name]"""
    on_bad_image: Annotated[Literal["stop", "skip"], Resume.FREE, closed("stop")] = "stop"
    """An image that cannot be read: end the run, or let another stand in for it. [name]"""
    bad_image_limit: Annotated[int, Field(ge=1, le=10**9), Resume.FREE] = 100
    """With on_bad_image=skip the run ends after so many all the same. [images]"""
    workers: Annotated[int | Literal["auto"], number_or_auto(least=0, most=4096), Resume.FREE] = (
        "auto"
    )
    """Processes that load images; 0: the training process; auto: as steps show. [processes]"""
    reserve_cores: Annotated[int, Field(ge=0, le=MOST_CORES), Resume.FREE] = 0
    """Cores of a rank that only load images; the training has the others. [cores]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ModelConfig:
    """The detector: RetinaNet with a ResNeXt50-32x4d backbone."""

    norm: Annotated[Literal["frozen", "batch"], Resume.MUST_MATCH, closed("frozen")] = "frozen"
    """Batch norms as constants (needs pretrained weights), or trained with the rest. [name]"""
    trainable_layers: Annotated[int, Field(ge=0, le=5), Resume.MUST_MATCH, closed(3)] = 3
    """Backbone stages that train, counted from the last; 5 trains all. MLPerf: 3. [stages]"""
    pretrained_backbone: Annotated[
        str | None, Resume.FREE, Closed("torchvision, or its file", lambda value: value is not None)
    ] = None
    """Weights to start from: .safetensors file, or `torchvision` (download). [or null]"""
    num_classes: Annotated[int | None, Field(ge=1, lt=10**5), Resume.MUST_MATCH] = None
    """Outputs of the classification head; null takes what the categories need. [classes]"""

    @field_validator("pretrained_backbone")
    @classmethod
    def require_no_pickle(cls, file: str | None) -> str | None:
        """Refuse what would have to be unpickled, before anything else is done."""
        if file not in (None, "torchvision") and not str(file).endswith(".safetensors"):
            advice = (
                "input should be a .safetensors file or torchvision; a .pth can run code, so it is "
                "made into one once, by python -m retinanet convert FILE.pth --out FILE.safetensors"
            )
            raise PydanticCustomError("pickle", advice)
        return file


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TrainingConfig:
    """The schedule: MLPerf's, unless changed."""

    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS), Resume.LENGTH] = 8
    """Passes over the training images. [epochs]"""
    max_steps: Annotated[
        int | None, Field(ge=1, le=MOST_STEPS_OF_RUN), Resume.LENGTH, closed(None)
    ] = None
    """End after so many optimizer steps, with an evaluation, whatever `epochs` says. [steps]"""
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 2
    """Images a rank takes through the model at once, on average (batch_split). [images]"""
    gradient_accumulation: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Batches whose gradients are averaged into one optimizer step. [batches]"""
    optimizer: Annotated[Literal["adam", "sgd", "lamb"], Resume.MUST_MATCH, closed("adam")] = "adam"
    """What makes steps of gradients. MLPerf: adam. [name]"""
    momentum: Annotated[float, Field(ge=0, lt=1), Resume.MUST_MATCH] = 0.0
    """sgd's only, often 0.9: what a step keeps of the direction of the last one. [share]"""
    beta1: Annotated[
        float | Literal["auto"],
        accepting(
            lambda value: value == "auto" or (type(value) in (int, float) and 0 <= value < 1),
            "input should be a number from 0 to below 1, or auto",
        ),
        Resume.FREE,
        closed(DEFAULT_BETA1, "auto"),
    ] = "auto"
    """adam's and lamb's momentum; auto: 0.9, less 1 − 1/g with g compute groups. [share]"""
    weight_decay: Annotated[float, Field(ge=0), closed(0)] = 0.0
    """Share of a weight that joins its gradient, or for lamb its update. MLPerf: 0. [share]"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """The optimizer's step size after warm-up. [1/step]"""
    warmup_epochs: Annotated[float, Field(ge=0, le=MOST_EPOCHS)] = 1.0
    """Length of the linear warm-up, which advances every step. [epochs]"""
    warmup_factor: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Share of the learning rate at the first step. [factor]"""
    schedule: Annotated[Literal["constant", "cosine"], closed("constant")] = "constant"
    """The learning rate after warm-up: as it is, or falling to zero at the last step. [name]"""
    clip_gradient_norm: Annotated[float | None, Field(gt=0), closed(None)] = None
    """L2 norm to which a step's gradients are shortened where theirs is larger. [norm or null]"""
    on_nonfinite: Annotated[Literal["stop", "skip"], Resume.FREE, closed("stop")] = "stop"
    """A step whose loss or gradients are not finite: end the run, or go on without it. [name]"""
    nonfinite_limit: Annotated[int, Field(ge=1, le=MOST_STEPS_OF_RUN), Resume.FREE] = 10
    """With on_nonfinite=skip the run (or group) ends after so many skipped ones. [steps]"""
    target_map: Annotated[float | None, Field(gt=0, le=1), Resume.FREE, closed(TARGET_MAP)] = None
    """End when an evaluation reaches this mAP (IoU 0.50:0.95); MLPerf: 0.34. [mAP or null]"""

    @field_validator("momentum")
    @classmethod
    def require_sgd(cls, momentum: float, others: ValidationInfo) -> float:
        """Refuse a momentum that would be ignored."""
        name = others.data.get("optimizer")
        if momentum and name in ("adam", "lamb"):
            advice = "only training.optimizer=sgd has one, and it is {name}"
            raise PydanticCustomError("unused", advice, {"name": name})
        return momentum


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured and drawn after epochs."""

    every: Annotated[int, Field(ge=1, le=MOST_EPOCHS), closed(1)] = 1
    """Evaluate and write a checkpoint after so many epochs, and at the end. [epochs]"""
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 8
    """Images evaluated at once. [images]"""
    metric: MetricLibrary = DEFAULT_LIBRARY
    """What computes mAP; pycocotools: the arbiter, ten times as slow, same numbers. [name]"""
    overlap: bool = False
    """Compute it, and write its files, beside the next epoch's steps, on CPUs left free. [bool]"""
    pictures: Annotated[int, Field(ge=0, le=MOST_IMAGES)] = 6
    """Validation images drawn with predicted and true boxes at each evaluation. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class CheckpointConfig:
    """What a run keeps of itself while it goes, beside the checkpoints of evaluations."""

    every: Annotated[
        str,
        accepting(
            lambda value: isinstance(value, str) and is_interval(value),
            "input should be a time, steps or epochs, such as 30min, 2h, 500 steps or epoch",
        ),
    ] = "30min"
    """Write one so often: 30min, 2h, 500 steps, epoch. [time, steps or epochs]"""
    keep: Annotated[int, Field(ge=1, le=MOST_STEPS_OF_RUN)] = 3
    """The last ones that stay on the disk, beside the best by mAP. [checkpoints]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EngineConfig:
    """How the arithmetic is done. `engine: ipex` is short for `engine.name: ipex`."""

    name: Annotated[Literal["auto", "torch", "ipex"], Resume.FREE] = "auto"
    """`torch`, `ipex` (the paper's, see `make ipex`), or `auto`: the faster, torch. [name]"""
    precision: Annotated[
        Literal["auto", "bf16", "float32"],
        AfterValidator(lambda value: fastest_precision() if value == "auto" else value),
        Field(validate_default=True),
    ] = "auto"
    """Of the model's arithmetic: bf16, float32, or auto: bf16 if the processor has it. [name]"""
    convolutions: Literal["auto", "onednn", "winograd"] = "auto"
    """In BF16; auto: own tiles on AMX, Winograd's on AVX-512 BF16, else oneDNN's. [name]"""
    focal_loss: Annotated[
        Literal["auto", "kernel", "paper", "paper_implicit", "reference"],
        LogitCopies({"auto": 1, "kernel": 1, "paper": 11, "paper_implicit": 11, "reference": 40}),
    ] = "auto"
    """Form of the classification loss; auto: kernel, or paper where nothing compiles C++. [name]"""
    allocator: Annotated[Literal["tuned", "system", "tcmalloc", "jemalloc"], Resume.FREE] = "tuned"
    """malloc: the C library's, told to keep memory or as it is, or a preloaded one. [name]"""

    @field_validator("convolutions")
    @classmethod
    def require_torch_and_bf16(cls, convolutions: str, others: ValidationInfo) -> str:
        """Refuse convolutions that would be ignored."""
        of_another = others.data.get("name") == "ipex" or others.data.get("precision") == "float32"
        if convolutions == "winograd" and of_another:
            advice = "only engine.name=torch with engine.precision=bf16 has them; take auto"
            raise PydanticCustomError("unused", advice)
        return convolutions


@dataclass(config=STRICT, frozen=True, kw_only=True)
class LaunchConfig:
    """Which cores and memory a rank gets, of those that its host offers."""

    pin: bool = True
    """Keep each rank on cores and memory of its own; false: where the system puts it. [bool]"""
    threads: Annotated[int | Literal["auto"], number_or_auto(least=1, most=MOST_CORES)] = "auto"
    """Compute threads of a rank, one a core; auto: all cores of its share. [threads]"""
    comm_cores: Annotated[int, Field(ge=0, le=MOST_CORES)] = 0
    """Cores of a rank that only exchange gradients; best with ccl on many cores. [cores]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class DistributedConfig:
    """How several ranks share a batch, and exchange gradients."""

    backend: Annotated[Literal["auto", "shared", "gloo", "ccl"], Resume.FREE] = "auto"
    """auto: ccl where it is installed, else shared memory on one host, gloo on several. [name]"""
    groups: Annotated[int, Field(ge=1, le=MOST_CORES), Resume.FREE, closed(1)] = 1
    """Compute groups: ranks wait for those of their group alone; 1: for all. [groups]"""
    batch_split: Annotated[BatchSplit, BeforeValidator(require_split), Resume.FREE] = "even"
    """Images of ranks: even, by measured speed, or as told, such as [3, 1]. [name or list]"""
    compress: Literal["none", "bf16"] = "none"
    """Number format in which gradients travel; bf16 halves the bytes and rounds. [name]"""
    timeout_s: Annotated[float, Field(gt=0, le=10**7), Resume.FREE] = 600.0
    """A rank that is silent for so long ends the job; above rank 0's longest work. [seconds]"""

    @field_validator("batch_split")
    @classmethod
    def require_one_group(cls, split: BatchSplit, others: ValidationInfo) -> BatchSplit:
        """Refuse a split where groups take as many batches as they can anyway."""
        if split != "even" and others.data.get("groups", 1) > 1:
            advice = "is even where distributed.groups is above 1: faster groups take more batches"
            raise PydanticCustomError("unused", advice)
        return split


@dataclass(config=STRICT, frozen=True, kw_only=True)
class OneDnnProfileConfig:
    """oneDNN's log of some steps, in `onednn/rank<N>.log` of the run's folder."""

    steps: Steps = None
    """Every rank logs these, with marks of their phases, such as 20-22. [steps or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TraceProfileConfig:
    """torch.profiler's trace of some steps, in `trace/rank<N>.json.gz` of the run's folder."""

    steps: Steps = None
    """Every rank traces these, with marks of phases and modules, such as 20-22. [steps or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ProfileConfig:
    """What is looked at closely while it runs; weights become the same."""

    onednn: OneDnnProfileConfig | None = None
    """oneDNN's log of some steps. [section or null]"""
    trace: TraceProfileConfig | None = None
    """torch.profiler's trace of some steps. [section or null]"""
    perf: bool = False
    """Also count cycles, page faults and more in those steps, where perf can. [bool]"""

    @field_validator("perf")
    @classmethod
    def require_window(cls, perf: bool, others: ValidationInfo) -> bool:
        """Refuse counters that would never be read."""
        windows = (others.data.get("onednn"), others.data.get("trace"))
        if perf and not any(window and window.steps for window in windows):
            advice = "counts in the steps of a profile; add profile.onednn.steps=20-22"
            raise PydanticCustomError("no_steps", advice)
        return perf

    @property
    def onednn_steps(self) -> range:
        """Those that oneDNN logs; empty: none."""
        return window_of(self.onednn.steps if self.onednn else None)

    @property
    def trace_steps(self) -> range:
        """Those that are traced; empty: none."""
        return window_of(self.trace.steps if self.trace else None)


@dataclass(config=STRICT, frozen=True, kw_only=True)
class MlperfConfig:
    """What `mlperf.log` says of a run to MLCommons' checkers (docs/mlperf.md)."""

    division: Literal["open", "closed"] = "open"
    """closed: MLPerf's own model, data and schedule, or the run is refused. [name]"""
    rules: Rules = NEWEST
    """Rule set that the log is for; before 5.0.0 the benchmark is called `ssd`. [version]"""
    organization: Annotated[str, Field(min_length=1)] = "unnamed"
    """Who submits. [text]"""
    platform: Annotated[str, Field(min_length=1)] | None = None
    """Name of the system; null: the number of hosts and their processor. [text or null]"""
    status: Literal["onprem", "cloud", "research", "preview"] = "research"
    """Of the system: whether others can have one. [name]"""
    clear_caches: bool = False
    """Let every host forget what it has read of files before the clock starts; root only. [bool]"""
    submission: Path | None = None
    """A submission's folder, to which the run adds its log when it has finished. [path or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Config:
    """A whole run."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: Annotated[EvaluationConfig, Resume.FREE] = EvaluationConfig()
    checkpoint: Annotated[CheckpointConfig, Resume.FREE] = CheckpointConfig()
    engine: EngineConfig = EngineConfig()
    launch: Annotated[LaunchConfig, Resume.FREE] = LaunchConfig()
    distributed: DistributedConfig = DistributedConfig()
    profile: Annotated[ProfileConfig, Resume.FREE] = ProfileConfig()
    mlperf: Annotated[MlperfConfig, Resume.FREE] = MlperfConfig()

    @field_validator("engine")
    @classmethod
    def require_right_gradients(cls, engine: EngineConfig, others: ValidationInfo) -> EngineConfig:
        """Refuse sizes for which IPEX's BF16 gradients hold NaN (docs/experiments.md)."""
        data = others.data.get("data")
        wrong = engine.name == "ipex" and engine.precision == "bf16"
        if wrong and isinstance(data, DataConfig) and data.image_size <= 64:
            advice = "ipex in bf16 has NaN gradients at data.image_size=64 and below; take 96"
            raise PydanticCustomError("wrong_gradients", advice)
        return engine

    @field_validator("distributed")
    @classmethod
    def require_torch(
        cls, distributed: DistributedConfig, others: ValidationInfo
    ) -> DistributedConfig:
        """Refuse groups where weights are in pieces, as IPEX has them."""
        engine = others.data.get("engine")
        if distributed.groups > 1 and isinstance(engine, EngineConfig) and engine.name == "ipex":
            advice = "groups above 1 need engine.name=torch: ipex keeps weights in pieces"
            raise PydanticCustomError("pieces", advice)
        return distributed

    @field_validator("mlperf")
    @classmethod
    def require_division(cls, mlperf: MlperfConfig, others: ValidationInfo) -> MlperfConfig:
        """Refuse what MLPerf's closed division does not allow."""
        broken = broken_rules(others.data) if mlperf.division == "closed" else []
        if broken:
            advice = "in the closed division {rules}; set it so, or mlperf.division=open"
            raise PydanticCustomError("division", advice, {"rules": "; ".join(broken)})
        return mlperf


SCHEMA = TypeAdapter(Config)

SECTIONS = {
    "run": RunConfig,
    "data": DataConfig,
    "data.scenes": ScenesConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "engine": EngineConfig,
    "launch": LaunchConfig,
    "distributed": DistributedConfig,
    "profile": ProfileConfig,
    "profile.onednn": OneDnnProfileConfig,
    "profile.trace": TraceProfileConfig,
    "mlperf": MlperfConfig,
}


def field_names() -> list[str]:
    """Return every valid dotted name, such as `training.batch_size`."""
    sections = SECTIONS.items()
    return [f"{name}.{field.name}" for name, kind in sections for field in dataclasses.fields(kind)]


def resume_marks() -> dict[str, Resume]:
    """Return what a changed field means for a resumed run: by dotted name, or a whole section's.

    A name that is not there, and whose section is not, is a field that the next steps depend on.
    """
    marks = marks_of(Config, Resume)
    for section, kind in SECTIONS.items():
        marks |= {f"{section}.{name}": mark for name, mark in marks_of(kind, Resume).items()}
    return marks


def config_to_tree(config: Config) -> dict[str, Any]:
    """Return plain values for YAML and JSON; `config_from_tree` gives the configuration back."""
    return SCHEMA.dump_python(config, mode="json")


def field_help() -> str:
    """Return all fields with their meaning and default, for `--help`."""
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"{section}: {(kind.__doc__ or '').strip()}")
        properties = TypeAdapter(kind).json_schema()["properties"]
        for field in dataclasses.fields(kind):
            meaning = properties[field.name]["description"]
            default = "" if field.default is dataclasses.MISSING else f" (default {field.default})"
            lines.append(f"  {section}.{field.name}: {meaning}{default}")
    return "\n".join(lines)
