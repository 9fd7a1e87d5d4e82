"""What a variant takes and this machine has not, in words with what to do."""

import os
from collections.abc import Mapping

from data.decoding.decoders import DECODERS, fault_of
from launch.host.allowance import read_allowance
from launch.pinning.preload import ALLOCATORS, find
from profiling.ablate.ablation import Option, Variant
from profiling.ablate.pillow_simd import pillow_simd_folder
from profiling.huge_pages import huge_pages_remark
from retinanet.errors import InputError
from retinanet.processor import BF16_FLAGS, bf16_flag, cpu_flags


def lacking(variant: Variant, options: Mapping[str, Option], *, allocator: str) -> str | None:
    """The first thing that is missing here for a variant; None where all is there.

    Args:
        variant: What it says of its needs.
        options: All that its recipe is given.
        allocator: Its memory policy.
    """
    return (
        lacking_processor(variant)
        or lacking_packages(variant, options)
        or lacking_memory(variant, allocator)
        or lacking_cores(options)
    )


def lacking_processor(variant: Variant) -> str | None:
    """Instructions."""
    if "bf16" in variant.needs and bf16_flag(cpu_flags()) is None:
        return f"the processor has no instructions for BF16 ({' or '.join(BF16_FLAGS[:2])})"
    return None


def lacking_packages(variant: Variant, options: Mapping[str, Option]) -> str | None:
    """Python packages."""
    if "ipex" in variant.needs:
        from retinanet.engine.ipex_engine import require_ipex  # noqa: PLC0415

        try:
            require_ipex()
        except InputError as error:
            return str(error).removeprefix("engine.name: ").split(", or set")[0]
    decoder = options.get("decoder")
    if decoder in DECODERS:
        fault = fault_of(str(decoder))
        if fault is not None:
            return f"{decoder} {fault}"
    if variant.pillow_simd and pillow_simd_folder() is None:
        return "Pillow-SIMD is not built; run `./setup.sh simd-beside`"
    return None


def lacking_memory(variant: Variant, allocator: str) -> str | None:
    """Allocators, huge pages, memory nodes."""
    library = ALLOCATORS.get(allocator)
    if library is not None and find(library) is None:
        return f"{allocator} is not installed (apt-get install {library.package})"
    if variant.huge_pages:
        remark = huge_pages_remark()
        if remark:
            return remark.removeprefix("--huge-pages: no effect, ")
    nodes = len(read_allowance().memory_nodes)
    if variant.memory is not None and nodes < 2:
        return f"takes two memory nodes (a second socket), and here is {max(nodes, 1)}"
    return None


def lacking_cores(options: Mapping[str, Option]) -> str | None:
    """CPUs for the ranks and threads of a job."""
    wanted = int(options.get("ranks", 1)) * int(options.get("threads", 1))
    cores = len(os.sched_getaffinity(0))
    if wanted > cores:
        return f"takes more cores than the {cores} that this process may use"
    return None
