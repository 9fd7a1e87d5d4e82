"""Layouts of a log as benchdnn's tags and strides."""

from collections.abc import Sequence

from profiling.onednn_log.memory_descriptor import MemoryDescriptor
from profiling.replay.problem_files.problem_line import Dialect, NotExpressibleError

ANY = "any"


def free_tag(memory: MemoryDescriptor, dialect: Dialect) -> str:
    """The tag where benchdnn's driver also takes `any`.

    A program that leaves a layout to the library gets the best one of its version and its
    machine: `any` runs the same choice again, and the tag of another machine would not.

    Raises:
        NotExpressibleError: It has strides, or is none that a tag names.
    """
    return ANY if leaves_choice(memory, dialect) else fixed_tag(memory)


def fixed_tag(memory: MemoryDescriptor) -> str:
    """The tag where benchdnn's driver takes no `any`.

    Raises:
        NotExpressibleError: It has strides, or is none that a tag names.
    """
    if memory.strides:
        raise NotExpressibleError(
            f"{memory.role} is not dense (strides {memory.strides}), and this driver of benchdnn "
            "takes no strides"
        )
    return tag_name(memory)


def tag_name(memory: MemoryDescriptor) -> str:
    """The layout's name.

    Raises:
        NotExpressibleError: It has none.
    """
    if memory.kind != "blocked" or not memory.tag:
        raise NotExpressibleError(f"{memory.role} has a layout without a name ({memory.kind})")
    if not memory.tag.isalnum():
        raise NotExpressibleError(f"{memory.role}'s layout is known at run time only")
    if "o" in memory.properties or "0" in memory.properties:
        raise NotExpressibleError(f"{memory.role} is a part of a larger tensor")
    return memory.tag


def layout_options(
    memories: Sequence[MemoryDescriptor | None],
    names: Sequence[str],
    dialect: Dialect,
    *,
    takes_any: bool = True,
    takes_strides: bool = True,
) -> list[str]:
    """`--stag --wtag --dtag`, and `--strides` where a tensor is not dense.

    Args:
        memories: In the order of the driver's strides; None where a log has no such tensor.
        names: Of the tags' options, in the same order.
        dialect: benchdnn's.
        takes_any: Whether the driver takes `any`.
        takes_strides: Whether it takes strides; a tensor has either these or a tag.

    Raises:
        NotExpressibleError: A layout cannot be given.
    """
    options, strides = [], []
    for memory, name in zip(memories, names, strict=True):
        is_free = takes_any and memory is not None and leaves_choice(memory, dialect)
        if memory is None or not memory.strides or is_free or not takes_strides:
            strides.append("")
            if memory is not None:
                tag = free_tag(memory, dialect) if takes_any else fixed_tag(memory)
                options.append(f"--{name}={tag}")
            continue
        if not tag_name(memory).islower() or not memory.tag.isalpha():
            raise NotExpressibleError(
                f"{memory.role} has blocks and is not dense ({memory.layout}); benchdnn takes one "
                "or the other"
            )
        strides.append(memory.strides)
    if any(strides):
        options.append(f"--strides={':'.join(strides)}")
    return options


def leaves_choice(memory: MemoryDescriptor, dialect: Dialect) -> bool:
    """Whether the layout is the library's to choose."""
    return dialect.layouts == "any" or "a" in memory.properties or memory.kind == "any"
