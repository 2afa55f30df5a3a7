"""MkDocs hook: complete the navigation, publish examples and top-level pages, hide `notest`, write `llms.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
NOTEST = re.compile(r"^(```python) notest\b", re.MULTILINE)
EXAMPLE_LINK = re.compile(r"\]\(\.\./((?:\.\./)*examples/\w+\.py)\)")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
DESIGN = ["ARCHITECTURE.md"]
DESIGN_PAGES = ["claims.md"]
PROJECT = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
SKILL = "agents/SKILL.md"
FENCED = re.compile(r"^```.*?^```\n?|^---\n.*?^---\n", re.MULTILINE | re.DOTALL)
texts: dict[str, tuple[str, str]] = {}
"""The title and the Markdown of each page of the site, by its path."""


def on_files(files: Any, config: Any) -> Any:
    """Add what mkdocs.yml does not list: design pages, pages about the project, unlisted pages, example programs."""
    listed = set(pages_of(config["nav"]))
    unlisted = [page.src_uri for page in files.documentation_pages() if page.src_uri not in listed]
    unlisted.sort(key=lambda page: (not page.endswith("README.md"), page))  # An index comes before its pages.
    design = DESIGN_PAGES + [page for page in unlisted if page.startswith("decisions/")]
    sections = {
        "Design": publish(DESIGN, files, config) + design,
        "Project": publish(PROJECT, files, config),
        "More": [page for page in unlisted if page not in design],
    }
    config["nav"] += [{title: pages} for title, pages in sections.items() if pages]
    for program in sorted(ROOT.glob("examples/*.py")):
        files.append(File(f"examples/{program.name}", str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def publish(names: list[str], files: Any, config: Any) -> list[str]:
    """Add pages that live at the top of the repository to the site. Return their paths in the site."""
    found = [ROOT / name for name in names if (ROOT / name).is_file()]
    for page in found:
        content = LINK.sub(site_link, page.read_text())
        files.append(File.generated(config, page.name.lower(), content=content))
    return [page.name.lower() for page in found]


def site_link(match: re.Match[str]) -> str:
    """Rewrite a link of a top-level page for the site; links to files that are not in the site become plain text."""
    text, target = match.groups()
    path, mark, heading = target.partition("#")
    if path.startswith("docs/") and (ROOT / path).is_file():
        return f"[{text}]({path.removeprefix('docs/')}{mark}{heading})"
    if path in DESIGN + PROJECT and (ROOT / path).is_file():
        return f"[{text}]({path.lower()}{mark}{heading})"
    return text


def on_page_markdown(markdown: str, page: Any, **_site: Any) -> str:
    """Remove the `notest` marker, which MkDocs does not know, and point links to examples at the published files.

    Rank guides above decision records and the changelog in the search.
    """
    if page.file.src_uri.startswith(("decisions/", "changelog")):
        page.meta["search"] = {"boost": 0.5}
    found = EXAMPLE_LINK.sub(r"](\1)", NOTEST.sub(r"\1", markdown))
    texts[page.file.src_uri] = (page.title or page.file.src_uri, found)
    return found


def on_post_build(config: Any) -> None:
    """Write `llms.txt`, an index of the guides for language models, and `llms-full.txt` with their texts."""
    guides = [path for path in dict.fromkeys(pages_of(config["nav"])) if path in texts]
    guides = [path for path in guides if not path.startswith(("decisions/", "changelog"))]
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n"
    index = [head, "## Docs\n"]
    for path in guides:
        title, text = texts[path]
        index.append(f"- [{title}]({path.removesuffix('.md')}.html): {summary(text)}")
    site = Path(config["site_dir"])
    (site / "llms.txt").write_text("\n".join(index) + "\n")
    (site / SKILL).write_text((Path(config["docs_dir"]) / SKILL).read_text())  # agents read the source, not the page
    (site / "llms-full.txt").write_text("\n\n".join([head, *(texts[path][1] for path in guides)]) + "\n")


def summary(text: str) -> str:
    """Return the first sentence of a page below its title, without links."""
    paragraphs = [part.strip() for part in FENCED.sub("", text).split("\n\n")]
    first = next((part for part in paragraphs if part and part[0] not in "#|<!-:"), "")
    plain = LINK.sub(r"\1", re.sub(r"\[([^\]]*)\]\(https?:[^)]*\)", r"\1", " ".join(first.split())))
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", plain, maxsplit=1)[0]


def pages_of(nav: Any) -> Iterator[str]:
    """Yield every page that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for part in nav.values():
            yield from pages_of(part)
    else:
        for part in nav:
            yield from pages_of(part)
