"""Observers, which watch a run and change nothing of it, one file each; ``every.py`` lists them."""
