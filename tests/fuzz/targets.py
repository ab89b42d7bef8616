# ruff: noqa: E501
"""Every parser of what comes from outside: by name its valid files, and how it is called.

A target's ``prepare(folder)`` writes what must lie beside the file and returns valid contents; ``parse(folder, content)``
reads a content. It returns when that was accepted, and then has checked that it means something; it raises InputError
or InputError when it was refused. Anything else is a fault.
"""

from config_targets import (
    _event_mapping_seeds,
    _experiment_seeds,
    _mapping_seeds,
    _model_parser,
    _parse_event_mapping,
    _parse_experiment,
    _parse_mapping,
    _parse_settings,
    _parse_train,
    _sampling_seeds,
    _settings_seeds,
    _simulator_seeds,
    _train_seeds,
)
from export_targets import _command_seeds, _export_file, _parse_command
from input_targets import _FORMATS, _events, _format, _kafka, _scored_rows, _table_input
from log_targets import (
    _manifest,
    _parse_schema,
    _parse_shard,
    _parse_sidecar,
    _schema_seeds,
    _shard_seeds,
    _sidecar_seeds,
)
from run_targets import (
    _checkpoint_file,
    _evaluate_seeds,
    _experiment_file,
    _launch_seeds,
    _loop_seeds,
    _parse_evaluate,
    _parse_launch,
    _parse_loop,
    _parse_quarantine,
    _parse_report,
    _quarantine_seeds,
    _report_seeds,
    _run_file,
)
from target import Target

from ctr.data.sampling import SamplingConfig
from ctr.simulator.config import SimulatorConfig


def _make_targets() -> dict[str, Target]:
    """All of them, by name."""
    csv, tsv = {}, {"input": {"type": "tsv"}}
    jsonl, parquet = {"input": {"type": "jsonl"}}, {"input": {"type": "parquet"}}
    targets = {
        "train config": Target("yaml", _train_seeds, _parse_train),
        "settings": Target("text", _settings_seeds, _parse_settings),
        "simulator config": Target("yaml", _simulator_seeds, _model_parser(SimulatorConfig)),
        "sampling config": Target("yaml", _sampling_seeds, _model_parser(SamplingConfig)),
        "experiment": Target("yaml", _experiment_seeds, _parse_experiment),
        "mapping": Target("yaml", _mapping_seeds, _parse_mapping),
        "event mapping": Target("yaml", _event_mapping_seeds, _parse_event_mapping),
        "schema": Target("json", _schema_seeds, _parse_schema),
        "manifest": Target("json", *_manifest("manifests/*.json")),
        "sidecar manifest": Target("json", *_manifest("sidecars/*/*.json")),
        "shard": Target("parquet", _shard_seeds, _parse_shard),
        "sidecar": Target("parquet", _sidecar_seeds, _parse_sidecar),
        "csv": Target("text", *_table_input("csv", csv)),
        "tsv": Target("text", *_table_input("tsv", tsv)),
        "csv.gz": Target("bytes", *_table_input("csv.gz", csv)),
        "csv.zst": Target("bytes", *_table_input("csv.zst", csv)),
        "jsonl": Target("jsonl", *_table_input("jsonl", jsonl)),
        "parquet": Target("parquet", *_table_input("parquet", parquet)),
        "side table": Target("text", *_table_input("csv", csv, "shops")),
        **{f"{name} {file}": Target("text", *_format(name, file)) for name, files in _FORMATS.items() for file in files},
        **{
            f"{kind} {form}": Target(form, *_events(form, kind))
            for kind in ("impressions", "clicks")
            for form in ("jsonl", "parquet")
        },
        **{f"kafka {kind}": Target("jsonl", *_kafka(kind)) for kind in ("impressions", "clicks")},
        "scored csv": Target("text", *_scored_rows("csv")),
        "scored jsonl": Target("jsonl", *_scored_rows("jsonl")),
        "scored csv.gz": Target("bytes", *_scored_rows("csv.gz")),
        "checkpoint arrays": Target("npz", *_checkpoint_file("arrays.npz")),
        "checkpoint state": Target("json", *_checkpoint_file("state.json")),
        "quarantine": Target("json", _quarantine_seeds, _parse_quarantine),
        "launch": Target("json", _launch_seeds, _parse_launch),
        "run summary": Target("json", *_run_file("summary.json")),
        "run environment": Target("json", *_run_file("environment.json")),
        "run windows": Target("jsonl", *_run_file("metrics.jsonl")),
        "run config": Target("yaml", *_run_file("config.yaml")),
        "run rejects": Target("jsonl", *_run_file("rejects.jsonl")),
        "run spectra": Target("json", *_run_file("weight_spectra.json")),
        "run data health": Target("json", *_run_file("data_health.json")),
        "run timeline": Target("npz", *_run_file("timeline.npz")),
        "run metrics": Target("npz", *_run_file("metric_states.npz")),
        "run predictions": Target("parquet", *_run_file("predictions/*.parquet")),
        "report": Target("text", _report_seeds, _parse_report, slow=True),
        "experiment plan": Target("json", *_experiment_file("plan.json"), slow=True),
        "experiment costs": Target("json", *_experiment_file("costs.json"), slow=True),
        "evaluated predictions": Target("parquet", _evaluate_seeds, _parse_evaluate),
        "loop": Target("parquet", _loop_seeds, _parse_loop),
        "export metadata": Target("json", *_export_file("assets.extra/ctr.json"), slow=True),
        "export graph": Target("bytes", *_export_file("saved_model.pb"), slow=True),
        "export index": Target("bytes", *_export_file("variables/variables.index"), slow=True),
        "command line": Target("text", _command_seeds, _parse_command),
    }  # fmt: skip
    return targets


TARGETS = _make_targets()
