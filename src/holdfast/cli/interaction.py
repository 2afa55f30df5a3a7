"""Commands that talk to running functions: `ask`, `values` and `stream`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.options import by_option, payload
from holdfast.cli.output import TableColumn, escape_control, format_ago, note, show_json, show_line, show_table
from holdfast.cli.render_history import plain
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared
from holdfast.errors import error_text
from holdfast.model.names import actor_or_user
from holdfast.model.step_keys import key_label

if TYPE_CHECKING:
    from holdfast.control.interaction import AskInfo
    from holdfast.control.streams import ChunkInfo

POLL_INTERVAL_S = 0.1
VALUE_COLUMNS = (
    TableColumn("NAME", whole=True),
    TableColumn("VALUE"),
    TableColumn("SET", whole=True),
)


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@pass_shared
def values(shared: SharedOptions, run: str) -> None:
    """Show the values that a run publishes with `ctx.set`.

    RUN is a run id or a unique prefix.

    \b
    Examples:
      holdfast values 0199a3f2-6c1e
      holdfast values 0199a3f2-6c1e --json | jq -r '.[].name'
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.interaction.values(control.runs.find(run))
    if shared.json:
        show_json(found)
        return
    rows = [[each.name, plain(each.value) or "null", format_ago(each.at)] for each in found]
    show_table(VALUE_COLUMNS, rows, "the run has set no values")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Print what the run writes until it has finished.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", help="Continue behind this chunk.")
@pass_shared
def stream(shared: SharedOptions, run: str, follow: bool, after: int) -> None:
    """Print what a run writes with `ctx.write`.

    Texts are printed one after the other, other values as JSON, one per line. Without --follow, chunks that a repeated
    step has replaced are left out; with it, a note says that the step starts again. --json prints one object per chunk.
    RUN is a run id or a unique prefix.

    \b
    Examples:
      holdfast stream 0199a3f2-6c1e
      holdfast stream 0199a3f2-6c1e --follow
      holdfast stream 0199a3f2-6c1e --follow --after 120 --json
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        id, is_text = control.runs.find(run), False
        if not follow:
            for chunk in control.streams.transcript(id, after):
                is_text = _show_chunk(shared, chunk, is_text)
        while follow:
            news = control.streams.news(id, after)
            for chunk in news.chunks:
                if chunk.reset is not None and not shared.json:
                    if is_text:
                        click.echo()
                    note("the run starts over" if chunk.reset.everything else f"{_label(chunk.step)} starts again")
                    is_text = False
                is_text, after = _show_chunk(shared, chunk, is_text), chunk.id
            if news.ended is not None:
                break
            if not news.chunks:
                time.sleep(POLL_INTERVAL_S)
        if is_text:
            click.echo()


def _show_chunk(shared: SharedOptions, chunk: ChunkInfo, is_text: bool) -> bool:
    """Print a chunk; return whether the line may continue."""
    if shared.json:
        show_json(chunk, compact=True)
        return False
    if isinstance(chunk.data, str):
        click.echo("\n".join(map(escape_control, chunk.data.split("\n"))), nl=False)
        return not chunk.data.endswith("\n")
    if is_text:
        click.echo()
    show_line(json.dumps(chunk.data, ensure_ascii=False))
    return False


def _label(step: str | None) -> str:
    return "the function" if step is None else f"step {key_label(step)}"


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("name")
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@click.option("--key", metavar="KEY", help="Handle it once: with the same key, the reply is returned again.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
    help="How long to wait for the answer.",
)  # fmt: skip
@by_option
@pass_shared
def ask(
    shared: SharedOptions,
    run: str,
    name: str,
    given_payload: str | None,
    key: str | None,
    timeout: float,
    by: str | None,
) -> int:
    """Ask an unfinished run something and print its reply as JSON.

    The function answers with `ctx.serve` or `ctx.receive_ask`. PAYLOAD is JSON and defaults to null. RUN is a run id or
    a unique prefix. The exit code is 1 if the run rejects the ask, ends, or doesn't answer in time; an ask that timed
    out may still be answered. Put -- before a PAYLOAD that starts with a minus sign.

    \b
    Examples:
      holdfast ask 0199a3f2-6c1e total
      holdfast ask 0199a3f2-6c1e add '{"name": "rope", "count": 2}' --key order-42
    """
    from holdfast.cli.connect import connect_or_empty

    value = payload(given_payload)
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        sent = control.interaction.ask(id, name, value, key, actor_or_user(by))
        found = control.interaction.wait(sent, timeout)
    if shared.json:
        show_json(found)
    elif found.state == "replied":
        show_line(json.dumps(found.reply, ensure_ascii=False))
    else:
        note(_failure(found, given_payload, timeout))
    return 0 if found.state == "replied" else FAILED


def _failure(ask: AskInfo, given_payload: str | None, timeout: float) -> str:
    if ask.state == "rejected":
        text = error_text(ask.type, ask.reason or "") if ask.type else ask.reason
        return f"rejected: {text}" + ("" if ask.data is None else f"  {plain(ask.data)}")
    if ask.state == "run_finished":
        return f"run {ask.run} finished without answering"
    place = "" if given_payload is None else " PAYLOAD"
    again = f"holdfast ask {ask.run} {ask.name}{place} --key {ask.key}"
    return f"no answer within {timeout:g} s; to get it, ask again with the same key and payload: {again}"
