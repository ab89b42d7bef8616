"""Model card of an exported model: what it predicts, from what it learned, how good it was, and what it is not for.

Markdown with the front matter that Hugging Face reads. Everything in it is computed from the run directory and the
model, none of it is written by hand or guessed, and it is the same for the same run: no time of its making is in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from ctr.config import Dumper
from ctr.eval import display
from ctr.eval.report.data_health import DataHealth, id_name, read_data_health
from ctr.eval.report.over_time import uses_event_time
from ctr.eval.report.shown_run import subject_of
from ctr.eval.run_files import METRICS, Run, read_default_slices, read_run, read_windows
from ctr.models.architecture import Architecture
from ctr.serving.calls import FILE as CALLS
from ctr.training.run.snapshot import Snapshot
from ctr.training.run.summary import calibration_text

_WORST = 5
_HEAVIEST = 20

_PAGE = """# {title}

{predicts}

License: not stated.

## Training data

{data}

## Model

{architecture}

{features}

## Metrics

Every example was scored before the model learned from it. So the metrics are those of the model as it was during the
pass, on data that was new to it; no later traffic was measured.

{metrics}

## Calibration

{calibration}

{slices}

## Use and limits

{limits}

## Calls

`{calls}`, beside this file, has calls that run as they are: with `curl`, by gRPC and inside Python.

## Versions and hashes

{versions}

`ctr receipt` hashes the predictions of the run, and `ctr verify` repeats it.
"""


def model_card(snapshot: Snapshot, described: Mapping[str, Any]) -> str | None:
    """Writes the card of the model at the end of a finished run's pass; None: the run has no results for this model.

    A checkpoint inside the pass has none: the results are of the whole pass. ``described``: the model's metadata.
    Raises InputError: a file of the run is damaged.
    """
    folder = snapshot.run_dir
    if not (folder / "summary.json").is_file():
        return None
    run = read_run(folder)
    if run.summary["log_rows"] != snapshot.examples or run.config_sha256 != described["config_sha256"]:
        return None
    windows, subject = read_windows(folder), subject_of(folder)
    period = _period(windows)
    label = f"the label `{subject.label}` is positive" if subject.label else "the label is positive"
    table = f" of {subject.table}" if subject.table else ""
    page = _PAGE.format(
        title=f"Click-through-rate model{table}, version {snapshot.examples}",
        predicts=f"Predicts for each row{table} the probability that {label}, here called a click."
        + (f" It learned from {period}." if period else ""),
        data=_data(run, subject.table, period),
        architecture=_architecture(snapshot, run),
        features=_features(snapshot),
        metrics=_metrics(run, windows),
        calibration=f"P{calibration_text(run.summary)[1:]}.",
        slices=_slices(run, read_data_health(folder)),
        limits=_limits(snapshot, run, period),
        calls=CALLS,
        versions=_versions(run, described),
    )
    front = {
        "library_name": "clicktrain",
        "tags": ["click-through-rate", "recommendation", "tensorflow", "tabular"],
        "metrics": ["roc_auc", "log_loss", "per_query_auc", "normalized_entropy", "calibration"],
    }
    return f"---\n{yaml.dump(front, Dumper=Dumper, sort_keys=False)}---\n\n{page}"


def _period(windows: pd.DataFrame) -> str:
    """Range of event times; empty where the log's times are no dates."""
    if windows.empty or not uses_event_time([windows]):
        return ""
    times = pd.to_datetime([windows["window_begin"].min(), windows["window_end"].max()], unit="us")
    return " to ".join(f"{time:%Y-%m-%d %H:%M}" for time in times) + " UTC"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _data(run: Run, table: str, period: str) -> str:
    summary = run.summary
    deciles = [row for row in summary["calibration_buckets"] if row["weight"]]
    weight = sum(row["weight"] for row in deciles)
    clicks = sum(row["weight"] * row["mean_label"] for row in deciles)
    rows = [
        ("log", table or "not stated"),
        ("period", period or "the times of the log are no dates"),
        ("rows", f"{summary['examples']:,}"),
        ("rows learned from", f"{summary['trained_rows']:,}"),
        ("queries", f"{summary['queries']:,}"),
        ("click rate, weighted", display.fixed(clicks / weight if weight else None, 4)),
        ("rejected rows", f"{summary['rejected_rows']:,}"),
    ]
    return _table(("", ""), rows)


def _architecture(snapshot: Snapshot, run: Run) -> str:
    dense, embedding = (run.number(f"parameters_{part}") for part in ("dense", "embedding"))
    optimizer = snapshot.config.optimizer
    return (
        f"{_network(snapshot.architecture)}\n"
        f"{display.amount(embedding)} parameters in tables of ids and {display.amount(dense)} others, computed in "
        f"{snapshot.compute_dtype}; learned by {optimizer.embeddings.rule} (tables) and {optimizer.dense.rule}."
    )


def _network(shape: Architecture) -> str:
    if not shape.has_network:
        return "A logistic regression: a linear weight for each id."
    layers = []
    if shape.cross_layers:
        rank = f"of rank {shape.cross_rank}" if shape.cross_rank else "with full matrices"
        layers.append(f"{shape.cross_layers} crosses {rank}")
    if shape.deep_units:
        units = ", ".join(map(str, shape.deep_units))
        layers.append(f"deep layers of {units} units ({shape.activation})")
    more = [
        *([f"{shape.components} components"] if shape.components > 1 else []),
        *(["factorized into Quality and UI"] if shape.factors is not None else []),
        *(["weights of pairs of features"] if shape.pairs else []),
    ]
    if shape.network is not None:
        layers = [
            f"{type(shape.network).__name__}, a network of another package, of {shape.deep_units[0]} units"
        ]
    kind = "DCNv2: " if shape.network is None else ""
    return f"{kind}{' and '.join(layers)} over embeddings, with linear weights{''.join(f', {one}' for one in more)}."


def _features(snapshot: Snapshot) -> str:
    kinds = {feature.name: feature.kind for feature in snapshot.schema.features}
    rows = []
    for one in (one for layout in snapshot.layouts for one in layout.features if one.of is None):
        own = f"{snapshot.ids.get(one.name, 0):,}, each its own" if one.growing else f"{one.buckets:,} in all"
        rows.append((one.name, kinds.get(one.name, "category"), own, str(one.width), one.tower))
    return _table(("feature", "kind", "ids", "width of embedding", "tower"), sorted(rows))


def _metrics(run: Run, windows: pd.DataFrame) -> str:
    last = windows.iloc[-1] if len(windows) else None
    rows = []
    for metric in METRICS:
        whole = display.Number(run.number(metric), *run.summary[f"{metric}_ci95"])
        cells = [display.METRIC_TITLES[metric], whole.whole()]
        if last is not None:
            cells.append(
                display.Number(*(float(last[f"{metric}{end}"]) for end in ("", "_low", "_high"))).whole()
            )
        rows.append(cells)
    heads = ["metric, with 95% interval", "whole pass"]
    if last is not None:
        heads.append(f"last window ({int(last['window_examples']):,} rows)")
    return _table(heads, rows)


def _slices(run: Run, health: DataHealth) -> str:
    """The slices that are further from calibrated than chance allows, the furthest first."""
    states = read_default_slices(run.folder) or run.metrics.slices
    grown = {feature.name for feature in health.features if feature.buckets is None}
    found, measured = [], 0
    for feature, state in states.items():
        heaviest = state.result().sort_values(["weight", "id"], ascending=[False, True]).head(_HEAVIEST)
        measured += len(heaviest)
        names = health.slice_values.get(feature, {})
        for row in heaviest.to_dict("records"):
            ratio = display.Number(*(row[f"calibration_ratio{end}"] for end in ("", "_low", "_high")))
            if ratio.low is None or ratio.high is None or not (ratio.low > 1 or ratio.high < 1):
                continue
            name = id_name(names.get(int(row["id"])), int(row["id"]), feature in grown)
            # How far from 1 the nearer end of the interval is, as a factor.
            excess = max(ratio.low, 1 / ratio.high if ratio.high > 0 else float("inf"))
            cells = (
                feature,
                name,
                display.amount(row["weight"]),
                display.fixed(row["mean_label"], 4),
                ratio.whole(2),
            )
            found.append((-excess, cells))
    if not measured:
        return "Calibration was measured for no slice."
    summed_up = (
        f"Of the {measured} slices that were measured ({', '.join(states)}), {len(found)} are not calibrated"
    )
    if not found:
        return f"{summed_up}, by their 95% intervals."
    heads = ("feature", "value", "weight", "click rate", "predicted / actual clicks")
    worst = _table(heads, [cells for _, cells in sorted(found)[:_WORST]])
    return f"{summed_up}, by their 95% intervals, where one in twenty is due to chance. The furthest off:\n\n{worst}"


def _limits(snapshot: Snapshot, run: Run, period: str) -> str:
    growing = [one.name for layout in snapshot.layouts for one in layout.features if one.growing]
    lines = [
        "Made for: the click probability of rows that come from where the log came from, with the same features.",
        f"The model has learned nothing after {period.partition(' to ')[2]}: predictions age as traffic changes."
        if period
        else "The model has learned nothing after the end of the log: predictions age as traffic changes.",
    ]
    if growing:
        lines.append(
            f"A value without a row of its own, such as one that was never seen, uses a row that several share "
            f"({', '.join(f'`{name}`' for name in growing)})."
        )
    if any(not one.growing for layout in snapshot.layouts for one in layout.features if one.of is None):
        lines.append(
            "Where the number of ids is fixed, values may share an id, and a value never seen shares one."
        )
    if run.summary["per_query_auc_of_sample"]:
        lines.append("PerQueryAUC is that of the sampled queries, not an estimate of full traffic's.")
    if warning := run.summary.get("calibration_warning"):
        lines.append(f"Warning of the run: {warning}.")
    lines.append("Whether the log has personal data, and for whom the model may be used, is not stated.")
    return "\n".join(f"- {line}" for line in lines)


def _versions(run: Run, described: Mapping[str, Any]) -> str:
    versions = [(name, str(version)) for name, version in described["versions"].items()]
    hashes = [
        ("log, SHA-256", f"`{run.log_sha256}`"),
        ("configuration, SHA-256", f"`{run.config_sha256}`"),
        ("weights of this model, SHA-256", f"`{described['weights']}`"),
    ]
    return _table(("", ""), versions + hashes)
