"""Clients in the processes of workers, whose commits also claim: `python -m tests.proof.simulate --local-clients`.

The workers serve only tasks of queues in plain order; with others, only their claimers claim. So these seeds cover the
claims in the commits of clients and of committers, under the same faults and invariants as those of `simulate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from holdfast import Run
from holdfast.client.client import Client
from holdfast.engine.loops.claimer import CommitClaim
from holdfast.errors import RunFinished, StoreUnavailable
from tests.proof.clients import Clients
from tests.proof.environment import Environment
from tests.proof.replica import Change
from tests.proof.simulated_worker import SimulatedWorker
from tests.proof.simulation import Simulation
from tests.proof.virtual_time import SECOND_US
from tests.proof.workload import EVENTS, PARCELS, tree

PLAIN_TASKS = ("job", "program", "plain program", "child", "broken", "heard", "noted")
CALLS = 12
"""How many runs and groups of runs the clients of all workers create together."""
MESSAGES = 8
"""How many messages they send and publish."""


class SimulatedLock:
    """A lock between greenlets. A greenlet that waits for it yields."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._is_held = False

    def acquire(self, timeout: float = -1) -> bool:
        until = None if timeout < 0 else self._sim.clock.micros + timeout * SECOND_US
        while self._is_held:
            if until is not None and self._sim.clock.micros >= until:
                return False
            self._sim.pause(0.001)
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class PlainWorker(SimulatedWorker):
    """A worker that serves only tasks whose runs may be claimed with a commit, and lets its clients claim."""

    def __init__(self, sim: Simulation, environment: Environment, slot: int, name: str, has_side: bool) -> None:
        super().__init__(sim, environment, slot, name, has_side)
        self.client: Client = environment.clients[slot]
        self._unsubscribe: list[Callable[[], None]] = []
        self._claims_began: WeakKeyDictionary[greenlet, int] = WeakKeyDictionary()
        claimer, lanes = self.components.claimer, self.components.lanes
        claimer._claiming = SimulatedLock(sim)  # type: ignore[assignment]
        self._begin_commit_claim = claimer.begin_commit_claim
        claimer.begin_commit_claim = self._note_begin  # type: ignore[method-assign]
        lanes.served = lambda tasks: {name: task for name, task in tasks.items() if name in PLAIN_TASKS}  # type: ignore[method-assign]

    def start(self) -> None:
        super().start()
        store, components = self.process.store, self.components
        self._unsubscribe = [
            store.on_client_commit(components._client_committed),
            store.claim_for_clients(components.claimer.client_claim),
        ]

    def detach(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        super().detach()

    def _note_begin(self, *given: Any, **options: Any) -> CommitClaim | None:
        """Begin a claim in a commit and note when: only then does it check whether the event loop is blocked."""
        self._claims_began[getcurrent()] = self.sim.clock.micros
        return self._begin_commit_claim(*given, **options)

    def claim_began_at(self) -> int | None:
        return self._claims_began.get(getcurrent(), super().claim_began_at())


class LocalClients(Clients):
    """Clients that enqueue, emit, send, ask and publish in the processes of workers. They die with their process."""

    def prepare(self) -> None:
        self.environment.client.hooks = self
        span_s = self.rng.choice((0.3, 1, 4))
        for at in range(CALLS):
            self._later(self.rng.uniform(0, span_s), f"local{at}", lambda at=at: self._start_call(at))
        for at in range(MESSAGES):
            self._later(self.rng.uniform(0, span_s + 3), f"local message{at}", self._start_message)

    def _start_call(self, at: int) -> None:
        if (worker := self._pick_worker()) is not None:
            worker.add_thread(f"client{at}", lambda: self._call(worker.client, at))

    def wanted_event(self, event: str) -> None:
        """Let a client of a worker emit the event. That worker may die before, so the other client repeats it."""
        if event not in self.first:
            super().wanted_event(event)
            self._later(
                self.rng.uniform(3, 6), f"emit {event} again", lambda: super(LocalClients, self)._emit(event, 1)
            )

    def _emit(self, event: str, copy: int) -> None:
        if (worker := self._pick_worker()) is None:
            super()._emit(event, copy)
        else:
            worker.add_thread(f"client emits {event}", lambda: self._emit_with(worker.client, event, copy))

    def wanted_ask(self, run: str, name: str) -> None:
        """Let a client of a worker ask. That worker may die before, so the other client asks the same again."""
        if self.asks.is_new(run, name):
            seconds = self.rng.choice((0.0, 0.0, 0.0005, 0.002, 0.01, 0.05, 2.0))
            self._later(seconds, f"ask {name}", lambda: self._start_ask(run, name))
            self._later(self.rng.uniform(3, 6), f"ask {name} again", lambda: self._ask(run, name))

    def _start_ask(self, run: str, key: str) -> None:
        if (worker := self._pick_worker()) is not None:
            worker.add_thread(f"client asks {key}", lambda: self._ask_with(worker.client, run, key))

    def _ask_with(self, client: Client, run: str, key: str) -> None:
        with suppress(StoreUnavailable):
            self.asks.wait_for_answers(client, self.asks.send(client, run, key))

    def _start_message(self) -> None:
        worker, run = self._pick_worker(), self.rng.choice(self.runs) if self.runs else None
        if worker is None:
            return
        if run is None or self.rng.random() < 0.4:
            message = self._parcel(self.rng.choice(EVENTS))
            worker.add_thread("client publishes", lambda: self._publish_with(worker.client, message))
        else:
            worker.add_thread("client sends", lambda: self._send_with(worker.client, run))

    def _publish_with(self, client: Client, message: dict[str, Any]) -> None:
        with suppress(StoreUnavailable):
            client.topics.publish(PARCELS, message, None, None, None)

    def _send_with(self, client: Client, run: Run[Any]) -> None:
        """Send a number. If the client dies, it may have been sent."""
        id, number = str(run.id), self.sent[str(run.id)]
        self.sent[id] += 1
        self.doubtful[id].add(number)
        try:
            client.send(run.id, run.task, "news", number)
        except RunFinished:
            self.unsent[id].add(number)
        except StoreUnavailable:
            return
        self.doubtful[id].discard(number)

    def _serve(self, number: int, waits: list[dict[str, Any]]) -> None:
        """Send messages, too, to all functions that wait for one: also to those whose creator died before it knew."""
        super()._serve(number, waits)
        for run in sorted({wait["run"] for wait in waits if wait["target"] == "news"}):
            self._send_to(self.app.get_run(run))

    def _pick_worker(self) -> PlainWorker | None:
        able = [worker for worker in self.sim.workers if worker.alive and worker.started and not worker.stopping]
        worker = self.rng.choice(able) if able else None
        assert worker is None or isinstance(worker, PlainWorker)
        return worker

    def _emit_with(self, client: Client, event: str, copy: int) -> None:
        with suppress(StoreUnavailable):
            self.note_emit(event, is_first=client.emit(event, f"{event} {copy}", None))

    def _call(self, client: Client, at: int) -> None:
        """Make a call. If it fails or dies, its effect is unknown; then only the invariants check its runs."""
        tasks, rng = self.environment.tasks, self.rng
        with suppress(StoreUnavailable):
            if rng.random() < 0.5:
                requests = [
                    tasks.job.request(f"local{at}-{n}", rng.choice((0, 0, 1)), rng.choice((0, 1, 8)))
                    for n in range(rng.randint(1, 3))
                ]
                runs = client.creator.enqueue(requests)
            else:
                number = [at * 100]
                program = tree(rng, 2, number) if rng.random() < 0.7 else ["event", f"event{at}", 0, rng.choice(EVENTS)]
                end = rng.choice(("", "", "restart", "fatal", "retry"))
                task = tasks.plain if rng.random() < 0.3 else tasks.program
                runs = client.creator.enqueue([task.request(program, 0, end)])
            self.runs += [self.app._client.handle(run.id, run.task) for run in runs]


class LocalSimulation(Simulation):
    """The simulation of one seed with clients in the processes of workers.

    It counts the runs that were claimed by the very commit that created them or made them ready.
    """

    worker_type = PlainWorker
    clients_type = LocalClients

    def check_commit(self, who: str, worker: SimulatedWorker | None, changes: list[Change]) -> None:
        super().check_commit(who, worker, changes)
        for change in changes:
            if change.ready is not None and change.ready != change.old:
                by = "client" if ".client" in getcurrent().thread.name else "committer"  # type: ignore[attr-defined]
                before = "new" if change.old is None else change.old["state"]
                self.count(f"{before} run claimed by {by}")
