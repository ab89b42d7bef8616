"""Pairs of features: an expert beside the model, of linear weights for all features and for all pairs of them.

It learns by itself, as a model of linear weights does; ``combination.py`` moves the model's predictions towards its own
as far as that has paid, and lets it sleep where it has not. Begin with ``trainer.py``; ``layout.py`` says what a pair
is, ``state.py`` what a run keeps.
"""
