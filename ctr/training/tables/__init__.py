"""Embedding tables of a run, wherever their rows lie.

``plan.py`` says which rows a batch needs, ``rows.py`` where they lie, ``tables.py`` gathers, updates and replaces them.
"""
