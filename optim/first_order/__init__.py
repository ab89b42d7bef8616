"""Online learners of single numbers."""
