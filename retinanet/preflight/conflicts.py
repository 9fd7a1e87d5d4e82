"""Packages that are known not to work together."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import numpy as np
import torch
from packaging.requirements import Requirement
from PIL import Image, features

from retinanet.native_library import mapped_files
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.versions import installed_versions

SUBJECT = "packages"
LOOKED_AT = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "pillow-simd",
    "intel-extension-for-pytorch",
    "oneccl_bind_pt",
)
BINDINGS = "oneccl_bind_pt"
IPEX = "intel-extension-for-pytorch"
OPENMP = ("libgomp", "libiomp5", "libomp")


def check_conflicts(*, engine: str, backend: str) -> list[Finding]:
    """Look at what is installed and loaded.

    Args:
        engine: `auto`, `torch` or `ipex`.
        backend: `gloo` or `ccl`, which exchanges gradients.
    """
    found = installed_versions(LOOKED_AT)
    problems = [
        *pillow_conflict(found, loaded=loaded_pillow()),
        *torchvision_conflict(found, required=requirements_of("torchvision")),
        *same_release(found, IPEX, is_used=engine == "ipex", instead="engine.name=torch"),
        *same_release(
            found, BINDINGS, is_used=backend == "ccl", instead="distributed.backend=gloo"
        ),
        *numpy_conflict(),
        *openmp_conflict(sorted(mapped_files(*OPENMP))),
    ]
    if problems:
        return problems
    names = ", ".join(f"{name} {version}" for name, version in found.items())
    return [ok(SUBJECT, f"{names}: none is known to disturb another")]


def loaded_pillow() -> str:
    """The version that Pillow's compiled part was built as, whatever packages are noted."""
    return str(features.version("pil") or Image.__version__)


def pillow_conflict(found: Mapping[str, str], *, loaded: str) -> list[Finding]:
    """Pillow and Pillow-SIMD are both the module PIL: the later one overwrites half of the first.

    Where Pillow-SIMD was put in by `make simd`, an empty `pillow …+simd` stands beside it.
    """
    pillow, simd = found.get("pillow", ""), found.get("pillow-simd", "")
    if simd and pillow and not pillow.endswith("+simd"):
        text = f"pillow {pillow} and pillow-simd {simd} are both installed, as one module PIL"
        return [warning(SUBJECT, text, fix="run `make pillow`, or `make simd`")]
    noted = simd or pillow
    if noted and loaded != noted:
        text = f"the module PIL is version {loaded}, and the package says {noted}: half replaced"
        return [warning(SUBJECT, text, fix="run `make pillow`")]
    return []


def requirements_of(package: str) -> Sequence[str]:
    """What a package says that it needs; nothing where it is not installed."""
    try:
        return requires(package) or []
    except PackageNotFoundError:
        return []


def torchvision_conflict(found: Mapping[str, str], *, required: Sequence[str]) -> list[Finding]:
    """Each torchvision works with one release of torch, or some; its own metadata name them."""
    torch_version = found.get("torch", "").partition("+")[0]
    for one in map(Requirement, required):
        if one.name == "torch" and torch_version and not one.specifier.contains(torch_version):
            text = f"torchvision {found.get('torchvision')} needs torch{one.specifier}, and there "
            return [failure(SUBJECT, f"{text}is {torch_version}", fix="run `make setup`")]
    return []


def same_release(
    found: Mapping[str, str], package: str, *, is_used: bool, instead: str
) -> list[Finding]:
    """Extensions of torch work with the release of their own number only."""
    own, of_torch = found.get(package, ""), found.get("torch", "")
    if not own or own.split(".")[:2] == of_torch.split(".")[:2]:
        return []
    text = f"{package} {own} was made for another torch than {of_torch}"
    if is_used:
        return [failure(SUBJECT, text, fix=f"install that of torch {of_torch}, or set {instead}")]
    return [ok(SUBJECT, f"{text}; it is not used")]


def numpy_conflict() -> list[Finding]:
    """torch and numpy share memory only if torch was built for this numpy's binary interface."""
    try:
        torch.from_numpy(np.zeros(1)).numpy()
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        return [
            failure(
                SUBJECT, f"torch does not take numpy's arrays: {reason}", fix="run `make setup`"
            )
        ]
    return []


def openmp_conflict(libraries: Sequence[Path]) -> list[Finding]:
    """Each loaded OpenMP library has threads of its own, which meet on the same cores.

    Intel's in the place of GNU's is meant: the dynamic linker takes it for both.
    """
    gnu = [one for one in libraries if one.name.startswith("libgomp")]
    if len(gnu) > 1:
        names = " and ".join(map(str, gnu))
        fix = "take out of LD_PRELOAD what brings the second one"
        return [warning(SUBJECT, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    intel = [one for one in libraries if not one.name.startswith("libgomp")]
    if len(intel) > 1:
        names = " and ".join(map(str, intel))
        fix = "preload one of them alone"
        return [warning(SUBJECT, f"two OpenMP libraries are loaded, {names}", fix=fix)]
    return []
