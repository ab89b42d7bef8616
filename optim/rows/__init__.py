"""Optimizers of the rows of embedding tables that a batch touches.

Begin with ``rule.py``, the base class, which gathers and replaces rows; ``adagrad.py`` has the usual
optimizer, ``newton.py`` and ``one_sided.py`` have one more each.
"""
