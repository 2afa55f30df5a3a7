"""A research agent on a web page: it streams a report, asks before it publishes, and has a budget of one dollar.

    python research_agent.py

Needs `pip install fastapi 'holdfast[dashboard,pydantic-ai]'`. It listens on port 8000; pass `--port 8001` for another
one. Open http://localhost:8000 and ask something. While it answers, reload the page, or kill the service (`kill -9`)
and start it again: no finished call of the model or a tool is repeated, and what was half written is written again.

    BUDGET=0.001 python research_agent.py

With this budget, in dollars, the agent has to wait until you raise it on the page, or with `holdfast budgets set`.

The model is faked, so you need no API key and no network; set MODEL=openai:gpt-5, for example, to use a real one.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from pydantic_ai import Agent, AgentStreamEvent, PartDeltaEvent, PartEndEvent, PartStartEvent
from pydantic_ai.messages import ModelMessage, ModelRequest, TextPart, TextPartDelta, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast import Context, GraphError, Holdfast, KeyConflict, Run, RunNotFound
from holdfast.integrations.pydantic_ai import Approval, HoldfastDurability, Price
from holdfast.web import dashboard

port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 8000


def kept(name: str) -> str:
    """Return a secret that is kept in a file. In production, set the environment variable."""
    path = Path(f"{name.lower()}.txt")
    if not path.exists():
        path.write_text(secrets.token_hex(32))
    return os.environ.get(name) or path.read_text()


app = Holdfast(
    "sqlite:///research_agent.db",
    secret=kept("HOLDFAST_SECRET"),
    public_url=os.environ.get("HOLDFAST_PUBLIC_URL") or f"http://localhost:{port}/holdfast",
)
app.budget("usd", limit=float(os.environ.get("BUDGET", "1")), per="run")
board = dashboard(app, token=kept("HOLDFAST_TOKEN"))
PRICES = {"gpt-5": Price(input=1.25, output=10), "*": Price(input=5, output=25)}  # per million tokens


# The agent


async def pretend(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Answer like a model: search twice at once, write a report, publish it, and say so."""
    results: dict[str, list[str]] = {"search": [], "publish": []}
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                results[part.tool_name].append(str(part.content))
    await asyncio.sleep(0.2)
    if not results["search"]:
        yield {0: DeltaToolCall("search", '{"topic": "ropes"}'), 1: DeltaToolCall("search", '{"topic": "knots"}')}
    elif not results["publish"]:
        for word in f"Report: {' '.join(results['search'])} A knot holds a rope by friction.".split():
            await asyncio.sleep(0.05)
            yield f"{word} "
        yield {1: DeltaToolCall("publish", '{"title": "Ropes and knots"}')}
    else:
        yield f"I am done: {results['publish'][0]}"


def shown(event: AgentStreamEvent) -> str | dict[str, Any] | None:
    """Return what the page gets for an event: a piece of text, or a tool that the model calls."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text or None
        case PartEndEvent(part=ToolCallPart() as call):
            return {"tool": call.tool_name, "arguments": call.args_as_dict()}
        case _:
            return None


agent = Agent(
    os.environ.get("MODEL") or FunctionModel(stream_function=pretend),
    name="research",
    instructions="Search for all parts of the question at once. Write a short report, then publish it.",
    capabilities=[
        HoldfastDurability(stream=shown, approval_timeout=timedelta(days=7), budget="usd", prices=PRICES),
    ],
)


@agent.tool_plain
async def search(topic: str) -> str:
    """Search articles about a topic."""
    await asyncio.sleep(0.3)  # stands for a search engine
    print(f"[searched {topic}]", flush=True)
    return f"Three articles are about {topic}."


@agent.tool_plain(requires_approval=True)
def publish(title: str) -> str:
    """Publish the report."""
    print(f"[published {title}]", flush=True)
    return f"{title} is published."


@app.task
async def research(ctx: Context, question: str) -> str:
    return (await agent.run(question)).output


# The service


class Question(BaseModel):
    text: str = Field(min_length=1, max_length=1000)


class Decision(BaseModel):
    approved: bool


class Research(BaseModel):
    run: UUID
    question: str
    state: str
    stream: str
    approve: str | None
    spent: Decimal
    budget: Decimal
    waits_for_budget: bool


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app.worker(lease=3, grace=1):
        yield
    board.close()
    await app.aclose()


site = FastAPI(title="Research", lifespan=lifespan)
site.mount("/holdfast", board)


async def find(id: UUID) -> Run[Any]:
    try:
        return await app.aget_run(id)
    except RunNotFound:
        raise HTTPException(404, f"research {id} does not exist") from None


@site.post("/research", status_code=201)
async def begin(question: Question) -> Research:
    return await look_up((await research.aenqueue(question.text)).id)


@site.get("/research/{id}")
async def look_up(id: UUID) -> Research:
    run = await find(id)
    info, gates = await run.ainfo(), await run.agates()
    total = await app.budgets.atotal("usd", run=id)
    return Research(
        run=id,
        question=info.args["question"],
        state=info.state,
        stream=run.stream_url(expires=timedelta(hours=1)),
        approve=next((gate.name.partition(":")[2] for gate in gates), None),
        spent=total.spent,
        budget=total.limit,
        waits_for_budget=total.waiting > 0,
    )


@site.post("/research/{id}/approvals/{tool}", status_code=204)
async def decide(id: UUID, tool: str, decision: Decision) -> None:
    """Approve or reject a tool call. In production, check who may."""
    gate = (await find(id)).gate(f"approve:{tool}")
    try:
        await gate.acomplete(Approval(decision.approved, "The user said no."), by="the page")
    except (GraphError, KeyConflict):  # it isn't open, or was decided otherwise
        raise HTTPException(409, f"{tool} is not waiting for an approval") from None


@site.post("/research/{id}/budget", status_code=204)
async def raise_budget(id: UUID) -> None:
    """Let a run spend one dollar more. In production, check who may."""
    run = await find(id)
    total = await app.budgets.atotal("usd", run=run.id)
    await app.budgets.aset("usd", total.limit + 1, run=run.id, by="the page")


@site.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Research agent</title>
<style>
  body { font: 16px/1.5 system-ui; max-width: 40rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
  h1 { font-size: 1.3rem } h2 { font-size: 1.1rem } form { display: flex; gap: .5rem; margin: 1rem 0 }
  input { flex: 1; min-width: 0; font: inherit; padding: .4rem } button { font: inherit; padding: .3rem .8rem }
  .tool { color: #595959; margin: .25rem 0 } .tool::before { content: "→ " }
  .ask { border: 1px solid #b07a00; background: #fff8e6; border-radius: .4rem; padding: .75rem; margin: 1rem 0 }
  .ask p { margin: 0 0 .5rem } #status { color: #595959; font-size: .9rem }
</style>
<h1>Research agent</h1>
<form><input name="text" aria-label="Question" placeholder="Why do ropes have knots?" maxlength="1000" required
  autofocus><button>Ask</button></form>
<main id="report" aria-live="polite"></main>
<section id="approval" class="ask" hidden>
  <p></p><button value="yes">Approve</button> <button value="no">Reject</button>
</section>
<section id="budget" class="ask" hidden>
  <p>The agent has spent its budget and waits.</p><button>Allow one dollar more</button>
</section>
<p id="status"></p>
<script type="module">
  const [report, approval, budget, status] = ["report", "approval", "budget", "status"].map(
    (id) => document.getElementById(id));
  const post = (path, body) => fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  let chunks = [];   // what counts, in order
  let source, research;

  function show() {
    report.replaceChildren(Object.assign(document.createElement("h2"), { textContent: research.question }));
    let text;   // the paragraph that pieces of text are added to
    for (const { data } of chunks) {
      if (data.tool) {
        const call = `${data.tool} ${Object.values(data.arguments).join(", ")}`;
        report.append(Object.assign(document.createElement("p"), { className: "tool", textContent: call }));
        text = undefined;
      } else {
        if (!text) report.append(text = document.createElement("p"));
        text.append(data);
      }
    }
    const call = chunks.findLast(({ data }) => data.tool === research.approve)?.data;
    approval.hidden = !research.approve;
    approval.firstElementChild.textContent =
      `May the agent ${research.approve} “${call ? Object.values(call.arguments).join(", ") : ""}”?`;
    budget.hidden = !research.waits_for_budget;
    status.textContent = `${research.state}, spent $${research.spent} of $${research.budget}`;
  }

  function follow() {
    chunks = [];
    source?.close();
    source = new EventSource(research.stream);   // reconnects by itself, behind the last chunk that it got
    source.addEventListener("chunk", (event) => { chunks.push(JSON.parse(event.data)); show(); });
    source.addEventListener("reset", (event) => {
      const reset = JSON.parse(event.data);
      chunks = chunks.filter((it) => !(reset.after < it.id && it.id < reset.before
        && (reset.everything || it.step === reset.step)));
      show();
    });
    source.addEventListener("end", () => { source.close(); update(); });
    source.addEventListener("error", () => {   // closed for good: the URL has expired, so get another one
      if (source.readyState === EventSource.CLOSED) setTimeout(() => update().then(follow), 1000);
    });
  }

  async function update() {
    if (!location.hash) return;
    const answer = await fetch(`/research/${location.hash.slice(1)}`).catch(() => undefined);
    if (!answer?.ok) return;   // the service is starting
    research = await answer.json();
    show();
  }

  document.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    research = await (await post("/research", { text: event.target.text.value })).json();
    event.target.reset();
    location.hash = research.run;   // the address survives a reload
    follow();
    show();
  });
  approval.addEventListener("click", async ({ target }) => {
    if (target.value) await post(`/research/${research.run}/approvals/${research.approve}`,
      { approved: target.value === "yes" });
    update();
  });
  budget.querySelector("button").addEventListener("click", () =>
    post(`/research/${research.run}/budget`).then(update));
  setInterval(() => { if (!["done", "failed", "cancelled"].includes(research?.state)) update(); }, 500);
  update().then(() => research && follow());
</script>
</html>
"""


if __name__ == "__main__":
    print(f"research: http://localhost:{port}/ dashboard: /holdfast/, token in holdfast_token.txt", flush=True)
    uvicorn.run(site, port=port, log_level="warning", timeout_graceful_shutdown=1)
