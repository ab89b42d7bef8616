"""The examples in docstrings give what stands below them."""

import doctest
import importlib
import sys

import pytest

import ctr.optim

# Those with examples; the Scorer's, which needs a model, is in tests/serving/test_scorer.py.
MODULES = {
    "ctr.eval.auc": ["roc_auc"],
    "ctr.eval.compare": ["compare"],
    "ctr.eval.per_query_auc": ["query_auc"],
    "ctr.eval.progressive": ["ProgressiveMetrics"],
    "ctr.models.activations": ["smelu"],
    # All that is public.
    "ctr.optim": sorted({*ctr.optim.__all__} - {"options", "presets"}),
    "ctr.optim.contrib.presets": ["preset"],
    "ctr.optim.shampoo.blocks": ["merge_dimensions", "split_evenly"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(key, name) for key, names in MODULES.items() for name in names]
)
def test_examples_of_docstrings(module, name):
    value = getattr(importlib.import_module(module), name)
    (test,) = doctest.DocTestFinder(recurse=False).find(value, name, module=sys.modules[value.__module__])
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)
