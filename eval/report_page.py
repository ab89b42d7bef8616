"""Pages of HTML from templates, and files that appear whole or not at all."""

import os
import secrets
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ctr.eval import display
from ctr.eval.run_files import RunError


def render_page(template: str, **content: object) -> str:
    """A template of this folder filled in, all text of `content` escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(interval=display.interval)
    environment.filters.update(fixed=display.fixed, amount=display.amount, times=display.times)
    return environment.get_template(template).render(**content)


def write_page(path: Path, text: str) -> None:
    """Write a file as UTF-8; it appears whole or not at all.

    Raises:
        RunError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if temporary.is_file():
            temporary.unlink()
