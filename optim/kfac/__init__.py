"""K-FAC, and the linear products that it learns from."""
