"""Embedding tables of a run: whole, or divided over workers.

``plan.py`` says which rows a batch needs, ``rows.py`` where they lie, ``tables.py`` gathers, updates and replaces them.
"""
