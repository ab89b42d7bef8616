"""The parts of the study `defaults`."""
