"""RetinaNet-ResNeXt50 and its training on CPUs.

The interface for Python, see docs/python.md; all other modules may change with every version:

    from retinanet import Detector, train
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.errors import InputError
    from retinanet.detector import Detection, Detections, Detector
    from retinanet.train_in_child import (
        EvaluationRecord,
        StepRecord,
        Training,
        TrainingResult,
        train,
    )

__all__ = [
    "Detection",
    "Detections",
    "Detector",
    "EvaluationRecord",
    "InputError",
    "StepRecord",
    "Training",
    "TrainingResult",
    "train",
]

_MODULES = {
    "Detection": "retinanet.detector",
    "Detections": "retinanet.detector",
    "Detector": "retinanet.detector",
    "EvaluationRecord": "retinanet.train_in_child",
    "InputError": "common.errors",
    "StepRecord": "retinanet.train_in_child",
    "Training": "retinanet.train_in_child",
    "TrainingResult": "retinanet.train_in_child",
    "train": "retinanet.train_in_child",
}
"""Imported when a name is used first: `import retinanet` must not load torch, since command lines
set up cores and memory before."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from common.program import module_name  # noqa: PLC0415

    value = getattr(import_module(module_name(_MODULES[name])), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
