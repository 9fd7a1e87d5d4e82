"""What ran, and on what."""

from collections.abc import Mapping
from typing import Any

from profiling.report.blocks import Facts, Missing, Section
from profiling.report.material import Material
from profiling.report.words import listed

OF_A_RUN = (
    ("run", "run"),
    ("ranks", "ranks"),
    ("threads", "threads a rank"),
    ("images_a_step", "images a step and rank"),
    ("image_size", "image size"),
    ("precision", "precision"),
    ("engine", "engine"),
    ("convolutions", "convolutions"),
    ("own_kernels", "own kernels"),
    ("allocator", "allocator"),
    ("torch", "torch"),
    ("ipex", "IPEX"),
    ("host", "host"),
)
"""Of `profilednn_facts`, and what to call them."""
OF_A_MACHINE = (
    ("processor", "processor"),
    ("usable_cpus", "CPUs that it may use"),
    ("cpu_capability", "torch's instruction set"),
    ("system", "system"),
    ("python", "Python"),
)
"""Of environment.json."""
SHOWN = 6


def what_ran(material: Material) -> Section:
    """Library, machine, run, and how much of a log it is."""
    log, steps = material.log, material.measured.steps
    pairs = [("library", " and ".join(f"oneDNN {one}" for one in log.versions))]
    pairs += [("instruction set", "; ".join(log.instruction_sets))]
    if log.threads:
        threads = " and ".join(map(str, log.threads))
        pairs.append(("oneDNN's threads", f"{threads}, {' and '.join(log.runtimes)}"))
    pairs += run_facts(log.facts)
    environment = material.environment or {}
    pairs += [(name, text_of(environment.get(key))) for key, name in OF_A_MACHINE]
    if isinstance(environment.get("packages"), Mapping):
        packages = [f"{name} {version}" for name, version in environment["packages"].items()]
        pairs.append(("packages", listed(packages, 12)))
    pairs.append(("command", command_of(environment, log.facts)))
    pairs.append(("logs", listed(log.files, SHOWN)))
    lines = f"{log.lines:,} lines, {log.onednn_lines:,} of them oneDNN's"
    pairs.append(("read", lines))
    if steps.count:
        numbers = sorted({number for _, number in steps.whole if number is not None})
        pairs.append(("steps", listed([f"{number:,}" for number in numbers], 20)))
    known = dict(reversed([(name, value) for name, value in pairs if value]))
    shown = Facts([(name, known[name]) for name in dict.fromkeys(n for n, v in pairs if v)])
    missing = [] if material.environment else [
        Missing("Of the machine the log tells no more. A run of ours writes environment.json; "
                "give it with", "--environment runs/NAME/environment.json")
    ]  # fmt: skip
    return Section("what-ran", "What ran, and on what", [shown, *missing])


def run_facts(facts: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Facts that all ranks tell; where ranks differ, each value once."""
    found = []
    for key, name in OF_A_RUN:
        values = dict.fromkeys(text_of(one.get(key)) for one in facts)
        found.append((name, ", ".join(value for value in values if value)))
    return found


def command_of(environment: Mapping[str, Any], facts: list[dict[str, object]]) -> str:
    """The command as it was typed."""
    commands = [environment.get("command"), *(one.get("command") for one in facts)]
    words = next((one for one in commands if isinstance(one, list)), [])
    return " ".join(map(str, words))


def text_of(value: object) -> str:
    """A value of JSON for a person; nothing for null."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)[:300]
