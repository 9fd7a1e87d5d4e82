"""Checks of one host: memory, /dev/shm, open files, processor, compiler, packages."""

import os
import resource
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from common.machine import installed_versions
from common.program import FOLDER
from data.decoding import describe_decoder
from launch.limits import Allowance, FreeMemory
from launch.pinning import Pinned, RankContext, make_share
from launch.ranks import Ranks
from launch.topology import Cpu
from retinanet.__main__ import main
from retinanet.config import Config
from retinanet.config_file import config_from_tree, load_config
from retinanet.memory import MemoryNeed, training_bytes
from retinanet.preflight import host
from retinanet.preflight.findings import Finding
from retinanet.preflight.host import IPEX, check_precision, check_shared_memory
from retinanet.preflight.run import KnownData
from tests.launch.topologies import cores_in_a_row
from tests.support.commands import RunHere, run_program
from tests.support.mounts import needs_root, tmpfs

GB = 10**9
NEED = MemoryNeed(model=GB, activations=2 * GB, other=GB, loading=0)


@pytest.mark.parametrize(
    ("free", "ranks", "once", "swap", "level"),
    [
        (4, 1, 0, 0, "ok"),
        (3.9, 1, 0, 0, "warning"),  # too little for the estimate
        (8.4, 2, GB // 2, 0, "warning"),
        (0.9, 1, 0, 0, "failure"),  # too little for weights, gradients and optimizer
        (0.9, 1, 0, 1, "warning"),
        (1.9, 2, 0, 0, "failure"),
    ],
)
def test_estimated_memory_against_free_memory(
    free: float, ranks: int, once: int, swap: int, level: str
) -> None:
    limit = FreeMemory(size=round(free * GB), of="this host", swap=swap * GB)
    finding = host.check_memory(NEED, ranks=ranks, once=once, not_started=0, free=limit)
    assert finding.level == level
    if free == 0.9 and not swap:
        assert "1.0 GB" in finding.detail and "900 MB are free in this host" in finding.detail


def test_estimate_is_shown_if_free_memory_is_unknown() -> None:
    finding = host.check_memory(NEED, ranks=1, once=0, not_started=0, free=None)
    assert finding.level == "ok" and "4.0 GB" in finding.detail


def started_ranks(count: int, affinities: Sequence[frozenset[int]] | None) -> RankContext:
    """Return what the first of some ranks knows that Intel MPI has started on this host."""
    share = make_share([Cpu(0, 0, 0, 0)], threads=1)
    return RankContext(
        ranks=Ranks(rank=0, size=count, local_rank=0, local_size=count, launcher="intel-mpi"),
        pinned=Pinned(share=share, openmp="gnu", notes=(), environment={}),
        rendezvous=None,
        backend="gloo",
        affinities=affinities,
    )


@pytest.mark.parametrize(
    ("given", "pin", "expected"),
    [
        ((range(4), range(4)), True, "2 ranks of 2 threads on CPUs 0-3"),
        ((range(2, 4), range(2)), True, "2 ranks of 2 threads on CPUs 0-3"),
        ((range(1, 3), range(1, 3)), True, "2 ranks of 1 thread on CPUs 1-2"),
        (([2, 3], [2, 3]), False, "2 ranks of 1 thread on CPUs 2-3"),
        (([2, 3],) * 3, True, "3 ranks are more than the 2 cores"),
    ],
)
def test_placement_of_started_ranks_is_that_within_their_launchers_binding(
    given: tuple[Iterable[int], ...],
    pin: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    affinities = [frozenset(cpus) for cpus in given]
    whole = Allowance(cpus=frozenset(range(4)), quota=None, memory_nodes=frozenset())
    monkeypatch.setattr("launch.limits.host_cpus", lambda ranks: whole.cpus)
    monkeypatch.setattr("launch.pinning.read_allowance", lambda: whole)
    monkeypatch.setattr("launch.pinning.read_topology", lambda: cores_in_a_row((0, 4, 0, 0)))
    count = len(given)
    started = started_ranks(count, affinities)
    config = load_config("demo.yaml", [f"launch.pin={pin}".lower()])
    [finding, *_], _ = host.check_placement(config, started.ranks, started=started)
    assert finding.detail == expected


def test_ranks_whose_binding_is_not_known_are_planned_on_the_whole_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of two ranks on four cores, the first one has two.
    own = Allowance(cpus=frozenset(range(2)), quota=None, memory_nodes=frozenset())
    for module in ("launch.pinning", "retinanet.placement"):
        monkeypatch.setattr(f"{module}.read_allowance", lambda: own)
        monkeypatch.setattr(f"{module}.read_topology", lambda: cores_in_a_row((0, 4, 0, 0)))
    for module in ("launch.limits", "retinanet.placement"):
        monkeypatch.setattr(f"{module}.host_cpus", lambda ranks: frozenset(range(4)))
    started = started_ranks(2, None)
    config = load_config("demo.yaml")
    [finding, *_], _ = host.check_placement(config, started.ranks, started=started)
    assert finding.detail == "2 ranks of 2 threads on CPUs 0-3"


KNOWN = KnownData(num_classes=5, train_images=None, validation_images=None)
SETTINGS = ("data.image_size=128", "model.norm=batch", "model.trainable_layers=5")


def small_config(*overrides: str) -> Config:
    return load_config("demo.yaml", [*SETTINGS, "engine.precision=float32", *overrides])


def refusals(*overrides: str, ranks: int = 1, swap: int = 0) -> list[str]:
    free = FreeMemory(size=16 * GB, of="this host", swap=swap * GB)
    config = small_config(*overrides)
    findings = host.check_counts(config, KNOWN, engine="torch", ranks=ranks, free=free)
    assert all(finding.level == "failure" for finding in findings)
    return [finding.line for finding in findings]


def test_batch_that_exceeds_memory_is_refused_with_one_that_fits() -> None:
    [line] = refusals(batch := "training.batch_size=1000000")
    assert line.startswith("memory: training.batch_size: 1,000,000 images ")
    fitting = int(line.rpartition("lower it to ")[2].split()[0].replace(",", ""))
    image = training_bytes(small_config(batch), num_classes=5, engine="torch")
    assert fitting * image <= 16 * GB < (fitting + 1) * image
    assert refusals(f"training.batch_size={fitting}") == []
    assert refusals(f"training.batch_size={fitting}", ranks=4) != []
    assert refusals(f"training.batch_size={3 * fitting}") != []
    assert refusals(f"training.batch_size={3 * fitting}", swap=64) == []


def test_other_counts_that_exceed_memory_are_refused() -> None:
    [line] = refusals("evaluation.batch_size=1000000")
    assert line.startswith("memory: evaluation.batch_size: 1,000,000 images ")
    [line] = refusals("data.workers=4096")
    assert line.startswith("memory: data.workers: 4,096 ")
    lines = refusals("data.image_size=16384", "training.batch_size=8")
    assert len(lines) == 2 and all(line.endswith("; lower data.image_size") for line in lines)
    assert refusals("data.workers=16") == []


def loading_config(**changes: object) -> Config:
    data = {"workers": 2, "image_size": 800, **changes}
    training, evaluation = {"batch_size": 2}, {"batch_size": 8}
    tree = {"run": {"name": "tried"}, "data": data, "training": training, "evaluation": evaluation}
    return config_from_tree(tree, "test")


def test_all_batches_that_may_wait_are_counted() -> None:
    image = 3 * 800 * 800 + 2 * 4096
    # Two workers are two batches ahead each; a step holds one more, and so does an evaluation.
    size = partial(host.bytes_of_batch, pixels=800 * 800)
    assert host.waiting_batches(loading_config(), size) == (5 * 2 + 5 * 8) * image
    assert host.waiting_batches(loading_config(workers=0), size) == 0


@needs_root
def test_small_shared_memory_is_reported_with_the_required_size(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "docker", "size=64m") as folder:
        finding = check_shared_memory(loading_config(), ranks=2, folder=folder)
    assert finding.level == "warning" and "--shm-size=512m" in finding.fix
    assert "67 MB of 67 MB" in finding.detail and "2 ranks need up to 193 MB" in finding.detail
    with tmpfs(tmp_path / "shm", "size=4m") as folder:  # not one batch fits
        certain = check_shared_memory(loading_config(), ranks=1, folder=folder)
        likely = check_shared_memory(loading_config(workers="auto"), ranks=1, folder=folder)
    assert (certain.level, likely.level) == ("failure", "warning")


def test_missing_shared_memory_matters_only_with_workers(tmp_path: Path) -> None:
    missing = tmp_path / "shm"
    finding = check_shared_memory(loading_config(workers="auto"), ranks=1, folder=missing)
    assert finding.level == "failure" and "No such file or directory" in finding.detail
    assert check_shared_memory(loading_config(workers=0), ranks=1, folder=missing).level == "ok"


@needs_root
@pytest.mark.exhaustive
def test_the_mounted_dev_shm_is_checked() -> None:
    program = """
import subprocess
from retinanet.config_file import load_config
from retinanet.preflight.host import check_shared_memory
config = load_config("demo", ["data.image_size=800", "training.batch_size=2"])
for options in ("size=1m", "ro", "size=1g"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", "/dev/shm"], check=True)
    print(check_shared_memory(config, ranks=1).level)
"""
    done = run_program("unshare", "--mount", sys.executable, "-c", program)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace of its own here: {done.stderr.strip()}")
    assert (done.stdout.split(), done.stderr) == (["warning", "failure", "ok"], "")


def test_each_loaded_tensor_counts_as_an_open_file() -> None:
    overrides = ["data.workers=2", "training.batch_size=2", "evaluation.batch_size=8"]
    config = load_config("demo.yaml", overrides)
    # 100 files of the process, and 5 batches of each kind: pixels, and two tensors an image.
    wanted = 100 + 5 * (1 + 2 * 2) + 5 * (1 + 2 * 8)
    assert host.check_open_files(config, limit=wanted).level == "ok"
    finding = host.check_open_files(config, limit=wanted - 1)
    assert finding.level == "warning" and "ulimit -n 420" in finding.fix
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # the limit of this process
    config = load_config("demo.yaml", ["data.workers=0"])
    assert host.check_open_files(config).level == ("ok" if soft == -1 or soft >= 100 else "warning")


@pytest.mark.parametrize(
    ("precision", "convolutions", "flags", "level"),
    [
        ("bf16", "auto", {"avx2", "avx512bw", "avx512_bf16"}, "ok"),
        ("bf16", "auto", {"avx512bw", "amx_bf16"}, "ok"),
        ("bf16", "auto", {"avx512bw"}, "warning"),
        ("bf16", "auto", {"avx2"}, "warning"),
        ("bf16", "auto", {"asimd", "sve", "svebf16", "bf16"}, "warning"),
        ("float32", "auto", {"avx2"}, "ok"),
        ("bf16", "winograd", {"amx_bf16"}, "failure"),
    ],
)
def test_precision_needs_instructions(
    precision: str, convolutions: str, flags: set[str], level: str
) -> None:
    finding = check_precision(precision, convolutions=convolutions, flags=flags)
    assert finding.level == level
    assert ("auto or onednn" in finding.fix) == (level == "failure")


def test_missing_compiler_is_a_failure_only_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert host.check_compiler("auto").level == "warning"
    finding = host.check_compiler("kernel")
    assert finding.level == "failure" and "CXX is no-such-compiler" in finding.detail


def test_torchvision_names_the_torch_that_it_needs() -> None:
    required = requires("torchvision") or []
    [wanted] = [item.specifier for item in map(Requirement, required) if item.name == "torch"]
    current = version("torch").partition("+")[0]
    assert host.torchvision_conflict({"torch": f"{current}+cpu"}, required=required) == []
    versions = {"torch": "2.7.1", "torchvision": "0.23.0"}
    [problem] = host.torchvision_conflict(versions, required=required)
    assert problem.level == "failure" and f"torchvision 0.23.0 needs torch{wanted}" in problem.line


@pytest.mark.parametrize(("is_used", "level"), [(True, "failure"), (False, "ok")])
def test_extension_of_another_torch_matters_only_if_used(is_used: bool, level: str) -> None:
    def check(**versions: str) -> list[Finding]:
        named = {name.replace("ipex", IPEX): release for name, release in versions.items()}
        return host.same_release(named, IPEX, is_used=is_used, instead="engine.name=torch")

    [problem] = check(torch="2.9.0", ipex="2.8.0")
    assert problem.level == level
    assert check(torch="2.8.1", ipex="2.8.0") == check(torch="2.8.0") == []


def test_two_copies_of_an_openmp_library_are_a_conflict() -> None:
    torchs, systems = Path("/venv/torch/lib/libgomp.so.1"), Path("/usr/lib/libgomp.so.1")
    intels = Path("/venv/lib/libiomp5.so")
    assert host.openmp_conflict([torchs]) == host.openmp_conflict([torchs, intels]) == []
    [problem] = host.openmp_conflict([torchs, systems])
    assert f"{torchs} and {systems}" in problem.detail
    assert len(host.openmp_conflict([intels, Path("/usr/lib/libomp.so.5")])) == 1


def test_this_environment_has_no_conflict() -> None:
    findings = host.check_conflicts(engine="torch", backend="gloo")
    assert [finding.level for finding in findings] == ["ok"], findings


def test_pillow_simd_in_pillows_place_is_named(
    run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files replace Pillow's, whose metadata stay if it was installed over Pillow."""
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    assert installed_versions(["pillow"]) == {"pillow-simd": "12.1.1.post0"}
    printed = run_here(main, "--version").stdout
    assert printed.endswith("\nPillow-SIMD 12.1.1.post0 in Pillow's place\n")
    assert describe_decoder("pillow").startswith("pillow-simd 12.1.1.post0 (")
    [finding] = host.check_conflicts(engine="torch", backend="gloo")
    assert finding.level == "warning" and "Pillow-SIMD 12.1.1.post0" in finding.detail
    assert "pillow 13" in host.check_versions().detail  # the pin, which is missing


def test_other_versions_and_missing_packages_are_named(tmp_path: Path) -> None:
    wanted = {"torch": "2.8.0", "numpy": "2.4.6", "rich": "15.0.0", "triton": "3.4.0"}
    installed = {"torch": "2.8.0+cpu", "numpy": "1.26.4"}
    assert host.differences(wanted, installed) == [
        "numpy is 1.26.4, pinned 2.4.6",
        "rich 15.0.0 is missing",
    ]
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"# all\nnumpy=={version('numpy')}   # arrays\n\nrich==0.1\n")
    finding = host.check_versions(pins)
    assert finding.level == "warning" and "numpy" not in finding.detail
    assert f"rich is {version('rich')}, pinned 0.1" in finding.detail
    pins.write_text(f"numpy=={version('numpy')}\nrich==0.1 ; python_full_version < '3.11'\n")
    assert host.check_versions(pins).level == "ok"


def test_this_environment_is_as_pinned() -> None:
    # `make update` tests an environment of newer pins.
    finding = host.check_versions(FOLDER / os.environ.get("PINS", ".") / "requirements.txt")
    assert finding.level == "ok", finding
