"""TF_CONFIG: what launchers write is read, and what cannot be is refused in one line."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.io.errors import InputError
from ctr.workers.cluster import VARIABLE, Cluster, read_cluster

HOSTS = st.sampled_from(["a", "b", "node-1", "w0.svc", "ctr-train-0.ctr.default.svc", "10.0.0.1"])
ADDRESSES = st.lists(
    st.builds("{}:{}".format, HOSTS, st.integers(1, 65535)), min_size=1, max_size=8, unique=True
)


def read(content: Any) -> Cluster | None:
    return read_cluster({VARIABLE: content if isinstance(content, str) else json.dumps(content)})


@settings(max_examples=40)
@given(ADDRESSES, st.data(), st.booleans())
def test_what_launchers_write_is_read_and_the_chief_is_the_first_worker(addresses, data, is_text):
    rank = data.draw(st.integers(0, len(addresses) - 1))
    expected = Cluster(rank, tuple(addresses))
    assert read(expected.config()) == expected
    task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    # As Vertex AI writes it: indices may be text, and there may be more keys.
    if is_text:
        task |= {"index": str(task["index"]), "trial": ""}
    content = {"cluster": {"worker": addresses[1:], "chief": addresses[:1]}, "task": task}
    assert read({**content, "environment": "cloud", "job": "{}"}) == expected


def test_no_cluster():
    assert read_cluster({}) is None
    for content in ("", "  ", {}, {"cluster": {}}, {"task": {"type": "worker", "index": 0}}):
        assert read(content) is None


WORKERS = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}
REFUSED = [
    ("{", "not JSON"),
    ("[1]", "not an object"),
    ({"cluster": [1], "task": FIRST}, "cluster: not an object"),
    ({"cluster": {**WORKERS, "ps": ["c:3"]}, "task": FIRST}, "a task 'ps' takes no part in training"),
    *(
        ({"cluster": WORKERS, "task": task}, "none of the 0 chief and 2 worker")
        for task in (
            {"type": "chief", "index": 0},
            *({"type": "worker", "index": one} for one in (2, -1, "x")),
            None,
        )
    ),
    *(
        ({"cluster": {"worker": listed}, "task": FIRST}, "cluster.worker: not a list of HOST:PORT")
        for listed in ("a:1", [1], ["a:port"], ["http://a:1"])
    ),
    ({"cluster": {"worker": ["a:1", "a:1"]}, "task": FIRST}, "an address that is listed twice"),
    ({"cluster": {"chief": ["a:1", "b:1"]}, "task": FIRST}, "more than one chief"),
]


def test_what_is_refused():
    for content, words in REFUSED:
        with pytest.raises(InputError) as failure:
            read(content)
        text = str(failure.value)
        assert text.startswith("TF_CONFIG: ") and "allowed: " in text and "\n" not in text
        assert words in text, content
