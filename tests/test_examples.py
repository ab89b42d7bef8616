"""The programs among the examples run and do what they show."""

import pytest


@pytest.mark.slow
def test_shampoo_trains_a_model_of_tensorflow_recommenders(root, fresh_python, tmp_path):
    done = fresh_python(root / "examples" / "recommenders.py", cwd=tmp_path, path=root)
    first, *_, last = map(float, done.stdout.splitlines()[-1].rpartition(":")[2].split())
    assert last < 0.95 * first < 0.7
