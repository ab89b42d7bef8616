"""Metrics of progressive validation: mergeable states, intervals, comparisons; requires only NumPy and pandas.

Rows enter through `ctr.eval.rows`; every metric is a small state with ``update``, ``merge``, ``result``,
``estimate``, ``to_arrays`` and ``from_arrays``; `ctr.eval.intervals` has the intervals of estimates.
"""
