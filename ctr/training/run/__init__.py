"""The run directory: what a run writes, and how it goes on from there.

Begin with ``directory.py``, which lists the files, and ``run.py``, the state of a run between its steps.
``checkpoint.py`` has the checkpoints, ``rollback.py`` decides when a run goes back to one, ``snapshot.py`` reads the
model in one, and ``results.py`` writes what there is at the end.
"""
