"""Whatever polls see, each notice is told once, and withdrawn once at most."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.spot.notices.ledger import NoticeLedger
from gpu_runtime.spot.notices.notice import Notice

notices = st.builds(
    Notice,
    provider=st.just("aws"),
    kind=st.sampled_from(["terminate", "rebalance"]),
    deadline=st.none() | st.floats(0, 1e9),
    received_at=st.floats(0, 1e9),
    detail=st.sampled_from(["one", "two"]),
)


@given(st.lists(st.none() | notices, max_size=30))
def test_told_once_while_it_stands_and_withdrawn_only_after(seen):
    ledger = NoticeLedger()
    standing: dict[str, Notice] = {}
    for notice in seen:
        for change in ledger.observe(notice):
            kind = change.notice.kind
            if change.change == "came":
                assert kind not in standing and change.notice is notice
                standing[kind] = change.notice
            else:
                assert standing.pop(kind) is change.notice, "withdrawn as it was told"
        if notice is None:
            assert standing == {}
        else:
            assert standing[notice.kind] == notice, "what stands has been told"
            assert notice.kind == "terminate" or "terminate" not in standing
        assert ledger.observe(notice) == [], "seeing it again is no news"


@given(notices, notices)
def test_advice_outlives_the_termination_that_hides_it(advice, termination):
    advice = Notice("aws", "rebalance", None, advice.received_at, advice.detail)
    termination = Notice(
        "aws", "terminate", termination.deadline, termination.received_at, termination.detail
    )
    ledger = NoticeLedger()
    ledger.observe(advice)
    assert [change.change for change in ledger.observe(termination)] == ["came"]
    assert [(change.change, change.notice) for change in ledger.observe(advice)] == [
        ("withdrawn", termination)
    ]
    assert [(change.change, change.notice) for change in ledger.observe(None)] == [("withdrawn", advice)]
