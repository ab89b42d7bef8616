"""Feeds for which each worker has found the ids of its own rows: joined, so that all know what each of them needs."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np

from ctr.training.feed import Feed
from ctr.workers.collectives import Workers
from ctr.workers.group import gather_several


def join_feeds(feeds: Generator[Feed, None, None], group: Workers) -> Generator[Feed, None, None]:
    """Yields joined feeds; raises what ``feeds`` and exchanges raise.

    Workers exchange what the next feed needs before they go on with this one: all of them at the same place between two
    steps, wherever their reading threads are. The feed is joined by a thread of its own, beside the step.
    """
    ahead: Future[Feed] | None = None
    with closing(feeds), ThreadPoolExecutor(1, "join-feeds") as thread:
        for feed in feeds:
            # The first one may take as long as it takes to read a shard.
            with group.timeout(is_patient=ahead is None):
                found = gather_several(group, feed.own_ids)
            before, ahead = ahead, thread.submit(_join, feed, found)
            if before is not None:
                yield before.result()
        if ahead is not None:
            yield ahead.result()


def _join(feed: Feed, found: Sequence[Sequence[np.ndarray]]) -> Feed:
    joined = feed.joined(found)
    joined.prepare()
    return joined
