"""Flink's job server, Beam's expansion service and a Kafka broker, each a process of its own while a block runs.

`make flink-jars kafka-jars` fetches what they need into .java/. All that they write goes into the folder that the
caller gives. A process ends with its block, and on Linux also when the process that started it is killed.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLINK_JARS = ROOT / ".java" / "flink"
KAFKA_JARS = ROOT / ".java" / "kafka"
START_SECONDS = 60
START_ATTEMPTS = 3

# Flink serialises by reflection what it has no serializer for; since Java 17 that has to be allowed.
OPENED = ("lang", "lang.reflect", "net", "nio", "time", "util", "util.concurrent")


class ServiceError(Exception):
    """A service that did not start; the message ends with its log."""


def missing(*folders: Path) -> str:
    """Why the services cannot start here: `folders` are those of the jars; empty where all is there."""
    if shutil.which("java") is None:
        return "no Java"
    absent = [folder.name for folder in folders if not any(folder.glob("*.jar"))]
    return f"no jars: make {' '.join(f'{name}-jars' for name in absent)}" if absent else ""


@contextlib.contextmanager
def flink_job_server(
    folder: Path, *, settings: Mapping[str, str] | None = None, memory: str = "768m"
) -> Iterator[str]:
    """A job server with an embedded Flink of its own for each job; yields its address, HOST:PORT.

    Args:
        folder: where the log (job-server.log), the configuration and temporary files go; may hold older ones.
        settings: Flink's configuration, such as {"execution.savepoint.path": "file:///.../chk-3"}.
        memory: of the Java heap; Flink, the connectors and the state of all jobs share it.
    """
    configuration = folder / "flink-conf"
    configuration.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}: {value}\n" for key, value in (settings or {}).items()]
    (configuration / "flink-conf.yaml").write_text("".join(lines))
    arguments = [
        "org.apache.beam.runners.flink.FlinkJobServerDriver",
        "--flink-master=[local]",
        "--job-host=127.0.0.1",
        "--job-port=0",
        "--artifact-port=0",
        "--expansion-port=-1",
        f"--artifacts-dir={folder / 'artifacts'}",
        f"--flink-conf-dir={configuration}",
    ]
    ready = functools.partial(_said, re.compile(r"JobService started on \S*:(\d+)"))
    with _java(FLINK_JARS, folder, "job-server", arguments, memory, ready) as port:
        yield f"127.0.0.1:{port}"


def expansion_service(folder: Path) -> contextlib.AbstractContextManager[str]:
    """Writes Java transforms, such as Kafka's, into a pipeline that is being built; yields its address, HOST:PORT.

    The transforms run inside the job server itself. It is needed until the pipeline is submitted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Java code would be shipped to its workers; the job server has all of it. An empty list means the class path.
    nothing = folder / "nothing.jar"
    nothing.touch()
    main = "org.apache.beam.sdk.expansion.service.ExpansionService"
    options = [
        "--javaClassLookupAllowlistFile=*",
        "--defaultEnvironmentType=EMBEDDED",
        f"--filesToStage={nothing}",
    ]

    def start(port: int, _: int) -> contextlib.AbstractContextManager[str]:
        ready = functools.partial(_listening, port)
        return _java(FLINK_JARS, folder, "expansion", [main, str(port), *options], "256m", ready)

    return _on_free_ports(start)


def kafka_broker(folder: Path) -> contextlib.AbstractContextManager[str]:
    """One broker, its own controller (KRaft), on the loopback device; yields its bootstrap address, HOST:PORT.

    Topics that do not exist are made with two partitions. Nothing expires: by default a broker drops messages whose
    timestamps lie more than a week in the past, which those of tests do. What `folder` holds is served again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "server.properties"
    storage = [
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
        "-t",
        "ctr-tests-ctr-tests-AA",
        "-c",
    ]
    ready = functools.partial(_said, re.compile(r"Kafka Server started"))

    def start(port: int, controller: int) -> contextlib.AbstractContextManager[str]:
        configuration.write_text(_broker_properties(folder / "data", port, controller))
        command = ["java", "-cp", f"{KAFKA_JARS}/*", *storage, str(configuration)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        return _java(KAFKA_JARS, folder, "broker", ["kafka.Kafka", str(configuration)], "384m", ready)

    return _on_free_ports(start)


@contextlib.contextmanager
def _on_free_ports(start: Callable[[int, int], contextlib.AbstractContextManager[str]]) -> Iterator[str]:
    """Runs what needs two ports, again on others when somebody took one meanwhile; yields HOST:PORT, the first."""
    for attempt in range(START_ATTEMPTS):
        ports = free_ports(2)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(start(*ports))
            except ServiceError:
                if attempt == START_ATTEMPTS - 1:
                    raise
                continue
            yield f"127.0.0.1:{ports[0]}"
            return


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest finished checkpoint under a job's storage path, or None; Flink's execution.savepoint.path."""
    finished = [path.parent for path in folder.glob("*/chk-*/_metadata")]
    return max(finished, key=lambda path: (path / "_metadata").stat().st_mtime_ns, default=None)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback device that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _java(
    jars: Path,
    folder: Path,
    name: str,
    arguments: list[str],
    memory: str,
    ready: Callable[[Path], str | None],
) -> Iterator[str]:
    """Runs a main class until the block ends; yields what `ready` makes of its log, once that is something."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    # Dies with the thread that starts it, however that ends.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    options = [f"-Xmx{memory}", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={temporary}"]
    options += [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*guard, "java", *options, "-cp", f"{jars}/*", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := ready(log)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-2000:]
                raise ServiceError(f"{arguments[0]} did not start (status {process.poll()})\n{end}")
            time.sleep(0.1)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _said(pattern: re.Pattern[str], log: Path) -> str | None:
    found = pattern.search(log.read_text(errors="replace"))
    return found and found.group(found.lastindex or 0)


def _listening(port: int, _log: Path) -> str | None:
    with socket.socket() as probe:
        return str(port) if probe.connect_ex(("127.0.0.1", port)) == 0 else None


def _broker_properties(data: Path, port: int, controller: int) -> str:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "log.retention.ms": "-1",
        "num.partitions": "2",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())
