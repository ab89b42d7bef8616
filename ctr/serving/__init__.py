"""Exports of trained models, and predictions with them.

Begin with ``export.py``, which publishes a model in a folder of versions: ``saved_model.py`` writes it, of functions
in ``signatures.py``; ``graph.py`` makes its bytes canonical, and checks and calls it; ``weights.py`` has what a delta
holds. ``scorer.py`` is the way from raw values to a prediction: a few rows by ``row_model.py``, more by ``graph.py``.
``score.py`` scores files with it.
"""
