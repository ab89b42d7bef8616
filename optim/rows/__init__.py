"""Rules that train the rows of embedding tables that a batch touches.

Begin with ``rule.py``, which defines a rule and gathers and replaces rows; ``adagrad.py`` is the usual
rule, the others (``newton.py``, ``one_sided.py``) are a module each.
"""
