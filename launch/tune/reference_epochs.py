"""MLPerf's reference convergence points as a model of epochs."""

from launch.tune.epochs import EpochsModel, Runs
from retinanet.mlperf.reference_points import reference_points
from retinanet.mlperf.rules import TARGET_MAP, Rules


def epochs_of_mlperf(rules: Rules) -> EpochsModel:
    """Of RetinaNet on MLPerf's part of OpenImages."""
    return EpochsModel(
        runs=tuple(
            Runs(batch_size=one.batch_size, epochs=one.epochs) for one in reference_points(rules)
        ),
        target=f"mAP {TARGET_MAP:g}",
        source=f"MLPerf's reference convergence points, rules {rules}",
    )
