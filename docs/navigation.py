"""A hook of mkdocs: no page is forgotten in the navigation, the programs of the examples can be read, and snippets that
aren't run are shown like the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"^(```python) notest\b", re.MULTILINE)
PROGRAM = re.compile(r"\]\(\.\./((?:\.\./)*examples/\w+\.py)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that mkdocs.yml doesn't name: decisions under Design, all others under More."""
    named = set(pages_of(config["nav"]))
    rest = [page.src_uri for page in files.documentation_pages() if page.src_uri not in named]
    rest.sort(key=lambda page: (not page.endswith("README.md"), page))  # first what tells of the others
    decisions = [page for page in rest if page.startswith("decisions/")]
    more = [page for page in rest if page not in decisions]
    sections = {"More": more, "Design": decisions}
    config["nav"] += [{title: pages} for title, pages in sections.items() if pages]
    for program in sorted(ROOT.glob("examples/*.py")):
        files.append(File(f"examples/{program.name}", str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, **_about: Any) -> str:
    """Take away the mark of snippets that the tests leave out: it is for the tests, and mkdocs doesn't know it.
    Programs are beside the pages in the site, above them in the repository."""
    return PROGRAM.sub(r"](\1)", MARK.sub(r"\1", markdown))


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
