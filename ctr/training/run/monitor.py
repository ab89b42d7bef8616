"""Prometheus metrics and a liveness probe of a run, over HTTP, for ``ctr train --metrics-port``.

::

    /metrics   Prometheus' text format, of what the run reports: the calls that progress bars get, and its files
    /healthz   200, or 503 where the run has stalled; a JSON object with the position either way

Whoever reaches the port may read both, without a password: on all IPv4 interfaces, as Prometheus and the kubelet come
from outside of the pod. They show metrics, and the paths of run and log; nothing can be changed through them.

Nothing of a run depends on it. Files are read when someone asks, so what they say is as new as their last line: of a
window when it is full, of skipped steps and rejected rows when a checkpoint is written.

Liveness: a run has stalled when for ``STALLED_SECONDS`` it passed no batch, polled no log and began nothing else. A
process that hangs (a network file system, a device, a deadlock) does not end by itself, and a restart resumes at the
checkpoint, hence this is reported as 503. It is judged only where steps are expected to follow each other: not before
the first batch (loading, checking rows, waiting for a log or for workers), not while something is compiled, and not
behind the last row (results, export), which have no bound; a probe that killed those would do so after each restart.
"""

import errno
import json
import os
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from ctr import __version__
from ctr.io.errors import InputError

STALLED_SECONDS = 900.0

_WINDOW = {
    "window_examples": "Rows of the last full window",
    "logloss": "Log loss of the predictions of the last full window, in nats",
    "per_query_auc": "AUC within queries, of the last full window",
    "calibration_ratio": "Predicted over observed clicks of the last full window",
}
_US = 1e6
_TAIL = 1 << 16


class ShownProgress(Protocol):
    """What shows a run's progress, such as ``ctr.cli_output.Bar``."""

    def __call__(self, position: int, metrics: dict[str, Any] | None = None) -> None: ...

    def phase(self, word: str) -> None: ...

    def close(self) -> None: ...


class Monitor:
    """State of a run as its progress tells it; forwards that to a bar. The clock returns seconds."""

    def __init__(self, run_dir: Path, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._log, self._clock = run_dir, log, clock
        self._bar: Any = None
        self._total: int | None = None
        self._position: int | None = None
        self._passed = 0
        self._moved, self._phase = clock(), ""
        self._lag: tuple[int, float] | None = None
        self._config_sha256: str | None = None

    def watch(self, bar: ShownProgress, total: int | None) -> Self:
        """Takes the place of a bar, to which it forwards; ``total``: rows of the log, None where it grows."""
        self._bar, self._total = bar, total
        return self

    def __call__(self, position: int, metrics: dict[str, Any] | None = None) -> None:
        self._pass(position)
        self._bar(position, metrics)

    def lag(self, position: int, lag: tuple[int, float], metrics: dict[str, Any]) -> None:
        self._lag = lag
        self._pass(position)
        self._bar.lag(position, lag, metrics)

    def phase(self, word: str) -> None:
        self._moved, self._phase = self._clock(), word
        self._bar.phase(word)

    def close(self) -> None:
        self._bar.close()

    def _pass(self, position: int) -> None:
        before = self._position
        if before is None or position < before:
            # Resumed, also by workers that were restarted: at the checkpoint that this position is behind.
            before = max((one for one in self._checkpoints() if one <= position), default=0)
        self._passed += position - before
        self._position, self._moved = position, self._clock()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Tells whether the run moves, as the module says, and where it stands."""
        quiet, position = self._clock() - self._moved, self._position
        is_stepping = position is not None and not self._phase and position != self._total
        is_stalled = is_stepping and quiet > STALLED_SECONDS
        content = {"status": "stalled" if is_stalled else "ok", "position": position, "phase": self._phase}
        return not is_stalled, {**content, "seconds_since_progress": round(quiet, 3)}

    def collect(self) -> Iterator[Any]:
        """Yields the metrics, for a registry of ``prometheus_client``."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        def gauge(name: str, text: str, value: float | None) -> Iterator[Any]:
            if value is not None:
                yield GaugeMetricFamily(f"ctr_{name}", text, value)

        if (info := self._info()) is not None:
            yield InfoMetricFamily("ctr_run", "What is trained, on what", info)
        yield CounterMetricFamily(
            "ctr_examples",
            "Rows that this process passed, again after a restart of the workers",
            self._passed,
        )
        yield from gauge("position_examples", "Rows of the log that the run has passed", self._position)
        window, followed = (
            _last_line(self._run_dir / name) or {} for name in ("metrics.jsonl", "follow.jsonl")
        )
        for name, text in _WINDOW.items():
            yield from gauge(f"window_{name.removeprefix('window_')}", text, window.get(name))
        reached = followed.get("trained_through") if self._lag else None
        reached = window.get("window_end") if reached is None else reached
        yield from gauge(
            "position_timestamp_seconds",
            "Query time of the last row of the last full window, with --follow of the last reported batch",
            reached and reached / _US,
        )
        if self._lag is not None:
            yield from gauge("follow_waiting_rows", "Published rows that are not passed", self._lag[0])
            text = "Age of the first published partition that is not trained on to its end, or 0"
            yield from gauge("follow_lag_seconds", text, self._lag[1])
        if (saved := self._saved()) is not None:
            written, position = saved
            yield from gauge("checkpoint_timestamp_seconds", "When the last checkpoint was written", written)
            for name, what in (("skipped_steps", "Steps skipped"), ("rejected_rows", "Faulty rows")):
                yield CounterMetricFamily(f"ctr_{name}", f"{what} up to the last checkpoint", position[name])

    def _info(self) -> dict[str, str] | None:
        path = self._run_dir / "config.yaml"
        if self._config_sha256 is None and path.is_file():
            from ctr.config import load_model
            from ctr.training.config import TrainConfig

            with suppress(InputError):
                self._config_sha256 = load_model(TrainConfig, path, "config").sha256()
        if self._config_sha256 is None:
            return None
        shown = {"run": str(self._run_dir), "log": str(self._log), "version": __version__}
        return {**shown, "config_sha256": self._config_sha256}

    def _checkpoints(self) -> list[int]:
        # What goes wrong here must not end the run.
        with suppress(OSError):
            folder = self._run_dir / "checkpoints"
            return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        return []

    def _saved(self) -> tuple[float, dict[str, Any]] | None:
        # Where the file of the newest is just being deleted: nothing.
        with suppress(OSError, ValueError):
            names = (self._run_dir / "checkpoints").glob("*/state.json")
            newest = max((one for one in names if one.parent.name.isdecimal()), default=None)
            if newest is not None:
                return newest.stat().st_mtime, json.loads(newest.read_bytes())["position"]
        return None


def _last_line(path: Path) -> dict[str, Any] | None:
    """Reads the last whole line of a file of JSON lines that grows; None where there is none."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        size, length = file.seek(0, os.SEEK_END), _TAIL
        while True:
            file.seek(max(0, size - length))
            *lines, _ = file.read(length).split(b"\n")
            if len(lines) > 1 or length >= size:
                content = json.loads(lines[-1]) if lines else None
                return content if isinstance(content, dict) else None
            length *= 2
    return None


class _Server(socketserver.ThreadingTCPServer):
    # A restarted pod takes the port of connections that are still closing; one that listens keeps it.
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def serving(port: int, monitor: Monitor) -> Iterator[None]:
    """Serves /metrics and /healthz on a port until the block ends. Raises InputError: not a port, or in use."""
    if not 1 <= port <= 65535:
        raise InputError(f"--metrics-port {port}: allowed: 1 to 65535")
    try:
        from prometheus_client import CollectorRegistry, MetricsHandler
    except ModuleNotFoundError:
        raise InputError(
            "--metrics-port requires clicktrain with the extra cloud (in a checkout: pip install '.[train,cloud]')"
        ) from None
    registry = CollectorRegistry()
    registry.register(monitor)

    class Handler(MetricsHandler):
        timeout = 10.0

        def do_GET(self) -> None:  # noqa: N802  (the name is that of http.server)
            path = self.path.partition("?")[0]
            if path == "/metrics":
                super().do_GET()
            elif path == "/healthz":
                self._answer(*monitor.health())
            else:
                self.send_error(404, "allowed: /metrics, /healthz")

        def _answer(self, is_well: bool, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode() + b"\n"
            self.send_response(200 if is_well else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    Handler.registry = registry
    try:
        server = _Server(("0.0.0.0", port), Handler)
    except OSError as error:
        reason = (
            "in use by another process" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        )
        raise InputError(f"--metrics-port {port}: {reason}; name another port") from None
    with server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
