"""An approval by mail: the manager gets a link and decides in a form, without an account.

    python approval_by_link.py

Needs `pip install 'holdfast[dashboard]'`. The program asks for a refund to be approved, prints the mail (yours would
send it) and serves the dashboard, which has the form. Open the link in a browser, and approve or reject. Kill the
program while it waits (`kill -9`) and start it again: the mail isn't sent twice, and the link still works. Pass
`--approve` to let the program fill in the form itself, and `--port 8001` for another port than 8000.
"""

import asyncio
import re
import secrets
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import uvicorn

from holdfast import Context, GateRejected, Holdfast, RunFinished
from holdfast.web import dashboard

PORT = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 8000


def own_secret() -> str:
    """Return a secret that is kept in a file. In production, set $HOLDFAST_SECRET instead."""
    path = Path("secret.txt")
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text()


app = Holdfast("sqlite:///approvals.db", secret=own_secret(), public_url=f"http://localhost:{PORT}")


@dataclass
class Decision:
    refund: bool
    reason: str


@app.task
async def refund(ctx: Context, order: int, amount: int) -> str:
    question = {"order": order, "amount": f"{amount} EUR", "customer": "Eve"}
    try:
        decision, _ = await asyncio.gather(
            ctx.gate("refund", type=Decision, payload=question, timeout=timedelta(days=7)),
            ctx.step(send_mail, str(ctx.run_id), "ada@example.org"),
        )
    except GateRejected as rejected:
        return f"order {order}: the refund was rejected: {rejected.error.message}"
    if not decision.refund:
        return f"order {order}: no refund: {decision.reason}"
    return await ctx.step(pay_back, order, amount)


def send_mail(run: str, to: str) -> str:
    """Write a mail. The gate opens at the same time as this step starts, so `wait` for it."""
    try:
        url = app.get_run(run).gate("refund").link(expires=timedelta(days=7), recipient=to, wait=30)
    except RunFinished:  # decided in the meantime, on the dashboard for example
        return "nobody"
    Path("mail.txt").write_text(url)
    print(f"To: {to}\nSubject: Please decide about a refund\n\n    {url}\n", flush=True)
    return to


async def pay_back(order: int, amount: int) -> str:
    print(f"paying {amount} EUR back", flush=True)
    return f"order {order}: {amount} EUR were paid back"


def approve() -> None:
    """Fill in the form and confirm it, as a browser does."""
    while not Path("mail.txt").exists():
        time.sleep(0.05)
    form = {"field:refund": "true", "field:reason": "the parcel was lost", "outcome": "complete", "step": "confirm"}
    data = urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(urllib.request.Request(Path("mail.txt").read_text(), data, {"Origin": "null"})) as page:
        print(re.search("<h1>(.*)</h1>", page.read().decode())[1], flush=True)  # type: ignore[index]


async def main() -> None:
    board = dashboard(app, token=secrets.token_urlsafe(32))
    server = uvicorn.Server(uvicorn.Config(board, port=PORT, log_level="warning"))
    async with app.worker(lease=5, grace=1):
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        try:
            run = await refund.options(key="order-42").aenqueue(42, 50)
            if "--approve" in sys.argv and not (await run.ainfo()).final:
                await asyncio.to_thread(approve)
            print(await run.aresult(), flush=True)
        finally:
            server.should_exit = True
            await serving


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
