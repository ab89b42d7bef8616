"""Experiments: arms trained on one log with several seeds, and compared (``ctr replay``, FF 3).

Begin with ``run``: an experiment from its file to its results. ``config`` reads the file; ``planning`` converts it to a
``plan`` and ``calls`` of ctr train, which skip existing results; ``jobs`` runs them in parallel, here or on Beam.
``costs`` has ``measure`` determine each arm's cost in a separate process; ``report`` compares the arms' results.
Searches (``ctr.search``) use the same steps to compare their result with the baseline.
"""
