"""`python -m profiling ablate report`."""

from pathlib import Path

from profiling.ablate.ablation import SizeName
from profiling.ablate.charts.picture import picture
from profiling.ablate.markdown import markdown_page
from profiling.ablate.read import read_all
from profiling.ablate.report_words import summary
from profiling.ablate.run_command import default_folder
from profiling.ablate.sections import sections_of
from profiling.ablate.study import Study, read_study
from profiling.pictures import as_png
from profiling.report.page import render_page
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.terminal import make_console

FILES = ("ablations.html", "ablations.md")
PICTURES = "pictures"
SECOND = "second"
"""Where results of a second run are looked for, below the first's, unless told otherwise."""


def report(
    *, quick: bool, out: Path | None, again: Path | None, to: Path | None, overwrite: bool
) -> int:
    """Read results, draw, write; returns the exit code.

    Raises:
        InputError: There are no results, or a file cannot be read or written.
    """
    size: SizeName = "quick" if quick else "full"
    folder = out or default_folder(size)
    target = to or folder
    files = [target / name for name in FILES]
    require_free_outputs(files, overwrite=overwrite)
    study = read_study(read_all(), folder, again or folder / SECOND, size=size)
    if not study.results:
        raise InputError(
            f"{folder}: holds no results; measure some with `python -m profiling ablate run"
            f"{' --quick' if quick else ''}`"
        )
    for file, content in zip(files, pages_of(study), strict=True):
        write_whole(file, content)
    for row in study.rows:
        if row.result is not None and row.is_measured:
            figure = picture(row.ablation, row.result, row.outcomes)
            write_whole(target / PICTURES / f"{row.name}.png", as_png(figure))
    console = make_console()
    for sentence in summary(study):
        console.print(sentence, soft_wrap=True)
    console.print(f"page: {files[0]}; Markdown: {files[1]}, pictures beside it", soft_wrap=True)
    return FINISHED


def pages_of(study: Study) -> tuple[str, str]:
    """As HTML and as Markdown, in the order of `FILES`."""
    title = f"The paper's ablations, measured here ({size_words(study)})"
    sections, words = sections_of(study), summary(study)
    return (
        render_page(sections, title=title, summary=words),
        markdown_page(sections, title=title, summary=words, pictures=PICTURES),
    )


def size_words(study: Study) -> str:
    """Such as `320×320, 2 cores`."""
    sizes = {result.definition["workload"]["image_size"] for result in study.results}
    usual = max(sizes, key=lambda size: sum(
        result.definition["workload"]["image_size"] == size for result in study.results
    ))  # fmt: skip
    cores = {result.environment["cores"] for result in study.results}
    return f"{usual}×{usual}, {' or '.join(map(str, sorted(cores)))} cores"
