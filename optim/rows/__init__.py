"""Rules by which the rows of embedding tables learn, those alone that a batch touches.

Begin with ``rule.py``, what a rule is and how rows are gathered and replaced; ``adagrad.py`` is the usual
rule, the others (``newton.py``, ``one_sided.py``) are a module each.
"""
