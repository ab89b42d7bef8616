"""Training: one pass over a log; every example is scored before it is learned from.

Begin with ``loop.py``, the pass from beginning to end, then ``step.py``, the step of one batch. ``config.py``
has the keys, ``state.py`` the variables, ``feed.py`` the arrays of a batch. Packages: ``tables`` (embedding
rows), ``ids`` (ids that grow), ``run`` (files of a run), ``warm_start`` (weights of an earlier run).
"""
