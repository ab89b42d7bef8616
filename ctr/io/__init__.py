"""Files, documents and hashes, for all other rooms; it imports none of them, and no TensorFlow.

Begin with ``errors.py``: ``InputError`` is what bad input raises anywhere. ``files.py`` writes files that appear whole
or not at all, ``documents.py`` and ``arrays.py`` read what may come from anyone, ``versions.py`` names versions.
"""
