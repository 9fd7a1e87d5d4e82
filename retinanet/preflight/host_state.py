"""What the state of the hosts means for training: warnings, and what differs between hosts.

Only what slows training and can be changed is a warning, one line each, with the command that
changes it. Huge pages are none: they had no benefit once memory is kept (docs/experiments.md). Nor
are hyperthreads: ranks have one thread a core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.machine import PACKAGES, code_commit, installed_versions
from common.program import PROGRAM, program_version
from common.wording import counted
from launch.host_state import TURBO, HostState
from launch.shares import Share
from retinanet.preflight.findings import Finding, amount, merged, ok, warning

HOST_STATE = "host state"
FREQUENCY = "frequency"
PRECISION = "precision"
COMMIT = "commit of retinanet"
SYSFS_CPU = "/sys/devices/system/cpu"
PASSIVE = "intel_cpufreq"
SAVING = ("power", "balance_power")
SAVING_FROM = 192  # `balance_power`, where the preference is a number up to 255
SET_PERFORMANCE = f"echo performance | sudo tee {SYSFS_CPU}/cpufreq/policy*/scaling_governor"
SWAPPED = 0.05
"""A part of the memory: as much in swap is more than a few programs that nobody uses."""


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """The state of a host, and what the job takes from it."""

    host: str
    state: HostState
    memory_of_rank: int  # An estimate of what each rank will take. [bytes]
    software: Mapping[str, str]  # What should be alike on all hosts, by label
    shares: tuple[Share, ...] = ()  # Of the host's ranks
    pinned: bool = True


def software(precision: str) -> dict[str, str]:
    """Return the known versions on this host, and the precision, which its processor decides."""
    own = {PROGRAM: program_version(), COMMIT: code_commit()}
    known = {label: value[:12] for label, value in own.items() if value}
    return {PRECISION: precision, **known, **installed_versions(PACKAGES)}


def check_hosts(reports: Sequence[HostReport]) -> list[Finding]:
    """Return the warnings about all hosts, and one for each setting that differs between them."""
    of_hosts = [(report.host, check_host_state(report)) for report in reports]
    rows = [finding for finding in merged(of_hosts) if finding.level == "warning"]
    return [*rows, *differences_of_hosts(reports)]


def check_host_state(report: HostReport) -> list[Finding]:
    """Return one finding with the settings of a host, and its warnings."""
    state = report.state
    values = [f"{label} {value}" for label, value in state.settings().items()]
    if state.swap is not None:
        used = f", {amount(state.swap_used)} in use" if state.swap_used else ""
        values.append(f"swap {amount(state.swap)}{used}" if state.swap else "no swap")
    if state.load is not None:
        values.append(f"load {state.load:g}")
    values += [
        f"node {node.node}: {amount(node.available)} of {amount(node.size)} available"
        for node in state.nodes
        if len(state.nodes) > 1
    ]
    summary = ok(HOST_STATE, ", ".join(values) or "not known: this system hides it")
    warnings = (
        check_frequency(state),
        check_turbo(state),
        check_numa_balancing(report),
        check_swap(state),
        *check_node_memory(report),
        check_other_load(report),
    )
    return [summary, *(finding for finding in warnings if finding is not None)]


def check_frequency(state: HostState) -> Finding | None:
    """Warn where the governor, or the energy preference, holds the frequency down.

    `powersave` is the lowest frequency, except with a driver that follows the load: intel_pstate,
    and those that have an energy preference, which then decides. intel_pstate's passive mode may
    have a preference, but its governors are those of Linux.
    """
    if "powersave" not in state.governor.split(", "):
        return None
    preferences = state.energy_preference.split(", ") if state.energy_preference else []
    saving = [
        name
        for name in preferences
        if name in SAVING or (name.isdecimal() and int(name) >= SAVING_FROM)
    ]
    if saving:
        detail = f"governor powersave with energy preference {', '.join(saving)} lowers the clock"
    elif state.frequency_driver == PASSIVE or (
        not preferences and state.frequency_driver not in ("", "intel_pstate")
    ):
        detail = "governor powersave keeps cores at their lowest clock"
    else:
        return None
    return warning(FREQUENCY, detail, fix=SET_PERFORMANCE)


def check_turbo(state: HostState) -> Finding | None:
    """Warn where cores may not exceed their nominal frequency."""
    if state.turbo != "off":
        return None
    values = TURBO[state.turbo_file]
    [value] = [value for value, meaning in values.items() if meaning == "on"]
    command = f"echo {value} | sudo tee {SYSFS_CPU}/{state.turbo_file}"
    return warning("turbo", "off: cores stay at their nominal clock", fix=command)


def check_numa_balancing(report: HostReport) -> Finding | None:
    """Warn of page faults that the kernel causes to find out who uses memory.

    Pinned ranks have their memory near their cores already, so it costs time and gains nothing.
    """
    state = report.state
    if not state.numa_balancing.startswith("on") or len(state.nodes) < 2 or not report.pinned:
        return None
    detail = "on: it causes page faults to move memory that pinned ranks already have near them"
    return warning("NUMA balancing", detail, fix="sudo sysctl -w kernel.numa_balancing=0")


def check_swap(state: HostState) -> Finding | None:
    """Warn where much of the memory's content is in swap."""
    if not state.swap_used or not state.memory or state.swap_used < SWAPPED * state.memory:
        return None
    detail = f"{amount(state.swap_used)} in use: programs have taken more memory than there is"
    fix = "end those that are not needed; sudo sysctl -w vm.swappiness=1 makes Linux swap later"
    return warning("swap", detail, fix=fix)


def check_node_memory(report: HostReport) -> list[Finding]:
    """Warn of nodes with less memory than the ranks there will take: they take distant memory."""
    nodes = report.state.nodes
    if len(nodes) < 2:
        return []  # The memory of the host is checked anyway
    findings = []
    for node in nodes:
        parts = [1 / len(share.nodes) for share in report.shares if node.node in share.nodes]
        need = sum(parts) * report.memory_of_rank
        if node.available < need:
            detail = (
                f"node {node.node} has {amount(node.available)} of {amount(node.size)} available, "
                f"but its ranks will take about {amount(need)}: the rest is slower, distant memory"
            )
            fix = "end the program that holds it; numastat -p python shows the memory of Python's"
            findings.append(warning("node memory", detail, fix=fix))
    return findings


def check_other_load(report: HostReport) -> Finding | None:
    """Warn of other threads that take cores of the job, which has them to itself by plan.

    The mean of a minute counts programs that have just ended, the threads of now those that run for
    a moment; so the lower one counts.
    """
    state = report.state
    if state.cores is None or state.load is None or state.running is None:
        return None
    cores = sum(min(len(share.cpus), share.threads) for share in report.shares)
    others = min(state.load, state.running - len(report.shares))
    left = max(0, state.cores - cores)
    if others - left < 1:
        return None
    busy, of = counted(round(others), "thread"), counted(state.cores, "core")
    detail = f"other programs keep about {busy} busy; this job uses {cores} of {of}"
    fix = "end them, or wait; top shows them"
    return warning("other load", detail, fix=fix)


SET_ALIKE = "all wait for the slowest: set it alike"
ADVICE = {
    "number of cores": "distributed.batch_split=speed gives the slowest fewer images",
    "memory size": "training.batch_size must fit the smallest",
    PRECISION: "set engine.precision to compute alike",
    **dict.fromkeys((PROGRAM, COMMIT, *PACKAGES), "install the same on all hosts"),
}


def differences_of_hosts(reports: Sequence[HostReport]) -> list[Finding]:
    """Return a warning for each setting and capacity whose known values differ between hosts.

    Capacities are compared among hosts with as many ranks: other numbers are meant to fit them.
    """
    settings = [(report.host, {**report.state.settings(), **report.software}) for report in reports]
    findings = difference_findings(settings)
    for count in dict.fromkeys(len(report.shares) for report in reports):
        alike = [report for report in reports if len(report.shares) == count]
        findings += difference_findings([(item.host, item.state.capacities()) for item in alike])
    return findings


def difference_findings(hosts: Sequence[tuple[str, dict[str, str]]]) -> list[Finding]:
    """Return a warning for each label whose values differ, with the hosts of each value."""
    labels = dict.fromkeys(label for _, values in hosts for label in values)
    findings = []
    for label in labels:
        hosts_by_value: dict[str, list[str]] = {}
        for host, values in hosts:
            if label in values:
                hosts_by_value.setdefault(values[label], []).append(host)
        if len(hosts_by_value) > 1:
            parts = [f"{', '.join(names)}: {value}" for value, names in hosts_by_value.items()]
            detail = f"{label} differs, {'; '.join(parts)}"
            findings.append(warning("hosts", detail, fix=ADVICE.get(label, SET_ALIKE)))
    return findings
