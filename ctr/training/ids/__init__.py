"""Ids that grow: a map from 64-bit ids to the slots of a bounded table, on the host, in front of the rows.

Begin with ``id_map.py``, the map; ``admission.py`` and ``eviction.py`` are its rules, ``id_table.py`` the hash
table in NumPy below it.
"""
