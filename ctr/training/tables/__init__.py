"""Embedding tables of a run: whole, divided over workers, or in lines for chips.

``plan.py`` says which rows a batch needs and where they lie, ``tables.py`` gathers, updates and replaces
them.
"""
