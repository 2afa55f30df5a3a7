"""Limits with their usage and what waits for them; change what they allow."""

from __future__ import annotations

from holdfast.control.audit import audited
from holdfast.model.limit import CounterInfo as CounterInfo
from holdfast.model.limit import LimitInfo as LimitInfo
from holdfast.model.limit import PermitHolder as PermitHolder
from holdfast.store.limit_settings import MAX_HOLDERS as MAX_HOLDERS
from holdfast.store.limit_settings import LimitSettings
from holdfast.store.limit_settings import decode_key as decode_key
from holdfast.store.limits import parse_counter_key


class LimitControl(LimitSettings):
    """Lists limits with their counters, and sets and resets what they allow."""

    set = audited("set limit", "name")(LimitSettings.set)
    reset = audited("reset limit", "name")(LimitSettings.reset)


def format_counter(counter_id: str) -> str:
    """Name a counter: its limit, and its key if it has one."""
    name, key = parse_counter_key(counter_id)
    return f"{name} for {key}" if key else name
