"""One Live session that is on, and what a fork of it begins with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from duologue.engines.duplex import DuplexChoice, DuplexStream
from duologue.realtime.live_room import LiveRoom
from duologue.realtime.live_session_wire import Medium
from duologue.realtime.live_wire import LiveDecoder
from duologue.realtime.rtc_peer import RtcPeer
from duologue.sessions.items import InputAudio, Item, MessageItem
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.runner import Conversation


@dataclass(frozen=True, slots=True)
class Past:
    """What a fork begins with."""

    config: LiveConfig
    history: tuple[Item, ...] = ()
    fork: Callable[[str, DuplexChoice | None], Awaitable[DuplexStream]] | None = None
    """Of a frame-locked model, whose state is there for as long as the session is."""


@dataclass(slots=True)
class LiveCall:
    """A session that is on. ``serve`` runs it to its end."""

    id: str
    room: LiveRoom
    medium: Medium
    decoder: LiveDecoder
    serve: Callable[[], Awaitable[None]]
    fail: Callable[[], None]
    past: Callable[[], Past]
    see: Callable[[bytes | None], None] = lambda jpeg: None
    peer: RtcPeer | None = None
    """Of a session over WebRTC."""
    over: anyio.Event = field(default_factory=anyio.Event)
    counted: bool = False
    """Here, in the headcount; the others are, as the registry's sessions."""

    @property
    def config(self) -> LiveConfig:
        return self.room.session.config


def history_of(conversation: Conversation) -> tuple[Item, ...]:
    """What a fork has of a conversation: what is not known of it by now never will be."""
    return tuple(
        item
        for item in conversation.session.history
        if item.status != "in_progress"
        and not (isinstance(item, MessageItem) and InputAudio(None) in item.content)
    )
