"""Events from outside: the first emit of a name wins and is remembered; whoever waits for it is woken."""

from __future__ import annotations

from holdfast.model.ids import new_id
from holdfast.store.family import hold
from holdfast.store.part import Do, Part
from holdfast.store.waking import find_waiters, lock_events, settle_events, target_of, wake


class Events(Part):
    """Facts that anyone may wait for by name."""

    def emit(self, tenant: str | None, name: str, payload: str, trace: str | None = None) -> bool:
        """Emit an event; False when it had been emitted before, which changes nothing. Its first waiters are woken
        here, any others by the timekeeper. `trace`: the context of the caller, for those who link to it."""
        target = target_of(tenant, name)
        by = str(new_id())
        payload = self._ground.payloads.pack(payload, f"the payload of event {name!r}")

        def work(do: Do) -> bool:
            if lock_events(do, [(tenant, name)]):
                return bool(do("emitted_by", target=target)[0][0] == by)  # by us, when the answer got lost
            waiters, more = find_waiters(do, [target])
            hold(do, {waiter.run for waiter in waiters})
            wake(do, settle_events(do, {target: payload}, waiters, more=more, by=by, traces={target: trace}))
            return True

        return self._together("client", work)

    def trace(self, target: str) -> str | None:
        """The trace context of whoever emitted an event, given as its target, if one is kept."""
        found = self._one("client", "event_trace", target=target)
        return found[0][0] if found else None
