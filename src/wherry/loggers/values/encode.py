"""Images, sounds, videos and points as files of common formats.

They take what `canonical.py` makes: images (C, H, W) uint8 with C of 1, 3 or 4, videos (T, C, H, W) uint8, sound (T,) float32
within -1 and 1, points (N, 3) float32. Pillow encodes images, PyAV encodes videos; MissingExtraError if they are missing.
"""

from __future__ import annotations

import io
import json
import os
import wave
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wherry.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as PillowImage

#: zlib's level. It takes a third of the time of the default level, and a tenth more space.
_PNG_LEVEL = 3
#: H.264's quality: visually lossless.
_CRF = "18"


@cache
def require(module: str, package: str) -> None:
    """Import a library of the extra ``media``; MissingExtraError if it is not installed.

    The thread that logs calls it, and waits for the import the first time. The thread that encodes must not import: if another
    thread forked at that moment, as a DataLoader does for its workers, the library would stay half imported in the child.
    """
    if find_spec(module.partition(".")[0]) is None:
        raise MissingExtraError(f"this needs {package}, which is not installed: pip install 'wherry[media]'")
    library = import_module(module)
    # And what the library imports only at its first use:
    if module == "PIL.Image":
        library.preinit()  # the formats, PNG and GIF among them
    elif module == "av":
        with suppress(ImportError):  # not in every release
            import_module("av.subtitles.stream")


def png_bytes(image_chw: NDArray[np.uint8]) -> bytes:
    """A PNG: grey, RGB or RGBA."""
    return _png(picture(image_chw))


def mask_png_bytes(mask: NDArray[np.integer], labels: Mapping[int, str] | None = None) -> bytes:
    """A mask (H, W) of 0 to 255 as an indexed PNG: the index of a pixel is its label, the palette has the colours.

    `labels` (number -> class) is stored as JSON in the PNG's text "classes".
    """
    require("PIL.Image", "Pillow")
    import numpy as np
    from PIL import Image, PngImagePlugin

    info = PngImagePlugin.PngInfo()
    if labels:
        info.add_itxt("classes", json.dumps({str(number): str(name) for number, name in labels.items()}, ensure_ascii=False))
    indexed = Image.fromarray(np.ascontiguousarray(mask, np.uint8))
    indexed.putpalette(mask_palette())
    return _png(indexed, info)


def wav_bytes(audio: NDArray[np.float32], sample_rate_hz: int) -> bytes:
    """A WAV of 16-bit samples, one channel. Samples outside -1 and 1 are clipped."""
    import numpy as np

    samples = np.round(np.clip(np.nan_to_num(audio), -1.0, 1.0) * 32_767.0).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def write_mp4(video_tchw: NDArray[np.uint8], frames_per_s: float, path: str | os.PathLike[str]) -> None:
    """Write an MP4 that browsers play: H.264, yuv420p, index at the front. An odd height or width is padded by one pixel."""
    require("av", "PyAV")
    import av
    import numpy as np

    n_frames, _, height, width = video_tchw.shape
    if not n_frames or not height or not width:
        raise ValueError(f"a video of shape {video_tchw.shape} (T, C, H, W) has no picture")
    even = ((0, height % 2), (0, width % 2), (0, 0))  # yuv420p stores one colour for 2 x 2 pixels
    with av.open(os.fspath(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=_rate(frames_per_s), options={"crf": _CRF})
        stream.height, stream.width, stream.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
        stream.thread_count = 1  # leave the processors to the training
        for image_chw in video_tchw:
            frame = np.pad(_rgb(image_chw), even, mode="edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def gif_bytes(video_tchw: NDArray[np.uint8], frames_per_s: float) -> bytes:
    """An endless animated GIF of at most 50 frames a second, as viewers slow down frames shorter than 2/100 s."""
    require("PIL.Image", "Pillow")
    from PIL import Image

    frames = [Image.fromarray(_rgb(image_chw)) for image_chw in video_tchw]
    if not frames:
        raise ValueError(f"a video of shape {video_tchw.shape} (T, C, H, W) has no picture")
    duration_ms = max(2, round(100 / float(_rate(frames_per_s)))) * 10
    out = io.BytesIO()
    frames[0].save(out, format="GIF", save_all=True, append_images=frames[1:], duration=duration_ms, loop=0)
    return out.getvalue()


def ply_bytes(points_n3: NDArray[np.float32]) -> bytes:
    """Points (N, 3) in binary little-endian PLY (http://paulbourke.net/dataformats/ply/)."""
    properties = [f"property float {axis}" for axis in "xyz"]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points_n3)}", *properties, "end_header", ""]
    return "\n".join(header).encode("ascii") + points_n3.astype("<f4").tobytes()


def _rate(frames_per_s: float) -> Fraction:
    if not 0 < frames_per_s < 1000:
        raise ValueError(f"frames_per_s is {frames_per_s}: it must be above 0 and below 1000")
    return Fraction(frames_per_s).limit_denominator(1001)  # 29.97 frames a second are 30000/1001


def _rgb(image_chw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """As (H, W, 3): grey is repeated, transparency is removed."""
    import numpy as np

    return np.ascontiguousarray(np.moveaxis(np.broadcast_to(image_chw[:3], (3, *image_chw.shape[1:])), 0, -1))


def picture(image_chw: NDArray[np.uint8]) -> PillowImage.Image:
    """Pillow's image: grey, RGB or RGBA."""
    require("PIL.Image", "Pillow")
    import numpy as np
    from PIL import Image

    if image_chw.ndim != 3 or image_chw.shape[0] not in (1, 3, 4) or 0 in image_chw.shape:
        raise ValueError(f"an image of shape {image_chw.shape} is none: it must be (C, H, W) with C of 1, 3 or 4")
    is_grey = image_chw.shape[0] == 1
    return Image.fromarray(np.ascontiguousarray(image_chw[0] if is_grey else np.moveaxis(image_chw, 0, -1)))


def _png(image: PillowImage.Image, info: object = None) -> bytes:
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=_PNG_LEVEL, pnginfo=info)
    return out.getvalue()


@cache
def mask_palette() -> bytes:
    """The 256 colours of Pascal VOC, which many viewers of segmentations use; label 0 is black.

    Of label bits 8 7 6 5 4 3 2 1, red has as its highest bits 1 4 7, green 2 5 8, and blue 3 6.
    """
    colors = (sum((label >> 3 * i + channel & 1) << 7 - i for i in range(3)) for label in range(256) for channel in range(3))
    return bytes(colors)
