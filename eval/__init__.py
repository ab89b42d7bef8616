"""Metrics of progressive validation: mergeable states, intervals, comparisons; NumPy and pandas only.

Rows come in through `ctr.eval.rows`; every metric is a small state with ``update``, ``merge``, ``result``,
``estimate``, ``to_arrays`` and ``from_arrays``; `ctr.eval.intervals` has the intervals of estimates.
"""
