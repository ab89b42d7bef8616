"""One of several processes that exchange numbers.

python exchanging_worker.py FILE    prints what it got as JSON; the first worker makes the file and leaves last
python exchanging_worker.py tensors|numbers    the last worker takes no part any more: prints who is lost
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from ctr.io.errors import InputError
from ctr.workers.cluster import WorkerLostError
from ctr.workers.collectives import Workers, gather_dealt
from ctr.workers.local import join
from ctr.workers.seats import read_place


def drawn(rank: int, *shape: int) -> np.ndarray:
    """Numbers of a worker's own."""
    return np.random.default_rng([rank, *shape]).normal(size=shape).astype(np.float32)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main(workers: Workers) -> dict[str, object]:
    """Exchanges of all kinds, several times with other sizes."""
    rank, size = workers.rank, workers.size

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([3])])
    def exchange(rows: tf.Tensor, fixed: tf.Tensor) -> list[tf.Tensor]:
        by_worker = tf.reshape(rows, [size, -1, 2])
        with tf.GradientTape() as tape:
            tape.watch(fixed)
            (total,) = workers.total([fixed * fixed])
            value = tf.reduce_sum(total * total)
        return [
            *workers.all_reduce([rows, fixed]),
            *workers.all_reduce([fixed, fixed[:1]]),
            *workers.exchange([by_worker, by_worker[:, :1]]),
            workers.all_gather(rows),
            tape.gradient(value, fixed),
        ]

    found = [
        [one.numpy().tolist() for one in exchange(drawn(rank, count * size, 2), drawn(rank, 3))]
        for count in (1, 300, 1)
    ]
    threads = _threads()
    for _ in range(100):
        exchange(drawn(rank, size, 2), drawn(rank, 3))
    new_threads = _threads() - threads
    refused = []
    for failing in (0, size - 1):
        try:
            with workers.raise_if_any_failed():
                if rank == failing:
                    raise InputError("no such log")
        except InputError as error:
            refused.append(str(error))
    try:
        workers.agree({"log": "one" if rank != 1 else "another"})
    except InputError as error:
        refused.append(str(error))
    entries = np.arange(rank, 500, size)
    return {
        "steps": found,
        "new_threads": new_threads,
        "numbers": workers.gather_numbers(np.array([rank, 10 * rank])).tolist(),
        "sums": [
            workers.sum_numbers(np.full(count, 2**20 * rank + 1, np.int32)).tolist()
            for count in (3, 0, 700, 3)
        ],
        "uneven": [part.tolist() for part in workers.gather_uneven(np.arange(3 * rank) - 2**62)],
        "divided": [
            gather_dealt(workers, own.__getitem__, 500, piece=7).tolist()
            for own in (entries.astype(np.int16), np.stack([entries] * 2, axis=1).astype(np.float32))
        ],
        "texts": workers.gather_texts("ä" * rank),
        "array": workers.gather_numbers(np.full((2, 1), rank, np.float32)).tolist(),
        "refused": refused,
    }


def lose_one(workers: Workers, kind: str) -> None:
    """Exchanges twice; the second time the last one does not come."""

    @tf.function(autograph=False)
    def exchange(one: tf.Tensor) -> tf.Tensor:
        return workers.all_reduce([one])[0]

    with workers.timeout(is_patient=True):
        assert exchange(tf.ones([3])).numpy().tolist() == [workers.size] * 3
    try:
        with workers.noticing_losses(), workers.timeout(is_patient=False):
            if workers.rank == workers.size - 1:
                # The others end it.
                time.sleep(600)
            if kind == "tensors":
                exchange(tf.ones([3]))
            else:
                # Between two steps it would wait for longer.
                workers.sum_numbers(np.ones(3, np.int32))
    except WorkerLostError as error:
        print("LOST", error, flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("tensors", "numbers"):
        lose_one(join(read_place(), 2.0), sys.argv[1])
        os._exit(0)
    workers = join(read_place(), 60.0)
    print("RESULT", json.dumps(main(workers)), flush=True)
    first_leaves = Path(sys.argv[1])
    if workers.is_chief:
        # Long enough for the others to be gone, if nothing kept them.
        time.sleep(1)
        first_leaves.touch()
    workers.leave()
    print("WAITED" if first_leaves.exists() else "GONE", flush=True)
    if workers.is_chief:
        # The others end now.
        workers.leave()
        print("ALONE", flush=True)
    os._exit(0)
