"""A run that begins with the weights of another one.

Begin with ``start.py``, which makes the run directory. ``weights.py`` takes rows of tables, slices and ramps by their
meaning, ``dense.py`` dense weights, also into wider and deeper networks.
"""
