"""Adafactor: second moments as products of row and column means. Begin with ``core.py``."""
