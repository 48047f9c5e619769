"""encode: what other libraries read back from the bytes is what was given."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from plyfile import PlyData

from wherry.loggers.values.encode import gif_bytes, mask_png_bytes, ply_bytes, png_bytes, wav_bytes, write_mp4

RNG = np.random.default_rng(7)


def random_bytes(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, shape, np.uint8)


def smooth_video(n_frames: int, n_channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """Something that a lossy encoder keeps: a slope that gets brighter."""
    slope = np.linspace(0, 200, width)[None, None, None, :] + np.arange(n_frames)[:, None, None, None] * 2
    return np.broadcast_to(slope, (n_frames, n_channels, height, width)).astype(np.uint8)


def frames_of(path: Path) -> tuple[NDArray[Any], Any]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
        return frames, (stream.codec_context.name, stream.codec_context.pix_fmt, stream.average_rate)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (4, 5, 7), (3, 1, 1), (1, 300, 2)])
def test_a_png_has_every_pixel(shape: tuple[int, int, int]) -> None:
    image = random_bytes(*shape)
    read = np.array(Image.open(io.BytesIO(png_bytes(image))))
    assert np.array_equal(read if read.ndim == 3 else read[..., None], np.moveaxis(image, 0, -1))


@pytest.mark.parametrize("shape", [(2, 5, 7), (5, 7), (3, 0, 7)])
def test_what_is_no_image_is_a_clear_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \(C, H, W\)"):
        png_bytes(np.zeros(shape, np.uint8))


def test_a_memory_view_that_is_not_contiguous_is_encoded_as_it_is() -> None:
    image = np.moveaxis(random_bytes(6, 8, 3), -1, 0)[:, ::2, ::-1]
    assert np.array_equal(np.array(Image.open(io.BytesIO(png_bytes(image)))), np.moveaxis(image, 0, -1))


def test_a_masks_pixels_are_its_labels_and_its_classes_are_in_the_file() -> None:
    mask = RNG.integers(0, 21, (9, 11))
    picture = Image.open(io.BytesIO(mask_png_bytes(mask, {0: "sky", 1: "größe"})))
    assert picture.mode == "P"
    assert np.array_equal(np.array(picture), mask)
    assert json.loads(picture.info["classes"]) == {"0": "sky", "1": "größe"}


def test_a_masks_colours_are_those_of_pascal_voc() -> None:
    mask = np.arange(256).reshape(16, 16)
    colours = np.array(Image.open(io.BytesIO(mask_png_bytes(mask))).convert("RGB")).reshape(256, 3)
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    assert {label: tuple(map(int, colours[label])) for label in known} == known
    assert len(np.unique(colours, axis=0)) == 256


def test_a_wav_has_every_sample_in_16_bits() -> None:
    samples = np.array([0.0, 1.0, -1.0, 0.5, 2.0, -2.0, np.nan], np.float32)
    with wave.open(io.BytesIO(wav_bytes(samples, 8000))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
        assert np.frombuffer(file.readframes(99), "<i2").tolist() == [0, 32767, -32767, 16384, 32767, -32767, 0]


def test_silence_and_no_sound_at_all_are_wavs() -> None:
    for n in (0, 100):
        with wave.open(io.BytesIO(wav_bytes(np.zeros(n, np.float32), 44_100))) as file:
            assert file.readframes(999) == bytes(2 * n)


@pytest.mark.parametrize("n_channels", [1, 3, 4])
def test_an_mp4_has_all_frames_at_its_rate_for_browsers(n_channels: int, tmp_path: Path) -> None:
    video = smooth_video(10, n_channels, 32, 64)
    write_mp4(video, 12.5, tmp_path / "a.mp4")
    frames, (codec, pixels, rate) = frames_of(tmp_path / "a.mp4")
    assert (codec, pixels, float(rate)) == ("h264", "yuv420p", 12.5)
    expected = np.moveaxis(np.broadcast_to(video[:, :3], (10, 3, 32, 64)), 1, -1)
    assert frames.shape == expected.shape
    assert np.abs(frames.astype(int) - expected).mean() < 4
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat")


@pytest.mark.parametrize("size", [(1, 1), (31, 33), (32, 33)])
def test_an_odd_size_gets_one_more_line(size: tuple[int, int], tmp_path: Path) -> None:
    write_mp4(smooth_video(3, 3, *size), 12, tmp_path / "a.mp4")
    assert frames_of(tmp_path / "a.mp4")[0].shape == (3, size[0] + size[0] % 2, size[1] + size[1] % 2, 3)


def test_a_video_of_one_frame_is_one() -> None:
    picture = Image.open(io.BytesIO(gif_bytes(smooth_video(1, 3, 8, 8), 12)))
    assert getattr(picture, "n_frames", 1) == 1


def test_an_mp4_of_one_frame_is_one(tmp_path: Path) -> None:
    write_mp4(smooth_video(1, 1, 16, 16), 29.97, tmp_path / "a.mp4")
    assert len(frames_of(tmp_path / "a.mp4")[0]) == 1


def test_a_gif_has_all_frames_and_goes_on_for_ever() -> None:
    picture = Image.open(io.BytesIO(gif_bytes(random_bytes(5, 3, 12, 10), 10)))
    assert (sum(1 for _ in ImageSequence.Iterator(picture)), picture.size) == (5, (10, 12))
    picture.seek(0)
    assert (picture.info["duration"], picture.info["loop"]) == (100, 0)


@pytest.mark.parametrize("rate", [0, -1, 1000, float("nan")])
def test_a_frame_rate_that_is_none_is_a_clear_error(rate: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frames_per_s is"):
        gif_bytes(random_bytes(2, 3, 8, 8), rate)
    with pytest.raises(ValueError, match="frames_per_s is"):
        write_mp4(random_bytes(2, 3, 8, 8), rate, tmp_path / "a.mp4")


def test_no_frames_are_a_clear_error(tmp_path: Path) -> None:
    none = np.zeros((0, 3, 8, 8), np.uint8)
    with pytest.raises(ValueError, match="has no picture"):
        gif_bytes(none, 12)
    with pytest.raises(ValueError, match="has no picture"):
        write_mp4(none, 12, tmp_path / "a.mp4")


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_ply_has_every_point(n: int) -> None:
    points = RNG.normal(size=(n, 3)).astype(np.float32)
    vertices = PlyData.read(io.BytesIO(ply_bytes(points)))["vertex"]
    assert np.array_equal(np.stack([vertices[axis] for axis in "xyz"], -1), points)
