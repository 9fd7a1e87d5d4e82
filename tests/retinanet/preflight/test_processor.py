import pytest

from retinanet.preflight.host import check_compiler, check_precision


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ({"avx2", "avx512bw", "avx512_bf16"}, "ok"),
        ({"avx512bw", "amx_bf16"}, "ok"),
        ({"avx512bw"}, "warning"),
        ({"avx2"}, "warning"),
    ],
)
def test_bf16_wants_instructions(flags: set[str], level: str) -> None:
    assert check_precision("bf16", flags=flags).level == level
    assert check_precision("float32", flags=flags).level == "ok"


def test_winograds_convolutions_need_theirs() -> None:
    found = check_precision("bf16", convolutions="winograd", flags={"amx_bf16"})
    assert found.level == "failure" and found.fix == "take auto or onednn"


def test_a_missing_compiler_matters_where_the_kernel_is_insisted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert check_compiler("auto").level == "warning"
    found = check_compiler("kernel")
    assert found.level == "failure" and "CXX is no-such-compiler" in found.found
