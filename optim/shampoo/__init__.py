"""Distributed Shampoo and its relatives: SOAP, diagonal and one-sided Shampoo.

Begin with ``optimizer.py``, a step as a chain of stages, and ``options.py``, one group of options for each
stage. Stages: ``blocks``, ``statistics``, ``exchange``, ``directions``, ``grafting``, ``momentum``.
``roots.py`` has the certified inverse roots, ``division.py`` divides blocks among workers, and
``dense.py`` implements the trainer's interface.
"""
