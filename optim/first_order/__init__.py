"""First-order optimizers: their directions, momentum, and online learners of single numbers.

Begin with ``directions.py``: AdaGrad, RMSProp, Adam and the like as directions, whose norms Shampoo takes
(grafting), with the options of ``options.py``, and their momentum. ``online_newton.py`` and ``online_bias.py`` learn
the few numbers that combine experts.
"""
