"""Embedding tables of a run: whole, or divided over workers.

``plan.py`` lists the rows of a batch, ``rows.py`` divides the tables, ``tables.py`` gathers, updates and replaces rows.
"""
