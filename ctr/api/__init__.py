"""Functions of ``import ctr``, each with the result of the command of the same name.

Bad input raises ``ctr.io.errors.InputError``, with the message of the command.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctr.api.frames import Columns, Source, compare_predictions, read_predictions, table_file
from ctr.io.errors import InputError
from ctr.loading import load_tensorflow


def __getattr__(name: str) -> Any:
    # It loads TensorFlow.
    if name != "Scorer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load_tensorflow()
    from ctr.serving.scorer import Scorer

    return Scorer


def ingest(
    table: Source,
    log: Path | str,
    *,
    mapping: Path | str | Mapping[str, Any] | None = None,
    label: str | None = None,
    time: str | None = None,
    query: str | None = None,
    session_gap: str | None = None,
    weight: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> dict[str, Any]:
    """Makes an example log from a table: ``ctr ingest table``, or with ``label`` the first steps of ``ctr quickstart``.

    ``table`` is a CSV, TSV, JSON lines or Parquet file, or a directory of such files; or a frame of pandas, polars or
    Arrow, whose rows are those of a file ``frame.parquet``. ``mapping`` is a mapping file or its keys. Without it,
    ``label`` is required, a column or a rule such as ``rating>=4``; the other roles are optional, and the features are
    inferred, as in ``ctr quickstart``. Returns the command's ``--json`` result; with ``label`` also ``mapping``, the
    text of the mapping file. Raises InputError if the table or mapping is unreadable, or too many rows are malformed.

    Example:
        >>> import pyarrow
        >>> rows = pyarrow.table({"clicked": [0, 1, 0, 1] * 9, "ad": ["a", "b", "b", "c"] * 9})
        >>> ctr.ingest(rows, "other", label="clicked")["clicks"]
        18
    """
    from ctr.config import parse_model
    from ctr.data.mapping import Mapping as TableMapping
    from ctr.data.mapping import load_mapping
    from ctr.io.documents import parse_yaml
    from ctr.pipelines.infer.dialect import find_table
    from ctr.pipelines.infer.draft import mapping_text
    from ctr.pipelines.infer.roles import Options
    from ctr.quickstart import draft_table

    roles = Options(label, time, query, session_gap, weight, tuple(drop), tuple(keep))
    if mapping is not None and roles != Options():
        raise InputError("mapping says what the columns are: label and the other roles do not go with it")
    result: dict[str, Any] = {}
    with table_file(table) as path:
        if mapping is None:
            draft = draft_table(path, find_table(path, label), roles)
            result["mapping"] = mapping_text(draft, path.name)
            mapping = parse_yaml(result["mapping"])
        if isinstance(mapping, Path | str):
            chosen = load_mapping(Path(mapping))
        else:
            chosen = parse_model(TableMapping, mapping, "mapping")
        if any(feature.kind == "text" for feature in chosen.features):
            load_tensorflow()
        from ctr.pipelines.tables.ingest import ingest

        return {**ingest(chosen, [path], Path(log)).as_dict(), **result}


def train(
    log: Path | str, run: Path | str, config: Path | str | Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Trains in one pass over a log, or resumes the run, as ``ctr train LOG --out RUN --config CONFIG`` does.

    ``config`` is a file of settings or its keys; None: the defaults. Returns the content of ``summary.json``: metrics
    with intervals, counts, times and hashes. Raises InputError if the log, the configuration or the run is unsuitable.

    Example:
        >>> ctr.train("log", "run", {"model": {"experts": ["linear"]}})["examples"]
        400
    """
    from ctr.config import load_model, parse_model
    from ctr.training.config import TrainConfig

    if config is None or isinstance(config, Path | str):
        settings = load_model(TrainConfig, None if config is None else Path(config), "config")
    else:
        settings = parse_model(TrainConfig, dict(config), "config")
    load_tensorflow()
    from ctr.serving.export import export_from_run
    from ctr.training.session import train

    return train(log, settings, run, exporter=export_from_run)


def compare(run_a: Path | str, run_b: Path | str) -> dict[str, Any]:
    """Compares two runs over the same log, as ``ctr compare RUN_A RUN_B --json`` does.

    Returns ``results``, rows of metric, run, slice, window, value and 95% interval, also of the paired differences, B -
    A; ``verdicts`` by metric; and the differences of configurations. Raises InputError if a directory is not a run, or
    the runs have different examples.

    Example:
        >>> ctr.compare("a", "b")["examples"]
        400
    """
    from ctr.eval.run_comparison import compare_runs

    return compare_runs(Path(run_a), Path(run_b)).as_dict()


def report(*runs: Path | str, out: Path | str | None = None) -> Path:
    """Writes one HTML file with the plots of runs, as ``ctr report RUN ...`` does, and returns its path.

    ``out``: by default ``report.html`` in the first run. Raises InputError without a run, or if ``out`` is no report.

    Example:
        >>> ctr.report("a", "b").as_posix()
        'a/report.html'
    """
    from ctr.eval.report import write_report

    return write_report([Path(run) for run in runs], None if out is None else Path(out))


def export(run: Path | str, folder: Path | str, checkpoint: int | None = None) -> Path:
    """Writes a run's model as a SavedModel, as ``ctr export RUN --out FOLDER`` does, and returns the version's path.

    ``checkpoint``: the position of a checkpoint, by default the newest. Raises InputError if the run or the checkpoint
    does not exist, or ``folder`` has another model under this version, or its newest version is of another run.

    Example:
        >>> ctr.Scorer(ctr.export("a", "exports")).predict({"ad": ["a1", "a2"]}).shape
        (2,)
    """
    load_tensorflow()
    from ctr.serving.export import export_run

    return export_run(run, folder, checkpoint).path


def evaluate(
    frame: Source,
    *,
    label: str,
    prediction: str | None = None,
    logit: str | None = None,
    query: str | None = None,
    weight: str | None = None,
    slice: str | Sequence[str] = (),
    against: Source | None = None,
) -> dict[str, Any]:
    """Measures the predictions of any model, or compares two models, as ``ctr evaluate FILE --label ...`` does.

    Args:
        frame: N rows: a CSV, TSV or Parquet file, or a frame of pandas, polars or Arrow.
        label: the column of the labels, 0 or 1.
        prediction: the column of the probabilities; one of it and ``logit`` is required.
        logit: the column of the logits.
        query: the column of the queries, values of any type; None: each row is a query, and there is no PerQueryAUC.
        weight: the column of the weights; None: each row counts once.
        slice: columns; calibration, logloss and AUC are also measured for each of their values.
        against: predictions of the same rows in the same order, in columns of the same names, to compare with
            ``frame``, which is the baseline.

    Returns:
        Metrics with 95% intervals over queries, as in ``summary.json``: ``auc``, ``per_query_auc``, ``logloss``,
        ``calibration_ratio`` and others. With ``against``, ``a`` and ``b`` hold the metrics of each side, ``metrics``
        the paired differences b - a, and ``prediction_difference`` the mean relative difference of the predictions.

    Raises:
        InputError: columns are missing, or a value is not allowed; it names the columns, or the row.

    Example:
        >>> import pyarrow
        >>> rows = pyarrow.table({"y": [1, 0, 0], "p": [0.6, 0.3, 0.6], "page": ["x", "x", "z"]})
        >>> ctr.evaluate(rows, label="y", prediction="p", query="page")["auc"]
        0.75
    """
    slices = (slice,) if isinstance(slice, str) else tuple(slice)
    columns = Columns(label, prediction, logit, query, weight, slices)
    a = read_predictions(frame, columns)
    if against is None:
        return a.summary(a.metrics())
    return compare_predictions(a, read_predictions(against, columns))
