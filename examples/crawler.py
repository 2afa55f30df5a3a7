"""A polite crawler: at most two concurrent requests and five requests per second for each host, across all workers.

    python crawler.py
    python crawler.py https://example.org/

Without a URL it crawls three fake hosts defined in this file, so you need no network. Kill it (`kill -9`) and start it
again: pages that were read aren't read again. When the crawl is finished, another start only prints the result; delete
`crawler.db` to crawl again.
"""

import re
import sys
import urllib.request
from collections import Counter
from html.parser import HTMLParser
from typing import TypedDict
from urllib.error import HTTPError
from urllib.parse import urldefrag, urljoin, urlsplit

from holdfast import Context, Fatal, Holdfast, Retry, RunFailed

app = Holdfast("sqlite:///crawler.db")
MOST_PAGES = 200


def host_of(url: str) -> str:
    return urlsplit(url).netloc


app.limit("host", concurrency=2, rate="5/s", by=host_of)  # one counter per host


class Page(TypedDict):
    url: str
    title: str
    links: list[str]


@app.task(limits=["host"], retry=Retry(max_attempts=4, delay=1), timeout=30)
def read_page(url: str) -> Page:
    """Read one page. Each page is a run with its own retries; a full limit of one host doesn't delay other hosts."""
    sys.stdout.write(f"reading {url}\n")  # one write, because several threads print
    parser = PageParser()
    parser.feed(fetch(url))
    links = [urldefrag(urljoin(url, link)).url for link in parser.links]
    found = [link for link in dict.fromkeys(links) if urlsplit(link).scheme in ("http", "https")]
    return {"url": url, "title": " ".join(parser.title.split()), "links": found}


@app.task
async def crawl(ctx: Context, start: str, depth: int = 5) -> list[Page | str]:
    """Crawl breadth first: each round reads all pages that the previous round found."""
    seen, pages = {start}, list[Page | str]()
    hosts = {host_of(start)} if not is_fake(start) else set(SITES)  # a real crawl stays on its host
    frontier = [start]
    for _ in range(depth):
        read = await ctx.map(read_page, frontier, errors="return")
        pages += [str(page.error.message) if isinstance(page, RunFailed) else page for page in read]
        await ctx.progress(len(seen), note=f"{len(frontier)} pages in this round")
        found = dict.fromkeys(link for page in read if not isinstance(page, RunFailed) for link in page["links"])
        frontier = [link for link in found if link not in seen and host_of(link) in hosts][: MOST_PAGES - len(seen)]
        seen |= set(frontier)
        if not frontier:
            break
    return pages


class PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.title, self.links, self._in_title = "", list[str](), False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        if tag == "a" and (target := dict(attrs).get("href")):
            self.links.append(target)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"


def fetch(url: str) -> str:
    if is_fake(url):
        return fake_page(url)
    request = urllib.request.Request(url, headers={"User-Agent": "holdfast-example"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read(1_000_000).decode("utf-8", "replace"))
    except HTTPError as error:
        if error.code in (429, 500, 502, 503, 504):
            raise  # temporary: retry
        raise Fatal(f"{url}: {error.code} {error.reason}") from error


# Three fake hosts in the reserved domain .test. Page n links to the next pages and to the other hosts.

SITES = {"rope.test": 8, "anchor.test": 6, "lamp.test": 4}


def is_fake(url: str) -> bool:
    return host_of(url) in SITES


def fake_page(url: str) -> str:
    host, number = host_of(url), int(re.sub(r"\D", "", urlsplit(url).path) or 0)
    if number == 3 and host == "rope.test":
        raise Fatal(f"{url}: 404 Not Found")
    near = [f"/{n}" for n in (2 * number + 1, 2 * number + 2) if n < SITES[host]]
    far = [f"http://{other}/" for other in SITES if other != host]
    links = "".join(f'<a href="{link}">more</a>' for link in near + far)
    return f"<html><title>{host.removesuffix('.test').title()}, page {number}</title>{links}</html>"


def main() -> None:
    start = sys.argv[1] if len(sys.argv) > 1 else "http://rope.test/"
    run = crawl.options(key=start).enqueue(start)
    with app.worker(lease=5, grace=1):
        pages = run.result()
    for page in pages:
        print(page if isinstance(page, str) else f"{page['url']}: {page['title']}")
    by_host = Counter(host_of(page["url"]) for page in pages if not isinstance(page, str))
    print(f"{len(pages)} pages:", ", ".join(f"{host} {count}" for host, count in sorted(by_host.items())))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
