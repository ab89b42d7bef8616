"""Makes an example log of tables of rows: read, check, ids, order, publish.

``ingest.ingest`` is the whole; begin there. ``reader`` reads Parquet, CSV (``delimited``) and JSON Lines (``jsonl``) as
chunks of columns, with their side tables. ``examples`` checks and converts the columns of a chunk (``convert`` has
the conversions), with a reject for each bad row (``rejects``), and makes examples of it; ``ingest`` spills them by
query time, groups and sorts them and stages the shards. ``state`` is what a log remembers of its files and of rows that
wait for later ones.
"""
