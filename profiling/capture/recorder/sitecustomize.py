"""Start recording in a program that `retinanet profile capture` runs, once it has imported torch.

Python imports this file before anything else, since the command has put its folder on PYTHONPATH.
The interpreter and torch are the program's: nothing but torch and the standard library is imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

SETTINGS = "PROFILEDNN_CAPTURE"
HERE = Path(__file__).resolve().parent


class AfterTorch:
    """A finder of modules that finds torch as the others do, and starts recording after it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's spec, with a loader that starts recording."""
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                start(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start(torch: Any) -> None:
    """Record from now on; a program that cannot be recorded runs on, after a line on stderr."""
    settings = json.loads(os.environ[SETTINGS])
    try:
        recorder = ctypes.CDLL(str(compiled(torch, settings)))
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        first = next((line for line in output.splitlines() if "error" in line), output.strip())
        print(f"capture: process {os.getpid()} is not recorded: {first}", file=sys.stderr)
        return
    recorder.start_recording.argtypes = [ctypes.c_char_p] * 2 + [ctypes.c_int64] * 2
    recorder.end_step.argtypes = [ctypes.c_int64]
    recorder.enter_module.argtypes = [ctypes.c_char_p]
    recorder.enter_module.restype = ctypes.c_void_p
    recorder.leave_module.argtypes = [ctypes.c_void_p]
    rank = os.environ.get("RANK", "")
    facts = {
        "rank": int(rank) if rank.isdigit() else None,
        "cpus": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "torch": torch.__version__,
        "command": " ".join(getattr(sys, "orig_argv", sys.argv)),
    }
    first, last = settings["steps"]
    text = json.dumps(facts)[1:-1]
    if recorder.start_recording(settings["folder"].encode(), text.encode(), first, last) == 0:
        follow_modules(torch, recorder)
        follow_steps(recorder)


def compiled(torch: Any, settings: Any) -> Path:
    """Return the recorder for this torch, compiled by the first process that needs it."""
    package = Path(torch.__file__).parent
    name = hashlib.sha256(f"{package} {torch.__version__}".encode()).hexdigest()[:16]
    library = Path(settings["libraries"], f"{name}.so")
    if not library.exists():
        part = library.with_name(f"{name}.{os.getpid()}")
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        command = [
            *settings["compiler"],
            *(
                "-std=c++20",
                "-O1",
                "-DNDEBUG",
                "-fPIC",
                "-shared",
                f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            ),
            *(str(HERE / "recorder.cpp"), "-o", str(part), "-I", str(package / "include")),
            *("-L", str(package / "lib"), "-ltorch_cpu", "-lc10"),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        part.replace(library)
    return library


def follow_modules(torch: Any, recorder: ctypes.CDLL) -> None:
    """Tell the recorder which module's forward pass runs, by `ResNet.layer1.0.conv1`."""
    names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
    running = threading.local()
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)

    def name_of(module: Any, root: Any) -> bytes:
        if module not in names:
            kind = type(root).__name__
            for name, part in root.named_modules():
                names.setdefault(part, f"{kind}.{name}" if name else kind)
        return names.get(module, type(module).__name__).encode()

    def enter(module: Any, inputs: Any) -> None:
        if is_compiling():  # hooks are no part of the compiled graph
            return
        stack = running.__dict__.setdefault("stack", [])
        name = name_of(module, stack[0][0] if stack else module)
        stack.append((module, recorder.enter_module(name)))

    def leave(module: Any, inputs: Any, output: Any) -> None:
        if is_compiling():
            return
        stack = running.__dict__.get("stack", [])
        while stack:
            left, before = stack.pop()
            recorder.leave_module(before)
            if left is module:
                return

    torch.nn.modules.module.register_module_forward_pre_hook(enter)
    torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)


def follow_steps(recorder: ctypes.CDLL) -> None:
    """Tell the recorder the end of each step of the first optimizer, counted from 1."""
    steps = 0
    followed: weakref.ref[Any] | None = None

    def stepped(optimizer: Any, arguments: Any, options: Any) -> None:
        nonlocal steps, followed
        if followed is None or followed() is None:
            followed = weakref.ref(optimizer)
        if followed() is optimizer:
            steps += 1
            recorder.end_step(steps)

    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_post_hook(stepped)


def load_own() -> None:
    """Load the sitecustomize that the program's Python would have loaded without this one."""
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != str(HERE)]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = this


if SETTINGS in os.environ:
    sys.meta_path.insert(0, AfterTorch())
    load_own()
