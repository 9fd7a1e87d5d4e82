"""Advice on the state of hosts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch.host_state import HostState, read_host_state
from launch.pinning import Pinned, RankContext
from launch.process_group import ProcessGroup
from launch.ranks import Ranks
from launch.shares import Share
from retinanet.config_file import RunOptions, load_config
from retinanet.preflight import check
from retinanet.preflight.host_state import HostReport, check_host_state, check_hosts, software
from tests.launch import host_trees
from tests.launch.host_trees import GB


def share(*cpus: int, nodes: tuple[int, ...] = (0,)) -> Share:
    return Share(
        socket=0,
        nodes=nodes,
        cpus=cpus,
        comm_cpus=(),
        loader_cpus=(),
        threads=len(cpus),
        floating=False,
    )


def report(
    state: HostState,
    *shares: Share,
    host: str = "left",
    pinned: bool = True,
    **software: str,
) -> HostReport:
    shares = shares or (share(0, 1),)
    return HostReport(
        host=host,
        state=state,
        shares=shares,
        memory_of_rank=4 * GB,
        software=software,
        pinned=pinned,
    )


def advice(state: HostState, *shares: Share, pinned: bool = True) -> dict[str, str]:
    """Return the fixes of the warnings by subject."""
    findings = check_host_state(report(state, *shares, pinned=pinned))
    return {item.subject: item.fix for item in findings if item.level == "warning"}


@pytest.mark.parametrize("write", [host_trees.tuned_xeon, host_trees.epyc_vm])
def test_host_without_faults_gets_no_advice(write: Callable[[Path], Path], tmp_path: Path) -> None:
    assert advice(read_host_state(write(tmp_path))) == {}


def test_laptop_gets_three_lines_with_commands(tmp_path: Path) -> None:
    lines = advice(read_host_state(host_trees.laptop(tmp_path)))
    # Not on huge pages, swappiness by itself, or balancing within a single node.
    assert list(lines) == ["frequency", "turbo", "swap"]
    assert lines["frequency"].endswith("cpufreq/policy*/scaling_governor")
    assert lines["turbo"] == ("echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo")


@pytest.mark.parametrize(
    ("driver", "preference", "is_slow"),
    [
        ("intel_pstate", "balance_performance", False),
        ("intel_pstate", "power", True),
        ("intel_pstate", "192", True),
        ("intel_pstate", "128", False),
        ("intel_pstate", "", False),  # without hardware-managed states it follows the load
        ("amd-pstate-epp", "balance_power", True),
        ("acpi-cpufreq", "", True),
        ("intel_cpufreq", "", True),
        ("intel_cpufreq", "balance_performance", True),  # the governor is Linux's
        ("", "", False),
    ],
)
def test_powersave_matters_where_it_lowers_the_clock(
    driver: str, preference: str, is_slow: bool
) -> None:
    state = HostState(frequency_driver=driver, governor="powersave", energy_preference=preference)
    assert ("frequency" in advice(state)) == is_slow


@pytest.mark.parametrize(
    ("driver", "file", "off", "on"),
    [
        ("intel_pstate", "intel_pstate/no_turbo", "1", "0"),
        ("intel_cpufreq", "intel_pstate/no_turbo", "1", "0"),  # its passive mode has no boost
        ("acpi-cpufreq", "cpufreq/boost", "0", "1"),
        ("amd-pstate-epp", "cpufreq/boost", "0", "1"),
    ],
)
def test_turbo_is_permitted_in_the_file_that_forbids_it(
    driver: str, file: str, off: str, on: str, tmp_path: Path
) -> None:
    files = host_trees.frequency(driver=driver, governor="performance")
    host_trees.write_host(tmp_path, {**files, f"{host_trees.CPU}/{file}": off})
    command = advice(read_host_state(tmp_path))["turbo"]
    assert command == f"echo {on} | sudo tee /sys/devices/system/cpu/{file}"
    # What the command writes is what a host with turbo has.
    host_trees.write_host(tmp_path, {f"{host_trees.CPU}/{file}": on})
    assert advice(read_host_state(tmp_path)) == {}


def test_full_node_balancing_and_other_programs(tmp_path: Path) -> None:
    state = read_host_state(host_trees.full_node(tmp_path))
    shares = share(*range(8)), share(*range(8, 16), nodes=(1,))
    assert list(advice(state, *shares)) == ["NUMA balancing", "node memory", "other load"]
    # Node 0 has enough, few cores leave room for others, and ranks that move may profit.
    assert advice(state, share(0, 1), pinned=False) == {}
    [finding] = [
        item for item in check_host_state(report(state, *shares)) if item.subject == "node memory"
    ]
    assert "node 1 has 2.0 GB of 64 GB available" in finding.detail
    assert "take about 4.0 GB" in finding.detail


@pytest.mark.parametrize(
    ("load", "running", "is_named"),
    [(8.0, 1, False), (0.1, 9, False), (8.0, 9, True), (2.5, 9, False), (3.2, 5, True)],
)
def test_load_counts_where_it_lasts_and_exceeds_idle_cores(
    load: float, running: int, is_named: bool
) -> None:
    state = HostState(cores=4, load=load, running=running)
    assert ("other load" in advice(state, share(0, 1))) == is_named


def test_hosts_that_differ_are_named_by_setting(tmp_path: Path) -> None:
    tuned = read_host_state(host_trees.tuned_xeon(tmp_path / "left"))
    balancing = {"proc/sys/kernel/numa_balancing": "1", host_trees.HUGE_PAGES: ""}
    other = read_host_state(host_trees.tuned_xeon(tmp_path / "right", **balancing))
    findings = check_hosts([report(tuned), report(other, host="right"), report(tuned, host="far")])
    balancing_advice, difference = [finding.line for finding in findings]
    assert balancing_advice.startswith("NUMA balancing: right: on: ")
    assert difference == (
        "hosts: NUMA balancing differs, left, far: off; right: on; "
        "all wait for the slowest: set it alike"
    )
    # A host whose value is not known, here its huge pages, does not differ.
    assert check_hosts([report(tuned), report(tuned, host="right")]) == []
    left = report(tuned, precision="bf16", retinanet="1.0.0", torch="2.15.0")
    right = report(tuned, host="right", precision="float32", retinanet="1.0.0", torch="2.14.0")
    assert [finding.line for finding in check_hosts([left, right])] == [
        "hosts: precision differs, left: bf16; right: float32; "
        "set engine.precision to compute alike",
        "hosts: torch differs, left: 2.15.0; right: 2.14.0; install the same on all hosts",
    ]


def of_size(folder: Path, *, cpus: str = "0-31", gigabytes: int = 512, swap: int = 0) -> HostState:
    files = {f"{host_trees.CPU}/online": cpus}
    host_trees.write_host(
        host_trees.tuned_xeon(folder),
        {**files, **host_trees.memory(size=gigabytes, swap=swap)},
    )
    return read_host_state(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"gigabytes": 256},
            "memory size differs, left: 480 GiB; right: 240 GiB; training.batch_size must fit the "
            "smallest",
        ),
        (
            {"cpus": "0-7,16-23"},
            "number of cores differs, left: 16; right: 8; "
            "distributed.batch_split=speed gives the slowest fewer images",
        ),
        (
            {"swap": 8},
            "swap differs, left: none; right: on; all wait for the slowest: set it alike",
        ),
        ({"gigabytes": 511}, ""),  # kernels keep different amounts
    ],
)
def test_host_with_less_is_named(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    left, right = of_size(tmp_path / "left"), of_size(tmp_path / "right", **changes)
    lines = [item.line for item in check_hosts([report(left), report(right, host="right")])]
    assert lines == ([f"hosts: {expected}"] if expected else [])


def test_host_with_fewer_ranks_may_have_less(tmp_path: Path) -> None:
    large = report(of_size(tmp_path / "left"), share(0), share(1))
    small = of_size(tmp_path / "right", cpus="0-7,16-23", gigabytes=256)
    assert check_hosts([large, report(small, host="right")]) == []
    equal = report(small, share(0), share(1), host="right")
    assert len(check_hosts([large, equal])) == 2


def test_host_with_another_frequency_driver_is_named(tmp_path: Path) -> None:
    left = read_host_state(host_trees.tuned_xeon(tmp_path / "left"))
    passive = host_trees.frequency(
        driver="intel_cpufreq", governor="performance", preference="performance", cpus=32
    )
    right = read_host_state(
        host_trees.write_host(host_trees.tuned_xeon(tmp_path / "right"), passive)
    )
    [finding] = check_hosts([report(left), report(right, host="right")])
    assert "frequency driver differs, left: intel_pstate; right: intel_cpufreq" in finding.detail


@dataclass(kw_only=True)
class GroupOfTwoHosts(ProcessGroup):
    """Rank 0 of two, whose other rank is on another host."""

    other: HostReport

    def gather(self, value: Any, kind: Any) -> list[Any]:
        """Return what both ranks report."""
        return [value, (self.other.host, share(0, 1), self.other)]


def test_start_on_two_hosts_notes_advice_and_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = read_host_state(host_trees.tuned_xeon(tmp_path / "left"))
    no_turbo = {f"{host_trees.CPU}/intel_pstate/no_turbo": "1"}
    slow = read_host_state(host_trees.tuned_xeon(tmp_path / "right", **no_turbo))
    monkeypatch.setattr(check, "read_host_state", lambda: tuned)
    config = load_config("demo", ["data.image_size=64", f"run.root={tmp_path / 'runs'}"])
    versions = software(config.engine.precision)
    group = GroupOfTwoHosts(
        size=2,
        hosts=("left", "right"),
        other=HostReport(host="right", state=slow, memory_of_rank=GB, software=versions),
    )
    place = RankContext(
        ranks=Ranks(rank=0, size=2, local_rank=0, local_size=1, launcher="mpich"),
        pinned=Pinned(share=share(0, 1), openmp="gnu", notes=(), environment={}),
        rendezvous=None,
        backend="gloo",
    )
    arguments = RunOptions()
    started, states = check.check_start(config, arguments, group=group, place=place, engine="torch")
    assert states == {"left": tuned, "right": slow}
    command = "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert f"turbo: right: off: cores stay at their nominal clock; {command}" in started.notes
    [difference] = [note for note in started.notes if note.startswith("hosts: ")]
    assert difference.startswith("hosts: turbo differs, left: on; right: off; ")
