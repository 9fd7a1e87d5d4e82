"""Sizes of what slides a window: `g32mb2_ic256oc256_ih200oh100kh3sh2dh0ph1_iw200ow100…`."""

from dataclasses import dataclass

from profiling.onednn_log.dimensions import named_sizes


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution, deconvolution or pooling; one number for each spatial dimension."""

    groups: int
    batch: int
    channels_in: int
    channels_out: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    """As torch counts: 1 where the kernel's points are neighbours."""
    padding: tuple[int, ...]
    """Before the first pixel; oneDNN derives the other side's from the output's size."""

    @property
    def src(self) -> tuple[int, ...]:
        """Dimensions of the input."""
        return (self.batch, self.channels_in, *self.input)

    @property
    def dst(self) -> tuple[int, ...]:
        """Dimensions of the output."""
        return (self.batch, self.channels_out, *self.output)


def geometry(shape: str) -> Geometry:
    """Read a description.

    Raises:
        ValueError: It lacks a size.
    """
    found = named_sizes(shape)
    spatial = [letter for letter in "dhw" if f"i{letter}" in found]

    def each(name: str, default: int | None = None) -> tuple[int, ...]:
        return tuple(
            found[name + letter] if default is None else found.get(name + letter, default)
            for letter in spatial
        )

    try:
        return Geometry(
            groups=found.get("g", 1),
            batch=found["mb"],
            channels_in=found["ic"],
            channels_out=found.get("oc", found["ic"]),
            input=each("i"),
            output=each("o"),
            kernel=each("k"),
            stride=each("s", 1),
            dilation=tuple(one + 1 for one in each("d", 0)),
            padding=each("p", 0),
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0]} in the shape {shape}") from error
