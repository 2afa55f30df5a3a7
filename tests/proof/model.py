"""What the store is to do, as a small model in plain Python: runs, leases, events, messages, graphs and limits.

Nothing here is quick, and nothing knows SQL: it says what is right. Times are microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

SECOND = 1_000_000
LEASE = 10 * SECOND
DELAY = 10 * SECOND
MAX_CRASHES = 1
CAP = 2
FINAL = ("done", "failed", "cancelled", "skipped")


@dataclass
class Wait:
    """What a run waits for. `outcome`: what came of it, with its value."""

    kind: str
    target: str | None
    due_at: int | None
    since: int
    outcome: tuple[str, str | None] | None = None


@dataclass
class Run:
    """One run."""

    id: str
    seq: int
    priority: int = 0
    turn: int = 0
    """When it became ready: runs of one priority are claimed in this order."""
    state: str = "ready"
    held: str | None = None
    due_at: int | None = None
    deadline: int | None = None
    session: str | None = None
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    deaths: int = 0
    """How often in a row its process died with it, whoever caused that."""
    isolation: int | None = None
    """How many runs may share a process with it while it is suspected to kill its process, itself included."""
    resumed: bool = False
    limited: bool = False
    unique: str | None = None
    graph: str | None = None
    needs: tuple[str, ...] = ()
    steps: dict[int, str] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    messages: list[list[str | None]] = field(default_factory=list)  # payload, and the wait that took it

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def clear_suspicion(self) -> None:
        """It ended in an orderly way, or begins anew."""
        self.deaths, self.isolation = 0, None

    def die(self, together: int, isolate: bool | None = None) -> None:
        """Its process died with so many runs in it. A run that died alone is charged, and fails when that happened too
        often; one that dies twice in a row is isolated. `isolate` says otherwise: at once, or not at all."""
        fails = together == 1 and self.crashes >= MAX_CRASHES
        suspected = not fails and (self.deaths > 0 if isolate is None else isolate)
        self.crashes += together == 1
        self.deaths = 0 if fails else self.deaths + (isolate is not False)
        if not suspected:
            self.isolation = None
        elif self.isolation is not None and self.isolation < together:
            self.isolation = (self.isolation + 3) // 4
        else:
            self.isolation = (together + 3) // 4
        self.held = "isolated" if suspected else None
        self.state = "failed" if fails else "ready"
        self.session = None


@dataclass(frozen=True)
class Held:
    """A claim, as a worker remembers it, whatever has become of the run since."""

    id: str
    session: str
    fence: int


class Model:
    """The store as it should be."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.runs: dict[str, Run] = {}
        self.leases: dict[str, int] = {}
        self.events: dict[str, str] = {}
        self.graphs: dict[str, str] = {}  # their states
        self.seq = 0

    # Sessions

    def open(self, session: str) -> None:
        self.leases[session] = self.now + LEASE

    def alive(self, session: str | None) -> bool:
        return session is not None and self.leases.get(session, self.now) > self.now

    def renew(self, session: str) -> bool:
        if not self.alive(session):
            return False
        self.leases[session] = self.now + LEASE
        return True

    def recover(self) -> None:
        """Runs of dead sessions go back, charged with the death if they were alone; what had ended is let go."""
        returned = False
        lost = [run for run in self._runs() if run.session is not None and not self.alive(run.session)]
        together = Counter(run.session for run in lost)
        for run in lost:
            returned = returned or run.limited
            if run.state == "running":
                run.die(together[run.session])
                if run.final:
                    self._ended(run)
            else:
                self._release(run)
        self.leases = {session: until for session, until in self.leases.items() if until > self.now}
        if returned:
            self._permits_returned()

    # Making runs

    def add(
        self, id: str, *, priority: int, delay: int, deadline: int | None, limited: bool, unique: str | None
    ) -> str:
        """A new run; or the unfinished one of its unique name."""
        for other in self._runs():
            if unique is not None and other.unique == unique and not other.final:
                return other.id
        run = self._new(id, priority=priority, limited=limited, unique=unique)
        run.deadline = None if deadline is None else self.now + deadline
        if delay:
            run.state, run.due_at = "scheduled", self.now + delay
        if self._predecessor(run):
            run.held = "quiescing"
        return id

    def _new(self, id: str, **more: object) -> Run:
        self.seq += 1
        run = self.runs[id] = Run(id, self.seq, turn=self.now, **more)  # type: ignore[arg-type]
        return run

    def _predecessor(self, run: Run) -> bool:
        """Whether someone is still at a finished run of the same unique name."""
        return run.unique is not None and any(
            other.unique == run.unique and other.final and other.session is not None for other in self._runs()
        )

    def submit(self, graph: str, nodes: dict[str, tuple[str, ...]]) -> None:
        """A graph of nodes, each with those that it needs, which come before it."""
        self.graphs[graph] = "waiting"
        self.seq += 1
        for id, needs in nodes.items():
            run = self._new(id, graph=graph, needs=needs)
            run.state = "blocked" if needs else "ready"

    # Working

    def claim(self, session: str, wanted: int, *, limited: bool) -> list[Held]:
        """The first ready runs, by priority, then by the time at which they became ready."""
        if not self.alive(session):
            return []
        ready = [run for run in self._runs() if run.state == "ready" and run.held is None and run.limited == limited]
        return self._begin(session, sorted(ready, key=_order)[:wanted])

    def claim_isolated(self, session: str, most: int) -> list[Held]:
        """The isolated run that was there first, with those that may share a process with it: runs of the same bound,
        as many as that allows."""
        isolated = [run for run in self._runs() if run.state == "ready" and run.held == "isolated"]
        isolated.sort(key=lambda run: run.deaths)  # equal ones stay in the order of arrival
        if not self.alive(session) or not isolated:
            return []
        bound = isolated[0].isolation
        assert bound is not None
        group = [run for run in isolated if run.isolation == bound]
        return sorted(self._begin(session, group[: min(most, bound)]), key=lambda held: _order(self.runs[held.id]))

    def _begin(self, session: str, runs: list[Run]) -> list[Held]:
        """Those with a limit only while there is room for them: the others are parked."""
        claims = []
        for run in runs:
            if run.limited and self.used() >= CAP:
                run.held = "full"
                continue
            run.attempt += not run.resumed
            run.fence += 1
            run.state, run.held, run.session, run.resumed, run.due_at = "running", None, session, False, None
            claims.append(Held(run.id, session, run.fence))
        return claims

    def used(self) -> int:
        """Permits: a run has one as long as someone is at it."""
        return sum(run.limited and run.session is not None for run in self._runs())

    def _permits_returned(self) -> None:
        """As many that wait for a permit may be tried as there is room for."""
        parked = sorted((run for run in self._runs() if run.held == "full"), key=_order)
        for run in parked[: max(CAP - self.used(), 0)]:
            run.held = None if run.isolation is None else "isolated"

    def has(self, held: Held) -> bool:
        """Whether the run is still that session's, under that fence, and its lease alive."""
        run = self.runs[held.id]
        ours = (run.session, run.fence, run.state) == (held.session, held.fence, "running")
        return ours and self.alive(held.session)

    def end(self, held: Held, kind: str, *, still_running: bool) -> bool:
        """An attempt ends; False when the run isn't its any more."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.state = {"done": "done", "failed": "failed", "retrying": "scheduled", "handed_back": "ready"}[kind]
        run.due_at = self.now + DELAY if kind == "retrying" else None
        run.failures += kind in ("failed", "retrying")
        run.session = held.session if still_running else None
        run.held = "quiescing" if still_running and not run.final else None
        run.clear_suspicion()
        if kind == "done":
            run.waits.clear()
        if run.final:
            self._ended(run)
        if run.limited and not still_running:
            self._permits_returned()
        return True

    def let_go(self, held: Held) -> bool:
        """Author code that outlived its run has ended. It needs no lease: nothing else is said by it."""
        run = self.runs[held.id]
        if (run.session, run.fence) != (held.session, held.fence) or run.state == "running":
            return False
        self._release(run)
        if run.limited:
            self._permits_returned()
        return True

    def crash(self, held: Held, *, together: int, isolate: bool | None) -> bool:
        """A session reports that the code of an attempt died, while the session lives on."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.die(together, isolate)
        if run.final:
            self._ended(run)
        if run.limited:
            self._permits_returned()
        return True

    @staticmethod
    def _release(run: Run) -> None:
        """Nobody is at it any more."""
        run.session = None
        run.held = None if run.held == "quiescing" else run.held

    def _ended(self, run: Run) -> None:
        """What follows from the end of a node: the next ones begin, or are skipped; the graph ends."""
        if run.graph is None:
            return
        nodes = [node for node in self._runs() if node.graph == run.graph]
        for node in nodes:  # in the order of arrival: what a node needs comes before it
            ends = [self.runs[needed].state for needed in node.needs]
            if node.state == "blocked" and all(end in FINAL for end in ends):
                node.state = "ready" if all(end == "done" for end in ends) else "skipped"
        if all(node.final for node in nodes) and self.graphs[run.graph] == "waiting":
            bad = any(node.state in ("failed", "cancelled") for node in nodes)
            self.graphs[run.graph] = "failed" if bad else "done"

    # What durable functions say

    def record(self, held: Held, n: int, value: str) -> bool:
        """A checkpoint. One that this claim wrote before counts."""
        if not self.has(held):
            return False
        self.runs[held.id].steps[n] = value
        return True

    def wait(self, held: Held, kind: str, key: str, target: str | None, delay: int | None, n: int) -> str:
        """Wait for something: `lost`, `open`, or what it came to at once, which is on record then."""
        if not self.has(held):
            return "lost"
        run = self.runs[held.id]
        known = run.waits.get(key)
        outcome = known.outcome if known is not None else self._look(run, kind, key, target)
        if outcome is not None:
            run.waits.pop(key, None)
            run.steps[n] = outcome[0]
            return outcome[0]
        if known is None:
            run.waits[key] = Wait(kind, target, None if delay is None else self.now + delay, self.now)
        return "open"

    def _look(self, run: Run, kind: str, key: str, target: str | None) -> tuple[str, str | None] | None:
        if kind == "event" and target in self.events:
            return "event", self.events[target]
        if kind == "message":
            for message in run.messages:
                if message[1] is None:
                    message[1] = key
                    return "message", message[0]
        return None

    def suspend(self, held: Held) -> bool:
        """It sleeps until something comes; if that has come already, it is ready at once."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.state, run.session, run.resumed = "waiting", None, True
        run.clear_suspicion()
        self._wake(run)
        if run.limited:
            self._permits_returned()
        return True

    def _wake(self, run: Run) -> None:
        if run.state == "waiting" and any(wait.outcome for wait in run.waits.values()):
            run.state, run.turn = "ready", self.now + 1  # new runs come first

    # From outside

    def emit(self, event: str, payload: str) -> bool:
        """The first one wins."""
        if event in self.events:
            return False
        self.events[event] = payload
        for run in self._runs():
            for wait in run.waits.values():
                if wait.kind == "event" and wait.target == event and wait.outcome is None:
                    wait.outcome = ("event", payload)
            self._wake(run)
        return True

    def send(self, id: str, payload: str) -> bool:
        """To the wait that was there first, or to a later one; False when the run has ended."""
        run = self.runs[id]
        if run.final:
            return False
        run.messages.append([payload, None])
        open_waits = [(w.since, key, w) for key, w in run.waits.items() if w.kind == "message" and w.outcome is None]
        for _, key, wait in sorted(open_waits, key=lambda each: each[:2]):
            first = next(message for message in run.messages if message[1] is None)
            first[1] = key
            wait.outcome = ("message", first[0])
            break
        self._wake(run)
        return True

    def cancel(self, id: str) -> bool:
        """It ends for everyone but the worker that is at it."""
        run = self.runs[id]
        if run.final:
            return False
        run.state, run.held, run.due_at, run.resumed = "cancelled", None, None, False
        run.clear_suspicion()
        self._ended(run)
        return True

    def retry(self, id: str) -> str:
        """A failed or cancelled run begins anew, when whoever is at it has let go."""
        run = self.runs[id]
        if run.state in ("done", "skipped"):
            return "refused"
        if not run.final:
            return "unfinished"
        if run.graph is not None:
            return "refused"
        if any(other.unique == run.unique and not other.final for other in self._runs() if run.unique is not None):
            return "taken"
        run.held = "quiescing" if run.session is not None or self._predecessor(run) else None
        run.state, run.attempt, run.failures, run.crashes, run.resumed = "ready", 0, 0, 0, False
        run.turn = self.now + 1
        run.clear_suspicion()
        run.deadline = None if run.deadline is None else self.now + DELAY
        return "retried"

    # By the clock

    def tick(self) -> None:
        """What the timekeeper does: deadlines first, then whatever may begin or go on."""
        for run in self._runs():
            if run.deadline is not None and run.deadline <= self.now and not run.final:
                run.state, run.held, run.due_at, run.resumed = "failed", None, None, False
                run.clear_suspicion()
                self._ended(run)
        for run in self._runs():
            if run.state == "scheduled" and run.due_at is not None and run.due_at <= self.now:
                run.state, run.turn, run.due_at = "ready", run.due_at + 1, None
            for wait in run.waits.values():
                if wait.outcome is None and wait.due_at is not None and wait.due_at <= self.now:
                    wait.outcome = ("due", None)
            self._wake(run)
        for run in self._runs():
            if run.held == "quiescing" and run.session is None and not self._predecessor(run):
                run.held = None

    def _runs(self) -> Iterator[Run]:
        return iter(sorted(self.runs.values(), key=lambda run: run.seq))


def _order(run: Run) -> tuple[int, int, int]:
    """The order in which runs are claimed."""
    return -run.priority, run.turn, run.seq
