"""Build the wheel: the checkout's packages below one package, `retinanet` (common/program.py).

A source distribution has the checkout's files, and the commit in a file `COMMIT`.

Absolute imports of the moved packages get the prefix `retinanet.`, and texts name what an
installation has in place of a checkout's scripts. All lines keep their numbers.
"""

import ast
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "retinanet"
MOVED = ("common", "configs", "data", "launch", "profiling", "train.py")
MODULES = {name.removesuffix(".py") for name in MOVED}
RENAMED = {"train": "train_script"}
"""`retinanet.train` is a function; a module of this name would take its place when imported."""
OF_CHECKOUTS = (
    *("image", "*.sh", "*.pbs", "mpijob.yaml", "jobset.yaml", "hosts.example"),
    *("apptainer.sbatch", "16-hosts.sbatch"),
)
"""Of launch/: the image's scripts, and recipes that are run in a checkout or in the image."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "compiled", *OF_CHECKOUTS)
TEXTS = {
    r"\./setup\.sh\b": "pip install .",
    r"`make (serving|openvino)`": r"`pip install retinanet-cpu[\1]`",
    r"run `make ipex`": "run `make ipex` in a checkout",
    r"`make setup`|make setup(?=, load)": "`pip install --upgrade retinanet-cpu`",
    r"\.venv/bin/": "",
}
"""What texts name in a checkout, and in an installation."""


class BuildHook(BuildHookInterface[Any]):
    """Writes what is built to a temporary folder, from which hatchling packs it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare the tree; an editable installation has the checkout itself on Python's path."""
        if version != "standard":
            return
        self.folder = Path(tempfile.mkdtemp())
        root = Path(self.root)
        if self.target_name == "wheel":
            write_tree(root, self.folder)
            build_data["force_include"][str(self.folder)] = PACKAGE
        elif commit := built_commit(root):
            (self.folder / "COMMIT").write_text(commit, encoding="utf-8")
            build_data["force_include"][str(self.folder / "COMMIT")] = "COMMIT"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the tree."""
        if version == "standard":
            shutil.rmtree(self.folder)


def write_tree(root: Path, package: Path) -> None:
    """Write the package from a checkout."""
    # Users keep pictures in a checkout too: of what git does not know only modules are ours.
    known = {root / name for name in git(root, "ls-files", "-z").split("\0") if name}

    def left_out(folder: str, names: list[str]) -> set[str]:
        files = {
            name for name in names if Path(folder, name).is_file() and not name.endswith(".py")
        }
        foreign = {name for name in files if known and Path(folder, name) not in known}
        return LEFT_OUT(folder, names) | foreign

    shutil.copytree(root / PACKAGE, package, ignore=left_out, dirs_exist_ok=True)
    for name in MOVED:
        if (package / name).exists():
            raise FileExistsError(f"{PACKAGE}/{name} and {name} would be one file in the wheel")
        if name.endswith(".py"):
            stem = name.removesuffix(".py")
            shutil.copy(root / name, package / f"{RENAMED.get(stem, stem)}.py")
        else:
            shutil.copytree(root / name, package / name, ignore=left_out)
    for file in package.rglob("*"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if file.suffix == ".py":
                text = with_prefix(text, str(file.relative_to(package)))
            file.write_text(as_installed(text), encoding="utf-8")
    if commit := built_commit(root):
        (package / "COMMIT").write_text(commit, encoding="utf-8")


def built_commit(root: Path) -> str:
    """Return the commit of a clone without changes or of a source distribution, or nothing."""
    commit = git(root, "rev-parse", "HEAD")
    if not commit and (root / "COMMIT").is_file():
        return (root / "COMMIT").read_text(encoding="utf-8")
    return "" if git(root, "status", "--porcelain") else commit


def with_prefix(text: str, name: str) -> str:
    """Return a module's source with `retinanet.` before each import of a moved package."""
    lines = text.splitlines(keepends=True)
    places = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_moved(node.module or ""):
            places.append((node.lineno - 1, node.col_offset + len("from "), node.module))
        elif isinstance(node, ast.Import):
            for alias in filter(lambda alias: is_moved(alias.name), node.names):
                if alias.asname is None:  # binds `common`, which would have to be another name
                    raise SyntaxError(f"{name}:{node.lineno}: write `from … import …`")
                places.append((alias.lineno - 1, alias.col_offset, alias.name))
    for line, column, module in sorted(places, reverse=True):
        before, after = lines[line][:column], lines[line][column:]
        if not after.startswith(str(module)):
            raise SyntaxError(f"{name}:{line + 1}: expected one space before {module}")
        renamed = RENAMED.get(str(module), str(module))
        lines[line] = f"{before}{PACKAGE}.{renamed}{after.removeprefix(str(module))}"
    return "".join(lines)


def is_moved(module: str) -> bool:
    """Return whether a module is in one of the packages that the wheel has below `retinanet`."""
    return module.partition(".")[0] in MODULES


def as_installed(text: str) -> str:
    """Return a text with what an installation has."""
    for checkout, installed in TEXTS.items():
        text = re.sub(checkout, installed, text)
    return text


def git(root: Path, *arguments: str) -> str:
    """Return git's output; empty where the folder is no clone, such as a source distribution."""
    command = ["git", "-C", str(root), *arguments]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
