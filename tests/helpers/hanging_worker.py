"""One of several processes that exchange numbers, of which the last one takes no part any more; prints who is lost."""

import os
import sys
import time

import numpy as np
import tensorflow as tf

from ctr.workers.cluster import WorkerLostError
from ctr.workers.collectives import Workers
from ctr.workers.join import join
from ctr.workers.seats import read_place


def main(workers: Workers, kind: str) -> None:
    """Exchanges twice; the second time the last one does not come. ``kind``: ``tensors`` or ``numbers``."""

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
    main(join(read_place(), 2.0), sys.argv[1])
    os._exit(0)
