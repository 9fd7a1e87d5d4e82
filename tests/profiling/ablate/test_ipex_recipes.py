"""Recipes with IPEX, each in a process of its own: it changes torch for the whole process."""

from importlib.util import find_spec

import pytest

from profiling.bench.variant import Variant, Workload
from profiling.bench.worker_pool import variant_worker

pytestmark = pytest.mark.skipif(
    find_spec("intel_extension_for_pytorch") is None, reason="needs IPEX: `make ipex`"
)
RECIPES = "profiling.ablate.recipes"
SMALL = Workload(images=1, image_size=64, classes=4)


def operators(recipe: str, **options: str | bool) -> tuple[dict[str, float], str]:
    """What a run tells, and the names of the operators of the next one."""
    variant = Variant(name="some", about="", recipe=f"{RECIPES}.{recipe}", options=dict(options))
    worker = variant_worker(variant, SMALL)
    try:
        details = worker.run().details
        return details, " ".join(worker.ask("operators")["operators"])
    finally:
        worker.close()


def test_ipex_with_either_norm_has_the_same_loss() -> None:
    losses = {}
    names = {}
    for norm in ("own", "torchvision"):
        found, names[norm] = operators(
            "training_step", engine="ipex", precision="float32", norm=norm
        )
        losses[norm] = found["loss value"]
    assert losses["torchvision"] == pytest.approx(losses["own"], rel=1e-3)
    assert "torch_ipex::frozen_batch_norm" in names["own"]
    assert "torch_ipex::frozen_batch_norm" not in names["torchvision"]


@pytest.mark.parametrize("fused", [True, False])
def test_lamb_is_ipexs_kernel_only_where_it_is_fused(fused: bool) -> None:
    _, names = operators("ipex_lamb", fused=fused)
    assert ("torch_ipex::lamb_fused_step" in names) is fused
