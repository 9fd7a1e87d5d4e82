"""Hosts, networks and measurements, written down."""

from profiling.bench.job import AllReduceTime
from profiling.studies.tune.forecast import Exchange, HostModel, Workload
from profiling.studies.tune.measurements import (
    Added,
    Evaluated,
    Measurements,
    ProbeRun,
    Probes,
    RateRule,
)
from profiling.studies.tune.model import (
    Network,
    Shape,
    StepTime,
    StepTimeModel,
    Update,
)
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
UPDATE = Update(weight_bytes=140_000_000, seconds=0.08, network=NETWORK)
HOST = HostModel(step_time=STEP, exchange=EXCHANGE, update=UPDATE, error=0.05)
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


def probed(*, batch_size: int, seed: int, epochs_to_030: float) -> ProbeRun:
    """A run whose mAP grows evenly, through 0.3 after so many epochs, for ten of them."""
    evaluations = tuple(
        Evaluated(epoch=epoch, score=min(1.0, 0.3 * epoch / epochs_to_030))
        for epoch in range(1, 11)
    )
    return ProbeRun(
        batch_size=batch_size, seed=seed, evaluations=evaluations, is_over=True, seconds=60.0
    )


def probes() -> Probes:
    """Of three batch sizes: half an epoch more or less than 1.5, 2.5 and 4.5."""
    return Probes(
        target_map=0.3,
        batch_sizes=(8, 16, 32),
        seeds=2,
        rule=RateRule(rate=3e-4, batch_size=8, is_linear=False),
        runs=tuple(
            probed(batch_size=size, seed=seed, epochs_to_030=epochs + seed - 0.5)
            for seed in (0, 1)
            for size, epochs in ((8, 1.5), (16, 2.5), (32, 4.5))
        ),
    )


def measurements() -> Measurements:
    """Of a host with two sockets that behaves as `STEP` says."""
    return Measurements(
        command="python -m launch tune",
        environment={"cpu": "a processor"},
        cores=56,
        sockets=2,
        shapes=SHAPES,
        data="openimages",
        config="openimages.yaml",
        overrides=(),
        images=TRAINING_IMAGES,
        evaluated_images=VALIDATION_IMAGES,
        batch_size=8,
        every=1,
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
        update_seconds=UPDATE.seconds,
    )
