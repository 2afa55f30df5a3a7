"""A chat whose answers stream to the page and survive a reload, a crash of the worker and a deploy.

    python chat.py

Needs `pip install fastapi 'holdfast[dashboard]'`. It listens on port 8000; pass `--port 8001` for another one. Open
http://localhost:8000, ask something, and while it answers reload the page, or kill the service (`kill -9`) and start it
again: the answer goes on. What was half written is written again, and the page drops the first half.

    curl -s localhost:8000/chats -X POST
    curl -s localhost:8000/chats/RUN -H "Content-Type: application/json" -d '{"text": "Where is my order?"}'
    curl -sN "URL"

Every chat is one durable function. The page follows it with an EventSource at the signed URL of its stream, which opens
nothing else. `model` stands for a language model.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from holdfast import Context, Holdfast, RunFinished, RunNotFound, WaitTimeout
from holdfast.web import dashboard

port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 8000


def kept(name: str) -> str:
    """Return a secret that is kept in a file. In production, set the environment variable."""
    path = Path(f"{name.lower()}.txt")
    if not path.exists():
        path.write_text(secrets.token_hex(32))
    return os.environ.get(name) or path.read_text()


app = Holdfast(
    "sqlite:///chat.db",
    secret=kept("HOLDFAST_SECRET"),
    public_url=os.environ.get("HOLDFAST_PUBLIC_URL") or f"http://localhost:{port}/holdfast",
)
board = dashboard(app, token=kept("HOLDFAST_TOKEN"))


class Question(BaseModel):
    text: str = Field(min_length=1, max_length=1000)


class Chat(BaseModel):
    run: UUID
    stream: str


@app.task(receives={"question": str})
async def chat(ctx: Context) -> int:
    async def answer(question: str) -> None:
        async for word in model(question):
            await ctx.write(word)

    count = 0
    while True:
        try:
            question = await ctx.receive("question", type=str, timeout=timedelta(days=7))
        except WaitTimeout:
            return count  # the chat is over
        count += 1
        await ctx.write({"you": question})
        await ctx.step(answer, question, name="answer")


async def model(question: str) -> AsyncIterator[str]:
    for word in f"You asked: {question} That is a good question. This answer comes one word at a time.".split():
        await asyncio.sleep(0.1)
        yield f"{word} "


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app.worker(lease=3, grace=1):
        yield
    board.close()
    await app.aclose()


site = FastAPI(title="Chat", lifespan=lifespan)
site.mount("/holdfast", board)


@site.post("/chats", status_code=201)
async def begin() -> Chat:
    run = await chat.aenqueue()
    return Chat(run=run.id, stream=run.stream_url(expires=timedelta(hours=1)))


@site.get("/chats/{id}")
async def resume(id: UUID) -> Chat:
    try:
        run = await app.aget_run(id)
    except RunNotFound:
        raise HTTPException(404, f"chat {id} does not exist") from None
    return Chat(run=run.id, stream=run.stream_url(expires=timedelta(hours=1)))


@site.post("/chats/{id}", status_code=202)
async def ask(id: UUID, question: Question) -> None:
    try:
        await (await app.aget_run(id)).asend("question", question.text)
    except RunNotFound:
        raise HTTPException(404, f"chat {id} does not exist") from None
    except RunFinished:
        raise HTTPException(409, f"chat {id} is over") from None


@site.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Chat</title>
<style>
  body { font: 16px/1.5 system-ui; max-width: 40rem; margin: 2rem auto; padding: 0 1rem }
  .you { font-weight: 600; margin: 1rem 0 .25rem } form { display: flex; gap: .5rem; margin-top: 1rem }
  input { flex: 1; font: inherit; padding: .4rem } button { font: inherit }
</style>
<main id="chat" aria-live="polite"></main>
<form><input name="text" aria-label="Question" maxlength="1000" required autofocus><button>Ask</button></form>
<script type="module">
  const place = document.getElementById("chat");
  let chunks = [];   // what counts, in order

  function show() {
    place.replaceChildren();
    for (const { data } of chunks) {
      if (data.you !== undefined || !place.lastElementChild) {
        place.append(Object.assign(document.createElement("p"), { className: "you", textContent: data.you }));
        place.append(document.createElement("p"));
      } else {
        place.lastElementChild.append(data);
      }
    }
  }

  function follow(url) {
    const source = new EventSource(url);   // reconnects by itself, behind the last chunk that it got
    source.addEventListener("chunk", (event) => { chunks.push(JSON.parse(event.data)); show(); });
    source.addEventListener("reset", (event) => {
      const reset = JSON.parse(event.data);
      chunks = chunks.filter((it) => !(reset.after < it.id && it.id < reset.before
        && (reset.everything || it.step === reset.step)));
      show();
    });
    source.addEventListener("end", () => source.close());
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) setTimeout(start, 1000);   // the URL has expired: get another one
    });
  }

  async function start() {
    const known = location.hash.slice(1);   // the address survives a reload
    const answer = await fetch(known ? `/chats/${known}` : "/chats", { method: known ? "GET" : "POST" });
    const { run, stream } = await answer.json();
    location.hash = run;
    chunks = [];
    follow(stream);
  }

  document.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = event.target.text.value;
    event.target.reset();
    const headers = { "Content-Type": "application/json" };
    fetch(`/chats/${location.hash.slice(1)}`, { method: "POST", headers, body: JSON.stringify({ text }) });
  });
  start();
</script>
</html>
"""


if __name__ == "__main__":
    print(f"chat: http://localhost:{port}/ dashboard: http://localhost:{port}/holdfast/ token in the file", flush=True)
    uvicorn.run(site, port=port, log_level="warning", timeout_graceful_shutdown=1)
