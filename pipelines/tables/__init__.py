"""Makes an example log from tables of rows: reads, checks, computes ids, orders, publishes.

Begin with ``ingest.ingest``, which does all of this. ``reader`` reads Parquet, CSV (``delimited``) and JSON Lines
(``jsonl``) as chunks of columns, with their side tables. ``examples`` checks and converts the columns of a chunk
(``convert``), with a reject for each bad row (``rejects``), and makes examples from it; ``ingest`` spills them by
query time, groups and sorts them and stages the shards. ``state`` records the files of a log and the rows that
wait for later ones.
"""
