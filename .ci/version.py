"""Version of a release: the same in the package, CHANGELOG.md, CITATION.cff and the tag, or one line on what differs.

python .ci/version.py                prints the version if CHANGELOG.md gives it a date, otherwise nothing
python .ci/version.py --tag v0.1.0   the same, where it must be that of the tag
python .ci/version.py --notes        prints what CHANGELOG.md says of it, for the notes of the release
"""

import argparse
import re
import sys
from pathlib import Path

HEADING = re.compile(
    r"^## \[([0-9]+\.[0-9]+\.[0-9]+)\] - (unreleased|[0-9]{4}-[0-9]{2}-[0-9]{2})$", re.MULTILINE
)


def newest_section(changelog: str) -> tuple[str, str, str]:
    """Version, date (or ``unreleased``) and text of the first section of a changelog."""
    headings = list(HEADING.finditer(changelog))
    first_line = re.search(r"^## .*$", changelog, re.MULTILINE)
    if not headings or first_line is None or first_line.start() != headings[0].start():
        raise SystemExit(
            "error: CHANGELOG.md: the first section needs a heading such as ## [0.1.0] - 2026-12-31 or - unreleased"
        )
    end = headings[1].start() if len(headings) > 1 else len(changelog)
    return headings[0][1], headings[0][2], changelog[headings[0].end() : end].strip()


def _only(pattern: str, file: Path) -> str:
    found = re.findall(pattern, file.read_text(), re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"error: {file.name}: needs one version, has {len(found)}")
    return str(found[0])


def main(arguments: list[str], root: Path) -> None:
    """Prints what the arguments ask for; SystemExit with one line where two versions differ."""
    parser = argparse.ArgumentParser(description="version of a release")
    parser.add_argument("--tag", help="tag that the version must be that of, such as v0.1.0")
    parser.add_argument("--notes", action="store_true", help="print the section of CHANGELOG.md")
    args = parser.parse_args(arguments)
    version, date, notes = newest_section((root / "CHANGELOG.md").read_text())
    others = {
        "ctr/__init__.py": _only(r'^__version__ = "(.*)"$', root / "ctr/__init__.py"),
        "CITATION.cff": _only(r'^version: "?([^"\n]*)"?$', root / "CITATION.cff"),
    }
    if args.tag is not None:
        others["the tag"] = args.tag.removeprefix("v")
        if date == "unreleased":
            raise SystemExit(
                f"error: the tag is {args.tag}, but CHANGELOG.md says that {version} is unreleased"
            )
    for name, other in others.items():
        if other != version:
            raise SystemExit(f"error: CHANGELOG.md begins with {version}, but {name} has {other}")
    if args.notes:
        print(notes)
    elif date != "unreleased":
        print(version)


if __name__ == "__main__":
    main(sys.argv[1:], Path(__file__).resolve().parent.parent)
