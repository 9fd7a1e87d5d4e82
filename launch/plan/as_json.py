"""A plan as plain values, for `--json`."""

from typing import Any

from launch.host.cpu_lists import format_cpu_list
from launch.host.sockets import count_cores, sockets_of
from launch.plan.job_plan import HostPlan, Plan, RankPlan


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """`hosts`, `topology` (of each), `notes`, and `ranks` in order, with their environment."""
    sockets = sockets_of(plan.topology)
    return {
        "hosts": [
            {"host": host.name, "ranks": [one.rank for one in host.ranks]} for host in plan.hosts
        ],
        "topology": {
            "sockets": len(sockets),
            "nodes": len({cpu.node for cpu in plan.topology.cpus}),
            "cores": count_cores(sockets),
            "cpus": format_cpu_list(cpu.cpu for cpu in plan.topology.cpus),
            "allowed_cpus": format_cpu_list(cpu.cpu for cpu in plan.allowed.cpus),
            "quota": plan.quota,
        },
        "notes": list(plan.notes),
        "ranks": [rank_as_json(one, host) for host in plan.hosts for one in host.ranks],
    }


def rank_as_json(one: RankPlan, host: HostPlan) -> dict[str, Any]:
    """A rank's place and environment."""
    return {
        "rank": one.rank,
        "host": host.name,
        "socket": one.share.socket,
        "nodes": list(one.share.nodes),
        "threads": one.share.threads,
        "floating": one.share.floating,
        "cpus": list(one.share.cpus),
        "comm_cpus": list(one.share.comm_cpus),
        "loader_cpus": list(one.share.loader_cpus),
        "env": one.environment,
    }
