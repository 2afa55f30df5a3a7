"""Search for runs: by what has an index in all runs, by a text in the newest ones, and never by what is hidden."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Secret
from holdfast.control import Control
from holdfast.errors import ConfigError
from holdfast.integrations.encryption import Encryption, Key
from holdfast.model.access import AccessScope
from holdfast.store import run_list


class Orders:
    """An app whose runs can be found in every way."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = app = Holdfast(url, **settings)

        @app.task(name="shop.charge", retry=Retry(max_attempts=1))
        def charge(order_id: int, note: str = "", card: Secret[str] | None = None) -> None:
            if note.startswith("fail"):
                raise ValueError("Card declined")

        self.charge = charge
        self.control = Control(app.store, app.registry)

    def found(self, text: str, **more: Any) -> list[tuple[str, list[str]]]:
        return [(str(each.run.id), each.matched) for each in self.control.search.search(text, **more).runs]

    def close(self) -> None:
        self.control.close()
        self.app.close()


@pytest.fixture
def orders(database_url):
    orders = Orders(database_url)
    yield orders
    orders.close()


def test_one_search_finds_by_everything_that_identifies_a_run(orders):
    charge = orders.charge
    run = charge.options(key="order-42", tags=["vip", "eu"], metadata={"order": 42, "name": "Ada"}).enqueue(
        42, "to Åse"
    )
    failed = charge.enqueue(7, note="fail")
    other = charge.options(tags=["vi"], metadata={"order": "no"}).enqueue(142, note='4"2')
    orders.app.worker().drain()
    id = str(run.id)
    expected = {
        id: ["id"], id[:13]: ["id"], id.replace("-", "")[:20].upper(): ["id"], "order-42": ["key"], "ORDER-4": ["key"],
        "vip": ["tag"], "eu": ["tag"], "order=42": ["metadata order"], "Ada": ["metadata name"],
        "42": ["metadata order", "key", "argument order_id"], "order_id=42": ["argument order_id"],
        "TO Åse": ["argument note"],
    }  # fmt: skip
    for text, matched in expected.items():
        assert (id, matched) in orders.found(text), text
        assert str(failed.id) not in dict(orders.found(text)) or text == id[:13], text
    assert orders.found("card DECLINED") == [(str(failed.id), ["error"])]
    assert orders.found('4"2') == [(str(other.id), ["argument note"])]
    assert orders.found("note") == [], "names of arguments are no values"
    assert orders.found("Traceback") == []
    assert orders.found("100%") == orders.found("order_id=4_") == []
    result = orders.control.search.search("CHARGE")
    assert (result.tasks, result.runs, result.is_complete, result.scanned) == (["shop.charge"], [], True, 3)
    assert orders.app.find("order-42").runs[0].run.id == run.id
    assert [info.id for info in orders.app.runs(search="order_id=42")] == [run.id]


@pytest.mark.parametrize("stored", ["Jørgen Møller", "JØRGEN MØLLER", "jØrgen mØller"])
def test_the_case_of_all_letters_is_folded_alike_by_both_databases(orders, stored):
    shouted = f"fail: {stored} in der STRASSE, 50%"
    run = orders.charge.options(tags=[stored]).enqueue(1, shouted)
    orders.charge.options(tags=["Jorgen Moller"]).enqueue(2, "fail: Jårgen Måller in der straße, 50_")
    orders.app.worker().drain()
    for text in ("jørgen", "MØLLER", "Jørgen mØller in der straße", "note=fail: JØRGEN"):
        assert [id for id, _ in orders.found(text)] == [str(run.id)], text
    assert orders.found("j%rgen") == orders.found("Jörgen") == []


def test_the_filter_by_error_folds_the_case_of_all_letters(orders):
    @orders.app.task(name="greet", retry=Retry(max_attempts=1))
    def greet(text: str) -> None:
        raise ValueError(text)

    run, *_ = (greet.enqueue(text) for text in ("GRÜSSE aus Århus", "GROSSE aus Orhus", "Größe"))
    orders.app.worker().drain()
    for text in ("grüße", "AUS ÅRHUS", "Grüsse aus", "valueERROR"):
        found = [info.id for info in orders.app.runs(error=text)]
        assert (run.id in found, len(found)) == (True, 3 if text == "valueERROR" else 1), text
        assert [info.id for info in orders.app.runs(error=text, sort="created")][:1] == [run.id], text
    assert orders.app.runs(error="gr_sse") == orders.app.runs(error="GRÄSSE") == []


def test_filters_narrow_a_search(orders):
    first, second = (orders.charge.options(tags=["vip"], tenant=tenant).enqueue(5) for tenant in ("acme", "other"))
    assert [id for id, _ in orders.found("vip", tenant="acme")] == [str(first.id)]
    assert [id for id, _ in orders.found("5", scope=AccessScope(tenant="other"))] == [str(second.id)]
    scoped = orders.control.search.search("charge", scope=AccessScope(tenant="nobody"))
    assert (scoped.tasks, scoped.runs) == ([], [])
    assert orders.control.search.search("charge", scope=AccessScope(tasks=("mail.*",))).tasks == []
    assert orders.found("5", state="done") == orders.found("vip", state="done") == []
    assert len(orders.found("5", top_level=True)) == 2


def test_secrets_and_encoded_arguments_are_never_searched_and_the_result_says_so(orders, database_url):
    secret = orders.charge.enqueue(9, "visible", Secret("4111-1111"))
    assert orders.found("4111") == orders.found("$secret") == []
    assert orders.found("visible") == [(str(secret.id), ["argument note"])]
    encrypted = Orders(database_url, codec=Encryption(Key("k", b"0" * 32)))
    hidden = encrypted.charge.options(key="hidden").enqueue(9, "invisible")
    large = orders.charge.enqueue(9, "needle " + "x" * 9000)
    for orders_ in (orders, encrypted):
        result = orders_.control.search.search("invisible")
        assert (result.runs, result.hidden, result.scanned) == ([], 2, 3)
        assert orders_.found("needle") == []
    assert [id for id, _ in encrypted.found("hidden")] == [str(hidden.id)]
    assert (encrypted.control.runs.page(search="9", state="ready").hidden, str(large.id)) == (2, str(large.id))
    encrypted.close()


def test_a_search_says_how_far_it_has_come_and_continues_there(orders, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_SCANNED_RUNS", 40)
    monkeypatch.setattr(run_list, "SCAN_SIZES", (7, 10))
    old = orders.charge.options(key="old").enqueue(1, "needle")
    orders.app.enqueue_many([orders.charge.request(n, "hay") for n in range(100)])
    first = orders.control.search.search("needle")
    assert (first.runs, first.scanned, first.is_complete) == ([], 40, False)
    oldest_scanned = orders.control.runs.summary(orders.control.runs.parse_id(first.after))
    assert abs(first.since - oldest_scanned.created_at) < timedelta(seconds=1)
    second = orders.control.search.search("needle", after=first.after)
    third = orders.control.search.search("needle", after=second.after)
    assert [(each.run.id, each.matched) for each in third.runs] == [(old.id, ["argument note"])]
    assert (second.runs, third.scanned, third.since, third.after) == ([], 21, None, None)
    patient = orders.control.search.search("needle", seconds=60)
    assert ([each.run.id for each in patient.runs], patient.scanned, patient.after) == ([old.id], 101, None)
    assert [each.run.id for each in orders.control.search.search("old").runs] == [old.id], "keys have an index"


def test_tags_are_found_by_their_index_and_without_it(orders, monkeypatch):
    runs = [orders.charge.options(tags=[f"t{n}", "x" * 150, 'quo"te']).enqueue(n) for n in range(5)]
    orders.charge.enqueue(9)
    for streams in (20, 0):
        monkeypatch.setattr(run_list, "MAX_TAG_STREAMS", streams)
        assert [info.id for info in orders.app.runs(tag="t3")] == [runs[3].id]
        assert len(orders.app.runs(tag='quo"te')) == 5
        assert len(orders.app.runs(tag="x" * 150)) == 5
        assert not orders.app.runs(tag="t")


def test_lists_are_sorted_by_columns_with_an_index_and_by_no_other(orders, monkeypatch):
    runs = [orders.charge.enqueue(n, note="fail" if n % 2 else "") for n in range(6)]
    orders.app.worker(concurrency=1).drain()
    later = [orders.charge.options(delay=100 - n).enqueue(n) for n in range(3)]
    ended = sorted(runs, key=lambda run: (run.info().finished_at, run.id))
    monkeypatch.setattr("holdfast.store.sorted_runs.FIRST_CANDIDATES", 2)

    def listed(sort: str, **more: Any) -> list[Any]:
        found, after = [], None
        while True:
            page = orders.control.runs.page(sort=sort, limit=2, after=after, **more)
            found += [info.id for info in page]
            after = page.after
            if after is None:
                return found

    created = [run.id for run in (*runs, *later)]
    assert (listed("-created"), listed("created")) == (created[::-1], created)
    assert listed("created", state="failed") == created[1:6:2]
    assert listed("created", state="scheduled") == created[6:]
    assert listed("finished") == [run.id for run in ended]
    assert listed("-finished", state="done") == [run.id for run in ended if run.info().state == "done"][::-1]
    assert (listed("due"), listed("-due")) == (created[6:][::-1], created[6:])
    monkeypatch.setattr("holdfast.store.sorted_runs.MAX_STREAM_CANDIDATES", 3)
    assert listed("-finished", state="done") == [run.id for run in ended if run.info().state == "done"][::-1]
    with pytest.raises(ConfigError, match="can't be sorted by 'attempt': use -created, created"):
        orders.app.runs(sort="attempt")
    with pytest.raises(ConfigError, match="after must be that of the previous page in the same order"):
        orders.control.runs.page(sort="finished", after=str(runs[0].id))


def test_only_the_top_level_is_listed(orders):
    @orders.app.task(name="parent")
    async def parent(ctx: Context) -> list[None]:
        return [await ctx.call(orders.charge, n) for n in range(2)]

    run = parent.enqueue()
    orders.app.worker().drain()
    assert [info.id for info in orders.app.runs(top_level=True)] == [run.id]
    assert len(orders.app.runs()) == 3


def test_a_text_must_be_given(orders):
    with pytest.raises(ConfigError, match="the text to search for must not be empty"):
        orders.control.search.search("  ")
    with pytest.raises(ConfigError, match="may have at most 200 characters"):
        orders.control.search.search("x" * 201)
