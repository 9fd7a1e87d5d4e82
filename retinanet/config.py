"""The configuration of a run: its sections together, and what must hold between them.

A configuration is a YAML file, then `section.field=value` pairs from the command line on top of it
(`retinanet.config_file`). Unknown names and wrong types are errors that name the place and the
nearest valid name. The fields are in `retinanet.config_sections`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Annotated, Any, LiteralString

from pydantic import TypeAdapter, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from data.annotations import as_size
from retinanet.config_sections import (
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EngineConfig,
    EvaluationConfig,
    LaunchConfig,
    MlperfConfig,
    ModelConfig,
    OneDnnProfileConfig,
    ProfileConfig,
    RunConfig,
    ScenesConfig,
    TraceProfileConfig,
    TrainingConfig,
)
from retinanet.config_types import STRICT, Hosts, Mark, Resume, field_marks
from retinanet.mlperf.rules import broken_rules


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Config:
    """The complete configuration of a run."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: Annotated[EvaluationConfig, Resume.FREE] = EvaluationConfig()
    checkpoint: Annotated[CheckpointConfig, Resume.FREE] = CheckpointConfig()
    engine: EngineConfig = EngineConfig()
    launch: Annotated[LaunchConfig, Resume.FREE, Hosts.MAY_DIFFER] = LaunchConfig()
    distributed: DistributedConfig = DistributedConfig()
    profile: Annotated[ProfileConfig, Resume.FREE] = ProfileConfig()
    mlperf: Annotated[MlperfConfig, Resume.FREE] = MlperfConfig()

    @field_validator("training", "engine", "distributed", "mlperf")
    @classmethod
    def require_consistent(cls, section: Any, others: ValidationInfo) -> Any:
        """Refuse a section that contradicts those before it; see `CONFLICTS`."""
        # A section with an error of its own is not among the others.
        known = SimpleNamespace(**others.data, **{str(others.field_name): section})
        for name, needed, is_broken, advice in CONFLICTS:
            if name == others.field_name and hasattr(known, needed) and is_broken(known):
                raise PydanticCustomError("conflict", advice)
        # `mlperf` is the last section, so that `others.data` has all other ones.
        is_closed = isinstance(section, MlperfConfig) and section.division == "closed"
        if is_closed and (broken := broken_rules(others.data)):
            raise PydanticCustomError("division", NOT_CLOSED, {"rules": "; ".join(broken)})
        return section


NOT_CLOSED: LiteralString = (
    "the closed division requires that {rules}; set that, or mlperf.division=open"
)
CONFLICTS: tuple[tuple[str, str, Callable[[Any], bool], LiteralString], ...] = (
    (
        "training",
        "model",
        lambda c: c.training.body_learning_rate_factor != 1 and c.model.trainable_layers == 0,
        "body_learning_rate_factor needs model.trainable_layers above 0",
    ),
    (
        "engine",
        "training",
        lambda c: c.engine.name == "ipex" and c.training.ema,
        "training.ema needs engine.name=torch: ipex splits the weights",
    ),
    (  # see docs/experiments.md
        "engine",
        "data",
        lambda c: (
            c.engine.name == "ipex"
            and c.engine.precision == "bf16"
            and min(as_size(c.data.image_size)) <= 64
        ),
        "ipex in bf16 has NaN gradients at data.image_size=64 and below; set 96",
    ),
    (
        "engine",
        "model",
        lambda c: c.engine.name == "ipex" and c.model.variant != "v1",
        "model.variant=v2 needs engine.name=torch: ipex was not tested with group norms",
    ),
    (
        "distributed",
        "engine",
        lambda c: c.distributed.groups > 1 and c.engine.name == "ipex",
        "groups above 1 need engine.name=torch: ipex splits the weights",
    ),
    (
        "distributed",
        "distributed",
        lambda c: c.distributed.groups > 1 and c.distributed.backend == "mpi",
        "groups above 1 need backend=auto: MPI ends a job with any of its ranks",
    ),
    (
        "distributed",
        "training",
        lambda c: c.distributed.groups > 1 and c.training.ema,
        "groups above 1 need training.ema=null: no rank has the weights of every step",
    ),
)
"""The section that is refused, the section that it contradicts, whether so, and what to do."""


SCHEMA = TypeAdapter(Config)

SECTIONS = {
    "run": RunConfig,
    "data": DataConfig,
    "data.scenes": ScenesConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "engine": EngineConfig,
    "launch": LaunchConfig,
    "distributed": DistributedConfig,
    "profile": ProfileConfig,
    "profile.onednn": OneDnnProfileConfig,
    "profile.trace": TraceProfileConfig,
    "mlperf": MlperfConfig,
}


def field_names() -> list[str]:
    """Return every valid dotted name, such as `training.batch_size`."""
    sections = SECTIONS.items()
    return [f"{name}.{field.name}" for name, kind in sections for field in dataclasses.fields(kind)]


def setting_marks(kind: type[Mark]) -> dict[str, Mark]:
    """Return the marks of one kind by dotted name of field or section."""
    marks = field_marks(Config, kind)
    for section, fields in SECTIONS.items():
        marks |= {f"{section}.{name}": mark for name, mark in field_marks(fields, kind).items()}
    return marks


def marked_settings(config: Config, kind: type[Mark]) -> Iterator[tuple[str, Any, Mark | None]]:
    """Yield dotted name, plain value and mark of each field: its own, or that of its section.

    A section within a section counts as one field.
    """
    marks = setting_marks(kind)
    for section, fields in config_to_tree(config).items():
        for field, value in fields.items():
            name = f"{section}.{field}"
            yield name, value, marks.get(name, marks.get(section))


def config_to_tree(config: Config) -> dict[str, Any]:
    """Return plain values for YAML and JSON; `config_from_tree` gives the configuration back."""
    return SCHEMA.dump_python(config, mode="json")


def field_help() -> str:
    """Return all fields with their meaning and default, for `--help`."""
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"{section}: {(kind.__doc__ or '').strip()}")
        properties = TypeAdapter(kind).json_schema()["properties"]
        for field in dataclasses.fields(kind):
            meaning = properties[field.name]["description"]
            default = "" if field.default is dataclasses.MISSING else f" (default {field.default})"
            lines.append(f"  {section}.{field.name}: {meaning}{default}")
    return "\n".join(lines)
