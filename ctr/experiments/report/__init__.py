"""Report of an experiment, without TensorFlow.

`results` reads everything: begin there. It measures the arms (`arms`, `slices`, `loops`, `costs`, `tuning_points`,
from the files of `files`); `tables` and `figures` show them, `numbers` writes them as JSON and CSV, and `write` puts
together the page and the text.
"""
