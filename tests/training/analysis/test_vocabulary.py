"""The ids of a run as ``ctr vocabulary`` lists them, against the rows of its log and its weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from ctr.cli import main
from ctr.config import parse_model
from ctr.eval.display import fingerprint
from ctr.io.errors import InputError
from ctr.training.analysis.vocabulary import list_vocabulary
from ctr.training.config import TrainConfig
from ctr.training.loop import open_session, train
from fingerprint_logs import prints_of, publish_growing, values_of
from small_runs import SMALL, draw_examples, merged

CHANGES = {
    "max_rejected_share": 1,
    "ids": {"capacity": 1000},
    "optimizer": {"dense": {"shampoo": {"start_preconditioning_step": None}}},
}
CONFIG = parse_model(TrainConfig, merged(SMALL, CHANGES), "test")


@pytest.fixture(scope="module")
def rows():
    return draw_examples()


@pytest.fixture(scope="module")
def run(rows, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    train(publish_growing(folder / "log", rows), CONFIG, folder / "run")
    return folder / "run"


def test_ids_are_counted_and_named(run, rows):
    found = list_vocabulary(run)
    assert found.examples == len(rows)
    for name in ("user", "tags", "position"):
        ids, counts = np.unique(values_of(rows, name), return_counts=True)
        uses = dict(zip(map(fingerprint, prints_of(ids).tolist()), counts.tolist(), strict=True))
        own = {entry.fingerprint: entry for entry in found.entries if entry.feature == name}
        assert {key: entry.uses for key, entry in own.items()} == uses
        assert (found.live[name], found.capacity[name]) == (len(ids), 1000)
        values = {entry.value for entry in own.values()}
        assert values == ({f"user-{one}" for one in ids} if name == "user" else {None})
    times = rows.query * 1000
    for entry in found.entries:
        assert times[0] <= entry.first_seen <= entry.last_seen <= times[-1]


def test_norms_are_those_of_the_rows_that_the_trainer_looks_up(run):
    found = list_vocabulary(run, "tags")
    prints = np.array([int(entry.fingerprint, 16) for entry in found.entries], np.uint64).view(np.int64)
    with open_session(run.parent / "log", CONFIG, run) as session:
        state = session.run.state
        [(number, layout)] = [
            (number, layout)
            for number, layout in enumerate(state.layouts)
            if "tags" in [one.name for one in layout.growing]
        ]
        place = [one.name for one in layout.growing].index("tags")
        places = state.tables.id_maps[number].look_up(np.full(len(prints), place, np.int16), prints)
        table = state.tables.weights[number].numpy()[places]
    for entry, row in zip(found.entries, table, strict=True):
        assert (
            entry.norm == pytest.approx(np.linalg.norm(row[:4].astype(np.float64)), rel=1e-12) and entry.norm
        )
        assert entry.linear_weight == pytest.approx(row[4])


def test_orders(run):
    keys = {
        "uses": lambda entry: -entry.uses,
        "age": lambda entry: entry.first_seen,
        "last_seen": lambda entry: -entry.last_seen,
        "norm": lambda entry: -entry.norm,
    }
    for order, key in keys.items():
        everything = list_vocabulary(run, order=order)
        found = list(map(key, everything.entries))
        assert found == sorted(found) and len(set(found)) > 3
        few = list_vocabulary(run, order=order, limit=7)
        assert few.entries == everything.entries[:7] and few.live == everything.live


def test_the_command_prints_a_line_for_each_id(run, tmp_path, capsys):
    assert main(["vocabulary", str(run), "--feature", "user", "--limit", "3"]) == 0
    head, columns, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("ids with a row of their own: user 29 of 1,000")
    assert columns.split() == ["feature", "uses", "first", "seen", "last", "seen", "norm", "linear", "value"]
    assert len(lines) == 3 and all("user-" in line and "1970-01-01" in line for line in lines)
    assert main(["vocabulary", str(run), "--limit", "4", "--sort", "norm", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["norm"] for one in content["ids"]] == [
        entry.norm for entry in list_vocabulary(run, order="norm", limit=4).entries
    ]
    assert content["features"]["user"] == {"live": 29, "capacity": 1000}
    # Without the values: the fingerprint, and how to keep them.
    assert main(["vocabulary", str(run), "--feature", "tags", "--limit", "1"]) == 0
    *_, line, hint = capsys.readouterr().out.splitlines()
    assert line.split()[-1] == list_vocabulary(run, "tags").entries[0].fingerprint
    assert hint.startswith("values of tags are not known: name these features under keep_values")
    assert list_vocabulary(run, "user", log=tmp_path / "elsewhere").entries[0].value is None


def test_what_cannot_be_listed_is_refused(run, tmp_path, capsys):
    with pytest.raises(
        InputError, match="--feature item: has a fixed number of ids; allowed: user, tags, position"
    ):
        list_vocabulary(run, "item")
    with pytest.raises(InputError, match="--feature nobody: is no feature of the run"):
        list_vocabulary(run, "nobody")
    assert main(["vocabulary", str(tmp_path / "none")]) == 1
    assert "no such run directory" in capsys.readouterr().err
    assert main(["vocabulary", str(run), "--limit", "0"]) == 1
    assert "--limit 0: allowed: 1 and more" in capsys.readouterr().err
