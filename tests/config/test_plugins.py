"""Plug-ins of an installed package: read, trained, resumed, exported and scored; refused where they are missing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from ctr.cli import main
from ctr.config import parse_model
from ctr.config.plugins import find_plugin
from ctr.data.derived import ColumnRule
from ctr.data.ids.graph import check_rules
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.models.architecture import Architecture
from ctr.models.click_model import Scores, TowerInput, forward
from ctr.models.initial_weights import init_weights, weight_shapes
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import BatchObjective, loss_and_terms, loss_terms
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.run.checkpoint import read

ROOT = Path(__file__).parents[2]
EXTRA = {"focal": {"weight": 0.5, "gamma": 1, "ramp": [100, 400]}}
NETWORK = {"gated_layer": {"width": 8}}
FEATURES = [
    {"name": "user", "kind": "category", "source": "user", "buckets": 30},
    {"name": "site", "kind": "category", "source": "site", "buckets": 50},
]
CONFIG = {
    "objective": {"extra": EXTRA},
    "model": {"network": NETWORK, "crosses": {"ramp": [0, 500]}, "query_size": False},
    "batch": {"rows": 64},
    "metrics": {"window_examples": 300},
    "checkpoint": {"every_examples": 300, "keep": 100},
    "compute_dtype": "float32",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the example package is installed into."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")],
        check=True,
    )
    return folder / "site"


@pytest.fixture
def plugin(installed, monkeypatch):
    monkeypatch.syspath_prepend(installed)


@pytest.fixture(scope="module")
def log(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    random = np.random.default_rng(1)
    lines = ["time,user,page,clicked"]
    for row in range(1200):
        user, site = random.integers(0, 20, 2)
        clicked = int(random.random() < (0.5 if (user + site) % 3 == 0 else 0.1))
        lines.append(f"{1_600_000_000 + row},u{user},https://Site{site}.com/{row}?q,{clicked}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    mapping = {
        "input": {"type": "csv"},
        "time": {"column": "time", "unit": "s"},
        "label": "clicked",
        "derive": {"site": {"from": "page", "plugin": {"host": {}}}},
        "partition": "10m",
        "features": FEATURES,
    }
    (folder / "mapping.yaml").write_text(yaml.safe_dump(mapping))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(installed)
        arguments = ["ingest", "table", str(folder / "rows.csv"), "--mapping", str(folder / "mapping.yaml")]
        assert main([*arguments, "--out", str(folder / "log"), "--quiet"]) == 0
    return folder


def train(log, out, *options, **changes):
    path = out.parent / f"{out.name}.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return main(["train", str(log / "log"), "--config", str(path), "--out", str(out), "--quiet", *options])


@pytest.fixture(scope="module")
def trained(installed, log):
    """A folder with a run by plug-ins and its export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(installed)
        assert train(log, log / "run") == 0
        assert main(["export", str(log / "run"), "--out", str(log / "models"), "--quiet"]) == 0
    return log


@pytest.mark.slow
def test_a_run_with_plugins_is_resumed_exported_and_scored_alike(plugin, trained, tmp_path):
    run, again = trained / "run", tmp_path / "again"
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["ctr-plugin-example"] == "0.1"
    windows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # Its ramp begins after 100 examples.
    assert all(window["loss_extra_focal"] > 0 for window in windows[1:])
    # From an earlier checkpoint the same bits again.
    shutil.copytree(run, again)
    for folder in sorted((again / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    (again / "summary.json").unlink()
    assert train(trained, again) == 0
    (expected, _), (found, _) = (read(folder / "checkpoints") for folder in (run, again))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    # Single rows are scored as many are.
    pages = [f"HTTP://site{n % 7}.com?{n}" for n in range(40)]
    rows = {"user": [f"u{n % 20}" for n in range(40)], "page": pages}
    scorer = Scorer(trained / "models")
    many = scorer.predict(rows)
    few = [scorer.predict({key: value[n : n + 1] for key, value in rows.items()})[0] for n in range(40)]
    np.testing.assert_allclose(few, many, atol=1e-6)
    assert np.ptp(many) > 0.01
    # Host, not the page: what follows it makes no difference.
    one, other = scorer.predict({"user": ["u1", "u1"], "page": ["site3.com", "https://SITE3.com/x"]})
    assert one == other


def test_what_is_not_installed_is_named_in_one_line(trained, tmp_path, capfd):
    capfd.readouterr()
    (tmp_path / "network.yaml").write_text(yaml.safe_dump({"model": CONFIG["model"]}))
    rule = "the rule of columns host is a plug-in that no installed package has; none is installed"
    network = "the network gated_layer is a plug-in that no installed package has; none is installed"
    loss = "the loss focal is a plug-in that no installed package has; none is installed"
    out, table = tmp_path / "out", trained / "rows.csv"
    for command, message in (
        (("train", trained / "log", "--out", out), rule),
        (("train", trained / "log", "--config", tmp_path / "network.yaml", "--out", out), network),
        (("export", trained / "run", "--out", out), loss),
        (("ingest", "table", table, "--mapping", trained / "mapping.yaml", "--out", out), rule),
    ):
        assert main([*map(str, command)]) == 1
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) <= 2 and message in lines[0], lines
    with pytest.raises(InputError, match="rule of columns host is a plug-in that no installed"):
        Scorer(trained / "models")


WRONG = [
    ({"objective": {"extra": {"focal": {"gama": 1}}}}, "focal: gama: unknown key; allowed: gamma, ramp, w"),
    ({"objective": {"extra": {"focal": {"gamma": -1}}}}, "focal: gamma: -1 is not allowed: .*greater than"),
    ({"objective": {"extra": {"focl": {}}}}, "loss focl is a plug-in .*; installed: focal.*did you mean f"),
    ({"model": {"network": {"gated_layer": 3}}}, "gated_layer: a mapping of keys to values is expected"),
]


def test_the_keys_of_plugins_are_written_and_read_again_and_wrong_ones_refused(plugin):
    config = parse_model(TrainConfig, CONFIG, "config")
    written = config.model_dump(mode="json")
    assert written["objective"]["extra"] == {"focal": {"weight": 0.5, "ramp": [100, 400], "gamma": 1.0}}
    assert written["model"]["network"] == {"gated_layer": {"width": 8}}
    again = parse_model(TrainConfig, written, "config")
    assert again == config and again.sha256() == config.sha256()
    other = {**CONFIG, "objective": {"extra": {"focal": {**EXTRA["focal"], "gamma": 2}}}}
    assert parse_model(TrainConfig, other, "config").sha256() != config.sha256()
    for content, message in WRONG:
        with pytest.raises(InputError, match=message) as caught:
            parse_model(TrainConfig, content, "config")
        assert "\n" not in str(caught.value)


def test_the_loss_of_a_plugin_is_its_formula(plugin):
    focal = find_plugin("ctr.losses", "focal")(gamma=1.5)
    label, logit = np.array([0, 1, 1, 0], np.float32), np.array([-2, 0.5, -80, 300], np.float32)
    happened = 1 / (1 + np.exp(-np.float64(logit) * (2 * label - 1)))
    with np.errstate(divide="ignore"):
        expected = np.where(happened > 0, (1 - happened) ** 1.5 * -np.log(happened), np.abs(logit))
    np.testing.assert_allclose(focal.loss(label, logit), expected, rtol=1e-5, atol=1e-6)


def test_a_loss_of_a_plugin_is_added_with_weight_and_ramp(plugin):
    config = parse_model(ObjectiveConfig, {"extra": {"focal": {"weight": 0.5, "gamma": 0}}}, "test")
    assert loss_terms(config) == ("logistic", "extra_focal")
    label, weight = np.array([1, 0, 1], np.float32), np.array([2, 0, 0.5], np.float32)
    logits = np.array([[0.5, np.inf, -1], [1, 0, 2]], np.float32)
    targets = {name: tf.constant(column) for name, column in (("label", label), ("own_weight", weight))}
    ramps = {"extra_focal": tf.constant(0.25)}
    batch = BatchObjective(config, targets, ramps)
    loss, terms = loss_and_terms(batch, tf.constant(logits[0]), Scores(logits, logits))
    # With gamma 0 it is the logistic loss.
    losses = np.log1p(np.exp(-np.float64(logits) * (2 * label - 1)))[:, [0, 2]]
    logistic = (losses @ weight[[0, 2]]).mean() / weight.sum()
    np.testing.assert_allclose(terms, [logistic, 0.125 * logistic], rtol=1e-6)
    np.testing.assert_allclose(loss, 1.125 * logistic, rtol=1e-6)


@pytest.mark.parametrize("copies", [1, 2])
def test_each_component_computes_the_network_of_a_plugin_by_its_own_weights(plugin, copies):
    network = find_plugin("ctr.models", "gated_layer")(width=3)
    shape = Architecture(0, 0, (3,), components=2, network=network)
    weights = init_weights(shape, {"quality": 4}, seed=5)
    assert weight_shapes(shape, {"quality": 4}) == {name: tuple(own.shape) for name, own in weights.items()}
    first = {name.removeprefix("component_0/") for name in weights if name.startswith("component_0/")}
    own = {"quality/network/values", "quality/network/bias", "quality/network/gates"}
    assert first == {*own, "quality_head", "output_bias"}
    random = np.random.default_rng(2)
    e0, linear = random.normal(size=(copies, 5, 4)), random.normal(size=(copies, 5))
    inputs = TowerInput(tf.constant(e0, tf.float32), tf.constant(linear, tf.float32))
    found = forward(shape, weights, {"quality": inputs}, tf.constant(0.7)).logits
    for number in range(2):
        component = {name: np.float64(weights[f"component_{number}/{name}"]) for name in first}
        values, bias, gates = (component[f"quality/network/{one}"] for one in ("values", "bias", "gates"))
        copy = number % copies
        hidden = (e0[copy] @ values + bias) * (1 + 0.7 * np.tanh(e0[copy] @ gates))
        expected = (hidden @ component["quality_head"])[:, 0] + component["output_bias"] + linear[copy]
        np.testing.assert_allclose(found[number], expected, rtol=1e-5, atol=1e-6)


class Unlike(ColumnRule):
    """Makes another text in the graph."""

    def of_text(self, text):
        return text.upper()

    def of_tensor(self, texts):
        import tensorflow as tf

        return tf.strings.upper(texts)


def test_a_rule_that_the_graph_does_not_share_is_refused_by_an_export():
    features = [{"name": "x", "kind": "category", "source": "y", "buckets": 5}]
    schema = parse_model(Schema, {"features": features, "derive": {"y": {"from": "z"}}}, "schema")
    rule = schema.derive["y"].model_copy(update={"plugin": {"unlike": Unlike()}})
    with pytest.raises(InputError, match=r"derive.y: the plug-in unlike makes 'Ä' of 'ä' at ingestion"):
        check_rules(schema.model_copy(update={"derive": {"y": rule}}))


RULE = """
import sys
from ctr.data.derived import ColumnRule
{before}
class First(ColumnRule):
    \"\"\"The beginning of a text.

    Attributes:
        length: how long it is.
    \"\"\"

    length: int = 1

    def of_text(self, text):
        {body}
"""
# What stands before the rule and in it, the keys that it is given, and what is said.
FAULTS = [
    ("", "return text", {"lenght": 1}, "first: lenght: unknown key; allowed: length; did you mean length?"),
    ("1 / 0", "pass", {}, "first of hosts cannot be imported: ZeroDivisionError: division by zero"),
    ("sys.exit()", "pass", {}, "the rule of columns first of hosts cannot be imported: SystemExit"),
    ("", "return text[7]", {}, "column page: the rule hosts.First fails for '/a': IndexError: string index"),
    ("", "return 7", {}, "column page: the rule hosts.First makes 7 of '/a'; a text is required"),
    ("", "sys.exit(0)", {}, "column page: the rule hosts.First fails for '/a': SystemExit: 0"),
]


@pytest.mark.parametrize(("before", "body", "keys", "fault"), FAULTS)
def test_a_faulty_plugin_is_named_in_one_line(tmp_path, monkeypatch, capfd, before, body, keys, fault):
    package = tmp_path / "lib"
    (package / "hosts-1.0.dist-info").mkdir(parents=True)
    (package / "hosts-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: hosts\nVersion: 1.0\n"
    )
    (package / "hosts-1.0.dist-info/entry_points.txt").write_text("[ctr.features]\nfirst = hosts:First\n")
    (package / "hosts.py").write_text(RULE.format(before=before, body=body))
    (tmp_path / "rows.csv").write_text("t,page,click\n1,/a,0\n2,/a,1\n")
    mapping = {
        "input": {"type": "csv"},
        "time": {"column": "t", "unit": "s"},
        "label": "click",
        "derive": {"site": {"from": "page", "plugin": {"first": keys}}},
        "partition": "1h",
        "features": [{"name": "site", "kind": "category", "source": "site"}],
    }
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(mapping))
    monkeypatch.syspath_prepend(package)
    monkeypatch.delitem(sys.modules, "hosts", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", "table", "rows.csv", "--mapping", "m.yaml", "--out", "log", "--quiet"]) == 1
    sys.modules.pop("hosts", None)
    out, err = capfd.readouterr()
    assert fault in err and err.count("\n") == 1 and not out
