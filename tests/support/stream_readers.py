"""Many readers of streams in one process: server-sent events over plain sockets, with reconnects at random."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from urllib.parse import urlsplit

READ_TIMEOUT_S = 120.0


class SocketReader:
    """A browser: applies events, loses its connection now and then, and reconnects with the last id that it has."""

    def __init__(self, base: str, run: str, token: str, client: str, random: random.Random) -> None:
        parts = urlsplit(base)
        self._host, self._port = str(parts.hostname), parts.port
        self._path = f"/api/v1/runs/{run}/stream"
        self._headers = f"authorization: Bearer {token}\r\nx-forwarded-for: {client}\r\n"
        self._random = random
        self.last_id = ""
        self.chunks: dict[int, dict[str, Any]] = {}
        self.end: dict[str, Any] | None = None
        self.connections = 0
        self.resets = 0
        self.received = 0
        self.problems: list[str] = []
        self.is_connected = False

    @classmethod
    def at(cls, url: str) -> SocketReader:
        """Return a reader of a signed URL."""
        base, _, rest = url.partition("/api/v1/")
        reader = cls(base, "", "", "", random.Random())
        reader._path, reader._headers = f"{urlsplit(base).path}/api/v1/{rest}", ""
        return reader

    async def follow(self, cuts: int) -> None:
        """Read until the end, and cut the connection so many times."""
        while self.end is None:
            self.connections += 1
            events = self._random.randrange(5, 60) if self.connections <= cuts else None
            await self.connect(events)
            if self.end is None:
                await asyncio.sleep(self._random.random() / 2)

    async def connect(self, events: int | None) -> None:
        """Read so many events, or until the server ends the stream."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        last = f"last-event-id: {self.last_id}\r\n" if self.last_id else ""
        try:
            head = f"GET {self._path} HTTP/1.1\r\nhost: {self._host}\r\nconnection: close\r\n"
            writer.write(f"{head}{self._headers}{last}\r\n".encode())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_TIMEOUT_S)
            if b" 200 " not in answer.split(b"\r\n", 1)[0]:
                self.problems.append(answer.decode())
                await asyncio.sleep(1)
                return
            self.is_connected = True
            await self._read(reader, events)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, events: int | None) -> None:
        text = b""
        while True:
            line = await asyncio.wait_for(reader.readline(), READ_TIMEOUT_S)
            if not line:
                raise ConnectionResetError("the server cut the connection")
            size = int(line, 16)
            if not size:
                return
            text += (await reader.readexactly(size + 2))[:-2]
            *whole, text = text.split(b"\n\n")
            for event in whole:
                if self._apply(event) and events is not None and (events := events - 1) <= 0:
                    return

    def _apply(self, event: bytes) -> bool:
        fields = dict(line.split(": ", 1) for line in event.decode().split("\n") if not line.startswith(":"))
        if "event" not in fields:
            return False
        data = json.loads(fields["data"])
        self.received += 1
        match fields["event"]:
            case "chunk":
                if data["id"] in self.chunks:
                    self.problems.append(f"chunk {data['id']} repeated")
                self.chunks[data["id"]] = data
            case "reset":
                self.resets += 1
                self.chunks = {
                    id: chunk
                    for id, chunk in self.chunks.items()
                    if not (
                        data["after"] < id < data["before"] and (data["everything"] or chunk["step"] == data["step"])
                    )
                }
            case "end":
                self.end = data
        self.last_id = fields.get("id", self.last_id)
        return True

    @property
    def text(self) -> str:
        return "".join(chunk["data"] for _, chunk in sorted(self.chunks.items()))
