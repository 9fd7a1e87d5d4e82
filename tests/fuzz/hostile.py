"""Almost valid inputs: real ones with hostile fragments."""

import json
from typing import Any

from hypothesis import strategies as st

PIECES = (
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b"\x1b[2J", b"\t", b" ", b",", b":", b"=",
    b"-1", b"0", b"00", b"1e400", b"NaN", b".inf", b"9" * 40, b"9" * 5000, b"1" + b"0" * 18,
    b"0x10", "²".encode(), "٣".encode(), b"true", b"null", b"~", b"[" * 3000, b'{"a":' * 3000,
    b"&a [*a]", b"*a", b"<<: *a", b"!!python/object/apply:os.system [ls]", b"? [1]", b"- ",
    b"{a: 1, a: 2}", b"'", b'"', b"../../x", b"/etc/passwd", b"[1-999999]", b"2(x999999999)",
    b"-oProxyCommand", b"0-999999", b"g0", b"x_verbose,", b"*", b"\x00\x00",
)  # fmt: skip

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, "", "\0",
    "\ud800", "../x", "/x", "a\nb", "\x1b[2J", "9" * 5000, [], {}, [[]], {"a": {}}, ["x", 1],
    [0] * 5,
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with up to three fragments, inserted or in place of some bytes."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.sampled_from((0, 0, 1, 2, 8, 10_000))))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=3))
        data = data[:begin] + piece + data[end:]
    return data


@st.composite
def with_another_value(draw: st.DrawFn, tree: Any) -> Any:
    """JSON content with one value, at any depth, replaced or removed."""
    copy = json.loads(json.dumps(tree))
    keys = draw(st.sampled_from(list(places(copy))))
    inner = copy
    for key in keys[:-1]:
        inner = inner[key]
    if draw(st.booleans()) and draw(st.booleans()):
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = draw(st.sampled_from(HOSTILE_VALUES))
    return copy


def places(tree: Any) -> Any:
    """The path to each value: keys and indices."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *path) for path in places(value))
