from collections.abc import Callable
from pathlib import Path

import pytest

from common.native import known_instruction_sets
from retinanet.__main__ import main
from retinanet.engine.kernel_calls import kernel_sources
from retinanet.preflight.host import check_compiler
from tests.support.commands import RunHere


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled kernels."""
    for module in ("common.native", "retinanet.engine.kernel_calls"):
        monkeypatch.setattr(f"{module}.COMPILED_AHEAD", tmp_path / "compiled")
    return tmp_path / "compiled"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Hides the compiler when it is called."""

    def hide() -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)

    return hide


NAMES = {
    "batch_norm",
    "few_pixels",
    "focal_loss",
    "grouped_convolution",
    "grouped_rows",
    "grouped_weight_gradient",
    "masked_sum",
    "optimizers",
    "pointwise_convolution",
    "pointwise_gradient",
    "shared_gradients",
    "tile_convolution",
    "tile_weights",
    "weight_gradient",
    "winograd",
}


def test_all_kernels_are_compiled() -> None:
    assert {source.stem for source in kernel_sources()} == NAMES


@pytest.mark.parametrize(
    "names",
    [
        pytest.param({"batch_norm", "masked_sum"}, marks=pytest.mark.slow, id="two kernels"),
        pytest.param(NAMES, marks=pytest.mark.exhaustive, id="all kernels"),
    ],
)
def test_kernels_are_compiled_for_each_instruction_set(
    names: set[str],
    folder: Path,
    no_compiler: Callable[[], None],
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [source for source in kernel_sources() if source.stem in names]
    monkeypatch.setattr("retinanet.engine.kernel_calls.kernel_sources", lambda: sources)
    folder.mkdir()
    (folder / "focal_loss-x86-64-v3-0123456789abcdef.so").touch()  # of an earlier source
    done = run_here(main, "compile")
    assert (done.returncode, done.stderr) == (0, "")
    libraries = {library.name.rpartition("-")[0] for library in folder.glob("*.so")}
    assert libraries == {
        f"{name}-{target}" for name in names for target in known_instruction_sets()
    }
    assert len(list(folder.iterdir())) == len(libraries)
    assert all(name in done.stdout for name in names)
    if names == NAMES:
        no_compiler()
        finding = check_compiler("kernel")
        assert (finding.level, "compiled ahead" in finding.detail) == ("ok", True)


def test_missing_compiler_is_an_error(
    folder: Path, no_compiler: Callable[[], None], run_here: RunHere
) -> None:
    no_compiler()
    done = run_here(main, "compile")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "install g++" in done.stderr
