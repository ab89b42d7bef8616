"""Distributed Shampoo and its relatives: SOAP, diagonals, one side.

Begin with ``optimizer.py``, a step as a chain of stages, and ``options.py``, one group of options for each
stage. Stages: ``blocks``, ``statistics``, ``exchange``, ``directions``, ``grafting``, ``momentum``.
``roots.py`` has the certified inverse roots, ``division.py`` the blocks of one worker of several,
``dense.py`` the trainer's interface.
"""
