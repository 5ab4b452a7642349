"""Checks of the built site that the site generator does not make: every link, every module, every page.

Run by `scripts/build-docs` from the repository root, after rustdoc was put into the site.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path("site")
DOCS = Path("docs")
STAGED_SOURCES = Path(".docs/src")
RUSTDOC = SITE / "reference" / "rust"


def main() -> int:
    """Print every fault and return the exit status: 0 when there is none."""
    faults = [*broken_links(), *undocumented_modules(), *pages_outside_navigation()]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def broken_links() -> Iterator[str]:
    """Links of our own pages to files that the site does not hold, rustdoc's pages included as targets."""
    for page in sorted(SITE.rglob("*.html")):
        if page.is_relative_to(RUSTDOC) or page.name == "404.html":
            continue
        for link in _links(page):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
                continue
            target = page.parent / unquote(parts.path)
            if not (target.is_file() or (target / "index.html").is_file()):
                yield f"{page} links to {link}, which the site does not hold"


def undocumented_modules() -> Iterator[str]:
    """Public modules that no page of the reference shows."""
    directives = re.compile(r"^::: +(\S+)", re.MULTILINE)
    shown = {name for page in DOCS.rglob("*.md") for name in directives.findall(page.read_text(encoding="utf-8"))}
    for source in sorted(STAGED_SOURCES.rglob("*.py")):
        parts = source.relative_to(STAGED_SOURCES).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if any(part.startswith("_") for part in parts):
            continue
        if (module := ".".join(parts)) not in shown:
            yield f"module {module} is public and in no page of the reference; add `::: {module}` under docs/reference/"


def pages_outside_navigation() -> Iterator[str]:
    """Pages that nobody finds, because zensical.toml does not list them."""
    navigation = tomllib.loads(Path("zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed = set(_pages(navigation))
    for page in sorted(DOCS.rglob("*.md")):
        if (name := page.relative_to(DOCS).as_posix()) not in listed:
            yield f"{page} is not in the navigation; add {name} to nav in zensical.toml"


def _links(page: Path) -> list[str]:
    collector = _LinkCollector()
    collector.feed(page.read_text(encoding="utf-8"))
    return collector.links


def _pages(navigation: object) -> Iterator[str]:
    match navigation:
        case str():
            yield navigation
        case list():
            for entry in navigation:
                yield from _pages(entry)
        case dict():
            for entry in navigation.values():
                yield from _pages(entry)


class _LinkCollector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        self.links.extend(value for name, value in attrs if name == wanted and value)


if __name__ == "__main__":
    sys.exit(main())
