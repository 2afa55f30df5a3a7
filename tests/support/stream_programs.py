"""Random runs that write streams, crash, retry, start over and are read by readers that reconnect.

A program is a sequence of operations of a durable function: writes of its body, and steps whose tries write chunks, two
of them at the same time now and then. It is carried out on a store as an engine would, through crashes of its worker,
lost replies, retries by an operator with and without compensations, restarts and new arguments. What readers must have
in the end follows from the program alone: what the body wrote, and what the last call of each step wrote.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.model.run import Chunk
from holdfast.store import Claim
from holdfast.store.commands import MarkUndosCommand, WriteCommand
from tests.support.store_harness import StoreHarness, record_of, token_of

Source = str | None


@dataclass
class Step:
    """A step of the program, or, without a key, a write of its body."""

    key: Source
    tries: int = 1
    pieces: int = 1


@dataclass
class StreamReader:
    """A client that applies what it is sent, and loses its connection at any point."""

    after: int = 0
    kept: list[Chunk] = field(default_factory=list)

    def read(self, store: Any, run: str, random: random.Random) -> bool:
        """Read a page, or only its beginning; return whether there was anything."""
        page = store.queries.chunks(run, None, self.after, random.choice((1, 40, 10_000)))
        cut = random.randrange(len(page) + 1) if page and random.random() < 0.3 else len(page)
        for chunk in page[:cut]:
            self._reset(chunk)
            self.kept.append(chunk)
            self.after = chunk.seq
        if cut < len(page) and random.random() < 0.5:
            self._reset(page[cut])  # cut off between the reset and its chunk
        return bool(page)

    def _reset(self, chunk: Chunk) -> None:
        if chunk.reset is not None:
            self.kept = [each for each in self.kept if not chunk.reset.drops(each)]

    def transcript(self) -> dict[Source, list[str]]:
        """Return what it has, by the step that wrote it, None for the body."""
        found = defaultdict[Source, list[str]](list)
        for chunk in self.kept:
            found[chunk.step].append(chunk.data)
        return dict(found)


class Crash(Exception):
    """The worker dies, or the operator interferes."""


class StreamProgram:
    """One run, carried out."""

    def __init__(self, harness: StoreHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.readers = [StreamReader() for _ in range(3)]
        self.expected = defaultdict[Source, list[str]](list)
        self._calls = 0
        self._session = f"w{seed}-0"
        self._sessions = 0
        self.run = ""

    def carry_out(self) -> None:
        """Carry out the program to its end, and let all readers read everything."""
        harness = self.harness
        harness.session(self._session)
        claim = harness.running(self._session, max_crashes=1000)
        self.run = claim.id
        for left in reversed(range(self.random.choice((1, 1, 2, 3)))):  # generations
            self._steps = self._make_steps()
            while True:
                self._expected_now = defaultdict[Source, list[str]](list)
                try:
                    self._attempt(claim)
                    break
                except Crash:
                    claim = self._interrupted(claim)
            for source, pieces in self._expected_now.items():
                self.expected[source] += pieces
            if left:
                harness.end(self._session, claim, "restarted", in_tree=True, args="[[],{}]")
                (claim,) = harness.claim(self._session)
        harness.end(self._session, claim, in_tree=True)
        self.readers.append(StreamReader())
        for reader in self.readers:
            while reader.read(harness.store, self.run, self.random):
                pass

    def _make_steps(self) -> list[Step]:
        names = [f"s{n}-1:0123456789abcdef#1" for n in range(4)]
        self.random.shuffle(names)
        made: list[Step] = []
        for name in names[: self.random.randrange(1, 5)]:
            made += [Step(None) for _ in range(self.random.randrange(3))]
            made.append(Step(name, self.random.choice((1, 1, 2, 3)), self.random.randrange(1, 4)))
        return [*made, Step(None)]

    # An attempt

    def _attempt(self, claim: Claim) -> None:
        """Replay what is recorded, and carry out the rest. Steps that follow each other may run at the same time."""
        self._serial = 0
        generation = claim.generation
        rows = self.harness.sql(
            "select key, n, value from {schema}checkpoints where run = cast(:id as {uuid}) and generation = "
            f"{generation} and kind in ('write', 'step')", id=self.run,
        )  # fmt: skip
        recorded = {key: (n, value) for key, n, value in rows}
        self._n = 1 + max((n for n, _ in recorded.values()), default=0) + self.harness.rows("checkpoints")
        written, at = 0, 0
        while at < len(self._steps):
            step = self._steps[at]
            at += 1
            if step.key is None:
                written += 1
                self._write_body(claim, written, recorded)
                continue
            together = [step]
            if at < len(self._steps) and self._steps[at].key is not None and self.random.random() < 0.7:
                together.append(self._steps[at])
                at += 1
            self._run_steps(claim, together, recorded)

    def _write_body(self, claim: Claim, number: int, recorded: dict[str, Any]) -> None:
        key, piece = f"$write#{number}", f"g{claim.generation} body {number}"
        if key not in recorded:
            self._write(WriteCommand(token_of(claim), self._next_n(), key, claim.attempt, piece, serial=number))
        self._expected_now[None].append(piece)

    def _run_steps(self, claim: Claim, steps: list[Step], recorded: dict[str, Any]) -> None:
        running = []
        for step in steps:
            assert step.key is not None
            if step.key in recorded:
                self._expected_now[step.key] += recorded[step.key][1].split(",")
            else:
                running.append(self._run_step(claim, step))
        while running:
            chosen = self.random.choice(running)
            if next(chosen, None) is None:
                running.remove(chosen)

    def _run_step(self, claim: Claim, step: Step) -> Iterator[bool]:
        """Call a step; each of its tries but the last fails somewhere in the middle."""
        assert step.key is not None
        pieces: list[str] = []
        for number in range(1, step.tries + 1):
            self._calls += 1
            count = step.pieces if number == step.tries else self.random.randrange(step.pieces + 1)
            pieces = [f"g{claim.generation} {step.key[:2]} call {self._calls} piece {n}" for n in range(count)]
            for piece in pieces:
                self._serial += 1
                token = token_of(claim)
                self._write(WriteCommand(token, None, step.key, claim.attempt, piece, step.key, number, self._serial))
                yield True
        self._interfere()
        record = record_of(claim, self._next_n(), step.key, value=",".join(pieces), undo=1)
        self.harness.store.journal.record(self._session, [record])
        self._expected_now[step.key] += pieces

    def _next_n(self) -> int:
        self._n += 1
        return self._n

    def _write(self, command: WriteCommand) -> None:
        self._interfere()
        self.harness.write(self._session, command)
        if self.random.random() < 0.1:  # the reply got lost
            self.harness.write(self._session, command)
        if self.random.random() < 0.3:
            self.random.choice(self.readers).read(self.harness.store, self.run, self.random)

    def _interfere(self) -> None:
        if self.random.random() < 0.06:
            raise Crash

    # What interferes

    def _interrupted(self, claim: Claim) -> Claim:
        what = self.random.choice((self._die, self._die, self._fail, self._undo, self._start_over))
        return what(claim)

    def _die(self, claim: Claim) -> Claim:
        self._sessions += 1
        dead, self._session = self._session, f"{self._session.partition('-')[0]}-{self._sessions}"
        self.harness.session(self._session, lease=3600)
        self.harness.sql(f"update {{schema}}workers set lease_until = 1 where session = '{dead}'")
        self.harness.recover(dead)
        return self._claim()

    def _fail(self, claim: Claim) -> Claim:
        self.harness.end(self._session, claim, "failed", in_tree=True)
        self.harness.store.actions.retry(self.run)
        return self._claim()

    def _undo(self, claim: Claim) -> Claim:
        """Fail, undo some of the last steps, and retry: everything from the first of them on runs again."""
        harness = self.harness
        harness.write(self._session, MarkUndosCommand(token_of(claim)))
        harness.end(self._session, claim, "undoing", in_tree=True)
        undoing = self._claim()
        steps = harness.sql(
            "select n, key from {schema}checkpoints where run = cast(:id as {uuid}) and kind = 'step' and generation = "
            f"{claim.generation} order by n desc", id=self.run,
        )  # fmt: skip
        n = 10_000 + harness.rows("checkpoints")
        for number, key in steps[: self.random.randrange(len(steps) + 1)]:
            n += 1
            harness.record(self._session, undoing, n, f"$undone:{key}", kind="undone", value=str(number))
        harness.end(self._session, undoing, "undone", state="failed", in_tree=True)
        harness.store.actions.retry(self.run)
        return self._claim()

    def _start_over(self, claim: Claim) -> Claim:
        """Fail, and retry with other arguments: nothing that was written before counts."""
        self.harness.end(self._session, claim, "failed", in_tree=True)
        assert self.harness.store.actions.retry(self.run, args="[[],{}]")
        self.expected.clear()
        return self._claim()

    def _claim(self) -> Claim:
        harness = self.harness
        (claim,) = harness.claim(self._session) or harness.claim_isolated(self._session)
        return claim


def check_program(harness: StoreHarness, seed: int) -> None:
    """Carry out a random program and check what all readers have in the end."""
    program = StreamProgram(harness, seed)
    program.carry_out()
    for reader in program.readers:
        assert reader.transcript() == dict(program.expected), f"seed {seed}"
        assert [chunk.seq for chunk in reader.kept] == sorted({chunk.seq for chunk in reader.kept})
