# ruff: noqa: E501
"""Which worker TensorFlow's errors are about, with errors that it has given."""

import pytest

from ctr.workers.watch import find_lost
from worker_group import Group

RESET = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
Collective ops is aborted by: Collective ops is aborted by: recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}
The error could be from a previous operation. Restart your program to reset.
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/RecvBuf:
"""
NO_HEARTBEAT = """Graph execution error:

Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug further.
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/RecvBuf:
"""
NO_SERVICE = """Graph execution error:

Collective ops is aborted by: Collective ops is aborted by: Deadline Exceeded
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/RecvBuf:
RPC: /tensorflow.CoordinationService/Heartbeat
"""


def test_the_worker_that_an_error_is_about():
    # Of one's own connections another one is the reason.
    for message, lost in (
        (RESET, {0: [1], 2: [1], 1: [2]}),
        (NO_HEARTBEAT, {0: [1]}),
        (NO_SERVICE, {1: [0], 0: []}),
        ("nothing is named", {0: []}),
    ):
        assert {rank: find_lost(message, rank, 3) for rank in lost} == lost


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("is_cluster", [False, True])
@pytest.mark.parametrize("kind", ["tensors", "numbers"])
def test_a_worker_that_hangs_within_a_step_is_named(kind, is_cluster, tmp_path):
    group = Group(3, [kind], tmp_path, "exchanging_worker.py", is_cluster=is_cluster)
    try:
        assert [process.wait(600) for process in group.processes[:2]] == [0, 0], group.output(0)
    finally:
        group.kill(2)
        group.wait()
    for rank in (0, 1):
        (line,) = [line for line in group.output(rank).splitlines() if line.startswith("LOST")]
        assert line.startswith(f"LOST worker {rank} ") and " has lost worker 2" in line
