"""What a run does about a step whose loss or gradients are not finite."""

from typing import TYPE_CHECKING, Any

from retinanet.errors import InputError, NonFiniteLossError
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite_line import nonfinite_line
from retinanet.training.nonfinite_report import nonfinite_report
from retinanet.training.run_checkpoints import write_autopsy

if TYPE_CHECKING:
    from retinanet.training.run import Run


def note_gradients(run: "Run", result: StepResult) -> None:
    """Note the norm of a step's gradients; tell of a step that changed nothing, all ranks.

    Raises:
        NonFiniteLossError: The run cannot go on after it, or is told not to.
    """
    if not result.nonfinite:
        run.nonfinite.norms.append((result.step, result.gradient_norm))
        return
    advice = run.nonfinite.advice(result.nonfinite)
    if advice:
        report = report_of(run, result)
        told = f"{nonfinite_line(report)}; {advice}"
        if run.groups is not None:  # the other groups have gone on: nobody has the state before it
            raise NonFiniteLossError(told)
        raise NonFiniteLossError(f"{told}; {left_of(run, report)}")
    tell_of_skipped(run, result)


def tell_of_skipped(run: "Run", result: StepResult) -> None:
    """Tell of a step after which the run goes on; rank 0 does."""
    report = report_of(run, result)
    told = f"{nonfinite_line(report)}; nothing was updated, and the run goes on"
    run.console.print(told, soft_wrap=True, markup=False)
    run.record.nonfinite(report)


def report_of(run: "Run", result: StepResult) -> dict[str, Any]:
    """See `nonfinite_report`."""
    return nonfinite_report(
        result,
        annotations=run.data.train.annotations,
        norms_before=run.nonfinite.norms,
        skipped=run.nonfinite.skipped,
    )


def left_of(run: "Run", report: dict[str, Any]) -> str:
    """Write down a step that ends the run; returns where, or why not."""
    try:
        left = f"all of it in {write_autopsy(run, report)}"
    except InputError as error:
        left = str(error)
    run.group.barrier()  # the first rank that ends is the end of all
    return left
