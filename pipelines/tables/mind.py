"""Reads the MIND news data set: impression lines exploded into candidates, with the columns of the news.

``behaviors.tsv`` has a line for each impression: its id, user, time, the news read before, and the candidates with
their clicks (``N123-1 N45-0``). ``news.tsv`` beside it has a line for each article.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.mapping import DelimitedInput
from ctr.io.documents import parse_json
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import check_utf8
from ctr.pipelines.tables.delimited import read_delimited
from ctr.pipelines.tables.input_files import Chunk, SourceFile, require_columns
from ctr.pipelines.tables.rejects import make_reject
from ctr.pipelines.tables.table_files import read_strictly

_LINES = ("impression_id", "user_id", "time", "history", "impressions")
_BEHAVIORS = DelimitedInput(type="tsv", header=False, columns=_LINES)
_NEWS_TEXTS = ("category", "subcategory", "title", "abstract")
_ARTICLES = ("id", *_NEWS_TEXTS, "url", "title_entities", "abstract_entities")
_NEWS = DelimitedInput(type="tsv", header=False, columns=_ARTICLES)
_NEWS_LISTS = ("title_entities", "entities")
_HISTORY_TEXTS = {"history_categories": "category", "history_subcategories": "subcategory"}

# The raw columns that a mapping with ``type: mind`` may use.
MIND_COLUMNS = (
    *("impression_id", "user_id", "time", "history", "history_length", *_HISTORY_TEXTS),
    *("news_id", "clicked", "example_id", *_NEWS_TEXTS, *_NEWS_LISTS),
)

# A line explodes into some 40 candidates, each with the whole history.
_BLOCK_SHARE = 16


@dataclass(frozen=True)
class News:
    """Articles: distinct ids [K] and K rows of text and entity lists."""

    ids: pa.Array
    columns: pa.Table

    @classmethod
    def load(cls, folder: Path) -> "News":
        """Reads ``news.tsv`` (or ``.gz``, ``.zst``) of a folder; InputError where it is missing or malformed."""
        names = ("news.tsv", "news.tsv.gz", "news.tsv.zst")
        paths = [path for name in names if (path := folder / name).is_file()]
        if not paths:
            where = f"{folder / 'news.tsv'}: no such file"
            raise InputError(f"{where}; it must be in the directory of behaviors.tsv")
        table, rows = read_strictly(paths[0], _NEWS, _ARTICLES, 64 << 20)
        ids = table.column("id").combine_chunks()
        seen: dict[str | None, int] = {None: 0}
        for row, news in zip(rows, ids.to_pylist(), strict=True):
            if news in seen:
                fault = f"the news id {news!r} is missing or appears more than once"
                raise InputError(f"{paths[0]} row {row}: {fault}")
            seen[news] = row
        title = _entities(paths[0], rows, table.column("title_entities"))
        abstract = _entities(paths[0], rows, table.column("abstract_entities"))
        both = [list(dict.fromkeys(first + second)) for first, second in zip(title, abstract, strict=True)]
        columns = table.select(_NEWS_TEXTS)
        for name, lists in zip(_NEWS_LISTS, (title, both), strict=True):
            columns = columns.append_column(name, pa.array(lists, pa.list_(pa.string())))
        return cls(ids, columns)


def _entities(path: Path, rows: Sequence[int], column: pa.ChunkedArray) -> list[list[str]]:
    """The Wikidata ids of each row's JSON list of entities, each once; no ids for an empty field."""
    lists = []
    for row, text in zip(rows, column.to_pylist(), strict=True):
        try:
            entities = [entity["WikidataId"] for entity in parse_json(text or "[]")]
            if not all(isinstance(entity, str) for entity in entities):
                raise ValueError("a WikidataId is not text")
            "".join(entities).encode()
        except (ValueError, TypeError, KeyError):
            fault = f"the entities are not a JSON list with WikidataId: {text[:80]}"
            raise InputError(f"{path} row {row}: {fault}") from None
        lists.append(list(dict.fromkeys(entities)))
    return lists


def read_mind(source: SourceFile, news: News, wanted: Sequence[str], block_bytes: int) -> Iterator[Chunk]:
    """Yields candidates: the wanted ones of ``MIND_COLUMNS``; rows are numbered by their impression's line.

    A line without candidates, or that is no UTF-8, is a reject; it counts as one row. Raises InputError: a wanted
    column that MIND does not have, or a damaged file.
    """
    require_columns(source.path, wanted, MIND_COLUMNS)
    block = max(block_bytes // _BLOCK_SHARE, 1 << 14)
    for chunk in read_delimited(source, _BEHAVIORS, _LINES, block):
        lines: dict[str, pa.Array] = {}
        broken = np.zeros(chunk.table.num_rows, bool)
        for name in _LINES:
            lines[name], bad = check_utf8(chunk.table.column(name).combine_chunks())
            broken |= bad
        shown = pc.utf8_trim_whitespace(pc.fill_null(lines["impressions"], ""))
        empty = ~broken & pc.equal(shown, "").to_numpy(zero_copy_only=False)
        rejects = list(chunk.rejects)
        for bad, reason, allowed in (
            (broken, "invalid UTF-8", "UTF-8"),
            (empty, "no candidates", "N123-1 N45-0 and so on"),
        ):
            lines_at_fault = chunk.rows[bad].tolist()
            rejects += [make_reject(chunk.file, row, "line", reason, "", allowed) for row in lines_at_fault]
        kept = pa.array(~(broken | empty))
        lines = {name: column.filter(kept) for name, column in lines.items()}
        table, parents = _explode(lines, news, wanted)
        rows = chunk.rows[kept.to_numpy(zero_copy_only=False)][parents]
        yield Chunk(source.number, table, rows, rejects)


def _explode(lines: dict[str, pa.Array], news: News, wanted: Sequence[str]) -> tuple[pa.Table, np.ndarray]:
    """Candidates [M] of lines [N]; also the line of each candidate, [M] int64."""
    items = pc.split_pattern_regex(pc.utf8_trim_whitespace(lines["impressions"]), " +")
    candidates = items.flatten()
    parents = items.value_parent_indices()
    parts = pc.extract_regex(candidates, r"^(?P<news>.+)-(?P<clicked>[^-]*)$")
    # struct_field, unlike the array's own field, keeps in mind which candidates did not match.
    shown = pc.coalesce(pc.struct_field(parts, "news"), candidates)
    places = pc.index_in(shown, news.ids)

    def column(name: str) -> pa.Array:
        if name in lines:
            return _histories(lines).take(parents) if name == "history" else lines[name].take(parents)
        if name == "history_length":
            return pc.count_substring_regex(pc.fill_null(lines["history"], ""), r"\S+").take(parents)
        if name in _HISTORY_TEXTS:
            return _history_texts(lines, news, _HISTORY_TEXTS[name]).take(parents)
        if name in news.columns.column_names:
            return news.columns.column(name).combine_chunks().take(places)
        if name == "news_id":
            return shown
        if name == "clicked":
            # A candidate without a click mark keeps its whole text here, for the reject to show.
            return pc.coalesce(pc.struct_field(parts, "clicked"), candidates)
        assert name == "example_id"
        return pc.binary_join_element_wise(lines["impression_id"].take(parents), shown, "-")

    return pa.table({name: column(name) for name in wanted}), parents.to_numpy()


def _histories(lines: dict[str, pa.Array]) -> pa.ListArray:
    return pc.split_pattern_regex(pc.utf8_trim_whitespace(pc.fill_null(lines["history"], "")), " +")


def _history_texts(lines: dict[str, pa.Array], news: News, name: str) -> pa.ListArray:
    """The category or subcategory of each news of a history that is known, in the same order."""
    histories = _histories(lines)
    places = pc.index_in(histories.flatten(), news.ids)
    known = places.is_valid()
    counts = np.bincount(histories.value_parent_indices().filter(known).to_numpy(), minlength=len(histories))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    texts = news.columns.column(name).combine_chunks().take(places.filter(known))
    return pa.ListArray.from_arrays(pa.array(offsets), texts)
