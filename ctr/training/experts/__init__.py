"""Experts: models that learn by the whole objective of their own logits, and the few numbers that combine them.

Three read the same tables:

    linear     a bias and the linear weights of all features
    network    the DCN of ``ctr.models``; where there is no linear expert, with the linear weights inside (FF 4.3)
    pairs      a bias and linear weights, of all features and of all pairs of single-valued ones

The prediction moves from the first one, z_1, towards the others, by gates and an offset that are fitted as the log goes
by (``combination``); a single expert is the prediction. ``names`` says which experts a run has, ``forward`` what they
predict, ``pairs`` what the table of pairs is, and ``learning`` what each one learns by. No other room names an expert.
"""
