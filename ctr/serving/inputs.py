"""Inputs of a model's functions, and Python's values as columns for them."""

from collections.abc import Mapping
from typing import Any

from ctr.io.errors import InputError
from ctr.serving.raw_values import as_list, make_numbers, make_texts, make_times, row_count


class FunctionInputs:
    """Inputs of a function, as the metadata describes them: by input name, the column of raw values or of ids.

    ``texts``, ``numbers`` and ``times`` are those that are strings, float32 and int64.
    """

    def __init__(self, name: str, described: Mapping[str, Mapping[str, Any]]) -> None:
        self._name = name
        self.columns: dict[str, str] = {key: one["column"] for key, one in described.items()}
        self.dtypes: dict[str, str] = {key: one["dtype"] for key, one in described.items()}
        self.texts = self._of_type("string")
        self.numbers = self._of_type("float32")
        self.times = self._of_type("int64")

    def _of_type(self, dtype: str) -> dict[str, str]:
        return {key: column for key, column in self.columns.items() if self.dtypes[key] == dtype}

    def read(
        self, features: Mapping[str, Any], separators: Mapping[str, str | None], few: int
    ) -> tuple[dict[str, Any], int]:
        """Converts the columns that the function takes to lists, float32 and int64 arrays, and counts the rows.

        Lists are joined with ``separators``. Of more rows than ``few``, texts stay as they are, and TensorFlow
        converts them. Raises InputError: a column is absent, lengths differ, or a value is not one of its kind.
        """
        absent = [source for source in self.columns.values() if source not in features]
        if absent:
            required = ", ".join(self.columns.values())
            raise InputError(f"{self._name}: the column {absent[0]} is absent; required: {required}")
        rows = row_count({source: features[source] for source in self.columns.values()})
        columns: dict[str, Any] = {}
        for source in self.texts.values():
            column = as_list(features[source], rows)
            plain = rows > few or set(map(type, column)) <= {str}
            columns[source] = column if plain else make_texts(source, column, separators.get(source))
        for source in self.numbers.values():
            columns[source] = make_numbers(source, features[source], rows)
        for source in self.times.values():
            columns[source] = make_times(source, features[source], rows)
        return columns, rows

    def refuse_texts(self, columns: Mapping[str, Any], separators: Mapping[str, str | None]) -> None:
        """Raises InputError for the first text that has no bytes."""
        for source in self.texts.values():
            make_texts(source, columns[source], separators.get(source))
