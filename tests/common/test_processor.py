import pytest

from common.machine import bf16_flag, fastest_precision
from retinanet.config_file import load_config


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ({"avx2", "avx512f", "avx512_bf16"}, "bf16"),
        ({"avx512f", "amx_tile", "amx_bf16"}, "bf16"),
        ({"asimd", "bf16"}, "bf16"),
        ({"avx2", "avx512f", "avx512bw", "avx512_vnni"}, "float32"),
        ({"avx2"}, "float32"),
        (set(), "float32"),
    ],
)
def test_bf16_is_taken_where_the_processor_has_instructions_for_it(
    flags: set[str], precision: str
) -> None:
    assert fastest_precision(flags) == precision
    assert (bf16_flag(flags) is None) == (precision == "float32")


def test_a_configuration_holds_the_precision_that_auto_means_here() -> None:
    engine = load_config("demo.yaml", ["engine.precision=auto"]).engine
    assert engine == load_config("demo.yaml").engine
    assert engine.precision == fastest_precision()
    assert load_config("demo.yaml", ["engine.precision=bf16"]).engine.precision == "bf16"
