"""Check the built site: every local link and anchor leads somewhere, and nothing is loaded from the network.

`python check_links.py build/docs` lists what does not and ends with status 1.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links, the anchors and the loaded files of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.loaded: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        for name in ("src", "href"):
            if (tag, name) in (("script", "src"), ("img", "src"), ("link", "href")) and given.get(name):
                self.loaded.append(given[name] or "")


def problems(site: Path) -> list[str]:
    """Return a line for each link or file that is not there."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded:
                    found.append(f"{file.relative_to(site)} loads {link} from the network")
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.exists():
                found.append(f"{file.relative_to(site)}: {link} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{file.relative_to(site)}: {link} has no such anchor")
    return found


def main() -> None:
    """Check the site of the command line's argument."""
    found = problems(Path(sys.argv[1]).resolve())
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
