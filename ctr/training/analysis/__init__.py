"""What is known of a model beside its predictions.

``flops.py`` counts operations, ``speed.py`` takes times, ``weight_spectra.py`` computes singular values, and
``vocabulary.py`` lists ids that have a row of their own.
"""
