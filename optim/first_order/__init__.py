"""First-order optimizers: their options and directions, momentum, and online learners of single numbers."""
