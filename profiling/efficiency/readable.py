"""Problems as people name them: `convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16`."""

from profiling.onednn_log.dimensions import named_sizes
from profiling.onednn_log.problem import Problem

AXES = "dhw"


def readable(problem: Problem) -> str:
    """Kind, direction, sizes, type; oneDNN's own shape where it is of no known form."""
    return ", ".join([kind_and_direction(problem.kind, problem.direction), *sizes_of(problem)])


def kind_and_direction(kind: str, direction: str) -> str:
    """Such as `convolution backward data`; training and inference are kept apart."""
    words = "" if direction == "undef" else f" {direction}"
    return f"{kind}{words}".replace("_", " ")


def sizes_of(problem: Problem) -> list[str]:
    """What there is to say of sizes and types."""
    return [
        *(window_words(problem) or [problem.shape.replace("x", "×").replace(":", " by ")]),
        *type_words(problem),
    ]


def window_words(problem: Problem) -> list[str]:
    """Of what slides a window over pictures; nothing for other kinds."""
    if problem.shape[:1].isdigit():
        return []
    sizes = named_sizes(problem.shape)
    if not {"mb", "ic"} <= sizes.keys() or not any(f"k{axis}" in sizes for axis in AXES):
        return []
    kernel, stride, dilation = (product(sizes, letter) for letter in ("k", "s", "d"))
    words = [kernel]
    if set(stride.split("×")) != {"1"}:
        words[0] += f" stride {stride}"
    if set(dilation.split("×")) - {"0", ""}:
        words[0] += f" dilation {dilation}"
    channels = f"{sizes['ic']} → {sizes['oc']}" if "oc" in sizes else str(sizes["ic"])
    words.append(f"{channels} in {sizes['g']} groups" if sizes.get("g", 1) > 1 else channels)
    words.append(f"{sizes['mb']} × {product(sizes, 'i')}")
    return words


def product(sizes: dict[str, int], letter: str) -> str:
    """One size for each axis that is there: `3×3`."""
    return "×".join(str(sizes[letter + axis]) for axis in AXES if letter + axis in sizes)


def type_words(problem: Problem) -> list[str]:
    """The types, once each; for a reorder the way between layouts."""
    there = [memory for memory in problem.memories if memory.is_there]
    if problem.kind == "reorder" and len(there) == 2:
        source, target = there
        return [f"{source.type} {source.layout} to {target.type} {target.layout}"]
    return ["/".join(dict.fromkeys(memory.type for memory in there))]
