"""Warm starts: a new configuration that begins with what an earlier run has learned.

Begin with ``start.py``; ``weights.py`` takes the model's weights over, ``dense.py`` the state of dense
optimizers.
"""
