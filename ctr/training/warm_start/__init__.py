"""Warm starts: runs of a new configuration that start from the weights of an earlier run.

Begin with ``start.py``; ``weights.py`` selects the reused state.
"""
