"""What watches a run and changes nothing of it, one file each; ``every.py`` lists them."""
