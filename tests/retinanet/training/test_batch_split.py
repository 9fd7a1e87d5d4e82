import pytest
import torch

from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.training.batch_split import measured_speed
from retinanet.training.loop import accumulate_gradients
from retinanet.training.train_state import random_states
from tests.retinanet.training.tiny_steps import SIZE, make_batch, make_model, prepared


@pytest.mark.slow
def test_measuring_speed_changes_no_state() -> None:
    model = make_model()
    training = prepared(model, make_optimizer(model, name="adam", learning_rate=1e-3))
    accumulate_gradients(training, [make_batch(seed=1)])
    training.optimizer.step()  # a step during the measurement would change its averages
    training.optimizer.zero_grad(set_to_none=True)

    def state() -> list[torch.Tensor]:
        slots = [slot for slots in training.optimizer.state.values() for slot in slots.values()]
        return [*model.state_dict().values(), *filter(torch.is_tensor, slots)]

    before, random = [value.clone() for value in state()], random_states()
    assert measured_speed(training, group=ProcessGroup(), images=1, image_size=(SIZE, SIZE)) > 0
    assert all(map(torch.equal, state(), before)) and random_states() == random
    assert all(parameter.grad is None for parameter in model.parameters())
