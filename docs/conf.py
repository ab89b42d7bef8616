"""Configuration of the documentation's site: ``make docs`` builds it into ``docs/_build/html``."""

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
_project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
sys.path.insert(0, str(HERE))

project = "clicktrain"
author = copyright = "The clicktrain authors"
html_title = "clicktrain"
html_theme = "furo"
html_baseurl = _project["urls"]["Documentation"]
html_theme_options = {
    "source_repository": _project["urls"]["Repository"],
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#4db1ee", "color-brand-content": "#4db1ee"},
}
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_extra_path = ["_build/extra"]
source_suffix = {".md": "markdown"}
# Headings are anchors, under the names that they have on GitHub too.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
suppress_warnings = ["myst.header"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_custom_sections = [("Options", "params_style"), ("Their defaults", "params_style")]
copybutton_exclude = ".linenos, .gp"


def _add_base(_app: Sphinx, page: str, _template: str, context: dict[str, str], _tree: object) -> None:
    """Lets the page of missing pages, which is shown at any address, find its style sheets."""
    if page == "404":
        context["metatags"] = f'<base href="{html_baseurl}" />' + context.get("metatags", "")


def setup(app: Sphinx) -> None:
    """Writes the pages and schemas that are made of the code before Sphinx looks for pages."""
    app.connect("html-page-context", _add_base)
    import generated_pages

    from ctr.config.kinds import CONFIGS, config_model
    from ctr.config.schema import write_schemas

    generated_pages.write_pages(HERE / "reference" / "generated")
    write_schemas(HERE / "_build" / "extra" / "schemas", {kind: config_model(kind) for kind in CONFIGS})
