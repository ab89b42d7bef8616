"""Logs and systems of the study `defaults`."""
