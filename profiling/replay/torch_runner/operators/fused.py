"""What torch's compiler fuses into a convolution or a linear layer, by oneDNN's names."""

from collections.abc import Sequence
from typing import NamedTuple

from profiling.replay.torch_runner.operators.reaching import NotReachedError


class Unary(NamedTuple):
    """Arguments of torch's fused operators."""

    name: str | None
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


FUSED = {
    "eltwise_relu": Unary("relu"),
    "eltwise_logistic": Unary("sigmoid"),
    "eltwise_tanh": Unary("tanh"),
    "eltwise_hardswish": Unary("hardswish"),
    "eltwise_swish": Unary("swish"),
    "eltwise_gelu_erf": Unary("gelu", (), "none"),
    "eltwise_gelu_tanh": Unary("gelu", (), "tanh"),
}


def unary_of(fused: Sequence[str], *, only: Sequence[str]) -> Unary:
    """The one operation that is fused, or none.

    Raises:
        NotReachedError: It is not among `only`, or there are several.
    """
    if not fused:
        return Unary(None)
    name, *numbers = fused[0].split(":")
    if len(fused) > 1 or name not in only:
        raise NotReachedError(f"torch does not fuse {'+'.join(fused)}")
    if name == "eltwise_relu" and numbers and float(numbers[0]) != 0:
        return Unary("leaky_relu", (float(numbers[0]),))
    return FUSED[name]
