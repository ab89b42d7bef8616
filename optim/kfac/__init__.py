"""K-FAC: preconditioning by the factors of a model's linear products.

Begin with ``factors.py``, the formulas as pure functions, and ``core.py``, a step over variables.
``record.py`` records products in a forward pass, ``output_losses.py`` defines the tensors sent back through them;
``trainer.py`` is a training step for Keras models.
"""
