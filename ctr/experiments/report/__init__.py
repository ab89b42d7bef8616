"""Report of an experiment, without TensorFlow.

`results` reads everything into one table: begin there. It measures the arms (`arms`, `predictions`, `slices`, `costs`,
`tuning_points`, from the files of `files`); `tables` shows them, and `write` puts together the page and the text.
"""
