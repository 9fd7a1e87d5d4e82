"""Whether the processor and the tools of this host suit the engine that is asked for."""

from collections.abc import Collection

from retinanet.compile_command import kernel_sources
from retinanet.native_library import (
    NoCompilerError,
    find_compiler,
    library_ahead,
    usable_instruction_sets,
)
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.processor import bf16_flag, cpu_flags

PRECISION = "precision"
COMPILER = "C++ compiler"
FLOAT32 = "engine.precision=float32"


def check_precision(
    precision: str, *, convolutions: str = "auto", flags: Collection[str] | None = None
) -> Finding:
    """Look whether the processor has instructions for the precision.

    Args:
        precision: `bf16` or `float32`.
        convolutions: `auto`, `onednn` or `winograd`.
        flags: The processor's; None: this one's.
    """
    known = cpu_flags() if flags is None else flags
    if convolutions == "winograd" and "avx512_bf16" not in known:
        found = "engine.convolutions=winograd: the processor has no AVX-512 BF16"
        return failure(PRECISION, found, fix="take auto or onednn")
    own = bf16_flag(known)
    if precision != "bf16":
        return ok(PRECISION, f"{precision}, which every processor has")
    if own:
        return ok(PRECISION, f"bf16, by the processor's {own}")
    if "avx512bw" in known:
        found = "bf16, which this processor (AVX-512 without BF16) computes by way of float32"
        return warning(PRECISION, found, fix=f"{FLOAT32} is as fast or faster")
    found = "bf16, for which this processor has no instructions: steps take many times as long"
    return warning(PRECISION, found, fix=f"set {FLOAT32}")


def check_compiler(focal_loss: str) -> Finding:
    """Look for the compiler of the C++ kernels, unless they were compiled ahead.

    Args:
        focal_loss: The form that is asked for; `kernel` insists on one.
    """
    best = usable_instruction_sets()[0]
    if all(library_ahead(source, best).exists() for source in kernel_sources()):
        return ok(COMPILER, f"not needed: kernels were compiled ahead, for {best} too")
    try:
        compiler = find_compiler()
    except NoCompilerError as error:
        if focal_loss == "kernel":
            return failure(COMPILER, f"engine.focal_loss=kernel: {error}", fix="or take auto")
        return warning(COMPILER, f"{error}", fix="without it loss and optimizer are slower")
    return ok(COMPILER, " ".join(compiler))
