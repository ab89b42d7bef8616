"""The mapping file of tables, which converts raw files to examples; docs/howto/tables.md describes it."""

import functools
import re
import zoneinfo
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    field_validator,
    model_validator,
)

from ctr.config import LocalName, ShortModel, StrictModel, parse_model, read_yaml
from ctr.data.derived import Column, Derived
from ctr.data.features import Category, Feature, LabelName, Number, Text, Vector
from ctr.data.kept_values import check_keep_values
from ctr.data.schema import Schema, make_schema
from ctr.data.time_formats import check_format
from ctr.data.times import DAY_US, Duration, duration_us
from ctr.io.errors import InputError

FORMATS_FOLDER = Path(__file__).parent / "formats"
MappingT = TypeVar("MappingT", bound=StrictModel)


class DelimitedInput(StrictModel):
    """Lines of fields: ``csv`` (comma, quoted values allowed) or ``tsv`` (tab, quotes are plain characters).

    Attributes:
        type: the format of the files.
        pattern: a glob for the files of an input directory. Null: ``*.csv`` or ``*.tsv``, also with ``.gz`` and
            ``.zst``.
        skip_lines: the number of lines at the beginning of each file before the header and the rows, such as comments.
        header: whether the first line that is not skipped names the columns.
        columns: the names of the columns, if ``header`` is false.
        delimiter: the character between fields. Null: comma for csv, tab for tsv.
        quoting: whether values may be in double quotes, and may then contain delimiters, line ends and doubled quotes.
            Null: true for csv, false for tsv.
        nulls: texts that mean a missing value.
        optional: columns that a file may lack: their values are missing there.
    """

    type: Literal["csv", "tsv"]
    pattern: LocalName | None = None
    skip_lines: int = Field(default=0, ge=0, le=1000)
    header: bool = True
    columns: tuple[Column, ...] | None = None
    delimiter: str | None = Field(default=None, pattern=r"^[\x00-\x7f]$", title="ASCII character")
    quoting: bool | None = None
    nulls: tuple[str, ...] = ("",)
    optional: tuple[Column, ...] = ()

    @model_validator(mode="after")
    def _named_columns(self) -> Self:
        if self.header == (self.columns is not None):
            raise ValueError(
                "columns names the fields of files without a header: required with header: false, and allowed "
                "only there"
            )
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError("columns: a name appears twice")
        return self

    @property
    def field_delimiter(self) -> str:
        return self.delimiter or ("," if self.type == "csv" else "\t")

    @property
    def quotes(self) -> bool:
        return self.type == "csv" if self.quoting is None else self.quoting


class JsonlInput(StrictModel):
    """One JSON object per line.

    Attributes:
        type: the format of the files.
        pattern: a glob for the files of an input directory. Null: ``*.jsonl``, also with ``.gz`` and ``.zst``.
        optional: columns that a file may lack: their values are missing there.
    """

    type: Literal["jsonl"]
    pattern: LocalName | None = None
    optional: tuple[Column, ...] = ()


class ParquetInput(StrictModel):
    """Parquet files.

    Attributes:
        type: the format of the files.
        pattern: a glob for the files of an input directory. Null: ``*.parquet``.
        optional: columns that a file may lack: their values are missing there.
    """

    type: Literal["parquet"]
    pattern: LocalName | None = None
    optional: tuple[Column, ...] = ()


Input = Annotated[DelimitedInput | JsonlInput | ParquetInput, Field(discriminator="type")]

_COMPRESSIONS = ("", ".gz", ".zst")


def input_patterns(form: DelimitedInput | JsonlInput | ParquetInput) -> tuple[str, ...]:
    """Returns the globs that select the files of a folder."""
    if form.pattern is not None:
        return (form.pattern,)
    if form.type == "parquet":
        return ("*.parquet",)
    return tuple(f"*.{form.type}{compression}" for compression in _COMPRESSIONS)


class RowOrder(StrictModel):
    """Times derived from row numbers, for logs without a time column.

    Attributes:
        start: the time of the first row; UTC unless it names an offset.
        step_us: microseconds from one row to the next.
    """

    start: datetime = Field(strict=False)
    step_us: int = Field(ge=1, le=DAY_US)

    @property
    def start_us(self) -> int:
        start = self.start if self.start.tzinfo is not None else self.start.replace(tzinfo=UTC)
        seconds = (start - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        return round(seconds * 1_000_000)


TimeUnit = Literal["s", "ms", "us", "ns", "serial"]

FIRST_TIME = "1970-01-01"
LAST_TIME = "9999-12-31"
# A time in a unit too small (milliseconds declared as seconds) lands beyond this and is refused.
TIME_LIMIT_US = 253_402_300_800_000_000


def _check_time_format(form: str) -> str:
    return form if form == "iso8601" else check_format(form)


def _check_zone(name: str) -> str:
    if name not in zoneinfo.available_timezones():
        raise ValueError(
            f"no zone of the IANA database is called {name}; allowed: names such as Europe/Berlin"
        )
    return name


class Time(StrictModel):
    """The time of an impression: a column with ``unit`` or ``format``, or ``row_order``.

    Attributes:
        column: the column with the time.
        unit: the unit of numeric times, counted from 1970; ``serial``: days since 1899-12-30, as in spreadsheets.
        format: ``iso8601``, or a format of Python's ``strptime`` such as ``%y%m%d%H``.
        zone: the zone of times without an offset, such as ``Europe/Berlin``. Null: UTC.
        ambiguous: with ``zone``, which of the two times to use for a local time that occurs twice, when daylight saving
            time ends. Null: the row is rejected.
        first: earlier times are rejected. Null: those before 1970.
        last: later times are rejected. Null: those after 9999.
        row_order: derives times from row numbers, for logs without times.
    """

    column: Column | None = None
    unit: TimeUnit | None = None
    format: Annotated[str, AfterValidator(_check_time_format)] | None = None
    zone: Annotated[str, AfterValidator(_check_zone)] | None = None
    ambiguous: Literal["first", "second"] | None = None
    first: date | None = Field(default=None, strict=False)
    last: date | None = Field(default=None, strict=False)
    row_order: RowOrder | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.column is None) == (self.row_order is None):
            raise ValueError("exactly one of column and row_order is required")
        if self.zone is not None and (self.format is None or "%z" in self.format.lower()):
            raise ValueError("zone requires a format of times without an offset")
        if self.zone is None and self.ambiguous is not None:
            raise ValueError("ambiguous requires zone")
        ways = sum(way is not None for way in (self.unit, self.format))
        if ways != (0 if self.column is None else 1):
            raise ValueError("a column requires exactly one of unit and format; row_order allows neither")
        if self.row_order is not None and (self.first is not None or self.last is not None):
            raise ValueError("row_order allows neither first nor last")
        first, limit = self.range_us
        if first >= limit:
            raise ValueError(f"no time is from {self.range_text}")
        return self

    @property
    def range_us(self) -> tuple[int, int]:
        """Returns the range [begin, end) of allowed times, in microseconds since 1970."""
        first = 0 if self.first is None else _days(self.first) * DAY_US
        limit = TIME_LIMIT_US if self.last is None else (_days(self.last) + 1) * DAY_US
        return max(first, 0), limit

    @property
    def range_text(self) -> str:
        return f"{self.first or FIRST_TIME} to {self.last or LAST_TIME}"

    @property
    def form(self) -> str:
        if self.unit is not None:
            return f"unit {self.unit}"
        once = " once" if self.ambiguous is None else ""
        shown = "" if self.zone is None else f", a time that the clocks of {self.zone} show{once}"
        return f"format {self.format}{shown}"


def iso_column(content: Any) -> Any:
    """Converts the name of a column of ISO 8601 times to the content of a ``Time``; returns anything else unchanged."""
    return {"column": content, "format": "iso8601"} if isinstance(content, str) else content


def _days(day: date) -> int:
    return (day - date(1970, 1, 1)).days


class Join(StrictModel):
    """A side table, looked up by a column that the rows have too.

    Attributes:
        file: a name or a glob, relative to the directory of the input file.
        key: the column that both tables have.
        prefix: text put before the names of the other columns of the table.
        input: how the side table is read. Null: like the input.
        valid_from: the time from which a row of the side table holds, until the next one of its key: a column with
            ``unit`` or ``format``, or the name of one in ISO 8601. A row of the log gets the row valid at its time.
            Null: the table has one row for each key, whose values are taken at any time.
    """

    file: LocalName = Field(min_length=1)
    key: Column
    prefix: str = ""
    input: Annotated[DelimitedInput | ParquetInput, Field(discriminator="type")] | None = None
    valid_from: Time | None = None

    @field_validator("valid_from", mode="before", json_schema_input_type=Time | str | None)
    @classmethod
    def _column_by_name(cls, content: Any) -> Any:
        return iso_column(content)

    @model_validator(mode="after")
    def _valid_from_a_column(self) -> Self:
        if self.valid_from is not None and self.valid_from.column in (None, self.key):
            raise ValueError("valid_from requires a column of the side table, other than its key")
        return self

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Returns the columns of the side table that the look-up reads and the log's rows do not get."""
        time = None if self.valid_from is None else self.valid_from.column
        return (self.key,) if time is None else (self.key, time)


class Session(StrictModel):
    """Rows with the same value of a column and no long gap between neighbors in time.

    Attributes:
        by: the column, such as the user.
        gap: the longest gap inside a session.
    """

    by: Column
    gap: Duration

    @property
    def gap_us(self) -> int:
        return duration_us(self.gap)


class Query(StrictModel):
    """Grouping of rows into queries: by equal values of ``column``, or by ``session``.

    Attributes:
        column: rows with the same value of this column are one query.
        session: rows of one session are one query.
    """

    column: Column | None = None
    session: Session | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.column is None) == (self.session is None):
            raise ValueError("exactly one of column and session is required")
        return self

    @property
    def group_column(self) -> str:
        return self.session.by if self.session is not None else str(self.column)


LabelOp = Literal[">=", ">", "<=", "<", "==", "!="]
_LABEL_RULE = re.compile(r"^(?P<column>.+?)\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<value>\S.*)$")


class Label(StrictModel):
    """A column of 0, 1, true or false; or a rule on a column, also written as ``rating >= 4``.

    Attributes:
        column: the column with the label, or the column that the rule compares.
        op: the comparison of a rule; for texts only ``==`` and ``!=``.
        value: the value that the column is compared with; an empty text is a missing value.
    """

    column: Column
    op: LabelOp | None = None
    value: float | str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, content: Any) -> Any:
        if not isinstance(content, str):
            return content
        match = _LABEL_RULE.match(content.strip())
        if match is None:
            return {"column": content.strip()}
        value = match["value"]
        try:
            return {**match.groupdict(), "value": float(value)}
        except ValueError:
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            return {**match.groupdict(), "value": value[1:-1] if is_quoted else value}

    @model_validator(mode="after")
    def _whole_rule(self) -> Self:
        if (self.op is None) != (self.value is None):
            raise ValueError("a rule requires both op and value")
        if isinstance(self.value, str) and self.op not in ("==", "!="):
            raise ValueError(f"{self.op} compares numbers; strings allow only == and !=")
        return self

    @property
    def rule(self) -> str:
        return "0 or 1" if self.op is None else f"{self.op} {self.value}"


class FurtherLabel(StrictModel):
    """A further label of a row, such as a conversion: the time when it was observed, or whether it was.

    Attributes:
        value: a column of 0, 1, true or false, or a rule, as ``label``; missing: the label is unknown.
        time: instead of ``value``, when it was observed, read as ``valid_from`` of a join: a column with ``unit`` or
            ``format``, or the name of one in ISO 8601; missing: it was not. A time before the row's time is refused.
        window: the maximum time from the row to an observed label.
        until: a column with the time until which the row was watched, in the same form as ``time``. Where that is
            missing or before the window's end, the label is unknown. Null: every row was watched to the end.
    """

    value: Label | None = None
    time: Time | None = None
    window: Duration | None = None
    until: Column | None = None

    @field_validator("time", mode="before", json_schema_input_type=Time | str | None)
    @classmethod
    def _column_by_name(cls, content: Any) -> Any:
        return iso_column(content)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.time is None) == (self.value is None):
            raise ValueError("exactly one of time and value is required")
        if (self.time is None) != (self.window is None) or (self.time is None and self.until is not None):
            raise ValueError("time requires window and allows until, value allows neither")
        if self.time is not None and self.time.column is None:
            raise ValueError("time requires a column")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        time = None if self.time is None else self.time.column
        names = (time, None if self.value is None else self.value.column, self.until)
        return tuple(name for name in names if name is not None)

    @property
    def rule(self) -> str:
        # In seconds: 1d and 24h are the same.
        seconds = "" if self.window is None else f"within {duration_us(self.window) / 1e6:.15g} s"
        watched = "" if self.until is None else ", watched until a column"
        return seconds + watched if self.value is None else self.value.rule


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [*schema["anyOf"], {"type": "string"}]


class Mapping(ShortModel):
    """The mapping file: converts raw files to examples.

    Attributes:
        input: how the files are read.
        joins: side tables.
        time: the time of the impression.
        query: which rows form a query. Null or ``none``: each row is a query.
        example_id: a column that identifies examples; whole numbers are used unchanged, other text is hashed. Null: a
            hash of the name of the file, the number of the row and the time.
        label: a column of 0, 1, true or false; or a rule such as ``rating >= 4``. Null: the rows have no labels, and
            the log can only be scored.
        labels: further labels of a row, by name, which become columns of the log.
        weight: a column of numbers from 0 to 1e9: the weight in the loss and in the metrics. Null: 1.
        derive: new columns by name.
        partition: a duration of query time: the log is published in units of this length. A partition must fit in
            memory.
        shard_rows: after this many rows of a partition, the next query starts a new file.
        features: the features, in the order in which they are stored.
        keep_values: features whose raw values are stored beside the log, where a partition has at most 10,000 of them:
            reports and ``ctr inspect`` then show the values behind ids. Only hashed features have raw values to store,
            not numbers, vectors or vocabularies.
    """

    left_out = ("labels",)
    input: Input
    joins: tuple[Join, ...] = ()
    time: Time = Field(examples=[{"column": "shown_at", "format": "iso8601"}])
    query: Query | None = None
    example_id: Column | None = None
    label: Label | None = Field(title="column or rule", examples=["clicked"], json_schema_extra=_or_text)
    labels: dict[LabelName, FurtherLabel] = {}
    weight: Column | None = None
    derive: dict[Column, Derived] = {}
    partition: Duration
    shard_rows: int = Field(default=1_000_000, ge=1)
    features: tuple[Feature, ...] = Field(min_length=1)
    keep_values: tuple[str, ...] = ()

    @field_validator("query", mode="before", json_schema_input_type=Query | Literal["none"] | None)
    @classmethod
    def _none_by_name(cls, content: Any) -> Any:
        return None if content == "none" else content

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        make_schema(self.features, self.derive)
        for name, derived in self.derive.items():
            if derived.source in self.derive:
                raise ValueError(f"derive.{name}: {derived.source} is itself derived")
            if name in self.key_columns:
                raise ValueError(f"derive.{name}: a column of this name is read as a key")
        if isinstance(self.input, JsonlInput) and any(join.input is None for join in self.joins):
            raise ValueError(
                "joins: with jsonl, each join requires input: how its side table (csv, tsv, parquet) is read"
            )
        if self.label is None and self.labels:
            raise ValueError("labels: not allowed without a label")
        if self.label is None and (histories := self.feature_schema.histories):
            raise ValueError(
                f"label: required with the histories {', '.join(histories)}, which list earlier rows of the log; to "
                "score new rows, give their lists to a Scorer in Python"
            )
        check_keep_values(self.keep_values, self.features)
        return self

    @property
    def feature_schema(self) -> Schema:
        return make_schema(self.features, self.derive, labels=self.labels)

    @property
    def partition_us(self) -> int:
        return duration_us(self.partition)

    @property
    def key_columns(self) -> tuple[str, ...]:
        group = None if self.query is None else self.query.group_column
        names = (
            self.time.column,
            group,
            self.example_id,
            None if self.label is None else self.label.column,
            self.weight,
            *(name for label in self.labels.values() for name in label.columns),
        )
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def raw_columns(self) -> tuple[str, ...]:
        derived_from = (d.source for d in self.derive.values() if not d.of_time)
        sources = (source for source in self.feature_schema.read_sources if source not in self.derive)
        return tuple(dict.fromkeys((*self.key_columns, *derived_from, *sources)))

    @property
    def number_sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.source for f in self.features if isinstance(f, Number)))

    @property
    def vector_sources(self) -> dict[str, Vector]:
        return {f.source: f for f in self.features if isinstance(f, Vector)}

    @property
    def text_sources(self) -> tuple[str, ...]:
        texts = dict.fromkeys(f.source for f in self.features if isinstance(f, Category | Text))
        histories = self.feature_schema.histories
        return tuple(name for name in texts if name not in histories)

    @property
    def value_sources(self) -> frozenset[str]:
        """Returns the columns read for categories and texts alone: each distinct value is processed once."""
        others = {
            *self.key_columns,
            *self.number_sources,
            *self.vector_sources,
            *(join.key for join in self.joins),
            *(derived.source for derived in self.derive.values()),
        }
        return frozenset(self.text_sources) - others

    @property
    def list_sources(self) -> dict[str, str | None]:
        """Returns the sources of multivalent categories, with their values' separator; None if there are several."""
        return self.feature_schema.list_separators


def load_mapping(path: Path) -> Mapping:
    """Reads and validates a mapping file. Raises InputError with one line that names every fault."""
    return parse_model(Mapping, read_yaml(path, "mapping"), f"mapping {path}")


def without_labels(mapping: Mapping) -> Mapping:
    """Returns the mapping without labels and weights, for rows to be scored. Raises InputError if it has histories."""
    return parse_model(
        Mapping, {**dict(mapping), "label": None, "labels": {}, "weight": None}, "--without-labels"
    )


def format_names() -> tuple[str, ...]:
    """Lists the formats that the package contains, in alphabetical order."""
    return tuple(sorted(path.stem for path in FORMATS_FOLDER.glob("*.yaml")))


@functools.cache
def load_format(name: str) -> Mapping:
    """Loads the mapping of a shipped format. Raises InputError, which names the formats, for an unknown one."""
    if name not in format_names():
        raise InputError(
            f"format {name}: unknown; the formats are {', '.join(format_names())}; or give --mapping"
        )
    return load_mapping(FORMATS_FOLDER / f"{name}.yaml")
