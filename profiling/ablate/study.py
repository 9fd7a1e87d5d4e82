"""All that a report is made of: the ablations, their results, what these say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiling.ablate.ablation import Ablation, Ablations, SizeName
from profiling.ablate.outcome import Outcome, by_reason, outcomes_of
from profiling.ablate.result import Result, memory_policy, read_result
from profiling.ablate.run_command import command_of, default_folder, result_file


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ablation."""

    name: str
    ablation: Ablation
    result: Result | None
    """None: was not measured yet."""
    outcomes: Sequence[Outcome]
    command: str
    """That measures it."""
    has_other_again: bool = False
    """Whether there is a second run of another definition, which says nothing of this one."""

    @property
    def is_measured(self) -> bool:
        """Whether there is something to draw."""
        return self.result is not None and bool(self.result.rounds)

    def allocators_of(self, one: Outcome) -> str:
        """The memory policies of a comparison's sides: one where both have the same."""
        variants = self.result.definition["variants"] if self.result else {}
        sides = (one.comparison.change, one.comparison.baseline)
        found = [memory_policy(variants[name]) for name in sides if name in variants]
        return "; ".join(dict.fromkeys(found))

    @property
    def state(self) -> str:
        """Why there is no number, or that some are missing; empty where all is well."""
        if self.result is None:
            return "not measured yet"
        if not self.result.is_complete:
            return f"{len(self.result.rounds)} of {self.result.rounds_wanted} rounds so far"
        return ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All of them, in order."""

    rows: Sequence[Row]

    @property
    def results(self) -> list[Result]:
        """Those that there are."""
        return [row.result for row in self.rows if row.result is not None]

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all rows."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """What could not run, as `ablation: variant`, by why."""
        return by_reason(
            {
                f"{row.name}: {variant}": reason
                for row in self.rows
                for variant, reason in (row.result.left_out if row.result else {}).items()
            }
        )


def read_study(ablations: Ablations, folder: Path, again: Path | None, *, size: SizeName) -> Study:
    """Read what there is in a folder of results, and in that of a second run.

    Raises:
        InputError: A file is not a result.
    """
    out = None if folder == default_folder(size) else folder
    return Study(
        rows=[
            row_of(
                name,
                ablation,
                result_if_there(folder, measured),
                result_if_there(again, measured) if again else None,
                command=command_of(measured, size, out=out, photos=None),
            )
            for name, ablation in ablations.items()
            for measured in [ablation.runs_of or name]
        ]
    )


def row_of(
    name: str,
    ablation: Ablation,
    result: Result | None,
    again: Result | None,
    *,
    command: str,
) -> Row:
    """An ablation with what was measured of it; a second run counts only if it is of the same."""
    result, again = of_variants(result, ablation), of_variants(again, ablation)
    is_other = again is not None and result is not None and again.definition != result.definition
    again = None if is_other else again
    outcomes: Sequence[Outcome] = (
        outcomes_of(ablation, result, again)
        if result
        else [
            Outcome(comparison=one, ratio=None, missing="not measured yet")
            for one in ablation.comparisons
        ]
    )
    return Row(
        name=name,
        ablation=ablation,
        result=result,
        outcomes=outcomes,
        command=command,
        has_other_again=is_other,
    )


def of_variants(result: Result | None, ablation: Ablation) -> Result | None:
    """The part of a result that an ablation's own variants have."""
    if result is None:
        return None
    own = ablation.variants
    variants = {name: one for name, one in result.definition["variants"].items() if name in own}
    return replace(
        result,
        definition={**result.definition, "variants": variants},
        left_out={name: why for name, why in result.left_out.items() if name in own},
        rounds=tuple(
            {name: run for name, run in of_round.items() if name in own}
            for of_round in result.rounds
        ),
    )


def result_if_there(folder: Path, name: str) -> Result | None:
    """An ablation's result, if it was measured."""
    file = result_file(folder, name)
    return read_result(file) if file.exists() else None


def machine_of(results: Sequence[Result]) -> Mapping[str, str]:
    """What the results were measured on and with; where they differ, all of it."""
    found: dict[str, list[str]] = {}
    for result in results:
        for name, value in result.environment.items():
            values = found.setdefault(name, [])
            if str(value) not in values:
                values.append(str(value))
    return {name: "; ".join(values) for name, values in found.items()}
