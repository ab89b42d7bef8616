"""Raw rows of known formats: scored by an export of a checkpoint, they get what the run itself predicted there.

The batch that begins at a checkpoint was predicted with exactly the weights of that checkpoint.
"""

import os
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.cli import main
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import load_format
from ctr.data.reader import join_rows, read_rows
from ctr.pipelines.ingest.run import ingest

DATA = os.environ.get("CTR_DATA")
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}
CONFIG = """
batch: {{rows: {rows}}}
model:
  crosses: {{layers: 2, rank: 4, ramp: 3000}}
  deep: {{units: [32, 16], activation: smelu}}
  prior: 0.1
checkpoint: {{every_examples: 1, keep: 99}}
compute_dtype: {dtype}
"""


def write_mind(folder: Path, impressions: int) -> Path:
    source = random.Random(3)
    news = [f"N{n}" for n in range(60)]
    lines = []
    for number in range(impressions):
        time = f"11/{11 + number // 100}/2019 {1 + number % 11}:{number % 60:02d}:00 AM"
        history = " ".join(source.choices(news, k=source.randrange(14)))
        shown = " ".join(
            f"{n}-{int(source.random() < 0.2)}" for n in source.sample(news, source.randrange(2, 9))
        )
        lines.append(f"{number}\tU{source.randrange(40)}\t{time}\t{history}\t{shown}\n")
    folder.mkdir()
    (folder / "behaviors.tsv").write_text("".join(lines))
    (folder / "news.tsv").write_text(
        "".join(f"{n}\tc{i % 5}\ts{i % 9}\tTitle {i}\t\thttp://x\t[]\t[]\n" for i, n in enumerate(news))
    )
    return folder


def run_and_score(folder: Path, log: Path, inputs: list[str], dtype: str, rows: int):
    """Trains with a checkpoint after every batch, exports the second one, scores the raw rows."""
    config = CONFIG.format(rows=rows, dtype=dtype)
    (folder / "config.yaml").write_text(config)
    run = folder / "run"
    assert main(["train", str(log), "--config", str(folder / "config.yaml"), "--out", str(run)]) == 0
    positions = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    begin, end = positions[1:3]
    export = ["export", str(run), "--out", str(folder / "models"), "--checkpoint", str(begin)]
    assert main(export) == 0
    out = folder / "scores.parquet"
    assert main(["score", str(folder / "models"), *inputs, "--out", str(out)]) == 0
    assert not (folder / "scores.parquet.rejects.jsonl").exists()
    parts = [pq.read_table(path) for path in sorted((run / "predictions").iterdir())]
    return pa.concat_tables(parts).to_pandas(), pd.read_parquet(out), begin, end


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


def check_mind(folder: Path, raw: Path, dtype: str, rows: int) -> None:
    log, inputs = folder / "log", [str(raw), "--format", "mind"]
    ingest(load_format("mind"), [raw], log)
    predictions, scores, begin, end = run_and_score(folder, log, inputs, dtype, rows)
    assert set(scores) == {"file", "row", "example_id", "logit", "p"}
    assert scores["example_id"].is_unique
    predicted = predictions["logit"].to_numpy()
    scored = scores.set_index("example_id")["logit"][predictions["example_id"]].to_numpy()
    part = begin + np.flatnonzero(is_known(log, begin, end))
    assert end - begin > 300 and len(part) > 100 and np.ptp(predicted[part]) > 0.1
    np.testing.assert_allclose(scored[part], predicted[part], rtol=0, atol=TOLERANCE[dtype])
    # The weights of another position give others.
    assert np.abs(scored[end:] - predicted[end:]).max() > 10 * TOLERANCE[dtype]
    np.testing.assert_allclose(scores["p"], 1 / (1 + np.exp(-scores["logit"])), rtol=1e-6)


@pytest.mark.slow
def test_mind(tmp_path):
    check_mind(tmp_path, write_mind(tmp_path / "raw", 600), "float32", 700)


@pytest.mark.skipif(DATA is None, reason="CTR_DATA does not name the folder of the real logs")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_logs(tmp_path, dtype):
    assert DATA is not None
    check_mind(tmp_path, Path(DATA) / "mind", dtype, 30_000)
