"""Pass images through a model as many times as the argument says, and mark each pass in the log."""

import sys
import time

import torch
import torchvision


def mark(edge: str, number: int) -> None:
    """Write a line that begins or ends a step; oneDNN's lines stand between."""
    print(f"profilednn_mark,{1000 * time.time()},{edge},{number}", flush=True)


torch.manual_seed(0)
model = torchvision.models.resnet18().eval().to(memory_format=torch.channels_last)
images = torch.randn(8, 3, 224, 224).to(memory_format=torch.channels_last)
with torch.inference_mode():
    for _ in range(3):  # oneDNN creates its primitives
        model(images)
    for number in range(int(sys.argv[1])):
        mark("begin", number)
        model(images)
        mark("end", number)
