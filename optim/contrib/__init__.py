"""Additional optimizers and statistics; the core imports none of them.

``presets.py`` has the settings of papers; ``backpack.py`` has statistics of a batch, and ``gauss_newton.py`` descends
with them; ``tf_keras.py`` has the optimizers for Keras 2.
"""
