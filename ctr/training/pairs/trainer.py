"""Trainer of a model with an expert for pairs beside it."""

from collections.abc import Sequence
from dataclasses import replace

from ctr.training.config import TrainConfig
from ctr.training.device import has_few_shapes
from ctr.training.feed import Feed, make_feed
from ctr.training.pairs.layout import with_pairs
from ctr.training.pairs.state import PairState
from ctr.training.shapes import FewShapes, few_shapes
from ctr.training.trainer import Phase, Ramps, Rates, Scores, Trainer


class PairTrainer(Trainer):
    """Trains the model as if it were alone, and the expert in the same way; predicts by both together."""

    state: PairState

    def __init__(self, state: PairState, config: TrainConfig, phase: Phase | None = None) -> None:
        super().__init__(state, config, phase)
        self._pairs = Trainer(state.pairs, state.pair_config, phase)
        self._shapes: FewShapes | None = None
        if has_few_shapes(config):
            self._shapes = few_shapes(state.pair_config, state.schema, state.pairs.layouts)

    def beside(self, feed: Feed) -> Feed | None:
        """Makes the feed of the expert, of the same batch; None: it sleeps."""
        return self._feed_of_pairs(feed) if self.state.combination.is_awake else None

    def _feed_of_pairs(self, feed: Feed) -> Feed:
        if feed.beside is not None:
            return feed.beside
        rows = with_pairs(feed.batch.rows, self._config, self.state.schema)
        pairs, config = self.state.pairs, self.state.pair_config
        made = make_feed(
            replace(feed.batch, rows=rows),
            pairs.layouts,
            feed.batch_rows,
            ids=config.ids,
            seat=pairs.seat,
            shapes=self._shapes,
            fused=self._pairs.fused_shapes if feed.is_fused else (),
        )
        made.prepare()
        return made

    def learn(self, feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        plain, pairs = super().learn(feed, ramps, rates), None
        if self.state.combination.is_awake:
            pairs = self._pairs.learn(self._feed_of_pairs(feed), ramps, rates)
        return self._combine(feed, plain, pairs)

    def learn_fused(
        self, feeds: Sequence[Feed], ramps: Sequence[Ramps], rates: Sequence[Rates]
    ) -> list[Scores]:
        plain = super().learn_fused(feeds, ramps, rates)
        if not self.state.combination.is_awake:
            return [self._combine(*both, None) for both in zip(feeds, plain, strict=True)]
        beside = [self._feed_of_pairs(feed) for feed in feeds]
        if all(feed.is_fused and feed.shape is beside[0].shape for feed in beside):
            pairs = self._pairs.learn_fused(beside, ramps, rates)
        else:
            given = zip(beside, ramps, rates, strict=True)
            pairs = [self._pairs.learn(*one) for one in given]
        return [self._combine(*each) for each in zip(feeds, plain, pairs, strict=True)]

    def score(self, feed: Feed, ramps: Ramps) -> Scores:
        plain = super().score(feed, ramps)
        if not self.state.combination.is_awake or not feed.rows:
            return plain
        pairs = self._pairs.score(self._feed_of_pairs(feed), ramps)
        return plain._replace(logit=self.state.combination.combine(plain.logit, pairs.logit))

    def is_due_after(self, rows: int) -> bool:
        return self.state.combination.is_due_after(rows)

    def _combine(self, feed: Feed, plain: Scores, pairs: Scores | None) -> Scores:
        """Combines what was learned from, and learns how."""
        combination, rows = self.state.combination, feed.batch.rows
        if pairs is not None and len(rows):
            logit = combination.combine(plain.logit, pairs.logit)
            combination.learn(plain.logit, pairs.logit, rows.label, rows.train_weight)
            plain = plain._replace(logit=logit)
        combination.count(len(rows))
        return plain
