"""Metrics of progressive validation: mergeable states, intervals, comparisons and reports; without TensorFlow.

Rows enter through `ctr.eval.rows`; every metric is a small state with ``update``, ``merge``, ``result``,
``estimate``, ``to_arrays`` and ``from_arrays``; `ctr.eval.intervals` computes the intervals of estimates.
"""
