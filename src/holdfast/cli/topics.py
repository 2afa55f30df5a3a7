"""Commands for topics: `publish` and `topics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_published_topics
from holdfast.cli.options import payload
from holdfast.cli.output import TableColumn, format_ago, note, show_json, show_line, show_table
from holdfast.cli.render_history import plain
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.topics import ListeningRun, PublishedMessage, SubscriptionInfo, TopicDetails, TopicInfo

TOPIC_COLUMNS = (
    TableColumn("TOPIC", whole=True),
    TableColumn("MESSAGES", right=True),
    TableColumn("RUNS", right=True),
    TableColumn("FUNCTIONS", right=True),
    TableColumn("LAST", whole=True),
)
SUBSCRIPTION_COLUMNS = (
    TableColumn("TASK", whole=True),
    TableColumn("SUBSCRIBES TO"),
    TableColumn("APP", drop=1),
    TableColumn("STATE", whole=True),
)
MESSAGE_COLUMNS = (
    TableColumn("MESSAGE", whole=True, drop=1),
    TableColumn("TOPIC", whole=True),
    TableColumn("TENANT", whole=True, drop=2),
    TableColumn("AT", whole=True),
    TableColumn("RUNS", right=True),
    TableColumn("FUNCTIONS", right=True),
    TableColumn("PAYLOAD"),
)
FUNCTION_COLUMNS = (
    TableColumn("WAITING RUN", whole=True),
    TableColumn("FOR"),
    TableColumn("TENANT", whole=True, drop=2),
    TableColumn("SINCE", whole=True),
    TableColumn("TASK", drop=1),
)


@holdfast.command()
@click.argument("topic", shell_complete=complete_published_topics)
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@click.option("--key", metavar="KEY", help="Publish it once: a repeat with the same key changes nothing.")
@click.option("--tenant", metavar="NAME", help="The tenant of the runs; functions of other tenants don't receive it.")
@pass_shared
def publish(shared: SharedOptions, topic: str, given_payload: str | None, key: str | None, tenant: str | None) -> None:
    """Publish a message to a topic.

    Each subscribing task gets a run with PAYLOAD as its argument, and each function that waits for the message with
    `ctx.next` receives it. PAYLOAD is JSON and defaults to null. Put -- before one that starts with a minus sign.

    \b
    Examples:
      holdfast publish orders.paid '{"id": 17}'
      holdfast publish orders.paid '{"id": 17}' --key order-17 --tenant acme
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        published = control.topics.publish(topic, payload(given_payload), key, tenant)
    if shared.json:
        show_json(published)
        return
    reached = f"{counted(published.runs, 'run')} created, delivered to {counted(published.functions, 'function')}"
    how = "published" if published.created else "published before with this key; nothing changed"
    show_line(f"{topic}  {how}: {reached}")


@holdfast.command()
@click.argument("topic", required=False, shell_complete=complete_published_topics)
@click.option("--tenant", metavar="NAME", help="Only messages and functions of this tenant.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most this many messages."
)
@pass_shared
def topics(shared: SharedOptions, topic: str | None, tenant: str | None, limit: int) -> None:
    """List topics, the tasks that subscribe, recent messages and functions that wait for some.

    With TOPIC, only what concerns this one. RUNS and FUNCTIONS are how many runs a message created and how many
    functions received it. A subscription that is `ending` is in the code of no live worker; it ends after five minutes.

    \b
    Examples:
      holdfast topics
      holdfast topics orders.paid
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.topics.list(topic, tenant, limit)
    if shared.json:
        show_json(found)
        return
    _show(found, topic)


def _show(found: TopicDetails, topic: str | None) -> None:
    nothing = f"nothing was published to {topic}" if topic else "nothing was published"
    show_table(TOPIC_COLUMNS, [_topic_row(each) for each in found.topics], nothing)
    show_line("")
    nobody = f"no task subscribes to {topic or 'a topic'}"
    show_table(SUBSCRIPTION_COLUMNS, [_subscription_row(each) for each in found.subscriptions], nobody)
    if found.functions:
        show_line("")
        show_table(FUNCTION_COLUMNS, [_function_row(each) for each in found.functions], "")
    if found.messages:
        show_line("")
        show_table(MESSAGE_COLUMNS, [_message_row(each) for each in found.messages], "")
    if found.partial:
        note("there are too many messages to count all of them")


def _topic_row(topic: TopicInfo) -> list[str]:
    return [
        topic.topic, f"{topic.messages:,}", f"{topic.runs:,}", f"{topic.functions:,}", format_ago(topic.last_at),
    ]  # fmt: skip


def _subscription_row(subscription: SubscriptionInfo) -> list[str]:
    from holdfast.control.topics import topic_text

    topics = ", ".join(map(topic_text, subscription.topics)) or "(unreadable)"
    return [subscription.task, topics, subscription.app, subscription.state]


def _function_row(function: ListeningRun) -> list[str]:
    from holdfast.control.topics import topic_text
    from holdfast.model.topics import Topic

    what = topic_text(Topic(function.topic, function.where))
    return [str(function.run), what, function.tenant or "-", format_ago(function.since), function.task]


def _message_row(message: PublishedMessage) -> list[str]:
    return [
        str(message.id), message.topic, message.tenant or "-", format_ago(message.at), str(message.runs),
        str(message.functions), plain(message.payload) or "null",
    ]  # fmt: skip
