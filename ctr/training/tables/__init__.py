"""Embedding tables of a run: ``plan.py`` finds the rows that a batch needs, ``tables.py`` reads and updates them."""
