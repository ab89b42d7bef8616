"""Whether results are, bit by bit, those of another version on the same machine.

    GOLDEN=golden.json pytest tests/test_golden.py

Where the file is missing, it is written: for each of sixteen configurations the hashes of the log, of checkpoints,
predictions and metrics without times, of the exported model (its functions, its variables and what it predicts for
fixed rows; graphs need not be equal in bytes) and of what ``--json`` prints. Where it is there, all hashes must be
those in it. Everything goes through the command line, so that the code below it may be rebuilt. Without
GOLDEN, only what must be the same within one version is checked.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.soak

GOLDEN = os.environ.get("GOLDEN")
# What depends on the clock, on paths, or on the environment.
PASSING = re.compile(
    r"second|per_s|_ms|time_to|elapsed|lag|speed|path|folder|duration|started|ended|commit|version|pid|wait|threads"
    r"|config_sha256|arrays_sha256|state_sha256|checkpoint_sha256|^lengths$|when|^run$|^runs$|^log$|^out$|arms|minutes"
    r"|memory|rss|created|^sidecar$"
)
SKIPPED = re.compile(r"environment\.json|tfevents|follow\.jsonl|report\.html|step_times|\.lock$|/workers/")

WORLD = "days=4 queries_per_day=250 users=300 ads=60 advertisers=10 seed=3"
SMALL = (
    "batch.rows=64 model.crosses.layers=2 model.crosses.rank=4 model.crosses.ramp=500 model.deep.units=[16,8] "
    "metrics.window_examples=700 checkpoint.every_examples=900 metrics.slices=[rendering]"
)
OFTEN = "precondition_frequency=5 statistics.frequency=2 start_preconditioning_step=5 momentum=0.9"
SHAMPOO = " ".join(
    [
        "optimizer.dense.preconditioned_from_rows=1",
        *(f"optimizer.dense.shampoo.{one}" for one in OFTEN.split()),
    ]
)
GROWING = (
    "ids={capacity: 40, shared_rows: 4, admission: {rule: count, count: 2}, "
    "eviction: {policy: least_recent, share: 0.1}}"
)

# By name: the settings of a run, and further options of `ctr train`.
RUNS: dict[str, tuple[str, ...]] = {
    "default": ("",),
    "shampoo": (SHAMPOO,),
    "soap": (
        f"{SHAMPOO} optimizer.dense.shampoo.method=eigenvalue_corrected optimizer.dense.shampoo.grafting.norm=none",
    ),
    "rows": (f"{SHAMPOO} optimizer.embeddings.rule=one_sided optimizer.embeddings.linear_rule=adagrad",),
    "objectives": (
        "objective.ranking={weight: 0.2, setup: multi_task} objective.distillation={teacher: default} "
        "objective.bias_constraints={families: [{name: shown, estimated_ctr: [0.05], features: {rendering: all}}]}",
    ),
    "factorized": (
        f"{SHAMPOO} model.factorized={{transfer: piecewise_linear}} objective.anti_distillation={{}} "
        "model.ensemble={components: 2, embeddings: separate}",
    ),
    "growing": (GROWING,),
    "delayed": ("label_delay=3600",),
    "sampled": ("sampling={name: halved} objective.distillation={teacher: default}",),
    "workers": (f"{SHAMPOO} workers.divided_from_mb=0", "--workers", "2"),
    "followed": ("batch.within_partitions=true", "--follow", "--stop-when-idle", "1"),
    "warm": ("model.deep.units=[16,8,8] seed=2", "--init-from", "default"),
    "growing workers": (f"{GROWING} workers.divided_from_mb=0", "--workers", "2"),
    "growing warm": (f"{GROWING} ids.capacity=50 seed=2", "--init-from", "growing"),
}

# By name: the log of a run, where it is not ``log``; its days beyond those of ``log``, and whether its ids grow.
LOGS = {
    "warm": (2, True),
    **dict.fromkeys(("growing", "growing workers"), (0, False)),
    "growing warm": (2, False),
}


def settings(words: str) -> list[str]:
    """The options of a command that set these keys."""
    return [part for word in re.split(r" (?=[a-z_.]+=)", words) if word for part in ("--set", word)]


def ctr(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command, in a folder, with one thread of TensorFlow."""
    environment = {
        **os.environ,
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "ctr", "-q", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def done(folder: Path, *arguments: str) -> str:
    """What a command prints, which must be a success."""
    process = ctr(folder, *arguments)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"ctr {' '.join(arguments)}: {err[-3000:]}"
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a log and the run ``default``, whose predictions are a teacher's."""
    folder = tmp_path_factory.mktemp("golden")
    log_of(folder, 0, True)
    train(folder, "default", "", "--record", "default")
    done(folder, "sample", "log", "--name", "halved", "--set", "non_click_rate=0.5")
    return folder


def log_of(folder: Path, more_days: int, buckets: bool) -> str:
    """The name of a simulated log."""
    name = "log" if buckets and not more_days else f"log-{more_days}-{buckets}"
    if not (folder / name).exists():
        words = dict(word.split("=") for word in WORLD.split())
        changes = " ".join(f"{key}={value}" for key, value in words.items() if key != "days")
        days = str(int(words["days"]) + more_days)
        done(
            folder,
            "simulate",
            "--days",
            days,
            "--out",
            name,
            *settings(f"{changes} buckets={str(buckets).lower()}"),
        )
    return name


def train(folder: Path, name: str, words: str, *options: str) -> dict[str, str]:
    """Trains a run, exports it, and returns the hashes of all that came out."""
    if not (folder / name).exists():
        if name == "growing warm":
            train(folder, "growing", GROWING)
        log = log_of(folder, *LOGS.get(name, (0, True)))
        given = ["train", log, "--out", name, "--json", *options, *settings(f"{SMALL} {words}")]
        (folder / f"{name}.json").write_text(done(folder, *given))
        done(folder, "export", name, "--out", f"{name}-model")
    hashes = hashes_of(folder / name) | export_hashes(folder / f"{name}-model")
    return hashes | {"json": json_hash(json.loads((folder / f"{name}.json").read_text()))}


def search(folder: Path) -> dict[str, str]:
    """Searches by a supernet, and trains what was found."""
    content = {
        "title": "A search",
        "config": {"compute_dtype": "float32", "batch": {"rows": 64}, "model": {"deep": {"units": [8, 4]}}},
        "space": {
            "model.deep.units.0": [4, 8],
            "model.crosses.layers": [0, 1],
            "model.widths.user_id": [2, 4],
        },
        "target": 0.85,
        "seeds": [1],
    }
    (folder / "search.json").write_text(json.dumps(content))
    given = [
        "search",
        "search.json",
        "--log",
        "log",
        "--out",
        "search",
        "--no-timing",
        "--workers",
        "1",
        "--json",
    ]
    printed = done(folder, *given)
    return hashes_of(folder / "search") | {"json": json_hash(json.loads(printed))}


def killed(folder: Path) -> dict[str, str]:
    """Trains as ``default`` does, killed once its first checkpoint is there, and resumed."""
    given = ["train", "log", "--out", "killed", "--json", "--record", "again", *settings(SMALL)]
    process = ctr(folder, *given)
    while process.poll() is None and not list((folder / "killed").glob("checkpoints/0*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    printed = done(folder, *given)
    done(folder, "export", "killed", "--out", "killed-model")
    hashes = hashes_of(folder / "killed") | export_hashes(folder / "killed-model")
    return hashes | {"json": json_hash(json.loads(printed))}


MADE: dict[str, Callable[[Path], dict[str, str]]] = {
    **{
        name: partial(lambda folder, name, given: train(folder, name, *given), name=name, given=given)
        for name, given in RUNS.items()
    },
    "supernet": search,
    "killed": killed,
}


@pytest.mark.parametrize("name", MADE)
def test_results_are_those_of_the_other_version(name: str, folder: Path) -> None:
    if GOLDEN is None:
        pytest.skip("GOLDEN names no file")
    found = MADE[name](folder) | hashes_of(folder / "log", "log/")
    known = json.loads(Path(GOLDEN).read_text()) if Path(GOLDEN).exists() else {}
    expected = known.setdefault(name, found)
    Path(GOLDEN).write_text(json.dumps(known, indent=1, sort_keys=True))
    assert differences(found, expected) == []


def test_killed_and_resumed_a_run_has_the_results_of_one_that_was_not(folder: Path) -> None:
    assert differences(killed(folder), train(folder, "default", "")) == []


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The names whose hashes differ, and those that only one side has; an array that has another name is none."""
    lost = {name: value for name, value in expected.items() if found.get(name) != value}
    new = {name: value for name, value in found.items() if expected.get(name) != value}
    moved = set(lost.values()) & set(new.values())
    return sorted({name for part in (lost, new) for name, value in part.items() if value not in moved})


def hashes_of(folder: Path, prefix: str = "") -> dict[str, str]:
    """The hashes of a folder's files by their paths; of archives and JSON, of each array and of what does not pass."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = f"{prefix}{path.relative_to(folder)}"
        if not path.is_file() or SKIPPED.search(f"/{name}"):
            continue
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found |= {f"{name}:{key}": array_hash(arrays[key]) for key in arrays.files}
        elif path.suffix == ".json":
            found[name] = json_hash(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = json_hash([json.loads(line) for line in path.read_text().splitlines()])
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def export_hashes(folder: Path) -> dict[str, str]:
    """The hashes of an exported model: of its functions, of its variables but scalars, and of predictions of one."""
    (model,) = folder.glob("[0-9]*")
    described = json.loads((model / "assets.extra" / "ctr.json").read_text())
    found = {"export/functions": json_hash([described["requests"], described["signatures"]])}
    saved = tf.train.load_checkpoint(str(model / "variables" / "variables"))
    names = saved.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    variables = [saved.get_tensor(name) for name in sorted(names, key=lambda name: int(name.split("/")[1]))]
    arrays = enumerate(values for values in variables if values.ndim)
    found |= {f"export/variable {number}": array_hash(values) for number, values in arrays}
    predict = tf.saved_model.load(str(model)).signatures["predict"]
    rows = {"string": [str(row) for row in range(40)], "int64": [10**15 + row * 10**9 for row in range(40)]}
    specs = predict.structured_input_signature[1]
    columns = {
        name: tf.constant(rows.get(spec.dtype.name, np.arange(40) / 2), spec.dtype)
        for name, spec in specs.items()
    }
    return found | {f"export/{key}": array_hash(value.numpy()) for key, value in predict(**columns).items()}


def array_hash(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def json_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(lasting(content), sort_keys=True).encode()).hexdigest()


def lasting(content: Any) -> Any:
    """Content without what passes."""
    if isinstance(content, dict):
        return {key: lasting(value) for key, value in content.items() if not PASSING.search(key)}
    return [lasting(value) for value in content] if isinstance(content, list) else content
