"""Sampling of a log: the decisions as a sidecar, or the sampled examples as a smaller log (FF 3.3).

::

    LOG/sidecars/NAME/sampling.yaml   the configuration behind the decisions in this folder
    LOG2/sampling.yaml                the sampling that produced this log, and earlier ones

Either file is created before anything beside it, so that one name, or one smaller log, never mixes the decisions of
two configurations. Partitions are published one by one: the same command completes an interrupted sampling, and
samples partitions that have been added to LOG since.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import StrictModel, differing_keys, dump_yaml, load_model
from ctr.data.joined_sidecar import JoinedSidecar, MissingValues
from ctr.data.log import RECORD, Manifest, check_log, create_log, list_partitions, read_manifests, read_schema
from ctr.data.reader import rows_of_table
from ctr.data.sampling import LowVisibility, SamplingConfig, Strata, condition_names, decide
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition, read_shard, shard_schema
from ctr.data.sidecar import (
    align_sidecar,
    list_sidecars,
    new_sidecar_folder,
    read_sidecar_partition,
    sidecar_folder,
    write_sidecar_partition,
)
from ctr.data.stream import TEACHER_LOGIT, Selection, read_selection
from ctr.data.times import format_time
from ctr.io.errors import InputError, joined
from ctr.io.files import create_exclusively

Progress = Callable[[int], None]

_WEIGHTS = ("train_weight", "metric_weight")


@dataclass
class Count:
    """Counts of examples that meet a condition, before and after sampling; ``weight_sum`` estimates ``rows``."""

    rows: int = 0
    kept: int = 0
    weight_sum: float = 0.0

    @property
    def kept_fraction(self) -> float | None:
        return self.kept / self.rows if self.rows else None

    def add(self, mask: np.ndarray, selected: np.ndarray, weight: np.ndarray) -> None:
        """Adds the examples where ``mask`` holds; all arguments are [N], ``weight`` is 0 where not ``selected``."""
        self.rows += int(np.count_nonzero(mask))
        self.kept += int(np.count_nonzero(mask & selected))
        self.weight_sum += float(weight[mask].sum(dtype=np.float64))


class SamplingResult:
    """Counts of a sampling; rows outside the time range, and faulty ones within, are in no condition's counts."""

    def __init__(self, name: str, output: Path, conditions: Sequence[str], rows: int) -> None:
        self.name, self.output, self.rows = name, output, rows
        self.partitions = self.outside_time_range = self.faulty = 0
        self.conditions = {condition: Count() for condition in conditions}
        self.sidecars: Counter[str] = Counter()

    def as_dict(self) -> dict[str, Any]:
        counts = self.conditions.items()
        conditions = {name: {**vars(count), "kept_fraction": count.kept_fraction} for name, count in counts}
        content = {**vars(self), "output": str(self.output), "sidecars": dict(self.sidecars)}
        return {**content, "conditions": conditions}

    def as_text(self) -> str:
        lines = [f"{self.output}: {self.rows} rows in, {self.partitions} partitions written"]
        lines.append(f"  {'':<16}{'rows':>12}{'kept':>12}{'kept share':>12}{'weight sum':>16}")
        for name, count in self.conditions.items():
            share = "-" if count.kept_fraction is None else f"{count.kept_fraction:.4f}"
            lines.append(f"  {name:<16}{count.rows:>12}{count.kept:>12}{share:>12}{count.weight_sum:>16.1f}")
        if self.outside_time_range:
            lines.append(f"  dropped: {self.outside_time_range} rows outside the time range")
        if self.faulty:
            lines.append(f"  dropped: {self.faulty} faulty rows")
        lines += [f"  sidecar {name}: {count} partitions copied" for name, count in self.sidecars.items()]
        return "\n".join(lines)


class AppliedSampling(StrictModel):
    """A sampling that was applied to the rows and weights of a log."""

    name: str
    config: SamplingConfig


class SampledLog(AppliedSampling):
    """Content of a smaller log's ``sampling.yaml``: its sampling, and the samplings of its source."""

    earlier: tuple[AppliedSampling, ...] = ()


def applied_samplings(log: Path) -> tuple[AppliedSampling, ...]:
    """Lists the samplings that were applied to produce a log, in order; none for a log that is not sampled."""
    path = log / RECORD
    if not path.exists():
        return ()
    record = load_model(SampledLog, path, "record of sampling")
    return (*record.earlier, AppliedSampling(name=record.name, config=record.config))


def adopt_record(path: Path, record: StrictModel) -> None:
    """Creates the file of a sampling. Raises InputError if it exists with other content."""
    if create_exclusively(path, dump_yaml(record).encode()):
        return
    before = load_model(type(record), path, "record of sampling")
    old, new = (content.model_dump(mode="json") for content in (before, record))
    differences = differing_keys(old, new)
    if differences:
        raise InputError(
            f"{path.parent} was started with another configuration ({joined(differences)}): "
            "use that one to complete it, or another name or output directory"
        )


def low_visibility_ids(schema: Schema, rule: LowVisibility) -> np.ndarray:
    """Computes the ids of a rule's values. Raises InputError for an unknown feature or value."""
    # Nothing else here needs TensorFlow, which takes seconds to load.
    from ctr.data.ids.values import feature_ids

    try:
        return feature_ids(schema, rule.feature, rule.values)
    except InputError as error:
        raise InputError(f"uninformative.low_visibility: {error}") from None


def _stratum_column(log: Path, schema: Schema, config: SamplingConfig) -> int | None:
    name = config.stratify_by
    if name is None:
        return None
    if name not in schema.single_ids:
        allowed = ", ".join(schema.single_ids) or "none, the log has no single-valued feature"
        raise InputError(f"stratify_by: {name} is not a single-valued feature of {log}; allowed: {allowed}")
    return schema.single_valued.index(name)


@dataclass(frozen=True)
class _Source:
    log: Path
    schema: Schema
    manifests: Sequence[Manifest]
    config: SamplingConfig
    teacher: JoinedSidecar | None
    low_visibility: tuple[int, np.ndarray] | None  # column of the id matrix, ids
    stratum: int | None  # column of the id matrix
    strata: Strata  # advance with the walk
    progress: Progress


def _open_source(log: Path, config: SamplingConfig, progress: Progress | None) -> _Source:
    schema, manifests = read_schema(log), read_manifests(log)
    if not any(config.time_range.selects(manifest) for manifest in manifests):
        reach = "it has no partition"
        if manifests:
            first, last = format_time(manifests[0].start), format_time(manifests[-1].end)
            reach = f"its partitions reach from {first} to {last}"
        raise InputError(f"{log} has nothing inside time_range: {reach}")
    teacher = low_visibility = None
    rule = config.uninformative
    if rule is not None and rule.low_visibility is not None:
        ids = low_visibility_ids(schema, rule.low_visibility)
        low_visibility = schema.single_valued.index(rule.low_visibility.feature), ids
    if config.by_teacher is not None:
        _, recorded = config.by_teacher
        teacher = JoinedSidecar(recorded.log or log, recorded.teacher, ["logit"])
    stratum = _stratum_column(log, schema, config)
    strata, progress = Strata(config.salt), progress or (lambda count: None)
    source = _Source(log, schema, manifests, config, teacher, low_visibility, stratum, strata, progress)
    if teacher is not None:
        missing = MissingValues()
        for rows in read_selection(log, schema, manifests, Selection(config.time_range, teacher=teacher)):
            missing.add(rows, rows.fault == 0, rows.joined[TEACHER_LOGIT])
            source.progress(len(rows))
        if missing.missing:
            raise InputError(f"teacher {recorded.teacher} has {missing.describe()}")
    return source


def _refuse_late(source: _Source, folder: Path, decided: Callable[[Manifest], bool]) -> None:
    """Raises InputError if a new partition precedes a decided one, whose stratified decisions would change."""
    if source.stratum is None:
        return
    late = None
    for manifest in _selected(source):
        if not decided(manifest):
            # A partition without rows changes nothing.
            late = late or (manifest if manifest.rows else None)
        elif late is not None:
            raise InputError(
                f"{source.log}: the partition [{late.start}, {late.end}) was added before others that are sampled, "
                f"and with stratify_by it changes which of their rows are kept: remove {folder}, or use another name"
            )


def _refuse_late_decisions(source: _Source, folder: Path) -> None:
    _refuse_late(source, folder, lambda manifest: (folder / f"{manifest.name}.json").is_file())


def _selected(source: _Source) -> list[Manifest]:
    return [manifest for manifest in source.manifests if source.config.time_range.selects(manifest)]


@dataclass(frozen=True)
class _Decided:
    """A shard's table and the decisions on its N rows; faulty rows and rows outside the range are dropped."""

    table: pa.Table
    keep_probability: np.ndarray  # float32
    selected: np.ndarray  # bool
    weight: np.ndarray  # float32


def _decided_shards(source: _Source, manifest: Manifest, result: SamplingResult) -> Iterator[_Decided]:
    for entry in manifest.shards:
        table = read_shard(source.log, entry, source.schema)
        rows = rows_of_table(table, source.schema, 0)
        inside = source.config.time_range.contains(rows.query_time)
        good = inside & (rows.fault == 0)
        result.outside_time_range += int(np.count_nonzero(~inside))
        result.faulty += int(np.count_nonzero(inside & ~good))
        rows = rows.keep(good)
        logit = low_visibility = None
        if source.teacher is not None:
            logit = source.teacher.at(rows.query_time, rows.example_id)["logit"]
        if source.low_visibility is not None:
            column, ids = source.low_visibility
            low_visibility = np.isin(rows.ids[:, column], ids)
        keep = None
        if source.stratum is not None:
            keep = partial(source.strata.keep, rows.ids[:, source.stratum].astype(np.int64))
        columns = rows.example_id, rows.query_time, rows.label
        decisions = decide(source.config, *columns, logit, low_visibility, keep)
        probability, selected, weight = (np.zeros(len(good), kind) for kind in (np.float32, bool, np.float32))
        probability[good] = decisions.keep_probability
        selected[good] = decisions.kept
        weight[good] = decisions.weight
        for name, mask in decisions.conditions.items():
            result.conditions[name].add(mask, decisions.kept, decisions.weight)
        source.progress(entry.rows)
        yield _Decided(table, probability, selected, weight)


def _empty_result(name: str, output: Path, source: _Source) -> SamplingResult:
    rows = sum(manifest.rows for manifest in source.manifests)
    return SamplingResult(name, output, condition_names(source.config), rows)


def write_decisions(
    log: Path, name: str, config: SamplingConfig, progress: Progress | None = None
) -> SamplingResult:
    """Writes the decisions on all rows of a log as the sidecar ``name``.

    Its columns: ``example_id``, ``weight`` (float32), ``keep_probability`` (float32) and ``kept`` (bool). ``progress``
    is called with the number of rows read since its last call; all rows are read once, and rows in the time range
    once more if a teacher's recordings are checked first. Raises InputError if the name is taken by another
    configuration or another kind of sidecar, the teacher lacks values, a feature or value is unknown, the time range
    is empty, or the log is damaged.
    """
    folder = _check_name(log, name)
    _check_salt(log, config)
    source = _open_source(log, config, progress)
    _refuse_late_decisions(source, folder)
    adopt_record(folder / RECORD, config)
    result = _empty_result(name, folder, source)
    for manifest in source.manifests:
        kinds = (np.int64, np.float32, np.float32, np.bool_)
        ids, weight, probability, selected = ([np.zeros(0, kind)] for kind in kinds)
        for shard in _decided_shards(source, manifest, result):
            ids.append(shard.table.column("example_id").to_numpy())
            weight.append(shard.weight)
            probability.append(shard.keep_probability)
            selected.append(shard.selected)
        columns = {"example_id": ids, "weight": weight, "keep_probability": probability, "kept": selected}
        table = pa.table({column: np.concatenate(parts) for column, parts in columns.items()})
        write_sidecar_partition(log, name, manifest, table)
        result.partitions += 1
    return result


def _check_name(log: Path, name: str) -> Path:
    """Returns the folder of a sampling's decisions. Raises InputError for the name of another kind of sidecar."""
    folder = new_sidecar_folder(log, name)
    # The folder of a sidecar that was begun may have no partition yet.
    if folder.exists() and any(folder.iterdir()) and not (folder / RECORD).exists():
        raise InputError(f"{folder} holds something other than sampling decisions: use another name")
    return folder


def _check_salt(log: Path, config: SamplingConfig) -> None:
    for applied in applied_samplings(log):
        if applied.config.salt == config.salt:
            raise InputError(
                f"{log} was made by the sampling {applied.name} with the same salt {config.salt!r}: the same "
                "hashes would select its rows again and their weights would be wrong: use another salt"
            )


def write_sampled_log(
    log: Path, name: str, config: SamplingConfig, out: Path, progress: Progress | None = None
) -> SamplingResult:
    """Writes the sampled examples of a log as the log ``out``, their weights multiplied by the importance weight.

    It has the source's schema, its partitions within the time range, and its sidecars cut to the sampled rows.
    Decisions of samplings are not copied, because the weights of ``out`` already contain them. Raises InputError
    as ``write_decisions`` does, or if ``out`` is another log.
    """
    decisions = _check_name(log, name)
    schema = read_schema(log)
    check_log(out, schema)
    if out.resolve() == log.resolve() or (not (out / RECORD).exists() and list_partitions(out)):
        raise InputError(f"{out} is a log that was not made by sampling: use another output directory")
    if (decisions / RECORD).exists():
        adopt_record(decisions / RECORD, config)
    _check_salt(log, config)
    source = _open_source(log, config, progress)
    there = set(list_partitions(out))
    _refuse_late_decisions(source, decisions)
    _refuse_late(source, out, lambda manifest: (manifest.start, manifest.end) in there)
    create_log(out, schema)
    adopt_record(out / RECORD, SampledLog(name=name, config=config, earlier=applied_samplings(log)))
    selected = _selected(source)
    result = _empty_result(name, out, source)
    skipped = result.rows - sum(manifest.rows for manifest in selected)
    result.outside_time_range += skipped
    source.progress(skipped)
    sidecars = [other for other in list_sidecars(log) if not (sidecar_folder(log, other) / RECORD).exists()]
    for manifest in selected:
        faulty = result.faulty
        parts = [_kept_rows(shard) for shard in _decided_shards(source, manifest, result)]
        kept = pa.concat_tables([shard_schema(schema).empty_table(), *parts])
        # For a log that was itself sampled, the counts before all sampling stay recorded.
        counters = {"rows_before_sampling": manifest.rows, **manifest.counters}
        counters["faulty_rows_dropped"] = counters.get("faulty_rows_dropped", 0) + result.faulty - faulty
        times = manifest.start, manifest.end
        published = publish_partition(out, schema, *times, kept, counters, counts_pages=False)
        result.partitions += 1
        for other in sidecars:
            if (sidecar_folder(log, other) / f"{manifest.name}.json").is_file():
                table = read_sidecar_partition(log, other, manifest)
                where = f"{sidecar_folder(log, other)}, partition [{manifest.start}, {manifest.end})"
                ids = kept.column("example_id").to_numpy()
                write_sidecar_partition(out, other, published, align_sidecar(table, ids, where))
                result.sidecars[other] += 1
    return result


def _kept_rows(shard: _Decided) -> pa.Table:
    table = shard.table.filter(pa.array(shard.selected))
    for name in _WEIGHTS:
        at = table.column_names.index(name)
        weight = table.column(name).to_numpy() * shard.weight[shard.selected]
        table = table.set_column(at, table.schema.field(name), pa.array(weight))
    return table
