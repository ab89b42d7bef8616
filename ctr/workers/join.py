"""Joining of a process to the others that train with it: those of its machine, or those of a cluster."""

import logging

import tensorflow as tf

from ctr.workers.cluster import Cluster
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.local import LocalWorkers
from ctr.workers.seats import Seat
from ctr.workers.watch import begin_watch

log = logging.getLogger(__name__)


def join(place: Seat | Cluster | None, timeout: float) -> Workers:
    """Joins the other workers, for up to an hour; must be called before TensorFlow computes anything."""
    if place is None or place.size == 1:
        return ALONE
    log.info("worker %d of %d: joining", place.rank, place.size)
    workers = LocalWorkers(place, timeout) if isinstance(place, Seat) else Workers(place, timeout)
    with workers.noticing_losses():
        if isinstance(place, Cluster):
            _start_server(place)
        workers.wait_for_all()
    return workers


def _start_server(cluster: Cluster) -> None:
    log.info("cluster: %s", ", ".join(cluster.addresses))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    begin_watch(cluster)
    tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
