"""SQLAlchemy sessions in `ctx.transaction` commit together with the checkpoint, on both databases."""

from __future__ import annotations

import functools
import itertools
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from holdfast import Context, Holdfast, Retry, RunFailed, StepFailed, SyncContext
from holdfast.errors import TaskError
from holdfast.integrations.sqlalchemy import with_session
from holdfast.task.operation_factory import transaction
from tests.support.durable import drain, kinds

ONCE = Retry(max_attempts=1)
NUMBERS = itertools.count()
AN_ID = UUID(int=7)
A_TIME = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(unique=True)
    mark: Mapped[UUID | None]
    price: Mapped[Decimal | None] = mapped_column(sa.Numeric(10, 2))
    at: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    data: Mapped[dict[str, int] | None] = mapped_column(sa.JSON)
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("orders.id"))
    text: Mapped[str]
    order: Mapped[Order] = relationship(back_populates="lines")


def make_tables(session: Session) -> None:
    Base.metadata.create_all(session.connection())


def save_order(session: Session, item: str, *lines: str) -> int:
    order = Order(item=item, lines=[Line(text=text) for text in lines])
    session.add(order)
    session.flush()
    return order.id


def items(session: Session) -> list[str]:
    return list(session.scalars(sa.select(Order.item).order_by(Order.id)))


def save_and_fail(session: Session, item: str) -> None:
    save_order(session, item)
    raise ValueError("after all, no")


@pytest.fixture
def app(database_url):
    with Holdfast(database_url) as app:
        in_one_run(app, make_tables)
        yield app


def in_one_run(app, fn, *args):
    """What a transaction gives to a durable function of its own."""

    @app.task(name=f"once-{next(NUMBERS)}", retry=ONCE)
    async def once(ctx: Context) -> object:
        return await ctx.transaction(with_session(fn), *args, name="once")

    run = once.enqueue()
    drain(app)
    return run.result(timeout=5)


def stored(app):
    return in_one_run(app, items)


def steps_of(app, run):
    """The names of what is on record for a run."""
    kept = app.store.journal.load([(str(run.id), 0)])[str(run.id)]
    return sorted(checkpoint.key.rpartition("-")[0] for checkpoint in kept.checkpoints)


def test_models_are_saved_with_ids_and_read_back_with_their_types(app):
    def save(session: Session) -> int:
        session.add(Order(item="rope", mark=AN_ID, price=Decimal("1.10"), at=A_TIME, data={"a": 1}))
        session.add_all([Order(item=text) for text in ("anchor", "lamp")])
        session.flush()
        return session.scalars(sa.select(Order).where(Order.item == "lamp")).one().id

    def load(session: Session) -> list[str]:
        order = session.scalars(sa.select(Order).where(Order.item == "rope")).one()
        at = order.at.replace(tzinfo=UTC)  # SQLite keeps no zone
        assert (order.mark, order.price, at, order.data) == (AN_ID, Decimal("1.10"), A_TIME, {"a": 1})
        return [type(value).__name__ for value in (order.id, order.mark, order.price, order.at, order.data)]

    assert in_one_run(app, save) == 3
    assert in_one_run(app, load) == ["int", "UUID", "Decimal", "datetime", "dict"]


def test_relations_updates_and_deletes_work_as_in_any_session(app):
    def change(session: Session, id: int) -> list[str]:
        order = session.get_one(Order, id)
        order.item = "strong rope"
        order.lines[0].text = "red, mostly"
        order.lines[1].text = "10 m, mostly"  # two updates by one statement: their rows are counted
        del order.lines[2]
        session.flush()
        deleted = session.execute(sa.delete(Order).where(Order.item == "nothing")).rowcount
        assert session.scalars(sa.select(Order).where(Order.item == "nothing")).all() == []
        return [*session.scalars(sa.select(Line.text).order_by(Line.id)), str(deleted)]

    id = in_one_run(app, save_order, "rope", "red", "10 m", "cheap")
    assert in_one_run(app, change, id) == ["red, mostly", "10 m, mostly", "0"]
    assert stored(app) == ["strong rope"]


def test_rows_are_written_once_when_the_function_runs_again(app, ledger_of):
    @app.task(name="checkout", retry=Retry(max_attempts=3, delay=0))
    async def checkout(ctx: Context) -> int:
        id = await ctx.transaction(with_session(save_order), f"rope for {ctx.run_id}")
        ledger_of("body")
        if ctx.attempt < 3:
            raise ValueError("try me again")
        return id

    run = checkout.enqueue()
    drain(app)
    assert run.result(timeout=5) == 1
    assert stored(app) == [f"rope for {run.id}"]
    assert ledger_of() == ["body"] * 3


@pytest.fixture
def ledger_of():
    seen = []

    def note(*words):
        seen.extend(words)
        return seen

    return note


def test_a_plain_durable_function_has_it_too(app):
    @app.task(name="checkout")
    def checkout(ctx: SyncContext) -> int:
        return ctx.transaction(with_session(save_order), "rope") + 10

    run = checkout.enqueue()
    drain(app)
    assert run.result(timeout=5) == 11


def test_the_step_has_the_name_of_the_function(app):
    @app.task(name="checkout")
    async def checkout(ctx: Context) -> None:
        await ctx.transaction(with_session(save_order), "rope")
        await ctx.step(len, "abc")

    run = checkout.enqueue()
    drain(app)
    assert steps_of(app, run) == ["len", "save_order"]


def test_a_function_that_raises_leaves_neither_rows_nor_a_result(app):
    @app.task(name="checkout", retry=ONCE)
    async def checkout(ctx: Context) -> None:
        await ctx.transaction(with_session(save_and_fail), "rope")

    run = checkout.enqueue()
    drain(app)
    with pytest.raises(RunFailed, match="after all, no"):
        run.result(timeout=5)
    assert stored(app) == []
    assert steps_of(app, run) == []


def test_a_constraint_violation_raises_and_rolls_back(app):
    def save_twice(session: Session) -> None:
        save_order(session, "lamp")
        save_order(session, "rope")

    @app.task(name="checkout", retry=ONCE)
    async def checkout(ctx: Context) -> str:
        try:
            await ctx.transaction(with_session(save_twice))
        except StepFailed as failed:
            return failed.error.type
        return "saved"

    in_one_run(app, save_order, "rope")
    run = checkout.enqueue()
    drain(app)
    assert run.result(timeout=5) == "sqlalchemy.exc.IntegrityError"
    assert stored(app) == ["rope"]


def test_a_nested_transaction_rolls_back_alone(app):
    def save_unless_there(session: Session, *wanted: str) -> int:
        taken = 0
        for item in wanted:
            try:
                with session.begin_nested():
                    save_order(session, item)
            except IntegrityError:
                taken += 1
        session.begin_nested()  # and one that nobody ends
        session.add(Order(item="last"))
        return taken

    in_one_run(app, save_order, "rope")
    assert in_one_run(app, save_unless_there, "anchor", "rope", "lamp") == 1
    assert stored(app) == ["rope", "anchor", "lamp", "last"]


@pytest.mark.parametrize("by_flush", [True, False], ids=["in a flush", "in a statement"])
def test_a_failed_transaction_rolls_back_even_if_the_error_is_caught(app, by_flush):
    def save_carelessly(session: Session) -> str:
        save_order(session, "lamp")
        try:
            if by_flush:
                save_order(session, "rope")
            else:
                session.execute(sa.insert(Order).values(item="rope"))
        except IntegrityError:
            pass
        return "fine"

    in_one_run(app, save_order, "rope")
    sqlite = app.store.database.dialect.name == "sqlite"
    if sqlite and not by_flush:  # there a statement that fails leaves the rest as it was
        assert in_one_run(app, save_carelessly) == "fine"
        assert stored(app) == ["rope", "lamp"]
    else:
        with pytest.raises(RunFailed, match="begin_nested"):
            in_one_run(app, save_carelessly)
        assert stored(app) == ["rope"]


@pytest.mark.parametrize("ending", ["commit", "rollback", "begin"])
def test_a_session_does_not_end_the_transaction(app, ending):
    def save_and_end(session: Session) -> None:
        save_order(session, "rope")
        getattr(session, ending)()

    with pytest.raises(RunFailed, match="Holdfast commits when the function returns"):
        in_one_run(app, save_and_end)
    assert stored(app) == []


def test_the_connection_of_a_session_does_not_end_the_transaction_either(app):
    def save_and_commit(session: Session) -> None:
        save_order(session, "rope")
        session.connection().commit()

    def save_and_roll_back(session: Session) -> None:
        save_order(session, "lamp")
        session.connection().rollback()

    with pytest.raises(RunFailed, match="commit"):
        in_one_run(app, save_and_commit)
    with pytest.raises(RunFailed, match="the transaction failed"):
        in_one_run(app, save_and_roll_back)
    assert stored(app) == []


def test_errors_of_the_database_and_of_the_library_come_as_sqlalchemys(app):
    def misspelled(session: Session) -> None:
        session.execute(sa.text("selekt 1"))

    def wrong_value(session: Session) -> None:
        session.execute(sa.text("select :it"), {"it": object()})

    def none_there(session: Session) -> None:
        session.get_one(Order, 99)

    for fn, error in [
        (misspelled, "sqlalchemy.exc.(Operational|Programming)Error"),
        (wrong_value, "sqlalchemy.exc.ProgrammingError"),
        (none_there, "sqlalchemy.exc.NoResultFound"),
    ]:
        with pytest.raises(RunFailed, match=error):
            in_one_run(app, fn)


def test_sqlalchemy_inspects_a_database_once(app):
    def engine(session: Session) -> int:
        return id(session.get_bind().engine)

    def statements(session: Session) -> list[str]:
        seen: list[str] = []
        cursors = session.get_bind().engine
        sa.event.listen(cursors, "before_cursor_execute", lambda connection, cursor, sql, *rest: seen.append(sql))
        session.execute(sa.select(1))
        return seen

    first = in_one_run(app, engine)
    assert [in_one_run(app, engine), in_one_run(app, engine)] == [first, first]
    assert in_one_run(app, statements) == ["SELECT 1"]


def test_runs_enqueued_with_the_session_are_part_of_the_transaction(app):
    @app.task(name="ship")
    def ship(id: int) -> int:
        return id

    postgres = app.store.database.dialect.name == "postgres"

    def save_and_ship(session: Session, item: str) -> None:
        task = ship.options(connection=session) if postgres else ship  # SQLite: on this thread they join by themselves
        task.enqueue(save_order(session, item))
        if item == "lamp":
            raise ValueError("after all, no")

    in_one_run(app, save_and_ship, "rope")
    with pytest.raises(RunFailed, match="after all, no"):
        in_one_run(app, save_and_ship, "lamp")
    assert stored(app) == ["rope"]
    assert [(info.task, info.state) for info in app.runs(task="ship")] == [("ship", "done")]


def test_functions_without_a_name_of_their_own_need_one_and_async_ones_are_refused():
    async def later(session: Session) -> None: ...

    for fn, why in ((functools.partial(save_order, item="rope"), "a partial"), (lambda session: 1, "a lambda")):
        with pytest.raises(TaskError, match=f"{why} has no name: set name="):
            transaction(with_session(fn), (), {}, None)
        assert transaction(with_session(fn), (), {}, "mine").name == "mine"
    with pytest.raises(TaskError, match="plain def"):
        with_session(later)


def test_a_waiting_run_that_is_replayed_does_not_write_again(app):
    @app.task(name="checkout")
    async def checkout(ctx: Context) -> int:
        id = await ctx.transaction(with_session(save_order), "rope")
        await ctx.wait_for("paid")
        return id

    run = checkout.enqueue()
    drain(app)
    assert "waiting" in kinds(run)
    app.emit("paid")
    drain(app)
    assert run.result(timeout=5) == 1
    assert stored(app) == ["rope"]
