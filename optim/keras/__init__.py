"""Optimizers of Keras 2 and Keras 3."""
