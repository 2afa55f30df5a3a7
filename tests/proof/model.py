"""A model of the store in plain Python: runs, leases, events, messages, topics, streams, graphs, limits and a budget.

It specifies the correct behavior without SQL and without regard to speed. Times are in microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SECOND = 1_000_000
LEASE = 10 * SECOND
DELAY = 10 * SECOND
MAX_CRASHES = 1
CAP = 2
BOUND = 5
"""What the runs of a tenant may spend, unless an operator has set another bound."""
SHORT_ABSENCE = 300 * SECOND
"""How long a subscription receives messages that no code declares any more."""
AGE_INTERVAL = SECOND
"""How long a run waits until its priority has grown by one, if it does."""
PREFERENCE = SECOND
"""How long runs are left to a live session with the labels that their task prefers."""
AGED = 2 * 10**18
"""Runs whose priority grows with their age come before all others of one priority."""
FINAL = ("done", "failed", "cancelled", "skipped")


@dataclass
class Wait:
    """A wait of a run; `outcome` is its kind and value once resolved."""

    kind: str
    target: str | None
    due_at: int | None
    since: int
    outcome: tuple[str, str | None] | None = None

    @property
    def has_pending_timeout(self) -> bool:
        """Return whether a retry starts its timeout anew."""
        return self.kind != "sleep" and self.due_at is not None and self.outcome in (None, ("due", None))


@dataclass
class Message:
    """A message of a run. `taken_by`: the wait that received it."""

    topic: str
    payload: str
    taken_by: str | None = None


class Chunk(NamedTuple):
    """A chunk that a run wrote in a step, or outside of steps. `serial`: which of the writes of the claim, or of the
    body, it is."""

    step: str | None
    step_try: int
    fence: int
    serial: int
    data: str


@dataclass
class Run:
    """One run."""

    id: str
    seq: int
    priority: int = 0
    turn: int = 0
    """When it became ready, minus `shift`; runs of one priority are claimed in this order."""
    shift: int = 0
    """What its priority is worth, if that grows with its age; then `priority` is 0."""
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
    """Consecutive deaths of its process, regardless of the cause."""
    isolation: int | None = None
    """Maximum number of runs in its process, including itself, while it is suspected of killing the process."""
    resumed: bool = False
    limited: bool = False
    unique: str | None = None
    debounce: str | None = None
    paused: bool = False
    args: str = "{}"
    metadata: dict[str, int] = field(default_factory=dict)
    created_at: int = 0
    ready_at: int = 0
    """When it was created, or became ready again."""
    started: bool = False
    start_by: int | None = None
    graph: str | None = None
    needs: tuple[str, ...] = ()
    steps: dict[int, str] = field(default_factory=dict)
    tries: list[str] = field(default_factory=list)
    """Failed tries of steps that are in its history."""
    waits: dict[str, Wait] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    listens: set[str] = field(default_factory=set)
    """The topics of the published messages that it receives."""
    chunks: list[Chunk] = field(default_factory=list)
    spent: int = 0

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def replace(self, args: str, due: int, now: int) -> None:
        """Give a run that hasn't started the arguments and the time of a newer call."""
        self.args = args
        self.fence += self.state == "ready"
        self.held = None if self.held == "full" else self.held
        if self.state == "scheduled" or due > now:
            self.state, self.due_at = "scheduled", due

    def clear_suspicion(self) -> None:
        """Reset after an orderly end or a retry."""
        self.deaths, self.isolation = 0, None

    def die(self, together: int, now: int, isolate: bool | None = None) -> None:
        """Apply the death of a process in which `together` runs were running.

        A run that died alone is charged, and fails after too many charges. A run that dies twice in a row is isolated;
        `isolate` overrides that: True isolates at once, False never.
        """
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
        self.ready_at = self.ready_at if fails else now
        self.session = None


class Key(NamedTuple):
    """An idempotency key: what it was used for, and until when."""

    digest: str
    run: str
    until: int | None


@dataclass(frozen=True)
class HeldClaim:
    """A claim as the worker remembers it; it may be out of date."""

    id: str
    session: str
    fence: int


class Model:
    """The expected state of the store."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.runs: dict[str, Run] = {}
        self.leases: dict[str, int] = {}
        self.preferred: set[str] = set()
        """The sessions with the labels that tasks prefer."""
        self.events: dict[str, str] = {}
        self.graphs: dict[str, str] = {}  # their states
        self.keys: dict[str, Key] = {}
        self.subscribed = True
        """Whether the code of the task declares that it subscribes."""
        self.orphaned_at: int | None = None
        self.publications: dict[str, tuple[str, int, int]] = {}  # topics, created runs, and functions
        self.published_keys: dict[str, tuple[str, str]] = {}  # payloads and messages
        self.spent = 0
        self.bound = BOUND
        self.seq = 0

    # Sessions

    def open(self, session: str, *, is_preferred: bool = False) -> None:
        self.leases[session] = self.now + LEASE
        self.preferred |= {session} if is_preferred else set()

    def alive(self, session: str | None) -> bool:
        return session is not None and self.leases.get(session, self.now) > self.now

    def renew(self, session: str) -> bool:
        if not self.alive(session):
            return False
        self.leases[session] = self.now + LEASE
        return True

    def recover(self) -> None:
        """Return runs of dead sessions, charging those that ran alone; release those that had ended."""
        returned = False
        lost = [run for run in self._runs() if run.session is not None and not self.alive(run.session)]
        together = Counter(run.session for run in lost)
        for run in lost:
            returned = returned or run.limited
            if run.state == "running":
                run.die(together[run.session], self.now)
                if run.final:
                    self._ended(run)
            else:
                self._clear_session(run)
        self.leases = {session: until for session, until in self.leases.items() if until > self.now}
        if returned:
            self._permits_returned()

    # Creation

    def add_with_key(self, id: str, key: str, digest: str, ttl: int | None) -> str:
        """Create a run unless one has the key; return `conflict` if that was made for another request."""
        known = self.keys.get(key)
        if known is not None and (known.until is None or known.until > self.now):
            return known.run if known.digest == digest else "conflict"
        self.keys[key] = Key(digest, id, None if ttl is None else self.now + ttl)
        self._new(id)
        return id

    def debounce(
        self, id: str, name: str, args: str, *, delay: int, max_delay: int | None, metadata: dict[str, int]
    ) -> str:
        """Create a run that collects calls until it starts, or give that run the arguments of this call."""
        for run in self._runs():
            if run.debounce == name and not run.started and not run.final:
                due = self.now + delay
                run.replace(args, due if max_delay is None else min(due, run.created_at + max_delay), self.now)
                run.metadata |= metadata
                return run.id
        run = self._new(id, debounce=name, args=args, metadata=metadata)
        run.state, run.due_at = "scheduled", self.now + delay
        return id

    def add(
        self, id: str, *, priority: int, delay: int, deadline: int | None, limited: bool, unique: str | None,
        if_taken: str = "return", args: str = "{}", start_in: int | None = None, aged: bool = False,
    ) -> str:  # fmt: skip
        """Create a run, or do what `if_taken` says if an unfinished one has its unique name."""
        priority, shift = (0, AGED + priority * AGE_INTERVAL) if aged else (priority, 0)
        if unique is not None and if_taken != "return":
            self._start_queued(unique)
        holder, waiting = self._holder(unique), self._holder(f"{unique}+")
        if holder is not None and if_taken == "cancel":
            self.cancel(holder.id)
            if waiting is not None:
                self.cancel(waiting.id)
        elif holder is not None and if_taken == "return":
            return holder.id
        elif holder is not None:
            other = holder if if_taken == "replace" and not holder.started else waiting
            if other is not None:
                if if_taken == "replace":
                    other.priority, other.turn, other.shift = priority, other.turn + other.shift - shift, shift
                    other.deadline = None if deadline is None else self.now + deadline
                    other.start_by = None if start_in is None else self.now + start_in
                    other.replace(args, self.now + delay, self.now)
                return other.id
            unique = f"{unique}+"
        run = self._new(id, priority=priority, limited=limited, unique=unique, args=args, shift=shift)
        run.held = "queued" if unique is not None and unique.endswith("+") else None
        run.deadline = None if deadline is None else self.now + deadline
        run.start_by = None if start_in is None else self.now + start_in
        if delay:
            run.state, run.due_at = "scheduled", self.now + delay
        if self._predecessor(run):
            run.held = "quiescing"
        return id

    def _holder(self, unique: str | None) -> Run | None:
        """Return the unfinished run that has a unique name."""
        found = (run for run in self._runs() if unique is not None and run.unique == unique and not run.final)
        return next(found, None)

    def _start_queued(self, unique: str) -> None:
        """Give the run that waits for a unique name the name, if it is free; it starts once its predecessor stops."""
        waiting = self._holder(f"{unique}+")
        if waiting is not None and self._holder(unique) is None:
            waiting.unique, waiting.held = unique, "quiescing"

    def _new(self, id: str, shift: int = 0, **more: object) -> Run:
        self.seq += 1
        run = Run(
            id, self.seq, turn=self.now - shift, shift=shift, created_at=self.now, ready_at=self.now, **more  # type: ignore[arg-type]
        )  # fmt: skip
        self.runs[id] = run
        return run

    def _predecessor(self, run: Run) -> bool:
        """Return whether a session still holds a finished run of the same unique name."""
        return run.unique is not None and any(
            other.unique == run.unique and other.final and other.session is not None for other in self._runs()
        )

    def submit(self, graph: str, nodes: dict[str, tuple[str, ...]]) -> None:
        """Create a graph of nodes with their dependencies, which precede them."""
        self.graphs[graph] = "waiting"
        self.seq += 1
        for id, needs in nodes.items():
            run = self._new(id, graph=graph, needs=needs)
            run.state = "blocked" if needs else "ready"

    # Claims and ends

    def claim(self, session: str, wanted: int, *, limited: bool) -> list[HeldClaim]:
        """Claim the first ready runs, by priority, then by the time at which they became ready."""
        if not self.alive(session):
            return []
        ready = [run for run in self._ready(limited=limited) if not run.paused]
        return self._begin(session, ready[:wanted])

    def claim_unpreferred(self, session: str, wanted: int) -> list[HeldClaim]:
        """Claim as a session without the labels that the task of the runs prefers.

        It leaves them to a live session with the labels, until one of the first hundred has been ready for a while.
        """
        since = min((run.ready_at for run in self._ready(limited=False)[:100]), default=self.now)
        if any(map(self.alive, self.preferred)) and since > self.now - PREFERENCE:
            return []
        return self.claim(session, wanted, limited=False)

    def _ready(self, *, limited: bool) -> list[Run]:
        """Return the runs in the ready index, in the order of claims."""
        ready = [run for run in self._runs() if run.state == "ready" and run.held is None and run.limited == limited]
        return sorted(ready, key=_order)

    def is_late(self, run: Run) -> bool:
        """Return whether a run should have started by now."""
        return run.start_by is not None and run.start_by <= self.now and not run.started and not run.final

    def claim_isolated(self, session: str, most: int) -> list[HeldClaim]:
        """Claim the first isolated run and others with the same bound, as many as may share a process."""
        isolated = [run for run in self._runs() if run.state == "ready" and run.held == "isolated" and not run.paused]
        isolated.sort(key=lambda run: run.deaths)  # the sort is stable: equal runs stay in order of arrival
        if not self.alive(session) or not isolated:
            return []
        bound = isolated[0].isolation
        assert bound is not None
        group = [run for run in isolated if run.isolation == bound]
        return sorted(self._begin(session, group[: min(most, bound)]), key=lambda held: _order(self.runs[held.id]))

    def _begin(self, session: str, runs: list[Run]) -> list[HeldClaim]:
        """Start the runs, and park those whose limit is reached."""
        claims = []
        for run in runs:
            if run.limited and self.used() >= CAP:
                run.held = "full"
                continue
            run.attempt += not run.resumed
            run.fence += 1
            run.started = True
            run.state, run.held, run.session, run.resumed, run.due_at = "running", None, session, False, None
            claims.append(HeldClaim(run.id, session, run.fence))
        return claims

    def used(self) -> int:
        """Return the number of permits in use; a run holds one while a session holds the run."""
        return sum(run.limited and run.session is not None for run in self._runs())

    def _permits_returned(self) -> None:
        """Unpark as many runs as there are free permits."""
        parked = sorted((run for run in self._runs() if run.held == "full"), key=_order)
        for run in parked[: max(CAP - self.used(), 0)]:
            run.held = None if run.isolation is None else "isolated"

    def has(self, held: HeldClaim) -> bool:
        """Return whether the session still holds the run under this fence, with a valid lease."""
        run = self.runs[held.id]
        ours = (run.session, run.fence, run.state) == (held.session, held.fence, "running")
        return ours and self.alive(held.session)

    def end(self, held: HeldClaim, kind: str, *, still_running: bool) -> bool:
        """End an attempt; return False if its claim is lost."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.state = {"done": "done", "failed": "failed", "retrying": "scheduled", "handed_back": "ready"}[kind]
        run.due_at = self.now + DELAY if kind == "retrying" else None
        run.ready_at = run.ready_at if run.final else self.now
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

    def release(self, held: HeldClaim) -> bool:
        """Release a run whose code outlived its end. This needs no valid lease, because it writes nothing else."""
        run = self.runs[held.id]
        if (run.session, run.fence) != (held.session, held.fence) or run.state == "running":
            return False
        self._clear_session(run)
        if run.limited:
            self._permits_returned()
        return True

    def crash(self, held: HeldClaim, *, together: int, isolate: bool | None) -> bool:
        """Record the death of an attempt that its live session reports."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.die(together, self.now, isolate)
        if run.final:
            self._ended(run)
        if run.limited:
            self._permits_returned()
        return True

    @staticmethod
    def _clear_session(run: Run) -> None:
        """Remove the session from a run."""
        run.session = None
        run.held = None if run.held == "quiescing" else run.held

    def _ended(self, run: Run) -> None:
        """Apply the end of a node: release or skip the next nodes and end the graph."""
        if run.graph is None:
            return
        nodes = [node for node in self._runs() if node.graph == run.graph]
        for node in nodes:  # in order of arrival: dependencies precede their nodes
            ends = [self.runs[needed].state for needed in node.needs]
            if node.state == "blocked" and all(end in FINAL for end in ends):
                node.ready_at = self.now
                node.state = "ready" if all(end == "done" for end in ends) else "skipped"
        if all(node.final for node in nodes) and self.graphs[run.graph] == "waiting":
            bad = any(node.state in ("failed", "cancelled") for node in nodes)
            self.graphs[run.graph] = "failed" if bad else "done"

    # Durable functions

    def record(self, held: HeldClaim, n: int, value: str) -> bool:
        """Write a checkpoint; repeating it is accepted."""
        if not self.has(held):
            return False
        self.runs[held.id].steps[n] = value
        return True

    def annotate(self, held: HeldClaim, n: int, metadata: dict[str, int]) -> bool:
        """Record metadata of the run; a repeat is accepted and changes nothing."""
        counts = self.record(held, n, "")
        if counts:
            self.runs[held.id].metadata |= metadata
        return counts

    def fail_try(self, held: HeldClaim, data: str) -> bool:
        """Record a failed try of a step; a repeat is accepted and changes nothing."""
        if not self.has(held):
            return False
        self.runs[held.id].tries.append(data)
        return True

    def wait(
        self, held: HeldClaim, kind: str, key: str, target: str | None, delay: int | None, n: int,
        *, listens: bool = False,
    ) -> str:  # fmt: skip
        """Register a wait and return `lost`, `open` or the outcome, which is recorded then.

        `listens`: from now on the run receives published messages under the topic `target`, also between its waits.
        """
        if not self.has(held):
            return "lost"
        run = self.runs[held.id]
        known = run.waits.get(key)
        if listens:
            run.listens.add(str(target))
        outcome = known.outcome if known is not None else self._find_outcome(run, kind, key, target)
        if outcome is not None:
            run.waits.pop(key, None)
            run.steps[n] = outcome[0]
            return outcome[0]
        if known is None:
            run.waits[key] = Wait(kind, target, None if delay is None else self.now + delay, self.now)
        return "open"

    def _find_outcome(self, run: Run, kind: str, key: str, target: str | None) -> tuple[str, str | None] | None:
        if kind == "event" and target in self.events:
            return "event", self.events[target]
        if kind == "message":
            for message in run.messages:
                if message.topic == target and message.taken_by is None:
                    message.taken_by = key
                    return "message", message.payload
        return None

    def suspend(self, held: HeldClaim) -> bool:
        """Suspend a run until a wait is resolved; it becomes ready at once if one already is."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.state, run.session, run.resumed, run.ready_at = "waiting", None, True, self.now
        run.clear_suspicion()
        self._wake(run)
        if run.limited:
            self._permits_returned()
        return True

    def _wake(self, run: Run) -> None:
        if run.state == "waiting" and any(wait.outcome for wait in run.waits.values()):
            run.state, run.ready_at, run.turn = "ready", self.now, self.now + 1 - run.shift  # new runs come first

    def spend(self, held: HeldClaim, n: int, amount: int) -> tuple[int, bool] | None:
        """Spend of the budget; return what was spent of it and whether that is too much, None if the claim is lost."""
        if not self.has(held):
            return None
        run = self.runs[held.id]
        run.steps[n] = "spend"
        run.spent += amount
        self.spent += amount
        return self.spent, self.spent > self.bound

    def wait_for_room(self, held: HeldClaim, key: str, n: int) -> str:
        """Wait until no more is spent than the budget allows; return `lost`, `open` or the outcome."""
        if not self.has(held):
            return "lost"
        run = self.runs[held.id]
        if self.spent > self.bound:
            run.waits[key] = Wait("budget", None, None, self.now)
            return "open"
        run.steps[n] = "budget"
        return "budget"

    # Actions of clients and operators

    def set_bound(self, bound: int) -> None:
        """Set what the budget allows. Runs that wait for room go on if there is some."""
        self.bound = bound
        for run in self._runs() if self.spent <= bound else ():
            for wait in run.waits.values():
                if wait.kind == "budget" and wait.outcome is None:
                    wait.outcome = ("event", None)
            self._wake(run)

    def emit(self, event: str, payload: str) -> bool:
        """Emit an event; only the first payload counts."""
        if event in self.events:
            return False
        self.events[event] = payload
        for run in self._runs():
            for wait in run.waits.values():
                if wait.kind == "event" and wait.target == event and wait.outcome is None:
                    wait.outcome = ("event", payload)
            self._wake(run)
        return True

    def clear_event(self, event: str) -> bool:
        """Forget that an event was emitted; all its waiters have received it."""
        return self.events.pop(event, None) is not None

    def send(self, id: str, payload: str) -> bool:
        """Send a message to the oldest open wait, or keep it; return False if the run has ended."""
        run = self.runs[id]
        if run.final:
            return False
        self._add_message(run, "news", payload)
        return True

    def _add_message(self, run: Run, topic: str, payload: str) -> None:
        run.messages.append(Message(topic, payload))
        open_waits = [
            (wait.since, key, wait)
            for key, wait in run.waits.items()
            if (wait.kind, wait.target, wait.outcome) == ("message", topic, None)
        ]
        for _, key, wait in sorted(open_waits, key=lambda each: each[:2])[:1]:
            first = next(each for each in run.messages if each.topic == topic and each.taken_by is None)
            first.taken_by = key
            wait.outcome = ("message", first.payload)
        self._wake(run)

    # Topics

    def deploy(self, subscribes: bool) -> None:
        """Reconcile the subscription with code that has it or hasn't."""
        if self.subscribed and not subscribes:
            self.orphaned_at = self.now
        self.subscribed = subscribes

    def publish(
        self, id: str, topic: str, payload: str, inbox: str, *, selected: bool, created: str, key: str | None = None
    ) -> tuple[str, int, int, bool] | str:
        """Publish a message to the functions that listen under `inbox`, and to the task that subscribes.

        `selected`: whether the subscription selects it; then it creates the run `created`. Return the message, how many
        runs and functions got it, and whether it is new.
        """
        if key is not None and key in self.published_keys:
            known, message = self.published_keys[key]
            return (message, *self.publications[message][1:], False) if known == payload else "conflict"
        if key is not None:
            self.published_keys[key] = (payload, id)
        absent = not self.subscribed and self.orphaned_at is not None and self.now - self.orphaned_at >= SHORT_ABSENCE
        runs = int(selected and not absent)
        if runs:
            self._new(created, args=f'{{"*":[{payload}]}}')
        functions = [run for run in self._runs() if inbox in run.listens and not run.final]
        for run in functions:
            self._add_message(run, inbox, payload)
        self.publications[id] = (topic, runs, len(functions))
        return id, runs, len(functions), True

    def publish_from(self, held: HeldClaim, n: int, id: str, *message: str, selected: bool, created: str) -> bool:
        """Publish from a durable function; a repeat is accepted and changes nothing."""
        if not self.record(held, n, ""):
            return False
        self.publish(id, *message, selected=selected, created=created)
        return True

    # Streams

    def write(self, held: HeldClaim, n: int | None, chunk: Chunk) -> bool:
        """Write a chunk; a repeat is accepted and changes nothing. One of the body is recorded."""
        if not self.has(held):
            return False
        run = self.runs[held.id]
        run.chunks.append(chunk)
        if n is not None:
            run.steps[n] = ""
        return True

    def transcript(self, id: str) -> list[str]:
        """Return what a reader of a run has in the end: the chunks that count, in order.

        A chunk of a step that was written in another claim or try than the step's chunk before replaces all of the
        step's. One of the body replaces those of the body from its serial on.
        """
        kept: list[Chunk] = []
        last: dict[str | None, Chunk] = {}
        for chunk in self.runs[id].chunks:
            before = last.get(chunk.step)
            if before is not None and chunk.step is None:
                kept = [each for each in kept if each.step is not None or each.serial < chunk.serial]
            elif before is not None and before[1:3] != chunk[1:3]:
                kept = [each for each in kept if each.step != chunk.step]
            kept.append(chunk)
            last[chunk.step] = chunk
        return [chunk.data for chunk in kept]

    def cancel(self, id: str) -> bool:
        """Cancel a run; a worker that executes it keeps its session until it releases the run."""
        run = self.runs[id]
        if run.final:
            return False
        run.state, run.held, run.due_at, run.resumed = "cancelled", None, None, False
        run.clear_suspicion()
        self._ended(run)
        return True

    def update(self, id: str, priority: int | None, args: str | None, run_at: int | None) -> None:
        """Change a run that hasn't started; with another priority it keeps its age."""
        run = self.runs[id]
        if priority is not None and run.shift:
            shift = AGED + priority * AGE_INTERVAL
            run.turn, run.shift = run.turn + run.shift - shift, shift
        elif priority is not None:
            run.priority = priority
        run.args = run.args if args is None else args
        if run_at is not None:
            run.state, run.due_at = "scheduled", run_at
            run.held = None if run.held == "full" else run.held

    def pause(self, id: str) -> bool | None:
        """Pause a run: it isn't claimed. Return None if it has ended, and False if it was paused."""
        run = self.runs[id]
        if run.final or run.paused:
            return None if run.final else False
        run.paused = True
        if run.state == "ready" and run.held in (None, "full"):
            run.held = "paused"
        return True

    def resume(self, id: str) -> bool:
        """Resume a run; return False if it wasn't paused."""
        run = self.runs[id]
        if run.final or not run.paused:
            return False
        run.paused = False
        if run.held == "paused":
            run.held = None if run.isolation is None else "isolated"
        return True

    def retry(self, id: str) -> str:
        """Retry a failed or cancelled run as soon as its worker has released it."""
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
        run.held = "queued" if run.unique is not None and run.unique.endswith("+") else run.held
        run.state, run.attempt, run.failures, run.crashes, run.resumed = "ready", 0, 0, 0, False
        run.turn, run.debounce, run.start_by, run.paused = self.now + 1 - run.shift, None, None, False
        run.ready_at = self.now
        run.clear_suspicion()
        run.deadline = None if run.deadline is None else self.now + DELAY
        run.waits = {key: wait for key, wait in run.waits.items() if not wait.has_pending_timeout}
        return "retried"

    # Timers

    def tick(self) -> None:
        """Apply deadlines, then make due runs and waits ready."""
        for run in self._runs():
            if run.deadline is not None and run.deadline <= self.now and not run.final:
                run.state, run.held, run.due_at, run.resumed = "failed", None, None, False
                run.clear_suspicion()
                self._ended(run)
        for run in self._runs():
            if self.is_late(run):
                self.cancel(run.id)
        for run in self._runs():
            if run.state == "scheduled" and run.due_at is not None and run.due_at <= self.now:
                run.state, run.turn, run.ready_at, run.due_at = "ready", run.due_at + 1 - run.shift, run.due_at, None
            for wait in run.waits.values():
                if wait.outcome is None and wait.due_at is not None and wait.due_at <= self.now:
                    wait.outcome = ("due", None)
            self._wake(run)
        self._release_held()

    def _release_held(self) -> None:
        """Let runs start that waited for another run of their unique name."""
        for run in self._runs():
            if run.held == "queued" and run.unique is not None:
                self._start_queued(run.unique.removesuffix("+"))
        for run in self._runs():
            if run.held == "quiescing" and run.session is None and not self._predecessor(run):
                run.held = None
            if run.paused and run.state == "ready" and run.held is None:
                run.held = "paused"

    def _runs(self) -> Iterator[Run]:
        return iter(sorted(self.runs.values(), key=lambda run: run.seq))


def _order(run: Run) -> tuple[int, int, int]:
    """Return the sort key by which runs are claimed."""
    return -run.priority, run.turn, run.seq
