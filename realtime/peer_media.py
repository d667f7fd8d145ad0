"""The sound and the pictures of one call, in both directions, over one transport."""

import secrets
from typing import Final

import anyio

from duologue.realtime.pacer import Pacer
from duologue.realtime.peer_listener import PeerListener
from duologue.realtime.reception_totals import ReceptionTotals
from duologue.realtime.rtc_media import AudioCodec, MediaTransport
from duologue.realtime.rtp_receiver import AudioReceiver
from duologue.realtime.rtp_sender import AudioSender
from duologue.realtime.sdp_answer import AudioChoice, Choice
from duologue.realtime.sdp_video import VideoChoice
from duologue.realtime.video_receiver import CameraSettings, VideoReceiver
from duologue.realtime.video_sender import Picture, ScreenSettings, VideoSender

_NAMES: Final = {"opus": "opus", "pcmu": "PCMU", "pcma": "PCMA"}


class PeerMedia:
    """What a call hears, says, sees and shows: of these what its offer has.

    :meth:`start` once the transport is up, :meth:`run` beside it, at last :meth:`stop`.
    ``ssrc``, ``video_ssrc`` and ``cname`` are what our side is known by (RFC 3550 section 5.1).
    """

    def __init__(
        self,
        transport: MediaTransport,
        choice: Choice,
        pacer: Pacer,
        listener: PeerListener,
        *,
        camera: CameraSettings,
        screen: ScreenSettings,
        threads: anyio.CapacityLimiter,
        totals: ReceptionTotals | None = None,
    ) -> None:
        """``threads`` bounds the work on pictures; ``totals`` are of what is heard."""
        self.ssrc = secrets.randbelow(0xFFFFFFFE) + 1
        self.video_ssrc = secrets.randbelow(0xFFFFFFFE) + 1
        self.cname = secrets.token_hex(8)
        self._transport = transport
        self._pacer = pacer
        self._listener = listener
        self._receiver: AudioReceiver | None = None
        self._sender: AudioSender | None = None
        self._camera: VideoReceiver | None = None
        self._screen: VideoSender | None = None
        if choice.audio is not None:
            self._make_audio(choice.audio, totals)
        if choice.video is not None:
            self._make_video(choice.video, camera, screen, threads)

    def _make_audio(self, audio: AudioChoice, totals: ReceptionTotals | None) -> None:
        codec = AudioCodec(
            name=_NAMES[audio.codec.name.lower()],
            payload_type=audio.codec.payload_type,
            clock_rate=audio.codec.clock_rate,
            channels=audio.codec.channels,
            parameters=audio.codec.parameters,
            red_payload_type=audio.red,
        )
        if audio.receives:
            self._receiver = AudioReceiver(
                self._transport,
                [codec],
                self._listener.peer_heard,
                self._pacer,
                ssrc=self.ssrc,
                cname=self.cname,
                totals=totals,
            )
        if audio.sends:
            mid = None
            if audio.mid is not None and audio.mid_extension is not None:
                mid = (audio.mid_extension, audio.mid)
            self._sender = AudioSender(
                self._transport,
                codec,
                self._pacer,
                ssrc=self.ssrc,
                cname=self.cname,
                on_played=self._tell_played,
                mid=mid,
            )

    def _make_video(
        self,
        video: VideoChoice,
        camera: CameraSettings,
        screen: ScreenSettings,
        threads: anyio.CapacityLimiter,
    ) -> None:
        if video.receives:
            self._camera = VideoReceiver(
                self._transport,
                video,
                self._listener.peer_saw,
                self._pacer,
                ssrc=self.video_ssrc,
                cname=self.cname,
                threads=threads,
                settings=camera,
            )
        if video.sends:
            self._screen = VideoSender(
                self._transport,
                video,
                self._pacer,
                ssrc=self.video_ssrc,
                cname=self.cname,
                threads=threads,
                settings=screen,
            )

    def start(self) -> None:
        """Hear, see, and be ready to play and to show."""
        for media in (self._receiver, self._sender, self._camera, self._screen):
            if media is not None:
                media.start()

    async def run(self) -> None:
        """What pictures do in tasks of their own, until cancelled; :meth:`start` first."""
        async with anyio.create_task_group() as tasks:
            for media in (self._camera, self._screen):
                if media is not None:
                    tasks.start_soon(media.run)

    def stop(self) -> None:
        for media in (self._receiver, self._sender, self._camera, self._screen):
            if media is not None:
                media.stop()

    def play(self, pcm: bytes) -> None:
        """Speech to be played after all that waits: mono int16 at 24 kHz."""
        if self._sender is not None:
            self._sender.play(pcm)

    def show(self, picture: Picture, due_ms: float | None) -> None:
        """Show it when so much of all that :meth:`play` was given has left; None: at once."""
        if self._screen is not None:
            self._screen.show(picture, due_ms)

    def _tell_played(self, total_ms: float, now: float) -> None:
        if self._screen is not None:
            self._screen.heard(total_ms)
        self._listener.peer_played(total_ms, now)

    def flush(self) -> None:
        """Fade out and forget what waits, pictures as well."""
        if self._sender is not None:
            self._sender.flush()
        if self._screen is not None:
            self._screen.flush()

    def duck(self) -> None:
        if self._sender is not None:
            self._sender.duck()

    def restore(self) -> None:
        if self._sender is not None:
            self._sender.restore()
