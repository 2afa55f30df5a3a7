"""Links to gates: create, list and revoke them, check them, and decide a gate by one."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.control.audit import audited, record
from holdfast.control.gates import gate_payload
from holdfast.control.run_payloads import RunPayloads
from holdfast.model.clock import Duration, to_datetime
from holdfast.model.gate_links import DEFAULT_EXPIRY, GATE_LINK, GateLink, GateLinkInfo, GateLinkToken, LinkRequest
from holdfast.model.names import check_name
from holdfast.model.signed_tokens import LinkSettings, SignedValue, TokenRefused
from holdfast.policy.json_schema import apply_defaults, find_mismatch
from holdfast.store import Store
from holdfast.store.graphs import GateOutcome, LinkedGate, gate_completed, gate_failed

MAX_SIGNER_CHARS = 150
"""The maximum length of the name that a person enters."""


class LinkedQuestion(msgspec.Struct, frozen=True):
    """What the holder of a link sees of a gate, and nothing else."""

    name: str
    schema: dict[str, Any] | None
    payload: Any
    recipient: str | None
    until: datetime
    """When the link expires or the gate times out."""


class GateLinkControl:
    """Creates, lists and revokes links to gates, and lets their holders decide."""

    def __init__(self, store: Store, links: LinkSettings | None = None) -> None:
        self._store = store
        self._given = links

    @property
    def _links(self) -> LinkSettings:
        if self._given is None:
            self._given = LinkSettings()
        return self._given

    @property
    def is_configured(self) -> bool:
        """Whether there are a secret and a public URL."""
        return self._links.is_complete

    @audited("link gate", "run")
    def create(
        self, run: UUID, gate: str, *, expires: Duration = DEFAULT_EXPIRY, recipient: str | None = None
    ) -> GateLink:
        """Create a link to a gate of a graph or a durable function; RunFinished if it was decided."""
        request = LinkRequest.of(expires, recipient)
        self._links.require()
        found = self._store.graphs.add_link(str(run), check_name(gate, "the name of a gate"), request)
        return request.link(self._links, found.id, found.opening, found.now)

    def list(self, run: UUID, gate: str) -> list[GateLinkInfo]:
        """List the links to a gate, the oldest first. At least those that can be used."""
        return self._store.graphs.links(str(run), check_name(gate, "the name of a gate"))

    @audited("revoke link", "run")
    def revoke(self, run: UUID, gate: str, link: str | None = None, by: str | None = None) -> int:
        """Revoke a link to a gate by its id, or all links to it; return how many could still be used."""
        return self._store.graphs.revoke_links(str(run), check_name(gate, "the name of a gate"), link, by)

    def check(self, token: str) -> SignedValue[GateLinkToken]:
        """Check the signature of a link, without I/O. The database decides whether it has expired."""
        return self._links.verify(GATE_LINK, token, GateLinkToken, now=0)

    def read(self, link: SignedValue[GateLinkToken]) -> LinkedQuestion:
        """Read what a link with a valid signature lets its holder decide; TokenRefused if it can't be used."""
        gate = self._usable_gate(link)
        payloads = RunPayloads(self._store)
        details = payloads.details(gate.id)
        payload = None if details is None else gate_payload(gate.tenant, gate.id, details, payloads)
        until = link.expires_at if gate.deadline is None else min(link.expires_at, gate.deadline)
        return LinkedQuestion(gate.name, gate.plan.get("schema"), payload, link.value.recipient, to_datetime(until))

    def mismatch(self, question: LinkedQuestion, output: Any) -> str | None:
        """Say why an output doesn't match the type of the gate; None if it does."""
        return None if question.schema is None else find_mismatch(output, question.schema)

    def completed_output(self, question: LinkedQuestion, output: Any) -> Any:
        """Return a valid output with the type's defaults filled in, as it will be recorded."""
        return output if question.schema is None else apply_defaults(output, question.schema)

    def complete(self, link: SignedValue[GateLinkToken], output: Any, signer: str | None) -> None:
        """Complete the gate; TokenRefused if the link can't be used any more."""
        gate, by = self._usable_gate(link), actor(link.value.recipient, signer)
        with record(self._store, "complete gate", gate.id, by, {"gate": gate.name}):
            self._conclude(link, gate_completed(gate.name, output, by))

    def reject(self, link: SignedValue[GateLinkToken], reason: str, signer: str | None) -> None:
        """Fail the gate with a reason; TokenRefused if the link can't be used any more."""
        gate, by = self._usable_gate(link), actor(link.value.recipient, signer)
        with record(self._store, "fail gate", gate.id, by, {"gate": gate.name, "error": reason}):
            self._conclude(link, gate_failed(gate.name, reason, by))

    def _conclude(self, link: SignedValue[GateLinkToken], outcome: GateOutcome) -> None:
        id = str(UUID(bytes=link.value.gate))
        if not self._store.graphs.conclude_linked_gate(id, link.value.opening, link.value.id, outcome):
            raise TokenRefused("used")

    def _usable_gate(self, link: SignedValue[GateLinkToken]) -> LinkedGate:
        if len(link.value.gate) != 16:
            raise TokenRefused("malformed")
        gate = self._store.graphs.linked_gate(str(UUID(bytes=link.value.gate)))
        if gate is None or not gate.is_undecided or gate.opening != link.value.opening:
            raise TokenRefused("used")
        if not gate.accepts(link.value.id):
            raise TokenRefused("revoked")
        if gate.now >= link.expires_at:
            raise TokenRefused("expired")
        return gate


def actor(recipient: str | None, signer: str | None) -> str:
    """Return who decided by a link, for the history. A name typed into the form differs from that of the recipient."""
    if recipient is not None:
        return f"{recipient} (link)"
    return "link" if signer is None else f"{signer} (link, name as entered)"
