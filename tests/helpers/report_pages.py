"""What tests read of a report: of its page, and of the file that the page becomes."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

from ctr.eval.report.page import (
    Beside,
    Block,
    Cards,
    Cell,
    Definitions,
    Details,
    Figure,
    Figures,
    Page,
    Section,
    Table,
    plain,
)

VOID = {"meta", "img", "br", "col"}


def blocks_of(part: Page | Section | Block) -> Iterator[Block]:
    """Every block, those inside of others too."""
    if isinstance(part, Page):
        inside = [*part.lead, *part.sections]
    elif isinstance(part, Section | Details | Beside):
        inside = list(part.blocks)
    else:
        inside = [part.beside] if isinstance(part, Figures) and part.beside else []
    for one in inside:
        if not isinstance(one, Section):
            yield one
        yield from blocks_of(one)


def tables_of(part: Page | Section) -> list[Table]:
    return [block for block in blocks_of(part) if isinstance(block, Table)]


def figures_of(part: Page | Section) -> list[Figure]:
    """Figures that are drawn."""
    return [one for block in blocks_of(part) if isinstance(block, Figures) for one in block.drawn]


def missing_of(part: Page | Section) -> list[str]:
    """Titles of the figures that are not drawn."""
    return [one.title for block in blocks_of(part) if isinstance(block, Figures) for one in block.missing]


def rows_of(table: Table) -> dict[str, list[str]]:
    """Rows as texts, with what is below them, by their first cells."""
    return {str(first): list(map(whole, cells)) for first, *cells in table.cells}


def whole(cell: Cell) -> str:
    return " ".join(filter(None, [str(cell), *map(plain, cell.small)]))


def words_of(part: Page | Section) -> str:
    """All text but that of figures, a line each."""
    lines = [plain(part.heading)] if isinstance(part, Page) else [plain(part.title)]
    lines += [plain(one.title) for one in part.sections] if isinstance(part, Page) else []
    for block in blocks_of(part):
        if isinstance(block, Table):
            lines += [plain(block.caption), *(plain(one.head) for one in block.heads)]
            lines += [whole(cell) for row in block.cells for cell in row]
        elif isinstance(block, Cards):
            entries = [(card.title, *entry[2::2]) for card in block.cards for entry in card.entries]
            lines += [" ".join(map(str, entry)) for entry in entries]
        elif isinstance(block, Definitions):
            lines += [plain(text) for term, texts in block.entries for text in (term, *texts)]
        elif isinstance(block, Details):
            lines.append(plain(block.summary))
        elif isinstance(block, Figures):
            lines += [f"{one.title} {one.note}" for one in block.figures]
        elif not isinstance(block, Beside):
            lines.append(plain(block.text))
    return "\n".join(lines)


def check_page(page: Page) -> None:
    """Checks what holds of every page."""
    names = [section.name for section in page.sections]
    assert len(names) == len(set(names))
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", words_of(page))
    for table in tables_of(page):
        assert all(sum(cell.span for cell in row) == len(table.columns) for row in table.cells)
    for figure in figures_of(page):
        assert len(figure.alt) > 20
        for _, one in figure.hovered:
            assert len(one.x) == len(one.y) == len(one.heads) == len(one.texts or ())
            known = [text for text, value in zip(one.texts or (), one.y, strict=True) if value == value]
            assert all(text and "nan" not in text for text in known)


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
        if self.open and self.open[-1] not in ("style", "script") and "svg" not in self.open:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def images(self) -> list[str]:
        """The plots, as SVG."""
        return re.findall(r"<svg [^>]*?class=\"plot\".*?</svg>", self.html, flags=re.DOTALL)

    def check(self) -> None:
        """What holds of every file."""
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        sections = [section["id"] for section in self.all("section")]
        assert {link["href"] for link in self.all("a")} == {f"#{name}" for name in sections}
        for svg in self.images():
            root = ElementTree.fromstring(svg)
            assert root.attrib["role"] == "img" and len(root.attrib["aria-label"]) > 20
            own = set(re.findall(r'\sid="([^"]+)"', svg))
            assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= own
            # What is known of the points of a plot lies within it.
            width = float(root.attrib["viewBox"].split()[2])
            for _, points in json.loads(root.attrib.get("data-hover", '{"series": []}'))["series"]:
                assert all(-1 <= x <= width + 1 for x, *_ in points)
        self.check_policy()

    def check_policy(self) -> None:
        """The page loads nothing, and runs nothing but the script that came with the package."""
        [script] = re.findall(r"<script>(.*?)</script>", self.html, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        [policy] = [meta for meta in self.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
        assert str(policy["content"]).split("; ") == [
            "default-src 'none'",
            "style-src 'unsafe-inline'",
            f"script-src 'sha256-{digest}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
        assert [attributes for attributes in self.all("script") if attributes] == []
        forbidden = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "fetch(", "http")
        code = script.replace("http://www.w3.org/2000/svg", "")
        assert not [word for word in forbidden if word in code]
        names = {name for _, attributes in self.elements for name in attributes}
        assert not [name for name in names if name.startswith("on")]
        assert not names & {"src", "srcset", "action", "formaction", "background", "poster"}
        foreign = {"iframe", "object", "embed", "link", "base", "form", "img", "image"}
        assert not {tag for tag, _ in self.elements} & foreign
        # Parts of plots refer to others of their own, by the fragment alone.
        references = [a[name] for _, a in self.elements for name in ("href", "xlink:href") if name in a]
        assert all(str(reference).startswith("#") for reference in references)
        assert not re.search(r"@import|url\((?!#)", self.html)
