"""Reading a Chrome trace piece by piece."""

import gzip
import json
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.trace import trace as trace_module
from profiling.trace.trace import TraceEvents, nanoseconds, read_trace
from tests.profiling.trace.traces_by_hand import STEP, operator, write

EVENTS = [
    {"ph": "X", "name": "a,]}{[", "args": {"x": [1, {"y": None}]}},
    {"ph": "X", "name": 'ä \\ " \u4e2d', "dur": 12},
    {"ph": "i", "empty": {}},
]
DOCUMENT = {"schemaVersion": 1, "before": [{"traceEvents": 3}], "traceEvents": EVENTS, "after": "z"}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_pieces_of_any_size_hold_the_same_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, ascii_only: bool
) -> None:
    monkeypatch.setattr(trace_module, "CHUNK", chunk)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(DOCUMENT, indent=1, ensure_ascii=ascii_only))
    events = TraceEvents(file)
    assert list(events) == EVENTS
    assert not events.is_cut_off
    assert events.fields == {**DOCUMENT, "traceEvents": None}


def test_a_bare_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(EVENTS))
    assert list(TraceEvents(file)) == EVENTS


def test_gzip_is_known_by_its_content_and_progress_counts_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "named.json"
    packed = gzip.compress(json.dumps(DOCUMENT).encode())
    file.write_bytes(packed)
    told: list[int] = []
    assert list(TraceEvents(file, lambda done, note: told.append(done))) == EVENTS
    assert told[-1] == len(packed)


@pytest.mark.parametrize("packs", [True, False])
def test_a_file_cut_off_anywhere_gives_the_events_before(tmp_path: Path, packs: bool) -> None:
    whole = json.dumps(DOCUMENT).encode()
    first = whole.index(b'"traceEvents": [{"ph"') + len('"traceEvents": [')
    lengths = [len(json.dumps(one)) for one in EVENTS]
    ends = [first + sum(lengths[: place + 1]) + place * len(", ") for place in range(len(EVENTS))]
    file = tmp_path / "trace.json"
    for length in range(first, len(whole) - 1):
        content = whole[:length]
        # Packed: without the end that tells its length, as a killed writer leaves it.
        file.write_bytes(gzip.compress(content)[:-8] if packs else content)
        events = TraceEvents(file)
        assert list(events) == EVENTS[: sum(end <= length for end in ends)]
        assert events.is_cut_off


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x80\x04\x95binary", "is neither JSON nor JSON in gzip"),
        (b"hello", "does not begin with { or ["),
        (b'{"a": 1}', "has no list of traceEvents"),
        (b'{"traceEvents": 5}', "has no list of traceEvents"),
        (b'{"schemaVersion": 1, "tra', "ends before its traceEvents"),
        (b'{"traceEvents": [{"ph": "X" "cat": 1}, {"b": 2}, {"c": 3}]}', "no JSON at character 28"),
        (b"\x1f\x8bno gzip after all", "is empty"),
        (b'{"traceEvents": []}', "has no CPU operators; profile with activities="),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}', "not an event"),
    ],
)
def test_what_is_no_trace_is_told_in_one_line(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"trace\.json: ") as raised:
        read_trace(file)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("4446000509720.008", 4446000509720008),
        ("4446000509720.01", 4446000509720010),
        ("12.3456", 12346),
        ("1.5e3", 1500000),
        (12, 12000),
    ],
)
def test_times_keep_their_nanoseconds(written: str | int, expected: int) -> None:
    assert nanoseconds(written) == expected


def test_a_large_trace_takes_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    one = json.dumps(operator("aten::add", 4446000509720.008, 4446000509730.5, sequence=3))
    file = tmp_path / "trace.json"
    file.write_text(f'{{"traceEvents": [{", ".join([one] * 50_000)}]}}')
    size = file.stat().st_size
    tracemalloc.start()
    try:
        trace = read_trace(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace.operators) == 50_000
    assert peak < size  # json.load takes several times as much
    assert peak < 15_000_000


def test_a_step_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    from profiling.trace.operators import find_steps

    later = [{**one, "ts": one["ts"] + 2000, "name": one["name"].replace("step 20", "step 21")}
             for one in STEP]  # fmt: skip
    file = write(tmp_path / "trace.json", *STEP, *later)
    text = file.read_text()
    assert find_steps(read_trace(file)).numbers == [20, 21]
    file.write_text(text[: text.rindex("aten::convolution_backward")])
    trace = read_trace(file)
    assert trace.is_cut_off
    assert find_steps(trace).numbers == [20]
