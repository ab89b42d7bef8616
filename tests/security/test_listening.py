"""No command listens on any network: every one is run, and its sockets and those of its processes are watched."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import event_files
from listening import is_loopback, listening, run_watched

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net")

Ctr = Callable[..., None]
MODEL = {"model": {"crosses": {"layers": 0}, "deep": {"units": [4]}}, "batch": {"rows": 512}}
SEARCH = {"title": "Widths", "config": MODEL, "space": {"model.deep.units.0": [2, 4]}}
CATEGORIES = [{"name": name, "kind": "category", "source": name} for name in ("user", "item")]
HISTORY = {"by": "user", "of": "item", "after": "0s", "last": 3}
TABLE = {
    "input": {"type": "csv"},
    "time": {"column": "time", "unit": "s"},
    "query": {"column": "query"},
    "label": "click",
    "partition": "1h",
    "features": [*CATEGORIES, {"name": "seen", "kind": "category", "history": HISTORY}],
    "keep_values": ["user", "item"],
}


@pytest.fixture
def ctr(tmp_path, monkeypatch) -> Ctr:
    """Runs a command, which must end well and listen on nothing beyond the loopback."""
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}

    def run(*words: object) -> None:
        command = [sys.executable, "-m", "ctr", *map(str, words)]
        with open("said", "w+") as said:
            status, addresses = run_watched(command, env=environment, stdout=said, stderr=said)
            said.seek(0)
            assert status == 0, said.read()
        assert not addresses, f"{words} listens on {addresses}"

    return run


def write_yaml(name: str, content: object) -> str:
    Path(name).write_text(yaml.safe_dump(content))
    return name


def test_a_socket_of_a_process_or_of_its_child_is_seen():
    """What the other tests rely on."""
    with socket.socket() as everywhere, socket.socket(socket.AF_INET6) as loopback:
        everywhere.bind(("", 0))
        loopback.bind(("::1", 0))
        for one in (everywhere, loopback):
            one.listen()
        ports = [one.getsockname()[1] for one in (everywhere, loopback)]
        assert {f"{'0' * 8}:{ports[0]:04X}", f"{'0' * 24}01000000:{ports[1]:04X}"} <= listening(os.getpid())
    assert not is_loopback("0" * 8) and is_loopback("0" * 24 + "01000000")
    script = "import socket; s = socket.socket(); s.bind(('127.0.0.9', 0)); s.listen(); print(1, flush=True); input()"
    shell = subprocess.Popen(
        ["sh", "-c", f'{sys.executable} -c "{script}"; true'], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdin is not None and shell.stdout is not None
    shell.stdout.readline()
    [address] = listening(shell.pid)
    assert is_loopback(address.partition(":")[0])
    shell.communicate()


@pytest.mark.soak
def test_every_command(ctr):
    event_files.write_events(Path("events"), event_files.draw_events(150), files=4)
    mapping = write_yaml("events.yaml", event_files.content())
    joins = ("ingest", "events", "events", "--mapping", mapping, "--max-reject-share", 1)
    ctr(*joins, "--out", "batch")
    ctr(*joins, "--out", "followed", "--follow", "--drain", "--poll", "0")
    ctr(*joins, "--out", "streamed", "--stream", "--drain")
    model = write_yaml("model.yaml", MODEL)
    ctr("simulate", "--examples", 4000, "--out", "log")
    ctr("sample", "log", "--name", "half", "--set", "non_click_rate=0.5")
    ctr("train", "log", "--out", "run", "--config", model)
    ctr("train", "log", "--out", "workers", "--config", model, "--workers", 2)
    ctr("export", "run", "--out", "model")
    ctr("score", "model", "log", "--out", "scores.parquet")
    ctr("evaluate", "run", "--against", "workers")
    ctr("compare", "run", "workers")
    ctr("report", "run", "--out", "report.html")
    ctr("inspect", "log")
    ctr("config", "model.deep")
    ctr("completion", "bash")
    arms = {"title": "Arms", "config": MODEL, "baseline": {"title": "Baseline"}, "arms": {}, "seeds": [1]}
    by_beam = "--beam-options=--runner=DirectRunner"
    ctr("replay", write_yaml("arms.yaml", arms), "--log", "log", "--out", "replayed", by_beam, "--no-timing")
    ctr("search", write_yaml("search.yaml", SEARCH), "--log", "log", "--out", "searched", "--no-timing")
    source = random.Random(0)
    rows = [f"{n // 3},{n // 3},u{source.randrange(9)},i{source.randrange(30)}" for n in range(900)]
    lines = [f"{row},{int(source.random() < 0.3)}" for row in rows]
    Path("table.csv").write_text("\n".join(["time,query,user,item,click", *lines, ""]))
    table = write_yaml("table.yaml", TABLE)
    ctr("ingest", "table", "table.csv", "--mapping", table, "--out", "table")
    ctr("history", "table", "--out", "histories.parquet")
    ctr("quickstart", "table.csv", "--out", "quick", "--label", "click", "--time", "time=s")
