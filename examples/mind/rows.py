"""Converts the MIND news data set, behaviors.tsv with news.tsv beside it, to a table with a row for each candidate.

    python examples/mind/rows.py MINDsmall_train mind.parquet
    ctr ingest table mind.parquet --mapping examples/mind/mapping.yaml --out logs/mind

A line of behaviors.tsv is an impression: its id, user, time, the news read before, and the candidates with their clicks
(``N123-1 N45-0``). Columns of the table: impression_id, user_id, time, history, history_length, history_categories,
history_subcategories, news_id, clicked, example_id, category, subcategory, title, abstract.
"""

import csv
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

LINES_AT_A_TIME = 10_000


def read_tsv(path: Path, columns: list[str], **options):
    return pd.read_csv(
        path, sep="\t", names=columns, dtype=str, keep_default_na=False, quoting=csv.QUOTE_NONE, **options
    )


def rows_of(lines: pd.DataFrame, news: pd.DataFrame) -> pa.Table:
    histories = lines["history"].str.split()
    lines["history"], lines["history_length"] = histories, histories.str.len()
    for column, source in (("history_categories", "category"), ("history_subcategories", "subcategory")):
        texts = news[source].to_dict()
        lines[column] = [[texts[item] for item in history if item in texts] for history in histories]
    rows = lines.assign(candidate=lines.pop("impressions").str.split()).explode("candidate")
    rows[["news_id", "clicked"]] = rows.pop("candidate").str.rsplit("-", n=1, expand=True)
    rows["example_id"] = rows["impression_id"] + "-" + rows["news_id"]
    return pa.Table.from_pandas(rows.join(news, on="news_id"), preserve_index=False)


def main(folder: Path, out: Path) -> None:
    texts = ["category", "subcategory", "title", "abstract"]
    columns = ["news_id", *texts, "url", "title_entities", "abstract_entities"]
    news = read_tsv(next(folder.glob("news.tsv*")), columns).set_index("news_id")[texts]
    columns = ["impression_id", "user_id", "time", "history", "impressions"]
    behaviors = next(folder.glob("behaviors.tsv*"))
    writer = None
    for lines in read_tsv(behaviors, columns, chunksize=LINES_AT_A_TIME):
        table = rows_of(lines, news)
        writer = writer or pq.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table.cast(writer.schema))
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
