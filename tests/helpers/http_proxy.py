"""A way to an HTTP server that a test makes slow, faulty or forgetful.

`faulty_proxy` stands between a client and a server: it notes each request, waits as long as the test says, and answers
with the first of its faults that fits the request, or else with what the server answers. `served` runs any function
from a request to an answer as a server.
"""

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote

# Those of one connection; the length is that of the body.
HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)

Action = Literal["status", "drop", "lose", "truncate", "stale"]


@dataclass(frozen=True)
class Request:
    """What a client asks: the target is path and query, as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What a server answers. Of a body that is cut, only half is sent; None is a connection that is closed."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False


@dataclass
class Fault:
    """What happens to the next requests of a method ("" is any) whose target, unquoted, has a pattern.

    Attributes:
        action: "status" answers with that status, and the server never sees the request; "drop" closes the connection
            instead of sending the request on; "lose" sends it on and closes the connection instead of answering;
            "truncate" sends half of the body; "stale" answers as the server did the last time to the same request,
            and leaves alone a request that is the first of its kind.
        times: how many requests are left that it fits.
        status, body: of the answer of "status".
    """

    action: Action
    method: str = ""
    pattern: str = ""
    times: int = 1
    status: int = 503
    body: bytes = SLOW_DOWN

    def fits(self, request: Request) -> bool:
        """Whether it is for this request; how many are left is another question."""
        found = re.search(self.pattern, unquote(request.target))
        return self.method in ("", request.method) and found is not None


@dataclass
class Proxy:
    """What a test sees and says of a proxy, while clients use it.

    Attributes:
        address: http://HOST:PORT, for clients.
        latency: seconds that each request waits.
        faults: the first that fits a request is what happens to it; those that are used up are removed.
        requests: all that came, in this order, also those that the server did not see.
    """

    upstream: str
    address: str = ""
    latency: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    _last: dict[tuple[str, str], Answer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str = "", pattern: str = "") -> int:
        """How many requests came of this method, and with this pattern in their target."""
        with self._lock:
            return sum(map(Fault("drop", method, pattern).fits, self.requests))

    def answer(self, request: Request) -> Answer | None:
        """What the client gets: None is a closed connection."""
        with self._lock:
            self.requests.append(request)
            fault = self._take(request)
            last = self._last.get((request.method, request.target))
        time.sleep(self.latency)
        if fault is not None and fault.action == "drop":
            return None
        if fault is not None and fault.action == "status":
            return Answer(fault.status, {"Content-Type": "application/xml"}, fault.body)
        action = fault and fault.action
        if action == "stale":
            return last
        answer = forward(self.upstream, request)
        with self._lock:
            # Of objects, a test would keep the bodies of all.
            if "list" in request.target.partition("?")[2]:
                self._last[request.method, request.target] = answer
        if action == "lose":
            return None
        return Answer(answer.status, answer.headers, answer.body, cut=action == "truncate")

    def _take(self, request: Request) -> Fault | None:
        for fault in self.faults:
            known = (request.method, request.target) in self._last
            if fault.fits(request) and (fault.action != "stale" or known):
                fault.times -= 1
                self.faults = [each for each in self.faults if each.times > 0]
                return fault
        return None


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy of its own in front of the server at an address, http://HOST:PORT."""
    proxy = Proxy(upstream)
    with served(proxy.answer) as proxy.address:
        yield proxy


def forward(upstream: str, request: Request) -> Answer:
    """Sends a request to the server at an address, on a connection of its own."""
    connection = http.client.HTTPConnection(upstream.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        # http.client states no length for an empty body, and some servers want one.
        if request.method in ("PUT", "POST"):
            headers["Content-Length"] = str(len(request.body))
        connection.request(request.method, request.target, request.body or None, headers)
        response = connection.getresponse()
        kept = {k: v for k, v in response.getheaders() if k.lower() not in HOP_HEADERS}
        if request.method == "HEAD":
            kept["Content-Length"] = response.getheader("Content-Length", "0")
        return Answer(response.status, kept, response.read())


@contextlib.contextmanager
def served(answer: Callable[[Request], Answer | None]) -> Iterator[str]:
    """Answers requests, each connection in a thread, on a free port of the loopback device; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body are two packets: the second would wait for the first to be confirmed.
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(Request(self.command, self.path, dict(self.headers.items()), body))
            if found is None:
                self._close()
                return
            self.send_response_only(found.status)
            for name, value in ({"Content-Length": str(len(found.body))} | found.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if found.cut:
                self.wfile.write(found.body[: len(found.body) // 2])
                self._close()
                return
            self.wfile.write(found.body)

        def _close(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is none of the test's concern; what it saw is."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
