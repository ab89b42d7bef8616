"""Observers of a run, which do not change it, one in each file; ``every.py`` lists them."""
