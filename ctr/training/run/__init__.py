"""Files of a run: its directory, checkpoints, metrics, predictions, and rows to skip.

Begin with ``directory.py``, which names the files, and ``run.py``, which holds a run between two batches.
``position.py`` has the position, ``checkpoint.py`` writes and reads state, ``results.py`` writes the results at the
end of the log, ``summary.py`` formats them.
"""
