"""Tasks, their registration, and the requests that they pass to the app."""

import asyncio
import functools
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import BadArguments, ConfigError, DuplicateTask, TaskError, UnknownTask
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.task.registry import Registry, register_task, remote_task, task_name
from holdfast.task.task import Request


class Ledger:
    """Accepts requests as an app does, and returns them instead of runs."""

    def __init__(self) -> None:
        self.groups: list[list[Request[Any]]] = []

    def enqueue(self, requests, verb="enqueue"):
        self.groups.append(list(requests))
        return list(requests)

    async def aenqueue(self, requests):
        await asyncio.sleep(0)
        return self.enqueue(requests)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def task(ledger, registry):
    return functools.partial(register_task, enqueuer=ledger, registry=registry)


def send(to: str, subject: str = "hi") -> str:
    """Send a mail."""
    return f"{to}: {subject}"


async def fetch(url: str) -> int:
    await asyncio.sleep(0)
    return len(url)


def test_calling_a_task_runs_the_plain_function(task):
    assert task(send)("a", subject="b") == "a: b"
    assert asyncio.run(task(fetch)("abc")) == 3


def test_a_task_has_the_metadata_of_its_function(task):
    mail = task(send)
    assert mail.__doc__ == "Send a mail."
    assert mail.__wrapped__ is send
    assert inspect.signature(mail) == inspect.signature(send)
    assert mail.name == f"{__name__}.send"
    assert mail.fn is send


def test_enqueue_passes_one_request_to_the_app(task, ledger):
    mail = task(send, queue="mail")
    request = mail.enqueue("a@x", subject="s")
    assert ledger.groups == [[request]]
    assert (request.task, request.args, request.declaration.queue) == (mail.name, '{"to":"a@x","subject":"s"}', "mail")
    assert asyncio.run(mail.aenqueue("b@x")).args == '{"to":"b@x"}'


def test_invalid_arguments_are_rejected_before_the_app_is_called(task, ledger):
    with pytest.raises(BadArguments):
        task(send).enqueue(5)
    assert ledger.groups == []


def test_options_return_a_task_of_the_same_type_and_leave_the_original_unchanged(task):
    mail = task(send)
    later = mail.options(delay=60).options(priority=5)
    assert type(later) is type(mail)
    assert (later.request("a").options.delay, later.request("a").options.priority) == (60 * MICROS_PER_SECOND, 5)
    assert mail.request("a").options.delay is None
    assert later("a") == "a: hi"


def test_enqueue_many_passes_all_requests_together(task, ledger):
    mail = task(send)
    runs = mail.enqueue_many([("a",), ["b", "x"]])
    assert ledger.groups == [runs]
    assert [run.args for run in runs] == ['{"to":"a"}', '{"to":"b","subject":"x"}']
    assert [run.args for run in asyncio.run(mail.aenqueue_many(("c",) for _ in range(1)))] == ['{"to":"c"}']


def test_enqueue_many_without_calls_does_not_call_the_app(task, ledger):
    assert task(send).enqueue_many([]) == []
    assert asyncio.run(task(send).aenqueue_many([])) == []
    assert ledger.groups == []


@pytest.mark.parametrize(
    ("row", "words"), [("a@x", r"row 1 .* tuple of arguments, not str"), ((5,), "row 1 of enqueue_many: .*`str`")]
)
def test_an_invalid_row_is_named_and_nothing_is_enqueued(task, ledger, row, words):
    with pytest.raises(BadArguments, match=words):
        task(send).enqueue_many([("a",), row, ("c",)])
    assert ledger.groups == []


def test_enqueue_many_rejects_other_arguments_than_a_list_of_calls(task, ledger):
    with pytest.raises(BadArguments, match="takes a list of tuples, not NoneType"):
        task(send).enqueue_many(None)
    assert ledger.groups == []


@pytest.mark.parametrize("option", ["key", "unique"])
def test_a_key_is_rejected_for_several_calls_and_accepted_for_one(task, ledger, option):
    mail = task(send).options(**{option: "k"})
    with pytest.raises(ConfigError, match=rf"one {option} for 2 runs.*app\.enqueue_many"):
        mail.enqueue_many([("a",), ("b",)])
    assert ledger.groups == []
    assert getattr(mail.enqueue_many([("a",)])[0].options, option) == "k"


def test_equal_requests_have_the_same_digest(task):
    mail = task(send)
    digest, old = mail.request("a", subject="b").digests()
    assert old is None
    assert (digest, None) == mail.options(key="k", tenant="t").request(subject="b", to="a").digests()
    assert digest.startswith("1:")
    assert digest != mail.request("a", subject="c").digests()[0]
    assert digest == mail.options(priority=1).request("a", subject="b").digests()[0]
    assert digest != task(fetch).request("a").digests()[0]


def test_an_omitted_default_and_an_explicit_one_are_the_same_request(task):
    mail = task(send)
    assert mail.request("a").digests() == mail.request("a", "hi").digests()
    assert mail.request("a").args == '{"to":"a"}'


def test_a_remote_task_is_enqueued_by_name_and_not_registered(ledger, registry):
    charge = remote_task("billing.charge", enqueuer=ledger, queue="billing")
    request = charge.options(priority=3).enqueue(42, currency="EUR")
    assert (request.task, request.args) == ("billing.charge", '{"*":[42],"currency":"EUR"}')
    assert (request.declaration.queue, request.declaration.run_in, request.options.priority) == ("billing", None, 3)
    assert "billing.charge" not in registry


class UnreadDict(dict):
    """Tells only about single keys."""

    def items(self):
        raise AssertionError("all keys are read")

    keys = values = __iter__ = items


def test_declaring_a_task_doesnt_read_all_others(task, registry):
    registry._tasks = UnreadDict()
    for number in range(3):
        task(send, name=f"mail.{number}", aliases=(f"old.{number}",))
    task(send, name="mail.1")
    assert "old.1" not in registry._tasks
    assert "old.2" in registry._tasks


def test_a_task_is_found_by_name_and_alias(task, registry):
    mail = task(send, name="mail.send", aliases=("old.send",))
    assert registry.get("mail.send") is mail
    assert registry.get("old.send") is mail
    assert list(registry) == [mail]
    assert registry.names() == {"mail.send": mail, "old.send": mail}


def test_an_unknown_task_is_rejected_with_a_suggestion(task, registry):
    task(send, name="mail.send")
    with pytest.raises(UnknownTask, match=r"no task 'mail\.sent' .*did you mean mail\.send\?"):
        registry.get("mail.sent")
    with pytest.raises(UnknownTask, match=r"did you mean mail\.send"):
        registry.get("send")
    with pytest.raises(UnknownTask, match="include="):
        registry.get("nothing.like.it")


def test_two_functions_with_the_same_name_are_rejected_with_both_locations(task, registry):
    mail = task(send, name="x")
    with pytest.raises(DuplicateTask, match=r"name x: send \(.*test_task\.py:\d+\) and fetch \(.*test_task\.py:\d+\)"):
        task(fetch, name="x")
    with pytest.raises(DuplicateTask):
        task(fetch, name="y", aliases=["x"])
    assert registry.names() == {"x": mail}


SOURCE = "def pay(n: int): ...\n"


def loaded(name: str, file: str) -> Any:
    """Import a file under this name and return its function."""
    module = ModuleType(name)
    exec(compile(SOURCE, file, "exec"), module.__dict__)
    return module.pay


def test_a_file_imported_as_script_and_as_module_is_one_task(task, registry):
    task(loaded("__main__", "shop.py"), name="shop.pay", aliases=["old"])
    second = task(loaded("shop", "shop.py"), name="shop.pay")
    assert registry.names() == {"shop.pay": second}


def test_equal_functions_of_two_files_are_two_tasks(task):
    task(loaded("a", "a.py"), name="pay")
    with pytest.raises(DuplicateTask):
        task(loaded("b", "b.py"), name="pay")


def test_modules_are_imported_once_at_the_first_unknown_name(tmp_path, monkeypatch, ledger):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "holdfast_included.py").write_text("import builtins\nbuiltins.register_here()\n")
    registry = Registry(include=["holdfast_included"])
    imports = []

    def register_here():
        imports.append(1)
        register_task(send, name="included.send", enqueuer=ledger, registry=registry)

    monkeypatch.setattr("builtins.register_here", register_here, raising=False)
    register_task(fetch, name="fetch", enqueuer=ledger, registry=registry)
    assert registry.get("fetch").name == "fetch"
    assert imports == []
    try:
        assert registry.get("included.send").fn is send
        registry.load()
        with pytest.raises(UnknownTask):
            registry.get("other")
    finally:
        sys.modules.pop("holdfast_included", None)
    assert imports == [1]


def test_a_module_that_cannot_be_imported_is_named_with_the_cause(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "holdfast_broken.py").write_text("1 / 0\n")
    registry = Registry(include=["holdfast_broken"])
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"importing holdfast_broken failed: ZeroDivisionError") as caught:
            registry.get("x")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigError, match="list of modules"):
        Registry(include="shop.tasks")


def test_a_task_of_a_script_is_named_after_its_file(monkeypatch):
    main = ModuleType("__main__")
    main.__file__ = "/anywhere/shop.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    fn = loaded("__main__", "shop.py")
    assert task_name(fn) == "shop.pay"
    main.__spec__ = SimpleNamespace(name="store.shop")
    assert task_name(fn) == "store.shop.pay"


def test_functions_without_a_stable_name_need_an_explicit_one(task):
    def inner(): ...

    for fn in (inner, lambda: None):
        with pytest.raises(TaskError, match="name="):
            task(fn)
        assert task(fn, name=f"given.{fn.__name__}").name.startswith("given.")


class Shop:
    def pay(self, n): ...

    @staticmethod
    def refund(n):
        return n


def generator():
    yield 1


async def agenerator():
    yield 1


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (generator, "generator function"),
        (agenerator, "generator function"),
        (Shop.pay, "is a method"),
        (Shop().pay, "bound method"),
        (Shop, "must be a function"),
        (functools.partial(send, "a"), "wrap it in a def"),
        (len, "must be a function"),
        (3, "must be a function, but 3 is a int"),
    ],
)
def test_invalid_task_functions_are_rejected(task, registry, thing, words):
    with pytest.raises(TaskError, match=words):
        task(thing, name="t")
    assert len(registry) == 0


def test_a_task_is_rejected_as_a_task_function(task):
    with pytest.raises(TaskError, match="is already a task"):
        task(task(send))


def test_a_static_method_can_be_a_task(task):
    assert task(Shop.refund)(3) == 3
