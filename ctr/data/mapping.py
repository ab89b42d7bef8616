"""How raw files become examples: the mapping file, described key by key in docs/mapping.md.

A mapping says how the input is read, which columns hold time, query, label and weight, which columns are
joined or derived, how the log is cut into partitions, and which features it has.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ctr.config import StrictModel, parse_model, read_yaml
from ctr.data.schema import Category, Feature, Number, Schema, Text, list_separators
from ctr.errors import InputError

TIME_SOURCE = "time"
"""What ``derive`` calls the parsed time of a row."""

LONGEST = "36500d"
"""No duration of a mapping is longer: sums of times and durations must fit into 64 bits."""

FORMATS_FOLDER = Path(__file__).parent / "formats"

_DURATION = re.compile(r"([1-9][0-9]{0,17})(us|ms|s|m|h|d)")
_UNIT_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def duration_us(text: str) -> int:
    """Microseconds of a duration such as ``30m`` or ``1d``. Raises ValueError when it is none."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("a duration is a whole number and a unit of us, ms, s, m, h, d, such as 30m")
    return int(match[1]) * _UNIT_US[match[2]]


def read_duration(key: str, text: str) -> int:
    """Microseconds of a duration that an option holds, 0 of ``0s``. Raises InputError, which names the option."""
    try:
        return 0 if text == "0s" else duration_us(_check_duration(text))
    except ValueError as error:
        raise InputError(f"{key} {text}: {error}") from None


def _check_duration(text: str) -> str:
    if duration_us(text) > duration_us(LONGEST):
        raise ValueError(f"{text} is longer than {LONGEST}")
    return text


def refuse_interval(content: Any) -> Any:
    """Refuses the former name of ``partition`` with its new one, in the content of a mapping file."""
    if isinstance(content, dict) and "interval" in content:
        error = PydanticCustomError("renamed", "this key is called partition now")
        fault: InitErrorDetails = {"type": error, "loc": ("interval",), "input": content["interval"]}
        raise ValidationError.from_exception_data("Mapping", [fault])
    return content


Duration = Annotated[str, AfterValidator(_check_duration)]
Column = Annotated[str, Field(min_length=1)]


class DelimitedInput(StrictModel):
    """Lines of fields: ``csv`` (comma, quoted values allowed) or ``tsv`` (tab, quotes are plain characters)."""

    type: Literal["csv", "tsv"]
    pattern: str | None = None
    header: bool = True
    columns: tuple[Column, ...] | None = None
    delimiter: str | None = Field(default=None, pattern=r"^[\x00-\x7f]$")
    quoting: bool | None = None
    nulls: tuple[str, ...] = ("",)

    @model_validator(mode="after")
    def _named_columns(self) -> Self:
        if self.header == (self.columns is not None):
            raise ValueError("columns names the fields of files without a header: header: false needs it")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError("columns repeats a name")
        return self

    @property
    def field_delimiter(self) -> str:
        """The character between fields."""
        return self.delimiter or ("," if self.type == "csv" else "\t")

    @property
    def quotes(self) -> bool:
        """Whether a value may stand in double quotes."""
        return self.type == "csv" if self.quoting is None else self.quoting


class JsonlInput(StrictModel):
    """One JSON object a line."""

    type: Literal["jsonl"]
    pattern: str | None = None


class ParquetInput(StrictModel):
    """Parquet files."""

    type: Literal["parquet"]
    pattern: str | None = None


class MindInput(StrictModel):
    """Behaviors of the MIND news data set; ``news.tsv`` lies beside each file."""

    type: Literal["mind"]
    pattern: str | None = None


Input = Annotated[DelimitedInput | JsonlInput | ParquetInput | MindInput, Field(discriminator="type")]

_COMPRESSIONS = ("", ".gz", ".zst")


def input_patterns(form: DelimitedInput | JsonlInput | ParquetInput | MindInput) -> tuple[str, ...]:
    """The globs that choose a folder's files."""
    if form.pattern is not None:
        return (form.pattern,)
    if form.type == "parquet":
        return ("*.parquet",)
    stem = "behaviors.tsv" if form.type == "mind" else f"*.{form.type}"
    return tuple(stem + compression for compression in _COMPRESSIONS)


class Join(StrictModel):
    """A side table, looked up by the column ``key`` that both have; its columns are named ``prefix`` + name.

    ``file`` is a name or a glob, seen from the folder of the input file. ``input`` says how the side table
    is read; by default as the input.
    """

    file: str = Field(min_length=1)
    key: Column
    prefix: str = ""
    input: Annotated[DelimitedInput | ParquetInput, Field(discriminator="type")] | None = None


class RowOrder(StrictModel):
    """Times for logs that have none: ``start`` plus ``step_us`` microseconds for each row before."""

    start: datetime
    step_us: int = Field(ge=1, le=86_400_000_000)

    @property
    def start_us(self) -> int:
        """Microseconds since 1970, UTC; a start without a zone is in UTC."""
        start = self.start if self.start.tzinfo is not None else self.start.replace(tzinfo=UTC)
        seconds = (start - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        return round(seconds * 1_000_000)


class Time(StrictModel):
    """When an impression was shown: a ``column`` with ``unit`` or ``format``, or ``row_order``."""

    column: Column | None = None
    unit: Literal["s", "ms", "us", "ns"] | None = None
    format: str | None = Field(default=None, min_length=1)
    row_order: RowOrder | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.column is None) == (self.row_order is None):
            raise ValueError("exactly one of column and row_order is needed")
        ways = sum(way is not None for way in (self.unit, self.format))
        if ways != (0 if self.column is None else 1):
            raise ValueError("a column needs exactly one of unit and format; row_order needs neither")
        return self


class Session(StrictModel):
    """Rows of one ``by`` value without a gap longer than ``gap`` between neighbours in time."""

    by: Column
    gap: Duration

    @property
    def gap_us(self) -> int:
        """The longest gap inside a session, in microseconds."""
        return duration_us(self.gap)


class Query(StrictModel):
    """Which rows belong together: those with the same value of ``column``, or those of one ``session``."""

    column: Column | None = None
    session: Session | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.column is None) == (self.session is None):
            raise ValueError("exactly one of column and session is needed")
        return self

    @property
    def group_column(self) -> str:
        """The column whose values group rows."""
        if self.session is not None:
            return self.session.by
        assert self.column is not None
        return self.column


LabelOp = Literal[">=", ">", "<=", "<", "==", "!="]
_LABEL_RULE = re.compile(r"^(?P<column>.+?)\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<value>\S.*)$")


class Label(StrictModel):
    """A column of 0/1/true/false, or a rule on a column, also written as ``rating >= 4``."""

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
            return {**match.groupdict(), "value": value.strip("\"'")}

    @model_validator(mode="after")
    def _whole_rule(self) -> Self:
        if (self.op is None) != (self.value is None):
            raise ValueError("a rule needs both op and value")
        if isinstance(self.value, str) and self.op not in ("==", "!="):
            raise ValueError(f"{self.op} compares numbers; texts only have == and !=")
        return self


class Derived(StrictModel):
    """A new raw column, made of the row's time or of another column.

    ``part``: the hour of the day or the day of the week (Monday is 0) of the time. ``every``: the number of
    whole periods of that length between 1970 and the time, so that what happens in one period has a value
    of its own. ``prefix``: the first so many characters of a column. None of them: a copy.
    """

    source: Column = Field(alias="from")
    part: Literal["hour", "weekday"] | None = None
    every: Duration | None = None
    prefix: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.part, self.every, self.prefix)) > 1:
            raise ValueError("part, every and prefix exclude each other")
        if self.of_time and self.source != TIME_SOURCE:
            raise ValueError(f"part and every are taken of the row's time: from: {TIME_SOURCE}")
        return self

    @property
    def of_time(self) -> bool:
        """Whether the value is made of the row's time, not of a column."""
        return self.part is not None or self.every is not None


class Mapping(StrictModel):
    """The whole mapping file."""

    input: Input
    joins: tuple[Join, ...] = ()
    time: Time
    query: Query | None = None
    example_id: Column | None = None
    label: Label
    weight: Column | None = None
    derive: dict[Column, Derived] = {}
    partition: Duration
    shard_rows: int = Field(default=1_000_000, ge=1)
    features: tuple[Feature, ...] = Field(min_length=1)

    _renamed = model_validator(mode="before")(refuse_interval)

    @field_validator("query", mode="before")
    @classmethod
    def _none_by_name(cls, content: Any) -> Any:
        return None if content == "none" else content

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        Schema(features=self.features)
        for name, derived in self.derive.items():
            if derived.source in self.derive:
                raise ValueError(f"derive.{name}: {derived.source} is itself derived")
            if name in self.key_columns:
                raise ValueError(f"derive.{name}: a column of this name is read as a key")
        if isinstance(self.input, MindInput) and self.joins:
            raise ValueError("joins: the mind reader already looks up the news")
        if isinstance(self.input, JsonlInput) and any(join.input is None for join in self.joins):
            raise ValueError(
                "joins: beside jsonl, input must say how the side table (csv, tsv, parquet) is read"
            )
        return self

    @property
    def feature_schema(self) -> Schema:
        """The features of the log."""
        return Schema(features=self.features)

    @property
    def partition_us(self) -> int:
        """The publishing unit, in microseconds of query time."""
        return duration_us(self.partition)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The raw columns that time, query, example id, label and weight are read from."""
        group = None if self.query is None else self.query.group_column
        names = (self.time.column, group, self.example_id, self.label.column, self.weight)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns that the input and its side tables must have, each once."""
        derived_from = (d.source for d in self.derive.values() if not d.of_time)
        sources = (source for source in self.feature_schema.sources if source not in self.derive)
        return tuple(dict.fromkeys((*self.key_columns, *derived_from, *sources)))

    @property
    def number_sources(self) -> tuple[str, ...]:
        """The sources of number features."""
        return tuple(dict.fromkeys(f.source for f in self.features if isinstance(f, Number)))

    @property
    def text_sources(self) -> tuple[str, ...]:
        """The sources of category and text features."""
        return tuple(dict.fromkeys(f.source for f in self.features if isinstance(f, Category | Text)))

    @property
    def list_sources(self) -> dict[str, str | None]:
        """The sources of multivalent categories, with the separator of their values; None where there are several."""
        return list_separators(self.features)


def load_mapping(path: Path) -> Mapping:
    """Reads and validates a mapping file. Raises InputError with one line that names every fault."""
    return parse_model(Mapping, read_yaml(path, "mapping"), f"mapping {path}")


def format_names() -> tuple[str, ...]:
    """The formats that come with the package, in alphabetical order."""
    return tuple(sorted(path.stem for path in FORMATS_FOLDER.glob("*.yaml")))


def load_format(name: str) -> Mapping:
    """The mapping of a shipped format. Raises InputError naming the formats when there is none of the name."""
    if name not in format_names():
        raise InputError(
            f"format {name}: unknown; the formats are {', '.join(format_names())}; or give --mapping"
        )
    return load_mapping(FORMATS_FOLDER / f"{name}.yaml")
