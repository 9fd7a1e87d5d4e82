"""Hosts, networks and measurements of known behaviour."""

from collections.abc import Callable
from dataclasses import replace
from subprocess import CompletedProcess

from profiling.studies.rounds import Shape
from profiling.studies.tune.forecast import HostModel
from profiling.studies.tune.measurements import (
    Added,
    Evaluated,
    Measurements,
    ProbeRun,
    Probes,
    RateRule,
)
from profiling.studies.tune.model import Checked, Fitted, Network, StepTime, StepTimeModel
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES

Tune = Callable[..., CompletedProcess[str]]
"""Runs `retinanet launch tune` with its arguments, as the fixture `tune`."""
STEP = StepTimeModel(fixed=0.6, per_image=2.5, serial=0.02, contention=0.1, cores=56)
NETWORK = Network(latency=20e-6, bandwidth=3e9, source="sample")
GRADIENT_BYTES = 140_000_000
BACKWARD_SHARE = 0.6
UPDATE_SECONDS = 0.08
SHAPES = tuple(
    Shape(ranks=ranks, threads=56 // ranks, batch_size=images)
    for ranks in (1, 2, 4, 8)
    for images in (1, 2, 4, 8)
)


def probed(*, batch_size: int, seed: int, epochs_to_030: float) -> ProbeRun:
    """Return a run of ten epochs whose mAP grows evenly and passes 0.3 after `epochs_to_030`."""
    evaluations = tuple(
        Evaluated(epoch=epoch, score=min(1.0, 0.3 * epoch / epochs_to_030))
        for epoch in range(1, 11)
    )
    return ProbeRun(
        batch_size=batch_size, seed=seed, evaluations=evaluations, is_over=True, seconds=60.0
    )


def probes() -> Probes:
    """Return probes of three batch sizes that take 1.5, 2.5 and 4.5 epochs, ± half an epoch."""
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
    """Return measurements of a host with two sockets whose steps follow `STEP`."""
    return Measurements(
        command="retinanet launch tune",
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
        gradient_bytes=GRADIENT_BYTES,
        steps=tuple(StepTime(shape=shape, seconds=STEP.seconds(shape)) for shape in SHAPES),
        added=(Added(ranks=2, batch_size=2, share=0.01),),
        backward_share=BACKWARD_SHARE,
        data_share=0.0,
        evaluation_seconds=1.5,
        metric_seconds=25.0,
        busy_cores=0.0,
        update_seconds=UPDATE_SECONDS,
    )


def host() -> HostModel:
    """Return the model of this host, with an error of 5 % for its steps."""
    checked = Checked(time=measurements().steps[0], predicted=1.05, was_left_out=True)
    exact = replace(checked, time=replace(checked.time, seconds=1.0))
    return HostModel(
        measured=measurements(), fitted=Fitted(model=STEP, checked=(exact,)), network=NETWORK
    )
