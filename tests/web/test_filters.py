"""Filters of the runs list: a wrong one keeps the others, and paused runs are found."""

from __future__ import annotations


def test_a_wrong_filter_is_marked_and_the_others_are_kept(shop, open_visitor, fill):
    fill()
    answer = open_visitor.get("/runs?task=add&metadata=order&state=done&tag=t")
    assert answer.status == 422
    assert 'value="add"' in answer.text
    assert "<option selected>done</option>" in answer.text
    assert 'id="f-metadata-problem">metadata must have the form name=value' in answer.text
    assert 'aria-invalid="true"' in answer.text
    assert "Nothing was searched" in answer.text
    for query, field in (
        ("created_from=soon", "created_from"), ("id_prefix=xyz", "id"), ("parent=ffff", "parent"),
        (f"error={'x' * 600}", "error"),
    ):  # fmt: skip
        text = open_visitor.get(f"/runs?queue=default&{query}").text
        assert f'id="f-{field}-problem"' in text, query
        assert 'name="queue" type="text" value="default"' in text
    assert open_visitor.get("/bulk?verb=cancel&metadata=order").status == 422


def test_paused_runs_are_found(shop, open_visitor):
    ready, scheduled = shop.add.enqueue(1, 2), shop.add.options(delay=60).enqueue(3, 4)
    waiting, other = shop.listen.enqueue(), shop.add.enqueue(5, 6)
    shop.drain()
    paused = shop.add.enqueue(7, 8)
    for run in (scheduled, waiting, paused):
        run.pause()
    wanted = {str(run.id) for run in (scheduled, waiting, paused)}
    assert {str(info.id) for info in shop.app.runs(paused=True)} == wanted
    assert {each["id"] for each in open_visitor.get("/api/v1/runs?paused=true").json["runs"]} == wanted
    page = open_visitor.get("/runs?paused=1").text
    assert all(id in page for id in wanted)
    assert str(ready.id) not in page
    assert str(other.id) not in page
    assert [info.id for info in shop.app.runs(paused=True, task="listen")] == [waiting.id]
    scheduled.resume()
    paused.cancel()
    assert [info.id for info in shop.app.runs(paused=True)] == [waiting.id]
    preview = open_visitor.post("/api/v1/bulk/preview", {"verb": "cancel", "filter": {"paused": True}})
    assert preview.json["count"]["value"] == 1
    assert len(shop.app.runs(paused=False)) == 5
