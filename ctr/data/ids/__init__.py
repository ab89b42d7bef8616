"""Ids of features, computed from raw values.

``rules.py`` has the rule of each kind of feature, over a few operations; begin there. The operations exist twice:
in ``graph.py`` for TensorFlow, which the exported model carries; in ``arrow.py`` for columns of tables, which ingestion
reads through ``tables.py``, and for the values that configurations name (``values.py``). Other packages call
``transform_tensors``, ``feature_ids``, ``transform_table`` and ``pack_table``, or ``string_ids``.
"""
