"""Results of training steps for tests."""

from typing import Any

from retinanet.training.loop import StepResult


def step_result(step: int = 1, **fields: Any) -> StepResult:
    """Return the result of a step of two images; `fields` replace the values below."""
    values: dict[str, Any] = {
        "losses": {"classification": 1.0, "bbox_regression": 0.5},
        "gradient_norm": 2.0,
        "learning_rate": 0.1,
        "images": 2,
        "seconds": 3.0,
        "data_seconds": 0.5,
        "page_faults": 10,
        "resident_mb": 100.0,
        "peak_resident_mb": 200.0,
    }
    return StepResult(step=step, **(values | fields))
