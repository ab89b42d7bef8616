"""Warm starts: a new configuration that begins with what an earlier run has learned.

Begin with ``start.py``; ``weights.py`` decides what is taken.
"""
