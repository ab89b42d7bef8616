"""Exports of trained models, and predictions with them.

Begin with ``export.py``, which publishes a model in a folder of versions: ``saved_model.py`` writes it, of functions
in ``signatures.py``. ``scorer.py`` is the way from raw values to a prediction, ``score.py`` scores logs with it.
"""
