"""The pass as formulas: read a log, predict a batch, then learn from it. One process, no files, float64.

It is what ``ctr.training.session.train`` computes with a model of the default kind (docs/howto/model.md): experts,
models that each learn by a loss of their own, and the prediction between them. ``reference_steps.py`` has the steps of
each kind of weights. From the trainer are only the reader, the configuration and the initial weights.
"""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.training.compiled_step import fresh_state
from ctr.training.logs import resolve
from reference_steps import AdaGrad, Bias, Combiner, LinearWeights, Shampoo, bend, query_effect, sigmoid


def progressive_pass(log, config):
    """The predictions of a log's good rows, and how many of them were learned from in the end.

    Each is made by weights that have learned from all batches before its own; under a label delay from those of them
    whose labels were known by then.
    """
    manifests, delay = read_manifests(log), round(config.label_delay * 1_000_000)
    config = resolve(config, read_schema(log), manifests)
    schema = config.model.features(read_schema(log))
    model = begin(config, schema)
    rows = join_rows(list(read_rows(log, schema, manifests)))
    batches = [read_batch(model.features, part) for part in cut(rows, config.batch)]
    predictions, learned = [], 0
    for number, batch in enumerate(batches):
        while delay and learned < number and batches[learned].times[1] + delay <= batch.times[0]:
            learn(model, batches[learned], config)
            learned += 1
        predictions.append(predict(model, batch, config.model.crosses.ramp.at(model.examples)))
        if not delay:
            learn(model, batch, config)
    return np.concatenate(predictions), model.examples


def cut(rows, sizes):
    """Batches of as many whole queries as fit, but at least one; small ones at first, if they are to grow."""
    ends = np.append(np.flatnonzero(np.diff(rows.query_id)) + 1, len(rows))
    start = 0
    while start < len(rows):
        size = most_rows(sizes, start)
        end = max(ends[ends <= start + size].max(initial=0), ends[ends > start].min())
        yield rows.slice(start, end)
        start = end


def most_rows(sizes, start):
    """The rows that a batch may have by where it begins."""
    if not sizes.growth:
        return sizes.rows
    return min(sizes.rows, max(sizes.least, 2 ** int(np.log2(max(1, sizes.growth * start)))))


def begin(config, schema):
    """A model that has learned nothing."""
    state, embeddings, dense = (
        fresh_state(config, schema),
        config.optimizer.embeddings,
        config.optimizer.dense,
    )
    layouts = [layout for layout in state.layouts if not layout.features[0].of]
    features = [feature for layout in layouts for feature in layout.features]
    singles = sorted((one for one in features if one.single is not None), key=lambda one: one.single)
    pairs = list(combinations(singles, 2))
    tables = {}
    for layout, table in zip(layouts, state.tables.weights, strict=False):
        for feature, row in zip(layout.features, layout.offsets().values(), strict=True):
            rows = table.numpy()[row : row + feature.buckets, :-1]
            tables[feature.name] = AdaGrad(rows, embeddings.learning_rate, embeddings.initial_accumulator)
    weights = {name: weight.numpy() for name, weight in state.weights.items()}
    network = {name: Shampoo(w, dense.learning_rate, dense.shampoo) for name, w in weights.items()}
    prior = np.log(config.model.prior / (1 - config.model.prior))
    experts = {name: SimpleNamespace(bias=Bias(prior), linear={}) for name in config.model.experts}
    # Of one feature, or of a pair, each of whose ids is made of two.
    sizes = {(one,): one.buckets for one in features}
    both = sizes | {(one, other): one.buckets * other.buckets for one, other in pairs}
    for name, own in (("linear", sizes), ("pairs", both)):
        if name in experts:
            experts[name].linear = {of: LinearWeights(ids, len(own)) for of, ids in own.items()}
    if "network" in experts:
        network.pop("output_bias")
    return SimpleNamespace(
        features=features, embeddings=tables, network=network, experts=experts,
        combiner=Combiner(len(experts)), seen=0.0, examples=0,
    )  # fmt: skip


def read_batch(features, rows):
    """The good rows of a batch; and of each feature its ids, the row of each, and its share of that row's mean."""
    times, start = (rows.query_time[0], rows.query_time[-1]), rows.position[0]
    rows, ids = rows.keep(rows.fault == 0), {}
    for feature in features:
        values, offsets = rows.multivalent.get(feature.name, (None, np.arange(len(rows) + 1)))
        row = np.repeat(np.arange(len(rows)), np.diff(offsets))
        own = rows.ids[:, feature.single] if values is None else values
        ids[(feature,)] = own.astype(np.int64), row, 1 / np.diff(offsets)[row]
    singles = sorted((one for one in features if one.single is not None), key=lambda one: one.single)
    for one, other in combinations(singles, 2):
        (left, row, share), (right, *_) = ids[(one,)], ids[(other,)]
        ids[(one, other)] = left * other.buckets + right, row, share
    query = np.cumsum(np.append(0, np.diff(rows.query_id) != 0))
    label, weight = rows.label.astype(float), rows.train_weight.astype(float)
    return SimpleNamespace(times=times, start=start, ids=ids, query=query, label=label, weight=weight)


def predict(model, batch, alpha2):
    """The logits, float64 [B]. The batch keeps those of each expert."""
    batch.logits = []
    for name, expert in model.experts.items():
        logit = np.zeros(len(batch.label))
        for of, weights in expert.linear.items():
            ids, row, share = batch.ids[of]
            np.add.at(logit, row, share * weights.value[ids])
        if name == "network":
            logit = network_logits(model, batch, alpha2)
        batch.logits.append(logit + expert.bias.value)
    batch.logit = model.combiner.predict(batch.logits)
    return batch.logit


def network_logits(model, batch, alpha2):
    e0 = []
    for feature in model.features:
        (ids, row, share), table = batch.ids[(feature,)], model.embeddings[feature.name]
        e0.append(np.zeros((len(batch.label), table.value.shape[1])))
        np.add.at(e0[-1], row, share[:, None] * table.value[ids])
    weights = {name: tf.constant(weight.value) for name, weight in model.network.items()}
    batch.inputs = [tf.constant(np.hstack(e0)), weights]
    with tf.GradientTape() as batch.tape:
        batch.tape.watch(batch.inputs)
        batch.output = network_output(*batch.inputs, alpha2)
    return batch.output.numpy()


def network_output(e0, weights, alpha2):
    """DCNv2: e_i = alpha2 e_0 (e_i-1 U_i V_i + b_i) + e_i-1; h_i = relu(h_i-1 W_i + c_i); w . h (FF 4.3)."""
    h = e0
    for name in [name for name in weights if name.endswith("_bias")]:
        if "cross" in name:
            U, V = weights[name.replace("v_bias", "u")], weights[name.replace("v_bias", "v")]
            h = alpha2 * e0 * (h @ U @ V + weights[name]) + h
        else:
            h = tf.nn.relu(h @ weights[name.replace("w_bias", "w")] + weights[name])
    return (h @ weights["quality_head"])[:, 0]


def learn(model, batch, config):
    """Makes a step of all weights by what they predict for a batch now."""
    predict(model, batch, config.model.crosses.ramp.at(model.examples))
    total = batch.weight.sum()
    model.seen += total
    model.examples += len(batch.label)
    drift = total / model.seen if model.seen else 0.0
    model.combiner.step(batch, drift)
    for (name, expert), logit in zip(model.experts.items(), batch.logits, strict=True):
        # What a batch shares is learned by the bias of each model, and what a query shares by nothing.
        shifted = logit + expert.bias.step(batch, logit, drift)
        effect, left = query_effect(batch, shifted)
        gradient = batch.weight * (sigmoid(shifted + effect) - batch.label)
        if name == "network":
            least = config.optimizer.dense.preconditioned_from_rows
            is_large = least is not None and most_rows(config.batch, batch.start) >= least
            learn_network(model, batch, gradient, is_large)
        curvature = batch.weight * bend(shifted + effect)
        for of, weights in expert.linear.items():
            ids, row, share = batch.ids[of]
            known = curvature[row] * share**2
            if of[0].single is not None:
                known = np.where(is_shared(batch.query, ids, curvature > 0), left * known, known)
            of_ids = (np.bincount(ids, part, len(weights.value)) for part in (share * gradient[row], known))
            weights.step(*of_ids)


def learn_network(model, batch, gradient, is_large):
    of_e0, of_network = batch.tape.gradient(batch.output, batch.inputs, tf.constant(gradient))
    for feature in model.features:
        (ids, row, share), table = batch.ids[(feature,)], model.embeddings[feature.name]
        own, of_e0 = np.split(of_e0, [table.value.shape[1]], axis=1)
        of_embedding = np.zeros_like(table.value)
        np.add.at(of_embedding, ids, share[:, None] * own[row])
        table.step(of_embedding)  # By the sum of the losses; the network by their mean.
    for name, weight in model.network.items():
        weight.step(of_network[name].numpy() / (batch.weight.sum() or 1.0), is_large)


def is_shared(query, ids, counts):
    """Of each row whether all rows of its query that count have one id: these know no more of it than one does."""
    return np.array([len(set(ids[(query == own) & counts])) <= 1 for own in query])
