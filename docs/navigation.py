"""A hook of mkdocs: no page is forgotten in the navigation, and examples that aren't run are shown like the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MARK = re.compile(r"^(```python) notest\b", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that mkdocs.yml doesn't name: decisions under Design, all others under More."""
    named = set(pages_of(config["nav"]))
    rest = [page.src_uri for page in files.documentation_pages() if page.src_uri not in named]
    rest.sort(key=lambda page: (not page.endswith("README.md"), page))  # first what tells of the others
    decisions = [page for page in rest if page.startswith("decisions/")]
    more = [page for page in rest if page not in decisions]
    sections = {"More": more, "Design": decisions}
    config["nav"] += [{title: pages} for title, pages in sections.items() if pages]
    return files


def on_page_markdown(markdown: str, **_about: Any) -> str:
    """Take away the mark of examples that the tests leave out: it is for the tests, and mkdocs doesn't know it."""
    return MARK.sub(r"\1", markdown)


def pages_of(nav: Any) -> Iterator[str]:
    """All pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for part in nav.values():
            yield from pages_of(part)
    else:
        for part in nav:
            yield from pages_of(part)
