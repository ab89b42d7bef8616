"""Experiments with a stand-in for training: what they are asked for, and what they leave."""

import json
from pathlib import Path
from typing import Any

import yaml

from ctr.experiments.run import Options, run_experiment

# Writes what ``ctr train`` and ``ctr sample`` would; fails as a configuration's prior or a file beside it asks.
STAND_IN = """#!{python}
import hashlib, json, os, shutil, sys, yaml
from pathlib import Path

def after(name):
    return arguments[arguments.index(name) + 1] if name in arguments else None

if sys.argv[2] != "ctr":
    wanted = json.load(sys.stdin)
    with open({calls!r}, "a") as file:
        file.write("measure " + " ".join(wanted["configs"]) + "\\n")
    ratio = [1, 3, 4]
    cost = {{"train_flops": 1.0, "step_ms": 2.0, "inference_ms": 1.0, "step_ratio": ratio, "inference_ratio": ratio}}
    print(json.dumps({{name: cost for name in wanted["configs"]}}))
    sys.exit()
arguments = sys.argv[3:]
log = Path(arguments[1])
def publish(sidecar):
    for manifest in (log / "manifests").glob("*.json"):
        path = log / "sidecars" / sidecar / manifest.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{{}}")
if arguments[0] == "sample":
    with open({calls!r}, "a") as file:
        file.write("sample\\n")
    publish(after("--name"))
    sys.exit()
if arguments[0] == "simulate":
    run, loop, days = Path(after("--policy")), Path(after("--out")), int(after("--days"))
    log, own = Path(after("--log")), loop / "run/checkpoints/7"
    with open({calls!r}, "a") as file:
        file.write(f"{{days}} days of {{run.name.rsplit('-', 1)[0]}}\\n")
    if not loop.exists():
        shutil.copytree(run, loop / "run")
        (loop / "threads").write_text(os.environ["TF_NUM_INTRAOP_THREADS"])
        (loop / "origin.json").write_text(json.dumps({{"log_sha256": Path({sha!r}).read_text()}}))
    if not (own / "state.json").exists():
        sys.exit("error: no checkpoint")
    if days == 5 and not Path({healed!r}).exists():
        sys.exit("error: it was tired")
    day = {{"queries": 10, "examples": 15, "clicks": 2, "revenue": 1.5}}
    (loop / "loop.json").write_text(json.dumps({{"first_day": 1, "days": [day] * days}}))
    sys.exit()
config = yaml.safe_load(Path(after("--config")).read_text())
run = Path(after("--out"))
with open({calls!r}, "a") as file:
    file.write(run.name.rsplit("-", 1)[0] + "\\n")
if config["model"]["prior"] == 0.666 and not Path({healed!r}).exists():
    sys.exit("Traceback ...\\nerror: it broke")
if config["model"]["prior"] == 0.777 and (run / "summary.json").exists():
    sys.exit()  # A finished run stays as it is.
(run / "checkpoints/7").mkdir(parents=True, exist_ok=True)
(run / "checkpoints/7/state.json").touch()
(run / "threads").write_text(os.environ["TF_NUM_INTRAOP_THREADS"])
meaning = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
hashes = {{"config_sha256": meaning, "log_sha256": Path({sha!r}).read_text(), "constraint_logs_sha256": {{}}}}
rest = {{"per_query_auc": 0.7, "log_rows": 200, "trained_rows": 50}}
failed = config["model"]["prior"] == 0.555 and not Path({healed!r}).exists()
rest["learning_failure"] = "nothing was learned" if failed else None
(run / "summary.json").write_text(json.dumps({{**hashes, **rest}}))
if failed:
    sys.exit("error: nothing was learned")
if after("--record"):
    publish(after("--record"))
"""
EXPERIMENT: dict[str, Any] = {
    "title": "Small",
    "note": "Of the tests.",
    "config": {
        "batch": {"rows": 256},
        "compute_dtype": "float32",
        "model": {"crosses": {"layers": 1, "rank": 4}, "deep": {"units": [8]}},
    },
    "seeds": [1, 2],
    "teachers": {"wide": {"set": {"model.deep.units": [16]}}},
    "samplings": {"low": {"uninformative": {"rate": 0.5, "low_loss": {"teacher": "wide", "max_loss": 0.05}}}},
    "arms": {
        "smelu": {"set": {"model.deep.activation": "smelu"}},
        "student": {"teacher": "wide", "sampling": "low"},
    },
}


def run(
    content: dict[str, Any] | None = None, lines: list[str] | None = None, **options: Any
) -> dict[str, str]:
    """Runs an experiment; ``lines`` gets those of its progress."""
    file = Path("experiment.yaml")
    file.write_text(yaml.safe_dump(content or EXPERIMENT, sort_keys=False))
    progress = lines.append if lines is not None else None
    return run_experiment(
        file, Path("log"), Path("out"), Options("ctr replay ...", progress=progress, **options)
    )


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path("out") / name).read_text())
    return content
