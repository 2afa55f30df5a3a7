"""A webhook: a function asks another service for work, gives it a link, and waits until the service calls it.

    python webhook_receiver.py

Needs `pip install 'holdfast[dashboard]'`. Two films are converted by a service that takes its time and calls a URL when
it is done; here a thread plays the service. The function holds no worker while it waits, and each link works for one
gate, once. Kill the program while the service works (`kill -9`) and start it again: no conversion is ordered twice. It
listens on port 8001; pass `--port 8002` for another one.
"""

import asyncio
import json
import secrets
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import uvicorn

from holdfast import Context, GateRejected, Holdfast, RunFinished, idempotency_key
from holdfast.web import dashboard

PORT = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 8001


def own_secret() -> str:
    """Return a secret that is kept in a file. In production, set $HOLDFAST_SECRET instead."""
    path = Path("webhook_secret.txt")
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text()


app = Holdfast("sqlite:///webhooks.db", secret=own_secret(), public_url=f"http://localhost:{PORT}")


@dataclass
class Converted:
    """What the service sends. A call with other data is refused with the status 422."""

    seconds: int
    file: str


@app.task
async def convert(ctx: Context, film: str) -> str:
    try:
        converted, _ = await asyncio.gather(
            ctx.gate("converted", type=Converted, timeout=timedelta(hours=6)),
            ctx.step(order, film, str(ctx.run_id)),
        )
    except GateRejected as rejected:
        return f"{film}: {rejected.error.message}"
    return f"{film}: {converted.file}, {converted.seconds} s"


async def order(film: str, run: str) -> str:
    """Order a conversion. The gate opens at the same time as this step starts, so `wait` for it."""
    gate = (await app.aget_run(run)).gate("converted")
    try:
        url = await gate.alink(expires=timedelta(hours=6), recipient="film service", wait=30)
    except RunFinished:  # decided in the meantime, on the dashboard for example
        return film
    film_service(film, url, idempotency_key())
    return film


def film_service(film: str, callback: str, key: str) -> None:
    """Stands for another company's service. It keeps orders by their key, in a file."""
    placed = Path(f"order-{film}.txt")
    if placed.exists():
        return
    placed.write_text(f"{key}\n{callback}")
    print(f"{film}: conversion ordered", flush=True)


def work_on_orders(stop: threading.Event) -> None:
    """The service's own worker: it calls the URL of each order until that answers."""
    while not stop.wait(0.2):
        for placed in Path().glob("order-*.txt"):
            film = placed.stem.removeprefix("order-")
            url = placed.read_text().split()[1]
            data = json.dumps({"seconds": 90, "file": f"{film}.mp4"}).encode()
            if film == "broken":
                url, data = f"{url}&outcome=fail", b'{"error": "the film is damaged"}'
            try:
                urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})).close()
            except urllib.error.HTTPError as error:
                if error.code != 404:  # the call was recorded before, and the answer got lost
                    continue
            except OSError:
                continue
            placed.rename(placed.with_suffix(".done"))


async def main() -> None:
    board = dashboard(app, token=secrets.token_urlsafe(32))
    server = uvicorn.Server(uvicorn.Config(board, port=PORT, log_level="warning"))
    stop = threading.Event()
    service = threading.Thread(target=work_on_orders, args=[stop])
    async with app.worker(lease=5, grace=1):
        serving = asyncio.create_task(server.serve())
        service.start()
        try:
            for film in ("broken", "holiday"):
                run = await convert.options(key=film).aenqueue(film)
                print(await run.aresult(), flush=True)
        finally:
            stop.set()
            server.should_exit = True
            await serving


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
