"""Still pictures: JPEG, PNG and WebP to RGB, and a video's picture to JPEG.

A file's kind is told by its first bytes and decoded by that decoder alone: FFmpeg's own guessing
would also open play lists, which name other files.
"""

from fractions import Fraction
from typing import Final, Literal, cast

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from duologue.codecs.media import MalformedDataError

MOST_PIXELS: Final = 4096 * 4096
MOST_BYTES: Final = 16 * 1024 * 1024
JPEG_QUALITY: Final = 4
"""FFmpeg's scale, 2 (best) to 31; a picture of 640 x 480 takes about 40 kB at 4."""


def kind_of(data: bytes) -> str:
    """``jpeg``, ``png`` or ``webp``. MalformedDataError for anything else."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    raise MalformedDataError("neither a JPEG, a PNG nor a WebP picture")


def video_context(codec: str, mode: Literal["r", "w"]) -> av.VideoCodecContext:
    """One of FFmpeg's, bounded in pixels. Of one thread: several would hold pictures back, and a
    call's share of the machine is one."""
    context = cast(av.VideoCodecContext, av.CodecContext.create(codec, mode))
    context.thread_count = 1
    context.options = {"max_pixels": str(MOST_PIXELS)}
    return context


def decode_picture(data: bytes) -> NDArray[np.uint8]:
    """RGB of shape (height, width, 3). MalformedDataError; blocks for some milliseconds."""
    if len(data) > MOST_BYTES:
        raise MalformedDataError(f"a picture of {len(data)} bytes; at most {MOST_BYTES} are read")
    kind = kind_of(data)
    context = video_context("mjpeg" if kind == "jpeg" else kind, "r")
    try:
        frames = [*context.decode(av.Packet(data)), *context.decode(None)]
    except FFmpegError as error:
        raise MalformedDataError(f"a damaged {kind} picture") from error
    if not frames:
        raise MalformedDataError(f"a {kind} picture with nothing in it")
    return np.ascontiguousarray(frames[0].to_ndarray(format="rgb24"), np.uint8)


def fitted(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size scaled down to a longest side, both sides even and at least 2."""
    scale = min(1.0, longest / max(width, height))
    return max(2, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)


def encode_jpeg(frame: av.VideoFrame, longest: int) -> bytes:
    """A picture as JPEG, no side longer than ``longest``. MalformedDataError; blocks."""
    width, height = fitted(frame.width, frame.height, longest)
    try:
        scaled = frame.reformat(
            width=width, height=height, format="yuvj420p", dst_color_range="JPEG"
        )
        encoder = video_context("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
        encoder.framerate = Fraction(1)
        encoder.options = {"qmin": str(JPEG_QUALITY), "qmax": str(JPEG_QUALITY)}
        scaled.pts = 0
        return b"".join(map(bytes, [*encoder.encode(scaled), *encoder.encode(None)]))
    except FFmpegError as error:
        raise MalformedDataError(f"a picture that can't be encoded: {error}") from error


def frame_of(pixels: NDArray[np.uint8]) -> av.VideoFrame:
    """RGB of shape (height, width, 3) as FFmpeg takes it."""
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")


def resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """RGB scaled to a size, whatever its shape becomes."""
    frame = frame_of(pixels).reformat(width=width, height=height, format="rgb24")
    return np.ascontiguousarray(frame.to_ndarray(), np.uint8)
