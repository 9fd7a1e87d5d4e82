"""Time each layer's forward and backward pass without changing the computation.

In the forward pass, a layer's time is between its module's hooks. Nodes of autograd's graph that
are created there belong to the layer; nodes have sequence numbers. In the backward pass, its time
is that of its nodes, between their hooks, and of adding its weights' gradients to `grad`. Nothing
is wrapped: operators that overwrite their input, modules that run several times and our own
functions are timed unchanged. https://docs.pytorch.org/docs/stable/autograd.html#autograd-graph

Networks (`timed_model`) have the same random weights and batches every time; no weights change. The
worker's questions are `run`, `measure DONE COUNT` and `primitives` (`prepare_timing`).
"""

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, autograd, nn
from torch.autograd.graph import Node
from torch.backends import mkldnn
from torch.nn import functional as F

from common.machine import peak_resident_mb
from common.processes import Answering
from data.transforms import normalize
from profiling.bench import worker
from profiling.bench.measured_steps import onednn_seconds
from profiling.bench.recipes.step import Flop, flop_by_layer, make_batch, make_model
from profiling.bench.variant import PLAIN_EVERY, Prepared, Subject, Workload, huge_pages_mb
from profiling.peaks_measure import versions
from retinanet.engine.engines import torch_forward
from retinanet.engine.folded_forward import FoldedForward
from retinanet.loss.detection import detection_loss
from retinanet.model.retinanet import HeadOutputs, RetinaNet

LOSS = "loss"


class Span(NamedTuple):
    """Work between two stamps."""

    layer: str | None  # None: between layers
    work: str  # `forward`, or the name of a node of the graph
    start: Any
    end: Any


class Clock(NamedTuple):
    """Stamps of time on the device that computes."""

    stamp: Callable[[], Any]  # Returns a stamp of the work's present place
    milliseconds: Callable[[Any, Any], float]
    """Returns the time from one stamp to a later one, after `finish`."""
    finish: Callable[[], None]  # Waits until all stamps are taken


def make_clock(device: str) -> Clock:
    """Return the clock of `cpu` or `cuda`.

    A processor's work is done when the call returns. A GPU's work waits in a queue, so that stamps
    are events in that queue.
    """
    if device == "cpu":
        return Clock(time.perf_counter_ns, lambda start, end: (end - start) / 1e6, lambda: None)

    def record_event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return Clock(record_event, lambda start, end: start.elapsed_time(end), torch.cuda.synchronize)


class Recorder:
    """Records the spans of one iteration: use `attached`, then the methods in order."""

    def __init__(self, network: nn.Module, clock: Clock) -> None:
        """Watch the modules of `network` that have no modules inside."""
        self.clock = clock
        self.names = {
            module: name
            for name, module in network.named_modules()
            if not any(True for _ in module.children())
        }
        self._owners = {
            parameter: name
            for module, name in self.names.items()
            for parameter in module.parameters(recurse=False)
        }
        self.spans: list[Span] = []
        self._begun: list[tuple[str, Any, int]] = []
        self._calls: list[tuple[int, int, str]] = []
        """First and last sequence number, exclusive, of the nodes that a call of a layer made."""

    @contextmanager
    def attached(self, folded: FoldedForward | None) -> Iterator[None]:
        """Record all layers of a new iteration; `folded` computes them without calling modules."""
        self.spans, self._calls = [], []
        handles: list[Any] = []
        for module, name in self.names.items():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self.begin(name)))
            handles.append(module.register_forward_hook(lambda *_: self.end()))
        around = folded.around if folded else None
        if folded:
            folded.around = self._around
        try:
            yield
        finally:
            if folded and around:
                folded.around = around
            for handle in handles:
                handle.remove()

    def _around(self, module: nn.Module) -> AbstractContextManager[object]:
        name = self.names.get(module)
        return nullcontext() if name is None else self.region(name)

    def begin(self, layer: str) -> None:
        """Begin a layer's forward pass."""
        # The sequence number is that of the next node that this thread makes.
        self._begun.append((layer, self.clock.stamp(), autograd._get_sequence_nr()))

    def end(self) -> None:
        """End the innermost active layer."""
        # The stamp comes first, so that the recorder's own work is not in the layer's time.
        end = self.clock.stamp()
        layer, start, first = self._begun.pop()
        self.spans.append(Span(layer, "forward", start, end))
        self._calls.append((first, autograd._get_sequence_nr(), layer))

    @contextmanager
    def region(self, layer: str) -> Iterator[None]:
        """Record the work in the context as a layer's."""
        self.begin(layer)
        yield
        self.end()

    def watch_backward(self, loss: Tensor) -> None:
        """Record each node of the graph that ends in `loss` when its backward pass runs."""
        starts = [first for first, _, _ in self._calls]  # ascending: layers do not overlap
        nodes: set[Node] = set()
        # A loop, since the graph may be deeper than Python's limit of recursion.
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                self._watch(node, self._find_layer(node, starts))
                waiting += [following for following, _ in node.next_functions]

    def _find_layer(self, node: Node, starts: list[int]) -> str | None:
        parameter = getattr(node, "variable", None)
        if parameter is not None:  # the node that adds to a parameter's gradient
            return self._owners.get(parameter)
        number: int = node._sequence_nr()
        place = bisect_right(starts, number) - 1
        if place < 0:
            return None
        # Calls that made no nodes have empty ranges, maybe at the same number.
        _, end, layer = self._calls[place]
        return layer if number < end else None

    def _watch(self, node: Node, layer: str | None) -> None:
        work = node.name()
        begun: list[Any] = []

        def after(inputs: object, outputs: object) -> None:
            self.spans.append(Span(layer, work, begun.pop(), self.clock.stamp()))

        node.register_prehook(lambda gradients: begun.append(self.clock.stamp()))
        node.register_hook(after)


class TimedModel(NamedTuple):
    """A network with its batch, ready to run."""

    network: nn.Module
    forward: Callable[[], Any]  # Returns the network's outputs for the batch
    loss: Callable[[Any], Tensor]  # Returns the loss of such outputs
    folded: FoldedForward | None  # What computes the network where its modules are not called


def plain_iteration(
    timed: TimedModel, clock: Clock, *, recorder: Recorder | None = None
) -> dict[str, float]:
    """Return the times of `forward` and `backward`, without hooks if there is no recorder. [ms]"""
    # Before the first stamp, since clearing gradients belongs to neither pass.
    timed.network.zero_grad(set_to_none=True)
    # A GPU may still compute the iteration before.
    clock.finish()
    start = clock.stamp()
    outputs = timed.forward()
    with recorder.region(LOSS) if recorder else nullcontext():
        loss = timed.loss(outputs)
    middle = clock.stamp()
    # Registering hooks on all nodes belongs to neither pass: hence a second stamp.
    if recorder:
        recorder.watch_backward(loss)
    begin = clock.stamp()
    loss.backward()
    end = clock.stamp()
    clock.finish()
    return {
        "forward": clock.milliseconds(start, middle),
        "backward": clock.milliseconds(begin, end),
    }


def watched_iteration(timed: TimedModel, recorder: Recorder) -> dict[str, Any]:
    """Return the times of `forward` and `backward`, and of each layer. [ms]

    `layers` has [forward, backward] by name, where backward is None for a layer without one;
    `nodes` has backward work between layers, by node of autograd's graph.
    """
    clock = recorder.clock
    with recorder.attached(timed.folded):
        iteration: dict[str, Any] = plain_iteration(timed, clock, recorder=recorder)
    forward: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    nodes: dict[str, float] = defaultdict(float)
    for span in recorder.spans:
        spent = clock.milliseconds(span.start, span.end)
        if span.layer is None:
            nodes[span.work] += spent
        else:
            (forward if span.work == "forward" else backward)[span.layer] += spent
    layers = {name: [forward[name], backward.get(name)] for name in forward}
    return {**iteration, "layers": layers, "nodes": dict(nodes)}


def prepare_timing(
    subject: Subject, *, onednn: bool, notes: Sequence[str]
) -> tuple[dict[str, Any], Answering]:
    """Build the network and run it once; return facts, and the function that serves requests.

    `notes` are sentences about cores and memory.
    """
    clock = make_clock(subject.device)
    if not onednn:
        mkldnn.set_flags(_enabled=False)
    timed = timed_model(subject, onednn=onednn)
    recorder = Recorder(timed.network, clock)
    # The first iteration also shows which layers run, and in which order.
    watched_iteration(timed, recorder)
    facts = collect_facts(subject, timed, recorder, notes=notes)
    plain = partial(plain_iteration, timed, clock)

    def measure(done: int, count: int) -> dict[str, Any]:
        watched, without_hooks = [], []
        # `done` were measured before, perhaps by a worker that made room for another.
        for place in range(done, done + count):
            watched.append(watched_iteration(timed, recorder))
            if place % PLAIN_EVERY == 0:
                without_hooks.append(plain())
        on_gpu = subject.device == "cuda"
        peak = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else peak_resident_mb()
        memory = {"peak_mb": peak, "huge_pages_mb": huge_pages_mb()}
        return {"watched": watched, "plain": without_hooks, **memory}

    def answer(question: str) -> dict[str, Any]:
        if question == "run":
            return worker.answer(question, Prepared(plain))
        if question == "primitives":
            return {"seconds": onednn_seconds(plain)}
        return measure(*map(int, question.removeprefix("measure ").split()))

    return facts, answer


CLASSIFIERS: dict[str, Callable[[], nn.Module]] = {
    "alexnet": torchvision.models.alexnet,
    "resnet50": torchvision.models.resnet50,
    "resnext50": torchvision.models.resnext50_32x4d,
}
CATEGORIES = 1000  # The categories of ImageNet


def timed_model(subject: Subject, *, onednn: bool) -> TimedModel:
    """Make the network and its batch; without `onednn` no kernels of ours convolve either."""
    torch.manual_seed(subject.seed)
    if subject.model == "retinanet":
        return timed_retinanet(subject, onednn=onednn)
    network = CLASSIFIERS[subject.model]()
    network.train().to(subject.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(subject.batch, 3, subject.image_size, subject.image_size)
    images = images.to(subject.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CATEGORIES, (subject.batch,)).to(subject.device)

    def forward() -> Tensor:
        with model_autocast(subject):
            outputs: Tensor = network(images)
        return outputs

    return TimedModel(
        network, forward, lambda outputs: F.cross_entropy(outputs.float(), labels), None
    )


def timed_retinanet(subject: Subject, *, onednn: bool) -> TimedModel:
    """Return ours as trained on processors; on a GPU its modules are called one by one."""
    workload = make_workload(subject)
    network = make_model(workload)
    network.train().to(subject.device)
    batch = make_batch(workload)
    images = batch.images.to(subject.device)
    targets = [{k: v.to(subject.device) for k, v in target.items()} for target in batch.targets]
    folded = None
    if subject.device == "cpu":
        # `onednn` leaves convolutions to torch, which runs without oneDNN then (`prepare_timing`).
        convolutions = "auto" if onednn else "onednn"
        engine = torch_forward(network, precision=subject.precision, convolutions=convolutions)
        assert isinstance(engine, FoldedForward)
        folded = engine

    def forward() -> HeadOutputs:
        if folded is not None:
            return folded(normalize(images))
        with model_autocast(subject):
            outputs: HeadOutputs = network(normalize(images))
        return outputs

    def loss(outputs: HeadOutputs) -> Tensor:
        size = (subject.image_size, subject.image_size)
        anchors = network.anchors(size, outputs.feature_sizes)
        # Our kernel of the focal loss is C++ for processors.
        form = "auto" if subject.device == "cpu" else "reference"
        losses = detection_loss(outputs, anchors, targets, focal_form=form)
        return torch.stack(list(losses.values())).sum()

    return TimedModel(network, forward, loss, folded)


def make_workload(subject: Subject) -> Workload:
    """Return the benchmark's workload with this batch."""
    return Workload(images=subject.batch, image_size=subject.image_size, seed=subject.seed)


def model_autocast(subject: Subject) -> torch.autocast:
    """Return the context in which plain modules compute in the subject's precision."""
    enabled = subject.precision == "bf16"
    return torch.autocast(subject.device, dtype=torch.bfloat16, enabled=enabled)


def collect_facts(
    subject: Subject, timed: TimedModel, recorder: Recorder, *, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the executed layers in the order of their first call, and their implementation.

    The recorder has watched an iteration. `notes` are sentences about cores and memory.
    """
    modules = dict(timed.network.named_modules())
    size = subject.image_size
    # A second network, since the torch engine does not call the modules of the first.
    with torch.device("meta"):  # nothing is computed to count the arithmetic
        images = torch.empty(subject.batch, 3, size, size)
        if subject.model == "retinanet":
            network: nn.Module = RetinaNet(num_classes=make_workload(subject).classes)
        else:
            network = CLASSIFIERS[subject.model]()
        flop = flop_by_layer(network, partial(network, images))
    # In the order of the first calls, as are the spans.
    calls = Counter(span.layer or "" for span in recorder.spans if span.work == "forward")
    return {
        "layers": [
            {
                "name": name,
                "type": LOSS if name == LOSS else type(modules[name]).__name__,
                "calls": count,
                "trains": name != LOSS and any(p.requires_grad for p in modules[name].parameters()),
                "gflop_forward": flop.get(name, Flop()).forward / 1e9,
                "gflop_backward": flop.get(name, Flop()).backward / 1e9,
            }
            for name, count in calls.items()
        ],
        "winograd": timed.folded is not None and timed.folded.has_winograd,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if subject.device == "cuda" else "cpu",
        "notes": list(notes),
    }
