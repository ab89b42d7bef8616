"""Files of a run: its directory, checkpoints, metrics, predictions, and going back after faults.

Begin with ``directory.py``, which names the files, and ``run.py``, which holds a run between two batches.
``checkpoint.py`` writes and reads state, ``rollback.py`` goes back to it, ``metrics.py`` and ``summary.py``
write what was measured.
"""
