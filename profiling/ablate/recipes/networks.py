"""Forward and backward pass of networks of several kinds, and what of it is which primitive."""

import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.backends import mkldnn, nnpack
from torch.nn import functional as F

from profiling.bench.onednn_seconds import onednn_seconds
from profiling.bench.operator_seconds import WINOGRAD, watched
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload
from profiling.directions import direction_name
from profiling.layers.models import TimedModel, autocast, timed_model
from profiling.layers.subject import Subject

MATRIX_OPERATORS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::linear")
"""Of torch: they go to oneDNN in BF16, and to Intel's MKL in float32."""
WINOGRAD_WORDS = ("our convolution forward", "our convolution backward")
WORDS = 128
VOCABULARY = 30_522
WIDTH = 768
"""Of BERT base (Devlin et al., 2018), which has 12 layers of 12 heads."""


def prepare(
    workload: Workload,
    *,
    model: str,
    precision: str,
    batch: int,
    onednn: bool = True,
    watches: bool = False,
) -> Prepared:
    """Weights and batch from random numbers; no optimizer.

    Args:
        workload: The size of RetinaNet's images; the others' is what is usual for them.
        model: `retinanet`, `alexnet`, `resnet50` or `transformer`.
        precision: `bf16` or `float32`.
        batch: Images, or sentences.
        onednn: Whether torch may use oneDNN.
        watches: Whether a run is also taken apart, which takes two more.
    """
    mkldnn.set_flags(_enabled=onednn)
    nnpack.set_flags(_enabled=False)  # its threads would share the pinned first one's core
    size = workload.image_size if model == "retinanet" else 224
    subject = Subject(model=model, batch=batch, image_size=size, precision=precision, device="cpu")
    timed = transformer(subject) if model == "transformer" else timed_model(subject, onednn=True)
    step = partial(one_step, timed)

    def run() -> dict[str, float]:
        seconds = step()
        return {**seconds, **(primitives(step) if watches else {})}

    return Prepared(run)


def one_step(timed: TimedModel) -> dict[str, float]:
    """Forward and backward pass."""
    begin = time.perf_counter()
    loss = timed.loss(timed.forward())
    forward = time.perf_counter()
    loss.backward()
    end = time.perf_counter()
    timed.network.zero_grad(set_to_none=True)
    return {"forward": forward - begin, "backward": end - forward, "step": end - begin}


def primitives(step: partial[dict[str, float]]) -> dict[str, float]:
    """Seconds by primitive and direction in one step, in products and convolutions beside oneDNN,
    and `elsewhere`."""
    whole: dict[str, float] = {}
    in_onednn = onednn_seconds(lambda: whole.update(step()))
    found: dict[str, float] = {}
    for name, seconds in in_onednn.items():
        kind, _, direction = name.partition(" ")
        words = f"{kind.replace('_', ' ')} {direction_name(direction)}".strip()
        found[words] = found.get(words, 0.0) + seconds
    events = watched(step)
    for operator, words in zip(WINOGRAD, WINOGRAD_WORDS, strict=True):
        seconds = sum(event.cpu_time_total for event in events if event.key == operator) / 1e6
        if seconds:
            found[words] = seconds
    products = sum(event.self_cpu_time_total for event in events if event.key in MATRIX_OPERATORS)
    inside = sum(s for name, s in found.items() if name.startswith(("matmul", "inner product")))
    outside = max(0.0, products / 1e6 - inside)
    found["matrix products of MKL"] = min(outside, whole["step"])
    found["elsewhere"] = max(0.0, whole["step"] - sum(found.values()))
    return {f"primitive: {name}": seconds for name, seconds in found.items()}


def transformer(subject: Subject) -> TimedModel:
    """Sentences of 128 words through the encoder of BERT base, then a classifier of two.

    Without dropout, for which torch draws random numbers on one thread: longer than all else.
    """
    torch.manual_seed(subject.seed)
    layer = nn.TransformerEncoderLayer(
        WIDTH, nhead=12, dim_feedforward=4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, num_layers=12, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), encoder).train()
    classifier = nn.Linear(WIDTH, 2)
    whole = nn.ModuleList([network, classifier])
    words = torch.randint(VOCABULARY, (subject.batch, WORDS))
    labels = torch.randint(2, (subject.batch,))

    def forward() -> Tensor:
        with autocast(subject):
            outputs: Tensor = classifier(network(words)[:, 0])
        return outputs

    def loss(outputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), labels)

    return TimedModel(whole, forward, loss, None)
