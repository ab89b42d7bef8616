"""A receipt says what a run was made of and came to, the same however often it was interrupted; verify repeats it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctr.cli import main
from ctr.io.errors import InputError
from ctr.training.loop import TIMING, train
from ctr.training.run.receipt import (
    check_repeatable,
    compare_results,
    environment_differences,
    make_receipt,
    read_receipt,
    write_receipt,
)
from growing_logs import train_part
from small_runs import LOGISTIC, config_of, draw_examples, publish, write_teacher

CONFIG = config_of(LOGISTIC)


@pytest.fixture(scope="module")
def run(log, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("receipt") / "run"
    train(log, CONFIG, folder)
    return folder


@pytest.fixture
def receipt(run, tmp_path) -> Path:
    return write_receipt(run, tmp_path / "receipt.json")[0]


def changed(path: Path, *keys: str, value: object) -> Path:
    """A copy of a receipt in which one entry is another."""
    content = json.loads(path.read_text())
    node: dict[str, Any] = content
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    other = path.with_name(f"changed-{'-'.join(keys)}.json")
    other.write_text(json.dumps(content))
    return other


def test_the_hashes_are_of_content_alone(run, log, receipt):
    content = json.loads(receipt.read_text())
    parts = [pd.read_parquet(part) for part in sorted((run / "predictions").glob("*"))]
    assert len(parts) > 1
    logit = pd.concat(parts)["logit"].to_numpy()
    with np.load(max((run / "checkpoints").glob("*/arrays.npz"))) as arrays:
        weights = {
            name.removeprefix("weights|"): arrays[name] for name in arrays if name.startswith("weights|")
        }
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode() + array.tobytes())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lasting = [{key: value for key, value in line.items() if key not in TIMING} for line in lines]
    text = "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lasting)
    assert content["results"] == {
        "rows": len(logit),
        "queries": 240,
        "predictions": hashlib.sha256(logit.astype("<f4").tobytes()).hexdigest(),
        "metrics": hashlib.sha256(text.encode()).hexdigest(),
        "weights": digest.hexdigest(),
    }
    assert content["config"]["seed"] == CONFIG.seed and content["environment"]["versions"]["tensorflow"]
    assert str(run) not in receipt.read_text() and str(log) not in receipt.read_text()


def test_a_run_that_was_interrupted_has_the_same_receipt(run, log, receipt, tmp_path):
    train_part(log, CONFIG, tmp_path / "parts", 350)
    with pytest.raises(InputError, match="the run is not finished"):
        make_receipt(tmp_path / "parts")
    train(log, CONFIG, tmp_path / "parts")
    assert write_receipt(tmp_path / "parts")[0] == tmp_path / "parts/receipt.json"
    assert (tmp_path / "parts/receipt.json").read_bytes() == receipt.read_bytes()
    # Of a directory its receipt is read, or made.
    assert read_receipt(tmp_path / "parts") == read_receipt(run) == read_receipt(receipt)
    train(log, config_of(LOGISTIC, {"optimizer": {"dense": {"learning_rate": 0.01}}}), tmp_path / "other")
    compared = compare_results(read_receipt(receipt), make_receipt(tmp_path / "other"))
    assert [one.name for one in compared if not one.is_equal] == ["predictions", "metrics", "weights"]


def test_what_a_run_did_not_record_is_not_compared_and_a_damaged_run_has_no_receipt(
    run, log, copy_run, tmp_path
):
    train(log, CONFIG.model_copy(update={"record_predictions": False}), tmp_path / "run")
    bare = make_receipt(tmp_path / "run")
    assert bare.results.predictions is None
    compared = compare_results(bare, make_receipt(run))
    assert [one.name for one in compared if not one.is_equal] == ["predictions"]
    for name, words in (
        ("predictions", r"predictions: has \d+ rows of the \d+ that were scored"),
        ("checkpoints", "there is no checkpoint"),
    ):
        damaged = copy_run(run)
        last = max((damaged / name).iterdir())
        last.rename(damaged / "elsewhere")
        with pytest.raises(InputError, match=words):
            make_receipt(damaged)
    edited = copy_run(run)
    (edited / "config.yaml").write_text((run / "config.yaml").read_text().replace("seed: 1", "seed: 2"))
    with pytest.raises(InputError, match=r"config\.yaml is not the configuration"):
        make_receipt(edited)


def refusal(path: Path, log: Path) -> str:
    with pytest.raises(InputError) as error:
        check_repeatable(read_receipt(path), log, path.name)
    return str(error.value)


def test_what_is_not_that_of_the_receipt_is_named_before_anything_is_trained(receipt, log, tmp_path):
    assert check_repeatable(read_receipt(receipt), log, "receipt").sha256() == recorded_hash(receipt)
    other = publish(tmp_path / "other", draw_examples(seed=3).table())
    line = refusal(receipt, other)
    assert line.startswith("receipt.json: the log differs: SHA-256 ") and "rows there" in line
    line = refusal(changed(receipt, "config", "seed", value=7), log)
    assert "the configuration differs: SHA-256 " in line
    assert "config.batch.rows: -1 is not allowed" in refusal(
        changed(receipt, "config", "batch", "rows", value=-1), log
    )
    for keys, value, words in (
        (("results",), {}, "results.weights: missing"),
        (("environment", "workers"), "two", "environment.workers"),
        (("format",), 9, "format: 9"),
    ):
        with pytest.raises(InputError, match=words):
            read_receipt(changed(receipt, *keys, value=value))
    with pytest.raises(InputError, match="no such receipt or run directory"):
        read_receipt(tmp_path / "none.json")


def recorded_hash(receipt: Path) -> str:
    return str(json.loads(receipt.read_text())["inputs"]["config_sha256"])


def test_environments_are_compared_but_for_the_kernel(receipt):
    recorded = json.loads(receipt.read_text())["environment"]
    here = {**recorded, "platform": "another", "intra_op_threads": 64}
    (difference,) = environment_differences(read_receipt(receipt), here)
    assert difference == f"intra_op_threads was {recorded['intra_op_threads']}, is 64"


def test_teachers_count_and_a_run_begun_from_another_one_is_not_repeated(log, run, copy_run, tmp_path):
    own = copy_run(log)
    write_teacher(own, "taught", lambda ids: ids % 3 - 2.0)
    config = config_of(LOGISTIC, {"objective": {"distillation": {"teacher": "taught"}}})
    train(own, config, tmp_path / "student")
    path, _ = write_receipt(tmp_path / "student")
    assert check_repeatable(read_receipt(path), own, "receipt")
    write_teacher(copied := copy_run(log), "taught", lambda ids: ids % 5 - 2.0)
    assert "the sidecars are not those of the receipt: teacher was " in refusal(path, copied)
    (warm := copy_run(run)).joinpath("init_from.json").write_text(json.dumps({"run": "runs/first"}))
    path, _ = write_receipt(warm)
    assert refusal(path, log) == (
        "receipt.json: the run was begun from the weights of runs/first, which no receipt holds: it cannot be "
        "repeated from one"
    )


def verify(capfd: pytest.CaptureFixture[str], path: Path, *more: object) -> tuple[int, str, str]:
    status = main(["-q", "verify", str(path), *map(str, more)])
    return status, *capfd.readouterr()


@pytest.mark.slow
def test_verify_trains_again_and_fails_where_a_bit_differs(receipt, log, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    status, out, err = verify(capfd, receipt, "--log", log, "--out", "again")
    assert (status, err) == (0, "") and out.count(" equal ") == 5 and "differs" not in out
    assert make_receipt(tmp_path / "again").results == read_receipt(receipt).results
    # A run that is there already is not taken for a repetition.
    status, out, err = verify(capfd, receipt, "--log", log, "--out", "again")
    assert status == 1 and "again is neither empty nor a new run directory" in err
    wrong = changed(
        changed(receipt, "results", "weights", value="0" * 64), "environment", "python", value="3.9"
    )
    status, out, err = verify(capfd, wrong, "--log", log)
    assert status == 1 and out.count(" equal ") == 4
    assert "weights      differs  0000000000000000 in the receipt, " in out
    assert "not repeated bit by bit: weights" in err
    assert "the likely cause is the environment: python was '3.9', is '3." in err


@pytest.mark.slow
def test_a_run_of_two_workers_is_repeated_by_two(log, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        # As it was, after the test.
        monkeypatch.setenv(name, "1")
    Path("run.yaml").write_text(json.dumps(LOGISTIC))
    assert main(["-q", "train", str(log), "--config", "run.yaml", "--out", "two", "--workers", "2"]) == 0
    capfd.readouterr()
    status, out, err = verify(capfd, Path("two"), "--log", log, "--out", "again")
    assert (status, err) == (0, "") and out.count(" equal ") == 5
    assert json.loads(Path("again/environment.json").read_text())["workers"] == 2
