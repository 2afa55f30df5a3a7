"""Simulated clients: enqueue runs, and emit, send, cancel, retry and pause while workers execute them."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from greenlet import getcurrent, greenlet

from holdfast import KeyConflict, Run
from holdfast.errors import ConfigError, GraphError, RunFinished, RunNotFound, RunStarted
from holdfast.model.asks import ASK_PREFIX
from holdfast.model.clock import to_datetime
from holdfast.model.topics import parse_inbox
from tests.proof.asks import SimulatedAsks
from tests.proof.environment import Environment
from tests.proof.faulty_database import ProcessHooks
from tests.proof.simulated_threads import CallThread
from tests.proof.virtual_time import EPOCH_US, SECOND_US
from tests.proof.workload import EVENTS, PARCELS, leaves, tree
from tests.support.stream_programs import StreamReader

if TYPE_CHECKING:
    from tests.proof.simulation import Simulation

LIMIT_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("few", {"concurrency": 1}),
    ("few", {"concurrency": 4}),
    ("slow", {"rate": "1/s"}),
    ("slow", {"rate": None}),
    ("tokens", {"rate": "12/s"}),
    ("tokens", {"rate": "40/s", "concurrency": 1}),
)
OTHER_ARGUMENTS = ("job",)
"""Tasks without limits, whose arguments can be changed."""


class Clients:
    """The clients of one seed, in one process that never dies."""

    name = "client"

    def __init__(self, sim: Simulation, environment: Environment) -> None:
        self.sim = sim
        self.environment = environment
        self.app = environment.app
        self.rng = sim.random
        self.runs: list[Run[Any]] = []
        self.interfered: set[str] = set()
        self.first: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.unsent: defaultdict[str, set[int]] = defaultdict(set)
        self.doubtful: defaultdict[str, set[int]] = defaultdict(set)  # messages that a client that died may have sent
        self.wanted: dict[str, int] = {}
        self.asks = SimulatedAsks(sim)
        self.readers: defaultdict[str, StreamReader] = defaultdict(StreamReader)
        self._published = 0
        self._lost: set[greenlet] = set()
        self._open_calls = 0

    # Calls

    def prepare(self) -> None:
        """Schedule all client calls."""
        self.environment.client.hooks = self
        rng = self.rng
        for at in range(rng.randint(2, 5)):
            self._later(rng.choice((0.0, 0.1, 1.0)), f"enqueue{at}", lambda at=at: self._enqueue(at))
        if rng.random() < 0.2:
            self._later(rng.uniform(0, 3), "enqueue culprit", self._enqueue_culprit)
        if rng.random() < 0.4:
            for at in range(3):
                self._later(rng.uniform(0, 3), f"enqueue side{at}", lambda at=at: self._enqueue_side(at))
        for event in EVENTS:
            for copy in range(rng.choice((0, 1, 2))):
                self._later(rng.uniform(0, 4), f"emit {event}", lambda e=event, c=copy: self._emit(e, c))
        for act in (
            self._send,
            self._send,
            self._cancel,
            self._retry,
            self._pause,
            self._change_schedule,
            self._change_limit,
            self._change_budget,
            self._update,
            self._update,
            self._publish,
            self._publish,
            self._read_streams,
            self._read_streams,
        ):
            if rng.random() < 0.4:
                self._later(rng.uniform(0.2, 4), act.__name__, act)

    def _later(self, seconds: float, what: str, call: Any) -> None:
        self._open_calls += 1

        def counted_call() -> None:
            call()
            self._open_calls -= 1

        due = self.sim.clock.micros + int(seconds * SECOND_US)
        self.sim.threads.append(CallThread(f"client.{what}", counted_call, due))

    def _enqueue(self, at: int) -> None:
        rng, tasks = self.rng, self.environment.tasks
        kind = rng.random()
        if kind < 0.45:
            program = tree(rng, 2, [at * 100])
            end = rng.choice(("", "", "", "restart", "fatal", "retry"))
            task = tasks.plain if rng.random() < 0.3 else tasks.program
            run = task.options(priority=rng.choice((0, 0, 5))).enqueue(program, 0, end)
            twice = 2 if end == "restart" else 1
            self.wanted[str(run.id)] = twice * sum(leaf[0] == "message" for leaf in leaves(program))
        elif kind < 0.52:
            items = [(f"item{at}-{n}", rng.choice((0, 0, 1)), rng.choice((0, 1, 8))) for n in range(rng.randint(1, 5))]
            self.runs += tasks.batched.enqueue_many([(item,) for item in items])
            return
        elif kind < 0.85:
            task = rng.choice(tasks.jobs)
            options: dict[str, Any] = {"delay": rng.choice((0, 0, 0.5)), "tenant": rng.choice((None, None, "acme"))}
            if rng.random() < 0.15:
                options = {"debounce": "often", "delay": 0.5, "max_delay": rng.choice((None, 1))}
            elif rng.random() < 0.3:
                options["unique"] = "one"
                options["if_taken"] = rng.choice(("return", "queue", "replace", "cancel"))
            elif rng.random() < 0.3:
                options |= {"key": f"key{rng.randint(0, 1)}", "key_ttl": rng.choice((None, 1))}
            elif rng.random() < 0.2:
                options["start_by"] = 1
            try:
                name = options.get("key", f"job{at}")
                run = task.options(**options).enqueue(name, rng.choice((0, 0, 1, 2)), rng.choice((0, 1, 8)))
            except KeyConflict:
                return
        else:
            run = self.app.submit(tasks.graph(rng, f"g{at}"))
        if str(run.id) not in {str(known.id) for known in self.runs}:
            self.runs.append(run)

    def _enqueue_side(self, at: int) -> None:
        self.sim.count("side")
        task = self.environment.tasks.side.options(priority=self.rng.choice((-1, 0, 2)))
        self.runs.append(task.enqueue(f"side{at}", self.rng.choice((0, 1, 3))))

    def _enqueue_culprit(self) -> None:
        self.sim.count("culprit")
        self.runs.append(self.environment.tasks.culprit.enqueue("culprit", self.rng.choice((0, 1, 8))))

    def wanted_event(self, event: str) -> None:
        """Emit an event soon after a run starts to wait for it, so that both race."""
        if event not in self.first:
            self.first[event] = 0
            seconds = self.rng.choice((0.0, 0.0, 0.0005, 0.002, 0.01, 0.05, 2.0))
            self._later(seconds, f"emit {event}", lambda: self._emit(event, 0))

    def _emit(self, event: str, copy: int) -> None:
        self.note_emit(event, is_first=self.app.emit(event, f"{event} {copy}"))

    def note_emit(self, event: str, *, is_first: bool) -> None:
        self.first[event] += is_first
        if self.first[event] > 1:
            self.sim.fail(f"two emits of {event} were accepted as the first")

    def _send(self) -> None:
        if self.runs:
            self._send_to(self.rng.choice(self.runs))

    def _send_to(self, run: Run[Any]) -> None:
        row = self.sim.replica.run(str(run.id))
        if row is None or row["kind"] is not None:
            return
        number = self.sent[str(run.id)]
        self.sent[str(run.id)] += 1
        try:
            if number % 3 == 0:
                run.send("news", f"not the number {number}")  # set aside
            run.send("news", number)
        except RunFinished:
            self.unsent[str(run.id)].add(number)

    def wanted_ask(self, run: str, name: str) -> None:
        """Ask soon after a run starts to wait for an ask, so that both race."""
        if self.asks.is_new(run, name):
            seconds = self.rng.choice((0.0, 0.0, 0.0005, 0.002, 0.01, 0.05, 2.0))
            self._later(seconds, f"ask {name}", lambda: self._ask(run, name))

    def _ask(self, run: str, key: str) -> None:
        """Ask, and wait for the answers in another thread."""
        asked = self.asks.send(self.app._client, run, key)
        self.asks.waiting += 1

        def wait() -> None:
            self.asks.wait_for_answers(self.app._client, asked)
            self.asks.waiting -= 1

        self.sim.threads.append(CallThread(f"client.awaits {key}", wait, self.sim.clock.micros))

    def _publish(self) -> None:
        """Publish messages for functions; some have the wrong type."""
        for _ in range(self.rng.randint(1, 3)):
            self._publish_to(self.rng.choice(EVENTS))

    def _publish_to(self, to: str) -> None:
        self.app.publish(PARCELS, self._parcel(to))

    def _parcel(self, to: str) -> dict[str, Any]:
        self._published += 1
        return {"to": to, "n": self._published if self.rng.random() < 0.8 else "no number"}

    def _read_streams(self) -> None:
        """Read a page of what each run has written; connections are lost now and then."""
        for run in list(self.runs):
            id = str(run.id)
            self.readers[id].read(self.environment.client.store, id, self.rng)

    def _cancel(self) -> None:
        if self.runs:
            run = self.rng.choice(self.runs)
            self.interfered.add(str(run.id))
            run.cancel()

    def _retry(self) -> None:
        for run in self.runs:
            row = self.sim.replica.run(str(run.id))
            if row is not None and row["state"] in ("failed", "cancelled") and not row["error"].count('"undo"'):
                self.interfered.add(str(run.id))
                args = (f"again {run.id}", 0, 0) if run.task in OTHER_ARGUMENTS and self.rng.random() < 0.5 else None
                with suppress(RunFinished, RunStarted, KeyConflict, ConfigError):
                    run.retry(args=args)
                return

    def _pause(self) -> None:
        """Pause a queue, a task, a tenant or a run for a while."""
        kind = self.rng.choice(("queue", "task", "tenant", "run"))
        run = self.rng.choice(self.runs) if self.runs and kind == "run" else None
        if run is not None:
            with suppress(RunFinished):
                run.pause()
            self.sim.pause(self.rng.uniform(0.1, 2))
            run.resume()
            return
        name = {"queue": "default", "task": "program", "tenant": "acme"}.get(kind, "job")
        target = {"task" if kind == "run" else kind: name}
        self.app.pause(**target)
        self.sim.pause(self.rng.uniform(0.1, 2))
        self.app.resume(**target)

    def _update(self) -> None:
        """Change a run that may not have started."""
        if self.runs:
            run, rng = self.rng.choice(self.runs), self.rng
            changes: dict[str, Any] = {"priority": rng.choice((0, 5, 9)), "tags": ["changed"]}
            if rng.random() < 0.5:
                changes["run_at"] = to_datetime(self.sim.clock.database() + rng.choice((-1, 0, 1)) * SECOND_US)
            if run.task in OTHER_ARGUMENTS and rng.random() < 0.5:
                changes["args"] = (f"other {run.id}", rng.choice((0, 1)), 0)
            with suppress(RunStarted, RunFinished, GraphError):
                run.update(**changes)

    def _change_limit(self) -> None:
        """Set what a limit allows, perhaps less than it has admitted, and reset it."""
        limits, rng = self.app.limits, self.rng
        name, changes = rng.choice(LIMIT_CHANGES)
        limits.set(name, **changes, by="ada")
        self.sim.pause(rng.uniform(0.1, 2))
        limits.reset(name)

    def _change_budget(self) -> None:
        """Set what a budget allows, perhaps less than is spent, for all or for one run, and reset it."""
        budgets, rng = self.app.budgets, self.rng
        limit, run = rng.choice((0, 0.2, 1)), None if not self.runs or rng.random() < 0.5 else rng.choice(self.runs).id
        with suppress(RunNotFound):
            budgets.set("usd", limit, run=run, by="ada")
            self.sim.pause(rng.uniform(0.1, 2))
            budgets.reset("usd", run=run)

    def _change_schedule(self) -> None:
        """Create a schedule, change it while it fires, and delete it."""
        schedules, rng = self.app.schedules, self.rng
        overlap = rng.choice(("allow", "skip", "buffer_one", "cancel_running"))
        request = self.environment.tasks.child.request("slot")
        schedules.create("made", request, every=1, overlap=overlap, by="ada")
        self.sim.pause(rng.uniform(0.1, 2))
        schedules.update("made", every=rng.choice((1, 2)), catch_up="all", by="ada")
        self.sim.pause(rng.uniform(0.1, 2))
        schedules.pause("made", by="ada")
        schedules.resume("made", by="ada")
        schedules.backfill("made", to_datetime(EPOCH_US), to_datetime(EPOCH_US + 2 * SECOND_US), by="ada")
        self.sim.pause(rng.uniform(0.1, 2))
        schedules.delete("made")

    # Checks at the end

    def resolve_waits(self) -> None:
        """Emit all events and send all messages that runs may wait for."""
        for event in EVENTS:
            self._later(0.0, f"emit {event}", lambda e=event: self._emit(e, 9))
        self._later(0.0, "send missing", self._send_missing)
        self.sim.threads.append(CallThread("client.serve waits", self._serve_waits, self.sim.clock.micros))

    def _serve_waits(self) -> None:
        """Ask the functions that wait for asks, and publish for those that wait for messages, until the end."""
        for number in count():
            self.sim.pause(0.3)
            waits = self.sim.replica.rows["waits"].values()
            self._serve(number, [wait for wait in waits if wait["outcome"] is None])

    def _serve(self, number: int, waits: list[dict[str, Any]]) -> None:
        for run in sorted({wait["run"] for wait in waits if (wait["target"] or "").startswith(ASK_PREFIX)}):
            self._ask(run, f"last {number}")
        inboxes = [inbox for wait in waits if (inbox := parse_inbox(wait["target"])) is not None]
        for to in sorted({str(inbox.where["to"]) for inbox in inboxes}):
            self._publish_to(to)

    def _raise_budget(self) -> None:
        """Let all runs continue that wait for a budget."""
        for run in list(self.runs):
            with suppress(RunNotFound):
                self.app.budgets.reset("usd", run=run.id)
        self.app.budgets.set("usd", 1000, by="ada")

    def _send_missing(self) -> None:
        while self._open_calls > 1:
            self.sim.pause(0.2)
        for run in list(self.runs):
            id = str(run.id)
            unsent = self.unsent[id]
            for _ in range(self.wanted.get(id, 0) - self.sent[id] + len(unsent)):
                self._send_to(run)
        self._raise_budget()

    def finished(self) -> bool:
        if self._open_calls or self.asks.waiting:
            return False
        for row in self.sim.replica.runs():
            if (row["finished_at"] is None or row["session"] is not None) and not self._of_schedule(row):
                return False
        return True

    @staticmethod
    def _of_schedule(row: dict[str, Any]) -> bool:
        return row["args"] == '{"name":"slot"}'

    def unfinished(self) -> str:
        rows = [row for row in self.sim.replica.runs() if row["finished_at"] is None or row["session"] is not None]
        names = ("id", "state", "held", "session", "fence", "attempt", "kind", "node", "pending", "ending", "parked_on")
        shown = [{name: row[name] for name in names if row[name] is not None} for row in rows]
        return f"{self._open_calls} open calls, {self.asks.waiting} clients that wait for answers, {shown}"

    def check_ends(self) -> None:
        """Check the end of every run, the permits and the messages."""
        for run in self.runs:
            row = self.sim.replica.run(str(run.id))
            if row is None:
                self.sim.fail(f"run {run.id} is missing")
            elif str(run.id) not in self.interfered and row["kind"] is None:
                self._check_end(row)
        for id, row in self.sim.replica.rows["limits"].items():
            if row["used"]:
                self.sim.fail(f"limit {id} has {row['used']} permits in use after the end")
        self._check_messages()
        self.asks.check(interfered=self.interfered)
        for run in self.runs:
            row = self.sim.replica.run(str(run.id))
            if row is not None and row["state"] == "done":
                self._check_stream(row["id"])

    def _check_end(self, row: dict[str, Any]) -> None:
        is_late = row["start_by"] is not None and row["started_at"] is None
        if row["state"] == "cancelled" and (row["unique_name"] is not None or is_late):
            return  # replaced by a newer run of its name, or not started in time
        args = msgspec.json.decode(row["args"])
        if "items" in args:
            name, fails, _ = args["items"]
            args = {"name": name}
            if row["state"] == "done" and self.environment.tasks.observer.calls[f" {name}"] <= fails:
                self.sim.fail(f"run {row['id']} is done although its item of the batch failed")
        code = msgspec.json.decode(row["error"])["code"] if row["state"] == "failed" else None
        if args.get("name") == "culprit" and code != "crashed":
            self.sim.fail(f"run {row['id']}, which kills its workers, is {row['state']} ({row['error']})")
        if code == "crashed" and row["crashes"] > row["max_crashes"]:
            return
        program = "what" in args
        if program and args["end"] == "fatal":
            if row["state"] != "failed":
                self.sim.fail(f"run {row['id']} should have failed and is {row['state']}")
            self._check_undone(row)
        elif row["state"] != "done" and not (code == "timeout" or (not program and row["failures"] >= 4)):
            self.sim.fail(f"run {row['id']} is {row['state']} ({row['error']}) and should be done")
        elif row["state"] == "done" and not program and row["result"] != f'"{args["name"]}"':
            self.sim.fail(f"run {row['id']} is done with {row['result']}")

    def _check_undone(self, row: dict[str, Any]) -> None:
        rows = self.sim.replica.of_run("checkpoints", row["id"])
        undone = {int(each["value"]) for each in rows if each["kind"] == "undone"}
        for each in rows:
            if each["undo"] and each["kind"] == "step" and each["n"] not in undone:
                self.sim.fail(f"step {each['key']} of run {row['id']} was not compensated")

    def _check_messages(self) -> None:
        """Check that each message was stored once."""
        for run, sent in self.sent.items():
            rows = self.sim.replica.of_run("messages", run)
            got = sorted(int(row["payload"]) for row in rows if row["topic"] == "news" and row["payload"].isdecimal())
            wanted = {*range(sent)} - self.unsent[run]
            if len(got) != len({*got}) or not wanted - self.doubtful[run] <= {*got} <= wanted:
                self.sim.fail(f"run {run} was sent {sent} messages but for {self.unsent[run]}, and has {got}")

    def _check_stream(self, run: str) -> None:
        """Check that a reader that has followed the run has exactly what counts, in order."""
        reader = self.readers[run]
        while reader.read(self.environment.client.store, run, self.rng):
            pass
        got: defaultdict[str, list[str]] = defaultdict(list)
        for chunk in (msgspec.json.decode(each.data, type=str) for each in reader.kept):
            got[chunk.partition(" ")[0]].append(chunk)
        expected: defaultdict[str, list[str]] = defaultdict(list)
        for (_, name), chunks in sorted(self.environment.tasks.observer.written[run].items()):
            expected[name] += chunks
        if got != expected:
            self.sim.fail(f"a reader of run {run} has {dict(got)} instead of {dict(expected)}")

    def may_lose(self, worker: Any) -> bool:
        """Return whether a connection may be lost now.

        A client call loses at most one connection: a call that fails twice may raise, and then its effect is unknown.
        """
        if worker is not None:
            return True
        lost_before = getcurrent() in self._lost
        self._lost.add(getcurrent())
        return not lost_before

    # Hooks of their connections

    def before_transaction(self, what: str) -> None:
        self.sim.before_transaction(self.environment.client, None, what)

    def before_reply(self, what: str) -> None:
        self.sim.before_reply(self.environment.client, None, what)

    def committed(self, hooks: ProcessHooks) -> None:
        self.sim.committed("client")

    def rolled_back(self) -> None:
        self.sim.replica.rolled_back()

    def pause(self, seconds: float | None) -> None:
        self.sim.pause(seconds)

    def resume(self, stopped: greenlet) -> None:
        self.sim.resume(stopped)
