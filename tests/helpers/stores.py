"""Object stores on the loopback device: S3 of moto, Google Cloud Storage of fake-gcs-server, Azure Blob of Azurite.

moto comes with the tests; `make store-servers` fetches the other two into .stores/. All of them keep objects in memory.
"""

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, unquote, urlencode

from http_proxy import Answer, Request, forward, served
from services import listening, on_free_ports, said, service

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".stores"
FAKE_GCS = next(FETCHED.glob("fake-gcs-server/*/fake-gcs-server"), None)
AZURITE = next(FETCHED.glob("azurite/*/.fetched"), None)

KINDS = ("s3", "gs", "az")
"""The schemes of the addresses: s3://bucket, gs://bucket, az://container."""

VARIABLES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")
"""How the environment variables begin by which a store is found."""

# Every Azurite and every Azure SDK has this account; it guards nothing.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def missing(kind: str) -> str:
    """Why a server cannot start here; empty where all is there."""
    if kind == "gs" and FAKE_GCS is None:
        return "no fake-gcs-server: make store-servers"
    if kind == "az" and (AZURITE is None or shutil.which("node") is None):
        return "no Azurite: make store-servers"
    return ""


@contextlib.contextmanager
def store_server(kind: str, folder: Path) -> Iterator[str]:
    """A server of one kind, without buckets, while a block runs; yields its address, http://HOST:PORT.

    Args:
        kind: one of KINDS.
        folder: where its log goes.
    """
    log = folder / f"{kind}.log"
    if kind == "s3":
        command = [sys.executable, Path(__file__).parent / "moto_server.py"]
        ready = functools.partial(said, re.compile(r"moto serves at port (\d+)"))
        with service("moto", command, log, ready) as port:
            yield f"http://127.0.0.1:{port}"
        return

    def start(port: int, _: int) -> contextlib.AbstractContextManager[str]:
        command = _google(port) if kind == "gs" else _azure(port)
        return service(kind, command, log, functools.partial(listening, port))

    with on_free_ports(start) as address:
        if kind == "az":
            yield f"http://{address}"
            return
        with served(functools.partial(google_xml, f"http://{address}")) as front:
            yield front


def _google(port: int) -> list[str | Path]:
    assert FAKE_GCS is not None
    options = [
        "-scheme=http",
        "-backend=memory",
        "-host=127.0.0.1",
        "-public-host=127.0.0.1",
        "-log-level=warn",
    ]
    return [FAKE_GCS, *options, f"-port={port}"]


def _azure(port: int) -> list[str | Path]:
    assert AZURITE is not None
    main = AZURITE.parent / "node_modules/azurite/dist/src/blob/main.js"
    options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    return ["node", main, *options, "--disableProductStyleUrl", f"--blobPort={port}"]


def make_bucket(kind: str, server: str, name: str) -> None:
    """Makes an empty bucket, or container, on the server at an address."""
    if kind == "s3":
        request = urllib.request.Request(f"{server}/{name}", method="PUT")
    elif kind == "gs":
        body = json.dumps({"name": name}).encode()
        request = urllib.request.Request(f"{server}/storage/v1/b?project=tests", body, method="POST")
    else:
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        signed = ["PUT", *[""] * 11, *(f"{k}:{v}" for k, v in headers.items())]
        signed += [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
        digest = hmac.digest(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{server}/{ACCOUNT}/{name}?restype=container"
        request = urllib.request.Request(url, headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()


def environment(kind: str, server: str) -> dict[str, str]:
    """The environment variables by which obstore finds the server at an address, http://HOST:PORT, and nothing else."""
    if kind == "s3":
        return {
            "AWS_ENDPOINT_URL": server,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
    if kind == "gs":
        account = {"gcs_base_url": server, "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}
    return {
        "AZURE_STORAGE_ENDPOINT": f"{server}/{ACCOUNT}",
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_ALLOW_HTTP": "true",
    }


def google_xml(server: str, request: Request) -> Answer:
    """Lets fake-gcs-server answer a put of Google's XML API, which obstore speaks: the server has it only in JSON.

    The condition that an object has a generation, or that there is none (0), is a header there and a parameter here.
    All else goes to the server as it is: reads, deletes and listings it has in XML too. It lists all in one page, and
    has no multipart uploads and no copies in XML.
    """
    path, _, query = request.target.partition("?")
    if request.method != "PUT" or query:
        return forward(server, request)
    bucket, name = (unquote(part) for part in path.removeprefix("/").split("/", 1))
    headers = {k.lower(): v for k, v in request.headers.items()}
    parameters = {"uploadType": "media", "name": name}
    if generation := headers.get("x-goog-if-generation-match"):
        parameters["ifGenerationMatch"] = generation
    target = f"/upload/storage/v1/b/{quote(bucket)}/o?{urlencode(parameters)}"
    answer = forward(server, replace(request, method="POST", target=target))
    if answer.status != 200:
        return answer
    made = json.loads(answer.body)
    return Answer(200, {"ETag": made["etag"], "x-goog-generation": made["generation"]})
