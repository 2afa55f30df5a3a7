"""The asks of simulated clients: what they ask, the answers that they get, and the checks of both."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from holdfast.client.client import Client
from holdfast.client.interaction import AskFollower, SentAsk
from holdfast.errors import RunFinished, StoreUnavailable
from holdfast.model.asks import decode_envelope
from holdfast.store.interaction import StoredAnswer
from tests.proof.workload import NOTE, PRICE

if TYPE_CHECKING:
    from tests.proof.simulation import Simulation

MAX_POLL_INTERVAL_S = 1.0


class Asked(NamedTuple):
    """An ask that was sent. The reply is the payload, if that is a number; otherwise it is rejected."""

    ask: SentAsk
    payload: Any


class SimulatedAsks:
    """The asks of one seed."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.payloads: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        """What each run was asked, or may have been asked by a client that died, by key."""
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # the keys of those that were certainly sent
        self.waiting = 0
        """How many clients that never die wait for answers."""

    def is_new(self, run: str, key: str) -> bool:
        """Return whether no client has used this key, and note that one will."""
        is_new = key not in self.payloads[run]
        self._payload(run, key)
        return is_new

    def _payload(self, run: str, key: str) -> int:
        payload: int = self.payloads[run].setdefault(key, self._sim.random.randint(1, 1000))
        return payload

    def send(self, client: Client, run: str, key: str) -> list[Asked]:
        """Ask a run, some of it perhaps twice; return what was sent.

        Something of the wrong type may come before, and something that only a function that serves answers, after it.
        """
        rng, sent = self._sim.random, []
        planned: list[tuple[str, str, Any]] = [(PRICE, key, self._payload(run, key))]
        if rng.random() < 0.2:
            planned.insert(0, (PRICE, f"wrong {key}", "no number"))
        if rng.random() < 0.2:
            planned.append((NOTE, f"note {key}", self._payload(run, f"note {key}")))
        task = client.find(run).task
        for name, each, payload in planned:
            self.payloads[run][each] = payload
            for _ in range(rng.choice((1, 1, 2))):
                try:
                    asked = Asked(client.interaction.send_ask(UUID(run), task, name, payload, each), payload)
                except RunFinished:
                    return sent
                self._sent[run].add(each)
                if asked not in sent:
                    sent.append(asked)
        return sent

    def wait_for_answers(self, client: Client, asked: list[Asked]) -> None:
        """Wait for the answers as a client does, which takes those that a worker of its process hands to it."""
        with ExitStack() as stack:
            followers = [AskFollower(each.ask) for each in asked]
            for follower in followers:
                stack.enter_context(client.streams.followers.add(follower))
            for each, follower in zip(asked, followers, strict=True):
                with suppress(RunFinished):
                    self._check_answer(each, self._answer(client, follower))

    def _answer(self, client: Client, follower: AskFollower) -> StoredAnswer:
        interval_s = 0.02
        while True:
            self._sim.pause(interval_s)
            interval_s = min(2 * interval_s, MAX_POLL_INTERVAL_S)
            with suppress(StoreUnavailable):
                answer: StoredAnswer | None = follower.known or client.interaction.answer(follower.ask)
                if answer is not None:
                    return answer

    def _check_answer(self, asked: Asked, got: StoredAnswer) -> None:
        """Check that an answer is durable, and that it belongs to the ask."""
        run, key = str(asked.ask.run), asked.ask.key
        stored = [
            (row["answer"], row["reply"]) for row in self._sim.replica.of_run("messages", run) if row["ask"] == key
        ]
        if stored != [(got.answer, got.text)]:
            self._sim.fail(f"a client got {got.answer} {got.text} to ask {key} of run {run}, but stored is {stored}")
        if got.answer == "reply" and got.text != str(asked.payload):
            self._sim.fail(f"a client got the reply {got.text} to ask {key} of run {run} with {asked.payload}")

    # Checks at the end

    def check(self, *, interfered: set[str]) -> None:
        """Check all asks. `interfered`: runs that an operator has retried, which deletes asks."""
        for run in self.payloads:
            self._check_run(run, set() if run in interfered else self._sent[run])

    def _check_run(self, run: str, sent: set[str]) -> None:
        """Check that each ask was stored once, and that all that a function has received were answered right."""
        row, asks = self._sim.replica.run(run), [row for row in self._sim.replica.of_run("messages", run) if row["ask"]]
        stored = sorted(ask["ask"] for ask in asks)
        if len(stored) != len({*stored}) or sent - {*stored} or {*stored} - self.payloads[run].keys():
            self._sim.fail(f"run {run} was asked {sorted(sent)}, and has {stored}")
        for ask in asks:
            payload = decode_envelope(ask["payload"]).payload
            answer = ("reply", payload) if payload.isdecimal() else ("rejected", ask["reply"])
            if ask["answered_at"] is not None and (ask["answer"], ask["reply"]) != answer:
                self._sim.fail(f"ask {ask['ask']} of run {run} with {payload} got {ask['answer']} {ask['reply']}")
            is_done = row is not None and row["state"] == "done"
            if is_done and ask["answered_at"] is None and ask["taken_by"] is not None:
                self._sim.fail(f"run {run} is done and has received ask {ask['ask']}, but didn't answer it")
