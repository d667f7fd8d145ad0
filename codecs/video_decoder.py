"""Coded pictures to pictures. For threads: decoding blocks, and lets go of the interpreter."""

from collections.abc import Callable, Sequence

import av
from av.error import FFmpegError

from duologue.codecs.frame_assembly import CodedPicture
from duologue.codecs.media import MalformedDataError
from duologue.codecs.picture import video_context

_DECODERS = {"VP8": "vp8", "H264": "h264"}


class VideoDecoder:
    """One source's decoder, by its codec's name in SDP (VP8, H264)."""

    def __init__(self, name: str) -> None:
        self._name = _DECODERS[name]
        self._context = video_context(self._name, "r")
        self.decoded = 0

    def decode(
        self, pictures: Sequence[CodedPicture], stopped: Callable[[], bool]
    ) -> av.VideoFrame | None:
        """The last of the pictures, which follow the ones before without a gap.

        Those that no other needs are passed over, but for the last. None when `stopped`, which is
        asked between two pictures, or when there is nothing to show. MalformedDataError: nothing
        before the next key picture can be decoded.
        """
        last: av.VideoFrame | None = None
        for number, picture in enumerate(pictures):
            if stopped():
                return None
            if picture.disposable and number < len(pictures) - 1:
                continue
            packet = av.Packet(picture.data)
            packet.pts = picture.timestamp
            try:
                frames = self._context.decode(packet)
            except FFmpegError as error:
                self._context = video_context(self._name, "r")
                raise MalformedDataError(f"a damaged {self._name} picture") from error
            self.decoded += 1
            if frames:
                last = frames[-1]
        return last
