"""Hosts, networks and measurements, written down."""

from launch.tune.forecast import Exchange, HostModel, Workload
from launch.tune.measurements import Added, Measurements
from launch.tune.network import AllReduceTime, Network
from launch.tune.step_time import Shape, StepTime, StepTimeModel
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES

STEP = StepTimeModel(fixed=0.6, per_image=2.5, serial=0.02, contention=0.1, cores=56)
NETWORK = Network(latency=20e-6, bandwidth=3e9, source="by hand")
EXCHANGE = Exchange(
    gradient_bytes=140_000_000,
    last_bytes=20_000_000,
    on_one_host=0.01,
    hidden_share=0.6,
    network=NETWORK,
)
HOST = HostModel(step_time=STEP, exchange=EXCHANGE, error=0.05)
WORKLOAD = Workload(
    images=TRAINING_IMAGES,
    evaluated_images=VALIDATION_IMAGES,
    every=1,
    evaluation_seconds=1.5,
    metric_seconds=25.0,
)
SHAPES = tuple(
    Shape(ranks=ranks, threads=56 // ranks, batch_size=images)
    for ranks in (1, 2, 4, 8)
    for images in (1, 2, 4, 8)
)


def measurements() -> Measurements:
    """Of a host with two sockets that behaves as `STEP` says."""
    return Measurements(
        command="python -m launch tune",
        environment={"cpu": "a processor"},
        cores=56,
        sockets=2,
        shapes=SHAPES,
        config="openimages.yaml",
        overrides=(),
        image_size=800,
        classes=264,
        precision="bf16",
        compress="none",
        gradient_bytes=EXCHANGE.gradient_bytes,
        last_bytes=EXCHANGE.last_bytes,
        steps=tuple(StepTime(shape=one, seconds=STEP.seconds(one)) for one in SHAPES),
        added=(Added(ranks=2, batch_size=2, share=0.01),),
        all_reduces=(
            AllReduceTime(ranks=2, size=4096, seconds=NETWORK.all_reduce_seconds(4096, ranks=2)),
            AllReduceTime(ranks=2, size=10**8, seconds=NETWORK.all_reduce_seconds(10**8, ranks=2)),
        ),
        all_reduces_over="by hand",
        backward_share=EXCHANGE.hidden_share,
        data_share=0.0,
        evaluation_seconds=WORKLOAD.evaluation_seconds,
        metric_seconds=WORKLOAD.metric_seconds,
        busy_cores=0.0,
    )
