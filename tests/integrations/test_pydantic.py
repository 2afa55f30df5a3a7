"""pydantic models wherever a type is accepted, live and in replay, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretBytes, SecretStr, field_validator

from holdfast import Context, Done, Graph, Holdfast, State, SyncContext
from holdfast.errors import BadArguments, HoldfastError, NotSerializable, TaskError

T = TypeVar("T")


class Size(Enum):
    small = "s"
    large = "l"


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    street: str = Field(alias="str")


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Pet(RootModel[Annotated[Cat | Dog, Field(discriminator="kind")]]):
    pass


class Order(BaseModel):
    id: UUID
    at: datetime
    price: Decimal = Field(gt=0)
    size: Size
    address: Address
    every: timedelta = timedelta(days=1)
    tags: set[str] = set()
    pets: list[Pet] = []

    @field_validator("price")
    @classmethod
    def to_cents(cls, price: Decimal) -> Decimal:
        return price.quantize(Decimal("0.01"))


class Box(BaseModel, Generic[T]):
    item: T


ORDER = Order(
    id=UUID(int=7),
    at=datetime(2026, 11, 16, 8, tzinfo=UTC),
    price=Decimal("1.5"),
    size=Size.large,
    address=Address(street="Quay 3"),
    tags={"a", "b"},
    pets=[Pet(Dog(good=False)), Pet(Cat())],
)


class Begin(State):
    order: Order

    async def run(self, ctx: Context) -> End:
        return End(address=self.order.address, pet=self.order.pets[0])


class End(State):
    address: Address
    pet: Pet

    async def run(self, ctx: Context) -> End | Done[Address] | Done[None]:
        assert isinstance(self.pet.root, Dog)
        assert isinstance(self.address, Address)
        return Done(self.address)


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    with Holdfast(database_url) as app:
        yield app


def address_of(order: Order) -> Address:
    return order.address


def test_models_are_arguments_and_results(app):
    @app.task(name="same")
    def same(order: Order, boxes: list[Box[int]], last: Order | None = None) -> Order:
        assert boxes == [Box[int](item=3)]
        return last or order

    plain = ORDER.model_dump(mode="json", by_alias=True)
    runs = [same.enqueue(ORDER, [Box(item=3)]), same.enqueue(plain, [{"item": 3}], ORDER)]
    app.worker().drain()
    assert [run.result(timeout=10) for run in runs] == [ORDER, ORDER]
    assert same.options(key="k").enqueue(ORDER, []) == same.options(key="k").enqueue(plain, [])


@pytest.mark.parametrize("wrong", [{"id": 1}, Address(street="x"), ORDER.model_copy(update={"price": Decimal(-1)})])
def test_invalid_model_values_are_rejected_at_enqueue(app, wrong):
    @app.task(name="same")
    def same(order: Order) -> Order:
        return order

    with pytest.raises(BadArguments, match="validation error"):
        same.enqueue(wrong)


def test_models_in_steps_events_messages_and_children_live_and_in_a_replay(app):
    @app.task(name="child")
    def child(order: Order) -> Address:
        return order.address

    @app.task(name="parent")
    async def parent(ctx: Context, order: Order) -> list[Address]:
        stepped = await ctx.step(address_of, order)
        event = await ctx.wait_for("event", type=Address)
        message = await ctx.receive("message", type=Order)
        called = await ctx.call(child, message)
        mapped = await ctx.map(child, [order, message])
        await ctx.sleep(0.05)  # everything above is replayed after it
        found = [stepped, event, message.address, called, *mapped]
        assert all(isinstance(each, Address) for each in found)
        assert message == order
        return found

    run = parent.enqueue(ORDER)
    app.emit("event", Address(street="Quay 3"))
    run.send("message", ORDER)
    with app.worker():
        assert run.result(timeout=30) == [ORDER.address] * 6


def test_models_in_a_sync_context(app):
    @app.task(name="work")
    def work(ctx: SyncContext, order: Order) -> Address:
        return ctx.step(address_of, order)

    run = work.enqueue(ORDER)
    app.worker().drain()
    assert run.result(timeout=10) == ORDER.address


def test_models_in_nodes_gates_and_outputs(app):
    @app.task(name="same")
    def same(order: Order) -> Order:
        assert isinstance(order, Order)
        return order

    g = Graph("g")
    first = g.add(same, ORDER, name="first")
    gate = g.gate("approve", after=[first], type=Order)
    last = g.add(same, gate.output, name="last", when=first.output["address"]["str"] == "Quay 3")
    run = app.submit(g, result=last)
    app.worker().drain()
    with pytest.raises(HoldfastError, match="is missing"):
        run.gate("approve").complete({"id": 3})
    run.gate("approve").complete(ORDER)
    app.worker().drain()
    assert run.result(timeout=10) == ORDER


def test_models_in_states_and_results_of_machines(app):
    machine = app.machine("machine", Begin, End)
    run = machine.enqueue(Begin(order=ORDER))
    app.worker().drain()
    assert run.result(timeout=10) == ORDER.address


def test_a_union_of_models_is_rejected_with_advice(app):
    with pytest.raises(TaskError, match=r"union of pydantic models.*RootModel\[Cat \| Dog\]"):

        @app.task(name="pet")
        def pet(pet: Cat | Dog) -> None: ...


class Login(BaseModel):
    password: SecretStr | None = None
    keys: list[SecretBytes] = []
    hint: str = "**********"


@pytest.mark.parametrize(
    ("value", "path"), [(Login(password="x"), r"\$.*password"), (Login(keys=[b"x"]), r"\$.*keys\[0\]")]
)
def test_a_pydantic_secret_is_rejected_instead_of_stored_as_asterisks(app, value, path):
    @app.task(name="login")
    def login(who: list[Login]) -> None: ...

    with pytest.raises(NotSerializable, match=f"a pydantic secret, which would be stored as asterisks.*{path}"):
        login.enqueue([value])
    login.enqueue([Login()])  # asterisks in other strings are accepted
