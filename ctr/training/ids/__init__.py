"""Growing ids: a map on the host from 64-bit ids to the slots of a bounded table.

Begin with ``id_map.py``, the map; ``admission.py`` and ``eviction.py`` are its rules, ``id_table.py`` is its
hash table in NumPy.
"""
