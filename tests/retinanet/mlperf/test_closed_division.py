import pytest

from common.errors import InputError
from retinanet.config_file import load_config

SETTINGS = ("mlperf.division=closed", "data.root=/data")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("data.image_size=640", "data.image_size is 800, not 640"),
        ("data.images_without_boxes=skip", "data.images_without_boxes is train, not skip"),
        ("data.on_bad_image=skip", "data.on_bad_image is stop, not skip"),
        ("model.norm=batch", "model.norm is frozen, not batch"),
        ("model.trainable_layers=5", "model.trainable_layers is 3, not 5"),
        ("model.pretrained_backbone=null", "model.pretrained_backbone is torchvision, or its file"),
        ("training.optimizer=sgd", "training.optimizer is adam, not sgd"),
        ("training.beta1=0.4", "training.beta1 is 0.9, not 0.4"),
        ("training.weight_decay=0.1", "training.weight_decay is 0, not 0.1"),
        ("training.schedule=cosine", "training.schedule is constant, not cosine"),
        ("training.clip_gradient_norm=1", "training.clip_gradient_norm is null, not 1.0"),
        ("training.on_nonfinite=skip", "training.on_nonfinite is stop, not skip"),
        ("training.max_steps=5", "training.max_steps is null, not 5"),
        ("training.target_map=0.3", "training.target_map is 0.34, not 0.3"),
        ("evaluation.every=2", "evaluation.every is 1, not 2"),
        ("distributed.groups=2", "distributed.groups is 1, not 2"),
    ],
)
def test_what_the_closed_division_does_not_allow_is_named(change: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config("openimages.yaml", [*SETTINGS, change])
    message = str(caught.value)
    assert message.startswith("command line: mlperf: in the closed division ")
    assert told in message and ";" not in message.split(told, maxsplit=1)[0]  # it is the only one
    assert "mlperf.division=open" in message and "\n" not in message
    load_config("openimages.yaml", ["mlperf.division=open", change])


@pytest.mark.parametrize(
    "change",
    [
        "training.batch_size=8",
        "training.gradient_accumulation=4",
        "training.learning_rate=2e-4",
        "training.beta1=0.9",
        "training.warmup_epochs=0",
        "training.warmup_factor=0.1",
        "training.epochs=30",
        "run.seed=7",
        "engine.precision=float32",
        "evaluation.metric=pycocotools",
    ],
)
def test_what_it_leaves_free_may_be_changed(change: str) -> None:
    assert load_config("openimages.yaml", [*SETTINGS, change]).mlperf.division == "closed"


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        load_config("demo.yaml", ["mlperf.division=closed"])
    assert str(caught.value).count(", not ") == 8
