"""Optimizers and statistics beside the core, which imports none of them.

``presets.py`` has the settings of papers; ``backpack.py`` has statistics of a batch, and ``gauss_newton.py`` descent by
them; ``tf_keras.py`` has the optimizers for Keras 2.
"""
