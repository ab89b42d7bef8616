"""Experts: models that each minimize the whole objective of their logits, and the few weights that combine them.

Three read the same tables:

    linear     a bias and the linear weights of all features
    network    the DCN of ``ctr.models``; without a linear expert, with the linear weights inside (FF 4.3)
    pairs      a bias and linear weights, of all features and of all pairs of single-valued ones

The prediction moves from the first expert, z_1, towards the others, by gates and an offset that are fitted during the
pass (``combination``); with a single expert, its logit is the prediction. ``names`` chooses a run's experts,
``forward`` computes predictions, ``pairs`` lays out the table of pairs, ``learning`` has the losses. No other package
names an expert.
"""
