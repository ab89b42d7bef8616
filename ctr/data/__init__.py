"""The example log: its features, its files, and its readers.

``schema.py`` has the kinds of features and ``ids/`` computes their ids from raw values; ``mapping.py`` and
``event_mapping.py`` map raw files to examples. ``log.py`` describes a log on disk, its manifests; begin there.
``shards.py`` and ``sidecar.py`` write and verify its files; ``reader.py``, ``stream.py`` and ``batches.py`` read it.
``sampling.py`` samples examples, ``inspection.py`` summarizes a log.
"""
