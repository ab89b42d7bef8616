"""Warm starts: a new configuration that begins with the weights of an earlier run.

Begin with ``start.py``; ``weights.py`` selects the reused state.
"""
