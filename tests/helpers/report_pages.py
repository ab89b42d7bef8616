"""What tests read of a report."""

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "col"}


class Page(HTMLParser):
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

    def plots(self) -> list[dict[str, str | None]]:
        """The attributes of the plots."""
        return [svg for svg in self.all("svg") if svg.get("class") == "plot"]

    def images(self) -> list[str]:
        """The plots, as SVG."""
        images = re.findall(r"<svg [^>]*?class=\"plot\".*?</svg>", self.html, flags=re.DOTALL)
        assert len(images) == len(self.plots())
        return images

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
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "fetch(",
            "http",
        ):
            assert forbidden not in script.replace("http://www.w3.org/2000/svg", "")
        names = {name for _, attributes in self.elements for name in attributes}
        assert not [name for name in names if name.startswith("on")]
        assert not names & {"src", "srcset", "action", "formaction", "background", "poster"}
        assert not {tag for tag, _ in self.elements} & {
            "iframe",
            "object",
            "embed",
            "link",
            "base",
            "form",
            "img",
            "image",
        }
        # Parts of plots refer to others of their own, by the fragment alone.
        references = [a[name] for _, a in self.elements for name in ("href", "xlink:href") if name in a]
        assert all(str(reference).startswith("#") for reference in references)
        assert not re.search(r"@import|url\((?!#)", self.html)
