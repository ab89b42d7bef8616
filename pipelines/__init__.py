"""Pipelines from raw logs to example logs, and from predictions to metrics.

``rows`` reads raw files to Arrow tables; ``ingest`` makes a log of tables of rows, ``events`` of impressions and clicks
that come apart; ``infer`` infers the columns of a table; ``evaluate`` measures predictions. ``spill``,
``beam`` and ``processes`` are what several of them share.
"""
