"""SQLAlchemy sessions in durable functions, with the types that a type checker must infer. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from sqlalchemy.orm import Session

from holdfast import Context, Holdfast, SyncContext
from holdfast.integrations.sqlalchemy import with_session

app = Holdfast("sqlite:///:memory:")


def save_order(session: Session, number: int, note: str = "") -> str:
    return ""


def no_session(number: int) -> int:
    return number


@app.task
async def checkout(ctx: Context) -> None:
    assert_type(await ctx.transaction(with_session(save_order), 1), str)
    assert_type(await ctx.transaction(with_session(save_order), 1, note="x"), str)
    await ctx.transaction(with_session(save_order), "one")  # type: ignore[arg-type]
    await ctx.transaction(with_session(save_order))  # type: ignore[arg-type, call-arg]
    with_session(no_session)  # type: ignore[arg-type]


@app.task
def checkout_plainly(ctx: SyncContext) -> None:
    assert_type(ctx.transaction(with_session(save_order), 1), str)
