"""A Live session among its clients: one that it belongs to, and observers beside it.

Commands are carried out as they come, sound goes in at once, and a frame of output leaves whenever
one is due. What speaks is driven elsewhere (``live_transport.py``, ``duplex_driver.py``): it is
told by ``stirred`` that something may wait for it.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from duologue.codecs.media import Int16Samples
from duologue.sessions.live_config import LiveFormat
from duologue.sessions.live_events import (
    AppendAudio,
    CloseReason,
    Command,
    Info,
    InputAudio,
    LiveEvent,
    OutputAudio,
    Started,
)
from duologue.sessions.live_microphone import LiveMicrophone
from duologue.sessions.live_mixer import RATE
from duologue.sessions.live_recording import LiveRecording
from duologue.sessions.live_session import LiveSession
from duologue.sessions.ports import Clock, TransportClosed

logger = logging.getLogger(__name__)

MOST_OBSERVERS: Final = 8


class LiveLink(Protocol):
    """One client of a session."""

    async def receive(self) -> Command:
        """What it commands next. Raises TransportClosed when it is gone."""

    def send(self, event: LiveEvent) -> None:
        """Queue an event; never waits. A client that does not take them is cut off."""

    async def aclose(self, code: int, reason: str) -> None:
        """Say what is queued, within a bound, then close. Idempotent."""


class LiveRoom:
    """Run it with :meth:`run`; at its end :meth:`aclose`."""

    def __init__(
        self,
        session_id: str,
        session: LiveSession,
        link: LiveLink,
        audio_format: LiveFormat,
        clock: Clock,
        recording: LiveRecording | None = None,
    ) -> None:
        """``audio_format`` is that of the sound which comes in."""
        self.id = session_id
        self.session = session
        self.over = anyio.Event()
        self.recording = recording
        self.stirred: Callable[[], None] = lambda: None
        self._link = link
        self._clock = clock
        self._microphone = LiveMicrophone(audio_format)
        self._observers: list[LiveLink] = []

    # -- its clients ------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep time and carry out commands until the session is closed or cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            await self._keep_time()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            while self.session.closed is None:
                await self._take(await self._link.receive())
        except TransportClosed as closed:
            self.close("remote_hangup" if closed.clean else "connection_lost")

    async def observe(self, observer: LiveLink) -> None:
        """Let another client take part until it goes or the session is closed.

        One that comes too late is told of the beginning and of the end.
        """
        if self.session.closed is not None:
            observer.send(Started(self.session.config))
            observer.send(self.session.closed)
            return
        if len(self._observers) >= MOST_OBSERVERS:
            await observer.aclose(1013, "as many observe this session as may")
            return
        observer.send(Started(self.session.config))
        self._observers.append(observer)
        try:
            while self.session.closed is None:
                await self._take(await observer.receive())
        except TransportClosed:
            return
        finally:
            self._observers.remove(observer)

    async def _take(self, command: Command) -> None:
        if not isinstance(command, AppendAudio):
            self.session.receive(command, self._clock.now())
            self.flush()
            return
        for index, data in enumerate(self._microphone.slices(command.data)):
            if index:
                await anyio.lowlevel.checkpoint()
            self.hear(self._microphone.decode(data))

    def hear(self, samples: Int16Samples) -> None:
        """Sound of the microphone, at the rate that the room was made for."""
        now = self._clock.now()
        if self.session.closed is not None:
            return
        wide = narrow = None
        rate = self.session.voice.rate
        if self._observers or self.recording is not None or rate == RATE:
            wide = self._microphone.wide(samples)
        if rate != RATE or self.session.paused:
            narrow = self._microphone.narrow(samples)
        if wide is not None:
            if self.recording is not None:
                self.recording.heard(wide, self.session.place(now))
            for observer in self._observers:
                observer.send(InputAudio(wide))
        given = wide if rate == RATE else narrow
        assert given is not None
        self.session.hear(given, narrow, now)
        self.flush()

    # -- time and events --------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while self.session.closed is None:
            delay = self.session.next_deadline() - self._clock.now()
            if delay > 0:
                with anyio.move_on_after(delay):
                    await self.over.wait()
                continue
            self.session.handle_timer(self._clock.now())
            self.flush()
            await anyio.lowlevel.checkpoint()

    def pump(self) -> None:
        """A frame has come: it may leave now."""
        self.session.handle_timer(self._clock.now())
        self.flush()

    def settle(self) -> None:
        """What speaks was told something."""
        if self.session.closed is None:
            self.session.voice.settle(self._clock.now())
        self.flush()

    def flush(self) -> None:
        """Say what is to be said."""
        for event in self.session.take_events():
            self._link.send(event)
            for observer in self._observers:
                observer.send(event)
            if self.recording is not None and isinstance(event, OutputAudio):
                self.recording.said(event.samples, event.start_ms)
        if self.session.closed is not None:
            self.over.set()
        self.stirred()

    def note(self, code: str, message: str) -> None:
        """Tell everybody something that is neither an answer nor an error, with what is next."""
        self.session.events.append(Info(code, message))

    # -- the end ----------------------------------------------------------------------------

    def close(self, reason: CloseReason) -> None:
        """End the session, and tell everybody. Idempotent."""
        self.session.close(reason, self._clock.now())
        self.flush()

    async def aclose(self, code: int, reason: str) -> None:
        """Let everybody go."""
        self.close("connection_lost")
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for link in (self._link, *self._observers):
                    tasks.start_soon(link.aclose, code, reason)
