"""Objective: the losses and constraints that training minimizes.

Begin with ``losses.py``, which sums the terms of a batch; ``config.py`` has their keys. ``pairs.py`` and
``targets.py`` prepare a batch in NumPy, ``schedules.py`` has ramps and learning rate schedules,
``bias_constraints.py`` the slices and their duals.
"""
