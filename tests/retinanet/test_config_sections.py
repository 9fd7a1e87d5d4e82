"""Fields of the sections: their values, and which of them contradict each other."""

from pathlib import Path

import pytest

from data.augmentation import AUGMENTATIONS
from retinanet.config import config_to_tree, field_names
from retinanet.config_file import config_from_tree, load_config
from retinanet.config_types import AUGMENTATION_NAMES, augmentation_names
from tests.support.commands import error_message


def config_error(*overrides: str, config: str = "demo.yaml") -> str:
    return error_message(load_config, config, overrides)


@pytest.mark.parametrize(
    ("overrides", "field", "part"),
    [
        (["training.momentum=0.9", "training.optimizer=adam"], "training.momentum", "adam"),
        (["training.momentum=0.9", "training.optimizer=lamb"], "training.momentum", "lamb"),
        (
            ["training.schedule=step", "training.milestones=[]"],
            "training.milestones",
            "such as [16, 22]",
        ),
        (["training.momentum=0.9", "training.optimizer=adamw"], "training.momentum", "adamw"),
        (["training.optimizer=adamw", "training.weight_decay=0"], "training.weight_decay", "0.01"),
        (["training.milestones=[2]"], "training.milestones", "constant; set []"),
        (["training.milestones=[2]", "training.schedule=cosine"], "training.milestones", "cosine"),
        (["training.schedule=step", "training.milestones=[2, 26]"], "training.milestones", "=26"),
        (["training.milestone_factor=0.5"], "training.milestone_factor", "constant"),
        (["engine.convolutions=winograd", "engine.name=ipex"], "engine.convolutions", "auto"),
        (["engine.convolutions=winograd", "engine.precision=float32"], "engine.convolutions", ""),
        (["profile.perf=true"], "profile.perf", "profile.onednn.steps"),
        (["profile.perf=true", "profile.trace={}"], "profile.perf", "profile.onednn.steps"),
    ],
)
def test_contradicting_fields_are_refused(overrides: list[str], field: str, part: str) -> None:
    message = config_error(*overrides, config="coco.yaml")
    assert message.startswith(f"command line: {field}: ") and part in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.schedule=step", "training.milestones: training.schedule=step needs milestones"),
        ("training.optimizer=adamw", "training.weight_decay: training.optimizer=adamw without"),
    ],
)
def test_refused_default_is_attributed_to_the_field_that_rules_it_out(
    override: str, message: str, tmp_path: Path
) -> None:
    error = config_error(override, config="coco.yaml")
    assert error.startswith(f"command line: {message}") and "found" not in error
    section, field, value = override.replace("=", ".").split(".")
    file = tmp_path / "mine.yaml"
    file.write_text(f"data: {{scenes: {{}}}}\n{section}: {{{field}: {value}}}\n")
    assert config_error("run.seed=1", config=str(file)).startswith(f"{file}: {message}")


def test_fields_that_go_together_are_accepted() -> None:
    momentum = load_config("coco.yaml", ["training.momentum=0.9", "training.optimizer=sgd"])
    assert momentum.training.momentum == 0.9
    adamw = ["training.optimizer=adamw", "training.weight_decay=0.01"]
    assert load_config("coco", adamw).training.weight_decay == 0.01
    steps = ["training.schedule=step", "training.milestones=[1.5, 20]"]
    training = load_config("coco.yaml", [*steps, "training.milestone_factor=0.5"]).training
    assert (training.milestones, training.milestone_factor) == ((1.5, 20.0), 0.5)
    assert load_config("demo", ["profile.perf=true", "profile.trace.steps=3"]).profile.perf


@pytest.mark.parametrize("file", ["a.pth", "weights.pt", "a.safetensors.pth", "weights"])
def test_backbone_that_would_be_unpickled_is_refused(file: str) -> None:
    message = config_error(f"model.pretrained_backbone={file}")
    assert message.startswith("command line: model.pretrained_backbone: ") and repr(file) in message
    assert "retinanet convert FILE.pth --out FILE.safetensors" in message


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("torchvision", ("model.pretrained_backbone=null",)),
        ("model_10.pth", ("convert --detector FILE.pth --classes FILE.json --out DIR",)),
        ("a.safetensors.bin", ("convert --detector",)),
        ("runs/a/detector.onnx", ("give the checkpoint",)),
        ("runs/a", ("model.pretrained_backbone=null",)),
        ("''", ("name a run",)),
    ],
)
def test_start_that_is_no_detector_is_refused(value: str, parts: tuple[str, ...]) -> None:
    message = config_error(f"model.weights={value}", config="coco.yaml")
    assert message.startswith("command line: model.weights: ") and all(p in message for p in parts)


def test_detector_replaces_the_backbone_of_a_shipped_configuration() -> None:
    changes = ["model.weights=runs/a", "model.pretrained_backbone=null"]
    assert load_config("coco.yaml", changes).model.weights == "runs/a"


@pytest.mark.parametrize(
    ("settings", "architecture"),
    [
        ([], ("resnext50_32x4d", "v1")),
        (["weights=runs/a"], ("resnext50_32x4d", "v1")),
        (["weights=retinanet_resnet50_fpn"], ("resnet50", "v1")),
        (["weights=retinanet_resnet50_fpn_v2"], ("resnet50", "v2")),
        (["weights=torchvision"], ("resnet50", "v2")),
        (["weights=torchvision", "backbone=resnet50", "variant=v2"], ("resnet50", "v2")),
        (["backbone=resnet101"], ("resnet101", "v1")),
        (["backbone=resnet101", "variant=v2"], ("resnet101", "v2")),
    ],
)
def test_architecture_is_that_of_torchvisions_detector_unless_it_is_set(
    settings: list[str], architecture: tuple[str, str]
) -> None:
    model = load_config("demo", [f"model.{setting}" for setting in settings]).model
    assert (model.backbone, model.variant) == architecture == tuple(model.architecture)


@pytest.mark.parametrize(
    ("setting", "needed"), [("backbone=resnet101", "resnet50"), ("variant=v1", "v2")]
)
def test_architecture_that_contradicts_torchvisions_detector_is_refused(
    setting: str, needed: str
) -> None:
    message = config_error(f"model.{setting}", "model.weights=torchvision")
    assert message.startswith(f"command line: model.{setting.partition('=')[0]}: ")
    assert f"has {needed}" in message


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("backbone=resnet50", "model.backbone is resnext50_32x4d, not resnet50"),
        ("variant=v2", "model.variant is v1, not v2"),
    ],
)
def test_closed_division_has_the_reference_architecture(setting: str, rule: str) -> None:
    closed = "mlperf.division=closed"
    assert load_config("openimages.yaml", [closed]).model.backbone == "resnext50_32x4d"
    message = config_error(f"model.{setting}", closed, config="openimages.yaml")
    assert rule in message


@pytest.mark.parametrize(
    ("value", "steps"),
    [("20-22", range(20, 23)), ("7", range(7, 8)), ("1-1", range(1, 2)), ("null", range(0))],
)
def test_window_of_steps(value: str, steps: range) -> None:
    overrides = [f"profile.{section}.steps={value}" for section in ("onednn", "trace")]
    profile = load_config("demo.yaml", overrides).profile
    assert (profile.onednn_steps, profile.trace_steps) == (steps, steps)
    assert not profile.perf


def test_augmentation_is_a_name_or_a_list_of_names() -> None:
    assert tuple(AUGMENTATIONS) == AUGMENTATION_NAMES
    for value, names in (
        ("flip", ("flip",)),
        ("[flip]", ("flip",)),
        ("[]", ()),
        ("none", ()),
        ("[ssd, scale_jitter]", ("ssd", "scale_jitter")),
    ):
        config = load_config("demo.yaml", [f"data.augmentation={value}"])
        assert augmentation_names(config.data.augmentation) == names
        assert config_from_tree(config_to_tree(config), "again") == config
    default = load_config("demo.yaml").data
    assert (default.augmentation, default.resize) == ("flip", "square")


UNBOUNDED = {"training.learning_rate", "training.weight_decay", "training.clip_gradient_norm"}
COUNTS_WITHOUT_DEFAULT = (
    "training.max_steps",
    "launch.threads",
    "data.workers",
    "model.num_classes",
)


def default_value(name: str) -> object:
    """The value of a field in the demo's configuration."""
    value: object = config_to_tree(load_config("demo.yaml"))
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


@pytest.mark.slow
@pytest.mark.parametrize("digits", [13, 5000])
def test_every_count_and_amount_has_an_upper_bound(digits: int) -> None:
    numbers = [name for name in field_names() if type(default_value(name)) in (int, float)]
    assert len(numbers) > 20
    for name in {*numbers, *COUNTS_WITHOUT_DEFAULT} - UNBOUNDED:
        assert f" {name}: " in config_error(f"{name}={'9' * digits}")
    for name in ("profile.onednn.steps", "profile.trace.steps"):
        assert f" {name}: " in config_error(f"{name}=1-{'9' * digits}")
    assert " distributed.batch_split: " in config_error(f"distributed.batch_split=[{'9' * digits}]")
    assert " run.name: " in config_error(f"run.name={'a' * 300}")
