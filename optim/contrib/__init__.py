"""Optimizers and statistics beside the core, which imports none of them.

``presets.py`` has the settings of papers and turns those of other implementations into ours; ``muon.py``
orthogonalizes momentum; ``schedule_free.py`` averages weights in place of a schedule; ``backpack.py`` has
statistics of a batch.
"""
