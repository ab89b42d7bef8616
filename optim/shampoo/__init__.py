"""Distributed Shampoo and its relatives."""
