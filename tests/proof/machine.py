"""A Hypothesis state machine that applies operations to the model and to stores and compares replies and state."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.errors import GraphError, KeyConflict, RunFinished
from holdfast.model.ids import new_id
from holdfast.store import AttemptEnd, NewRun
from holdfast.store.age_priority import AGE, Age
from holdfast.store.commands import (
    RUN_LOST,
    AnnotateCommand,
    FailedTryCommand,
    NewCheckpoint,
    WaitCommand,
    WaitOutcome,
    WaitRegistered,
)
from holdfast.store.enqueue import GRAPH_QUEUE
from holdfast.store.limits import counter_key
from holdfast.store.rows import NewGraph, NewNode
from holdfast.store.run_actions import RunChanges
from holdfast.store.waits import event_target
from holdfast.task.registry import Registry, register_task
from tests.proof.interaction_rules import PICK, InteractionRules
from tests.proof.model import AGE_INTERVAL, CAP, DELAY, LEASE, MAX_CRASHES, SECOND, HeldClaim, Model
from tests.support.store_harness import CANCELLED, CRASHED, DAY, OVERDUE, StoreHarness
from tests.support.stream_programs import StreamReader

LIMITS = f'["{counter_key("few", "").replace(chr(34), chr(92) + chr(34))}"]'
TABLES = (
    "runs", "workers", "checkpoints", "waits", "events", "messages", "history", "limits", "keys", "edges",
    "limit_settings", "metadata", "publications", "listeners", "subscriptions", "chunks", "budgets", "budget_totals",
)  # fmt: skip
SESSIONS = ("a", "b")
STATE_AFTER = {"done": "done", "failed": "failed", "retrying": "scheduled", "handed_back": "ready"}
PREFERRED = SESSIONS[1]
"""The sessions of this name have the label that a task prefers."""
LABEL = {"near": "yes"}
IF_TAKEN = st.sampled_from(("return", "queue", "replace", "cancel"))
PREFERRING = Registry()
"""The code of a worker whose only task prefers a label."""
register_task(lambda: None, enqueuer=None, registry=PREFERRING, name="task", prefers=LABEL)


class StoreMachine(InteractionRules):
    """Random operations. The stores of `harnesses` have to agree with the model, and so with each other."""

    @initialize()
    def begin(self) -> None:
        for harness in self.harnesses:
            for table in TABLES:
                harness.sql(f"delete from {{schema}}{table}")
            harness.clock.now = self.harnesses[0].clock.now
            harness.store.limits.declare([("few", CAP, None)])
            self.declare_subscription(harness, True)
            self.declare_budget(harness)
        self.model = Model(self.harnesses[0].clock.now)
        self.claims: list[HeldClaim] = []
        self.ended: set[HeldClaim] = set()
        self.sessions: dict[str, str] = {}
        self.readers: dict[tuple[str, str], StreamReader] = {}
        self.numbers = 0
        for name in SESSIONS:
            self.open(name)
            for limited in (False, True):
                self.add(0, 0, None, limited, None)
                self.claim(name, 1, limited, new=None)

    # Sessions and time

    def open(self, name: str) -> None:
        session = self.sessions[name] = f"{name}{self.number()}"
        self.model.open(session, is_preferred=name == PREFERRED)
        info = msgspec.json.encode({"labels": LABEL if name == PREFERRED else {}}).decode()
        for harness in self.harnesses:
            harness.store.sessions.open(session, name, LEASE, info)

    @rule(name=st.sampled_from(SESSIONS), after=st.sampled_from((None, SECOND, LEASE - 1, LEASE, LEASE + 1)))
    def heartbeats(self, name: str, after: int | None) -> None:
        """Renew a lease once, or again after some time."""
        self.heartbeat(name)
        if after is not None:
            self.time_passes(after, tick=False, recover=False)
            self.heartbeat(name)

    def heartbeat(self, name: str) -> None:
        """Renew a lease; if it has expired, open a new session."""
        session = self.sessions[name]
        alive = self.model.renew(session)
        self.compare(alive, lambda harness: harness.store.sessions.renew(session, LEASE))
        if not alive:
            self.open(name)

    @rule(
        micros=st.sampled_from((0, 1, SECOND, LEASE - SECOND, LEASE - 1, LEASE, LEASE + 1)),
        tick=st.booleans(),
        recover=st.booleans(),
    )
    def time_passes(self, micros: int, tick: bool, recover: bool) -> None:
        self.model.now += micros
        for harness in self.harnesses:
            harness.clock.now += micros
        if tick:
            self.run_timers()
        if recover:
            self.recover()

    def recover(self) -> None:
        self.model.recover()
        for harness in self.harnesses:
            harness.store.sessions.recover(harness.store.sessions.find_dead(), CRASHED)

    def run_timers(self) -> None:
        self.model.tick()
        for harness in self.harnesses:
            timers = harness.store.timers
            timers.fail_overdue(OVERDUE)
            timers.cancel_unstarted()
            timers.promote_due()
            timers.resolve_due_waits()
            timers.start_queued()
            timers.release_held()
            timers.wake_event_waiters()
            harness.store.pauses.hold_ready()

    # Creation

    @rule(
        priority=st.sampled_from((0, 0, 5)),
        delay=st.sampled_from((0, 0, 0, SECOND)),
        deadline=st.sampled_from((None, None, DELAY)),
        limited=st.booleans(),
        unique=st.sampled_from((None, None, "one")),
        if_taken=IF_TAKEN,
        start_in=st.sampled_from((None, None, SECOND)),
        aged=st.sampled_from((False, False, True)),
    )
    def add(
        self, priority: int, delay: int, deadline: int | None, limited: bool, unique: str | None,
        if_taken: str = "return", start_in: int | None = None, aged: bool = False,
    ) -> None:  # fmt: skip
        id, args = str(new_id()), str(self.number())
        task = "limited" if limited else "task"
        unique = None if unique is None else f"{unique} {task}"
        wanted = self.model.add(
            id, priority=priority, delay=delay, deadline=deadline, limited=limited, unique=unique, if_taken=if_taken,
            args=args, start_in=start_in, aged=aged,
        )  # fmt: skip
        age = Age.of(priority, AGE_INTERVAL)
        options = msgspec.json.encode({AGE: age}).decode() if aged else None

        def new() -> NewRun:
            return NewRun(
                id, "default", task, args, DAY, max_crashes=MAX_CRASHES, priority=0 if aged else priority,
                delay=delay or None, turn=-age.shift if aged else 0, options=options,
                deadline_in=deadline, unique=unique, if_taken=if_taken,  # type: ignore[arg-type]
                start_in=start_in, limits=LIMITS if limited else None,
            )  # fmt: skip

        self.compare([wanted], lambda harness: harness.store.enqueuer.enqueue([new()]))

    @rule(name=st.sampled_from(SESSIONS), after=st.sampled_from((SECOND, 5 * SECOND, 6 * SECOND)))
    def age(self, name: str, after: int) -> None:
        """Let a run of a low priority wait before one of a high priority comes."""
        self.add(0, 0, None, False, None, aged=True)
        self.time_passes(after, tick=False, recover=False)
        self.heartbeat(name)
        self.add(5, 0, None, False, None, aged=True)
        self.claim(name, 1, limited=False, new=None)

    @rule(name=st.sampled_from(SESSIONS), limited=st.booleans(), if_taken=IF_TAKEN, cancel=st.booleans())
    def take_name(self, name: str, limited: bool, if_taken: str, cancel: bool) -> None:
        """Let a run with a unique name start, enqueue another one, and perhaps cancel the first; then claim."""
        self.add(0, 0, None, limited, "one")
        self.claim(name, 4, limited, new=None)
        holder = self.model._holder(f"one {'limited' if limited else 'task'}")
        self.add(0, 0, None, limited, "one", if_taken)
        if cancel and holder is not None:
            self.cancel_one(holder.id)
        self.run_timers()
        self.claim(name, 4, limited, new=None)

    @rule(name=st.sampled_from(("x", "y")), max_delay=st.sampled_from((None, 2 * SECOND)), again=st.booleans())
    def debounce(self, name: str, max_delay: int | None, again: bool) -> None:
        """Enqueue a debounced run, or enqueue another one after it has started."""
        self.debounce_one(name, max_delay)
        if again:
            self.time_passes(2 * SECOND, tick=True, recover=False)
            self.claim("a", 4, limited=False, new=None)
            self.debounce_one(name, max_delay)

    def debounce_one(self, name: str, max_delay: int | None) -> None:
        id, number = str(new_id()), self.number()
        args, metadata = str(number), {"last": number, f"call {number % 2}": number}
        wanted = self.model.debounce(id, name, args, delay=SECOND, max_delay=max_delay, metadata=metadata)

        def new() -> NewRun:
            return NewRun(
                id, "default", "task", args, DAY, max_crashes=MAX_CRASHES, delay=SECOND, debounce=name,
                max_delay=max_delay, metadata=msgspec.json.encode(metadata).decode(),
            )  # fmt: skip

        self.compare([wanted], lambda harness: harness.store.enqueuer.enqueue([new()]))

    @rule(
        key=st.sampled_from(("k", "l")), digest=st.sampled_from(("same", "same", "other")),
        ttl=st.sampled_from((None, SECOND)), later=st.sampled_from((0, SECOND - 1, SECOND)),
    )  # fmt: skip
    def add_with_key(self, key: str, digest: str, ttl: int | None, later: int) -> None:
        """Enqueue a run with an idempotency key, and another one that may come after the key has expired."""
        for _ in range(2):
            id = str(new_id())
            wanted = self.model.add_with_key(id, key, digest, ttl)

            def add(harness: StoreHarness, id: str = id) -> str:
                new = NewRun(
                    id, "default", "task", "{}", DAY, max_crashes=MAX_CRASHES, key=key, digest=digest, key_ttl=ttl
                )
                try:
                    return harness.store.enqueuer.enqueue([new])[0]
                except KeyConflict:
                    return "conflict"

            self.compare(wanted, add)
            self.time_passes(later, tick=False, recover=False)

    @rule(shape=st.sampled_from(((), (0,), (0, 1), (0, 0, 2), (0, 1, 3))))
    def submit(self, shape: tuple[int, ...]) -> None:
        """Submit a graph. Each number of the shape is a bit mask of the earlier nodes that the next node needs."""
        graph = str(new_id())
        ids = [str(new_id()) for _ in range(len(shape) + 1)]
        needs = [()] + [tuple(ids[at] for at in range(index + 1) if bits >> at & 1) for index, bits in enumerate(shape)]
        self.model.submit(graph, dict(zip(ids, needs, strict=True)))
        for harness in self.harnesses:
            nodes = [
                NewNode(NewRun(id, "default", "task", "{}", DAY, max_crashes=MAX_CRASHES), id, needed)
                for id, needed in zip(ids, needs, strict=True)
            ]
            harness.store.graphs.submit(NewRun(graph, GRAPH_QUEUE, "graph", "{}", DAY), NewGraph(nodes))

    # Claims and ends

    @rule(
        name=st.sampled_from(SESSIONS), wanted=st.sampled_from((1, 2, 4)),  # numbers that both stores claim alike
        limited=st.booleans(),
        new=st.sampled_from((None, "any", "unique")), if_taken=IF_TAKEN,
    )  # fmt: skip
    def claim(self, name: str, wanted: int, limited: bool, new: str | None, if_taken: str = "return") -> None:
        if new is not None:
            self.add(0, 0, None, limited, "one" if new == "unique" else None, if_taken)
        self.cancel_late()
        session = self.sessions[name]
        claims = self.model.claim(session, wanted, limited=limited)
        self.claims += claims

        def claimed(harness: StoreHarness) -> list[tuple[str, int]]:
            lanes = [harness.lane("limited" if limited else "task")]
            claims_of_store = harness.store.claims
            found = (claims_of_store.claim_limited if limited else claims_of_store.claim)(session, lanes, wanted)
            harness.claims |= {claim.id: claim for claim in found}
            return [(claim.id, claim.fence) for claim in found]

        self.compare([(held.id, held.fence) for held in claims], claimed)

    def cancel_late(self) -> None:
        """Cancel runs that are late: how many runs a claim finds behind them differs."""
        if any(map(self.model.is_late, self.model.runs.values())):
            self.run_timers()

    @rule(wanted=st.sampled_from((1, 4)), drain=st.booleans(), after=st.sampled_from((0, SECOND - 1, SECOND)))
    def claim_unpreferred(self, wanted: int, drain: bool, after: int) -> None:
        """Let a worker without the labels that a task prefers claim its runs, some time after one was enqueued."""
        if drain:
            self.heartbeat(PREFERRED)
            self.claim(PREFERRED, 4, limited=False, new=None)
        self.add(0, 0, None, False, None)
        self.time_passes(after, tick=False, recover=False)
        self.cancel_late()
        session = self.sessions[SESSIONS[0]]
        claims = self.model.claim_unpreferred(session, wanted)
        self.claims += claims

        def claimed(harness: StoreHarness) -> list[tuple[str, int]]:
            lanes = KnownLanes(harness.store, PREFERRING, None)
            lanes.refresh()
            return [(claim.id, claim.fence) for claim in harness.store.claims.claim(session, lanes.ordinary, wanted)]

        self.compare([(held.id, held.fence) for held in claims], claimed)

    @rule(name=st.sampled_from(SESSIONS), most=st.sampled_from((1, 4)))
    def claim_isolated(self, name: str, most: int) -> None:
        session = self.sessions[name]
        claims = self.model.claim_isolated(session, most)
        self.claims += claims

        def claimed(harness: StoreHarness) -> list[tuple[str, int]]:
            lanes = [harness.lane("limited"), harness.lane("task")]
            return [(claim.id, claim.fence) for claim in harness.store.claims.claim_isolated(session, lanes, most)]

        self.compare([(held.id, held.fence) for held in claims], claimed)

    @rule(
        name=st.sampled_from(SESSIONS), wanted=st.sampled_from((1, 2, 4)), limited=st.booleans(), isolated=st.booleans()
    )
    def die(self, name: str, wanted: int, limited: bool, isolated: bool) -> None:
        """Let a session die with its claimed runs and recover them."""
        self.heartbeat(name)
        self.claim(name, wanted, limited, new=None)
        if isolated:
            self.claim_isolated(name, wanted)
        self.time_passes(LEASE, tick=False, recover=True)
        for other in SESSIONS:
            self.heartbeat(other)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, together=st.sampled_from((1, 2, 9)), isolate=st.sampled_from((None, False, True)))
    def crash(self, pick: int, together: int, isolate: bool | None) -> None:
        """Let a live session report that the process of an attempt died."""
        held = self.held(pick)
        counts = self.model.crash(held, together=together, isolate=isolate)
        before = held in self.ended and self.model.alive(held.session)
        end = AttemptEnd(
            held.id, 0, held.fence, "crashed", "ready", error="{}", runs_in_process=together, isolate=isolate
        )
        self.compare(
            counts or before, lambda harness: end.claim in harness.store.attempts.crash(held.session, [end])[0]
        )
        self.ended |= {held} if counts else set()

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, kind=st.sampled_from(tuple(STATE_AFTER)), still_running=st.booleans(), in_tree=st.booleans())
    def end(self, pick: int, kind: str, still_running: bool, in_tree: bool) -> None:
        self.end_one(self.held(pick), kind, still_running, in_tree)

    def end_one(self, held: HeldClaim, kind: str, still_running: bool, in_tree: bool) -> None:
        run = self.model.runs[held.id]
        in_tree = in_tree or run.graph is not None or bool(run.waits or run.steps)
        counts = self.model.end(held, kind, still_running=still_running)
        before = held in self.ended  # an end is accepted again, as after a lost reply
        ended = AttemptEnd(
            held.id, 0, held.fence, kind, STATE_AFTER[kind], failed=int(kind in ("failed", "retrying")),  # type: ignore[arg-type]
            error="{}" if kind in ("failed", "retrying") else None, result="1" if kind == "done" else None,
            delay=DELAY if kind == "retrying" else None, still_running=int(still_running), in_tree=in_tree,
            limits=LIMITS if run.limited else None,
        )  # fmt: skip

        def write(harness: StoreHarness) -> bool:
            row = harness.row(held.id)
            parents = () if row["parent"] is None else (str(row["parent"]),)
            end = replace(ended, seq=row["seq"], parents=parents)
            return end.claim in harness.store.attempts.end(held.session, [end], claims=harness.claims)

        self.compare(counts or before, write)
        self.ended |= {held} if counts else set()

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, write=st.sampled_from(("record", "end", "release")), in_tree=st.booleans())
    def write_late(self, pick: int, write: str, in_tree: bool) -> None:
        """Let a session lose a run and claim it again, then write for the old attempt."""
        held = self.held(pick)
        if self.model.has(held):
            self.cancel_one(held.id)
            self.retry_one(held.id)
            self.release_one(held)
            self.claim(held.session[0], 4, self.model.runs[held.id].limited, new=None)
        if write == "record":
            self.record_one(held, repeat=False)
        elif write == "end":
            self.end_one(held, "failed", False, in_tree)
        else:
            self.release_one(held)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        self.release_one(self.held(pick))

    def release_one(self, held: HeldClaim) -> None:
        counts = self.model.release(held)
        self.compare(int(counts), lambda harness: harness.store.attempts.release(held.session, [(held.id, held.fence)]))

    # Durable functions

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, repeat=st.booleans())
    def record(self, pick: int, repeat: bool) -> None:
        self.record_one(self.held(pick), repeat)

    def record_one(self, held: HeldClaim, repeat: bool) -> None:
        n = self.number()
        counts = self.model.record(held, n, f'"{n}"')

        def write(harness: StoreHarness) -> bool:
            record = NewCheckpoint(*self.of(held, harness), n, f"step {n}", "step", f'"{n}"')
            if repeat:  # as after a lost reply
                harness.store.journal.record(held.session, [record])
            return harness.store.journal.record(held.session, [record]) != [RUN_LOST]

        self.compare(counts, write)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, repeat=st.booleans())
    def fail_try(self, pick: int, repeat: bool) -> None:
        held, data = self.held(pick), f'{{"try": {self.number()}}}'
        counts = self.model.fail_try(held, data)

        def write(harness: StoreHarness) -> bool:
            command = FailedTryCommand(self.of(held, harness), "step", data)
            if repeat:  # as after a lost reply
                harness.write(held.session, command)
            return harness.write(held.session, command) != [RUN_LOST]

        self.compare(counts, write)

    @precondition(lambda self: self.claims)
    @rule(
        pick=PICK, key=st.sampled_from(("x", "y")),
        what=st.sampled_from((("sleep", None), ("event", "dawn"), ("event", None), ("message", "news"))),
        delay=st.sampled_from((None, SECOND)), suspend=st.booleans(),
    )  # fmt: skip
    def wait(self, pick: int, key: str, what: tuple[str, str | None], delay: int | None, suspend: bool) -> None:
        held, (kind, name), n = self.held(pick), what, self.number()
        delay = SECOND if kind == "sleep" else delay
        if kind == "event" and name is None:
            name = f"event {n}"  # an event that is never emitted
        key = f"{kind} {name} {key}"
        wanted = self.model.wait(held, kind, key, name, delay, n)
        target = event_target(None, str(name)) if kind == "event" else name

        def register(harness: StoreHarness) -> str:
            command = WaitCommand(self.of(held, harness), key, kind, target, None, name, 0, delay, n=n)  # type: ignore[arg-type]
            (reply,) = harness.write(held.session, command)
            if isinstance(reply, WaitOutcome):
                return reply.kind
            return "open" if isinstance(reply, WaitRegistered) else "lost"

        self.compare(wanted, register)
        if suspend:
            self.suspend(pick)

    @precondition(lambda self: self.claims)
    @rule(pick=PICK)
    def suspend(self, pick: int) -> None:
        held = self.held(pick)
        if not self.model.runs[held.id].waits:
            return
        counts = self.model.suspend(held)
        end = AttemptEnd(held.id, 0, held.fence, "waiting", "waiting", in_tree=True)
        before = held in self.ended
        self.compare(counts or before, lambda harness: end.claim in harness.store.attempts.end(held.session, [end]))
        self.ended |= {held} if counts else set()

    # Actions of clients and operators

    @precondition(lambda self: self.model.runs)
    @rule(
        pick=PICK, priority=st.sampled_from((None, -3, 0, 5)), args=st.booleans(),
        later=st.sampled_from((None, None, 0, SECOND)),
    )  # fmt: skip
    def update(self, pick: int, priority: int | None, args: bool, later: int | None) -> None:
        """Change the priority, the arguments and the time of a run that hasn't started."""
        new = [run.id for run in self.model.runs.values() if not run.fence and not run.final]
        if new:
            id = new[pick % len(new)]
            run = self.model.runs[id]
            given = str(self.number()) if args and not run.limited and run.state != "blocked" else None
            run_at = None if later is None or run.state == "blocked" else self.model.now + later
            changes = RunChanges(priority, run_at, given)
            if changes != RunChanges():
                self.model.update(id, priority, given, run_at)
                for harness in self.harnesses:
                    harness.store.actions.update(id, changes)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK, name=st.sampled_from(SESSIONS), tick=st.booleans(), resume=st.booleans())
    def pause(self, pick: int, name: str, tick: bool, resume: bool) -> None:
        """Pause a run, preferably one that waits for a limit, claim what remains, and perhaps resume it."""
        parked = [run.id for run in self.model.runs.values() if run.held == "full"]
        id = parked[0] if parked else self.run(pick)

        def paused(harness: StoreHarness) -> bool | None:
            try:
                return harness.store.pauses.pause_run(id, None)
            except RunFinished:
                return None

        self.compare(self.model.pause(id), paused)
        if tick:
            self.run_timers()
        self.claim(name, 2, self.model.runs[id].limited, new=None)
        if resume:
            self.resume_one(id)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        self.resume_one(self.run(pick))

    def resume_one(self, id: str) -> None:
        self.compare(self.model.resume(id), lambda harness: harness.store.pauses.resume_run(id, None))

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, repeat=st.booleans())
    def annotate(self, pick: int, repeat: bool) -> None:
        """Set metadata of a run from its code."""
        held, n = self.held(pick), self.number()
        metadata = {"last": n, f"noted {n % 2}": n}
        counts = self.model.annotate(held, n, metadata)

        def write(harness: StoreHarness) -> bool:
            text = msgspec.json.encode(metadata).decode()
            command = AnnotateCommand(self.of(held, harness), n, f"annotate {n}", text)
            if repeat:  # as after a lost reply
                harness.write(held.session, command)
            return harness.write(held.session, command) != [RUN_LOST]

        self.compare(counts, write)

    @rule(pick=PICK)
    def emit(self, pick: int) -> None:
        """Emit an event, preferably one that a run waits for."""
        waits = [wait for run in self.model.runs.values() for wait in run.waits.values() if wait.kind == "event"]
        names = [*(str(wait.target) for wait in waits[-3:]), "dawn"]
        event, payload = names[pick % len(names)], str(self.number())
        first = self.model.emit(event, payload)
        self.compare(first, lambda harness: harness.store.events.emit(None, event, payload))

    @precondition(lambda self: self.model.events)
    @rule(pick=PICK)
    def clear_event(self, pick: int) -> None:
        names = [*self.model.events, "never emitted"]
        event = names[pick % len(names)]
        cleared = self.model.clear_event(event)
        self.compare(cleared, lambda harness: harness.store.events.clear(None, event))

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK)
    def send(self, pick: int) -> None:
        id, payload = self.run(pick), str(self.number())
        sent = self.model.send(id, payload)

        def send(harness: StoreHarness) -> bool:
            try:
                harness.store.actions.send(id, "news", payload)
            except RunFinished:
                return False
            return True

        self.compare(sent, send)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK, then=st.sampled_from((None, "retry", "successor")), if_taken=IF_TAKEN)
    def cancel(self, pick: int, then: str | None, if_taken: str) -> None:
        id = self.run(pick)
        self.cancel_one(id)
        if then == "retry":
            self.retry_one(id)
        elif then == "successor" and self.model.runs[id].unique is not None:
            self.add(0, 0, None, self.model.runs[id].limited, "one", if_taken)

    def cancel_one(self, id: str) -> None:
        ended = self.model.cancel(id)
        self.compare(ended, lambda harness: harness.store.actions.cancel(id, CANCELLED))

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICK)
    def retry(self, pick: int) -> None:
        self.retry_one(self.run(pick))

    def retry_one(self, id: str) -> None:
        wanted = self.model.retry(id)

        def retry(harness: StoreHarness) -> str:
            try:
                return "retried" if harness.store.actions.retry(id) else "unfinished"
            except KeyConflict:
                return "taken"
            except (RunFinished, GraphError):
                return "refused"

        self.compare(wanted, retry)

    # Comparison

    @invariant()
    def stores_match_the_model(self) -> None:
        model = getattr(self, "model", None)
        if model is None:
            return
        wanted = self.model_state(model)
        for harness in self.harnesses:
            kept = self.store_state(harness)
            for what, rows in wanted.items():
                assert kept[what] == rows, f"{harness.store.database.dialect.name}: {what}"

    @staticmethod
    def model_state(model: Model) -> dict[str, Any]:
        runs = model.runs.values()
        return {
            "runs": {
                run.id: (
                    run.state, run.held, run.session, run.fence, run.attempt, run.failures, run.crashes,
                    run.deaths, run.isolation, None if run.final else run.due_at, run.args,
                    run.paused and not run.final,
                )
                for run in runs
            },
            "graphs": model.graphs,
            "checkpoints": {run.id: sorted(run.steps) for run in runs if run.steps},
            "tries": {run.id: run.tries for run in runs if run.tries},
            "metadata": {run.id: run.metadata for run in runs if run.metadata},
            "waits": {
                (run.id, key): (wait.due_at, *(wait.outcome or (None, None)))
                for run in runs for key, wait in run.waits.items()
            },
            "events": model.events,
            "messages": {
                run.id: [
                    (each.topic, each.payload, None if each.taken_by is None else f"0:{each.taken_by}")
                    for each in run.messages
                ]
                for run in runs if run.messages
            },
            "listeners": {(run.id, inbox) for run in runs if not run.final for inbox in run.listens},
            "publications": model.publications,
            "chunks": {
                run.id: [(each.step, each.step_try, each.data) for each in run.chunks] for run in runs if run.chunks
            },
            "used": model.used(),
            "spent": {run.id: run.spent for run in runs if run.spent} | ({"": model.spent} if model.spent else {}),
        }  # fmt: skip

    @staticmethod
    def store_state(harness: StoreHarness) -> dict[str, Any]:
        runs = harness.sql(
            "select id, kind, state, held, session, fence, attempt, failures, crashes,"
            " deaths, isolation, case when finished_at is null then due_at end, args,"
            " paused_at is not null and finished_at is null from {schema}runs"
        )
        steps: dict[str, list[int]] = {}
        for run, n in harness.sql("select run, n from {schema}checkpoints order by run, n"):
            steps.setdefault(str(run), []).append(n)
        tries: dict[str, list[str]] = {}
        history = "select run, data from {schema}history where kind = 'step_retrying' order by run, n"
        for run, data in harness.sql(history):
            tries.setdefault(str(run), []).append(data)
        messages: dict[str, list[Any]] = {}
        for run, *rest in harness.sql("select run, topic, payload, taken_by from {schema}messages order by run, n"):
            messages.setdefault(str(run), []).append(tuple(rest))
        chunks: dict[str, list[Any]] = {}
        for run, *rest in harness.sql(
            "select run, step, coalesce(step_try, 1), data from {schema}chunks order by run, n"
        ):
            chunks.setdefault(str(run), []).append(tuple(rest))
        listeners = harness.sql(
            "select l.run, l.inbox from {schema}listeners l join {schema}runs r on r.id = l.run"
            " where r.finished_at is null"
        )
        publications = harness.sql("select id, topic, runs, functions from {schema}publications")
        metadata: dict[str, dict[str, int]] = {}
        for run, name, value in harness.sql("select run, name, value from {schema}metadata"):
            metadata.setdefault(str(run), {})[name] = int(value)
        waits = harness.sql("select run, key, due_at, outcome, value from {schema}waits")
        used = harness.sql("select coalesce(sum(used), 0) from {schema}limits")
        return {
            "runs": {str(id): tuple(row) for id, kind, *row in runs if kind is None},
            "graphs": {str(id): row[0] for id, kind, *row in runs if kind == "graph"},
            "checkpoints": steps,
            "tries": tries,
            "metadata": metadata,
            "waits": {(str(run), key): tuple(row) for run, key, *row in waits},
            "events": dict(harness.sql("select name, payload from {schema}events where emitted_at is not null")),
            "messages": messages,
            "listeners": {(str(run), inbox) for run, inbox in listeners},
            "publications": {str(id): tuple(rest) for id, *rest in publications},
            "chunks": chunks,
            "used": int(used[0][0]),
            "spent": dict(harness.sql("select key, total from {schema}budget_totals where total > 0")),
        }
