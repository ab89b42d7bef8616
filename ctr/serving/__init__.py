"""Exports of trained models, and predictions with them.

Begin with ``export.py``, which publishes a model, with the functions of ``signatures.py``, in a folder of versions.
``scorer.py`` predicts from raw values; ``score.py`` scores logs with an exported model.
"""
