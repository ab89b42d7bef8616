"""Optimizers and statistics beside the core, which imports none of them."""
