"""Measuring the peaks, their file, the roofline, and `--peaks` of other commands."""

import dataclasses
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from rich.console import Console

from common.errors import InputError
from launch import pinning
from launch.limits import thread_affinities
from launch.pinning import choose_cores
from profiling import peaks as peaks_module
from profiling import peaks_measure
from profiling.__main__ import main
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks import (
    Peaks,
    cautions_of_peaks,
    choose_peaks,
    last_level_bytes,
    load_peaks,
    measure_peaks,
    measurement,
    parse_share,
    roofline_ms,
    save,
)
from profiling.peaks_measure import (
    convolution,
    convolution_gflop,
    matrix_product,
)
from tests.profiling.replay.problems import problem
from tests.support.commands import RunHere, error_message

USABLE_CPUS = sorted(os.sched_getaffinity(0))

PEAKS = Peaks(
    matrix_gflop_per_s={"f32": 110.0, "bf16": 210.5},
    bandwidth_gb_per_s=33.6,
    threads=2,
    cpu="AMD EPYC",
    versions={"torch": "2.8.0"},
    cpus=(0, 1),
    rates={"f32": {"product": 110.0}, "bf16": {"product": 200.0, "convolution": 210.5}},
    bandwidths={"copy": 33.6},
    left_out={"f16": "emulated"},
    other_cores=0.5,
    notes=("a sentence",),
)


def require_consistent(peaks: Peaks) -> None:
    """Assert that each peak is the highest of its rates."""
    assert {"f32", "bf16"} <= peaks.matrix_gflop_per_s.keys() | peaks.left_out.keys()
    for name, peak in peaks.matrix_gflop_per_s.items():
        assert peak == peaks.rates[name][peaks.best(name)] == max(peaks.rates[name].values())
    assert peaks.bandwidth_gb_per_s == max(peaks.bandwidths.values()) > 0
    assert peaks.versions["torch"] == torch.__version__.split("+")[0]


@pytest.mark.slow
def test_worker_measures_on_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real worker process, with small work."""
    worker = "tests.profiling.small_peaks_worker"
    real = peaks_module.JsonWorker
    monkeypatch.setattr(peaks_module, "JsonWorker", lambda _, share: real(worker, share))
    percentages: list[int] = []
    peaks = measure_peaks(
        threads=1, cpus=USABLE_CPUS[:1], advance=lambda done, _: percentages.append(done)
    )
    assert percentages == sorted(percentages) and percentages[0] >= 0 and percentages[-1] < 100
    assert peaks.threads == 1 and peaks.cpus == tuple(USABLE_CPUS[:1])
    require_consistent(peaks)
    assert peaks.notes == ()
    save(peaks, tmp_path / "peaks.json")
    assert load_peaks(tmp_path / "peaks.json") == peaks


def test_measurement_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement skips a type that torch does not support and one that is emulated."""

    def small_works(type_name: str, *, threads: int) -> dict[str, peaks_measure.Work]:
        if type_name == "s8":
            raise RuntimeError("no s8\non this processor")
        return {
            "product": peaks_measure.products(type_name, 64),
            **({"forward": convolution(1, (16, 16), 8, torch.float32)[0]}
               if type_name == "f32" else {}),
        }  # fmt: skip

    probed = peaks_measure.probed_rate
    monkeypatch.setattr(peaks_measure, "PROBE_SIZE", 64)
    monkeypatch.setattr(
        peaks_measure,
        "probed_rate",
        lambda name: probed("f32") * (1e-6 if name == "bf16" else 1.0),
    )
    monkeypatch.setattr(peaks_measure, "make_works", small_works)
    monkeypatch.setattr(peaks_measure, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setattr(peaks_module, "TIMES_THE_CACHES", 0)
    share = parse_share(json.loads(json.dumps(dataclasses.asdict(choose_cores(threads=1)))))
    assert share == choose_cores(threads=1)
    *steps, last = measurement(share, ["a note"])
    assert [step["percent"] for step in steps] == sorted(step["percent"] for step in steps)
    peaks = TypeAdapter(Peaks).validate_python(last["peaks"])
    require_consistent(peaks)
    assert peaks.left_out["s8"].endswith("no s8")
    assert "emulated" in peaks.left_out["bf16"]
    assert set(peaks.rates["f32"]) == {"product", "forward"} and peaks.notes == ("a note",)


def test_file_is_read_as_it_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "peaks.json"
    save(PEAKS, file)
    assert load_peaks(file) == PEAKS
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as editors on Windows do
    assert load_peaks(file) == PEAKS
    assert PEAKS.best("bf16") == "convolution" and PEAKS.best("s8") == ""
    required = ("matrix_gflop_per_s", "bandwidth_gb_per_s", "threads", "cpu", "versions")
    file.write_text(json.dumps({name: getattr(PEAKS, name) for name in required}))
    assert load_peaks(file).matrix_gflop_per_s == PEAKS.matrix_gflop_per_s
    file.write_text(json.dumps({name: getattr(PEAKS, name) for name in required[1:]}))
    assert "(matrix_gflop_per_s: Field required)" in error_message(load_peaks, file)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"threads": 0}, "threads: Input should be greater"),
        ({"matrix_gflop_per_s": {}}, "matrix_gflop_per_s: Dict"),
        ({"matrix_gflop_per_s": {"f32": "fast"}}, "matrix_gflop_per_s"),
        ({"bandwidth_gb_per_s": -1}, "bandwidth_gb_per_s: "),
        ({"cpu": 3}, "cpu: Input should be a valid string"),
        ({"rates": {"f32": {"x": None}}}, "rates.f32.x: "),
        ({"cpus": 3}, "cpus: Input should be a valid array"),
    ],
)
def test_invalid_field_is_one_line(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = tmp_path / "peaks.json"
    file.write_text(json.dumps(dataclasses.asdict(PEAKS) | fields))
    message = error_message(load_peaks, file)
    assert message.startswith(f"{file}: has no peak rates ({problem}")
    assert "retinanet profile peaks --json" in message


def test_measurement_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--threads.*4096"):
        measure_peaks(threads=4096)
    with pytest.raises(InputError, match=r"4095"):
        measure_peaks(threads=None, cpus=[4095])
    monkeypatch.setattr(peaks_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^peaks cannot be measured: torch is not installed"):
        measure_peaks(threads=1)


def test_hyperthreads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lscpu = tmp_path / "lscpu"
    lscpu.write_text("# CPU,Core,Socket,Node\n0,0,0,0\n1,1,0,0\n2,0,0,0\n3,1,0,0\n")
    host = pinning.read_topology(lscpu)
    allowance = pinning.read_allowance()
    monkeypatch.setattr(pinning, "read_topology", lambda: host)
    four = type(allowance)(cpus=frozenset(range(4)), quota=None, memory_nodes=frozenset())
    monkeypatch.setattr(pinning, "read_allowance", lambda: four)
    assert choose_cores(threads=None).cpus == (0, 1)
    assert choose_cores(threads=None, cpus=[1, 2, 3]).cpus == (1, 2)
    before = thread_affinities()
    assert choose_cores(threads=1).cpus == (0,)
    assert thread_affinities() == before  # this process is not pinned
    limited = type(allowance)(cpus=four.cpus, quota=1.5, memory_nodes=frozenset())
    monkeypatch.setattr(pinning, "read_allowance", lambda: limited)
    share = choose_cores(threads=None)
    assert share.floating and share.threads == 1 and share.cpus == (0, 1)


@pytest.mark.parametrize(("options", "status"), [((), 2), (("--keep-disturbed",), 0)])
def test_command_keeps_disturbed_peaks_only_on_request(
    options: tuple[str, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_here: RunHere,
) -> None:
    monkeypatch.setattr("profiling.peaks.measure_peaks", lambda **_: PEAKS)
    file = tmp_path / "peaks.json"
    done = run_here(main, "peaks", "--json", str(file), *options)
    assert done.returncode == status
    assert done.stdout.startswith("caution: ") and "0.50 cores" in done.stdout
    cells = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines()]
    assert ["", "convolution", "", "210 *", ""] in cells and ["", "copy", "33.6 *", ""] in cells
    assert file.exists() == (status == 0)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: --json: ")]
    assert ["--keep-disturbed" in line for line in errors] == [True] * (status != 0)


def test_option_peaks_of_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console, log = Console(quiet=True), OneDnnLog(threads=[1])
    file = tmp_path / "peaks.json"

    def choose(choice: str = "measure", *, folder: Path | None = tmp_path) -> Peaks | None:
        return choose_peaks(choice, log, console=console, folder=folder)

    assert choose("none") is None
    quiet = replace(PEAKS, other_cores=0.0)
    monkeypatch.setattr("profiling.peaks.measure_peaks", lambda **options: (
        replace(quiet, threads=options["threads"])
    ))  # fmt: skip
    assert choose(folder=None) == replace(quiet, threads=1) and not file.exists()
    assert choose() == load_peaks(file) == choose(str(file))
    monkeypatch.setattr("profiling.peaks.measure_peaks", lambda **_: PEAKS)
    assert choose() == PEAKS and not file.exists()  # Disturbed: the earlier file is removed

    def fail(**_: object) -> Peaks:
        raise InputError("no torch")

    monkeypatch.setattr("profiling.peaks.measure_peaks", fail)
    assert choose() is None
    with pytest.raises(InputError, match="cannot be read"):
        choose(str(tmp_path / "none"))


def test_threads_of_a_run_take_precedence_over_the_header() -> None:
    log = OneDnnLog(threads=[2], facts=[{"threads": 1}, {"threads": 1}])
    assert log.run_threads == [1]
    assert cautions_of_peaks(PEAKS, log)[1].startswith("peaks: threads: 1 in the log, 2 ")
    fitting = replace(PEAKS, threads=1, other_cores=0.0, notes=())
    assert cautions_of_peaks(fitting, log) == cautions_of_peaks(None, log) == []
    assert OneDnnLog(threads=[2]).run_threads == [2]


def test_arithmetic_of_works() -> None:
    assert matrix_product(10, torch.float32).gflop == 2 * 10**3 / 1e9
    assert convolution_gflop(2, (3, 5), 7) == 2 * 2 * 5 * 7 * 7 * 3 * 9 / 1e9
    forward, backward = convolution(1, (16, 32), 8, torch.bfloat16)
    maps, gradient = forward.call(), backward.call()
    assert isinstance(maps, torch.Tensor) and maps.shape == (1, 32, 8, 8)
    assert isinstance(gradient, torch.Tensor) and gradient.shape == (1, 16, 8, 8)
    assert forward.gflop == backward.gflop == convolution_gflop(1, (16, 32), 8)


def test_last_level_caches_are_summed(tmp_path: Path) -> None:
    for cpu, sharers in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, level, size, mask in ((0, 1, "32K", str(cpu)), (3, 3, "1024K", sharers)):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{mask}\n")
    assert last_level_bytes(tmp_path) == 2 * 1024 * 1024
    assert last_level_bytes(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("kind", "shape", "type_", "seconds"),
    [
        ("matmul", "1000x1000:1000x1000", "bf16", 2e9 / 100e9),  # Arithmetic is the bound
        ("matmul", "1x1000:1000x1000", "bf16", 2 * (1000 + 1000 * 1000 + 1000) / 10e9),  # Memory
        ("reorder", "1000x1000", "f32", 8e6 / 10e9),
        ("reorder", "*x3", "f32", None),  # Unknown size
        ("matmul", "10x10:10x10", "f32", None),  # A type without a peak
        ("matmul", "1000x1000:1000x1000", "s8", 2e9 / 400e9),
        ("matmul", "1000x1000:1000x1000", "u8", 2e9 / 300e9),  # The input's, not the weights'
    ],
)
def test_roofline(kind: str, shape: str, type_: str, seconds: float | None) -> None:
    rates = {"bf16": 100.0, "s8": 400.0, "u8": 300.0}
    peaks = Peaks(rates, 10.0, threads=1, cpu="a CPU", versions={})
    # Weights of bytes are signed, whatever the input is.
    weights = [f"wei:{'s8' if type_ == 'u8' else type_}"] * (kind == "matmul")
    work = problem(kind, shape, f"src:{type_}", *weights, f"dst:{type_}")
    bound = roofline_ms(work, peaks)
    assert bound == (None if seconds is None else pytest.approx(1000 * seconds))
    if type_ == "u8":  # in a file without it, the peak of s8
        older = replace(peaks, matrix_gflop_per_s={"s8": 400.0})
        assert roofline_ms(work, older) == pytest.approx(1000 * 2e9 / 400e9)
