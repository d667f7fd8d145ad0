"""A rank by itself; ranks together are in :mod:`tests.engines.test_moshi_crew`."""

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from duologue.engines.rank_group import RankGroup, find_meeting, open_meeting


def test_a_rank_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    group = RankGroup(open_meeting(), 0, 1, "cpu")
    try:
        x = torch.arange(6.0)
        group.share(x)
        group.add(x)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
    finally:
        group.close()
    group.close()


def test_a_meeting_is_found_by_its_port() -> None:
    meeting = open_meeting()
    found = find_meeting(meeting.port)
    meeting.set("where", "here")
    assert found.get("where") == b"here"
