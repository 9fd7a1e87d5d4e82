"""The planner's measurements: shapes, data, this host and the network between hosts."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import BAD_INPUT, InputError
from launch.__main__ import main
from launch.mpirun import choose_mpirun
from launch.placement import fitting_shapes
from launch.shares import CoreRequest
from launch.topology import Socket, list_sockets
from profiling.bench.job import MeasuredJob, measure_exchanges
from profiling.peaks import Peaks
from profiling.studies.rounds import Rounds, Shape, run_rounds
from profiling.studies.tune import measure
from profiling.studies.tune.forecast import gradient_exchange
from profiling.studies.tune.measure import (
    NETWORK_SIZES,
    STEPS,
    WARM_UP,
    TrainedData,
    evaluation_seconds,
    host_peaks,
    measured_pairs,
    named_hosts,
    synthetic_data,
    trained_data,
    what_to_measure,
    with_batches,
)
from profiling.studies.tune.measurements import (
    HostPeaks,
    Measurements,
    PartialMeasurement,
    read_measurements,
)
from profiling.studies.tune.model import fit_network
from retinanet.config_file import load_config
from tests.launch.ranks import MPIRUN, Ended, ended
from tests.launch.topologies import cores_in_a_row
from tests.launch.two_hosts import TwoHosts
from tests.profiling.studies.tune.samples import NETWORK
from tests.support.commands import RunHere, run_program
from tests.support.fast_precision import FAST_PRECISION

QUIET = Console(quiet=True)
SMALL = (
    "data.scenes={train: 8, validation: 1}",
    "data.image_size=64",
    f"engine.precision={FAST_PRECISION}",
)
SHAPES = [Shape(ranks=ranks, threads=1, batch_size=1) for ranks in (1, 2)]
REQUEST = CoreRequest(threads=None, comm_cores=0, loader_cores=0)
LIMIT, BYTES_PER_SECOND = "800mbit", 100e6


def host(sockets: int, cores: int) -> Sequence[Socket]:
    return list_sockets(cores_in_a_row(*((n * cores, cores, n, n) for n in range(sockets))))


def test_shapes_fit_evenly_and_within_sockets() -> None:
    shapes = fitting_shapes(host(2, 4), quota=None, request=REQUEST)
    assert shapes == [(1, 4), (2, 4), (4, 2), (8, 1)]
    reserved = CoreRequest(threads=None, comm_cores=1, loader_cores=0)
    assert fitting_shapes(host(2, 4), quota=None, request=reserved) == [(1, 3), (2, 3), (4, 1)]


def test_measured_pairs_include_single_ranks() -> None:
    shapes = fitting_shapes(host(2, 28), quota=None, request=REQUEST)
    pairs = measured_pairs(shapes, most=4)
    assert len(pairs) <= 10
    assert {(1, threads) for _, threads in pairs} <= set(pairs)
    assert (1, 28) in pairs and (56, 1) in pairs
    two_cores = measured_pairs(fitting_shapes(host(1, 2), quota=None, request=REQUEST), most=4)
    assert two_cores == [(1, 1), (1, 2), (2, 1)]
    assert len(with_batches(two_cores, configured=2)) == 9
    sizes = [shape.batch_size for shape in with_batches([(1, 2)], configured=8)]
    assert sizes == [1, 2, 4, 8]


def annotations(file: Path, *, images: int, with_boxes: int) -> Path:
    """Write COCO's JSON of some images, the first of which have a box."""
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.jpg", "width": 64, "height": 64}
            for number in range(images)
        ],
        "annotations": [
            {"id": number + 1, "image_id": number, "category_id": 3, "bbox": [1, 1, 20, 20]}
            | {"area": 400, "iscrowd": 0}
            for number in range(with_boxes)
        ],
        "categories": [{"id": 3, "name": "cup"}, {"id": 7, "name": "jug"}],
    }
    file.write_text(json.dumps(content))
    return file


def custom_data(folder: Path) -> tuple[str, ...]:
    """Return overrides of coco.yaml for a small data set."""
    (folder / "0.jpg").touch()
    train = annotations(folder / "train.json", images=5, with_boxes=3)
    validation = annotations(folder / "validation.json", images=2, with_boxes=2)
    files = (f"data.train_annotations={train}", f"data.validation_annotations={validation}")
    folders = (f"data.train_images={folder}", f"data.validation_images={folder}")
    classes = ("data.class_indices=contiguous", "model.num_classes=null")
    return ("data.root=null", *files, *folders, *classes)


def test_custom_data_has_its_images_and_classes(tmp_path: Path) -> None:
    overrides = custom_data(tmp_path)
    data = trained_data("coco.yaml", overrides, console=QUIET)
    assert data == TrainedData(
        data="coco.yaml", config="coco.yaml", images=3, evaluated_images=2, classes=2
    )
    assert synthetic_data(load_config("coco.yaml", overrides), classes=2) == ()


def test_synthetic_data_is_counted_and_reduced_for_steps() -> None:
    few_scenes = ["data.scenes={train: 40, validation: 3}"]
    data = trained_data("demo.yaml", few_scenes, console=QUIET)
    assert 30 < data.images <= 40 and data.evaluated_images == 3
    many = load_config("demo.yaml")
    assert synthetic_data(many, classes=data.classes) == ("data.scenes={train: 96, validation: 1}",)


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path / "none")):
        trained_data("coco.yaml", [f"data.root={tmp_path / 'none'}"], console=QUIET)


def test_openimages_needs_no_data_set() -> None:
    data = trained_data("openimages", [], console=QUIET)
    assert data.config == "openimages.yaml" and data.classes == 264
    settings = synthetic_data(load_config("openimages.yaml"), classes=264)
    assert settings[0] == "data.root=null" and "model.num_classes=264" in settings


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_steps_of_each_shape_are_measured_without_their_exchange(tmp_path: Path) -> None:
    job = MeasuredJob(
        ranks=1, config="demo.yaml", overrides=SMALL, warm_up=WARM_UP, steps=STEPS,
        alternate=True, own_model=True, scenes=tmp_path / "scenes",
    )  # fmt: skip
    study = Rounds(SHAPES, 1, title="steps")
    run_rounds(study, job, mpirun=choose_mpirun(MPIRUN), console=QUIET)
    (single,), (paired,) = (result.jobs for result in study.measured)
    first, second = (result.seconds_without_exchange for result in study.measured)
    assert min(single[0].seconds) <= first <= max(single[0].seconds)
    held_back = [seconds for rank in paired for seconds in rank.held_back_seconds]
    assert min(held_back) <= second <= max(held_back)
    parts = zip(single[0].forward_seconds, single[0].seconds, strict=True)
    assert all(0 < forward < step for forward, step in parts)


@pytest.mark.whole_machine
def test_exchange_is_timed_by_the_way_of_the_trainer() -> None:
    config = load_config("demo.yaml", ["distributed.backend=mpi", "distributed.compress=bf16"])
    result = measure_exchanges(
        sizes=(2**12, 2**25), ranks=2, config=config, mpirun=choose_mpirun(MPIRUN)
    )
    times = result.times
    assert [(time.ranks, time.size) for time in times] == [(2, 2**12), (2, 2**25)]
    assert 0 < times[0].seconds < times[1].seconds
    assert (result.way, result.hosts) == ("mpi", 1)
    assert "'s mpirun" in result.reason


def peaks_of(**rates: float) -> Peaks:
    left_out = {} if "f32" in rates else {"f32": "emulated by this processor, 3 GFLOP/s"}
    return Peaks(
        matrix_gflop_per_s=rates,
        bandwidth_gb_per_s=25.0,
        threads=2,
        cpu="a processor",
        versions={},
        left_out=left_out,
        other_cores=1.5,
    )


@pytest.mark.parametrize(
    ("precision", "rates", "of_core"),
    [
        ("bf16", {"f32": 200.0, "bf16": 800.0}, 400.0),
        ("float32", {"f32": 200.0, "bf16": 800.0}, 100.0),
        ("bf16", {"f32": 200.0}, 100.0),  # emulated
    ],
)
def test_peak_is_that_of_a_core_in_the_precision_of_the_step(
    precision: str, rates: dict[str, float], of_core: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure_peaks", lambda **_: peaks_of(**rates))
    plan = demo_plan(f"engine.precision={precision}")
    assert host_peaks(plan) == HostPeaks(core_gflops=of_core, memory_gb_per_s=25.0)


def test_disturbed_peak_is_an_error_that_names_the_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "measure_peaks", lambda **_: peaks_of(bf16=800.0))
    with pytest.raises(InputError, match=r"f32: emulated .*kept 1\.50 cores busy; stop them"):
        host_peaks(demo_plan("engine.precision=float32"))


def demo_plan(*overrides: str) -> PartialMeasurement:
    data = TrainedData(
        data="demo.yaml", config="demo.yaml", images=8, evaluated_images=1, classes=4
    )
    return what_to_measure(data, overrides=overrides)


@pytest.mark.exhaustive
def test_evaluation_uses_the_configured_model() -> None:
    assert 0 < evaluation_seconds(demo_plan("model.norm=batch", *SMALL)) < 60


def tune_on_left(hosts: TwoHosts, plan: Path, *arguments: str) -> Ended:
    command = [sys.executable, "-m", "launch", "tune", "--plan", str(plan), "--mpirun", str(MPIRUN)]
    return ended(hosts.start_on_left([*command, *arguments], environment=os.environ))


def limit(hosts: TwoHosts) -> None:
    """Limit the bandwidth from left to right."""
    if shutil.which("tc") is None:
        pytest.skip("no program tc; apt-get install iproute2")
    command = f"tc qdisc add dev eth0 root tbf rate {LIMIT} burst 64kb latency 50ms".split()
    done = run_program(*hosts.enter_left, *command)
    if done.returncode != 0:
        pytest.skip(f"cannot limit a virtual cable: {done.stderr.strip()}")


@pytest.mark.whole_machine
def test_bandwidth_is_measured_stored_and_used(
    debian_hosts: TwoHosts, plan: Path, run_here: RunHere
) -> None:
    limit(debian_hosts)
    done = tune_on_left(debian_hosts, plan, "--hosts", "64", "--measure-hosts", "left,right")
    assert done.code == 0, done.errors
    assert "exchange between hosts: measured" in done.output
    assert "(measured over 2 hosts, mpi: started by mpich's mpirun, library MPICH " in done.output

    stored = read_measurements(plan)
    assert isinstance(stored, Measurements) and stored.between_hosts is not None
    assert stored.between_hosts.hosts == ("left", "right")
    assert [time.size for time in stored.between_hosts.exchanges] == list(NETWORK_SIZES)
    one_rank = gradient_exchange(stored, network=NETWORK, hosts=2, ranks=1)
    fitted = fit_network(stored.between_hosts.exchanges, exchange=one_rank, source="")
    assert 0.5 * BYTES_PER_SECOND < fitted.bandwidth < 1.2 * BYTES_PER_SECOND

    tune = ("tune", "--plan", plan, "--mpirun", MPIRUN, "--hosts", "64")
    again = run_here(main, *tune)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.output.replace("exchanges of gradients between left, right …\n", "")
    given = run_here(main, *tune, "--network", "25Gbit/s,20us")
    assert "network: 25 Gbit/s per host, latency 20 µs (given" in given.stdout


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_unknown_host_is_named_with_a_command_to_check_it(
    debian_hosts: TwoHosts, plan: Path
) -> None:
    done = tune_on_left(debian_hosts, plan, "--hosts", "64", "--measure-hosts", "left,nowhere")
    assert done.code == BAD_INPUT
    last = done.errors.splitlines()[-1]
    assert last.startswith("error: left,nowhere: the measurement failed")
    assert "--hosts left,nowhere -- hostname" in last
    stored = read_measurements(plan)
    assert isinstance(stored, Measurements) and stored.between_hosts is None


def test_hosts_are_given_as_for_launch_run(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node1:8\nnode2:4  # half\n")
    assert named_hosts(None, file) == ("node1", "node2")
    assert named_hosts("node[1-3]", None) == ("node1", "node2", "node3")
    assert named_hosts("a:2,b:2", None) == ("a", "b")
    assert named_hosts(None, None) == ()
