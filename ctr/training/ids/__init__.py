"""Ids that grow: which id has a row of its own in a table.

Begin with ``id_map.py``, the map of ids to slots, which learns in the order of the pass. ``id_table.py`` is the hash
table in it, ``admission.py`` says which ids get a slot, and ``eviction.py`` which ones lose it.
"""
