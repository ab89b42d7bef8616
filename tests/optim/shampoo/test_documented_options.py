"""The page of options has every one, as its dataclass says. UPDATE_DOCS=1 writes what is out of date."""

import os
import re

from ctr.config.reference import as_yaml, describe
from ctr.optim.shampoo.options import ShampooOptions

BLOCK = re.compile(r"(<!-- options of Shampoo -->\n```yaml\n)(.*?)(```\n)", re.DOTALL)


def test_the_page_has_all_options_with_their_defaults_and_what_is_allowed(root):
    page = root / "docs" / "shampoo-options.md"
    text = page.read_text()
    found = BLOCK.search(text)
    assert found is not None
    expected = as_yaml(describe(ShampooOptions))
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text[: found.start(2)] + expected + text[found.end(2) :])
        return
    assert found[2] == expected, "run this test with UPDATE_DOCS=1 in the environment"
