"""Optimizers and statistics beside the core, which imports none of them.

``presets.py`` has the settings of papers and turns those of other implementations into ours; ``backpack.py``
has statistics of a batch.
"""
