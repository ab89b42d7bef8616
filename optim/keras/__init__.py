"""Optimizers of Keras 2 and Keras 3: Shampoo, SOAP and Adafactor in ``model.compile``.

Begin with ``common.py``, what both Kerases share; ``keras2.py`` and ``keras3.py`` fit it to the base class of
each. ``replicas.py`` divides blocks and state over the replicas of ``tf.distribute``.
"""
