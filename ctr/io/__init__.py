"""Files, documents and hashes, for all other packages; it imports none of them, and no TensorFlow.

Begin with ``errors.py``: all code raises ``InputError`` for bad input. ``files.py`` writes files that appear whole
or not at all, holds locks and names versions; ``documents.py`` and ``arrays.py`` parse untrusted files.
"""
