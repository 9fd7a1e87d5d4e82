"""The sections of a configuration: their fields, and the checks within a section.

Every field has a type, a default, and one line of help with a unit. Marks in its annotation state
its effect elsewhere: `Resume` (on a resumed run), `Hosts` (on other hosts), `closed` (MLPerf's
closed division), `LogitCopies` (on the memory estimate). `retinanet.config` joins the sections.
Importing this module loads no torch, because ranks are pinned after the configuration is known and
before torch is loaded.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.dataclasses import dataclass

from common.errors import MOST_CLASSES
from retinanet.config_types import (
    AUGMENTATION_NAMES,
    BEST_COCO_DETECTOR,
    DEFAULT_ARCHITECTURE,
    DEFAULT_BETA1,
    DEFAULT_MILESTONE_FACTOR,
    DETECTOR,
    EXPORTED,
    INTERVAL,
    MOST_CORES,
    MOST_EPOCHS,
    MOST_IMAGES,
    MOST_STEPS_OF_RUN,
    PICKLES,
    STRICT,
    TORCHVISION,
    Architecture,
    Augmentation,
    BackboneName,
    BatchSplit,
    ClassWeightsInFile,
    Hosts,
    LogitCopies,
    Milestones,
    PartOfArchitecture,
    Precision,
    Resume,
    Side,
    Steps,
    VariantName,
    as_one,
    chosen_precision,
    expected,
    parse_window,
    refused,
    require_class_weights,
    whole,
)
from retinanet.mlperf.rules import NEWEST, TARGET_MAP, Closed, Rules, closed


@dataclass(config=STRICT, frozen=True, kw_only=True)
class RunConfig:
    """The output folder and the random seed."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200), Resume.FREE
    ]
    """Folder of the run, below `root`, for all its results. [letters, digits, . _ -]"""
    root: Annotated[Path, Resume.FREE, Hosts.MAY_DIFFER] = Path("runs")
    """Folder that holds the runs. [path]"""
    seed: Annotated[int, Field(ge=0, lt=2**32), Resume.MUST_MATCH] = 0
    """Seed of weights, order of images and augmentation. [integer]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ScenesConfig:
    """The size of a synthetic data set."""

    train: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """Synthetic training images. [images]"""
    validation: Annotated[int, Field(ge=1, le=10**7)] = 150
    """Synthetic validation images. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class DataConfig:
    """The data set, and how its images are loaded."""

    scenes: Annotated[ScenesConfig | None, Resume.MUST_MATCH] = None
    """Generate synthetic images in the run's folder instead of reading files. [section or null]"""
    root: Annotated[Path | None, Resume.FREE, Hosts.MAY_DIFFER] = None
    """Folder with the layout of COCO or of MLPerf's OpenImages. [path or null]"""
    train_annotations: Annotated[Path | None, Resume.FREE, Hosts.MAY_DIFFER] = None
    """COCO-format JSON or index of the training split, for other layouts. [path or null]"""
    train_images: Annotated[Path | None, Resume.FREE, Hosts.MAY_DIFFER] = None
    """Folder of the training images. [path or null]"""
    validation_annotations: Annotated[Path | None, Resume.FREE, Hosts.MAY_DIFFER] = None
    """COCO-format JSON or index of the validation split. [path or null]"""
    validation_images: Annotated[Path | None, Resume.FREE, Hosts.MAY_DIFFER] = None
    """Folder of the validation images. [path or null]"""
    image_size: Annotated[
        Side | Annotated[tuple[Side, Side], Field(strict=False)],
        expected(
            "input should be the side of a square, or height and width such as [480, 640], each a "
            "multiple of 32 from 64 to 16384"
        ),
        AfterValidator(as_one),
        Resume.MUST_MATCH,
        closed(800),
    ] = 800
    """Side of the square, or [height, width] that turn with an image; multiples of 32. [pixels]"""
    resize: Annotated[Literal["square", "letterbox"], Resume.MUST_MATCH, closed("square")] = (
        "square"
    )
    """Stretch images to that size, or keep their aspect ratio and pad them. [name]"""
    augmentation: Annotated[
        Augmentation,
        expected(
            f"input should be one of {', '.join(AUGMENTATION_NAMES)}, a list such as "
            "[flip, photometric], or none",
            where=lambda names: isinstance(names, str) or len({*names}) == len(names),
        ),
        AfterValidator(as_one),
        closed("flip"),
    ] = "flip"
    """Random changes of training images, or a list of them, or none. [name or list]"""
    class_indices: Annotated[Literal["contiguous", "category_id"], Resume.MUST_MATCH] = "contiguous"
    """Class indices of the model: positions of the categories in the JSON, or their ids. [name]"""
    images_without_boxes: Annotated[
        Literal["skip", "train"], Resume.MUST_MATCH, closed("train")
    ] = "skip"
    """Skip them in training, as torchvision does, or train on them, as MLPerf does. [name]"""
    repeat_rare: Annotated[float | None, Field(gt=0, le=1), Resume.MUST_MATCH, closed(None)] = None
    """Repeat images of classes that are in a smaller share of the images; null: none. [share]"""
    decoder: Literal["auto", "pillow", "torchvision", "simplejpeg", "accimage"] = "auto"
    """JPEG decoder; auto: the fastest that is installed. Pillow decodes other formats. [name]"""
    on_bad_image: Annotated[Literal["stop", "skip"], Resume.FREE, closed("stop")] = "stop"
    """When an image cannot be read: stop the run, or skip it and use another one. [name]"""
    bad_image_limit: Annotated[int, Field(ge=1, le=10**9), Resume.FREE] = 100
    """With on_bad_image=skip: stop the run after more unreadable images than this. [images]"""
    workers: Annotated[
        Annotated[int, Field(ge=0, le=4096)] | Literal["auto"],
        expected("input should be a number from 0 to 4096, or auto"),
        Resume.FREE,
        Hosts.MAY_DIFFER,
    ] = "auto"
    """Loading processes per rank; 0: load in the training process; auto: 1 if needed. [count]"""
    reserve_cores: Annotated[int, Field(ge=0, le=MOST_CORES), Resume.FREE, Hosts.MAY_DIFFER] = 0
    """Cores per rank reserved for loading; training uses the others. [cores]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ModelConfig:
    """The detector: RetinaNet on a backbone of torchvision's."""

    norm: Annotated[Literal["frozen", "batch"], Resume.MUST_MATCH, closed("frozen")] = "frozen"
    """Batch norms: frozen (needs pretrained weights), or trained with the model. [name]"""
    trainable_layers: Annotated[int, Field(ge=0, le=5), Resume.MUST_MATCH, closed(3)] = 3
    """Trainable backbone stages, counted from the last; 5: all. MLPerf: 3. [stages]"""
    pretrained_backbone: Annotated[
        str | None,
        Resume.FREE,
        Hosts.MAY_DIFFER,
        Closed("torchvision, or its file", lambda value: value is not None),
        WithJsonSchema(
            {
                "type": ["string", "null"],
                "pattern": r"^torchvision$|\.safetensors$",
                "format": "path",
            }
        ),
        refused(
            lambda file, _: file not in (None, TORCHVISION) and not file.endswith(".safetensors"),
            "input should be a .safetensors file or torchvision; a .pth can run code: convert it "
            "once with retinanet convert FILE.pth --out FILE.safetensors --trust",
        ),
    ] = None
    """Initial weights: a .safetensors file, or `torchvision` to download them. [path or null]"""
    weights: Annotated[
        str | None,
        Resume.FREE,
        Hosts.MAY_DIFFER,
        closed(None),
        WithJsonSchema({"type": ["string", "null"], "pattern": DETECTOR, "format": "path"}),
        refused(lambda source, _: source == "", "name a run, a checkpoint or a .safetensors file"),
        refused(
            lambda source, _: str(source).endswith(PICKLES),
            "input should be a run, a checkpoint or a .safetensors file; a .pth can run code: "
            "convert it once with retinanet convert --detector FILE.pth "
            "--classes FILE.json --out DIR, and set model.weights=DIR",
        ),
        refused(
            lambda source, _: str(source).endswith(EXPORTED),
            "an exported program cannot be trained; give the checkpoint it was made from",
        ),
        refused(
            lambda source, others: source and others.get("pretrained_backbone"),
            "a detector includes its backbone, so model.pretrained_backbone would be unused; "
            "set model.pretrained_backbone=null or model.weights=null",
        ),
        AfterValidator(lambda source: BEST_COCO_DETECTOR if source == TORCHVISION else source),
    ] = None
    """Detector to start from: a run, checkpoint, .safetensors, or `torchvision`. [path or null]"""
    backbone: Annotated[
        PartOfArchitecture[Literal[BackboneName, "auto"]],
        Resume.MUST_MATCH,
        closed(DEFAULT_ARCHITECTURE.backbone),
    ] = "auto"
    """Backbone; auto: that of torchvision's detector in `weights`, else resnext50_32x4d. [name]"""
    variant: Annotated[
        PartOfArchitecture[Literal[VariantName, "auto"]],
        Resume.MUST_MATCH,
        closed(DEFAULT_ARCHITECTURE.variant),
    ] = "auto"
    """v2: torchvision's, GIoU loss, norms in the heads; auto: of `weights`, else v1. [name]"""
    num_classes: Annotated[int | None, Field(ge=1, le=MOST_CLASSES), Resume.MUST_MATCH] = None
    """Outputs of the classification head; null: as many as the categories need. [classes]"""

    @property
    def architecture(self) -> Architecture:
        """Backbone and variant."""
        return Architecture(self.backbone, self.variant)


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TrainingConfig:
    """The training schedule and the optimizer; the defaults are MLPerf's."""

    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS), Resume.LENGTH] = 8
    """Passes over the training images. [epochs]"""
    max_steps: Annotated[
        int | None, Field(ge=1, le=MOST_STEPS_OF_RUN), Resume.LENGTH, closed(None)
    ] = None
    """Stop after this many optimizer steps, and evaluate, even before `epochs` ends. [steps]"""
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 2
    """Images per rank in a batch; the mean over the ranks if batch_split is uneven. [images]"""
    gradient_accumulation: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Batches per optimizer step; their gradients are averaged. [batches]"""
    optimizer: Annotated[
        Literal["adam", "adamw", "sgd", "lamb"], Resume.MUST_MATCH, closed("adam")
    ] = "adam"
    """Optimizer. MLPerf: adam. [name]"""
    momentum: Annotated[
        float,
        Field(ge=0, lt=1),
        Resume.MUST_MATCH,
        refused(
            lambda momentum, others: momentum and others.get("optimizer", "sgd") != "sgd",
            "only training.optimizer=sgd has a momentum, but the optimizer is {optimizer}",
        ),
    ] = 0.0
    """Momentum of sgd, often 0.9; the other optimizers have none. [factor]"""
    beta1: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | Literal["auto"],
        expected("input should be a number from 0 to below 1, or auto"),
        Resume.FREE,
        closed(DEFAULT_BETA1, "auto"),
    ] = "auto"
    """Momentum of adam, adamw, lamb; auto: 0.9, minus 1 − 1/g with g compute groups. [factor]"""
    weight_decay: Annotated[
        float,
        Field(ge=0, validate_default=True),
        closed(0),
        refused(  # the decay in which alone AdamW differs from Adam
            lambda decay, others: others.get("optimizer") == "adamw" and not decay,
            "training.optimizer=adamw without weight decay is adam; set "
            "training.weight_decay=0.01 or training.optimizer=adam",
        ),
    ] = 0.0
    """Added to the gradient (adam, sgd) or to the update (adamw, lamb). MLPerf: 0. [factor]"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Learning rate after the warm-up. [1/step]"""
    body_learning_rate_factor: Annotated[float, Field(gt=0, le=1), closed(1)] = 1.0
    """Factor of the learning rate of the backbone's body, without the pyramid. [factor]"""
    warmup_epochs: Annotated[float, Field(ge=0, le=MOST_EPOCHS)] = 1.0
    """Length of the linear warm-up; the rate changes at every step. [epochs]"""
    warmup_factor: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Fraction of the learning rate at the first step. [factor]"""
    schedule: Annotated[Literal["constant", "cosine", "step"], closed("constant")] = "constant"
    """After the warm-up: constant, cosine (to 0 at the last step), step (see milestones). [name]"""
    milestones: Annotated[
        Milestones,
        Field(validate_default=True),
        refused(
            lambda milestones, others: others.get("schedule") == "step" and not milestones,
            "training.schedule=step needs milestones, such as [16, 22]",
        ),
        refused(
            lambda milestones, others: others.get("schedule", "step") != "step" and milestones,
            "only training.schedule=step has milestones, but it is {schedule}; set []",
        ),
        refused(
            lambda milestones, others: (
                milestones and milestones[-1] >= others.get("epochs", MOST_EPOCHS)
            ),
            "the learning rate would fall after the run's end, training.epochs={epochs}",
        ),
    ] = ()
    """schedule=step: epochs after which the learning rate falls, such as [16, 22]. [epochs]"""
    milestone_factor: Annotated[
        float,
        Field(gt=0, lt=1),
        refused(
            lambda factor, others: (
                others.get("schedule", "step") != "step" and factor != DEFAULT_MILESTONE_FACTOR
            ),
            "only training.schedule=step has milestones, but it is {schedule}",
        ),
    ] = DEFAULT_MILESTONE_FACTOR
    """schedule=step: factor of the learning rate at each milestone. [factor]"""
    class_weights: Annotated[
        ClassWeightsInFile, BeforeValidator(require_class_weights), closed(None)
    ] = None
    """Weights of classes in the loss: balanced, or by name: {Bus: 3}. [name, weights or null]"""
    ema: Annotated[float | None, Field(gt=0, lt=1), closed(None)] = None
    """Decay of an average of the weights, which is evaluated and used; null: none. [factor]"""
    clip_gradient_norm: Annotated[float | None, Field(gt=0), closed(None)] = None
    """Clip the gradients of a step to this L2 norm; null: no clipping. [norm or null]"""
    on_nonfinite: Annotated[Literal["stop", "skip"], Resume.FREE, closed("stop")] = "stop"
    """When a loss or a gradient is not finite: stop the run, or skip the step. [name]"""
    nonfinite_limit: Annotated[int, Field(ge=1, le=MOST_STEPS_OF_RUN), Resume.FREE] = 10
    """With on_nonfinite=skip: stop after more skipped steps than this. [steps]"""
    target_map: Annotated[float | None, Field(gt=0, le=1), Resume.FREE, closed(TARGET_MAP)] = None
    """Stop when an evaluation reaches this mAP (IoU 0.50:0.95). MLPerf: 0.34. [mAP or null]"""
    patience: Annotated[int | None, Field(ge=1, le=MOST_EPOCHS), Resume.FREE, closed(None)] = None
    """Stop after so many evaluations without a better mAP; null: never. [evaluations or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation on the validation split."""

    every: Annotated[int, Field(ge=1, le=MOST_EPOCHS), closed(1)] = 1
    """Evaluate and write a checkpoint every N epochs, and at the end. [epochs]"""
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 8
    """Images per rank in an evaluation batch. [images]"""
    overlap: bool = False
    """Compute mAP in the background during the next epoch, on unused CPUs if any. [bool]"""
    pictures: Annotated[int, Field(ge=0, le=MOST_IMAGES)] = 6
    """Validation images to draw with predicted and true boxes. [images]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints between evaluations; each evaluation writes one too."""

    every: Annotated[
        str,
        Field(pattern=whole(INTERVAL)),
        expected("input should be a time, steps or epochs, such as 30min, 2h, 500 steps or epoch"),
    ] = "30min"
    """Interval: 30min, 2h, 500 steps, epoch. [time, steps or epochs]"""
    keep: Annotated[int, Field(ge=1, le=MOST_STEPS_OF_RUN)] = 3
    """Newest checkpoints to keep, in addition to the one with the best mAP. [checkpoints]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class EngineConfig:
    """How the model is computed. `engine: ipex` is short for `engine.name: ipex`."""

    name: Annotated[Literal["auto", "torch", "ipex"], Resume.FREE] = "auto"
    """torch, ipex (the paper's, in `make ipex`'s environment); auto: torch, the faster. [name]"""
    precision: Annotated[
        Precision,
        Hosts.MAY_DIFFER,  # the processor decides, by default; `check_hosts` names a difference
        AfterValidator(chosen_precision),
        # pydantic does not validate defaults by itself, and `auto` would stay.
        Field(validate_default=True),
    ] = "auto"
    """Number format of the model; auto: bf16 with AMX or AVX-512 BF16, else float32. [name]"""
    convolutions: Annotated[
        Literal["auto", "onednn", "winograd"],
        refused(
            lambda convolutions, others: (
                convolutions == "winograd"
                and (others.get("name") == "ipex" or others.get("precision") == "float32")
            ),
            "winograd needs engine.name=torch and engine.precision=bf16; set auto",
        ),
    ] = "auto"
    """BF16 kernels; auto: own tiles on AMX, own kernels on AVX-512 BF16, else oneDNN. [name]"""
    focal_loss: Annotated[
        Literal["auto", "kernel", "paper", "paper_implicit", "reference"],
        LogitCopies({"auto": 1, "kernel": 1, "paper": 11, "paper_implicit": 11, "reference": 40}),
    ] = "auto"
    """Implementation of the focal loss; auto: kernel, or paper without a C++ compiler. [name]"""
    allocator: Annotated[
        Literal["tuned", "system", "tcmalloc", "jemalloc"], Resume.FREE, Hosts.MAY_DIFFER
    ] = "tuned"
    """malloc: glibc's, tuned to keep freed memory, or unchanged; or a preloaded one. [name]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class LaunchConfig:
    """Placement of the ranks on the cores and memory of a host."""

    pin: bool = True
    """Bind each rank to cores and memory of its own; false: no binding. [bool]"""
    threads: Annotated[
        Annotated[int, Field(ge=1, le=MOST_CORES)] | Literal["auto"],
        expected(f"input should be a number from 1 to {MOST_CORES}, or auto"),
    ] = "auto"
    """Compute threads per rank, one per core; auto: all cores of the rank. [threads]"""
    comm_cores: Annotated[int, Field(ge=0, le=MOST_CORES)] = 0
    """Cores per rank reserved for gradient exchange; useful with many cores and hosts. [cores]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class DistributedConfig:
    """How several ranks split a batch and average their gradients."""

    backend: Annotated[Literal["auto", "shared", "mpi", "gloo", "ccl"], Resume.FREE] = "auto"
    """auto: shared; over hosts mpi under mpirun, else gloo. ccl: no longer developed. [name]"""
    groups: Annotated[int, Field(ge=1, le=MOST_CORES), Resume.FREE, closed(1)] = 1
    """Compute groups, which train asynchronously; 1: all ranks in step (synchronous). [groups]"""
    batch_split: Annotated[
        BatchSplit,
        expected("input should be even, speed, or the images of each rank, such as [3, 1]"),
        Resume.FREE,
        refused(
            lambda split, others: split != "even" and others.get("groups", 1) > 1,
            "must be even if distributed.groups is above 1: fast groups take more batches",
        ),
    ] = "even"
    """Images of each rank: even, by measured speed, or a list such as [3, 1]. [name or list]"""
    compress: Literal["none", "bf16"] = "none"
    """Compression of exchanged gradients; bf16 halves the bytes, and rounds. [name]"""
    timeout_s: Annotated[float, Field(gt=0, le=10**7), Resume.FREE] = 600.0
    """Stop the job if a rank is silent for longer; set it above rank 0's longest work. [seconds]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class OneDnnProfileConfig:
    """oneDNN's log of some steps, written to `onednn/rank<N>.log` in the run's folder."""

    steps: Steps = None
    """Steps to log on every rank, with marks of their phases, such as 20-22. [steps or null]"""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class TraceProfileConfig:
    """torch.profiler's trace of some steps, as `trace/rank<N>.json.gz` in the run's folder."""

    steps: Steps = None
    """Steps to trace on every rank, with marks of phases and modules: 20-22. [steps or null]"""


WINDOWS = ("onednn", "trace")


@dataclass(config=STRICT, frozen=True, kw_only=True)
class ProfileConfig:
    """Profiling of single steps; the resulting weights are the same."""

    onednn: OneDnnProfileConfig | None = None
    """oneDNN's log of some steps. [section or null]"""
    trace: TraceProfileConfig | None = None
    """torch.profiler's trace of some steps. [section or null]"""
    perf: Annotated[
        bool,
        refused(
            lambda perf, others: (
                perf and not any(window and window.steps for window in map(others.get, WINDOWS))
            ),
            "counters need the steps of a profile; add profile.onednn.steps=20-22",
        ),
    ] = False
    """Also count cycles, page faults and more in these steps, if perf is available. [bool]"""

    @property
    def onednn_steps(self) -> range:
        """The steps that oneDNN logs; empty: none."""
        return parse_window(self.onednn.steps if self.onednn else None)

    @property
    def trace_steps(self) -> range:
        """The steps that are traced; empty: none."""
        return parse_window(self.trace.steps if self.trace else None)


@dataclass(config=STRICT, frozen=True, kw_only=True)
class MlperfConfig:
    """Content of `mlperf.log`, for MLCommons' checkers (docs/mlperf.md)."""

    division: Literal["open", "closed"] = "open"
    """closed: stop at the start unless model, data and schedule are MLPerf's. [name]"""
    rules: Rules = NEWEST
    """Rule set of the log; before 5.0.0 the benchmark is called `ssd`. [version]"""
    organization: Annotated[str, Field(min_length=1)] = "unnamed"
    """Name of the submitting organization. [text]"""
    platform: Annotated[str, Field(min_length=1)] | None = None
    """Name of the system; null: number of hosts and processor. [text or null]"""
    status: Literal["onprem", "cloud", "research", "preview"] = "research"
    """Availability of the system to others. [name]"""
    clear_caches: bool = False
    """Drop the page cache of every host before timing starts; needs root. [bool]"""
