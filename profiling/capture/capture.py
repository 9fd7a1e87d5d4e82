"""The hooks of a training run: each watches some steps, and what goes wrong in it ends it alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from profiling.capture.perf_stat import PerfFailedError
from profiling.capture.watch import Watch
from profiling.capture.words import first_notes
from retinanet.engine.engines import PreparedTraining
from retinanet.errors import InputError

PROBLEMS = (OSError, InputError, PerfFailedError)
"""Of a hook's own: its folder cannot be written, the disk is full, perf does not count."""


class Capture:
    """The `Phases` of a run that is profiled."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self._active: list[Watch] = []

    def notes(self, steps: range) -> list[str]:
        """What is known not to come, before the run takes these steps."""
        return first_notes(self.watches, steps)

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        """Around a step."""
        self._active = [one for one in self.watches if number in one.steps and not one.problem]
        if not self._active:
            yield
            return
        # All are open before any begins, so that none measures what another needs for that.
        self._each(lambda one: open_once(one, number, prepared))
        self._each(lambda one: one.hook.begin_step(number, prepared))
        try:
            yield
        except BaseException:
            self._each(lambda one: one.hook.end_step(whole=False), backwards=True)
            raise
        self._each(lambda one: one.hook.end_step(whole=True), backwards=True)
        for one in self._active:
            one.done.append(number)
        self._active = [one for one in self._active if number == max(one.steps)]
        self._each(lambda one: one.hook.close())
        self._active = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a phase of the step."""
        self._each(lambda one: one.hook.begin_phase(name))
        yield
        self._each(lambda one: one.hook.end_phase(name), backwards=True)

    def close(self) -> None:
        """Write what there is of windows that have not come to their end."""
        self._active = [one for one in self.watches if not one.problem]
        self._each(lambda one: one.hook.close())

    def _each(self, action: Callable[[Watch], None], *, backwards: bool = False) -> None:
        """Have all that are active do something; one that cannot is active no longer."""
        for one in self._active[:: -1 if backwards else 1]:
            try:
                action(one)
            except PROBLEMS as error:
                one.problem = described(error, one.hook.file)
                self._active.remove(one)
                with suppress(*PROBLEMS):
                    one.hook.close()


def described(error: Exception, file: Path) -> str:
    """A hook's problem in one line."""
    if isinstance(error, OSError):
        return f"{error.filename or file}: cannot be written: {error.strerror}"
    return str(error)


def open_once(watch: Watch, number: int, prepared: PreparedTraining) -> None:
    """Open a hook before its first step; what the run wrote before it was resumed is left alone."""
    hook = watch.hook
    if watch.is_open:
        return
    watch.is_open = True
    hook.file.parent.mkdir(parents=True, exist_ok=True)
    if hook.file.exists():
        name, _, kind = hook.file.name.partition(".")
        hook.file = hook.file.with_name(f"{name}-from-step-{number}.{kind}")
    hook.open(prepared)
