import io
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.__main__ import main
from launch.placement import place_ranks
from launch.plan import HostPlan, RankPlan, host_picture
from launch.shares import CoreRequest
from launch.topology import Topology
from tests.launch.topologies import EIGHT_SOCKETS, LAPTOP, TWO_SOCKETS, cores_in_a_row
from tests.support.commands import RunHere, error_line

# 2 sockets of 4 cores with 2 hyperthreads.
ROWS = [f"{cpu},{cpu % 8},{cpu % 8 // 4},{cpu % 8 // 4}" for cpu in range(16)]


def write_lscpu(file: Path, rows: Iterable[str]) -> Path:
    file.write_text("\n".join(["# CPU,Core,Socket,Node", *rows]), encoding="utf-8")
    return file


@pytest.fixture
def lscpu_file(tmp_path: Path) -> Path:
    return write_lscpu(tmp_path / "big.txt", ROWS)


def planned(run_here: RunHere, json_file: Path, *arguments: str | Path) -> dict[str, Any]:
    done = run_here(main, "plan", "--json", json_file, *arguments)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(json_file.read_text(encoding="utf-8"))
    return content


def test_picture_has_a_cell_for_each_core(lscpu_file: Path, run_here: RunHere) -> None:
    overrides = ("launch.comm_cores=1", "data.reserve_cores=1")
    done = run_here(main, "plan", "--np", "2", "--topology", lscpu_file, *overrides)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:5] == [
        "host big, ranks 0-1",
        "2 sockets of 4 cores, 2 CPUs per core",
        "rank ┃ socket ┃ nodes ┃ threads ┃ compute on CPUs ┃ communicate ┃ load images",
        "━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━",
        "   0 │      0 │     0 │       2 │ 0-1             │ 2           │ 3,11",
    ]
    assert lines[6:13] == [
        "╭─ socket 0 ──────────╮",
        "│ node 0  0  0  0c 0L │",
        "╰─────────────────────╯",
        "╭─ socket 1 ──────────╮",
        "│ node 1  1  1  1c 1L │",
        "╰─────────────────────╯",
        "  numbers are ranks: 0 computes, 0c communicates, 0L loads images",
    ]


def test_host_of_2048_cores_is_planned_in_seconds(tmp_path: Path, run_here: RunHere) -> None:
    rows = [f"{cpu},{cpu},0,0" for cpu in range(2048) if cpu != 77]
    file = write_lscpu(tmp_path / "huge.txt", rows)
    done = run_here(main, "plan", "--np", "8", "--topology", file)
    assert done.returncode == 0, done.stderr
    assert "7 of 2047 cores are idle" in done.stdout


def test_json_has_each_rank_with_its_environment(
    lscpu_file: Path, tmp_path: Path, run_here: RunHere
) -> None:
    content = planned(
        run_here,
        tmp_path / "plan.json",
        *("--topology", lscpu_file, "--hosts", "n[1-2]:2", "--openmp", "gnu", "--backend", "ccl"),
    )
    assert content["hosts"] == [{"host": "n1", "ranks": [0, 1]}, {"host": "n2", "ranks": [2, 3]}]
    assert content["topology"] == {
        "sockets": 2,
        "nodes": 2,
        "cores": 8,
        "cpus": "0-15",
        "allowed_cpus": "0-15",
        "quota": None,
    }
    assert content["notes"] == []
    places = [(rank["rank"], rank["host"], rank["socket"]) for rank in content["ranks"]]
    assert places == [(0, "n1", 0), (1, "n1", 1), (2, "n2", 0), (3, "n2", 1)]
    last = content["ranks"][3]
    variables = last.pop("env")
    assert (variables["OMP_NUM_THREADS"], variables["CCL_LOCAL_SIZE"]) == ("4", "2")
    assert last == {
        "rank": 3,
        "host": "n2",
        "socket": 1,
        "nodes": [1],
        "threads": 4,
        "floating": False,
        "cpus": [4, 5, 6, 7],
        "comm_cpus": [],
        "loader_cpus": [],
    }


def test_equal_hosts_are_shown_once(lscpu_file: Path, run_here: RunHere) -> None:
    done = run_here(main, "plan", "--topology", lscpu_file, "--hosts", "a:2,b:4,c:2")
    pictures = [line for line in done.stdout.splitlines() if line.startswith(("host", "2 equal"))]
    assert pictures == [
        "2 equal hosts, a (ranks 0-1), c (ranks 6-7); shown: a",
        "host b, ranks 2-5",
    ]


def test_cpus_that_are_not_allowed_are_marked(lscpu_file: Path, run_here: RunHere) -> None:
    done = run_here(main, "plan", "--topology", lscpu_file, "--cpus", "1-2,9")
    assert "node 0  x 0 0 x" in done.stdout
    assert "node 1  x x x x" in done.stdout
    assert "only CPUs 1-2,9 may be used" in done.stdout


def test_quota_is_planned_with_a_note(lscpu_file: Path, tmp_path: Path, run_here: RunHere) -> None:
    content = planned(run_here, tmp_path / "plan.json", "--topology", lscpu_file, "--quota", "1.5")
    rank = content["ranks"][0]
    assert (rank["threads"], rank["floating"], rank["cpus"]) == (1, True, [0, 1, 2, 3])
    assert "quota of 1.5 is worth 1 of 4 cores" in content["notes"][1]


def test_configuration_without_pinning_gives_a_note(
    lscpu_file: Path, tmp_path: Path, run_here: RunHere
) -> None:
    arguments = ("--np", "2", "--topology", lscpu_file, "launch.pin=false")
    content = planned(run_here, tmp_path / "plan.json", *arguments)
    [note] = content["notes"]
    assert note.startswith("launch.pin=false")


def test_long_variables_are_printed_completely(lscpu_file: Path, run_here: RunHere) -> None:
    row = [f"{cpu},{cpu},0,0" for cpu in range(100, 160)]
    write_lscpu(lscpu_file, row)
    done = run_here(main, "plan", "--topology", lscpu_file, "--openmp", "intel")
    text = "".join(done.stdout.partition("KMP_AFFINITY=")[2].split("│")).split()
    assert "".join(text).startswith(
        f"granularity=fine,explicit,proclist=[{','.join(str(cpu) for cpu in range(100, 160))}]"
    )


def test_plan_of_this_machine_respects_its_affinity(tmp_path: Path, run_here: RunHere) -> None:
    content = planned(run_here, tmp_path / "plan.json")
    assert set(content["ranks"][0]["cpus"]) <= os.sched_getaffinity(0)
    assert len(content["ranks"]) == 1


SEVERAL = ("--hosts", "a:2,b:2")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--np", "1"), []),
        (("--np", "2"), ["in shared memory"]),
        (("--np", "2", "--backend", "mpi"), ["by mpi"]),
        (("--np", "2", "--backend", "gloo"), ["by gloo"]),
        (SEVERAL, ["in shared memory within a host, between hosts by mpi (auto: under mpirun; else "
                   "gloo)"]),
        ((*SEVERAL, "--backend", "mpi"), ["in shared memory within a host, between hosts by mpi"]),
        ((*SEVERAL, "distributed.backend=mpi"),
         ["in shared memory within a host, between hosts by mpi"]),
        ((*SEVERAL, "--backend", "gloo"),
         ["in shared memory within a host, between hosts by gloo"]),
        ((*SEVERAL, "--backend", "ccl"),
         ["by ccl: oneCCL's bindings, which are no longer developed"]),
        ((*SEVERAL, "--backend", "auto", "distributed.groups=2"),
         ["by gloo; in shared memory if the ranks of a compute group are on one host"]),
    ],
)  # fmt: skip
def test_plan_says_how_gradients_go(
    arguments: tuple[str, ...], expected: list[str], lscpu_file: Path, run_here: RunHere
) -> None:
    done = run_here(main, "plan", "--topology", lscpu_file, *arguments)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("gradients ")]
    assert lines == [f"gradients {line}" for line in expected]


def test_plan_says_how_batches_are_split_and_ranks_grouped(
    lscpu_file: Path, run_here: RunHere
) -> None:
    for setting, line in (
        ("groups=2", "compute groups: 2 of 2 ranks, asynchronous"),
        ("batch_split=[9, 7, 8, 8]", "batches: 9 images on rank 0, 7 on rank 1, 8 on ranks 2-3"),
    ):
        arguments = ("--topology", lscpu_file, "--hosts", "a:2,b:2", f"distributed.{setting}")
        assert run_here(main, "plan", *arguments).stdout.splitlines()[0] == line


def test_variables_of_oneccl_are_not_planned_for_mpi(
    lscpu_file: Path, tmp_path: Path, run_here: RunHere
) -> None:
    arguments = ("--topology", lscpu_file, *SEVERAL, "--backend", "mpi")
    content = planned(run_here, tmp_path / "plan.json", *arguments)
    assert not any(name.startswith("CCL_") for name in content["ranks"][0]["env"])
    assert content["gradients"].endswith("by mpi")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--np", "3"), "error: 3 ranks do not fit evenly on 2 sockets of 4 cores"),
        (("--cpus", "3,99"), "error: --cpus 3,99: "),
        (("--np", "3", "--hosts", "a,b"), "error: --np 3: "),
        ((*SEVERAL, "--backend", "shared"), "ranks of several hosts have no shared memory"),
        ((*SEVERAL, "--backend", "nccl"), "'auto', 'shared', 'mpi', 'gloo' or 'ccl', found 'nccl'"),
        ((*SEVERAL, "--backend", "mpi", "distributed.groups=2"), "groups above 1 need backend="),
        ((*SEVERAL, "distributed.groups=3"), "distributed.groups: 3 groups cannot be of equal"),
        (("distributed.groups=2",), "there is 1 rank; use 1, or give --np"),
        (("--np", "2", "distributed.batch_split=[9, 9]"), "expected 2 numbers with the sum 16"),
    ],
)
def test_invalid_options_are_one_line(
    lscpu_file: Path, arguments: tuple[str, ...], message: str, run_here: RunHere
) -> None:
    done = run_here(main, "plan", "--topology", lscpu_file, *arguments)
    assert done.stdout == "" and message in error_line(done)


@pytest.mark.parametrize("given", ["quota=0", "quota=nan", "quota=half", "quota=-1", "cpus="])
def test_invalid_quota_and_no_cpus_are_refused(given: str, run_here: RunHere) -> None:
    done = run_here(main, "plan", f"--{given}")
    assert done.returncode == 2
    wanted = "a number of CPUs such as 1.5" if "quota" in given else "a list such as 0-3,8"
    assert f"expected {wanted}, found {given.partition('=')[2]!r}" in done.stderr


def test_existing_json_file_is_not_overwritten(
    lscpu_file: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("mine", encoding="utf-8")
    done = run_here(main, "plan", "--topology", lscpu_file, "--json", file)
    assert done.returncode == 2
    assert file.read_text(encoding="utf-8") == "mine"


def picture_lines(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest | None = None,
    first: int = 0,
    quota: float | None = None,
) -> list[str]:
    shares = place_ranks(topology, ranks=ranks, request=request or CoreRequest(), quota=quota)
    plans = tuple(
        RankPlan(rank=first + place, share=share, environment={})
        for place, share in enumerate(shares)
    )
    text = io.StringIO()
    picture = host_picture(topology, topology, HostPlan(name="a", ranks=plans), width=100)
    Console(file=text, width=100, highlight=False).print(picture)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_uses_of_cores_differ_without_colours() -> None:
    request = CoreRequest(threads=8, comm_cores=2, loader_cores=3)
    lines = picture_lines(TWO_SOCKETS, ranks=4, request=request)
    first_rank = "0  0  0  0  0  0  0  0  0c 0c 0L 0L 0L · "
    second_rank = "1  1  1  1  1  1  1  1  1c 1c 1L 1L 1L · "
    assert lines[1] == f"│ node 0  {first_rank} {second_rank} │"
    assert lines[-1] == (
        "  numbers are ranks: 0 computes, 0c communicates, 0L loads images, · idle"
    )


def test_large_numbers_floating_ranks_and_idle_sockets() -> None:
    lines = picture_lines(cores_in_a_row((0, 2, 0, 9), (2, 2, 0, 10)), ranks=4, first=8)
    assert lines[1:3] == ["│ node 9    8  9 │", "│ node 10  10 11 │"]
    floating = picture_lines(LAPTOP, ranks=2, quota=2.0)
    assert floating[1] == "│ node 0  ~ ~ ~ ~ │" and floating[-1].startswith("  ~ ")
    idle = picture_lines(TWO_SOCKETS, ranks=1)
    assert idle[4] == "│ node 1  " + " ".join("·" * 28) + " │"


@pytest.mark.parametrize(
    ("topology", "ranks"),
    [(EIGHT_SOCKETS, 224), (cores_in_a_row((0, 64, 0, 0), (64, 64, 1, 1)), 128)],
)
def test_large_hosts_fit_100_columns_in_rows_of_equal_length(
    topology: Topology, ranks: int
) -> None:
    lines = picture_lines(topology, ranks=ranks, first=1000)
    rows = [re.findall(r"\b\d{4}\b", line) for line in lines[:-1]]
    assert max(len(line) for line in lines) <= 100
    assert [cell for row in rows for cell in row] == [str(1000 + rank) for rank in range(ranks)]
    assert len({len(row) for row in rows if row}) == 1
