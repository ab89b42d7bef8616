"""One of several processes that exchange numbers, of which the last one takes no part any more; prints who is lost."""

import os
import time

import tensorflow as tf

from ctr.workers.cluster import WorkerLostError, read_cluster
from ctr.workers.collectives import Workers, join


def main(workers: Workers) -> None:
    """Exchanges twice; the second time the last one does not come."""

    @tf.function(autograph=False)
    def exchange(one: tf.Tensor) -> tf.Tensor:
        return workers.all_reduce([one])[0]

    with workers.in_time(is_patient=True):
        assert exchange(tf.ones([3])).numpy().tolist() == [workers.size] * 3
    try:
        with workers.noticing_losses(), workers.in_time(is_patient=False):
            if workers.rank == workers.size - 1:
                # The others end it.
                time.sleep(600)
            exchange(tf.ones([3]))
    except WorkerLostError as error:
        print("LOST", error, flush=True)


if __name__ == "__main__":
    cluster = read_cluster()
    assert cluster is not None
    main(join(cluster, 2.0))
    os._exit(0)
