"""Reads raw files: CSV, JSON Lines, Parquet and MIND become chunks of Arrow columns, with a reject for each bad row.

``reader`` begins: it reads the files of a mapping with their side tables, by one reader for each format
(``table_files``, ``delimited``, ``jsonl``, ``mind``). ``raw_columns`` checks and converts the columns of a chunk
(``convert`` has the conversions), ``rejects`` describes bad rows.
"""
