"""Single-pass training of click-through-rate models on time-ordered logs."""

__version__ = "0.1.0"
