"""Processes that train together: how they start, connect and communicate, and which part of the state each holds.

Begin with ``collectives.py``: ``Workers`` has the exchanges of a step; ``local.py`` implements them on one machine,
and joins a process to the others. ``launch.py`` starts and restarts workers. ``parts.py`` assigns rows to workers.
"""
