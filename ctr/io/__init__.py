"""Files, documents and hashes, for all other rooms; it imports none of them, and no TensorFlow.

Begin with ``errors.py``: ``InputError`` is what bad input raises anywhere. ``files.py`` writes files that appear whole
or not at all, holds locks and names versions; ``documents.py`` and ``arrays.py`` read what may come from anyone.
"""
