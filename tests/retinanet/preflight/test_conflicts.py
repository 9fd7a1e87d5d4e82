from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from retinanet.preflight.host import (
    IPEX,
    check_conflicts,
    openmp_conflict,
    pillow_conflict,
    same_release,
    torchvision_conflict,
)


@pytest.mark.parametrize(
    ("found", "loaded", "told"),
    [
        ({"pillow": "13.0.0"}, "13.0.0", ""),
        ({"pillow": "12.1.1+simd", "pillow-simd": "12.1.1.post0"}, "12.1.1.post0", ""),
        (
            {"pillow": "13.0.0", "pillow-simd": "12.1.1.post0"},
            "13.0.0",
            "pillow 13.0.0 and pillow-simd 12.1.1.post0 are both installed, as one module PIL",
        ),
        (
            {"pillow": "13.0.0"},
            "12.1.1.post0",
            "the module PIL is version 12.1.1.post0, and the package says 13.0.0: half replaced",
        ),
    ],
)
def test_pillow_against_pillow_simd(found: dict[str, str], loaded: str, told: str) -> None:
    assert "".join(one.found for one in pillow_conflict(found, loaded=loaded)) == told


def test_torchvision_says_itself_which_torch_it_needs() -> None:
    required = requires("torchvision") or []
    [wanted] = [one.specifier for one in map(Requirement, required) if one.name == "torch"]
    here = version("torch").partition("+")[0]
    assert torchvision_conflict({"torch": f"{here}+cpu"}, required=required) == []
    found = {"torch": "2.7.1", "torchvision": "0.23.0"}
    [problem] = torchvision_conflict(found, required=required)
    assert problem.level == "failure"
    assert problem.found == f"torchvision 0.23.0 needs torch{wanted}, and there is 2.7.1"


@pytest.mark.parametrize(("is_used", "level"), [(True, "failure"), (False, "ok")])
def test_an_extension_of_another_torch_matters_where_it_is_used(is_used: bool, level: str) -> None:
    found = {"torch": "2.9.0", IPEX: "2.8.0"}
    [problem] = same_release(found, IPEX, is_used=is_used, instead="engine.name=torch")
    assert problem.level == level
    assert same_release({"torch": "2.8.1", IPEX: "2.8.0"}, IPEX, is_used=True, instead="") == []
    assert same_release({"torch": "2.8.0"}, IPEX, is_used=True, instead="") == []


def test_two_copies_of_an_openmp_library_are_named() -> None:
    torchs, systems = Path("/venv/torch/lib/libgomp.so.1"), Path("/usr/lib/libgomp.so.1")
    intels = Path("/venv/lib/libiomp5.so")
    assert openmp_conflict([torchs]) == openmp_conflict([torchs, intels]) == []
    [problem] = openmp_conflict([torchs, systems])
    assert problem.found == f"two OpenMP libraries are loaded, {torchs} and {systems}"
    assert len(openmp_conflict([intels, Path("/usr/lib/libomp.so.5")])) == 1


def test_this_environment_has_no_conflict() -> None:
    found = check_conflicts(engine="torch", backend="gloo")
    assert [one.level for one in found] == ["ok"], found
