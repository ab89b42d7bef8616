"""Measures or compares recorded predictions of any size: begin with ``evaluate`` of ``run.py``.

``rows.py`` reads and checks files of predictions, ``run.py`` combines them, in this process or on Beam
(``on_beam.py``), and ``command.py`` is ``ctr evaluate``.
"""
