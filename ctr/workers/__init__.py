"""Processes that train together: how they start, find and hear each other, and what each holds.

Begin with ``collectives.py``: ``Workers`` are the exchanges that a step makes; ``local.py`` makes them on one machine,
and joins a process to the others.
``launch.py`` starts workers and starts them again. ``parts.py`` says which rows are whose.
"""
