"""``ctr train`` with workers as a user meets it: what is refused, what is printed, what a lost worker costs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import ctr.workers.launch
from ctr.cli import main
from ctr.training.run.summary import TIMING
from growing_logs import ADAGRAD, STANDS, assert_same
from small_runs import INTERVALS, SMALL, draw_examples, merged, publish
from worker_group import free_addresses

PAIR = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a log, a configuration, and a run of one process."""
    folder = tmp_path_factory.mktemp("made")
    publish(folder / "log", draw_examples().table())
    (folder / "run.yaml").write_text(yaml.safe_dump(merged(SMALL, ADAGRAD)))
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


def train(*more: str, out: str = "run") -> list[str]:
    return ["train", "log", "--config", "run.yaml", "--out", out, *more]


def tf_config(rank: int, cluster: dict = PAIR) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})


def refusal(capfd, *more: str) -> str:
    assert main(train(*more)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_what_options_and_tf_config_allow_is_known_before_a_worker_starts(place, capfd, monkeypatch):
    two, agree = ("--workers", "2"), "--workers 3: TF_CONFIG describes a cluster of 2 workers, of which this "
    for cluster, more, words in (
        ("", ("--workers", "0"), "--workers 0: allowed: 1 and more"),
        ("", (*two, "--max-restarts", "-1"), "--max-restarts -1: allowed: 0 and more"),
        ("", (*two, "--worker-timeout", "nan"), "--worker-timeout nan: allowed: 1 and more"),
        ("", ("--max-restarts", "2"), "--max-restarts goes with --workers"),
        ("", (*two, "--set", "batch.rows=-1"), "config run.yaml: batch.rows: -1 is not allowed"),
        ("", (*two, "--set", "metrics.slices=[x]"), "config: metrics.slices names x"),
        ("", (*two, "--set", "jit=true"), "config: jit: true is not possible with several workers"),
        ("", (*two, "--set", "batch.shapes=few"), "config: batch.shapes: few is not possible with several"),
        (tf_config(1), ("--workers", "3"), f"{agree}is one; allowed: the same number"),
        ("{", (), "TF_CONFIG: "),
        (tf_config(2), (), "TF_CONFIG: "),
    ):
        if cluster:
            monkeypatch.setenv("TF_CONFIG", cluster)
        assert refusal(capfd, *more).startswith(words)
        assert not (place / "run").exists()
    # Other commands do not read it.
    assert main(["inspect", "log"]) == 0


@pytest.fixture
def launched(monkeypatch):
    """What would have been launched."""
    plans: list[ctr.workers.launch.Launch] = []

    def launch(plan: ctr.workers.launch.Launch) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(ctr.workers.launch, "launch", launch)
    return plans


def test_the_workers_run_the_same_command_and_share_the_processors(place, launched, monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    given = train("--workers", "2", "--max-restarts", "7", "--set", "seed=3")
    assert main(["-q", *given]) == 0
    (plan,) = launched
    assert list(plan.command)[1:] == ["-m", "ctr", "-q", *given]
    assert (plan.size, plan.folder, plan.max_restarts) == (2, Path("run/workers"), 7)
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert (plan.environment["TF_NUM_INTRAOP_THREADS"], plan.environment["OMP_NUM_THREADS"]) == (share, "5")
    # A cluster of one may have workers here; logs of workers alone make no run directory of another kind.
    monkeypatch.setenv("TF_CONFIG", tf_config(0, {"worker": ["127.0.0.1:1"]}))
    (place / "run" / "workers").mkdir(parents=True)
    assert main(train("--workers", "3")) == 0 and launched[1].size == 3
    (place / "run" / "more").touch()
    assert main(train("--workers", "2")) == 1 and len(launched) == 2


@pytest.mark.slow
def test_one_worker_is_this_process(place, launched, capfd):
    assert main(train("--workers", "1", "--json")) == 0
    assert json.loads(capfd.readouterr().out)["examples"] > 0
    assert launched == [] and not (place / "run" / "workers").exists()
    # A run that is finished is not started again.
    assert main(train("--workers", "2", "--json")) == 0
    assert json.loads(capfd.readouterr().out)["examples"] > 0
    assert launched == []


def start(place: Path, *more: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", **variables}
    # Set in this process by commands that other tests ran in it.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.Popen(
        [sys.executable, "-m", "ctr", *train(*more)],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell without job control lets what it starts in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_checkpoint(place: Path, process: "subprocess.Popen[str]") -> None:
    while not any(path.name.isdecimal() for path in place.glob("run/checkpoints/*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def results(place: Path) -> dict:
    summary = json.loads((place / "run" / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in TIMING}


@pytest.fixture(scope="module")
def pair(made, tmp_path_factory):
    """A folder with a run of two workers that nothing disturbed."""
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    process = start(folder, "--workers", "2")
    output = process.communicate()
    assert process.returncode == 0, output
    # The result of the first worker, and nothing of TensorFlow's or of the second.
    assert output[0].startswith("run: ") and output[0].count("per_query_auc") == 1
    assert output[1] == ""
    assert {path.name for path in (folder / "run/workers").iterdir()} == {"000.log", "001.log"}
    assert "XLA service" in (folder / "run/workers/001.log").read_text()
    return folder


@pytest.mark.slow
def test_the_first_worker_that_is_killed_costs_one_line_and_no_bit(place, pair):
    process = start(place, "--workers", "2", "--json")
    wait_for_checkpoint(place, process)
    workers = children(process.pid)
    assert len(workers) == 2
    assert_nobody_can_connect([process.pid, *workers])
    os.kill(workers[0], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err.startswith("warning: worker 0 was killed (SIGKILL;") and err.count("\n") == 1
    assert err.endswith("all workers restart from the last checkpoint (1/3)\n")
    assert json.loads(out)["examples"] == results(pair)["examples"]
    assert results(place) == results(pair)


@pytest.mark.slow
def test_another_worker_that_is_killed_costs_no_bit_and_the_lines_of_all_are_json(place, pair):
    process = start(place, "--workers", "2", "--json", "-v", "--log-format=json")
    wait_for_checkpoint(place, process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    lines = {"": err, **{name: (place / f"run/workers/{name}.log").read_text() for name in ("000", "001")}}
    said = {name: [json.loads(line) for line in text.splitlines()] for name, text in lines.items()}
    # The other worker may fail by itself, before it is stopped, and then says its exit status.
    assert all(
        line.keys() - {"exit_status"} == {"time", "level", "logger", "message"}
        for part in said.values()
        for line in part
    )
    (lost,) = [line for line in said[""] if line["level"] == "warning"]
    assert lost["message"].startswith("worker 1 was killed (SIGKILL;") and lost["logger"] == "ctr"
    # What the first worker logs is in its file and here.
    devices = [line for line in said[""] if line["logger"] == "ctr.training.device"]
    assert devices and devices[0]["message"].startswith("devices: ")
    assert [line["message"] for line in devices] == [
        line["message"] for line in said["000"] if line["logger"] == "ctr.training.device"
    ]
    assert json.loads(out)["examples"] == results(pair)["examples"]
    assert results(place) == results(pair)


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def assert_nobody_can_connect(pids: list[int]) -> None:
    """The sockets that these processes share have neither an address nor a name."""
    found = set().union(*map(sockets, pids))
    # The sockets of all processes, by their inodes: those of the network, and those with a path or another name.
    kinds = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")
    network = [line.split() for kind in kinds for line in proc_net(kind)]
    named = [line.split() for line in proc_net("unix")]
    assert found & {line[6] for line in named}, "the workers are connected to each other"
    assert not found & {line[9] for line in network}
    assert not found & {line[6] for line in named if len(line) > 7}


def proc_net(kind: str) -> list[str]:
    path = Path("/proc/net") / kind
    return path.read_text().splitlines()[1:] if path.exists() else []


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("is_cluster", [False, True])
def test_two_workers_follow_a_log_to_the_bits_of_two_over_all_of_it(place, pair, is_cluster):
    def begin(*more: str) -> list["subprocess.Popen[str]"]:
        words = ["--follow", "--poll", "0.05", *more]
        if not is_cluster:
            return [start(place, "--workers", "2", *words)]
        cluster = {"worker": list(free_addresses(2))}
        return [start(place, *words, TF_CONFIG=tf_config(rank, cluster)) for rank in range(2)]

    def end(processes: list["subprocess.Popen[str]"], status: int) -> str:
        (out, err), *others = (process.communicate() for process in processes)
        assert [process.returncode for process in processes] == [status] * len(processes), err
        assert others in ([], [("", "")])
        return out

    def wait_for_rows(processes: list["subprocess.Popen[str]"], rows: int) -> None:
        report = place / "run" / "follow.jsonl"
        while not report.exists() or sum(json.loads(line)["rows"] for line in report.open()) < rows:
            assert processes[0].poll() is None, processes[0].communicate()
            time.sleep(0.01)

    table = draw_examples().table()
    shutil.rmtree(place / "log")
    # The log is not there yet; then it has less than it will have, and the workers wait.
    processes = begin()
    publish(place / "log", table, INTERVALS[:1])
    wait_for_rows(processes, 1)
    processes[-1].send_signal(signal.SIGTERM)
    out = end(processes, 0)
    position = max(int(path.name) for path in (place / "run/checkpoints").iterdir())
    assert out.startswith(f"run: stopped (SIGTERM) at row {position} of the log") and position > 0
    processes = begin("--stop-when-idle", "2")
    publish(place / "log", table, INTERVALS[1:2])
    wait_for_rows(processes, position + 1)
    publish(place / "log", table, INTERVALS[2:])
    assert end(processes, 0).startswith("run: stopped (idle) at row ")
    end([start(place, "--workers", "2")], 0)
    assert_same(place / "run", pair / "run", *STANDS)


@pytest.mark.soak
def test_a_worker_of_a_cluster_that_is_killed_is_named_by_the_other_and_both_resume(place, pair):
    cluster = {"worker": list(free_addresses(2))}
    both = [start(place, TF_CONFIG=tf_config(rank, cluster)) for rank in range(2)]
    wait_for_checkpoint(place, both[0])
    both[1].kill()
    _, err = both[0].communicate()
    both[1].communicate()
    assert both[0].returncode == 75
    assert err.startswith("error: worker 0 (") and err.count("\n") == 1
    assert f"has lost worker 1 ({cluster['worker'][1]})" in err
    again = [start(place, TF_CONFIG=tf_config(rank, cluster)) for rank in range(2)]
    assert [process.communicate()[1] for process in again] == ["", ""]
    assert results(place) == results(pair)
