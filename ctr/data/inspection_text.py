"""Text of ``ctr inspect``: the summary of a log, and warnings about it."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from ctr.data.inspection import FeatureSummary, LogSummary, Span, TopId
from ctr.data.times import format_time
from ctr.eval.display import aligned, fingerprint

# Shares above which the text has a warning.
SHARED = 0.1
MISSING = 0.5
_TOP_SHOWN = 3
_MOST_NAMED = 5
_YEAR_1980_US = 315_532_800_000_000


def log_warnings(summary: LogSummary) -> list[str]:
    """Returns warnings about a log, a line each."""
    if not summary.rows:
        return ["the log has no rows"]
    return [*_row_warnings(summary), *_time_warnings(summary), *_feature_warnings(summary.features)]


def _row_warnings(summary: LogSummary) -> Iterator[str]:
    if summary.faulty_rows:
        yield (
            f"{_share(summary.faulty_rows / summary.rows)} of the rows ({summary.faulty_rows:,}) are faulty: a label "
            "is neither 0 nor 1, a weight is none, or an id lies outside its feature's buckets"
        )
    if summary.clicks in (0, summary.rows):
        yield f"all labels are {int(bool(summary.clicks))}: there is nothing to learn"
    elif not summary.ranked_queries:
        yield "no query has both a click and a non-click: PerQueryAUC will be empty"


def _time_warnings(summary: LogSummary) -> Iterator[str]:
    if summary.first is not None and summary.first < _YEAR_1980_US:
        yield (
            f"the first row is from {_time(summary.first)}: seconds read as milliseconds, for example, give 1970"
        )
    if summary.gaps:
        longest = max(summary.gaps, key=lambda gap: (gap.end - gap.start, -gap.start))
        yield (
            f"{_count(len(summary.gaps), 'gap')} between partitions, together "
            f"{_duration(sum(gap.end - gap.start for gap in summary.gaps))}; the longest: {_span(longest)}"
        )
    empty = [part for part in summary.partitions if not part.rows]
    if empty:
        yield f"{_count(len(empty), 'partition')} without rows, the first one from {_time(empty[0].start)}"


def _feature_warnings(features: Sequence[FeatureSummary]) -> Iterator[str]:
    for feature in features:
        if feature.ids == 0:
            yield f"feature {feature.name} has no value in any row"
            continue
        if feature.ids == 1 and feature.missing == 0:
            yield f"feature {feature.name} has one value only: nothing can be learned from it"
        if feature.missing > MISSING:
            yield f"feature {feature.name} is missing in {_share(feature.missing)} of the rows"
    hashed = [(f.shared, f.name, f.values) for f in features if f.shared is not None and f.values is not None]
    if colliding := sorted((f for f in hashed if f[0] > SHARED), key=lambda item: (-item[0], item[1])):
        # 1 - (1 - 1/m)^n is about n / m.
        worst = [
            f"{name} {_share(shared)} (about 10% with {10 * values:,} buckets)"
            for shared, name, values in colliding[:_MOST_NAMED]
        ]
        more = f", and {len(colliding) - _MOST_NAMED} more" if len(colliding) > _MOST_NAMED else ""
        yield (
            f"hash collisions: in {_count(len(colliding), 'feature')} more than 10% of the values share a bucket with "
            f"another one: {', '.join(worst)}{more}; leave buckets out of the mapping, and each value has an id of its "
            "own"
        )


def inspection_text(summary: LogSummary) -> str:
    """Describes a log in a few lines: its click rate over time, its features, and the warnings."""
    lines = [
        f"{summary.log}: {_count(summary.rows, 'row')}, {_count(summary.queries, 'query')}, "
        f"{_count(summary.clicks, 'click')} ({_share(summary.clicks / max(summary.rows, 1))})",
        *(f"  {name:<12} {text}" for name, text in _facts(summary)),
    ]
    if len(summary.over_time) > 1:
        rows = [
            [_time(p.start), f"{p.rows:,}", f"{p.clicks:,}", _share(p.clicks / p.rows) if p.rows else "-"]
            for p in summary.over_time
        ]
        table = aligned([["from", "rows", "clicks", "rate"], *rows])
        lines += ["", f"every {_duration(summary.period)}", *table]
    lines += ["", *aligned([_FEATURE_HEAD, *map(_feature_cells, summary.features)])]
    if any(not feature.exact for feature in summary.features):
        lines.append("  ~ estimated: more ids than stay in memory; the number of ids to about 1%")
    lines += ["", "top ids: share of all values (click rate)"]
    lines += [f"  {feature.name}  {_top(feature)}" for feature in summary.features]
    warnings = log_warnings(summary)
    if warnings:
        lines += ["", *(f"warning: {warning}" for warning in warnings)]
    return "\n".join(lines)


def _facts(summary: LogSummary) -> Iterator[tuple[str, str]]:
    if summary.first is not None and summary.last is not None:
        span = _duration(summary.last - summary.first)
        yield "times", f"{_time(summary.first)} to {_time(summary.last)} UTC, {span}"
    if summary.queries:
        yield (
            "queries",
            f"{summary.rows / summary.queries:.1f} rows on average, {summary.max_query_rows:,} at most; "
            f"{_share(summary.ranked_queries / summary.queries)} have both a click and a non-click",
        )
    if summary.weighted_click_rate is not None and summary.metric_weight != 1:
        rate = _share(summary.weighted_click_rate)
        yield "weights", f"{summary.metric_weight:.4g} on average; with them the click rate is {rate}"
    parts = summary.partitions
    if parts:
        lengths = sorted({part.end - part.start for part in parts})
        length = " to ".join(dict.fromkeys((_duration(lengths[0]), _duration(lengths[-1]))))
        rows = sorted(part.rows for part in parts)
        yield (
            "partitions",
            f"{len(parts):,} of {length}, {rows[0]:,} to {rows[-1]:,} rows each; "
            f"{_count(len(summary.gaps), 'gap')} between them",
        )
    yield "files", f"{_count(summary.shards, 'shard')}, {summary.bytes / 1e6:,.1f} MB"
    if summary.labels:
        yield "further labels", ", ".join(summary.labels)
    for sidecar in summary.sidecars:
        kind = "a sample" if sidecar.sample else f"columns {', '.join(sidecar.columns)}"
        covered = f"{sidecar.partitions} of {_count(len(parts), 'partition')}"
        yield "sidecar", f"{sidecar.name}: {kind}; {_count(sidecar.rows, 'row')}, {covered}"
    if summary.samplings:
        yield "sampled by", ", ".join(summary.samplings)
    if any(summary.counters.values()):
        counters = (f"{name} {count:,}" for name, count in sorted(summary.counters.items()) if count)
        yield "counters", ", ".join(counters)


_FEATURE_HEAD = [
    "feature", "kind", "tower", "width", "buckets", "ids", "missing", "values/row", "shared buckets",
]  # fmt: skip


def _feature_cells(feature: FeatureSummary) -> list[str]:
    return [
        feature.name,
        feature.kind,
        feature.tower,
        "auto" if feature.width is None else str(feature.width),
        "growing" if feature.buckets is None else f"{feature.buckets:,}" if feature.buckets else "",
        f"{'' if feature.exact else '~'}{feature.ids:,}",
        _share(feature.missing),
        "" if feature.values_per_row is None else f"{feature.values_per_row:.1f}",
        "" if feature.shared is None else _share(feature.shared),
    ]


def _top(feature: FeatureSummary) -> str:
    def name(top: TopId) -> str:
        if top.value is not None:
            return top.value
        return fingerprint(top.id) if feature.buckets is None else str(top.id)

    shown = feature.top[:_TOP_SHOWN]
    return ", ".join(f"{name(top)}: {_share(top.share)} ({_share(top.click_rate)})" for top in shown)


def _count(count: int, word: str) -> str:
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word.removesuffix('y')}{'ies' if word.endswith('y') else 's'}"


def _share(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f}%" if percent in (0, 100) else f"{percent:.{2 if percent < 10 else 1}f}%"


def _time(time_us: int) -> str:
    return format_time(time_us // 1_000_000 * 1_000_000).removesuffix("Z").replace("T", " ")


def _span(span: Span) -> str:
    return f"{_time(span.start)} to {_time(span.end)}"


def _duration(length_us: int) -> str:
    return str(timedelta(microseconds=length_us))
