"""Program of three ranks that repeat a step over gloo; started by `test_averaging.py`."""

import os

import torch
import torch.distributed as dist

from launch.process_group import ProcessGroup
from retinanet.config_file import load_config
from retinanet.engine.optimizers import make_optimizer
from retinanet.training.averaging import make_exchange
from retinanet.training.loop import accumulate_gradients
from tests.retinanet.training.tiny_steps import make_batch, make_model, prepared


def main() -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = ProcessGroup(rank=rank, size=3, backend="gloo", control=dist.group.WORLD)
    model = make_model()
    optimizer = make_optimizer(model, name="adam", learning_rate=1e-4)
    training = prepared(model, optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = load_config("demo.yaml", ["distributed.backend=gloo", "distributed.timeout_s=60"])
    exchange = make_exchange(config, training, group=group)
    unchanged = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    gradients = []
    for _ in range(3):
        accumulate_gradients(training, [make_batch(seed=rank)], exchange=exchange)
        parameters = model.parameters()
        gradients.append([p.grad.clone() for p in parameters if p.grad is not None])
        optimizer.zero_grad(set_to_none=True)
    equal = [sum(map(torch.equal, gradients[0], other)) for other in gradients[1:]]
    print(
        f"weights and statistics as before: {unchanged}; gradients: {equal} of {len(gradients[0])}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
