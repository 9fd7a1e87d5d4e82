"""What MLPerf's rule sets call this benchmark, and what they measure it by."""

from typing import Literal, get_args

Rules = Literal["5.1.0", "5.0.0", "4.1.0", "2.1.0"]
"""Rule sets of MLCommons' checkers in which RetinaNet on OpenImages is a benchmark."""

RULES: tuple[Rules, ...] = get_args(Rules)
NEWEST: Rules = "5.1.0"
TRAINING_IMAGES, VALIDATION_IMAGES = 1_170_301, 24_781
"""Of MLPerf's part of OpenImages v6."""
TARGET_MAP = 0.34
RUNS_OF_SUBMISSION = 5
"""Of which the fastest and the slowest do not count."""


def benchmark_name(rules: Rules) -> str:
    """`retinanet`; before rules 5.0 `ssd`, the name of the model that it replaced in rules 2.0."""
    return "retinanet" if rules.startswith("5.") else "ssd"
