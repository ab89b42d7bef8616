"""Optimizers of Keras 2 and Keras 3: Shampoo, SOAP and Adafactor in ``model.compile``.

Begin with ``common.py``, shared by both Kerases; ``keras3.py`` and ``ctr.optim.contrib.tf_keras`` adapt it to the base
class of each. ``replicas.py`` divides blocks and state over the replicas of ``tf.distribute``.
"""
