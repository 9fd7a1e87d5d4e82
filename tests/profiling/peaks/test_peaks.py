"""The whole measurement, with its real worker, once; files and errors by themselves."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.cli import run_command
from common.errors import InputError
from launch import pinning
from launch.limits import thread_affinities
from launch.pinning import choose_cores
from profiling import peaks as peaks_module
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks import (
    Peaks,
    add_peaks,
    cautions_of_peaks,
    last_level_bytes,
    load_peaks,
    measure_peaks,
    save,
)
from profiling.peaks_measure import (
    convolution,
    convolution_gflop,
    matrix_product,
    matrix_size,
    works_of,
)
from tests.launch.processes_left import children_of, wait_until_ended

REPOSITORY = Path(__file__).resolve().parents[3]
OWN = sorted(os.sched_getaffinity(0))

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


def test_peaks_are_measured_in_a_process_of_its_own_on_one_core(tmp_path: Path) -> None:
    done: list[int] = []
    peaks = measure_peaks(threads=1, cpus=OWN[:1], advance=lambda part, _: done.append(part))
    assert done == sorted(done) and done[0] >= 0 and done[-1] < 100
    assert peaks.threads == 1 and peaks.cpus == (OWN[0],)
    assert {"f32", "bf16"} <= peaks.matrix_gflop_per_s.keys() | peaks.left_out.keys()
    for name, peak in peaks.matrix_gflop_per_s.items():
        assert peak == peaks.rates[name][peaks.best(name)] == max(peaks.rates[name].values())
    assert peaks.bandwidth_gb_per_s == max(peaks.bandwidths.values()) > 0.1
    assert peaks.versions["torch"] == torch.__version__.split("+")[0]
    assert peaks.notes == ()
    save(peaks, tmp_path / "peaks.json")
    assert load_peaks(tmp_path / "peaks.json") == peaks


def test_a_file_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save(PEAKS, tmp_path / "peaks.json")
    assert load_peaks(tmp_path / "peaks.json") == PEAKS
    assert PEAKS.best("bf16") == "convolution" and PEAKS.best("s8") == ""


def test_a_file_with_the_needed_fields_alone_will_do(tmp_path: Path) -> None:
    names = ("matrix_gflop_per_s", "bandwidth_gb_per_s", "threads", "cpu", "versions")
    file = tmp_path / "peaks.json"
    file.write_text(json.dumps({name: getattr(PEAKS, name) for name in names}))
    assert load_peaks(file).matrix_gflop_per_s == PEAKS.matrix_gflop_per_s


def without(content: dict[str, Any]) -> None:
    del content["threads"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without, "threads is missing"),
        (lambda content: content.update(threads=0), "threads: expected a whole number"),
        (lambda content: content.update(matrix_gflop_per_s={}), "matrix_gflop_per_s: expected"),
        (lambda content: content["matrix_gflop_per_s"].update(f32="fast"), "matrix_gflop_per_s"),
        (lambda content: content.update(bandwidth_gb_per_s=-1), "bandwidth_gb_per_s: expected"),
        (lambda content: content.update(cpu=3), "cpu: expected a name"),
        (lambda content: content.update(rates=[1]), "rates: expected an object"),
        (lambda content: content.update(rates={"f32": {"x": None}}), "rates: expected a rate"),
        (lambda content: content.update(cpus=3), "cpus: expected a list"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name_the_field_and_what_to_do(
    change: Callable[[dict[str, Any]], None], problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "peaks.json"
    save(PEAKS, file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        load_peaks(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: {problem}") and "\n" not in message
    assert message.endswith("write one with python -m profiling peaks --json FILE")


def test_what_is_no_file_of_peaks_at_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("onednn_verbose")
    (tmp_path / "list").write_text("[1]")
    for name, problem in (("none", "No such file"), ("text", "not JSON"), ("list", "object")):
        with pytest.raises(InputError, match=problem):
            load_peaks(tmp_path / name)


def test_without_torch_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^peaks cannot be measured: torch is not installed"):
        measure_peaks(threads=1)


def test_more_threads_than_cores_or_foreign_cpus_are_refused() -> None:
    with pytest.raises(InputError, match=r"^--threads: 4096 are more than the \d+ cores? "):
        measure_peaks(threads=4096)
    with pytest.raises(InputError, match=r"^CPUs 4095: not among those"):
        measure_peaks(threads=None, cpus=[4095])


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
    assert choose_cores(threads=1).cpus == (0,)
    limited = type(allowance)(cpus=four.cpus, quota=1.5, memory_nodes=frozenset())
    monkeypatch.setattr(pinning, "read_allowance", lambda: limited)
    share = choose_cores(threads=None)
    assert share.floating and share.threads == 1 and share.cpus == (0, 1)


@pytest.mark.parametrize(("words", "status"), [((), 2), (("--keep-disturbed",), 0)])
def test_disturbed_peaks_are_kept_only_if_asked(
    words: tuple[str, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("profiling.peaks.measure_peaks", lambda **_: PEAKS)
    file = tmp_path / "peaks.json"
    parser = argparse.ArgumentParser()
    add_peaks(parser.add_subparsers())
    asked = vars(parser.parse_args(["peaks", "--json", str(file), *words]))
    command = asked.pop("run")
    assert run_command(lambda: command(**asked)) == status
    told = capsys.readouterr()
    assert told.out.startswith("caution: ") and "0.50 cores" in told.out
    assert file.exists() == (status == 0)
    errors = [line for line in told.err.splitlines() if line.startswith("error: --json: ")]
    assert ["--keep-disturbed" in line for line in errors] == [True] * (status != 0)


def test_a_run_s_own_threads_count_before_the_library_s() -> None:
    log = OneDnnLog(threads=[2], facts=[{"threads": 1}, {"threads": 1}])
    assert log.run_threads == [1]
    assert cautions_of_peaks(PEAKS, log)[1].startswith("peaks: threads: 1 in the log, 2 ")
    fitting = replace(PEAKS, threads=1, other_cores=0.0, notes=())
    assert cautions_of_peaks(fitting, log) == cautions_of_peaks(None, log) == []
    assert OneDnnLog(threads=[2]).run_threads == [2]


def test_arithmetic_by_hand() -> None:
    assert matrix_product(10, torch.float32).gflop == 2 * 10**3 / 1e9
    assert convolution_gflop(2, (3, 5), 7) == 2 * 2 * 5 * 7 * 7 * 3 * 9 / 1e9
    forward, backward = convolution(1, (16, 32), 8, torch.bfloat16)
    maps, gradient = forward.call(), backward.call()
    assert isinstance(maps, torch.Tensor) and maps.shape == (1, 32, 8, 8)
    assert isinstance(gradient, torch.Tensor) and gradient.shape == (1, 16, 8, 8)
    assert forward.gflop == backward.gflop == convolution_gflop(1, (16, 32), 8)


def test_work_grows_with_the_threads() -> None:
    assert matrix_size(1) == matrix_size(2) == 2048
    for threads in (8, 56):
        assert 2 * matrix_size(threads) ** 3 / 1e9 / threads >= 8.5
    one, eight = works_of("u8", threads=1), works_of("u8", threads=8)
    assert sum(work.gflop for work in eight.values()) > 3 * sum(w.gflop for w in one.values())


def test_the_caches_of_a_machine_add_up(tmp_path: Path) -> None:
    for cpu, sharers in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, level, size, mask in ((0, 1, "32K", str(cpu)), (3, 3, "1024K", sharers)):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{mask}\n")
    assert last_level_bytes(tmp_path) == 2 * 1024 * 1024
    assert last_level_bytes(tmp_path / "none") == 0


def test_ctrl_c_leaves_no_worker() -> None:
    code = "from profiling.peaks import measure_peaks\nmeasure_peaks(threads=1)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    while not (workers := children_of(process.pid)):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) != 0
    wait_until_ended(workers)


def test_measuring_leaves_this_process_where_it_was() -> None:
    before = thread_affinities()
    choose_cores(threads=1)
    assert thread_affinities() == before
