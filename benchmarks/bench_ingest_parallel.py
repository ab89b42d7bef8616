"""Rows a second of ``ctr ingest table --workers N`` over several files, and what more processes would give.

Files as those of ``bench_ingest.py``, with times. Both arms, one process and several, must leave the same bytes. The
processor time of the publisher, which is one, and of the processes that work for it give the model: on N cores,

    seconds = start of a process + publisher + (reading + staging) / N

in which nothing overlaps, although the publisher works while files are read. Disks and networks are not in it.

    python benchmarks/bench_ingest_parallel.py [--rows 800000] [--files 8] [--plot FILE.svg]
"""

import hashlib
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping as Numbers
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from ctr.config import parse_model
from ctr.data.mapping import Mapping, load_format
from ctr.pipelines.ingest.run import ingest

BEGIN_S = 1_700_000_000 // 3600 * 3600
WORKERS = (1, 2, 4, 8, 16, 32, 64, 100, 200, 500, 1000)


def timed_mapping() -> Mapping:
    """The mapping of Criteo's files with a column of times before the others, and partitions of ten minutes."""
    content = load_format("criteo").model_dump(mode="json", exclude_unset=True)
    content["input"] |= {"columns": ["time", *content["input"]["columns"]], "pattern": "*.tsv"}
    content |= {"time": {"column": "time", "unit": "s"}, "partition": "10m"}
    return parse_model(Mapping, content, "benchmark")


def log_hash(log: Path) -> str:
    """The hash of all files of a log, by their names, and of what the ingest remembers."""
    digest = hashlib.sha256()
    for path in sorted(path for path in log.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(log)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def model(rows: int, start: float, publisher: float, worked: float) -> dict[str, Any]:
    """Rows a second of an ingest of so many rows on so many cores, the share of them that is used, and the limit."""
    found = {}
    for count in WORKERS:
        seconds = start + publisher + worked / count
        used = (publisher + worked) / count / seconds
        found[str(count)] = {"rows_per_second": rows / seconds, "efficiency": used}
    return {"cores": found, "limit_rows_per_second": rows / publisher}


def draw(found: dict[str, Any], measured: dict[str, float], path: Path) -> None:
    """Draws the model's curve with its limit, and what was measured."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "ingest", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(5.5, 3.8), layout="constrained")
        axes = figure.subplots()
        rates = [found["cores"][str(count)]["rows_per_second"] for count in WORKERS]
        (line,) = axes.plot(WORKERS, rates, label="from measured processor times")
        axes.axhline(
            found["limit_rows_per_second"], linestyle="--", color=line.get_color(), label="publisher"
        )
        axes.plot(WORKERS, [rates[0] * count for count in WORKERS], ":", color="gray", label="linear")
        axes.plot(
            list(map(int, measured)), list(measured.values()), "o", color="black", label="measured here"
        )
        axes.set(xscale="log", yscale="log", xlabel="cores (--workers)", ylabel="rows/s")
        axes.set_ylim(min(*rates, *measured.values()) / 2, found["limit_rows_per_second"] * 2)
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})


def processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def measure(
    rows: int = 800_000,
    files: int = 8,
    workers: int = 2,
    rounds: int = 3,
    plot: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """One process and several in turns.

    Args:
        rows: of all files together.
        files: of equal size.
        workers: of the second arm.
        rounds: that count, after one that does not.
        plot: an SVG file to write.
        folder: where files go; by default a temporary one.
    """
    # Here: each process that an ingest starts imports this file.
    from bench_ingest import write_criteo
    from runner import median, summarize, take_turns

    mapping = timed_mapping()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        inputs, hashes = Path(name) / "in", set()
        inputs.mkdir()
        (inputs / "tiny").mkdir()
        each = rows // files
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(write_criteo, inputs / "tiny" / "day_0.tsv", 1000, 0, BEGIN_S).result()
            for number in range(files):
                begin = BEGIN_S + number * each // 100
                process.submit(write_criteo, inputs / f"day_{number}.tsv", each, number, begin).result()

        def arm(count: int, given: Path, checked: bool) -> Numbers[str, float]:
            log = Path(name) / f"log{count}"
            shutil.rmtree(log, ignore_errors=True)
            own, others = (processor_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            begun = time.perf_counter()
            done = ingest(mapping, [given], log, workers=count)
            seconds = time.perf_counter() - begun
            if checked:
                hashes.add(log_hash(log))
            return {
                "rows_per_second": done.rows / seconds,
                "publisher_cpu_seconds": processor_seconds(resource.RUSAGE_SELF) - own,
                "processes_cpu_seconds": processor_seconds(resource.RUSAGE_CHILDREN) - others,
            }

        start = arm(workers, inputs / "tiny", checked=False)
        turns = take_turns(
            {str(count): lambda count=count: arm(count, inputs, True) for count in (1, workers)}, rounds
        )
        if len(hashes) != 1:
            raise RuntimeError("one process and several have left different bytes")
    several = turns[str(workers)]
    # One file and one partition start one process.
    begin = start["processes_cpu_seconds"]
    # Of a small run, what it begins with may take all of it.
    publisher = max(median(several, "publisher_cpu_seconds") - start["publisher_cpu_seconds"], 1e-3)
    worked = max(median(several, "processes_cpu_seconds") - workers * begin, 1e-3)
    found = model(each * files, begin, publisher, worked)
    if plot is not None:
        draw(found, {count: median(own, "rows_per_second") for count, own in turns.items()}, plot)
    shares = {"publisher_us_per_row": 1e6 * publisher / rows, "processes_us_per_row": 1e6 * worked / rows}
    return {"processes": summarize(turns), "parts": shares | {"start_cpu_seconds": begin}, "model": found}


if __name__ == "__main__":
    from runner import main

    main(measure, {"rows": 4000, "files": 2, "rounds": 1})
