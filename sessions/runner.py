"""The driver of one session: the only place where events, time and effects meet.

Everything that happens is given to the core at once, on the event loop, and what it asks for is
handed on without waiting; so nothing queues here. A client that sends much is slowed down by being
read from more slowly.
"""

import logging
import math
from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec

from duologue.codecs.media import CodecError, Int16Samples
from duologue.codecs.pcm import int16_from_bytes
from duologue.engines.duplex_turns import DuplexTurnsStream, Persona
from duologue.engines.engine import (
    HEARD_RATE,
    Command,
    Engine,
    EngineFull,
    EngineLost as EngineLostError,
    EngineStream,
    EngineUnavailable,
    Respond,
    ResponseQueued,
)
from duologue.models.silero_vad import SileroVad
from duologue.sessions import effects
from duologue.sessions.core import Session
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import (
    Attached,
    CleanedUp,
    CloseRequested,
    Detached,
    EngineLost,
    EngineReady,
    Event,
    PictureSeen,
    PlaybackReported,
    Rejected,
)
from duologue.sessions.hearing import Hearing
from duologue.sessions.ports import AudioBytes, Clock, Observer, Transport, TransportClosed
from duologue.sessions.turns import Connection

logger = logging.getLogger(__name__)

REOPEN_INTERVAL = 0.2
CLEANUP_SECONDS = 5.0
FAILED = effects.CloseTransport(1011, "the session failed")


class Conversation:
    """A session that is being held."""

    def __init__(
        self,
        session: Session,
        vad: SileroVad,
        engine: Engine,
        stream: EngineStream,
        clock: Clock,
        observer: Observer,
        on_closed: Callable[["Conversation"], None],
    ) -> None:
        self.session = session
        self.id = session.id
        self._engine = engine
        self._stream = stream
        self._clock = clock
        self._observer = observer
        self._on_closed = on_closed
        self._hearing = Hearing(session.id, vad, self._tell)
        self._transport: Transport | None = None
        self._reading: anyio.CancelScope | None = None
        self._closing: effects.CloseTransport | None = None
        self._supplies: deque[effects.SupplyUtterance] = deque()
        self._deaf = False
        self._over = anyio.Event()
        self._wake = anyio.Event()
        self._sleeping_until = math.inf

    @property
    def expires_in(self) -> float:
        """Seconds that the session may last from now on."""
        return max(0.0, self.session.expires_at - self._clock.now())

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def needs_reaping(self) -> bool:
        """Its place could not be given back when it ended."""
        return self.session.connection is Connection.CLEANUP_FAILED

    # -- the client's side ------------------------------------------------------------------

    async def attach(self, transport: Transport) -> None:
        """Serve this client until the connection is over, then close it."""
        try:
            with anyio.CancelScope() as self._reading:
                self._transport = transport
                self.happen(Attached())
                if not self.over:
                    await self._read(transport)
        except Exception:
            logger.exception("session %s failed", self.id)
            self.fail()
        finally:
            self._transport = None
            self._reading = None
            self._happen_at_last(Detached())
            closing = self._closing or FAILED
            with anyio.CancelScope(shield=True):
                await transport.aclose(closing.code, closing.reason)

    async def _read(self, transport: Transport) -> None:
        while True:
            try:
                incoming = await transport.receive()
            except TransportClosed:
                self.happen(Detached())
                return
            if isinstance(incoming, AudioBytes):
                await self._hear(incoming)
            else:
                self.happen(incoming)
                await self._supply()

    async def _hear(self, audio: AudioBytes) -> None:
        self._hearing.configure(self.session.config.input_format)
        try:
            slices = list(self._hearing.slices(audio.data))
        except CodecError as error:
            refused = ProtocolError("invalid_audio", str(error), "audio", audio.event_id)
            self.happen(Rejected(refused))
            return
        form = self.session.config.input_format
        for data in slices:
            samples = len(data) // form.sample_bytes * HEARD_RATE // form.rate
            if samples > self.session.room():
                self.happen(Rejected(_full(audio.event_id)))
                return
            judge = self.session.config.turn_detection is not None
            if isinstance(self._stream, DuplexTurnsStream):
                self._let_hear(self._stream, self._hearing.decode(data), form.rate)
            for event in self._hearing.accept(data, judge):
                self.happen(event)
            if len(slices) > 1:
                await anyio.lowlevel.checkpoint()

    def hear(self, pcm: bytes) -> None:
        """Sound of a microphone that the server receives itself, as it comes. Never raises.

        Mono int16 at 16 kHz. Sound for which there is no room is dropped; the client is told once.
        """
        if self.over:
            return
        try:
            samples = int16_from_bytes(pcm)
            if len(samples) > self.session.room():
                if not self._deaf:
                    self._deaf = True
                    self.happen(Rejected(_full(None)))
                return
            self._deaf = False
            judge = self.session.config.turn_detection is not None
            if isinstance(self._stream, DuplexTurnsStream):
                self._let_hear(self._stream, samples, HEARD_RATE)
            for event in self._hearing.accept_samples(samples, judge):
                self.happen(event)
        except Exception:
            logger.exception("session %s failed", self.id)
            self.fail()

    def see(self, jpeg: bytes | None) -> None:
        """A picture of a camera that the server receives itself; None: it is off. Never raises."""
        self._happen_at_last(PictureSeen(jpeg))

    def report(self, item_id: str, played_ms: float) -> None:
        """Playout that is the server's own stands here in an item. Never raises."""
        self._happen_at_last(PlaybackReported(item_id, played_ms))

    def _let_hear(self, stream: DuplexTurnsStream, samples: Int16Samples, rate: int) -> None:
        """A model that never stops listening hears all of it, and not utterances."""
        config = self.session.config
        try:
            stream.listen(samples, rate, Persona(config.voice, config.instructions))
        except EngineLostError:
            logger.debug("session %s: sound was lost with its worker", self.id)

    async def _supply(self) -> None:
        """Give the engine the audio of items, in pieces between which others get their turn."""
        while self._supplies:
            effect = self._supplies.popleft()
            for _ in self._hearing.supply(effect.utterance, effect.audio):
                await anyio.lowlevel.checkpoint()

    # -- the session's own tasks ------------------------------------------------------------

    async def live(self) -> None:
        """Keep time and listen to the engine until the session is over; then give all back."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_time)
                tasks.start_soon(self._listen_to_engine)
                await self._over.wait()
                tasks.cancel_scope.cancel()
        except Exception:
            logger.exception("session %s failed", self.id)
            self.fail()
        finally:
            with anyio.CancelScope(shield=True):
                await self.clean_up()

    async def clean_up(self) -> None:
        """Give back the session's place. The registry tries again when this did not work."""
        self._over.set()
        self.session.abandon()
        ok = False
        with anyio.move_on_after(CLEANUP_SECONDS):
            try:
                await self._stream.aclose()
                ok = True
            except Exception:
                # Raised on, it would end the sessions of everybody.
                logger.exception("session %s: its place could not be given back", self.id)
        self.session.receive(CleanedUp(ok), self._clock.now())
        if self.session.connection is Connection.CLOSED:
            self._on_closed(self)

    async def _keep_time(self) -> None:
        while True:
            deadline = self._sleeping_until = self.session.next_deadline()
            self._wake = anyio.Event()
            delay = deadline - self._clock.now()
            if delay > 0:
                with anyio.move_on_after(delay if math.isfinite(delay) else None):
                    await self._wake.wait()
                    continue
            now = max(self._clock.now(), deadline)
            self.session.handle_timer(now)
            self._perform(now)
            await anyio.lowlevel.checkpoint()

    async def _listen_to_engine(self) -> None:
        while True:
            try:
                output = await self._stream.receive()
            except EngineLostError:
                self.happen(EngineLost())
                await self._reopen()
                self.happen(EngineReady())
                continue
            if not isinstance(output, ResponseQueued):  # the batch lane's alone
                self.happen(output)

    async def _reopen(self) -> None:
        await self._stream.aclose()
        while True:
            try:
                self._stream = await self._engine.open(self.id)
            except (EngineFull, EngineUnavailable):
                await anyio.sleep(REOPEN_INTERVAL)
            else:
                return

    # -- where they meet --------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Tell the core and do what it asks."""
        now = self._clock.now()
        self._observer.event(self.id, event, now)
        self.session.receive(event, now)
        self._perform(now)

    def close(self, code: int, reason: str) -> None:
        """End the session from outside: drain, or an operator. Never raises."""
        self._happen_at_last(CloseRequested(code, reason))

    def _happen_at_last(self, event: Event) -> None:
        """Tell the core from outside its tasks. What breaks over it is this session's alone."""
        if self.over:
            return
        try:
            self.happen(event)
        except Exception:
            logger.exception("session %s failed", self.id)
            self.fail()

    def fail(self) -> None:
        """Something of ours broke: the session ends, others go on."""
        self._closing = FAILED
        self._end()

    def _perform(self, now: float) -> None:
        for effect in self.session.take_effects():
            self._observer.effect(self.id, effect, now)
            match effect:
                case effects.ToEngine():
                    self._hearing.forward()
                    self._tell(self._traced(effect.command))
                case effects.CloseTransport():
                    self._closing = effect
                case effects.CleanUp():
                    self._end()
                case effects.OpenUtterance() | effects.CloseUtterance() | effects.DropUtterance():
                    self._hearing.perform(effect)
                case effects.SupplyUtterance():
                    self._hearing.configure(self.session.config.input_format)
                    self._supplies.append(effect)
                case effects.FlushPlayout() | effects.DuckPlayout() | effects.RestorePlayout():
                    if self._transport is not None:
                        self._transport.steer(effect)
                case effects.ShowPicture():
                    if self._transport is not None:
                        self._transport.show(effect)
                case effects.ItemRetrieved():
                    self._say(
                        effects.ItemRetrieved(effect.item, self._hearing.recorded(effect.item.id))
                    )
                case _:
                    self._say(effect)
        if self.session.next_deadline() < self._sleeping_until:
            self._wake.set()

    def _say(self, event: effects.ServerEvent) -> None:
        if self._transport is not None:
            self._transport.send(event)

    def _traced(self, command: Command) -> Command:
        if isinstance(command, Respond):
            trace = self._observer.trace(self.id, command.generation)
            if trace:
                return msgspec.structs.replace(command, trace=trace)
        return command

    def _tell(self, command: Command) -> None:
        try:
            self._stream.send(command)
        except EngineLostError:
            # The receiving side learns of it too, and tells the core.
            logger.debug("session %s: a command was lost with its worker", self.id)

    def _end(self) -> None:
        self._over.set()
        if self._reading is not None:
            self._reading.cancel()


def _full(event_id: str | None) -> ProtocolError:
    message = "The input audio buffer is full: commit it or clear it first."
    return ProtocolError("input_audio_buffer_full", message, "audio", event_id)
