"""Experiments: arms trained on one log with several seeds, and compared (``ctr replay``, FF 3).

Begin with ``run``: an experiment from its file to its results. ``config`` is the file; ``planning`` converts it to a
``plan`` and ``calls`` of ctr train, which skip existing results; ``jobs`` runs them in parallel, here or by Beam.
``costs`` has the cost of each arm, by ``measure`` in a separate process; ``report`` compares the arms' results.
Searches (``ctr.search``) use the same steps to compare their result with the baseline.
"""
