"""Recorded predictions measured or compared, of any size, by Beam: begin with ``evaluate`` of ``run.py``.

``rows.py`` reads and checks files of predictions, ``run.py`` combines them, and ``command.py`` is ``ctr evaluate``.
"""
