"""Makes an example log of tables of rows: read and check, transform, spill and sort, publish.

``ingest.ingest`` is the whole; begin there. ``reader`` reads CSV, JSON Lines, Parquet and MIND files as chunks of Arrow
columns, by one reader for each format (``table_files``, ``delimited``, ``jsonl``, ``mind``), with their side tables
(``joins``). ``raw_columns`` checks and converts the columns of a chunk (``convert`` has the conversions), with a reject
for each bad row (``rejects``); ``examples`` makes all chunks one stream of examples. ``partitions`` spills that by
query time, groups and sorts it and stages the shards. ``state`` is what a log remembers of its files and of the rows
that wait for later ones.
"""
