"""What each technique of the objective gains, against the same model without it, with paired intervals.

    python benchmarks/techniques.py --out runs/techniques [--mind LOG] [--examples N] [--report]

On a simulated log of two million examples whose coefficients walk, and on MIND (a log made by `ctr ingest mind`):

1. *ranking*, and ranking with bias constraints on the buckets of the estimated CTR;
2. *distillation* from a teacher with four times the width, whose predictions are recorded in a pass of its own;
3. *sampling*: non-clicks, and low losses by the teacher; scored on all rows, learned from the kept ones;
4. *bias constraints* on the buckets of the estimated CTR, and on well-liked ads low on the page;
5. limits: clipping by the global norm, limited updates;
6. all of it together.

In every run the slices are measured, in those without constraints at a learning rate of 0, which changes no bit.
"other seed" is the model without any technique again: what two trainings differ by anyway. The settings were chosen on
another simulated log (of seed 0, 1.2 million examples) and on MIND with seed 1; ``--seed`` repeats all with another.
The same command again goes on after the last finished run; ``--report`` prints what is there.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model, read_yaml
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import list_sidecars
from ctr.eval.buckets import BUCKETS
from ctr.eval.intervals import Estimate, deletions, difference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_comparison import compare_runs
from ctr.eval.run_files import read_run
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.loop import train

MIND = Path(__file__).resolve().parent.parent / "examples" / "mind.yaml"
TEACHER = "teacher"
"""The run; its sidecar, and the sample that it decides, have the seed in their names."""
CTR, LOW = "ctr", "low"


@dataclass(frozen=True)
class Study:
    """A log and what is tried on it.

    Attributes:
        model: the configuration of the model without any technique.
        families: of slices that are measured in every run, by name.
        teacher: what makes the teacher.
        recorded: the name of the teacher's sidecar.
        sample: the name of the sample.
        sampling: its configuration.
        variants: changes of the model, by name, as nested keys; under ``constrain`` the learning rates of the
            families that are constrained.
    """

    model: Mapping[str, Any]
    families: Mapping[str, Mapping[str, Any]]
    teacher: Mapping[str, Any]
    recorded: str
    sample: str
    sampling: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _variants(
    seed: int, ranking: Mapping[str, Any], constrain: Mapping[str, float], limits: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    taught = {"distillation": {"teacher": _recorded(seed)}}
    sampled = {"name": _sample(seed)}
    ctr = {CTR: constrain[CTR]}
    variants: dict[str, dict[str, Any]] = {
        "other seed": {"seed": 1001},
        "ranking": {"objective": {"ranking": ranking}},
        "ranking, multi-task": {"objective": {"ranking": {**ranking, "setup": "multi_task"}}},
        "ranking + constraints": {"objective": {"ranking": ranking}, "constrain": ctr},
        "distillation": {"objective": taught},
        "sampling": {"sampling": sampled},
        "sampling + distillation": {"sampling": sampled, "objective": taught},
        "constraints by CTR": {"constrain": ctr},
    }
    if LOW in constrain:
        variants["constraints low on the page"] = {"constrain": {LOW: constrain[LOW]}}
    variants |= {name: {"optimizer": limit} for name, limit in limits.items()}
    variants["everything"] = {
        "objective": {"ranking": ranking, **taught},
        "sampling": sampled,
        "constrain": dict(constrain),
    }
    return variants


def _recorded(seed: int) -> str:
    return f"teacher-{seed}"


def _sample(seed: int) -> str:
    return f"sample-{seed}"


def simulated_study(seed: int) -> Study:
    """A small DCNv2 at batch 512."""
    return Study(
        model={
            "batch": {"rows": 512},
            "model": {
                "prior": 0.08,
                "crosses": {"layers": 2, "rank": 32, "ramp": {"length": 50_000}},
                "deep": {"units": [128, 64]},
            },
        },
        families={
            CTR: {"estimated_ctr": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]},
            LOW: {"estimated_ctr": [0.15], "features": {"position": [4, 5, 6]}},
        },
        teacher={"model": {"crosses": {"rank": 128}, "deep": {"units": [512, 256]}}},
        recorded=_recorded(seed),
        sample=_sample(seed),
        sampling={
            "non_click_rate": 0.5,
            "uninformative": {"rate": 0.2, "low_loss": {"teacher": _recorded(seed), "below": 0.1}},
        },
        variants=_variants(
            seed,
            {"weight": 0.03, "query_exponent": 0},
            {CTR: 0.01, LOW: 0.05},
            {
                "clipping": {"dense": {"clip_norm": 0.1}},
                "limited updates": {
                    "dense": {"shampoo": {"update_limit_relative": 0.1, "update_limit_absolute": 0.01}}
                },
            },
        ),
    )


def mind_study(seed: int) -> Study:
    """The model of examples/mind.yaml at batch 64."""
    ranking = {"weight": 0.5, "query_exponent": 0.5, "ramp": {"length": 100_000}}
    return Study(
        model=read_yaml(MIND, "config"),
        families={CTR: {"estimated_ctr": [0.01, 0.02, 0.04, 0.08]}},
        teacher={"model": {"crosses": {"rank": 64}, "deep": {"units": [512]}}},
        recorded=_recorded(seed),
        sample=_sample(seed),
        sampling={"non_click_rate": 0.5},
        variants=_variants(seed, ranking, {CTR: 0.01}, {"clipping": {"dense": {"clip_norm": 0.1}}}),
    )


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(content)
    for key, value in changes.items():
        old = out.get(key)
        out[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out


def config_of(study: Study, changes: Mapping[str, Any], seed: int) -> TrainConfig:
    """The configuration of a variant; all families of slices are in it."""
    changes = dict(changes)
    rates = changes.pop("constrain", {})
    families = [
        {"name": name, **family, "learning_rate": rates.get(name, 0)}
        for name, family in study.families.items()
    ]
    constraints = {"bias_constraints": {"families": families}}
    content = _merged({**study.model, "seed": seed}, changes)
    content = _merged(content, {"objective": constraints})
    never = 2**40
    content = _merged({"checkpoint": {"every_examples": never, "keep": 1}}, content)
    return parse_model(TrainConfig, content, "benchmark")


def run_study(
    study: Study, log: Path, out: Path, seed: int, wanted: Sequence[str] | None, compute: bool
) -> list[str]:
    """Trains what is ``wanted`` and not there yet; returns the lines of the table of what is there."""
    base = out / "base"
    names: dict[str, Mapping[str, Any]] = {"base": {}, TEACHER: study.teacher, **study.variants}
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    for name, changes in names.items():
        run = out / name.replace(" ", "-").replace(",", "")
        if compute and (wanted is None or name in {"base", *wanted, *_needed(study, wanted)}):
            _train(study, log, run, name, config_of(study, changes, changes.get("seed", seed)))
        if (run / "summary.json").exists() and (base / "summary.json").exists():
            lines.append(_row(name, base, run))
    lines += ["", "Bias of the slices, mean of y - p, and its size against the model without techniques:", ""]
    lines += [
        "| run | slice | bias [95%] | without | change of its size [95%] | rows |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("constraints low on the page", "everything"):
        run = out / name.replace(" ", "-")
        if LOW in study.families and (run / "summary.json").exists():
            lines += _slice_rows(name, study, base, run)
    lines += [
        "",
        "Variance of the bias over the buckets of the estimated CTR, against the model without:",
        "",
    ]
    for name in ("ranking", "ranking + constraints", "constraints by CTR", "everything"):
        run = out / name.replace(" ", "-")
        if (run / "summary.json").exists():
            lines.append(f"- {name}: {_variance_ratio(base, run)}")
    return lines


def _needed(study: Study, wanted: Sequence[str]) -> set[str]:
    """The teacher, where its sidecar or the sample is used."""
    used = json.dumps([study.variants.get(name, {}) for name in wanted])
    return {TEACHER} if study.recorded in used or study.sample in used else set()


def _train(study: Study, log: Path, run: Path, name: str, config: TrainConfig) -> None:
    """What is there already is not made again."""
    if name != TEACHER and (run / "summary.json").exists():
        return
    if name == TEACHER and study.sample in list_sidecars(log):
        return
    print(f"{log.name}: {name}", file=sys.stderr, flush=True)
    train(log, config, run, record=study.recorded if name == TEACHER else None)
    if name == TEACHER:
        write_decisions(log, study.sample, parse_model(SamplingConfig, study.sampling, "sample"))


_HEAD = "| run | PerQueryAUC [95% of the difference] | logloss [95%] | calibration bias | rows learned | ms a step |"


def _row(name: str, base: Path, run: Path) -> str:
    summary = json.loads((run / "summary.json").read_text())
    share = summary["trained_rows"] / summary["trained_examples"]
    bias, low, high = summary["calibration_bias"], *summary["calibration_bias_ci95"]
    cells = [name]
    metrics = compare_runs(base, run).as_dict()["metrics"] if run != base else {}
    for metric in ("per_query_auc", "logloss"):
        text = f"{summary[metric]:.5f}"
        if metric in metrics:
            part = metrics[metric]
            ends = ", ".join(f"{end:+.5f}" for end in part["ci95"])
            text += f" {part['relative_percent']:+.2f}% ({part['difference']:+.5f} [{ends}])"
        cells.append(text)
    cells += [
        f"{bias:+.5f} [{low:+.5f}, {high:+.5f}]",
        f"{100 * share:.1f}%",
        f"{summary['step_ms_p50']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _sums(run: Path, family: str) -> dict[int, np.ndarray]:
    """Of each slice the weight, weighted label and weighted prediction by query bucket, float64 [BUCKETS, 3]."""
    metrics: ProgressiveMetrics = read_run(run).metrics
    arrays = metrics.slices[f"constraint:{family}"].to_arrays()
    slices: dict[int, np.ndarray] = {}
    for key, sums in zip(arrays["key"], arrays["sums"].T, strict=True):
        slices.setdefault(int(key // BUCKETS), np.zeros((BUCKETS, 3)))[key % BUCKETS] = sums
    return {index: sums for index, sums in slices.items() if index >= 0}


def _biases(sums: np.ndarray) -> Estimate:
    """Bias [S] of slices from sums [S, BUCKETS, 3]."""
    by_bucket = np.moveaxis(sums, 0, 1)
    replicates = np.tensordot(deletions(), by_bucket, axes=1)
    total = by_bucket.sum(axis=0)
    return Estimate(
        point=(total[:, 1] - total[:, 2]) / total[:, 0],
        replicates=(replicates[..., 1] - replicates[..., 2]) / replicates[..., 0],
        occupied=np.broadcast_to(by_bucket[..., 0] > 0, replicates.shape[:2]),
    )


def _magnitude(estimate: Estimate) -> Estimate:
    return Estimate(
        np.sign(estimate.point) * estimate.point,
        np.sign(estimate.point) * estimate.replicates,
        estimate.occupied,
    )


def _slice_rows(name: str, study: Study, base: Path, run: Path) -> list[str]:
    before, after = _sums(base, LOW), _sums(run, LOW)
    rows = []
    for place, position in enumerate(study.families[LOW]["features"]["position"]):
        index = 2 * place + 1  # of each position the bucket of the higher estimated CTR
        old, new = (_biases(part[index][np.newaxis]) for part in (before, after))
        low, high = (float(end[0]) for end in new.interval())
        change = difference(_magnitude(old), _magnitude(new))
        ends = [float(end[0]) for end in change.interval()]
        relative = 100 * float(change.point[0]) / abs(float(old.point[0]))
        rows.append(
            f"| {name} | position {position}, estimated CTR >= 0.15 | {new.point[0]:+.4f} [{low:+.4f}, {high:+.4f}] "
            f"| {old.point[0]:+.4f} | {relative:+.0f}% ({change.point[0]:+.4f} [{ends[0]:+.4f}, {ends[1]:+.4f}]) "
            f"| {after[index][:, 0].sum():.0f} |"
        )
    return rows


_FEWEST = 32
"""Query buckets that a slice must have rows in."""


def _variance_ratio(base: Path, run: Path) -> str:
    before, after = _sums(base, CTR), _sums(run, CTR)
    # A bucket with rows of a few queries only has no bias to speak of.
    common = [
        index
        for index in sorted(before.keys() & after.keys())
        if min((part[index][:, 0] > 0).sum() for part in (before, after)) >= _FEWEST
    ]
    estimates = [_biases(np.stack([part[index] for index in common])) for part in (before, after)]
    logs = [
        Estimate(
            np.log(np.var(estimate.point)),
            np.log(np.var(estimate.replicates, axis=1)),
            estimate.occupied.any(axis=1),
        )
        for estimate in estimates
    ]
    ratio = difference(*logs)
    low, high = ratio.interval()
    shown = ", ".join(f"{bias:+.4f}" for bias in estimates[1].point)
    return f"{np.exp(ratio.point):.2f} [{np.exp(low):.2f}, {np.exp(high):.2f}]  ({shown})"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/techniques"), help="where logs and runs are kept"
    )
    parser.add_argument(
        "--mind", type=Path, help="a log made by `ctr ingest mind`; sidecars are written beside it"
    )
    parser.add_argument("--examples", type=int, default=2_000_000, help="of the simulated log")
    parser.add_argument("--seed", type=int, default=1, help="of all runs but `other seed`")
    parser.add_argument(
        "--variants", nargs="+", metavar="NAME", help="these alone, beside the base: ranking teacher"
    )
    parser.add_argument("--only", choices=("simulated", "mind"), help="one of the two")
    parser.add_argument("--report", action="store_true", help="compute nothing, print what is there")
    arguments = parser.parse_args(argv)
    texts = []
    if arguments.only != "mind":
        log = arguments.out / f"log-{arguments.examples}"
        if not arguments.report:
            simulate(SimulatorConfig(examples=arguments.examples, seed=7, drift=0.03), log)
        texts.append(
            ("Simulated log", simulated_study(arguments.seed), log, f"simulated-{arguments.examples}")
        )
    if arguments.mind is not None and arguments.only != "simulated":
        texts.append(("MIND", mind_study(arguments.seed), arguments.mind, "mind"))
    for title, study, log, name in texts:
        folder = arguments.out / f"{name}-seed-{arguments.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        print(f"## {title}\n")
        lines = run_study(study, log, folder, arguments.seed, arguments.variants, not arguments.report)
        print("\n".join(lines), flush=True)
        print()


if __name__ == "__main__":
    main()
