from pathlib import Path

import pytest

from common.native import known_instruction_sets
from retinanet.__main__ import main
from retinanet.engine.kernel_calls import kernel_sources
from retinanet.preflight.host import check_compiler
from tests.support.commands import RunHere


def test_every_kernel_is_compiled_for_every_instruction_set_and_nothing_else_stays(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compiled"
    for module in ("common.native", "retinanet.engine.kernel_calls"):
        monkeypatch.setattr(f"{module}.COMPILED_AHEAD", folder)
    folder.mkdir()
    (folder / "focal_loss-x86-64-v3-0123456789abcdef.so").touch()
    done = run_here(main, "compile")
    assert (done.returncode, done.stderr) == (0, "")
    found = {library.name.rpartition("-")[0] for library in folder.glob("*.so")}
    names = {
        "batch_norm",
        "focal_loss",
        "grouped_convolution",
        "grouped_weight_gradient",
        "masked_sum",
        "optimizers",
        "pointwise_convolution",
        "shared_gradients",
        "tile_convolution",
        "tile_weights",
        "weight_gradient",
        "winograd",
    }
    assert {source.stem for source in kernel_sources()} == names
    assert found == {f"{name}-{one}" for name in names for one in known_instruction_sets()}
    assert len(list(folder.iterdir())) == len(found)
    assert all(name in done.stdout for name in names)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found_by_check = check_compiler("kernel")
    assert (found_by_check.level, "compiled ahead" in found_by_check.detail) == ("ok", True)


def test_without_a_compiler_a_line_says_what_to_install(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("common.native", "retinanet.engine.kernel_calls"):
        monkeypatch.setattr(f"{module}.COMPILED_AHEAD", tmp_path / "compiled")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = run_here(main, "compile")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "install g++" in done.stderr
