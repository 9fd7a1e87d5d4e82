"""Program of three ranks that repeat a step over gloo; started by `test_distributed.py`."""

import os

import torch
import torch.distributed as dist

from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.engines import prepare_training
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.distributed import make_exchange
from retinanet.training.loop import accumulate_gradients

SIZE = 64


def main() -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = ProcessGroup(rank=rank, size=3, backend="gloo", control=dist.group.WORLD)
    torch.manual_seed(0)
    model = RetinaNet(num_classes=1, norm="batch", trainable_layers=1)
    optimizer = make_optimizer(model, name="adam", learning_rate=1e-4)
    prepared = prepare_training(model, optimizer, engine="torch", precision="float32")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exchange = make_exchange(
        group, prepared, backend="gloo", compress="none", focal_form="auto", timeout_s=60
    )
    unchanged = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    generator = torch.Generator().manual_seed(rank)
    pixels = torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    target = {"boxes": torch.tensor([[5.0, 5.0, 40.0, 40.0]]), "labels": torch.tensor([0])}
    batch = Batch(pixels, [target], [0], [(SIZE, SIZE)])
    gradients = []
    for _ in range(3):
        accumulate_gradients(prepared, [batch], exchange=exchange)
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
