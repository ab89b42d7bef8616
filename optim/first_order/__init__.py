"""First-order optimizers: their directions, momentum, and online learners of scalars.

Begin with ``directions.py``: directions of AdaGrad, RMSProp, Adam and others, whose norms Shampoo takes (grafting),
with the options of ``options.py``, and their momentum. ``online_newton.py`` and ``online_bias.py`` train the scalars
that combine experts.
"""
