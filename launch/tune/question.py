"""What a user asks the planner, as the command line has read it."""

from dataclasses import dataclass
from pathlib import Path

from launch.tune.asynchrony import WithGroups
from launch.tune.choice import Wish
from launch.tune.network import Network
from retinanet.mlperf.rules import Rules


@dataclass(frozen=True, kw_only=True)
class Question:
    """Fields are options of `python -m launch tune`."""

    hosts: int
    network: Network | None
    measure_hosts: str | None
    hostfile: Path | None
    data: str | None
    """None: the plan's, else OpenImages."""
    rules: Rules
    overrides: list[str]
    probe: tuple[int, ...] | None
    """Global batch sizes, ascending; None: the plan's."""
    probe_target: float | None
    """mAP; None: the plan's, else the configuration's."""
    probe_seeds: int | None
    """None: the plan's, else `probing.SEEDS`."""
    groups: WithGroups
    deadline: float | None
    budget: float | None
    plan: Path | None
    chart: Path | None
    slurm: Path | None
    json_file: Path | None
    mpirun: Path | None

    @property
    def outputs(self) -> list[Path]:
        """Files that must not be there yet."""
        return [file for file in (self.chart, self.slurm, self.json_file) if file is not None]

    @property
    def wish(self) -> Wish:
        """What the choice has to keep to."""
        return Wish(deadline_hours=self.deadline, budget_core_hours=self.budget)
