"""What one end of a call tells of the other."""

from typing import Protocol


class PeerListener(Protocol):
    """What a peer tells; every method is called on the event loop and must not raise."""

    def peer_said(self, message: str | bytes) -> None:
        """A message has come over the data channel."""

    def peer_opened(self) -> None:
        """The data channel is open (again)."""

    def peer_heard(self, pcm: bytes, now: float) -> None:
        """Sound of the microphone: mono int16 at 16 kHz."""

    def peer_played(self, total_ms: float, now: float) -> None:
        """So much of what was given to :meth:`RtcPeer.play` has left, since the beginning."""

    def peer_saw(self, jpeg: bytes | None, now: float) -> None:
        """A picture of the camera; None when it is off."""

    def peer_lost(self) -> None:
        """The other side has not been heard of for half a minute."""

    def peer_back(self) -> None:
        """The other side is reached on another way (an ICE restart)."""

    def peer_gone(self) -> None:
        """The other side has ended the connection."""
