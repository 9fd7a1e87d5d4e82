"""The configuration of a run: its sections together, and what must hold between them.

A configuration is a YAML file, then `section.field=value` pairs from the command line on top of it
(`retinanet.config_file`). Unknown names and wrong types are errors that name the place and the
nearest valid name. The fields are in `retinanet.config_sections`.
"""

import dataclasses
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

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
from retinanet.config_types import STRICT, Resume, field_marks
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
    launch: Annotated[LaunchConfig, Resume.FREE] = LaunchConfig()
    distributed: DistributedConfig = DistributedConfig()
    profile: Annotated[ProfileConfig, Resume.FREE] = ProfileConfig()
    mlperf: Annotated[MlperfConfig, Resume.FREE] = MlperfConfig()

    @field_validator("training")
    @classmethod
    def require_trained_body(
        cls, training: TrainingConfig, others: ValidationInfo
    ) -> TrainingConfig:
        """Refuse a learning rate of a body that does not train."""
        model = others.data.get("model")
        is_frozen = isinstance(model, ModelConfig) and model.trainable_layers == 0
        if training.body_learning_rate_factor != 1 and is_frozen:
            advice = "body_learning_rate_factor needs model.trainable_layers above 0"
            raise PydanticCustomError("unused", advice)
        return training

    @field_validator("engine")
    @classmethod
    def require_whole_weights(cls, engine: EngineConfig, others: ValidationInfo) -> EngineConfig:
        """Refuse to average weights that IPEX splits into two tensors."""
        training = others.data.get("training")
        if engine.name == "ipex" and isinstance(training, TrainingConfig) and training.ema:
            advice = "training.ema needs engine.name=torch: ipex splits the weights"
            raise PydanticCustomError("pieces", advice)
        return engine

    @field_validator("engine")
    @classmethod
    def require_right_gradients(cls, engine: EngineConfig, others: ValidationInfo) -> EngineConfig:
        """Refuse sizes for which IPEX's BF16 gradients contain NaN (docs/experiments.md)."""
        data = others.data.get("data")
        wrong = engine.name == "ipex" and engine.precision == "bf16"
        if wrong and isinstance(data, DataConfig) and data.image_size <= 64:
            advice = "ipex in bf16 has NaN gradients at data.image_size=64 and below; set 96"
            raise PydanticCustomError("wrong_gradients", advice)
        return engine

    @field_validator("distributed")
    @classmethod
    def require_torch(
        cls, distributed: DistributedConfig, others: ValidationInfo
    ) -> DistributedConfig:
        """Refuse compute groups with IPEX, which splits each weight into two tensors, and MPI."""
        engine = others.data.get("engine")
        if distributed.groups > 1 and isinstance(engine, EngineConfig) and engine.name == "ipex":
            advice = "groups above 1 need engine.name=torch: ipex splits the weights"
            raise PydanticCustomError("pieces", advice)
        if distributed.groups > 1 and distributed.backend == "mpi":
            advice = "groups above 1 need backend=auto: MPI ends a job with any of its ranks"
            raise PydanticCustomError("mpi", advice)
        return distributed

    @field_validator("distributed")
    @classmethod
    def require_no_average(
        cls, distributed: DistributedConfig, others: ValidationInfo
    ) -> DistributedConfig:
        """Refuse compute groups with an average of the weights, which no rank has step by step."""
        training = others.data.get("training")
        if distributed.groups > 1 and isinstance(training, TrainingConfig) and training.ema:
            advice = "groups above 1 need training.ema=null: no rank has the weights of every step"
            raise PydanticCustomError("unused", advice)
        return distributed

    @field_validator("mlperf")
    @classmethod
    def require_division(cls, mlperf: MlperfConfig, others: ValidationInfo) -> MlperfConfig:
        """Refuse settings that MLPerf's closed division does not allow."""
        # `mlperf` is the last section of `Config`, so `others.data` has all other ones.
        broken = broken_rules(others.data) if mlperf.division == "closed" else []
        if broken:
            advice = "the closed division requires that {rules}; set that, or mlperf.division=open"
            raise PydanticCustomError("division", advice, {"rules": "; ".join(broken)})
        return mlperf


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


def resume_marks() -> dict[str, Resume]:
    """Return the effect of changed fields on a resumed run, by dotted name of field or section.

    The next steps depend on every field that is not in it, and whose section is not.
    """
    marks = field_marks(Config, Resume)
    for section, kind in SECTIONS.items():
        marks |= {f"{section}.{name}": mark for name, mark in field_marks(kind, Resume).items()}
    return marks


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
