"""`fake`: replace a function or a task in tests, wherever Holdfast would call it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.model.codec import decode, encode
from holdfast.task.fakes import active_fakes
from holdfast.task.functions import is_async
from holdfast.task.machine import MachineSignature
from holdfast.task.options import Declaration
from holdfast.task.signature import POSITIONAL, Signature, SignatureProtocol, UntypedSignature
from holdfast.task.task import EnqueuerProtocol, Task

MAX_LISTED_NAMES = 10


class FakeCall(NamedTuple):
    """One call of a fake."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Fake:
    """A replacement for a function or a task.

    Attributes:
        calls: The arguments of each call, in order.
    """

    def __init__(self, target: Callable[..., Any] | Task[..., Any] | str, answer: Callable[..., Any]) -> None:
        self._target = target
        self._function = target.fn if isinstance(target, Task) else None if isinstance(target, str) else target
        self._answer = answer
        self._matched = False
        self._seen: dict[str, None] = {}
        self._same_name: str | None = None
        self.calls: list[FakeCall] = []

    # Implements `FakeProtocol`

    def function_for(self, names: tuple[str, ...], fn: Callable[..., Any]) -> Callable[..., Any] | None:
        self._seen.update(dict.fromkeys(names))
        if isinstance(self._target, str):
            matches = self._target in names
        else:
            matches = self._function is not None and self._function in (fn, getattr(fn, "__func__", fn))
            if not matches and getattr(self._function, "__name__", None) == names[0]:
                self._same_name = names[0]
        if not matches:
            return None
        self._matched = True
        return self._like(fn)

    def task_for(self, task: Task[..., Any]) -> Task[..., Any] | None:
        names = (task.name, *task.declaration.aliases)
        self._seen[task.name] = None
        if isinstance(self._target, Task):
            matches = self._target.name in names
        else:
            matches = self._target in names or (self._function is not None and self._function == task.fn)
        if not matches:
            return None
        self._matched = True
        fn = self._like(self._answer)
        declaration = replace(task.declaration, run_in="loop" if is_async(fn) else "thread", executor=None)
        return Task(
            declaration, cast(Any, FakeSignature(task.signature, task.name, fn)), cast(EnqueuerProtocol, None), fn
        )

    def remote_task(self) -> Task[..., Any] | None:
        name = self._target if isinstance(self._target, str) else getattr(self._target, "name", None)
        if name is None or self._function is not None:
            return None
        return Task(Declaration(name=name), UntypedSignature(name), cast(EnqueuerProtocol, None))

    def _like(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records its calls and answers. It has the annotations of the replaced function, by
        which results are decoded, and is async if that is."""
        wraps = functools.wraps(getattr(fn, "__func__", fn))
        if not is_async(fn):

            @wraps
            def plain(*args: Any, **kwargs: Any) -> Any:
                self.calls.append(FakeCall(args, kwargs))
                return self._answer(*args, **kwargs)

            return plain

        @wraps
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(FakeCall(args, kwargs))
            value = self._answer(*args, **kwargs)
            return await value if is_async(self._answer) else value

        return awaited

    def problem(self) -> str | None:
        """Return why the fake replaced nothing, or None if it did or simply wasn't reached."""
        if self._matched:
            return None
        if isinstance(self._target, str):
            return f"nothing named {self._target!r} ran inside the block, so the fake replaced nothing; {self._hint()}"
        if self._same_name is None:
            return None
        return (
            f"the step or compensation {self._same_name!r} ran with another function than the one that was faked: fake "
            f"the function that is passed to the context, or the name: fake({self._same_name!r}, …)"
        )

    def _hint(self) -> str:
        if not self._seen:
            return "no step, compensation or task ran at all: drain inside the block"
        close = difflib.get_close_matches(str(self._target), self._seen, n=3, cutoff=0.6)
        close += [name for name in self._seen if name.rpartition(".")[2] == self._target and name not in close]
        meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        listed = ", ".join(list(self._seen)[:MAX_LISTED_NAMES]) + (", …" if len(self._seen) > MAX_LISTED_NAMES else "")
        return f"{meant}These ran: {listed}. If nothing should run, pass required=False"


class FakeSignature:
    """The signature of a faked task: reads arguments and writes results like the task's own."""

    durable = False

    def __init__(self, own: SignatureProtocol, name: str, fn: Callable[..., Any]) -> None:
        self._own = own
        self._name = name
        self.fn = fn

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode stored arguments into those of a call; a durable function's without the context."""
        if isinstance(self._own, MachineSignature):
            return self._own.of(text)[0].decode(text)
        if isinstance(self._own, Signature):
            return self._own.decode(text)
        named: dict[str, Any] = decode(text)
        return tuple(named.pop(POSITIONAL, ())), named

    def encode_result(self, value: Any) -> str:
        if isinstance(self._own, Signature):
            return self._own.encode_result(value)
        return encode(value, f"the result of task {self._name}")


@contextmanager
def fake(
    target: Callable[..., Any] | Task[..., Any] | str,
    *,
    returns: Any = None,
    raises: BaseException | type[BaseException] | None = None,
    does: Callable[..., Any] | None = None,
    required: bool = True,
) -> Iterator[Fake]:
    """Replace a function or a task inside a `with` block, wherever Holdfast would call it.

    A function is replaced as a step, a transaction, a compensation (`undo=` and `ctx.undo`) and, if it is a task, in
    its runs: children, graph nodes and everything that is enqueued. The code of a faked durable function or state
    machine doesn't run at all. A remote task runs nowhere else in a test, so fake it.

    Args:
        target: A function, a task, or a name: that of a step, a task, or `"undo STEP"` for the compensation of a step.
        returns: What it returns.
        raises: What it raises.
        does: A function to call with the same arguments instead; a durable function's without the context.
        required: Whether the block fails if nothing of the given name ran.

    Raises:
        AssertionError: At the end of the block, if the name replaced nothing, or if a step of the same name ran with
            another function. The message names close matches.

    Example:
        ```python
        with fake(charge, returns="payment-1") as charged, fake(refund) as refunded:
            run = checkout.enqueue(order)
            kit.drain()
        assert charged.calls[0].args == (42,)
        assert refunded.calls == []
        ```
    """
    if not isinstance(target, str | Task) and not callable(target):
        raise ConfigError(f"fake takes a function, a task or a name, not {type(target).__name__}")
    if sum(given is not None for given in (returns, raises, does)) > 1:
        raise ConfigError("fake takes only one of returns=, raises= and does=")

    def answer(*_args: Any, **_kwargs: Any) -> Any:
        if raises is not None:
            raise raises
        return returns

    replacement = Fake(target, answer if does is None else does)
    active_fakes.append(replacement)
    try:
        yield replacement
    finally:
        active_fakes.remove(replacement)
    if required and (problem := replacement.problem()) is not None:
        raise AssertionError(problem)


fake_step = fake
"""The name before 0.2."""
