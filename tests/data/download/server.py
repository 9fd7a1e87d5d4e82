"""An HTTP server on 127.0.0.1 that serves files, with faults on request."""

import random
import re
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

HTML = b"<!DOCTYPE html><html><body>Sign in to use this network</body></html>"
SILENCE = 0.9
"""Longer than the timeout of the clients in these tests. [s]"""


def bomb() -> bytes:
    """Return 50 MB of zeros compressed by gzip to 50 kB."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(bytes(1_000_000)) for _ in range(50)), packer.flush()])


class RequestSeen(NamedTuple):
    """A request that was served."""

    path: str
    range: str
    if_range: str


class Server:
    """Files by path, the faults of each, and the requests so far."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: dict[str, list[str]] = defaultdict(list)
        """Names in `RESPONSES`, or of methods of `Handler`, for the path's next requests"""
        self.fallback: Callable[[str], str] = lambda path: "serve"
        """Chooses the method for later requests"""
        self.tag = "1"
        self.requests: list[RequestSeen] = []
        self.heads = 0
        self.active = 0
        self.most_active = 0
        self.lock = threading.Lock()
        self.url = ""

    def misbehave(self, faults: tuple[str, ...], *, most: int, seed: int) -> None:
        """Assign up to `most` random faults to every file."""
        chance = random.Random(seed)
        for path in sorted(self.files):
            self.faults[path] = chance.choices(faults, k=chance.randint(0, most))

    def requests_for(self, path: str) -> list[RequestSeen]:
        return [request for request in self.requests if request.path == path]


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """Run a server at `server.url` in the context."""
    server = Server(files)

    class BoundHandler(Handler):
        state = server

    http = QuietServer(("127.0.0.1", 0), BoundHandler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class QuietServer(ThreadingHTTPServer):
    """Prints nothing about clients that disconnect."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """Serves one request correctly, or with a fault."""

    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.state.heads += 1
        self.answer(200, b"")

    def do_GET(self) -> None:
        request = RequestSeen(
            self.path, self.headers.get("Range", ""), self.headers.get("If-Range", "").strip()
        )
        with self.state.lock:
            self.state.requests.append(request)
            self.state.active += 1
            self.state.most_active = max(self.state.most_active, self.state.active)
            faults = self.state.faults[self.path]
            fault = faults.pop(0) if faults else self.state.fallback(self.path)
        try:
            if self.path in self.state.files:
                respond = RESPONSES.get(fault) or getattr(Handler, fault)
                respond(self, self.state.files[self.path])
            else:
                self.answer(404, b"no such file")
        except ConnectionError:
            pass  # the client was killed
        finally:
            with self.state.lock:
                self.state.active -= 1

    def answer(
        self, status: int, body: bytes, *, length: int | None = None, **headers: str
    ) -> None:
        """Send a response; a shorter body than `length` ends the connection."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("ETag", f'"{self.state.tag}"')
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        if length is not None and length > len(body) > 0:
            self.hang_up()

    def start_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True

    # Correct responses

    def serve(self, body: bytes) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if not match or self.headers["If-Range"] != f'"{self.state.tag}"':
            self.answer(200, body)
        elif start >= len(body):
            self.answer(416, b"", Content_Range=f"bytes */{len(body)}")
        else:
            self.answer(206, body[start:], Content_Range=range_from(start, body))

    def slow(self, body: bytes) -> None:
        """Send the file in four parts, within a fifth of a second."""
        self.answer(200, b"", length=len(body))
        step = -(-len(body) // 4)
        for start in range(0, len(body), step):
            time.sleep(0.05)
            self.wfile.write(body[start : start + step])
            self.wfile.flush()

    def chunked(self, body: bytes) -> None:
        self.start_chunks()
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    # Faults

    def silent(self, body: bytes) -> None:
        self.answer(200, body[:10], length=len(body))
        self.wfile.flush()
        time.sleep(SILENCE)
        self.hang_up()

    def cut_off(self, body: bytes) -> None:
        """Send half of the requested bytes, then nothing."""
        start = int(re.sub(r"\D", "", self.headers.get("Range", "")) or 0)
        part = body[start:]
        place = {"Content_Range": range_from(start, body)} if start else {}
        self.answer(206 if start else 200, part[: len(part) // 2], length=len(part), **place)

    def chunked_cut_off(self, body: bytes) -> None:
        self.start_chunks()
        self.wfile.write(b"%x\r\n%b" % (len(body), body[: len(body) // 2]))
        self.hang_up()

    def no_length(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.hang_up()

    def control_characters(self, body: bytes) -> None:
        """Send a reason phrase that would clear a terminal and forge a line of a list."""
        self.send_response(503, "no\x1b[2J\tforged\x85line\u00a0" + "x" * 5000)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def too_many_digits(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "9" * 5000)
        self.end_headers()
        self.wfile.write(body)
        self.hang_up()

    def chunks_without_end(self, body: bytes) -> None:
        self.start_chunks()
        while True:
            self.wfile.write(b"100000\r\n%b\r\n" % bytes(1 << 20))

    def negative_chunk(self, body: bytes) -> None:
        self.start_chunks()
        self.wfile.write(b"-5\r\n" + body)
        self.hang_up()


def range_from(start: int, body: bytes) -> str:
    return f"bytes {start}-{len(body) - 1}/{len(body)}"


RESPONSES: dict[str, Callable[[Handler, bytes], None]] = {
    "no_answer": lambda handler, body: handler.hang_up(),
    "cut_off_whole": lambda handler, body: handler.answer(
        200, body[: len(body) // 2], length=len(body)
    ),
    "length_too_long": lambda handler, body: handler.answer(200, body, length=len(body) + 10),
    "another_range": lambda handler, body: handler.answer(
        206, body[len(body) // 3 :], Content_Range=range_from(len(body) // 3, body)
    ),
    "range_of_many_digits": lambda handler, body: handler.answer(
        206, body, Content_Range=f"bytes 5-{'9' * 5000}/{'9' * 5000}"
    ),
    "sent_on_with_a_bomb": lambda handler, body: handler.answer(
        302, bomb(), Content_Encoding="gzip", Location=handler.path
    ),
    "error_500": lambda handler, body: handler.answer(500, b"oops"),
    "error_503": lambda handler, body: handler.answer(503, b"busy", Retry_After="0"),
    "error_429": lambda handler, body: handler.answer(
        429, b"too many", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"
    ),
    "wait_a_second": lambda handler, body: handler.answer(503, b"busy", Retry_After="1"),
    "unauthorized": lambda handler, body: handler.answer(401, b"who are you"),
    "length_too_short": lambda handler, body: handler.answer(200, body, length=len(body) - 7),
    "html": lambda handler, body: handler.answer(200, HTML, Content_Type="image/jpeg"),
    "garbage": lambda handler, body: handler.answer(
        200, random.Random(0).randbytes(len(body)), Content_Type="image/jpeg"
    ),
    "truncated": lambda handler, body: handler.answer(200, body[: len(body) * 3 // 4]),
    "without_its_end": lambda handler, body: handler.answer(200, body[:-2]),
    "empty": lambda handler, body: handler.answer(200, b""),
    "compressed": lambda handler, body: handler.answer(200, body, Content_Encoding="gzip"),
    "whole_for_a_part": lambda handler, body: handler.answer(200, body),
    "nonsense_range": lambda handler, body: handler.answer(206, body, Content_Range="all of it"),
    "nothing_left": lambda handler, body: handler.answer(416, b"", Content_Range="bytes */1"),
    "compressed_bomb": lambda handler, body: handler.answer(200, bomb(), Content_Encoding="gzip"),
}
"""The faults that are a single response."""

FAULTS = (
    *("slow", "error_500", "error_503", "error_429", "no_answer", "cut_off"),
    *("chunked_cut_off", "length_too_long", "length_too_short", "no_length", "html"),
    *("garbage", "truncated", "empty", "compressed", "another_range", "nonsense_range"),
    *("control_characters", "too_many_digits", "range_of_many_digits", "compressed_bomb"),
)
IMAGE_FAULTS = (*FAULTS, "chunked", "silent", "without_its_end")
FILE_FAULTS = (*FAULTS, "cut_off_whole", "whole_for_a_part", "nothing_left")
