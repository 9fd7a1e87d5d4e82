"""Sample ablations and results."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from profiling.ablate.definition import SCHEMA, Ablation
from profiling.ablate.result import Result
from profiling.bench.variant import Run

RECIPE = "tests.profiling.ablate.counting_recipe"


def ablation(**fields: Any) -> Ablation:
    """Return an ablation of two variants and one comparison, with fields replaced."""
    tree: dict[str, Any] = {
        "place": 1,
        "question": "Is it faster?",
        "source": "a paper, section 1",
        "says": "30 %",
        "recipe": RECIPE,
        "variants": {"slow": {"about": "as it was"}, "quick": {"about": "as it is"}},
        "comparisons": [{"change": "quick", "baseline": "slow"}],
        **fields,
    }
    return SCHEMA.validate_json(json.dumps(tree))


def run(seconds: float, **details: float) -> Run:
    """Return a run with details; a `_` in a name stands for a space."""
    return Run(
        seconds=seconds,
        page_faults=3,
        rss_mb=100.0,
        peak_rss_mb=200.0,
        details={name.replace("_", " "): value for name, value in details.items()},
    )


def result(runs: Mapping[str, Sequence[Run]], **fields: Any) -> Result:
    """Return a result with the runs of each variant, round by round."""
    rounds = tuple(
        dict(zip(runs, round_runs, strict=True)) for round_runs in zip(*runs.values(), strict=True)
    )
    variant = {"recipe": RECIPE, "allocator": "tuned", "pinned": True, "huge_pages": False}
    variant |= {"options": {"ranks": 1, "threads": 1}, "memory": None, "pillow_simd": False}
    sizes = {"workload": {"image_size": 320, "images": 1}, "warm_up": 2, "settling": 0}
    definition = {**sizes, "photos": None, "variants": {name: {**variant} for name in runs}}
    made = {
        "ablation": "made",
        "size": "quick",
        "command": "retinanet profile ablate run made --quick",
        "environment": {"cpu": "a processor", "cores": 2, "torch": "2.8.0"},
        "definition": definition,
        "left_out": {},
        "rounds_wanted": len(rounds),
        "rounds": rounds,
        "began": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:01:00+00:00",
    }
    return Result(**{**made, **fields})
