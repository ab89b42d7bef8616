"""Stores the loops that XLA compiles for this processor on disk: later processes load them, with the same bits.

TensorFlow reads and writes them in a separate folder of each process, which begins with links to the store's loops::

    ~/.cache/ctr/loops/MACHINE-SHA256-NAME     a loop that TensorFlow calls NAME
    ~/.cache/ctr/loops/process-*/NAME          a loop of a process; new ones move to the store when it ends

TensorFlow loads a file that was changed, and fails on a truncated one: only files with the hash in their names get
links. The next process removes the files of a killed one, which may be truncated. A loop is a program: nobody else may
have write access to the store, and another processor's loops have another MACHINE.
"""

import atexit
import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

from ctr import __version__
from ctr.io.errors import PassingError
from ctr.io.files import check_local, hold

log = logging.getLogger(__name__)

_FLAGS = "TF_XLA_FLAGS"
_STORE_BYTES = 2**27
_FREE_BYTES = 2**25  # TensorFlow fails where it cannot write a loop


# TensorFlow reads its flags once.
@functools.cache
def keep_compiled_loops() -> None:
    """Makes TensorFlow, imported but not used yet, store compiled loops on disk until the process ends.

    ``CTR_CACHE`` names the folder, by default ``ctr`` in the user's cache folder; empty: nothing is cached. The cache
    is also off if the user sets XLA flags, or if the folder is missing, full, read-only or not private. Raises
    InputError if ``CTR_CACHE`` is an address.
    """
    if _FLAGS in os.environ or os.environ.get("CTR_CACHE") == "":
        return
    try:
        store, machine = _open_store(), _machine()
        from tensorflow.python.eager.polymorphic_function import concrete_function
        from tensorflow.python.ops import control_flow_util_v2

        holding = contextlib.ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="process-", dir=store))
        holding.enter_context(hold(folder, f"{folder}: removed by another process"))
        _link(store, machine, folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _FREE_BYTES)
    except (ImportError, OSError, PassingError) as error:
        log.info("compiled loops are not kept: %s", error)
        return
    atexit.register(_move_to_store, store, machine, folder, holding)
    import tensorflow as tf

    # A loop is looked up by all names in it. TensorFlow numbers functions, like tensors, over all threads.
    numbers = itertools.count()
    concrete_function._inference_name = lambda name: f"__inference_{name}_counted_{next(numbers)}"
    control_flow_util_v2.unique_fn_name = lambda scope, name: (
        f"{scope}{name}_counted_{next(numbers)}".replace("/", "_")
    )
    # A value in quotes may have spaces.
    directory = json.dumps(str(folder), ensure_ascii=False)
    os.environ[_FLAGS] = (
        f"--tf_xla_persistent_cache_directory={directory} --tf_xla_persistent_cache_device_types=CPU"
    )
    try:
        # Reads the flags.
        tf.config.list_physical_devices()
    finally:
        # Neither a record of the environment nor a child process may get the flags.
        del os.environ[_FLAGS]


def _open_store() -> Path:
    """Creates and returns the store. Raises OSError if it cannot be created, or others can write to it."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.expanduser("~/.cache")
    folder = Path(os.environ.get("CTR_CACHE") or f"{caches}/ctr").absolute()
    check_local(os.environ.get("CTR_CACHE", ""))
    # The parents are not created, such as a missing home directory.
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    for private in (folder, folder / "loops"):
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            text = "no compiled loops are kept; allowed: a folder of your own with mode 700 (CTR_CACHE names another)"
            log.warning("%s: another user owns it or can write to it: %s", private, text)
            raise PermissionError(f"{private} is not private")
    return folder / "loops"


def _machine() -> str:
    """Returns a hash of all that XLA's output depends on except the program. Raises OSError for unknown processors."""
    import tensorflow as tf

    processor = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    kinds = ("TF_", "XLA_", "OMP_", "ONEDNN_", "DNNL_")
    content = (
        __version__,
        (tf.version.VERSION, tf.version.GIT_VERSION, tf.__file__, os.stat(tf.__file__).st_mtime_ns),
        # These two change from one moment, or from one start, to the next.
        [line for line in processor if not line.lower().startswith(("cpu mhz", "bogomips"))],
        len(os.sched_getaffinity(0)),
        sorted(item for item in os.environ.items() if item[0].startswith(kinds) and "_LOG_" not in item[0]),
    )
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _digest(machine: str, name: str, path: Path) -> str:
    return hashlib.sha256(f"{machine}-{name}\n".encode() + path.read_bytes()).hexdigest()


def _link(store: Path, machine: str, folder: Path) -> None:
    """Links the machine's undamaged loops into the folder; removes damaged loops and the folders of dead processes."""
    for left in store.glob("process-*"):
        with contextlib.suppress(OSError, PassingError), hold(left, f"{left}: in use"):
            shutil.rmtree(left)
    for path in store.glob(f"{machine}-*"):
        # Another process may have removed it, or stored the same loop twice.
        with contextlib.suppress(OSError):
            digest, _, name = path.name.removeprefix(f"{machine}-").partition("-")
            if _digest(machine, name, path) == digest:
                os.link(path, folder / name)
            else:
                path.unlink()


def _move_to_store(store: Path, machine: str, folder: Path, holding: contextlib.ExitStack) -> None:
    """Moves the process's new loops to the store, and deletes the oldest ones of a store that is too large."""
    with contextlib.suppress(OSError), holding:
        for path in folder.glob("*.pb"):
            if path.stat().st_nlink == 1:
                path.rename(store / f"{machine}-{_digest(machine, path.name, path)}-{path.name}")
        shutil.rmtree(folder)
        size = 0
        for path in sorted(store.glob("*-*-*.pb"), key=lambda path: path.stat().st_mtime, reverse=True):
            size += path.stat().st_size
            if size > _STORE_BYTES:
                path.unlink()
