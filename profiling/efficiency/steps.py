"""Which of a log counts: whole steps where it marks them, else all of it."""

from dataclasses import dataclass

from profiling.onednn_log.log import OneDnnLog, Where
from retinanet.errors import InputError


@dataclass(frozen=True)
class Steps:
    """What is known of a log's steps."""

    whole: frozenset[tuple[int | None, int | None]]
    """Rank and number of each step whose begin and end are marked; none: the log has no marks."""
    ranks: int
    """Ranks in the log, at least 1."""
    wall_ms: float | None
    """Of a step, the mean over whole ones; None without marks."""
    images: int | None
    """Of all the log's ranks together in a step."""
    ranks_of_run: int | None
    """How many ranks trained, as the run says; None where it does not."""

    @property
    def count(self) -> int | None:
        """Steps of all ranks, counted each for itself; None without marks."""
        return len(self.whole) or None

    def holds(self, where: Where) -> bool:
        """Whether what ran there counts."""
        return not self.whole or (where.rank, where.step) in self.whole


def steps_of(log: OneDnnLog) -> Steps:
    """Read off the marks and facts of a log."""
    walls = {
        (where.rank, where.step): milliseconds
        for where, milliseconds in log.phase_ms.items()
        if where.phase is None
    }
    of_ranks = {facts.get("rank"): facts for facts in log.facts}
    images = [facts.get("images_a_step") for facts in of_ranks.values()]
    ranks_of_run = next((facts.get("ranks") for facts in log.facts), None)
    return Steps(
        whole=frozenset(walls),
        ranks=max(1, len(log.ranks)),
        wall_ms=sum(walls.values()) / len(walls) if walls else None,
        images=sum(one for one in images if isinstance(one, int)) or None,
        ranks_of_run=ranks_of_run if isinstance(ranks_of_run, int) else None,
    )


def require_fitting(steps: Steps, asked: int | None) -> None:
    """Refuse `--steps` beside a log that marks its steps.

    Raises:
        InputError: It does.
    """
    if asked is not None and steps.whole:
        raise InputError(
            f"--steps: the log marks its {len(steps.whole)} steps itself; leave --steps out"
        )
