"""What has been found so far, and what to say of it."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console

from retinanet.printable import one_line, printable

SHOWN_CLASSES = 5


class Tally:
    """Counts, and tells at once what could not be read."""

    def __init__(self, errors: Console) -> None:
        """`errors`: where problems are told."""
        self._errors = errors
        self._began = time.perf_counter()
        self.pictures = 0
        self.frames = 0
        self.problems = 0
        self.classes: Counter[str] = Counter()

    def found(self, classes: Iterable[str]) -> None:
        """Note the classes of a picture's or frame's boxes."""
        self.classes.update(classes)

    def problem(self, text: str) -> None:
        """Tell of something that could not be read; the work goes on."""
        self.problems += 1
        self._errors.print(f"error: {one_line(text)}", soft_wrap=True)

    def described(self) -> str:
        """All in a line."""
        seconds = time.perf_counter() - self._began
        looked_at = [
            counted(number, one)
            for number, one in ((self.pictures, "picture"), (self.frames, "frame"))
            if number
        ]
        boxes = self.classes.total()
        text = f"{' and '.join(looked_at) or 'nothing'}, {counted(boxes, 'box', 'boxes')}"
        if boxes:
            best = self.classes.most_common(SHOWN_CLASSES)
            text += f" ({', '.join(f'{printable(name)} {count}' for name, count in best)}"
            text += ", …)" if len(self.classes) > len(best) else ")"
        number = self.pictures + self.frames
        return f"{text} in {seconds:.1f} s, {number / seconds:.1f} a second"


def counted(number: int, one: str, several: str | None = None) -> str:
    """`1 picture`, `2 pictures`."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def best_of(boxes: Sequence[tuple[str, float]]) -> str:
    """A picture's boxes on one line: the best five of class and score."""
    if not boxes:
        return "nothing found; a lower --score shows less certain boxes"
    best = ", ".join(f"{printable(name)} {score:.2f}" for name, score in boxes[:5])
    return best + (f" and {len(boxes) - 5} more" if len(boxes) > 5 else "")
