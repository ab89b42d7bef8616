"""Tables of a stranger, written as text, and what is inferred of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.config import parse_model
from ctr.data.mapping import Mapping, load_mapping
from ctr.pipelines.infer.columns import Column, profile_column
from ctr.pipelines.infer.dialect import find_table, read_sample
from ctr.pipelines.infer.draft import Draft, draft_mapping, mapping_text
from ctr.pipelines.infer.roles import Options
from ctr.pipelines.tables.ingest import ingest


def write_table(path: Path, columns: dict[str, Any], delimiter: str = ",") -> Path:
    """Writes columns as text without quotes; None is empty."""
    lines = [delimiter.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(delimiter.join("" if value is None else str(value) for value in row))
    path.write_text("\n".join(lines) + "\n")
    return path


def drafted(path: Path, label: str = "click", **options: Any) -> Draft:
    """Drafts the mapping of a file or a folder."""
    table = find_table(path, label)
    return draft_mapping(table, read_sample(table), Options(label=label, **options))


def becomes(draft: Draft) -> dict[str, str]:
    """What each column becomes, by its name."""
    return {name: decision.becomes for name, decision in draft.columns.items()}


def ingested(draft: Draft, path: Path) -> tuple[Mapping, Any]:
    """What the text of the mapping says, read again, and the result of an ingest by it, to ``log`` beside the file."""
    (path.parent / "mapping.yaml").write_text(mapping_text(draft, path.name))
    mapping = load_mapping(path.parent / "mapping.yaml")
    assert mapping == parse_model(Mapping, draft.content, "draft")
    return mapping, ingest(mapping, [path], path.parent / "log")


def column_of(values: Sequence[Any], name: str = "a") -> Column:
    """Profiles a column of text, as a delimited file gives it."""
    return profile_column(
        name, pa.array([None if value is None else str(value) for value in values], pa.string())
    )


def hotel_searches(searches: int = 60) -> dict[str, Any]:
    """Searches with two outcomes: clicks, and bookings of what was clicked; what was paid is known afterwards."""
    rng = np.random.default_rng(0)
    search = np.repeat(np.arange(searches), rng.integers(3, 25, searches))
    rows = len(search)
    place = np.arange(rows) - np.searchsorted(search, search)
    click = place == (search % 3)
    booking = click & (rng.random(rows) < 0.7)
    review = ["NULL" if rng.random() < 0.2 else score / 2 for score in rng.integers(0, 11, rows)]
    price = np.exp(rng.normal(4.8, 0.6, rows)).round(2)
    return {
        "srch_id": 100 + 7 * search,
        "date_time": [f"2013-04-{1 + one % 28:02d} {one % 24:02d}:11:07" for one in search],
        "site_id": [12] * rows,
        "prop_id": rng.integers(0, 500, rows),
        "price_usd": price,
        "review": review,
        "position": place + 1,
        "click_bool": click.astype(int),
        "booking_bool": booking.astype(int),
        "gross_usd": [2 * paid if booked else "NULL" for paid, booked in zip(price, booking, strict=True)],
    }
