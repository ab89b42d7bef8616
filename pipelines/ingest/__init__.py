"""Makes an example log of tables of rows: read and transform, spill and sort, publish.

``run.ingest`` is the whole; begin there. ``examples`` reads and transforms all files to one stream of Arrow tables,
``partitions`` spills that by query time, groups and sorts it and stages the shards. ``state`` is what a log remembers
of its files and of the rows that wait for later ones.
"""
