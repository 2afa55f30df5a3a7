"""Large tables, and parameters of the hot statements, for tests of query plans.

50,000 runs. Of 100: 60 done, 10 failed, 5 scheduled, 15 ready in 5 lanes, 3 waiting, 2 blocked, 5 running by 20
sessions. Half of them have a unique name, and a third have a deadline. Half are children, a hundred per parent, and
half of those are nodes. Each has two checkpoints, a wait, a message, a chunk and five dependencies. A third of the
ready ones are parked, on 50 of 5,000 counters.
"""

from __future__ import annotations

from typing import Any

from holdfast.store.claims import ABOVE_ALL_PRIORITIES, ScanRange
from holdfast.store.module import json_rows
from tests.support.store_harness import StoreHarness

COUNT = 50_000
NOW = 1_800_000_000_000_000
TABLES = (
    "runs", "history", "workers", "keys", "checkpoints", "waits", "events", "messages", "chunks", "metadata", "edges",
    "limits",
)  # fmt: skip

RUNS = """
insert into {schema}runs (id, lane, priority, state, due_at, deadline, session, fence, attempt, max_crashes,
    unique_name, args, keep, records, created_at, claimed_at, started_at, finished_at, expires_at, root, parent,
    spawn_key, place, kind, node, pending, tenant, turn, limits, held, parked_on, tags)
select {id(n)}, 1 + n % 5, n % 3,
    case when n % 100 < 60 then 'done' when n % 100 < 70 then 'failed' when n % 100 < 75 then 'scheduled'
        when n % 100 < 90 then 'ready' when n % 100 < 93 then 'waiting' when n % 100 < 95 then 'blocked'
        else 'running' end,
    case when n % 100 between 70 and 74 then {now} + (n - 49000) * cast(1000000 as bigint) end,
    case when n % 3 = 0 then {now} + (n - 1000) * cast(1000000 as bigint) end,
    case when n % 100 >= 95 then 'w' || (n % 20) end, 1, 1, 3,
    case when n % 2 = 0 then 'name ' || n end,
    '[]', 1000000, 1, {now}, {now}, {now},
    case when n % 100 < 70 then {now} end,
    case when n % 100 < 70 and n % 2 = 0 then {now} + (n - 1000) * cast(1000000 as bigint) end,
    case when n % 2 = 1 then {id(n - n % 200 + 90)} end, case when n % 2 = 1 then {id(n - n % 200 + 90)} end,
    case when n % 4 = 1 then '0:call' end, case when n % 4 = 1 then n % 200 end,
    case when n % 200 = 90 then 'graph' end, case when n % 4 = 3 then 'node ' || (n % 200) end,
    case when n % 200 = 90 or n % 4 = 3 then 5 end,
    't' || (n % 7), case when n % 3 = 0 then n else 0 end,
    case when n % 100 between 75 and 79 or n % 100 >= 95 then '["[\\"one\\",\\"' || (n % 50) || '\\"]"]' end,
    case when n % 100 between 75 and 79 then 'full' end,
    case when n % 100 between 75 and 79 then '["one","' || (n % 50) || '"]' end,
    case when n % 3 = 0 then '["tag ' || (n % 100) || '"]' end
from {series}
"""
FURTHER = """
insert into {schema}history (run, n, at, kind, attempt, fence, session, since)
select id, 1, 1, 'done', 1, 1, 'w', 1 from {schema}runs;

insert into {schema}keys (scope, key, digest, run, created_at)
select 's', 'k' || seq, 'd', id, 1 from {schema}runs;

insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, at)
select id, 0, number, 'key ' || number, case when number = 1 then 'step' else 'join' end, '1', 1, 1
from {schema}runs cross join (select 1 as number union all select 2) numbers;

insert into {schema}waits (run, generation, key, kind, target, pending, due_at, since, outcome, settled_at)
select id, 0, 'wait',
    case seq % 4 when 0 then 'sleep' when 1 then 'event' when 2 then 'message' else 'children' end,
    case seq % 4 when 1 then 'e' || (seq % 5000) when 2 then 'topic' when 3 then '0:call' end, 5,
    case when seq % 4 < 2 then 1800000000000000 + (seq - 49000) * cast(1000000 as bigint) end, seq,
    case when seq % 3 = 0 then 'due' end, case when seq % 3 = 0 then 1 end
from {schema}runs;

insert into {schema}events (target, name, payload, touched_at, emitted_at, more)
select 'e' || seq, 'e', '1', 1800000000000000 + (seq - 4000) * cast(1000000 as bigint), 1,
    case when seq % 1000 = 0 then 1 else 0 end
from {schema}runs;

insert into {schema}limit_settings (name, concurrency, rate, period, declared_at) values ('one', 5, 10, 1000000, 1);

insert into {schema}limits (place, name, used, look_at, touched_at)
select '["one","' || seq || '"]', 'one', seq % 5, case when seq % 50 = 0 then 1800000000000000 + (seq - 2500) end, 1
from {schema}runs where seq <= 5000;

insert into {schema}messages (run, n, topic, payload, sent_at, taken_by)
select id, 1, 'topic', '1', 1, case when seq % 10 <> 0 then 'key' end from {schema}runs;

insert into {schema}chunks (run, n, attempt, data, at) select id, 1, 1, '1', 1 from {schema}runs;

insert into {schema}metadata (run, name, value)
select id, 'order', cast(seq % 1000 as text) from {schema}runs where seq % 2 = 0;

insert into {schema}edges (needs, node)
select n.id, r.id from {schema}runs r
cross join (select 1 as back union all select 2 union all select 3 union all select 4 union all select 5) numbers
join {schema}runs n on n.seq = r.seq - back
"""


def fill_runs(harness: StoreHarness, count: int = COUNT) -> None:
    """Insert the runs only."""
    if harness.on_postgres:
        id = "cast('00000000-0000-7000-8000-' || lpad(cast({n} as text), 12, '0') as uuid)"
        series = f"generate_series(1, {count}) n"
    else:
        id = "printf('00000000-0000-7000-8000-%012d', {n})"
        series = f"(with recursive c (n) as (select 1 union all select n + 1 from c where n < {count}) select n from c)"
    runs = RUNS.replace("{now}", str(NOW)).replace("{series}", series).replace("{id(n)}", id.replace("{n}", "n"))
    harness.sql(runs.replace("{id(n - n % 200 + 90)}", id.replace("{n}", "n - n % 200 + 90")))


def fill(harness: StoreHarness) -> None:
    """Insert the runs, the rows that belong to them, and their sessions."""
    fill_runs(harness)
    for statement in FURTHER.split(";"):
        harness.sql(statement)
    for n in range(10, 20):
        harness.session(f"w{n}")


IDS = [f"00000000-0000-7000-8000-{n:012d}" for n in range(1, 400, 4)]
PARENT = "00000000-0000-7000-8000-000000000290"
CHILD = {"parent": PARENT, "spawn_key": "0:call"}


def each(**more: Any) -> dict[str, str]:
    """Return a row for each of a hundred runs."""
    return {"rows": json_rows({"id": id, "run": id, "seq": n, **more} for n, id in enumerate(IDS))}


GENERATIONS = each(generation=0)
NUMBERS = each(generation=0, n=1)
RECORD = each(fence=1, generation=0, n=9, key="k", kind="step", value="1", undo=0)
KEYS = {"rows": json_rows({"scope": "s", "key": f"k{n}", "digest": "d", "run": IDS[0]} for n in range(100))}
WAITS = each(generation=0, key="wait", kind="sleep", eager=0, outcome="due", value="1", delay=1)
TARGETS = {"rows": json_rows({"target": f"e{n}", "name": "e", "payload": "1", "more": 0} for n in range(50))}
CALLS = {"rows": json_rows({"parent": id, "generation": 0, "spawn_key": "0:call", "ended": 1} for id in IDS)}
ENDS = each(fence=1, kind="done", state="done", result="1", failed=0, still_running=0)
FENCED = each(fence=1, error="{}")
NEW = {"lane": 1, "priority": 0, "max_crashes": 3, "args": "[]", "keep": 1}
RUNS_TO_ADD = {
    "rows": json_rows(
        {"id": id.replace("8000", "9000"), "unique_name": f"name {n}", **NEW, **CHILD} for n, id in enumerate(IDS)
    )
}
SESSIONS = {"rows": json_rows({"session": f"w{n}"} for n in range(15, 20))}
ONE = {"id": IDS[0], "run": IDS[0]}
GRAPH = {"graph": PARENT, "node": None, "after": "", "rows": json_rows({"node": f"node {n}"} for n in range(3, 200, 4))}
NODES = {"rows": json_rows({"graph": PARENT, "node": f"node {n}", "wanted": 1} for n in range(3, 200, 4))}
NEW_NODES = {
    "rows": json_rows(
        {"id": id.replace("8000", "9000"), "state": "blocked", "parent": PARENT, "node": f"n{n}", "pending": 1, **NEW}
        for n, id in enumerate(IDS)
    )
}
COUNTERS = {
    "rows": json_rows(
        {"place": f'["one","{n}"]', "name": "one", "used": 1, "log": "[]", "number": 1} for n in range(0, 500, 5)
    )
}
SPENDING = {
    "rows": json_rows(
        {
            "counter": f'["usd","run","{id}"]',
            "name": "usd",
            "per": "run",
            "key": id,
            "run": id,
            "amount": 1,
            "waiting": 0,
        }
        for id in IDS
    )
}
CLAIMING = {
    "sum": 1, "priority": 0, "turn": 0, "seq": 1000,
    "ranges": json_rows([ScanRange(1), ScanRange(2, 5, 5, 0, 1000), ScanRange(2, ABOVE_ALL_PRIORITIES, 0, 0, 1000)]),
}  # fmt: skip
PLACE = {"place": '["one","25"]', "parked_on": '["one","25"]'}

VALUES: dict[str, Any] = {
    "rows": json_rows({"id": id} for id in IDS),
    "seqs": json_rows(range(64)),
    "bytes": 1000,
    "error": "{}",
    "too_many": "{}",
    "session": "w19",
    "watcher": "c1",
    "lanes": json_rows({"lane": lane} for lane in (1, 2, 3)),
    "now": NOW,
    "size": 6,
}

LIST = {
    **dict.fromkeys(("states", "task", "queue", "tag", "created_from", "created_to", "finished_from", "finished_to")),
    **dict.fromkeys(("error", "parent", "family", "key", "metadata", "paused", "top_level", "search", "named")),
    "tenant": "t3", "before": IDS[90], "behind": IDS[0], "lane": 3,
}  # fmt: skip
SCAN = LIST | {"lanes": '["3"]', "stored_states": '["done"]', "tag_text": "%a%"}
POSITION = {"at": NOW, "id": IDS[5], "finished_from": None}
RECENT = {"finished_from": NOW, "finished_to": NOW + 1}

# By statement: its parameters, and an index that its plan must use.
HOT: dict[str, tuple[dict[str, Any], str | None]] = {
    "has_ready": ({}, "holdfast_runs_ready"),
    "has_active": ({}, "holdfast_runs_ready"),
    "find_waiting_lanes": ({"age": 1_000_000}, "holdfast_runs_ready"),
    "list_ready_lanes": ({"gaps": '[{"above": -1, "below": 5}, {"above": 5, "below": 99}]'}, "holdfast_runs_ready"),
    "sort_lanes": ({}, "holdfast_runs_ready"),
    "find_lanes_without_runs": ({"rows": '[{"id": 1}, {"id": 2}]'}, "holdfast_runs_ended"),
    "pick_late_runs": ({"lane": 1}, "holdfast_runs_asleep"),
    "move_runs": ({"lane": 1, "old": 2}, "runs_pkey"),
    "claim": (CLAIMING, "holdfast_runs_ready"),
    "pick_claimable": ({"size": 16}, "holdfast_runs_ready"),
    "pick_limited": ({}, "holdfast_runs_ready"),
    "lock_counters": (COUNTERS, None),
    "store_counters": (COUNTERS, None),
    "add_spending": (SPENDING, None),
    "return_permits": (COUNTERS, None),
    "claim_admitted": ({"at": NOW}, "runs_pkey"),
    "read_admitted": ({}, None),
    "park_runs": (each(parked_on='["one","25"]'), "runs_pkey"),
    "unpark_runs": (PLACE, "holdfast_runs_parked"),
    "has_parked": (PLACE, "holdfast_runs_parked"),
    "pick_due_counters": ({}, "holdfast_limits_look"),
    "read_counter": (PLACE, "limits_pkey"),
    "list_permit_holders": (PLACE, "holdfast_runs_owned"),
    "read_turns": ({"rows": json_rows({"queue": "default", "tenant": f"t{n}"} for n in range(7))}, None),
    "find_running_attempts": (ENDS, None),
    "add_end_history": (ENDS, None),
    "end_attempts": (ENDS, "runs_pkey"),
    "find_recorded_ends": (FENCED, "history_pkey"),
    "number_history": (each(count=1), "runs_pkey"),
    "find_failed_tries": (each(at=1, data="{}", after=0), "history_pkey"),
    "delete_history_entries": (each(n=1), "history_pkey"),
    "list_failed_tries": (ONE | {"since": 0}, "history_pkey"),
    "list_step_keys": (ONE | {"since": 0}, "checkpoints_pkey"),
    "release_runs": (FENCED, "runs_pkey"),
    "crash_runs": (each(runs_in_process=2, isolate=None, error=None), "runs_pkey"),
    "has_isolated": ({}, "holdfast_runs_held"),
    "pick_isolated": ({}, "holdfast_runs_held"),
    "list_owned": ({}, "holdfast_runs_owned"),
    "find_running": ({}, "runs_pkey"),
    "find_suspended": ({}, "runs_pkey"),
    "count_claimed": (SESSIONS, "holdfast_runs_owned"),
    "add_keys": (KEYS, None),
    "find_keys": (KEYS, "keys_pkey"),
    "redirect_keys": (KEYS, "keys_pkey"),
    "add_runs": (RUNS_TO_ADD, None),
    "add_new_runs": (RUNS_TO_ADD, None),
    "hold_successors": ({}, "runs_pkey"),
    "find_unique_holders": (
        {"rows": json_rows({"unique_name": f"name {n}"} for n in range(0, 200, 2))},
        "holdfast_runs_unique",
    ),
    "find_existing": ({}, "runs_pkey"),
    "release_held_runs": ({}, "holdfast_runs_held"),
    "promote_due_runs": ({}, "holdfast_runs_due"),
    "read_due_times": ({}, "holdfast_waits_due"),
    "pick_overdue_runs": ({}, "holdfast_runs_deadline"),
    "pick_expired": ({}, "holdfast_runs_expiry"),
    "delete_runs": ({}, "runs_pkey"),
    "delete_descendants": ({}, "holdfast_runs_tree"),
    "postpone_pruning": ({}, "runs_pkey"),
    "delete_history": ({}, "history_pkey"),
    "find_details": ({"first": IDS[0], "last": IDS[90]}, "waits_pkey"),
    "trim_history": ({"rows": json_rows({"run": id, "keep": 1} for id in IDS)}, "history_pkey"),
    "find_roots_in_id_range": ({"low": IDS[0], "high": IDS[90]}, "runs_pkey"),
    "delete_messages": ({}, "messages_pkey"),
    "delete_chunks": ({}, None),  # by either index
    "delete_metadata": ({}, "metadata_pkey"),
    "lock_runs": ({}, "runs_pkey"),
    "lock_expected_runs": (each(fence=1), "runs_pkey"),
    "lock_unlocked_runs": ({}, "runs_pkey"),
    "end_runs": ({"state": "failed", "overdue": 1}, "runs_pkey"),
    "retry_runs": ({}, "runs_pkey"),
    "find_first_undone": ({}, "checkpoints_pkey"),
    "rewind_checkpoints": (NUMBERS, "checkpoints_pkey"),
    "delete_timed_waits": ({}, "waits_pkey"),
    "lock_children_of_calls": (CALLS, "holdfast_runs_children"),
    "detach_children": (CALLS, "holdfast_runs_children"),
    "find_dead_sessions": ({}, None),
    "pick_runs_of_dead": (SESSIONS, "holdfast_runs_owned"),
    "count_runs_of_dead": (SESSIONS, "holdfast_runs_owned"),
    "count_runs_of_unknown": (SESSIONS, "holdfast_runs_owned"),
    "release_ended_runs": ({}, "runs_pkey"),
    "delete_dead_sessions": (SESSIONS, "holdfast_runs_owned"),
    "close_session": ({}, "holdfast_runs_owned"),
    "add_history": (each(n=9, kind="done", attempt=1), None),
    "add_tree_history": (each(back=0, kind="done", attempt=1, fence=1), "runs_pkey"),
    "record_checkpoints": (RECORD, "runs_pkey"),
    "record_steps": (RECORD, "runs_pkey"),
    "find_undoing": ({}, "runs_pkey"),
    "add_checkpoints": (RECORD, None),
    "read_recorded": (NUMBERS, "checkpoints_pkey"),
    "expect_unrecorded": (NUMBERS, "checkpoints_pkey"),
    "load_first_checkpoints": (GENERATIONS | {"most": 200, "bytes": 1000}, "checkpoints_pkey"),
    "last_checkpoint_numbers": (GENERATIONS, "checkpoints_pkey"),
    "load_checkpoint_page": (ONE | {"generation": 0, "after": 0, "bytes": 1000}, "checkpoints_pkey"),
    "load_waits": (GENERATIONS, "waits_pkey"),
    "read_resolved_waits": (GENERATIONS, "holdfast_waits_resolved"),
    "find_waits": (WAITS, "waits_pkey"),
    "add_waits": (each(generation=0, key="new", kind="sleep", eager=0, delay=1), None),
    "delete_waits_by_key": (WAITS, "waits_pkey"),
    "find_runs_with_due_waits": ({}, "holdfast_waits_due"),
    "resolve_due_waits": ({}, "waits_pkey"),
    "resolve_waits": (WAITS, "waits_pkey"),
    "wake_runs": ({}, "runs_pkey"),
    "mark_undos": ({}, "runs_pkey"),
    "set_progress": (each(progress="1"), "runs_pkey"),
    "add_chunks": (
        each(number=1, attempt=1, data="1", step="s", step_try=2, fence=5, generation=0, serial=9),
        "chunks_pkey",
    ),
    "read_metadata_sizes": ({}, "metadata_pkey"),
    "set_metadata": (each(name="order", value="1"), None),
    "add_metadata": (each(name="new", value="1"), None),
    "copy_metadata": (ONE | {"fork": IDS[0].replace("8000", "9000")}, "metadata_pkey"),
    "delete_checkpoints": ({}, "checkpoints_pkey"),
    "delete_waits": ({}, "waits_pkey"),
    "supersede_checkpoints": (NUMBERS, "checkpoints_pkey"),
    "create_event_rows": (TARGETS, None),
    "lock_events": (TARGETS, "events_pkey"),
    "read_emitted": (TARGETS, "events_pkey"),
    "read_emitter": ({"target": "e1"}, "events_pkey"),
    "emit_events": (TARGETS, "events_pkey"),
    "find_event_waiters": (TARGETS, "holdfast_waits_awaited"),
    "find_event_set_aside": ({"target": "t"}, "holdfast_waits_awaited"),
    "await_next_emit": ({"target": "t"}, "holdfast_waits_awaited"),
    "pick_events_with_waiters": ({}, "holdfast_events_more"),
    "clear_more_waiters": (TARGETS, "events_pkey"),
    "pick_old_events": ({"age": 1}, "holdfast_events_age"),
    "delete_unawaited_events": (TARGETS, "events_pkey"),
    "postpone_event_pruning": (TARGETS, "events_pkey"),
    "add_message": (
        ONE | {"topic": "t", "payload": "1", "sent_by": "x", "ask": None, "taken_by": None},
        "messages_pkey",
    ),
    "find_sent_message": (ONE | {"sent_by": "x"}, "messages_pkey"),
    "first_unread_message": (ONE | {"topic": "topic"}, None),
    "take_messages": (NUMBERS, "messages_pkey"),
    "first_waiting_receiver": (ONE | {"topic": "topic"}, "waits_pkey"),
    "return_unread_messages": ({}, "messages_pkey"),
    "set_message_aside": (ONE | {"taken_by": "0:key", "set_aside": "aside:0:key"}, "messages_pkey"),
    "supersede_outcome": (ONE | {"generation": 0, "key": "k"}, "checkpoints_pkey"),
    "list_set_aside": (ONE, "messages_pkey"),
    "read_set_aside": (ONE | {"n": 1}, "messages_pkey"),
    "return_messages": (each(taken_by="0:key"), "messages_pkey"),
    "find_parents": ({}, "runs_pkey"),
    "read_ended_runs": ({}, "runs_pkey"),
    "read_options_of_ended": ({}, "runs_pkey"),
    "add_children": (RUNS_TO_ADD, None),
    "end_tree_attempts": (ENDS, "runs_pkey"),
    "lock_unfinished_children": ({}, "holdfast_runs_children"),
    "resolve_child_waits": (CALLS, "holdfast_waits_children"),
    "release_map_children": (CHILD, "holdfast_runs_blocked"),
    "count_unfinished_children": (CHILD, "holdfast_runs_children"),
    "read_children_page": (CHILD | {"after": 0, "size": 500}, "holdfast_runs_children"),
    "count_active_children": (CHILD, "holdfast_runs_children"),
    "read_spawned_page": (CHILD | {"after": ""}, "holdfast_runs_children"),
    "lock_failed_children": ({}, "holdfast_runs_children"),
    "find_joined_calls": ({}, "checkpoints_pkey"),
    "reopen_child_waits": (CALLS, "waits_pkey"),
    "read_map_checkpoints": ({}, "checkpoints_pkey"),
    "block_map_children": ({}, "runs_pkey"),
    "fork_run": (ONE | {"fork": IDS[0].replace("8000", "9000"), "args": None, "options": None}, "runs_pkey"),
    "read_run_options": (ONE, "runs_pkey"),
    "copy_checkpoints": (each(n=9, generation=0, key="k", kind="step", at=1) | ONE, None),
    "list_steps_to_fork": (ONE, "checkpoints_pkey"),
    "read_outcome": (ONE, "runs_pkey"),
    "read_outcomes": ({}, "runs_pkey"),
    "read_run": (ONE, "runs_pkey"),
    "read_run_details": (ONE | {"bytes": 1000}, "runs_pkey"),
    "find_runs_in_id_range": ({"low": IDS[0], "high": IDS[5], "size": 6}, "runs_pkey"),
    "pick_ended": ({}, "runs_pkey"),
    "aggregate_ended": (RECENT | {"span": 60_000_000, "since": NOW, "until": NOW + 1}, "holdfast_runs_finished"),
    "aggregate_last_ended": (RECENT | {"span": 60_000_000, "since": NOW, "until": NOW + 1}, "holdfast_runs_finished"),
    "filter_runs": (LIST, "runs_pkey"),
    "newest_runs": (LIST, "runs_pkey"),
    "scan_unsuccessful": (LIST | {"state": "failed", "lanes": '["3"]'}, "holdfast_runs_unwell"),
    "newest_of_lane": (LIST, "holdfast_runs_ended"),
    "newest_of_tenant": (LIST, "holdfast_runs_tenant"),
    "newest_with_metadata": (LIST | {"term": "order 42"}, "holdfast_metadata_values"),
    "newest_with_tags": (LIST | {"tags": '["tag 7"]'}, "holdfast_runs_tags"),
    "tag_lists": ({}, "holdfast_runs_tags"),
    "some_with_metadata_value": ({"value": "42"}, "holdfast_metadata_contents"),
    "count_matching_runs": (LIST, "runs_pkey"),
    "scan_runs": (SCAN | {"search": "%a%"}, "runs_pkey"),
    "count_hidden_args": ({}, "runs_pkey"),
    "oldest_runs": (LIST, "runs_pkey"),
    "newest_finished": (POSITION, "holdfast_runs_finished"),
    "oldest_finished": (POSITION, "holdfast_runs_finished"),
    "last_due": (POSITION, "holdfast_runs_due"),
    "next_due": (POSITION, "holdfast_runs_due"),
    "some_ready": ({}, "holdfast_runs_ready"),
    "some_ready_of_lane": (LIST, "holdfast_runs_ready"),
    "some_held": ({}, "holdfast_runs_held"),
    "some_scheduled": ({}, "holdfast_runs_due"),
    "some_running": ({}, "holdfast_runs_owned"),
    "some_suspended": ({}, "holdfast_runs_asleep"),
    "some_waiting_graphs": ({"graph_lanes": json_rows([{"lane": 3}, {"lane": 4}])}, "holdfast_runs_asleep"),
    "long_waits": ({"age": 1_000_000, "size": 5}, "holdfast_runs_asleep"),
    "aggregate_ends_of_tenant": (LIST | {"span": 60_000_000, "since": NOW}, "holdfast_runs_tenant"),
    "some_suspended_of_lane": (LIST, "holdfast_runs_asleep"),
    "some_finished": (RECENT, "holdfast_runs_finished"),
    "some_with_key": ({"key": "k7"}, "holdfast_keys_key"),
    "some_children": (CHILD, "holdfast_runs_children"),
    "some_of_tree": ({"family": PARENT}, "holdfast_runs_tree"),
    "some_paused": ({}, "holdfast_runs_paused_all"),
    "list_history": (ONE, "history_pkey"),
    "list_steps": (ONE, "checkpoints_pkey"),
    "list_step_outline": (ONE, "checkpoints_pkey"),
    "read_step_values": (ONE | {"rows": json_rows([{"n": 1, "generation": 0}])}, "checkpoints_pkey"),
    "list_history_outline": (ONE, "history_pkey"),
    "read_history_data": (ONE | {"rows": json_rows([{"n": 1}])}, "history_pkey"),
    "read_run_with_result": (ONE, "runs_pkey"),
    "read_arguments": ({}, "runs_pkey"),
    "read_results": ({}, "runs_pkey"),
    "read_message_payloads": (ONE | {"rows": json_rows([{"n": 1}])}, "messages_pkey"),
    "read_event_payloads": ({"rows": json_rows([{"target": "x"}])}, "events_pkey"),
    "list_graph_outputs": (GRAPH, None),
    "list_waits": (ONE, "waits_pkey"),
    "list_children": (ONE, "holdfast_runs_children"),
    "list_unfinished_children": (ONE | {"spawn_key": "0:call"}, "holdfast_runs_children"),
    "list_failed_children": (ONE, "holdfast_runs_children"),
    "read_stream_ends": ({}, "runs_pkey"),
    "list_chunks": (ONE | {"after": 0}, "chunks_pkey"),
    "add_nodes": (NEW_NODES, None),
    "add_edges": ({"rows": json_rows({"needs": id, "node": PARENT} for id in IDS)}, None),
    "decrement_graphs": (each(ended=1), "runs_pkey"),
    "decrement_nodes": (each(cause=None), "edges_pkey"),
    "find_decidable_nodes": (GRAPH, None),
    "read_node_ends": (NODES, "holdfast_runs_nodes"),
    "read_graph_outputs": (GRAPH, None),
    "release_nodes": (each(state="ready"), "runs_pkey"),
    "end_without_attempt": (each(state="skipped"), "runs_pkey"),
    "find_failed_nodes": (GRAPH, None),
    "find_nodes": (GRAPH, "holdfast_runs_nodes"),
    "store_plan": (ONE | {"plan": "{}"}, "runs_pkey"),
    "grow_graph": (ONE | {"count": 1}, "runs_pkey"),
    "find_nodes_to_retry": (GRAPH, "edges_pkey"),
    "find_nodes_of_graphs": ({}, None),
    "find_unfinished_nodes": ({}, None),
    "restart_nodes": ({}, "runs_pkey"),
    "block_nodes": ({}, "runs_pkey"),
    "recount_nodes": (GRAPH, "edges_pkey"),
    "reopen_graph": (GRAPH, "runs_pkey"),
    "delete_edges": ({}, "edges_pkey"),
    "read_graph_parent": (ONE, "runs_pkey"),
    "has_nodes": (GRAPH, None),
    "find_overdue_gates": ({}, "runs_pkey"),
    "read_gate": (ONE, "runs_pkey"),
    "list_nodes": (GRAPH, None),
    "list_edges": (GRAPH, "edges_pkey"),
    "list_node_names": (GRAPH, None),
    "list_unfinished_node_names": (GRAPH, None),
    "read_node_overview": ({}, "runs_pkey"),
    "count_nodes": (GRAPH, None),
    "list_node_ids_in_state": (GRAPH | {"state": "blocked", "start": 20}, None),
}
