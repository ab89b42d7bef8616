"""Several workers that train together, in processes of their own, against one process that trains alone."""

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import fingerprint_logs
from ctr.config import parse_model
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.eval.windows import Sums
from ctr.training.ids.id_map import DEALT_ARRAYS
from ctr.training.run import checkpoint
from growing_logs import ADAGRAD
from small_runs import NUMBERS, SMALL, draw_examples, labeled, merged, publish, with_numbers, write_teacher
from worker_group import run_group, train_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Begun together, as processes take long to start.
TOGETHER = ("objective", "growing")
# In CI the first ones, the others in the soak.
RUNS = [
    *((name, 3) for name in TOGETHER),
    *((name, 2) for name in (*TOGETHER, "mirrored", "factorized", "components", "numbers")),
]
RAMP = [100, 500]
# Without kinks, and without sums of squares that begin at 0: there the sign of what is but rounding makes a whole step.
SMOOTH = {
    "model": {"crosses": {"layers": 1}, "deep": {"activation": "smelu"}},
    "optimizer": {"dense": {"shampoo": {"grafting": {"initial_accumulator": 0.001}}}},
    "batch": {"rows": 12},
}
DIVIDED, MIRRORED = {"workers": {"divided_from_mb": 0}}, {"workers": {"divided_from_mb": 1000}}
SHAMPOO = {"start_preconditioning_step": 2, "precondition_frequency": 5, "momentum": 0.9}
TWO_MODELS = {
    "model": {"experts": ["linear", "network"]},
    "optimizer": {
        "embeddings": {"linear_rule": "newton", "update_limit_absolute": 0.05, "update_limit_relative": 0.5},
        "dense": {"clip_norm": 0.5, "shampoo": {**SHAMPOO, "weight_decay": 0.001}},
    },
    "metrics": {"slices": []},
}
CROWDED = {
    "ids": {
        "capacity": 20,
        "shared_rows": 2,
        "admission": {"rule": "count", "count": 2, "exact_ids": 4},
        "eviction": {"policy": "score", "share": 0.2},
    }
}
# At higher rates one process, too, drifts away from itself by 1e-4 when its first weights are moved by 2e-6.
FACTORIZED = {
    "optimizer": {"embeddings": {"learning_rate": 0.02}, "dense": {"learning_rate": 0.005}},
    "model": {"factorized": {"width": 4, "ui_units": [4]}, "experts": ["network"]},
    "batch": {"rows": 40},
    "label_delay": 0.01,
    "export": {"every_examples": 700},
}
# Two components, whose products are computed at once.
COMPONENTS = {
    "model": {"ensemble": {"components": 2}, "experts": ["network"]},
    "optimizer": {"embeddings": {"learning_rate": 0.02}, "dense": {"learning_rate": 0.005}},
    "batch": {"rows": 40},
}


def objective(exposure: Path) -> dict[str, Any]:
    """All terms and labels, a sample, and components with embeddings of their own."""
    return {
        "model": {"ensemble": {"components": 2, "embeddings": "separate"}},
        "sampling": {"name": "part", "score": "all"},
        "objective": {
            "ranking": {"weight": 0.3, "max_pairs": 6, "ramp": RAMP},
            "distillation": {"teacher": "teacher", "ramp": RAMP},
            "anti_distillation": {"weight": 0.1, "ramp": RAMP},
            "bias_constraints": {
                "learning_rate": 0.3,
                "families": [
                    {"name": "ctr", "estimated_ctr": [0.2, 0.4], "features": {"position": "all"}},
                    {"name": "random", "log": "exposure"},
                ],
                "logs": [{"name": "exposure", "path": str(exposure), "own_loss": True}],
                "ramp": RAMP,
            },
            "labels": {"sale": {"given": "all"}, "lead": {}},
        },
    }


class World:
    """Logs, and what groups of workers made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.groups, self.made = folder, 0, set()
        examples = draw_examples(240)
        drawn = np.random.default_rng(7).random((2, len(examples)))
        sale, lead = np.where(drawn < 0.3, 1.0, np.where(drawn < 0.9, 0.0, np.nan))
        self.log = publish(folder / "log", **labeled(examples.table(), sale=sale, lead=lead))
        exposure = publish(folder / "exposure", draw_examples(240, seed=9).table())
        numbers = with_numbers(examples.table())
        self.numbers = publish(folder / "numbers", numbers, schema=NUMBERS)
        self.growing = fingerprint_logs.publish_growing(folder / "growing", examples)
        sampling = parse_model(SamplingConfig, {"non_click_rate": 0.6, "salt": "workers"}, "test")
        write_decisions(self.log, "part", sampling)
        base = merged(SMALL, SMOOTH)
        write_teacher(
            self.log, "teacher", lambda ids: np.random.default_rng(len(ids)).normal(-1, 1, len(ids))
        )
        self.configs = {
            "factorized": (self.log, merged(base, FACTORIZED, DIVIDED)),
            "objective": (self.log, merged(base, objective(exposure), DIVIDED)),
            "growing": (self.growing, merged(base, TWO_MODELS, CROWDED, DIVIDED)),
            "components": (self.log, merged(base, COMPONENTS, DIVIDED)),
            "numbers": (self.numbers, merged(base, TWO_MODELS, DIVIDED)),
            "mirrored": (self.growing, merged(base, TWO_MODELS, CROWDED, ADAGRAD, MIRRORED)),
        }

    def job(self, name: str, run: str, **more: Any) -> dict[str, Any]:
        log, config = self.configs[name]
        return {"log": str(log), "config": config, "run": str(self.folder / run), **more}

    def outputs(self) -> Path:
        self.groups += 1
        return self.folder / f"output-{self.groups}"

    def run(self, name: str, size: int) -> Path:
        """The run of a configuration by so many workers, made when it is first asked for."""
        if (name, size) not in self.made:
            names = TOGETHER if name in TOGETHER else (name,)
            states = {one: str(self.folder / f"states-{one}-{size}") for one in names}
            jobs = [self.job(one, f"{one}-{size}", states=states[one]) for one in names]
            run_group(train_group(size, jobs, self.outputs()))
            self.made |= {(one, size) for one in names}
        return self.folder / f"{name}-{size}"

    def states(self, name: str, size: int) -> Path:
        """What each worker of such a run had at each checkpoint."""
        self.run(name, size)
        return self.folder / f"states-{name}-{size}"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("workers"))


def predictions(run: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(sorted((run / "predictions").glob("*.parquet")))
    return {name: table.column(name).to_numpy() for name in table.column_names}


METRICS = """examples queries weight_sum per_query_auc logloss normalized_entropy calibration_bias batches log_rows
    trained_examples trained_rows skipped_steps rejected_rows parameters_dense parameters_embedding"""


def metrics_of(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in METRICS.split()}


@pytest.mark.slow(first=2)
@pytest.mark.parametrize(("name", "size"), RUNS)
def test_several_workers_compute_what_one_process_does(world, name, size):
    alone, together = (world.run(name, number) for number in (1, size))
    expected, found = predictions(alone), predictions(together)
    assert expected["example_id"].tolist() == found["example_id"].tolist()
    for column in (key for key in expected if key.startswith("logit")):
        np.testing.assert_allclose(found[column], expected[column], atol=1e-5, rtol=0, err_msg=column)
    one, other = (json.loads((run / "summary.json").read_text()) for run in (alone, together))
    assert one["batches"] > (90 if name == "objective" else 25)
    assert metrics_of(other) == pytest.approx(metrics_of(one), rel=1e-6, abs=1e-6)
    # Two rows that are predicted alike within rounding may change places, and each pair of them counts.
    clicked, others = (expected["logit"][expected["label"] == label] for label in (1, 0))
    alike = np.mean(np.abs(clicked[:, np.newaxis] - others) <= 2e-5)
    assert abs(other["auc"] - one["auc"]) <= 1e-6 + alike < 1e-4
    # They measure the importance of features at the same places.
    of_one, of_all = (
        Sums.of(pd.read_parquet(run / "windows.parquet")).importance() for run in (alone, together)
    )
    assert of_one["position"].tolist() == of_all["position"].tolist()
    for key in of_one:
        np.testing.assert_allclose(of_all[key], of_one[key], atol=1e-3, rtol=0, err_msg=key)
    # A checkpoint is read as that of one.
    whole, parts = (checkpoint.read(run / "checkpoints")[0] for run in (alone, together))
    assert whole.keys() == parts.keys()
    for key, array in whole.items():
        assert parts[key].shape == array.shape
        assert parts[key].dtype == array.dtype
        if array.dtype.kind != "f" or "ids/" in key:
            np.testing.assert_array_equal(parts[key], array, err_msg=key)


@pytest.mark.slow(first=2)
@pytest.mark.parametrize(("name", "size"), RUNS)
def test_what_all_workers_have_is_the_same_in_every_bit(world, name, size):
    states = sorted(world.states(name, size).glob("*.npz"))
    assert len(states) >= 3 * size
    for first in states[::size]:
        number = first.stem.partition("-")[0]
        of_ranks = [np.load(first.with_name(f"{number}-{rank}.npz")) for rank in range(size)]
        same = 0
        for key in of_ranks[0].files:
            own = key.removeprefix("pairs|")
            is_part = (
                own.startswith("shampoo|")
                or (own.startswith("rows") and name != "mirrored")
                or (own.startswith("ids|") and own.split("|", 2)[2].replace("|", "/") in DEALT_ARRAYS)
            )
            if not is_part:
                same += 1
                assert all(one[key].tobytes() == of_ranks[0][key].tobytes() for one in of_ranks), key
        assert same > 10


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(("name", "size"), [("growing", 3), ("growing", 2), ("mirrored", 2)])
def test_a_worker_holds_a_part_of_the_map_and_of_the_rows(world, name, size):
    """Of the map also where tables are whole; together they are that of one process, after admissions and evictions."""
    whole, _ = checkpoint.read(world.run(name, 1) / "checkpoints")
    of_map = {key: array for key, array in whole.items() if key.startswith("weights|ids/")}
    divided = {key: array for key, array in of_map.items() if key.split("/", 2)[2] in DEALT_ARRAYS}
    assert sum(map(len, divided.values())) > 100 and len(divided) < len(of_map)
    # By feature those that were admitted and those that were evicted.
    totals = [array[:2] for key, array in of_map.items() if key.endswith("/totals")]
    admitted, evicted = np.concatenate(totals, axis=1)
    assert admitted.min() > 5 and np.sum(evicted > 50) >= 2
    of_tables = {
        key: array for key, array in whole.items() if key.startswith(("weights|rows/", "weights|rows_"))
    }
    for rank in range(size):
        state = np.load(max(world.states(name, size).glob(f"*-{rank}.npz")))
        for key, array in of_map.items():
            own = state[key.removeprefix("weights|").replace("/", "|")]
            np.testing.assert_array_equal(own, array[rank::size] if key in divided else array, err_msg=key)
        for key, array in of_tables.items():
            rows = len(array) if name == "mirrored" else len(range(rank, len(array), size))
            assert len(state[key.removeprefix("weights|").replace("/", "|")]) == rows


@pytest.mark.soak
def test_exports_hold_all_rows(world):
    alone, run = (world.run("factorized", number) for number in (1, 2))
    export = max(
        (path for path in (run / "exports").iterdir() if path.is_dir()), key=lambda path: int(path.name)
    )
    assert sorted(path.name for path in (run / "exports").iterdir()) == sorted(
        path.name for path in (alone / "exports").iterdir()
    )
    weights, state = checkpoint.read(run / "checkpoints")
    assert int(export.name) == state["position"]["logs"][""]["rows"]
    exported = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    found = [
        exported.get_tensor(name)
        for name in exported.get_variable_to_shape_map()
        if name.startswith("weights/")
    ]
    expected = [
        array for name, array in weights.items() if name.startswith(("weights|rows/", "weights|dense/"))
    ]
    assert max(array.size for array in expected) > 500
    assert sorted((array.shape, array.tobytes()) for array in found) == sorted(
        (array.shape, array.tobytes()) for array in expected
    )


def contents(run: Path) -> dict[str, Any]:
    """What must be the same in every bit."""
    found = {path.name: path.read_bytes() for path in (run / "predictions").iterdir()}
    # Not their states, in which lengths of files are that have times in them.
    for path in (run / "checkpoints").glob("*/*.npz"):
        found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    found["sums"] = (run / "windows.parquet").read_bytes()
    return found


def test_the_same_number_of_workers_repeats_every_bit_killed_or_not(world):
    expected = contents(world.run("growing", 3))
    job = world.job("growing", "growing-again")
    group = train_group(3, [{**job, "kill": [1, 50]}], world.outputs())
    assert group.wait() == [1, -9, 1]
    lost = [line for line in group.output(0).splitlines() if line.startswith("error: ")]
    assert len(lost) == 1
    assert lost[0].startswith("error: WorkerLostError: worker 0 has lost worker 1")
    run_group(train_group(3, [job], world.outputs()))
    found = contents(world.folder / "growing-again")
    assert expected.keys() == found.keys()
    assert all(found[key] == expected[key] for key in expected)


def assert_passed_as(run: Path, expected: Path) -> None:
    """Each example once, in order, and predicted as there; with its metrics."""
    found, of_record = predictions(run), predictions(expected)
    assert found["example_id"].tolist() == of_record["example_id"].tolist()
    np.testing.assert_allclose(found["logit"], of_record["logit"], atol=1e-5, rtol=0)
    own, other = (json.loads((one / "summary.json").read_text()) for one in (run, expected))
    assert metrics_of(own) == pytest.approx(metrics_of(other), rel=1e-6, abs=1e-6)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sizes", [(2,), (1, 2, 3)], ids=["the same number", "any number"])
def test_killed_again_and_again_at_any_time_every_example_is_passed_once(world, sizes, capsys):
    source, kills, passes, expected = random.Random(str(sizes)), 0, 0, world.run("growing", 2)
    while kills < 10:
        passes += 1
        run = f"growing-killed-{len(sizes)}-{passes}"
        while True:
            size = source.choice(sizes)
            # By batches, so that a slow machine comes to the next checkpoint as often; then within one of the next.
            moment = source.randrange(size), source.randrange(1, 60), source.uniform(0, 0.2)
            codes = train_group(size, [world.job("growing", run, kill_within=moment)], world.outputs()).wait()
            if codes == [0] * size:
                break
            assert codes[moment[0]] == -signal.SIGKILL and 0 not in codes
            kills += 1
        assert_passed_as(world.folder / run, expected)
        if sizes == (2,):
            assert contents(world.folder / run) == contents(expected)
    with capsys.disabled():
        print(f"\n{kills} kills in {passes} passes")


@pytest.mark.soak
def test_weights_that_break_stop_all_workers_alike(world):
    log, config = world.configs["mirrored"]
    broken = merged(config, {"optimizer": {"dense": {"learning_rate": 1e30}}, **DIVIDED})
    run = world.folder / "broken"
    group = train_group(
        2, [{"log": str(log), "config": broken, "run": str(run), "fails": True}], world.outputs()
    )
    assert group.wait() == [0, 0], group.output(0)[-3000:] + group.output(1)[-3000:]
    ends = [
        [line for line in group.output(rank).splitlines() if line.startswith("refused: ")] for rank in (0, 1)
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 1 and " --skip 0:" in ends[0][0]


@pytest.mark.soak
def test_a_warm_start_and_a_recorded_sidecar(world):
    found = []
    for size in (1, 2):
        log = shutil.copytree(world.growing, world.folder / f"recorded-log-{size}")
        config = merged(world.configs["mirrored"][1], DIVIDED)
        first = merged(config, {"time_range": {"end": "1970-01-01T00:00:00.120Z"}})
        source, begun = (str(world.folder / f"{name}-{size}") for name in ("source", "begun"))
        jobs = [
            {"log": str(log), "config": first, "run": source, "record": "predicted"},
            {"log": str(log), "config": merged(config, {"seed": 2}), "run": begun, "init_from": source},
        ]
        run_group(train_group(size, jobs, world.outputs()))
        expected = predictions(Path(source))
        parts = sorted((log / "sidecars" / "predicted").rglob("*.parquet"))
        table = pq.read_table(parts)
        recorded = dict(
            zip(*(table.column(name).to_pylist() for name in ("example_id", "logit")), strict=True)
        )
        assert [recorded[one] for one in expected["example_id"].tolist()] == expected["logit"].tolist()
        found.append(predictions(Path(begun)))
    assert found[0]["query_time"].min() >= 120_000
    assert found[0]["example_id"].tolist() == found[1]["example_id"].tolist()
    np.testing.assert_allclose(found[1]["logit"], found[0]["logit"], atol=1e-5, rtol=0)
