"""Pages as HTML, and files that appear whole or not at all.

A file needs nothing beside it and loads nothing: its content security policy allows its own style and its one script,
by the script's hash, and no connection. The script only hides, shows and colors what the page has already.
"""

import base64
import hashlib
import os
import secrets
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ctr.eval.report.draw import draw
from ctr.eval.report.page import COLORS, DARK_COLORS, Page, dashes_of, markup
from ctr.io.errors import InputError
from ctr.io.files import file_fault, irregular

_MARK = b'<meta name="generator" content="ctr">'
_MARKED_WITHIN = 1 << 16
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; "
    "base-uri 'none'; form-action 'none'"
)


def render_page(page: Page) -> str:
    """Turns a page into the text of its file."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Not a template: nothing is filled in, so that its hash is known.
    script = (folder / "script.j2").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.filters.update(
        markup=markup, draw=draw, dashes_of=dashes_of, kind=lambda block: type(block).__name__
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        script=Markup(script),
        policy=_POLICY.format(hash=digest),
        colors=COLORS,
        dark_colors=DARK_COLORS,
    )


def is_page(path: Path) -> bool:
    """Tells whether a file is a page that `render_page` made."""
    with path.open("rb") as file:
        start = file.read(_MARKED_WITHIN)
    return start[:15].lower() == b"<!doctype html>" and _MARK in start


def check_page(path: Path) -> None:
    """Refuses, by InputError, to write a page over anything but another one."""
    if fault := file_fault(path, "a report of ctr", is_page):
        raise InputError(fault)


def write_page(path: Path, text: str) -> None:
    """Writes a file as UTF-8; it appears whole or not at all.

    Raises InputError where it cannot be written, or the name is that of something else than a regular file.
    """
    if what := irregular(path):
        raise InputError(f"{path}: is {what}; allowed: a new name, or a regular file to replace")
    temporary = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if temporary.is_file():
            temporary.unlink()
