"""Reading a Chrome trace as a stream."""

import gzip
import json
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.trace import trace as trace_module
from profiling.trace.operators import find_steps
from profiling.trace.trace import TraceEvents, nanoseconds, read_trace
from tests.profiling.trace.example_traces import STEP, operator, write

EVENTS = [
    {"ph": "X", "name": "a,]}{[", "args": {"x": [1, {"y": None}]}},
    {"ph": "X", "name": 'ä \\ " \u4e2d', "dur": 12},
    {"ph": "i", "empty": {}},
]
DOCUMENT = {"schemaVersion": 1, "before": [{"traceEvents": 3}], "traceEvents": EVENTS, "after": "z"}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_events_do_not_depend_on_the_size_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, ascii_only: bool
) -> None:
    monkeypatch.setattr(trace_module, "CHUNK", chunk)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(DOCUMENT, indent=1, ensure_ascii=ascii_only))
    events = TraceEvents(file)
    assert list(events) == EVENTS
    assert not events.is_cut_off
    assert events.fields == {**DOCUMENT, "traceEvents": None}


def test_bare_list_and_gzip(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(EVENTS), encoding="utf-8-sig")  # with a byte order mark
    assert list(TraceEvents(file)) == EVENTS
    half = len(json.dumps(DOCUMENT)) // 2  # Two members; gzip is recognized by its content
    content = json.dumps(DOCUMENT).encode()
    packed = gzip.compress(content[:half]) + gzip.compress(content[half:])
    file.write_bytes(packed)
    progress: list[int] = []
    assert list(TraceEvents(file, lambda done, note: progress.append(done))) == EVENTS
    assert progress[-1] == len(packed)


@pytest.mark.parametrize("packs", [True, False])
def test_truncated_file_gives_the_events_before(tmp_path: Path, packs: bool) -> None:
    whole = json.dumps(DOCUMENT).encode()
    first = whole.index(b'"traceEvents": [{"ph"') + len('"traceEvents": [')
    lengths = [len(json.dumps(event)) for event in EVENTS]
    ends = [first + sum(lengths[: place + 1]) + place * len(", ") for place in range(len(EVENTS))]
    file = tmp_path / "trace.json"
    for length in range(first, len(whole) - 1):
        content = whole[:length]
        # gzip: without the trailer, which a killed writer does not write.
        file.write_bytes(gzip.compress(content)[:-8] if packs else content)
        events = TraceEvents(file)
        assert list(events) == EVENTS[: sum(end <= length for end in ends)]
        assert events.is_cut_off


NUMBERS = ("ts", "dur", "Sequence number", "Fwd thread id")


def event_with(field: str, value: str) -> bytes:
    """Return a trace's beginning, with an operator that has `value` in a field."""
    given = ", ".join(f'"{name}": {value if name == field else 1}' for name in NUMBERS)
    event = f'"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, {given}'
    return f'{{"traceEvents": [{{{event}, "args": {{{given}}}}}]'.encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x80\x04\x95binary", "is neither JSON nor JSON in gzip"),
        (b"hello", "does not begin with { or ["),
        (b'{"a": 1}', "has no list traceEvents"),
        (b'{"traceEvents": 5}', "has no list traceEvents"),
        (b'{"schemaVersion": 1, "tra', "ends before its traceEvents"),
        (
            b'{"traceEvents": [{"ph": "X" "cat": 1}, {"b": 2}, {"c": 3}]}',
            "not JSON at character 28",
        ),
        (b"\x1f\x8bno gzip after all", "is empty"),
        (b'{"traceEvents": []}', "has no CPU operators"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}', "not an event"),
        (b'{"a" 1}', "expected :"),
        (b'{"traceEvents": [' + b"[" * 100_000, "has too many levels, or too long a number, from"),
        (b'{"a": ' + b'{"a": ' * 100_000, "has too many levels, or too long a number, from"),
        (b'{"traceEvents": [' + b"9" * 5000 + b",", "or too long a number, from character 17"),
        *(
            (event_with(field, value) + b"}", "not an event of torch.profiler: ")
            for field in NUMBERS[:3]
            for value in ("1e308", "-1e300", "9" * 300, "NaN", "Infinity", '"long"')
        ),
        (event_with("Fwd thread id", "Infinity") + b"}", "not an event of torch.profiler: "),
        (
            event_with("ts", "1")
            + b', "bytes_moved": {"step": 1, "operators": [["forward", "a", 1, '
            + b"9" * 300
            + b", 1]]}}",
            "bytes_moved: operators.0.3: expected a number of at most 1e+19",
        ),
    ],
)
def test_invalid_trace_is_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"trace\.json: ") as raised:
        read_trace(file)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4446000509720.008", 4446000509720008),
        ("4446000509720.01", 4446000509720010),
        ("12.3456", 12346),
        ("1.5e3", 1500000),
        (12, 12000),
    ],
)
def test_times_keep_their_nanoseconds(text: str | int, expected: int) -> None:
    assert nanoseconds(text) == expected


@pytest.mark.slow
def test_memory_of_a_large_trace(tmp_path: Path) -> None:
    import tracemalloc

    event = json.dumps(operator("aten::add", 4446000509720.008, 4446000509730.5, sequence=3))
    file = tmp_path / "trace.json"
    file.write_text(f'{{"traceEvents": [{", ".join([event] * 10_000)}]}}')
    size = file.stat().st_size
    tracemalloc.start()
    try:
        trace = read_trace(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace.operators) == 10_000
    assert peak < 2 * size + 4_000_000  # json.load takes much more


def test_truncated_step_is_omitted(tmp_path: Path) -> None:
    later = [
        {**event, "ts": event["ts"] + 2000, "name": event["name"].replace("20", "21")}
        for event in STEP
    ]
    file = write(tmp_path / "trace.json", *STEP, *later)
    text = file.read_text()
    assert find_steps(read_trace(file)).numbers == [20, 21]
    file.write_text(text[: text.rindex("aten::convolution_backward")])
    trace = read_trace(file)
    assert trace.is_cut_off
    assert find_steps(trace).numbers == [20]
