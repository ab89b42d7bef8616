"""TF_CONFIG: what launchers write is read, and what cannot be is refused in one line."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.io.errors import InputError
from ctr.workers.cluster import VARIABLE, Cluster, read_cluster

HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{1,3})?", fullmatch=True)
ADDRESSES = st.lists(
    st.builds("{}:{}".format, HOSTS, st.integers(1, 65535)), min_size=1, max_size=8, unique=True
)


def read(content: Any) -> Cluster | None:
    return read_cluster({VARIABLE: content if isinstance(content, str) else json.dumps(content)})


def refusal(content: Any) -> str:
    with pytest.raises(InputError) as failure:
        read(content)
    text = str(failure.value)
    assert text.startswith("TF_CONFIG: ") and "allowed: " in text and "\n" not in text
    return text


@given(ADDRESSES, st.data())
def test_what_a_cluster_says_of_itself_is_read_back(addresses, data):
    cluster = Cluster(data.draw(st.integers(0, len(addresses) - 1)), tuple(addresses))
    assert read(cluster.config()) == cluster


@given(ADDRESSES, st.data())
def test_the_chief_is_the_first_worker(addresses, data):
    rank = data.draw(st.integers(0, len(addresses) - 1))
    task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    content = {"cluster": {"worker": addresses[1:], "chief": addresses[:1]}, "task": task}
    assert read(content) == Cluster(rank, tuple(addresses))


@given(st.integers(0, 2), st.booleans())
def test_indices_may_be_text_and_there_may_be_more_keys(index, is_text):
    # As Vertex AI writes it.
    content = {
        "cluster": {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2222", "w2:2222"]},
        "task": {"type": "worker", "index": str(index) if is_text else index, "trial": ""},
        "environment": "cloud",
        "job": "{}",
    }
    assert read(content) == Cluster(index + 1, ("c:2222", "w0:2222", "w1:2222", "w2:2222"))


def test_no_cluster():
    assert read_cluster({}) is None
    assert read("") is None
    assert read("  ") is None
    assert read({}) is None
    assert read({"cluster": {}}) is None
    assert read({"task": {"type": "worker", "index": 0}}) is None


@pytest.mark.parametrize("kind", ["worker", "chief"])
def test_a_cluster_of_one(kind):
    cluster = read({"cluster": {kind: ["a:1"]}, "task": {"type": kind, "index": 0}})
    assert (cluster.size, cluster.rank) == (1, 0)


WORKERS = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('"text"', "not an object"),
        ({"cluster": [1], "task": FIRST}, "cluster: not an object"),
        ({"cluster": {**WORKERS, "ps": ["c:3"]}, "task": FIRST}, "a task 'ps' takes no part in training"),
        ({"cluster": {**WORKERS, "evaluator": ["c:3"]}, "task": FIRST}, "a task 'evaluator' takes no part"),
        ({"cluster": WORKERS, "task": {"type": "evaluator", "index": 0}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": -1}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 0.5}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": "x"}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": True}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "worker"}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": {"type": "chief", "index": 0}}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS, "task": "worker"}, "none of the 0 chief and 2 worker"),
        ({"cluster": WORKERS}, "none of the 0 chief and 2 worker"),
        ({"cluster": {"worker": "a:1"}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": ["a"]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": [1]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": ["a:port"]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": ["a:"]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": [":1"]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": ["http://a:1"]}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT"),
        ({"cluster": {"worker": ["a:1", "a:1"]}, "task": FIRST}, "an address that is listed twice"),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["a:1"]}, "task": FIRST},
            "an address that is listed twice",
        ),
        ({"cluster": {"chief": ["a:1", "b:1"]}, "task": FIRST}, "more than one chief"),
    ],
)
def test_what_is_refused(content, words):
    assert words in refusal(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["a:1", "worker", "chief", "0"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cluster", "task", "type", "index", "worker", "chief"]), inner, max_size=3
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused_in_one_line(content):
    refused = ""
    cluster = None
    try:
        cluster = read(content)
    except InputError as error:
        refused = str(error)
    assert not refused or re.fullmatch(r"TF_CONFIG: .*", refused)
    assert cluster is None or 0 <= cluster.rank < cluster.size
