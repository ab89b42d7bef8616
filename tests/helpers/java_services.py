"""Flink's job server, Beam's expansion service and a Kafka broker, each a process of its own while a block runs.

`make flink-jars kafka-jars` fetches what they need into .java/. All that they write goes into the folder that the
caller gives.
"""

import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from services import listening, on_free_ports, said, service

ROOT = Path(__file__).resolve().parents[2]
FLINK_JARS = ROOT / ".java" / "flink"
KAFKA_JARS = ROOT / ".java" / "kafka"

# Flink serialises by reflection what it has no serializer for; since Java 17 that has to be allowed.
OPENED = ("lang", "lang.reflect", "net", "nio", "time", "util", "util.concurrent")


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
    ready = functools.partial(said, re.compile(r"JobService started on \S*:(\d+)"))
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
        ready = functools.partial(listening, port)
        return _java(FLINK_JARS, folder, "expansion", [main, str(port), *options], "256m", ready)

    return on_free_ports(start)


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
    ready = functools.partial(said, re.compile(r"Kafka Server started"))

    def start(port: int, controller: int) -> contextlib.AbstractContextManager[str]:
        configuration.write_text(_broker_properties(folder / "data", port, controller))
        command = ["java", "-cp", f"{KAFKA_JARS}/*", *storage, str(configuration)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        return _java(KAFKA_JARS, folder, "broker", ["kafka.Kafka", str(configuration)], "384m", ready)

    return on_free_ports(start)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest finished checkpoint under a job's storage path, or None; Flink's execution.savepoint.path."""
    finished = [path.parent for path in folder.glob("*/chk-*/_metadata")]
    return max(finished, key=lambda path: (path / "_metadata").stat().st_mtime_ns, default=None)


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
    options = [f"-Xmx{memory}", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={temporary}"]
    options += [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
    command = ["java", *options, "-cp", f"{jars}/*", *arguments]
    with service(arguments[0], command, folder / f"{name}.log", ready) as found:
        yield found


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
