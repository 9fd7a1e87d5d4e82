"""Messages between ranks: values keep their bits and types, and strange bytes build nothing."""

import json
import math
import pickle
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InputError
from launch import messages
from launch.messages import checked_length, decode, encode


@dataclass(frozen=True)
class Inner:
    name: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    inner: Inner | None = None
    is_due: bool = False


def sent(value: Any, kind: Any) -> Any:
    return decode(encode(value), kind, sender="rank 3")


def refused(content: bytes, kind: Any) -> str:
    with pytest.raises(InputError) as caught:
        decode(content, kind, sender="rank 3")
    return str(caught.value)


@given(st.floats())
def test_numbers_keep_their_bits(value: float) -> None:
    if math.isnan(value):
        assert math.isnan(sent(value, float))
    else:
        assert struct.pack("d", sent(value, float)) == struct.pack("d", value)


@given(st.text())
def test_texts_arrive_as_they_are(value: str) -> None:
    assert sent((value, ""), tuple[str, str]) == (value, "")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, int | None),
        (True, bool),
        (2**62, int),
        (("a", None, 1.5), tuple[str, int | None, float]),
        ([], list[str]),
        (frozenset({1, 5}), frozenset[int]),
        ({"a": [1, "b", None]}, dict[str, Any]),
        (Outer(count=1, inner=Inner("x", (math.inf, 1e-320)), is_due=True), Outer),
        ((Outer(count=2), [Inner("")]), tuple[Outer | None, list[Inner]]),
    ],
)
def test_values_arrive_with_their_types(value: Any, kind: Any) -> None:
    arrived = sent(value, kind)
    assert (arrived, type(arrived)) == (value, type(value))


def test_name_that_is_no_text_is_sent_with_a_mark() -> None:
    assert sent("image \udcff.jpg", str) == "image ?.jpg"


@pytest.mark.parametrize("kind", [Outer, int, bool, str, tuple[int, ...], dict[str, Any]])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"[",
        b"[" * 100_000,
        b"{}",
        b"[]",
        b"[[1.5], 2]",
        pickle.dumps([1]),
        b'[{"count": "1"}]',
        b'[{"count": 1, "more": 2}]',
        b'[{"inner": {"name": "a"}}]',
        b'[{"count": 1, "is_due": 1}]',
        b'["\xff"]',
    ],
)
def test_strange_bytes_are_refused_in_one_line(content: bytes, kind: Any) -> None:
    if kind == dict[str, Any] and content.startswith(b"[{"):
        return
    message = refused(content, kind)
    assert "the message of rank 3 cannot be used" in message
    assert message.endswith("; use the same version of this program on all hosts")


def test_field_of_another_version_is_named() -> None:
    content = json.dumps([{"count": 1, "inner": {"name": "a", "values": [1, "b"]}}]).encode()
    assert "(inner.values.1: Input should be a valid number)" in refused(content, Outer)


@pytest.mark.parametrize("length", [0, -1, 64_000_001, 2**62])
def test_announced_length_is_bounded(length: int) -> None:
    with pytest.raises(InputError, match="rank 1 announces a message of"):
        checked_length(length, sender="rank 1")


def test_longer_message_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="a message has 14 bytes, more than 10"):
        encode("1234567890")


def test_object_of_another_kind_is_our_bug() -> None:
    with pytest.raises(TypeError, match="complex cannot be sent"):
        encode(1j)
