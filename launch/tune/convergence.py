"""How many epochs a target takes, and the settings that a global batch size wants for it."""

from collections.abc import Callable
from dataclasses import dataclass

from launch.tune.epochs import EpochsModel
from launch.tune.probed import Probes, epochs_of_probes
from launch.tune.reference_epochs import epochs_of_mlperf
from retinanet.mlperf.reference_points import expectation, reference_points
from retinanet.mlperf.rules import Rules


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Of one configuration."""

    epochs: EpochsModel
    settings: Callable[[int], list[str]]
    """From a global batch size to the `section.field=value` that it asks for."""


def convergence_of_mlperf(rules: Rules) -> Convergence:
    """On MLPerf's part of OpenImages v6, until mAP 0.34."""

    def settings(batch_size: int) -> list[str]:
        found = expectation(reference_points(rules), batch_size)
        return [
            f"training.learning_rate={found.learning_rate:.3g}",
            f"training.warmup_epochs={found.warmup_epochs:g}",
            f"training.warmup_factor={found.warmup_factor:g}",
        ]

    return Convergence(epochs=epochs_of_mlperf(rules), settings=settings)


def convergence_of_probes(probes: Probes, *, config: str) -> Convergence:
    """Of a configuration's own data, with the rule for the learning rate that its probe runs had.

    Raises:
        InputError: A run did not reach the target.
    """

    def settings(batch_size: int) -> list[str]:
        return [
            f"training.learning_rate={probes.rule.scaled(batch_size):.3g}",
            f"training.target_map={probes.target_map:g}",
        ]

    return Convergence(epochs=epochs_of_probes(probes, config=config), settings=settings)
