"""Exports of trained models, and predictions with them.

Begin with ``export.py``, which publishes a model, of functions in ``signatures.py``, in a folder of versions.
``scorer.py`` is the way from raw values to a prediction, ``score.py`` scores logs with it.
"""
