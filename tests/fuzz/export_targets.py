"""Fuzzing of exported models and of the command line."""

import hashlib
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from log_targets import small_log
from run_targets import run_folder
from target import Parse, Prepare

from ctr.io.errors import InputError


def _export_folder(folder: Path) -> Path:
    import model_cases as serving
    from ctr.serving.export import publish

    target = folder / "models"
    if not target.exists():
        made = serving.make_case(serving.MODELS["factorized"], "float32", folder / "trained", rows=6)
        publish(made.snapshot, target)
    return next(target.glob("[0-9]*"))


def _export_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [(_export_folder(folder) / name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        """With the hashes that make a changed file valid."""
        from ctr.serving.metadata import EXTRA, FILE
        from ctr.serving.scorer import Scorer
        from model_cases import draw_raw

        model = _export_folder(folder)
        metadata = model / EXTRA / FILE
        before = {path: path.read_bytes() for path in (model / name, metadata)}
        try:
            (model / name).write_bytes(content)
            if model / name != metadata:
                tree = json.loads(before[metadata])
                tree["files"][name] = hashlib.sha256(content).hexdigest()
                metadata.write_text(json.dumps(tree))
            scorer = Scorer(model)
            scores = scorer.predict(draw_raw(3))
            assert scores.shape == (3,)
        finally:
            for path, text in before.items():
                path.write_bytes(text)

    return prepare, parse


def _command_seeds(folder: Path) -> list[bytes]:
    run_folder(folder)
    small_log(folder)
    lines = (
        "compare run other --json",
        "compare run run/predictions",
        "report missing other",
        "sample log --name half --set non_click_rate=0.5",
        "train log --config absent.yaml --out new --set model.deep.units=[8]",
        "score model log --out scores.parquet",
        "evaluate missing --against run",
        "export run --out model --checkpoint 5",
    )
    return ["\n".join(line.split()).encode() for line in lines]


def _parse_command(folder: Path, content: bytes) -> None:
    """Arguments, one a line. The commands are those that end at once where the files are as they are here."""
    from ctr.cli import main

    arguments = content.replace(b"\0", b"").decode("utf-8", "surrogateescape").split("\n")
    if not arguments or arguments[0] not in (
        "compare",
        "sample",
        "train",
        "score",
        "evaluate",
        "export",
        "report",
    ):
        return
    # Nothing outside the folder is touched.
    paths = [part for argument in arguments for part in (argument, argument.partition("=")[2])]
    if any(path.startswith(("/", "~")) or ".." in path for path in paths):
        return
    out, reported = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(reported):
        try:
            status: Any = main(arguments)
        except SystemExit as ended:
            status = ended.code
    # 2: the usage, and what is wrong with the arguments.
    assert status in (0, 1, 2)
    if status == 1:
        text = reported.getvalue()
        assert text.startswith("error: ")
        assert text.count("\n") == 1
        assert text[:-1].isprintable(), repr(text)
        raise InputError(text)
