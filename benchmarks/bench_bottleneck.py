"""What bottlenecks in the deep layers save of a training step (FF 3.1), and what they cost in accuracy.

    python benchmarks/bench_bottleneck.py [--ranks 128,128,0 ...] [--batch 4096] [--rounds 12] [--json]
    python benchmarks/bench_bottleneck.py --accuracy LOG [--config YAML] [--seeds 1 2] [--ranks 128,128,0]

The reference model: 26 features of 100,000 buckets and width 16, three crosses of rank 64, layers of 1024, 512 and
256; ids by Zipf's law. Models with and without bottlenecks take turns on the same batches in one process, in float32
and in bfloat16, their dense weights learned by AdaGrad or by Shampoo; a ratio is the median over the rounds, with its
quartiles. FLOPs are those of the products of the dense weights, 6 for each weight and row: forward, and backward to
inputs and weights.

With ``--accuracy`` the model of a configuration (the default: the reference model) is trained on a log with and
without, and PerQueryAUC is compared, paired by queries. The same command again goes on after the last finished run.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reproducibility_report import mean_estimate

from ctr.config import parse_model, read_yaml
from ctr.data.batches import set_rejects_apart
from ctr.data.log import log_sha256, read_manifests
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.eval.intervals import difference
from ctr.eval.run_files import read_run
from ctr.pipelines.replay_plan import settings_key
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.step_times import TimedModel, by_turns

FEATURES, BUCKETS, WIDTH, ZIPF = 26, 100_000, 16, 1.2
BATCHES = 10
"""Batches of a turn, as many as the steps from one collection of Shampoo's statistics to the next."""
RANKS = ((256, 256, 0), (128, 128, 0), (64, 64, 0), (0, 128, 0), (128, 128, 64))
"""For each layer the rank of its bottleneck, 0 for none."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": {"start_preconditioning_step": None, "momentum": 0},
    # As it is after the first few hundred steps, in which training waits for more frequent roots.
    "shampoo": {"early_growth": 0},
}
PLAIN = "none"


def reference_schema() -> Schema:
    """The features of the reference model."""
    features = [
        {"kind": "category", "name": f"c{index}", "source": f"c{index}", "buckets": BUCKETS, "width": WIDTH}
        for index in range(FEATURES)
    ]
    return parse_model(Schema, {"features": features}, "benchmark")


def reference_rows(batch: int, random: np.random.Generator) -> Rows:
    """A batch of queries of one row each; of every feature the frequent ids are others."""
    rank = np.minimum(random.zipf(ZIPF, [batch, FEATURES]), 2**40)
    ids = (rank * (2 * np.arange(FEATURES) + 1)) % BUCKETS
    number, ones = np.arange(batch, dtype=np.int64), np.ones(batch, np.float32)
    return Rows(
        query_time=number,
        timestamp=number,
        query_id=number,
        example_id=number,
        label=(random.random(batch) < 0.2).astype(np.float32),
        train_weight=ones,
        metric_weight=ones,
        ids=ids.astype(np.int32),
        fault=np.zeros(batch, np.int8),
        position=number,
        multivalent={},
    )


def title(ranks: Sequence[int]) -> str:
    """How a setting is called."""
    return ",".join(map(str, ranks)) if any(ranks) else PLAIN


def measure_steps(
    compute_dtype: str, optimizer: str, settings: Sequence[Sequence[int]], batch: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds, ratios and FLOPs of a step of the model without bottlenecks and of each setting."""
    schema, random = reference_schema(), np.random.default_rng(1)
    batches = [set_rejects_apart(reference_rows(batch, random)) for _ in range(BATCHES)]
    models = {}
    for ranks in ((), *settings):
        content = {
            "batch": {"rows": batch},
            "compute_dtype": compute_dtype,
            "model": {"deep": {"ranks": ranks}},
            "optimizer": {"dense": {"shampoo": OPTIMIZERS[optimizer]}},
        }
        models[title(ranks)] = TimedModel(parse_model(TrainConfig, content, "benchmark"), schema, batches)
    times = by_turns({name: model.seconds for name, model in models.items()}, PLAIN, rounds)
    matrices = {
        name: sum(int(np.prod(weight.shape)) for weight in model.state.dense if len(weight.shape) == 2)
        for name, model in models.items()
    }
    return {name: row | {"gigaflops": 6e-9 * matrices[name] * batch} for name, row in times.items()}


def steps_report(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The table."""
    lines = [
        "| dense weights | ranks | GFLOP a step | ms a step | less than without (quartiles) |",
        "|---|---|---|---|---|",
    ]
    for group, rows in results.items():
        for name, row in rows.items():
            less = [100 * (1 - row[key]) for key in ("ratio", "ratio_q75", "ratio_q25")]
            told = "" if name == PLAIN else f"{less[0]:.1f}% ({less[1]:.1f}, {less[2]:.1f})"
            lines.append(f"| {group} | {name} | {row['gigaflops']:.1f} | {row['step_ms']:.1f} | {told} |")
    return "\n".join(lines)


def measure_accuracy(
    log: Path, content: Mapping[str, Any], settings: Sequence[Sequence[int]], seeds: Sequence[int], out: Path
) -> list[dict[str, Any]]:
    """Metrics of the model without bottlenecks and of each setting, mean over seeds, and paired differences.

    Args:
        log: to train on.
        content: the configuration.
        settings: values of ``model.deep.ranks``.
        seeds: of the runs.
        out: where the runs are kept.
    """
    folder = out / log_sha256(read_manifests(log))[:12]
    runs: dict[str, list[Path]] = {}
    for ranks in ((), *settings):
        for seed in seeds:
            model = dict(content.get("model", {}))
            model["deep"] = {**model.get("deep", {}), "ranks": ranks}
            checkpoint = {"every_examples": 2**40, "keep": 1}
            changed = {**content, "seed": seed, "model": model, "checkpoint": checkpoint}
            config = parse_model(TrainConfig, changed, "configuration")
            run = folder / f"{title(ranks)}-seed-{seed}-{settings_key(config)}"
            if not (run / "summary.json").exists():
                train(log, config, run)
            runs.setdefault(title(ranks), []).append(run)
    estimates = {
        name: [read_run(run).metrics.estimates() for run in members] for name, members in runs.items()
    }
    rows = []
    for name, members in runs.items():
        row: dict[str, Any] = {"ranks": name}
        for metric in ("per_query_auc", "logloss"):
            own = [found[metric] for found in estimates[name]]
            plain = [found[metric] for found in estimates[PLAIN]]
            row[metric] = float(mean_estimate(own).point)
            row[f"{metric}_ci95"] = [float(end) for end in mean_estimate(own).interval()]
            change = mean_estimate([difference(a, b) for a, b in zip(plain, own, strict=True)])
            row[f"{metric}_change"] = float(change.point)
            row[f"{metric}_change_ci95"] = [float(end) for end in change.interval()]
        summaries = [read_run(run).summary for run in members]
        row["parameters_dense"] = summaries[0]["parameters_dense"]
        row["step_ms"] = float(np.mean([summary["step_ms_p50"] for summary in summaries]))
        rows.append(row)
    return rows


def accuracy_report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table."""
    lines = [
        "| ranks | PerQueryAUC [95%] | change [95%] | in the interval without | change of logloss [95%] "
        "| dense weights | ms a step |",
        "|" + "---|" * 7,
    ]
    low, high = rows[0]["per_query_auc_ci95"]
    for row in rows:
        value = row["per_query_auc"]
        cells = [row["ranks"], f"{value:.5f} {_interval(row['per_query_auc_ci95'], '.5f')}"]
        if row["ranks"] == PLAIN:
            cells += ["", "", ""]
        else:
            place = "below" if value < low else "above" if value > high else "yes"
            cells += [
                f"{row['per_query_auc_change']:+.5f} {_interval(row['per_query_auc_change_ci95'])}",
                place,
            ]
            cells.append(f"{row['logloss_change']:+.5f} {_interval(row['logloss_change_ci95'])}")
        cells += [f"{row['parameters_dense']:,}", f"{row['step_ms']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _interval(ends: Sequence[float], form: str = "+.5f") -> str:
    return "[" + ", ".join(format(end, form) for end in ends) + "]"


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", nargs="+", type=_ranks, default=RANKS, metavar="R,R,R", help="settings to try, 0: none"
    )
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each model")
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument(
        "--accuracy", type=Path, metavar="LOG", help="train on this log instead of timing steps"
    )
    parser.add_argument("--config", type=Path, help="YAML, for --accuracy")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="for --accuracy")
    parser.add_argument("--out", type=Path, default=Path("runs/bottleneck"), help="runs of --accuracy")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.accuracy is not None:
        content = read_yaml(arguments.config, "config") if arguments.config else {}
        rows = measure_accuracy(arguments.accuracy, content, arguments.ranks, arguments.seeds, arguments.out)
        print(json.dumps(rows, indent=1) if arguments.json else accuracy_report(rows))
        return
    results = {
        f"{compute_dtype}, {optimizer}": measure_steps(
            compute_dtype, optimizer, arguments.ranks, arguments.batch, arguments.rounds
        )
        for compute_dtype in arguments.dtypes
        for optimizer in arguments.optimizers
    }
    print(json.dumps(results, indent=1) if arguments.json else steps_report(results))


if __name__ == "__main__":
    main()
