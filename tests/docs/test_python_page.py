"""The notebook of the docs is executed, and the programs of the page "From Python" are run."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests.docs.fixtures import put_in_place
from tests.docs.pages import REPOSITORY, python_programs
from tests.docs.runner import run_training_program

NOTEBOOK = REPOSITORY / "docs" / "own-detector.ipynb"
FEWER = {"EPOCHS = 16": "EPOCHS = 1", '"batch_size": 8': '"batch_size": 2'}
FEWER |= {"count=120": "count=2", "count=24": "count=2"}
MOST_BYTES = 100_000


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_stored_outputs_are_small_and_of_the_cells_in_order() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES and str(REPOSITORY) not in text
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "stream", "display_data", "execute_result"
    }  # fmt: skip
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


@pytest.mark.slow
def test_notebook_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    source = "\0".join(cell.source for cell in code_cells(notebook))
    for written, fewer in FEWER.items():
        assert source.count(written) == 1
        source = source.replace(written, fewer)
    for cell, changed in zip(code_cells(notebook), source.split("\0"), strict=True):
        cell.source, cell.outputs = changed, []
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = {"metadata": {"path": str(root)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    printed = [cell.outputs for cell in code_cells(notebook)]
    assert "mAP" in printed[2][0].text and "is_finished=True" in str(printed[2][-1].data)
    assert "96×96 pixels" in printed[4][0].text and "image/png" in printed[4][-1].data
    assert (root / "runs" / "shapes" / "checkpoints" / "best").exists()


@pytest.mark.exhaustive
def test_programs_of_the_page_run(root: Path, tmp_path: Path) -> None:
    put_in_place("runs/demo", root, tmp_path)
    Image.new("RGB", (90, 60), "red").save(tmp_path / "photo.jpg")
    programs = python_programs("python.md")
    assert len(programs) == 3
    done = run_training_program("\n".join(programs), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 1, ") and "mAP50" in done.stdout
    assert (tmp_path / "photo.boxes.png").is_file() and (tmp_path / "runs" / "from-python").is_dir()
