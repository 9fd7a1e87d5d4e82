import torch

from retinanet.config import ModelConfig, TrainingConfig
from retinanet.preflight.memory import model_bytes
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.checkpoint import optimizer_tensors

OPTIMIZERS = (
    TrainingConfig(),
    TrainingConfig(optimizer="sgd", momentum=0.9),
)


def test_the_count_is_that_of_a_real_model_and_optimizer() -> None:
    settings = ModelConfig(norm="batch", trainable_layers=1)
    model = build_model(settings, num_classes=3, weights=None)
    trained = [one for one in model.parameters() if one.requires_grad]
    body = [one for one in model.backbone.body.parameters() if one.requires_grad]
    running = [
        value
        for name, value in model.state_dict().items()
        if ".layer4." in name and ".running_" in name
    ]
    for one in trained:
        one.grad = torch.zeros_like(one)
    for training in OPTIMIZERS:
        optimizer = build_optimizer(training, model, engine="torch")
        optimizer.step()
        kept = optimizer_tensors(model, optimizer).values()
        sizes = model_bytes(settings, training, num_classes=3)
        assert sizes.state == sum(one.nbytes for one in model.state_dict().values())
        assert sizes.trained == sum(one.nbytes for one in trained)
        assert sizes.trained_backbone == sum(one.nbytes for one in body)
        assert sizes.statistics == sum(one.nbytes for one in running)
        assert sizes.optimizer == sum(one.nbytes for one in kept), training
