"""Compiled loops on disk: the same bits, nothing that was damaged or is another machine's, and nothing left behind."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ctr.io.compiled_loops import keep_compiled_loops
from ctr.io.errors import InputError

# Compiles one loop; with an argument, on a processor of another description.
PROCESS = r"""
import hashlib, os, sys
from pathlib import Path
import tensorflow as tf
from ctr.io.compiled_loops import keep_compiled_loops
if sys.argv[1:]:
    read = Path.read_text
    Path.read_text = lambda path: read(path).replace("\n\n", f" {sys.argv[1]}\n\n")
before = dict(os.environ)
keep_compiled_loops()
assert dict(os.environ) == before
# TensorFlow numbers tensors, and what is traced after them.
tensors = [tf.constant(number) for number in range(os.getpid() % 97)]
loop = tf.function(lambda x: tf.while_loop(lambda x: x[0, 0] < 9, lambda x: [tf.exp(-x) @ x], [x]), jit_compile=True)
print(hashlib.sha256(loop(tf.linspace([0.1] * 8, [0.2] * 8, 8))[0].numpy().tobytes()).hexdigest())
"""


@pytest.fixture
def cache(tmp_path):
    # A value of TensorFlow's flags ends at a space.
    return tmp_path / 'user "1"'


def start(cache: Path | str, root: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(root), "CTR_CACHE": str(cache)}
    command = [sys.executable, "-c", PROCESS, *arguments]
    return subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True)


def output(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate()
    assert process.returncode == 0
    return text


def kept(cache: Path) -> dict[str, tuple[int, int]]:
    """Names in the store, and what changes when a file is written again."""
    status = {path.name: path.stat() for path in (cache / "loops").iterdir()}
    return {name: (of.st_ino, of.st_mtime_ns) for name, of in status.items()}


@pytest.mark.slow
def test_later_processes_load_what_is_whole_and_of_this_machine(cache, root):
    both = [start(cache, root), start(cache, root)]
    compiled, again = map(output, both)
    assert re.fullmatch(r"[0-9a-f]{64}\n", compiled) and again == compiled
    for folder in (cache, cache / "loops"):
        assert folder.stat().st_mode & 0o777 == 0o700
    first = kept(cache)
    # Twice if both compiled it: the files differ, and the programs do not.
    assert 1 <= len(first) <= 2
    assert output(start(cache, root)) == compiled
    assert kept(cache) == first

    path = cache / "loops" / min(first)
    _, digest, name = path.name.split("-", 2)
    whole = path.read_bytes()
    left = cache / "loops" / "process-killed"
    left.mkdir()
    (left / name).write_bytes(whole[:-100])
    flipped = bytearray(whole)
    flipped[len(whole) * 9 // 10] ^= 16
    # TensorFlow would load the first, and fail on the second.
    for damaged in (bytes(flipped), whole[: len(whole) // 2]):
        for stored in kept(cache).keys() - {left.name}:
            (cache / "loops" / stored).write_bytes(damaged)
        assert output(start(cache, root)) == compiled
        (stored,) = kept(cache)
        again = (cache / "loops" / stored).read_bytes()
        assert len(again) == len(whole) and again != damaged

    before = kept(cache)
    oldest = cache / "loops" / f"{'f' * 16}-{digest}-{name}"
    oldest.touch()
    os.truncate(oldest, 2**27)
    os.utime(oldest, (0, 0))
    assert output(start(cache, root, "other")) == compiled
    assert not oldest.exists()
    (other,) = kept(cache).items() - before.items()
    assert len(kept(cache)) == 2 and other[0][:16] != stored[:16]


def make_unusable(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTR_CACHE", str(folder / "cache"))
    if case == "off":
        monkeypatch.setenv("CTR_CACHE", "")
    elif case == "flags of the user":
        monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_max_cluster_size=9")
    elif case == "no home":
        monkeypatch.delenv("CTR_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(folder / "nowhere"))
    elif case == "a file":
        (folder / "cache").write_text("")
    elif case == "of a group":
        (folder / "cache").mkdir()
        (folder / "cache").chmod(0o770)
    elif case == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    elif case == "full":

        def full(*arguments: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)


@pytest.mark.parametrize(
    ("case", "level"),
    [
        ("off", None),
        ("flags of the user", None),
        ("no home", logging.INFO),
        ("a file", logging.INFO),
        ("of a group", logging.WARNING),
        ("of another user", logging.WARNING),
        ("full", logging.INFO),
    ],
)
def test_nothing_is_kept_where_it_cannot_or_must_not_be(case, level, tmp_path, monkeypatch, caplog):
    make_unusable(case, tmp_path, monkeypatch)
    caplog.set_level(logging.INFO, logger="ctr")
    flags, keep_compiled_loops_anew = os.environ.get("TF_XLA_FLAGS"), keep_compiled_loops.__wrapped__
    keep_compiled_loops_anew()
    assert os.environ.get("TF_XLA_FLAGS") == flags
    assert max((record.levelno for record in caplog.records), default=None) == level
    assert all("compiled loops are" in record.getMessage() for record in caplog.records)
    assert not [path for path in tmp_path.rglob("process-*") if list(path.iterdir())]
    assert not (tmp_path / "nowhere").exists()


def test_an_address_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTR_CACHE", "s3://bucket")
    with pytest.raises(InputError, match=r"^s3://bucket: is an address"):
        keep_compiled_loops.__wrapped__()
    assert not list(tmp_path.iterdir())
