"""Rules by which the rows of embedding tables learn."""
