"""The examples in docstrings give what stands below them."""

import doctest
import importlib

import pytest

# Those with examples; the Scorer's, which needs a model, is in tests/serving/test_scorer.py.
MODULES = {
    "ctr.eval.auc": ["roc_auc"],
    "ctr.eval.compare": ["compare"],
    "ctr.eval.display": ["with_margin"],
    "ctr.eval.per_query_auc": ["query_auc"],
    "ctr.eval.progressive": ["ProgressiveMetrics"],
    "ctr.models.activations": ["smelu"],
    "ctr.optim.shampoo.blocks": ["merge_dimensions", "split_evenly"],
    "ctr.optim.keras.keras3": ["Shampoo"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(key, name) for key, names in MODULES.items() for name in names]
)
def test_examples_of_docstrings(module, name):
    content = importlib.import_module(module)
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(content, name), name, module=content)
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)
