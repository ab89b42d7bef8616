"""Additional optimizers and statistics; the core imports none of them.

``presets.py`` has the settings of papers; ``backpack.py`` computes statistics of a batch, with which
``gauss_newton.py`` preconditions gradient descent; ``tf_keras.py`` has the optimizers for Keras 2.
"""
