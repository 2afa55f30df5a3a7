"""Events from outside: the first emit of a name wins and is remembered; whoever waits for it is woken."""

from __future__ import annotations

from holdfast.model.ids import new_id
from holdfast.store.family import hold
from holdfast.store.part import Do, Part
from holdfast.store.waking import find_waiters, lock_events, settle_events, target_of, wake


class Events(Part):
    """Facts that anyone may wait for by name."""

    def emit(self, tenant: str | None, name: str, payload: str) -> bool:
        """Emit an event; False when it had been emitted before, which changes nothing. Its first waiters are woken
        here, any others by the timekeeper."""
        target = target_of(tenant, name)
        by = str(new_id())

        def work(do: Do) -> bool:
            if lock_events(do, [(tenant, name)]):
                return bool(do("emitted_by", target=target)[0][0] == by)  # by us, when the answer got lost
            waiters, more = find_waiters(do, [target])
            hold(do, {waiter.run for waiter in waiters})
            wake(do, settle_events(do, {target: payload}, waiters, more=more, by=by))
            return True

        return self._together("client", work)
