"""Pages of HTML from templates, and files that appear whole or not at all.

A page needs nothing beside it and loads nothing: its content security policy allows its own style and its one script,
by the script's hash, and no connection. The script only hides, shows and colors what the page has already.
"""

import base64
import hashlib
import os
import secrets
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ctr.eval import display
from ctr.eval.report.plot_style import COLORS, DARK_COLORS
from ctr.io.errors import InputError
from ctr.io.files import file_fault, irregular

_MARK = b'<meta name="generator" content="ctr">'
_MARKED_WITHIN = 1 << 16

_SCRIPT = "report_script.j2"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; "
    "base-uri 'none'; form-action 'none'"
)


def render_page(template: Path, **content: object) -> str:
    """Fills in a template, which may include those of this folder; all text of `content` is escaped."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Not a template: nothing is filled in, so that its hash is known.
    script = (Path(__file__).parent / _SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        interval=display.interval,
        with_margin=display.with_margin,
        script=Markup(script),
        policy=_POLICY.format(hash=digest),
        colors=COLORS,
        dark_colors=DARK_COLORS,
    )
    environment.filters.update(
        fixed=display.fixed, amount=display.amount, times=display.times, percent=display.percent
    )
    return environment.get_template(template.name).render(**content)


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
