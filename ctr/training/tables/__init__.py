"""Embedding tables of a run, whole on each worker or divided among workers.

``plan.py`` lists the rows of a batch, ``rows.py`` divides the tables, ``tables.py`` gathers, updates and replaces rows.
"""
