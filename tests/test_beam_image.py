"""The image of Beam's workers, as far as it can be checked without building it."""

import re

from locked import versions


def test_the_workers_have_the_beam_and_the_python_of_the_command(root):
    text = (root / "Dockerfile.beam").read_text()
    [(python, beam)] = re.findall(
        r"^FROM apache/beam_python([\d.]+)_sdk:([\d.]+)@\$\{SDK_DIGEST\} AS sdk$", text, re.MULTILINE
    )
    image = versions(root, "image")
    assert image["apache-beam"] == beam == versions(root, "everything")["apache-beam"]
    bases = re.findall(r"^FROM python:(\d+\.\d+)", (root / "Dockerfile").read_text(), re.MULTILINE)
    assert set(bases) == {python}
    # A pod copies its log with this image, by `ctr sync`.
    assert image["obstore"]
    # An entry point in another environment would not find the package.
    assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in text
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in text
    assert text.count("\nFROM ${CTR}\n") == 1
