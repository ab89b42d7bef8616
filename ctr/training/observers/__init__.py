"""Observers, which watch a run without changing it, one file each; ``every.py`` lists them."""
