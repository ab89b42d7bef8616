"""Raw rows of a known format: scored by an export of a checkpoint, they get what the run itself predicted there."""

import random
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import load_mapping
from ctr.data.reader import join_rows, read_rows
from ctr.pipelines.tables.ingest import ingest

CONFIG = """
batch: {rows: 700}
model: {crosses: {layers: 2, rank: 4, ramp: 3000}, deep: {units: [32, 16], activation: smelu}, prior: 0.1}
checkpoint: {every_examples: 1, keep: 99}
compute_dtype: float32
"""


def write_mind(folder: Path, impressions: int) -> None:
    source = random.Random(3)
    news = [f"N{n}" for n in range(60)]
    lines = []
    for number in range(impressions):
        time = f"11/{11 + number // 100}/2019 {1 + number % 11}:{number % 60:02d}:00 AM"
        history = " ".join(source.choices(news, k=source.randrange(14)))
        shown = source.sample(news, source.randrange(2, 9))
        candidates = " ".join(f"{n}-{int(source.random() < 0.2)}" for n in shown)
        lines.append(f"{number}\tU{source.randrange(40)}\t{time}\t{history}\t{candidates}\n")
    folder.mkdir()
    (folder / "behaviors.tsv").write_text("".join(lines))
    titles = [f"{n}\tc{i % 5}\ts{i % 9}\tTitle {i}\t\thttp://x\t[]\t[]\n" for i, n in enumerate(news)]
    (folder / "news.tsv").write_text("".join(titles))


def is_known(log: Path, begin: int, end: int) -> np.ndarray:
    """Whether all ids of each row [begin, end) are in rows before: new ones share a row until they are learned from."""
    schema = read_schema(log)
    rows = join_rows(list(read_rows(log, schema, read_manifests(log))))
    known = np.ones(end - begin, bool)
    for name in schema.growing:
        if name in schema.single_valued:
            ids = rows.ids[:, schema.single_valued.index(name)]
            known &= np.isin(ids[begin:end], np.append(ids[:begin], 0))
        else:
            ids, ends = rows.multivalent[name]
            known &= [
                np.isin(ids[ends[n] : ends[n + 1]], ids[: ends[begin]]).all() for n in range(begin, end)
            ]
    return known


@pytest.mark.slow
def test_mind(tmp_path, monkeypatch, root):
    """The batch that begins at a checkpoint was predicted with exactly the weights of that checkpoint."""
    monkeypatch.chdir(tmp_path)
    write_mind(Path("raw"), 600)
    example, table = root / "examples" / "mind", Path("mind.parquet")
    runpy.run_path(str(example / "rows.py"))["main"](Path("raw"), table)
    ingest(load_mapping(example / "mapping.yaml"), [table], Path("log"))
    Path("config.yaml").write_text(CONFIG)
    assert main(["train", "log", "--config", "config.yaml", "--out", "run"]) == 0
    begin, end = sorted(int(path.name) for path in Path("run/checkpoints").iterdir())[1:3]
    assert main(["export", "run", "--out", "models", "--checkpoint", str(begin)]) == 0
    mapping = str(example / "mapping.yaml")
    command = ["ingest", "table", str(table), "--mapping", mapping, "--without-labels", "--out", "unlabeled"]
    assert main(command) == 0
    assert main(["score", "models", "unlabeled", "--out", "scores.parquet"]) == 0
    assert not Path("scores.parquet.rejects.jsonl").exists()
    parts = [pq.read_table(path) for path in sorted(Path("run/predictions").iterdir())]
    predictions, scores = pa.concat_tables(parts).to_pandas(), pd.read_parquet("scores.parquet")
    assert "label" not in scores and scores["example_id"].is_unique
    predicted = predictions["logit"].to_numpy()
    scored = scores.set_index("example_id")["logit"][predictions["example_id"]].to_numpy()
    part = begin + np.flatnonzero(is_known(Path("log"), begin, end))
    assert end - begin > 300 and len(part) > 100 and np.ptp(predicted[part]) > 0.1
    np.testing.assert_allclose(scored[part], predicted[part], rtol=0, atol=1e-5)
    # The weights of another position give others.
    assert np.abs(scored[end:] - predicted[end:]).max() > 1e-4
    np.testing.assert_allclose(scores["p"], 1 / (1 + np.exp(-scores["logit"])), rtol=1e-6)
