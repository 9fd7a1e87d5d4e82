import torch

from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.distributed import measured_speed
from retinanet.training.loop import accumulate_gradients
from retinanet.training.train_state import random_states
from tests.retinanet.training.tiny_steps import SIZE, make_batch, prepared


def test_measuring_leaves_weights_optimizer_statistics_and_random_states_as_they_were() -> None:
    torch.manual_seed(0)
    model = RetinaNet(num_classes=3, norm="batch", trainable_layers=5)
    training = prepared(model, make_optimizer(model, name="adam", learning_rate=1e-3))
    accumulate_gradients(training, [make_batch(seed=1)])
    training.optimizer.step()  # a step of the measuring would move its averages
    training.optimizer.zero_grad(set_to_none=True)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    averages = [
        value.clone()
        for one in training.optimizer.state.values()
        for value in one.values()
        if torch.is_tensor(value)
    ]
    random = random_states()
    speed = measured_speed(training, group=ProcessGroup(), images=2, image_size=SIZE)
    assert speed > 0
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    found = [
        value
        for one in training.optimizer.state.values()
        for value in one.values()
        if torch.is_tensor(value)
    ]
    assert averages and all(map(torch.equal, found, averages))
    assert random_states() == random
    assert all(parameter.grad is None for parameter in model.parameters())
