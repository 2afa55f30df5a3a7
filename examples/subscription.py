"""Subscriptions as a state machine: a trial, monthly payments, reminders after a failed payment, and cancellation.

    python subscription.py

There are three customers. One pays and later cancels, one replaces a card that failed, one never pays. A month takes
half a second here. Holdfast stores only the current state of a subscription, so it can run for years. Kill the program
(`kill -9`) and start it again: each subscription resumes in its current state. When all have ended, another start only
prints the results.
"""

import sys
import time
from datetime import timedelta
from typing import Any

from holdfast import Context, Done, Holdfast, Retry, Run, State, WaitTimeout, idempotency_key

app = Holdfast("sqlite:///subscription.db")

MONTH = timedelta(seconds=0.5)
DAY = MONTH / 30
MOST_REMINDERS = 3


class Trial(State):
    customer: str
    card: str

    async def run(self, ctx: Context) -> "Paying | Done[str]":
        await ctx.step(mail, self.customer, "welcome, the first month is free")
        if await gave_notice(ctx, MONTH):
            return Done("left during the trial")
        return Paying(customer=self.customer, card=self.card, month=1)


class Paying(State):
    customer: str
    card: str
    month: int
    retry = Retry(max_attempts=10, delay=60)  # in case the bank doesn't answer; attempts are counted per state

    async def run(self, ctx: Context) -> "Paying | Overdue | Done[str]":
        if not await ctx.step(charge, self.customer, self.card, self.month):
            return Overdue(customer=self.customer, month=self.month)
        if await gave_notice(ctx, MONTH):
            return Done(f"left after month {self.month}")
        return Paying(customer=self.customer, card=self.card, month=self.month + 1)


class Overdue(State):
    customer: str
    month: int
    reminders: int = 0

    async def run(self, ctx: Context) -> "Paying | Overdue | Done[str]":
        if self.reminders == MOST_REMINDERS:
            await ctx.step(mail, self.customer, "we have ended your subscription")
            return Done(f"ended, month {self.month} was never paid")
        await ctx.step(mail, self.customer, f"month {self.month} isn't paid, is there another card?")
        try:
            card = await ctx.receive("new card", timeout=7 * DAY, type=str)
        except WaitTimeout:
            return Overdue(customer=self.customer, month=self.month, reminders=self.reminders + 1)
        return Paying(customer=self.customer, card=card, month=self.month)


subscription = app.machine("subscription", Trial, Paying, Overdue)


async def gave_notice(ctx: Context, within: timedelta) -> bool:
    """Wait for a notice. A waiting run holds no worker."""
    try:
        await ctx.receive("notice", timeout=within)
    except WaitTimeout:
        return False
    return True


# External systems


async def mail(customer: str, text: str) -> None:
    print(f"{customer}: {text}")


async def charge(customer: str, card: str, month: int) -> bool:
    """Stands for a payment service. Pass it the idempotency key, which is the same in every try of this step."""
    assert idempotency_key()
    paid = card == "good"
    print(f"{customer}: month {month} {'paid' if paid else 'not paid'}")
    return paid


# What customers do. In an application, web handlers do this; they find the run by its key.


def customers_act(runs: dict[str, Run[Any]]) -> None:
    wait_for_state(runs["Bob"], "Overdue")
    tell(runs["Bob"], "new card", "good")
    wait_for_state(runs["Ada"], "Paying")
    tell(runs["Ada"], "notice")
    tell(runs["Bob"], "notice")


def wait_for_state(run: Run[Any], state: str) -> None:
    while run.info().finished_at is None:
        if state in [entry.data["to"] for entry in run.history() if entry.kind == "moved"]:
            return
        time.sleep(0.02)


def tell(run: Run[Any], topic: str, payload: Any = None) -> None:
    if run.info().finished_at is None:
        run.send(topic, payload)


def main() -> None:
    cards = {"Ada": "good", "Bob": "stolen", "Eve": "stolen"}
    runs = {
        name: subscription.options(key=name).enqueue(Trial(customer=name, card=card)) for name, card in cards.items()
    }
    with app.worker(lease=5, grace=1):
        customers_act(runs)
        for name, run in runs.items():
            print(f"{name}: {run.result()}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command to continue")
