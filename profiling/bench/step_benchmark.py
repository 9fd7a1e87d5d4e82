"""A training step: torchvision's, ours, and ours with one thing taken away."""

from collections.abc import Mapping

from profiling.bench.benchmark import RECIPES, Benchmark
from profiling.bench.contestant import Contestant
from profiling.bench.step_findings import CEILING, ONEDNN_ALONE, step_findings

COMPILE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""In the contestant's own process, so that nothing is left when it ends."""

COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def without(
    name: str,
    about: str,
    *,
    allocator: str = "tuned",
    options: Mapping[str, str | bool] | None = None,
) -> Contestant:
    """The torch engine with one switch the other way."""
    return Contestant(
        name=f"torch-{name}",
        about=f"torch, but {about}",
        recipe=f"{RECIPES}.step_torch",
        allocator=allocator,
        pinned=True,
        options=options or {},
        by_default=False,
    )


STEP = Benchmark(
    name="step",
    about="a training step: forward, loss, backward, optimizer",
    rounds=5,
    warm_up=3,
    uses_onednn=True,
    beside_load=True,
    counts_bytes=True,
    findings=step_findings,
    contestants=(
        Contestant(
            name="torchvision",
            about="its RetinaNet as a user runs it: BF16 autocast, channels_last, Adam",
            recipe=f"{RECIPES}.step_torchvision",
            allocator="system",
        ),
        Contestant(
            name="torchvision-tuned",
            about="the same under our memory policy",
            recipe=f"{RECIPES}.step_torchvision",
        ),
        Contestant(
            name="ipex",
            about="the paper's path: our model through ipex.optimize",
            recipe=f"{RECIPES}.step_torch",
            package="intel_extension_for_pytorch",
            pinned=True,
            # IPEX puts a fused step of its own in the place of torch's plain Adam.
            options={"engine": "ipex", "fused_adam": False},
        ),
        Contestant(
            name="torch",
            about="ours on stock PyTorch, as train.py runs it",
            recipe=f"{RECIPES}.step_torch",
            pinned=True,
        ),
        Contestant(
            name=ONEDNN_ALONE,
            about="torch, but every convolution is oneDNN's",
            recipe=f"{RECIPES}.step_torch",
            pinned=True,
            options={"convolutions": "onednn"},
        ),
        without("system", "memory as the C library has it", allocator="system"),
        without("tcmalloc", "memory from tcmalloc", allocator="tcmalloc"),
        without("jemalloc", "memory from jemalloc", allocator="jemalloc"),
        without("unfolded", "torchvision's modules under autocast", options={"folded": False}),
        without("reference-loss", "torchvision's focal loss", options={"focal_form": "reference"}),
        without("paper-loss", "the paper's focal loss", options={"focal_form": "paper"}),
        without("unfused-adam", "Adam tensor by tensor", options={"fused_adam": False}),
        Contestant(
            name="torch-fused-adam",
            about="torch, but torch's own fused Adam",
            recipe=f"{RECIPES}.step_torch",
            pinned=True,
            options={"torch_adam": True},
            by_default=False,
        ),
        Contestant(
            name="torch-compiled",
            about="our model and loss, but torch.compile runs the model (compiles for minutes)",
            recipe=f"{RECIPES}.step_torch",
            pinned=True,
            environment=COMPILE,
            cache_variable=COMPILE_CACHE,
            options={"compiled": True},
            by_default=False,
        ),
        Contestant(
            name="torchvision-compiled",
            about="torchvision-tuned through torch.compile (compiles for minutes)",
            recipe=f"{RECIPES}.step_torchvision",
            environment=COMPILE,
            cache_variable=COMPILE_CACHE,
            options={"compiled": True},
            by_default=False,
        ),
        Contestant(
            name="ipex-submission",
            about="IPEX as in Intel's submission: plain weights, tcmalloc, Intel's OpenMP",
            recipe=f"{RECIPES}.step_submission",
            allocator="tcmalloc",
            package="intel_extension_for_pytorch",
            pinned=True,
            needs_intel_openmp=True,
            environment={"KMP_BLOCKTIME": "1"},
            by_default=False,
        ),
        Contestant(
            name=CEILING,
            about="what is possible: the network's large convolutions, and a matrix product",
            recipe=f"{RECIPES}.ceiling",
        ),
    ),
)
