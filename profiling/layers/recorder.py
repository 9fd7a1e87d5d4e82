"""When each layer works, forward and backward, without changing what it computes.

Forward, a layer's time is between its module's hooks. Every node of autograd's graph that is made
meanwhile is the layer's; nodes carry the number of their making. Backward, its time is that of its
nodes, each between hooks of the node, and of adding its weights' gradients to `grad`. So nothing
is wrapped: operators that overwrite their input, modules that run several times and functions of
our own are timed as they are. https://docs.pytorch.org/docs/stable/autograd.html#autograd-graph
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, autograd, nn
from torch.autograd.graph import Node

from profiling.layers.clock import Clock
from retinanet.engine.network import FoldedForward

LOSS = "loss"


class Span(NamedTuple):
    """Work between two stamps."""

    layer: str | None
    """None: between layers."""
    work: str
    """`forward`, or the name of a node of the graph."""
    start: Any
    end: Any


class NodeRange(NamedTuple):
    """The numbers of the nodes that one call of a layer made."""

    first: int
    end: int
    layer: str


class Recorder:
    """The spans of one iteration after another: use `attached`, then the methods in order."""

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
        self._ranges: list[NodeRange] = []
        self._begun: list[tuple[str, Any, int]] = []

    def clear(self) -> None:
        """Forget the iteration before."""
        self.spans, self._ranges = [], []

    @contextmanager
    def attached(self, folded: FoldedForward | None) -> Iterator[None]:
        """Be told of all layers meanwhile; `folded` computes them without calling modules."""
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

    def begin(self, layer: str) -> None:
        """A layer begins its forward pass."""
        self._begun.append((layer, self.clock.stamp(), autograd._get_sequence_nr()))

    def end(self) -> None:
        """The layer that began last has ended."""
        end = self.clock.stamp()
        layer, start, first = self._begun.pop()
        self.spans.append(Span(layer, "forward", start, end))
        self._ranges.append(NodeRange(first, autograd._get_sequence_nr(), layer))

    @contextmanager
    def region(self, layer: str) -> Iterator[None]:
        """What happens meanwhile is a layer's."""
        self.begin(layer)
        yield
        self.end()

    def watch_backward(self, loss: Tensor) -> None:
        """Be told of each node of the graph that ends in `loss`, when its backward pass runs."""
        starts = [one.first for one in self._ranges]  # ascending: layers do not overlap
        for node in nodes_of(loss):
            self._watch(node, self._layer_of(node, starts))

    def _around(self, module: nn.Module) -> AbstractContextManager[object]:
        name = self.names.get(module)
        return nullcontext() if name is None else self.region(name)

    def _layer_of(self, node: Node, starts: list[int]) -> str | None:
        parameter = getattr(node, "variable", None)
        if parameter is not None:  # the node that adds to a parameter's gradient
            return self._owners.get(parameter)
        number: int = node._sequence_nr()  # type: ignore[attr-defined]
        place = bisect_right(starts, number) - 1
        # Calls that made no nodes have empty ranges, maybe at the same number.
        if place >= 0 and number < self._ranges[place].end:
            return self._ranges[place].layer
        return None

    def _watch(self, node: Node, layer: str | None) -> None:
        work = node.name()
        begun: list[Any] = []

        def before(gradients: object) -> None:
            begun.append(self.clock.stamp())

        def after(inputs: object, outputs: object) -> None:
            self.spans.append(Span(layer, work, begun.pop(), self.clock.stamp()))

        node.register_prehook(before)
        node.register_hook(after)


def nodes_of(loss: Tensor) -> Iterable[Node]:
    """Each node of the graph that ends in `loss`, once."""
    found: dict[Node, None] = {}
    left = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = None
            left += [following for following, _ in node.next_functions]
    return found
