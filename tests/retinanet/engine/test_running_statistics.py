import math

import torch
from torch import nn

from retinanet.engine.folded_forward import RunningStatistics


def test_running_statistics_are_put_back() -> None:
    torch.manual_seed(0)
    trained, constant = nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), trained, constant)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    statistics = RunningStatistics(model)
    statistics.keep()
    model(torch.randn(2, 3, 5, 5) + math.nan)
    assert trained.running_mean is not None and trained.running_mean.isnan().all()
    assert trained.num_batches_tracked == 1
    statistics.put_back()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
