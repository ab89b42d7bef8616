"""Ids of features, made of raw values.

``rules.py`` has the one rule of each kind of feature, over a few operations; begin there. The operations exist three
times: in ``graph.py`` for TensorFlow, which the exported model carries; in ``values.py`` for a few rows as Python's
lists, without TensorFlow; in ``arrow.py`` for columns of tables, which ingestion reads by ``tables.py``. Others call
``transform_tensors``, ``RowIds`` and ``feature_ids``, ``transform_table`` and ``pack_table``, or ``string_ids``.
"""
