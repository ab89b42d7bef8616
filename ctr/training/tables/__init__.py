"""Embedding tables of a run, wherever their rows lie.

``plan.py`` lists the rows of a batch, ``rows.py`` divides the tables, ``tables.py`` gathers, updates and replaces rows.
"""
