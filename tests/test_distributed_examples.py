"""The examples that start workers elsewhere: what they make of the launcher's variables, with the launchers faked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ctr.workers.cluster import Cluster, read_cluster

# In the place of `ctr`: writes down what it was called with, and ends as it is to.
CTR = f"""#!{sys.executable}
import json, os, sys
calls = [line for line in open("calls")] if os.path.exists("calls") else []
with open("calls", "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
statuses = json.load(open("statuses"))
sys.exit(statuses[len(calls)] if len(calls) < len(statuses) else 0)
"""
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node[1-2]" ] || exit 9
printf 'node1\\nnode2\\n'
"""
# Runs the tasks one after the other; the status is the highest, as that of srun.
SRUN = """#!/bin/bash
echo "$*" >> sruns
while [[ $1 == --* ]]; do shift; done
highest=0
for ((task = 0; task < TASKS; task++)); do
    status=0
    SLURM_PROCID=$task "$@" || status=$?
    ((status > highest)) && highest=$status
done
exit "$highest"
"""


@pytest.fixture
def place(tmp_path):
    """A folder whose programs come first."""
    for name, content in (("ctr", CTR), ("scontrol", SCONTROL), ("srun", SRUN)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    return tmp_path


def run(place: Path, *command: str | Path, statuses: tuple[int, ...] = (), **variables: str) -> int:
    (place / "statuses").write_text(json.dumps(statuses))
    environment = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        [*map(str, command)], cwd=place, env=environment, stderr=subprocess.DEVNULL
    ).returncode


def calls(place: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The arguments and the environment of each call of `ctr`."""
    return [json.loads(line) for line in (place / "calls").read_text().splitlines()]


@pytest.fixture
def kubernetes(root):
    return list(yaml.safe_load_all((root / "examples/distributed/kubernetes.yaml").read_text()))


def test_a_pod_is_the_worker_of_its_index(place, kubernetes):
    service, _, job = kubernetes
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    command = (*container["command"], *container["args"])
    # The names of the pods of an indexed job, below that of the service.
    names = tuple(f"ctr-train-{pod}.{service['metadata']['name']}:2222" for pod in range(4))
    for index in (0, 3):
        assert run(place, *command, JOB_COMPLETION_INDEX=str(index), **given) == 0
        arguments, environment = calls(place)[-1]
        assert arguments[:2] == ["train", "/data/logs/mind"]
        assert read_cluster(environment) == Cluster(index, names)


SLURM = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "123456", "SLURM_CPUS_PER_TASK": "16"}
SLURM |= {"SLURM_NTASKS_PER_NODE": "1", "TASKS": "2"}


def slurm(place: Path, root: Path, statuses: tuple[int, ...] = (), **more: str) -> int:
    script = root / "examples/distributed/slurm.sh"
    return run(place, "bash", script, "logs/a b", "--out", "run", statuses=statuses, **{**SLURM, **more})


def test_a_task_of_slurm_is_the_worker_of_its_number(place, root):
    assert slurm(place, root) == 0
    for rank, (arguments, environment) in enumerate(calls(place)):
        assert arguments == ["train", "logs/a b", "--out", "run"]
        assert read_cluster(environment) == Cluster(rank, ("node1:23456", "node2:23456"))
        assert environment["OMP_NUM_THREADS"] == environment["TF_NUM_INTRAOP_THREADS"] == "16"
    assert len(calls(place)) == 2
    # Several tasks on a node have ports of their own.
    assert slurm(place, root, SLURM_NTASKS_PER_NODE="2", TASKS="4", OMP_NUM_THREADS="3") == 0
    addresses = ("node1:23456", "node1:23457", "node2:23456", "node2:23457")
    found = calls(place)[2:]
    clusters = [read_cluster(environment) for _, environment in found]
    assert clusters == [Cluster(rank, addresses) for rank in range(4)]
    assert found[0][1]["OMP_NUM_THREADS"] == "3"


def test_slurm_starts_again_what_lost_a_worker(place, root):
    # A worker that lost another one ends with 75; who was killed ends with 137.
    for statuses, status, started in (((75, 137), 0, 4), ((75,) * 8, 75, 8), ((75, 75, 1, 1), 1, 4)):
        (place / "calls").unlink(missing_ok=True)
        assert slurm(place, root, statuses) == status
        assert len(calls(place)) == started
