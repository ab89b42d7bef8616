"""The lines of metrics.jsonl as TensorBoard events."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from ctr.training.tensor_files import written_by_tensorflow


class EventFile:
    """The events of a run, written anew from its lines whenever it begins or goes on: no others are there then."""

    def __init__(self, folder: Path, lines: Path) -> None:
        """Writes the events of all ``lines`` into ``folder``, where nothing but earlier events is deleted."""
        self._folder = folder
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        with written_by_tensorflow(folder):
            self._writer = tf.summary.create_file_writer(str(folder))
        for line in lines.read_bytes().splitlines():
            self._add(json.loads(line))

    def append(self, line: dict[str, Any]) -> None:
        """Adds the events of one line."""
        self._add(line)
        with written_by_tensorflow(self._folder):
            self._writer.flush()

    def _add(self, line: dict[str, Any]) -> None:
        with written_by_tensorflow(self._folder), self._writer.as_default():
            tf.summary.experimental.write_raw_pb(_scalars(line).SerializeToString(), step=line["examples"])

    def close(self) -> None:
        """Closes the file."""
        with written_by_tensorflow(self._folder):
            self._writer.close()


def _scalars(line: dict[str, Any]) -> Any:
    """The numbers of a line as one summary: as ``tf.summary.scalar`` makes them, which writes each by an operation."""
    summary = tf.compat.v1.Summary()
    for name, number in line.items():
        if isinstance(number, int | float) and name != "examples":
            value = summary.value.add(tag=f"window/{name}")
            value.tensor.dtype = tf.float32.as_datatype_enum
            value.tensor.float_val.append(number)
            value.metadata.plugin_data.plugin_name = "scalars"
    return summary
