"""An object store on the loopback device: S3 of moto, which keeps objects in memory and comes with the tests."""

import contextlib
import functools
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from services import said, service


@contextlib.contextmanager
def store_server(folder: Path) -> Iterator[str]:
    """A server of S3, without buckets, while a block runs; yields its address, http://HOST:PORT. Logs to ``folder``."""
    command = [sys.executable, Path(__file__).parent / "moto_server.py"]
    ready = functools.partial(said, re.compile(r"moto serves at port (\d+)"))
    with service("moto", command, folder / "moto.log", ready) as port:
        yield f"http://127.0.0.1:{port}"


def make_bucket(server: str, name: str) -> None:
    """Makes an empty bucket on the server at an address."""
    urllib.request.urlopen(urllib.request.Request(f"{server}/{name}", method="PUT"), timeout=30).close()


def environment(server: str) -> dict[str, str]:
    """The environment variables by which obstore finds the server at an address, http://HOST:PORT, and nothing else."""
    return {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_REGION": "us-east-1",
    }
