"""A page in Debian's Chromium, spoken to over its debugging pipe; no test needs more of a browser."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
_SECONDS = 60


class Browser:
    """One tab. ``errors`` are what its console and its scripts complain of."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # Chromium reads commands from file 3 and writes answers to file 4, each ended by a zero byte.
        command = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._held, self._numbers, self._events = b"", itertools.count(1), list[dict[str, Any]]()
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.kill()
        self._process.wait()
        os.close(self._from)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Calls a method of the debugging protocol; fails where Chromium does."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Opens a file in a window of that size, and waits until it is there."""
        self._events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def run(self, script: str) -> Any:
        """Value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def errors(self) -> list[dict[str, Any]]:
        self.run("0")  # what came before it is here now
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [event for event in self._events if event["method"] in kinds]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 16)
            assert more, "Chromium ended"
            self._held += more
        message, _, self._held = self._held.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self._events.append(answer)
        return answer
