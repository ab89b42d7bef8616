"""Pipelines from raw logs to example logs, and from predictions to metrics.

``tables`` makes a log from tables of rows, ``events`` from separate impressions and
clicks; ``infer`` infers the columns of a table; ``evaluate`` measures predictions. Several of them share ``spill``,
``beam`` and ``processes``.
"""
