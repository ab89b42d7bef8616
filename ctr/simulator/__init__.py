"""A simulated ad system: logs whose true click probabilities are known."""
