"""What tests read of a report; a name that pytest does not collect."""

import base64
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "col"}


class Page(HTMLParser):
    """The elements of a page: fails on a tag that is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
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
        if self.open and self.open[-1] != "style":
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def images(self) -> list[str]:
        """The plots, as SVG."""
        prefix = "data:image/svg+xml;base64,"
        sources = [str(image["src"]) for image in self.all("img")]
        assert all(source.startswith(prefix) for source in sources)
        return [base64.b64decode(source.removeprefix(prefix)).decode() for source in sources]
