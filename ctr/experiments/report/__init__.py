"""Report of an experiment, without TensorFlow.

`results` reads everything into one table: begin there. It compares the arms (`runs`, `changes`, `predictions`,
`tuning_points`); `tables` shows the table's columns, and `write` puts together the page and the text.
"""
