"""What a run shows to Prometheus and to a liveness probe, that it moves nothing, and when it counts as stalled."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import ctr
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.io.errors import InputError
from ctr.training.loop import TIMING
from ctr.training.run.monitor import STALLED_SECONDS, Monitor, serving
from small_runs import SMALL, make_config


class NoBar:
    """A bar that calls something each time it is shown a position."""

    def __init__(self, then: Callable[[int], None] = lambda position: None) -> None:
        self.then = then

    def __call__(self, position: int, metrics: dict[str, Any] | None = None) -> None:
        self.then(position)

    def lag(self, position: int, lag: tuple[int, float], metrics: dict[str, Any]) -> None:
        self.then(position)

    def phase(self, word: str) -> None: ...

    def close(self) -> None: ...


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def scrape(port: int) -> dict[str, float]:
    """The metrics by name; every one has a help."""
    status, text = get(port, "/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def now() -> list[float]:
    """The time of a monitor's clock."""
    return [0.0]


@pytest.fixture
def served(tmp_path, now) -> Iterator[tuple[Monitor, int]]:
    """A monitor of a run directory that is not there yet, and its port."""
    monitor, port = Monitor(tmp_path / "run", Path("logs/ads"), lambda: now[0]), free_port()
    with serving(port, monitor):
        yield monitor, port
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics")


def save(run: Path, position: int, written: float, **counts: int) -> None:
    folder = run / "checkpoints" / f"{position:020d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"position": counts}))
    os.utime(folder / "state.json", (written, written))


def test_metrics_are_what_progress_and_files_say(served, tmp_path):
    monitor, port = served
    run = tmp_path / "run"
    assert scrape(port) == {"ctr_examples_total": 0}
    assert get(port, "/")[0] == 404
    run.mkdir()
    (run / "config.yaml").write_text(dump_yaml(make_config()))
    line = {"window_end": 5_500_000, "window_examples": 20, "logloss": 0.25, "calibration_ratio": 1.5}
    # Undefined values are left out; a line of which a part is written counts when it is whole; lines may be long.
    lines = [{**line, "logloss": 9.0}, {**line, "per_query_auc": None, "ids": "x" * 200_000}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"logloss": 8')
    save(run, 100, 1000.5, skipped_steps=1, rejected_rows=2)
    save(run, 200, 2000.5, skipped_steps=3, rejected_rows=4)
    monitor.watch(NoBar(), 1000)
    # Resumed at 200, then back to 100 by workers that were restarted.
    for position in (210, 230, 105):
        monitor(position)
    found = scrape(port)
    assert found == {
        "ctr_run_info": 1,
        "ctr_examples_total": 35,
        "ctr_position_examples": 105,
        "ctr_position_timestamp_seconds": 5.5,
        "ctr_window_examples": 20,
        "ctr_window_logloss": 0.25,
        "ctr_window_calibration_ratio": 1.5,
        "ctr_checkpoint_timestamp_seconds": 2000.5,
        "ctr_skipped_steps_total": 3,
        "ctr_rejected_rows_total": 4,
    }
    info = re.search(r"ctr_run_info\{(.*)\}", get(port, "/metrics")[1]).group(1)
    assert f'config_sha256="{make_config().sha256()}"' in info and 'log="logs/ads"' in info
    (run / "follow.jsonl").write_text(json.dumps({"trained_through": 7_250_000}) + "\n")
    monitor.lag(105, (12, 3.5), {})
    found = scrape(port)
    assert (found["ctr_follow_waiting_rows"], found["ctr_follow_lag_seconds"]) == (12, 3.5)
    assert (found["ctr_position_timestamp_seconds"], found["ctr_examples_total"]) == (7.25, 35)


def test_a_run_has_stalled_when_steps_were_expected_and_none_came(served, now):
    monitor, port = served
    monitor.watch(NoBar(), 100)

    def is_well() -> bool:
        status, text = get(port, "/healthz")
        content = json.loads(text)
        assert (status, content["status"]) in ((200, "ok"), (503, "stalled"))
        assert content["seconds_since_progress"] == now[0] - moved
        return status == 200

    # Before the first batch nothing is expected, nor while something is compiled, nor behind the last row.
    moved, now[0] = 0, 10 * STALLED_SECONDS
    assert is_well()
    monitor(50)
    moved, now[0] = now[0], now[0] + STALLED_SECONDS
    assert is_well()
    now[0] += 1
    assert not is_well()
    monitor.phase("compiling")
    moved, now[0] = now[0], now[0] + 2 * STALLED_SECONDS
    assert is_well()
    monitor.phase("")
    moved, now[0] = now[0], now[0] + STALLED_SECONDS + 1
    assert not is_well()
    # A poll of a log that does not grow.
    monitor.lag(50, (0, 0.0), {})
    moved = now[0]
    assert is_well()
    monitor(100)
    moved, now[0] = now[0], now[0] + 2 * STALLED_SECONDS
    assert is_well()


def test_a_port_that_is_in_use_or_none_is_refused(served, log, tmp_path, capfd):
    port = served[1]
    for given, reason in ((port, "in use by another process; name another port"), (0, "allowed: 1 to 65535")):
        assert main(["train", str(log), "--out", str(tmp_path / "new"), "--metrics-port", str(given)]) == 1
        assert capfd.readouterr() == ("", f"error: --metrics-port {given}: {reason}\n")
        assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="allowed: 1 to 65535"), serving(65536, served[0]):
        pass


def results(run: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a run computed, as its receipt and its metrics have it."""
    assert main(["receipt", str(run), "--out", str(run.with_suffix(".json"))]) == 0
    capfd.readouterr()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if key not in TIMING} for line in lines]
    return {"receipt": json.loads(run.with_suffix(".json").read_bytes()), "metrics": metrics}


@pytest.mark.slow
def test_a_run_that_is_scraped_after_each_batch_has_the_bits_of_one_that_is_not(
    log, examples, tmp_path, monkeypatch, capfd
):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL))
    words = ["train", str(log), "--config", str(tmp_path / "run.yaml"), "--out"]
    assert main([*words, str(tmp_path / "plain")]) == 0
    port, seen = free_port(), []

    def look(position: int) -> None:
        found = scrape(port)
        seen.append(found)
        assert found["ctr_examples_total"] == found["ctr_position_examples"] == position
        assert found["ctr_run_info"] == 1 and get(port, "/healthz")[0] == 200

    monkeypatch.setattr("ctr.cli_train.training_bar", lambda total, sizes: NoBar(look))
    assert main([*words, str(tmp_path / "seen"), "--metrics-port", str(port), "--log-format", "json"]) == 0
    assert seen[-1]["ctr_position_examples"] == len(examples)
    plain, scraped = (results(tmp_path / name, capfd) for name in ("plain", "seen"))
    assert plain == scraped
    shown = [one["ctr_window_logloss"] for one in seen if "ctr_window_logloss" in one]
    # The last window is closed behind the last batch.
    assert list(dict.fromkeys(shown)) == [line["logloss"] for line in plain["metrics"][:-1]]
    assert all(
        one["ctr_skipped_steps_total"] == 0 for one in seen if "ctr_checkpoint_timestamp_seconds" in one
    )


@pytest.mark.slow
def test_a_run_that_follows_a_log_shows_its_lag_and_its_lines_are_json(log, examples, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL))
    port, run = free_port(), tmp_path / "run"
    words = ["train", log, "--config", tmp_path / "run.yaml", "--out", run, "--follow", "--json"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ctr",
            *map(str, words),
            "--metrics-port",
            str(port),
            "--log-format=json",
            "-v",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(ctr.__file__).parent.parent,
    )
    found: dict[str, float] = {}
    try:
        deadline = time.monotonic() + 300
        # The rows of the last batch, which is not full, wait.
        while found.get("ctr_position_timestamp_seconds") is None or found["ctr_follow_waiting_rows"] >= 50:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
            try:
                found = scrape(port)
            except OSError:
                continue
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    stopped = json.loads(out)
    assert (process.returncode, stopped["reason"]) == (0, "SIGTERM")
    assert stopped["position"] == found["ctr_examples_total"] == len(examples) - stopped["waiting"]
    assert found["ctr_follow_waiting_rows"] == stopped["waiting"] and found["ctr_follow_lag_seconds"] >= 0
    last = json.loads((run / "follow.jsonl").read_text().splitlines()[-1])
    assert found["ctr_position_timestamp_seconds"] == last["trained_through"] / 1e6
    loggers = {json.loads(line)["logger"] for line in err.splitlines()}
    assert "stderr" not in loggers and {"ctr", "ctr.training.device"} <= loggers


def test_nothing_is_loaded_without_the_flag(log, tmp_path, fresh_python, root):
    program = (
        "import sys; from ctr.cli import main; status = main(sys.argv[1:]); "
        "loaded = [name for name in sys.modules if 'prometheus' in name or name == 'http.server']; "
        "sys.exit(f'{status} {loaded}')"
    )
    given = ("train", log, "--out", tmp_path / "run", "--set", "metrics.slices=[x]")
    assert fresh_python("-c", program, *given, cwd=root, check=False).stderr.splitlines()[-1] == "1 []"
