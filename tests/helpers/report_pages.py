"""What tests read of a report: the context of its template, and the file that the template becomes."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pandas as pd

from ctr.eval.report.page import PageContext, Section

VOID = {"meta", "img", "br", "col"}
MOST_FIGURES, MOST_BYTES = 12, 400_000


def section_of(context: PageContext, title: str) -> Section:
    [section] = [section for section in context.sections if section.title == title]
    return section


def tables_of(section: Section) -> list[pd.DataFrame]:
    """Tables of a section, those that open on a click behind the others."""
    folded = [content for _, content in section.folded if not isinstance(content, str)]
    return [*(table for _, table in section.tables), *folded]


def rows_of(table: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Rows by their first cells, cells by their heads."""
    rows = table.to_dict("records")
    return {str(next(iter(row.values()))): {str(key): str(one) for key, one in row.items()} for row in rows}


def figures_of(context: PageContext) -> list[str]:
    """Titles of the figures."""
    return [figure.title for section in context.sections for figure in section.figures]


def words_of(part: PageContext | Section) -> str:
    """All text but that of figures, a line each."""
    if isinstance(part, PageContext):
        lines = [part.title, *part.lead, *part.verdict, *part.warnings]
        return "\n".join([*lines, *map(words_of, part.sections)])
    lines = [part.title, *part.paragraphs, *(f"{one.title} {one.note}" for one in part.figures)]
    lines += [caption for caption, _ in part.tables] + [summary for summary, _ in part.folded]
    lines += [content for _, content in part.folded if isinstance(content, str)]
    for table in tables_of(part):
        lines += [*map(str, table.columns), *(str(cell) for row in table.to_numpy() for cell in row)]
    return "\n".join(lines)


def check_context(context: PageContext) -> None:
    """Checks what holds of every page."""
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b|– –", words_of(context))
    assert len(figures_of(context)) <= MOST_FIGURES
    titles = [section.title for section in context.sections]
    assert len(titles) == len(set(titles)) and context.verdict
    for table in [table for section in context.sections for table in tables_of(section)]:
        assert all(isinstance(cell, str) for row in table.to_numpy() for cell in row)


class Html(HTMLParser):
    """The elements of a page: fails on a tag that is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and "svg" not in self.open:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def images(self) -> list[str]:
        """The plots, as SVG."""
        return re.findall(r"<svg [^>]*?class=\"plot\".*?</svg>", self.html, flags=re.DOTALL)

    def check(self) -> None:
        """Checks what holds of every file: it is small, loads nothing and runs nothing."""
        assert len(self.html.encode()) < MOST_BYTES
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        sections = [section["id"] for section in self.all("section")]
        assert {link["href"] for link in self.all("a")} == {f"#{name}" for name in sections}
        style = re.findall("<style>(.*?)</style>", self.html, flags=re.DOTALL)
        assert len(style) == 1
        for svg in self.images():
            root = ElementTree.fromstring(svg)
            assert root.attrib["role"] == "img" and len(root.attrib["aria-label"]) > 20
            own = set(re.findall(r'\sid="([^"]+)"', svg))
            assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= own
            # Each color is one of the light page and of the dark one.
            assert not re.search(r"(?:fill|stroke): #[0-9a-f]{6}", svg)
            used = re.findall(r"var\((--[a-z0-9-]+)\)", svg)
            assert all(style[0].count(f"{name}: #") == 2 for name in used)
        [policy] = [meta for meta in self.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
        assert str(policy["content"]).split("; ") == [
            *("default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"),
        ]
        names = {name for _, attributes in self.elements for name in attributes}
        assert not [name for name in names if name.startswith("on")]
        assert not names & {"src", "srcset", "action", "formaction", "background", "poster"}
        foreign = {"script", "iframe", "object", "embed", "link", "base", "form", "img", "image"}
        assert not {tag for tag, _ in self.elements} & foreign
        # Parts of plots refer to others of their own, by the fragment alone.
        references = [a[name] for _, a in self.elements for name in ("href", "xlink:href") if name in a]
        assert all(str(reference).startswith("#") for reference in references)
        assert not re.search(r"@import|url\((?!#)", self.html)
