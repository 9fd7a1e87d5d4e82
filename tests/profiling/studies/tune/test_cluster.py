"""The forecast of described hosts: its arithmetic by hand, its file, its command."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from common.errors import InputError
from profiling.studies.rounds import Shape
from profiling.studies.tune.cluster import (
    ASSUMED,
    EXAMPLE,
    Cluster,
    ClusterForecast,
    Part,
    Program,
    changed_step,
    explaining_factor,
    forecast_cluster,
    forecast_step,
    gradient_exchange,
    measured_program,
    read_cluster,
    without_each_step,
)
from profiling.studies.tune.measurements import HostPeaks, Measurements, write_measurements
from profiling.studies.tune.model import StepTime, epochs_of_mlperf
from tests.profiling.studies.tune.samples import STEP, Tune, measurements
from tests.support.commands import error_line

PROGRAM = Program(
    name="a program",
    source="by hand",
    images=2,
    threads=2,
    core_gflops=1000,
    memory_gb_per_s=20,
    parts=(
        Part(name="convolutions", seconds=2.0, scales="rate"),
        Part(name="operators", seconds=0.8, scales="cores"),
        Part(name="weights", seconds=0.2, scales="cores", per="step"),
        Part(name="dispatch", seconds=0.1, scales="nothing", per="step"),
        Part(name="decoding", seconds=0.02, scales="nothing"),
    ),
    gigabytes_per_image=4,
    gigabytes_per_step=2,
    gradient_megabytes=50,
    forward_share=0.4,
    metric_seconds=10,
)
CLUSTER = Cluster(
    name="a cluster",
    hosts=4,
    sockets=2,
    cores=40,
    memory_gb_per_s=200,
    network_gbit_per_s=80,
    latency_us=10,
    core_gflops=2000,
    ranks=2,
    threads=16,
    batch_size=4,
)
PUBLISHED = {
    "source": "a",
    "program": "a program",
    "hosts": 4,
    "ranks": 2,
    "batch_size": 4,
    "epoch_seconds": 30_000.0,
}
SERIAL = 0.1 + 2 * 0.02
# 8 times the cores for everything, and twice the rate for convolutions: 4 images instead of 2.
COMPUTING = 2 * 2.0 / 8 / 2 + (2 * 0.8 + 0.2) / 8
EXCHANGE = gradient_exchange(PROGRAM, CLUSTER).added_seconds(0.6 * (SERIAL + COMPUTING))
FAST = replace(CLUSTER, core_memory_gb_per_s=1000)
BESIDE = gradient_exchange(PROGRAM, CLUSTER).bytes_beside / 1e9


@pytest.fixture
def described(tmp_path: Path) -> Callable[..., Path]:
    """Write the description with some fields changed; None removes a field."""

    def write(**changes: Any) -> Path:
        tree = json.loads(json.dumps(asdict(replace(CLUSTER, programs=(PROGRAM,)))))
        tree = {name: value for name, value in (tree | changes).items() if value is not None}
        file = tmp_path / "cluster.yaml"
        with file.open("w") as stream:
            YAML().dump(tree, stream)
        return file

    return write


def test_each_part_of_a_step_scales_by_its_bound() -> None:
    step = forecast_step(PROGRAM, CLUSTER)
    assert step.serial == pytest.approx(SERIAL)
    assert step.computing == pytest.approx(COMPUTING)
    assert step.moving == pytest.approx((4 * 4 + 2) / 100)
    # 18 GB took 0.9 s of 5.8 s where the step was measured.
    assert step.computing_alone == pytest.approx(0.475 * 4.9 / 5.8)
    # The backward pass hides all but the last bucket, and what computing threads do.
    assert step.exchange == pytest.approx(EXCHANGE)
    assert step.beside == pytest.approx(BESIDE)
    assert step.moving_beside == pytest.approx(BESIDE / 100)
    assert step.bound == "computing"


@pytest.mark.parametrize(("given", "of_core"), [(None, 10), (5, 5), (1000, 100)])
def test_exchange_is_described_by_the_cluster(given: float | None, of_core: float) -> None:
    exchange = gradient_exchange(PROGRAM, replace(CLUSTER, core_memory_gb_per_s=given))
    assert (exchange.values, exchange.compress) == (25_000_000, True)
    assert (exchange.hosts, exchange.ranks, exchange.has_own_core) == (4, 2, True)
    # A rank has half of the memory bandwidth, a core its share where the step was measured.
    assert exchange.rank_bandwidth == pytest.approx(100e9)
    assert exchange.core_bandwidth == pytest.approx(of_core * 1e9)
    assert exchange.network.bandwidth == pytest.approx(10e9)
    assert exchange.network.latency == pytest.approx(10e-6)


def test_step_lies_between_full_overlap_and_none() -> None:
    step = forecast_step(PROGRAM, CLUSTER)
    rest = 0.14 + EXCHANGE
    assert step.seconds.low == pytest.approx(rest + 0.475)
    assert step.seconds.high == pytest.approx(rest + 0.475 * 4.9 / 5.8 + 0.18 + BESIDE / 100)
    assert step.seconds.middle == pytest.approx((step.seconds.low + step.seconds.high) / 2)


def test_memory_bounds_a_step_with_little_bandwidth() -> None:
    step = forecast_step(PROGRAM, replace(CLUSTER, memory_gb_per_s=20))
    assert step.moving == pytest.approx(1.8) and step.bound == "memory bandwidth"
    # The exchange moves its bytes over the same memory.
    assert step.seconds.low == pytest.approx(0.14 + 1.8 + BESIDE / 10 + step.exchange)
    # One rank has the bandwidth of its socket only.
    alone = forecast_step(PROGRAM, replace(CLUSTER, memory_gb_per_s=20, ranks=1))
    assert alone.moving == pytest.approx(1.8)


def test_serial_part_remains_with_any_number_of_cores() -> None:
    many = replace(CLUSTER, cores=10**6, threads=10**5, memory_gb_per_s=1e9, hosts=1, ranks=1)
    assert forecast_step(PROGRAM, many).seconds.high == pytest.approx(0.14, rel=1e-3)
    half = forecast_step(PROGRAM.with_serial(0.5), many)
    assert half.seconds.high == pytest.approx(0.07, rel=2e-3)


def test_same_machine_gives_the_measured_step() -> None:
    here = replace(
        CLUSTER, hosts=1, ranks=1, sockets=1, threads=2, memory_gb_per_s=20, core_gflops=1000
    )
    step = forecast_step(PROGRAM, replace(here, batch_size=2)).seconds
    measured = 2.0 + 0.8 + 0.2 + 0.1 + 0.02
    assert step.low == pytest.approx(measured) and step.high == pytest.approx(measured)


def test_bytes_from_caches_leave_no_computing_alone() -> None:
    cached = replace(PROGRAM, gigabytes_per_image=40)
    step = forecast_step(cached, CLUSTER)
    assert step.computing_alone == 0 and step.seconds.low == step.seconds.high


def test_epoch_evaluation_and_time_to_the_target() -> None:
    result = forecast_cluster(PROGRAM, CLUSTER, epochs_of_mlperf("5.1.0"))
    step = result.step.seconds.middle
    # 1,170,301 images in steps of 32; 24,781 in batches of 4 on 8 ranks.
    assert CLUSTER.steps == 36_571
    assert result.epoch_seconds.middle == pytest.approx(36_571 * step)
    # An evaluation exchanges no gradients.
    alone = step - EXCHANGE - BESIDE / 100 / 2
    assert result.evaluation_seconds.middle == pytest.approx(775 * 0.4 * alone + 10)
    minutes = 4.0 * (36_571 * step + 775 * 0.4 * alone + 10) / 60
    assert result.minutes_to_target.middle == pytest.approx(minutes)


@pytest.mark.parametrize("name", ASSUMED)
@pytest.mark.parametrize("factor", [0.3, 1.5])
def test_explaining_factor_gives_the_time_of_the_step(name: str, factor: float) -> None:
    slow = replace(CLUSTER, network_gbit_per_s=0.8)
    seconds = changed_step(PROGRAM, slow, name, factor)
    found = explaining_factor(PROGRAM, slow, name, step_seconds=seconds)
    assert found == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "cluster", "seconds"),
    [
        ("serial part", CLUSTER, 0.1),  # Below all other parts
        ("network", CLUSTER, 0.1),
        ("memory bandwidth of a core", FAST, 0.99 * forecast_step(PROGRAM, FAST).seconds.middle),
    ],
)
def test_some_times_cannot_be_explained(name: str, cluster: Cluster, seconds: float) -> None:
    assert seconds < forecast_step(PROGRAM, cluster).seconds.middle
    assert explaining_factor(PROGRAM, cluster, name, step_seconds=seconds) is None


def with_threads(*threads: int) -> Measurements:
    """Return measurements with steps of one rank by threads, of 1, 2 and 4 images."""
    shapes = [Shape(ranks=1, threads=n, batch_size=b) for n in threads for b in (1, 2, 4)]
    return replace(
        measurements(),
        steps=tuple(StepTime(shape=shape, seconds=STEP.seconds(shape)) for shape in shapes),
        peaks=HostPeaks(core_gflops=100, memory_gb_per_s=400),
    )


def test_plan_is_split_into_serial_moving_and_computing() -> None:
    program = measured_program(with_threads(7, 14, 56), Path("plan.json"))
    # (0.6 + 2.5 · images) · (0.02 + 0.98 / threads)
    assert program.seconds("nothing", batch_size=4) == pytest.approx(0.6 * 0.02)
    assert program.gigabytes(4) == pytest.approx(4 * 2.5 * 0.02 * 400)
    of_image = 2.5 * (0.02 + 0.98 / 56)
    computing = 4 * of_image + 0.6 * 0.98 / 56
    assert program.seconds("rate", batch_size=4) == pytest.approx(computing)
    assert program.forward_share == pytest.approx(1.5 / 56 / of_image)
    assert (program.threads, program.core_gflops, program.metric_seconds) == (56, 100, 25)


def test_ranges_of_a_plan_have_what_follows_without_each_of_its_steps() -> None:
    file, epochs = Path("plan.json"), epochs_of_mlperf("5.1.0")

    def forecast(measured: Measurements) -> ClusterForecast:
        variants = [measured_program(fewer, file) for fewer in without_each_step(measured)]
        return forecast_cluster(
            measured_program(measured, file), CLUSTER, epochs, variants=variants
        )

    exact = with_threads(1, 2)
    steps = list(exact.steps)
    steps[-1] = replace(steps[-1], seconds=1.05 * steps[-1].seconds)
    noisy = replace(exact, steps=tuple(steps))
    same, wider = forecast(exact), forecast(noisy)
    assert same.serial_seconds.high - same.serial_seconds.low < 1e-6
    assert same.step_seconds.high == pytest.approx(same.step.seconds.high)
    # Without the disturbed step, the others are those of `exact`.
    assert wider.serial_seconds.high == pytest.approx(same.step.serial)
    assert wider.serial_seconds.low == 0 == wider.step.serial
    assert wider.step_seconds.low == pytest.approx(same.step.seconds.low)
    assert wider.step_seconds.high > 1.01 * wider.step.seconds.high
    assert wider.epoch_seconds.high == pytest.approx(CLUSTER.steps * wider.step_seconds.high)
    assert list(without_each_step(replace(exact, steps=exact.steps[:4]))) == []


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        (replace(with_threads(7, 14), peaks=None), "without peak rates; measure again"),
        (with_threads(56), "no steps of one rank with several numbers of threads"),
    ],
)
def test_plan_without_peaks_or_threads_is_refused(measured: Measurements, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        measured_program(measured, Path("plan.json"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hosts": None}, "hosts: is missing"),
        ({"hosts": None, "host": 4}, "host: no such field"),
        ({"hosts": 0}, "hosts: input should be greater than 0"),
        ({"core_gflops": "fast"}, "core_gflops: input should be a valid number"),
        ({"memory_gb_per_s": float("inf")}, "memory_gb_per_s: "),
        ({"speed": 3}, "speed: no such field"),
        ({"threads": 21}, "threads: 2 ranks of 21 threads are more than 40 cores; give at most 20"),
        ({"ranks": 3, "threads": 8}, "ranks: 3 ranks do not share 2 sockets evenly"),
        ({"hosts": True}, "hosts: input should be a valid integer"),
        ({"memory_gb_per_s": True}, "memory_gb_per_s: input should be a valid number"),
        (
            {"batch_size": 400_000},
            "batch_size: 8 ranks of 400,000 images are more than the 1,170,301 of OpenImages; give "
            "at most 146,287",
        ),
        ({"hosts": 10**6}, "hosts: 2,000,000 ranks are more than the 1,170,301 images"),
        ({"cores": 10**23}, "cores: expected a number from 1e-09 to 1e+09; see "),
        ({"core_gflops": 1e308}, "core_gflops: expected a number from 1e-09 to 1e+09"),
        ({"latency_us": 1e-300}, "latency_us: expected a number from 1e-09 to 1e+09"),
        ({"cores": 10**7}, "cores: input should be less than or equal to 1000000"),
        (
            {"programs": [asdict(PROGRAM) | {"metric_seconds": 1e308}]},
            "programs.0.metric_seconds: expected a number from 1e-09",
        ),
        (
            {"programs": [asdict(PROGRAM) | {"gradient_megabytes": 1e7}]},
            "programs.0.gradient_megabytes: input should be less than or equal to 10000",
        ),
        ({"programs": [asdict(PROGRAM)] * 2}, "programs: two are named a program; give each"),
        ({"programs": []}, "programs: has no measured step; add one, or give --plan"),
        ({"published": {"source": "a", "program": "a"}}, "published.hosts: is missing"),
        (
            {"published": {**PUBLISHED, "program": "b"}},
            "published.program: no program is named b; choose a program",
        ),
    ],
)
def test_wrong_description_is_one_line(
    changes: dict[str, Any], problem: str, described: Callable[..., Path], tune: Tune
) -> None:
    file = described(**changes)
    assert f"error: {file}: {problem}" in error_line(tune("--cluster", file))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("- 1", "expected fields such as `hosts: 16`"), ("a: [", ":1: not valid YAML")],
)
def test_other_file_is_not_a_description(
    text: str, problem: str, tmp_path: Path, tune: Tune
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    assert problem in error_line(tune("--cluster", file))
    assert "cannot be read: No such file" in error_line(tune("--cluster", tmp_path / "none"))


@pytest.mark.parametrize(
    "option",
    [
        *(("--hosts", "4"), ("--network", "25Gbit/s,20us"), ("--chart", "a.png")),
        *(("--groups", "2,1.1"), ("--deadline", "3"), ("--data", "demo.yaml")),
    ],
)
def test_options_of_a_choice_are_refused(
    option: tuple[str, str], described: Callable[..., Path], tune: Tune
) -> None:
    message = error_line(tune("--cluster", described(), *option))
    assert f"{option[0]}: the file of --cluster describes all hosts" in message


def test_plan_adds_this_host(described: Callable[..., Path], tmp_path: Path, tune: Tune) -> None:
    plan, numbers = tmp_path / "plan.json", tmp_path / "numbers.json"
    write_measurements(plan, with_threads(7, 14, 56))
    done = tune("--cluster", described(), "--plan", plan, "--json", numbers)
    assert done.returncode == 0, done.stderr
    assert "this program on a processor, measured with 56 threads" in done.stdout
    assert "published" not in done.stdout
    content = json.loads(numbers.read_text())
    first, second = content["forecasts"]
    assert first["program"] == "a program" and second["program"] == "this program on a processor"
    expected = asdict(forecast_step(PROGRAM, CLUSTER).seconds)
    assert first["step_seconds"] == pytest.approx(expected)
    twice = described(programs=[asdict(replace(PROGRAM, name="this program on a processor"))])
    assert "programs: two are named this program" in error_line(
        tune("--cluster", twice, "--plan", plan)
    )
    only_here = tune("--cluster", described(programs=[]), "--plan", plan)
    assert only_here.returncode == 0 and "a program," not in only_here.stdout


def test_shipped_description_is_forecast_beside_what_is_published(tune: Tune) -> None:
    cluster = read_cluster(EXAMPLE)
    submission, ours = cluster.programs
    assert (cluster.all_ranks, cluster.global_batch, cluster.steps) == (64, 256, 4571)
    # A tile product has 16 × 16 × 32 multiply-adds and takes 16 cycles.
    rate = 2 * 16 * 16 * 32 / 16  # Operations a cycle
    assert cluster.core_gflops == rate * 2.0
    # At the clock that a core has with turbo; twice the rate would be half of that, below base.
    assert 2.0 < submission.core_gflops / rate < 3.8
    # The measured step of 4 images, without decoding.
    parts = sum(part.seconds for part in submission.parts if part.name != "decoding images")
    assert parts == pytest.approx(5.54)
    done = tune("--cluster", EXAMPLE)
    assert done.returncode == 0, done.stderr
    result = forecast_cluster(submission, cluster, epochs_of_mlperf("5.1.0"))
    assert cluster.published is not None
    error = result.epoch_seconds.middle / cluster.published.epoch_seconds - 1
    assert error == pytest.approx(0.30, abs=0.01)
    assert f"published 3,331 s: {error:+.1%}, not within 25%" in done.stdout
    assert f"{ours.name}: not measured with 26 threads; for this forecast" in done.stdout


@pytest.mark.parametrize("changed", ["hosts", "ranks", "batch_size"])
def test_training_of_another_size_is_not_compared(
    changed: str, described: Callable[..., Path], tune: Tune
) -> None:
    same = tune("--cluster", described(published=PUBLISHED))
    assert same.returncode == 0 and "published 30,000 s: " in same.stdout
    other = tune("--cluster", described(published=PUBLISHED | {changed: 8}))
    assert other.returncode == 0, other.stderr
    assert "published 30,000 s" not in other.stdout and "30,000" not in other.stdout
    sizes = {"hosts": 4, "ranks": 2, "batch_size": 4} | {changed: 8}
    hosts, ranks, images = sizes.values()
    line = (
        f"published: {hosts} hosts × {ranks} ranks × {images} images, which this forecast is not of"
    )
    assert line in other.stdout


def test_recipe_has_the_numbers_of_the_description() -> None:
    cluster = read_cluster(EXAMPLE)
    recipe = EXAMPLE.with_suffix(".sh").read_text()
    assert f"RANKS:-{cluster.all_ranks}" in recipe
    assert f"training.batch_size={cluster.batch_size} " in recipe
    cores_of_rank = cluster.cores // cluster.ranks
    assert f"launch.comm_cores={cores_of_rank - cluster.threads} " in recipe
