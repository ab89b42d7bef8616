"""What a configuration costs and what a run holds: operations, speed, vocabularies."""
