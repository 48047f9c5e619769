"""Whatever a training script has becomes one form a kind, or a clear error; what is returned shares nobody else's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from large import of_torch
from wherry.loggers.values.canonical import (
    copy_audio,
    copy_images,
    copy_video,
    to_audio,
    to_histogram,
    to_image,
    to_images,
    to_mask,
    to_numpy,
    to_point_cloud,
    to_scalar,
    to_video,
)

RNG = np.random.default_rng(0)


# -- numbers


@pytest.mark.parametrize(
    "value",
    [
        *(2, 2.0, True + 1, np.float32(2), np.int8(2), np.array(2), np.array([[2.0]])),
        *([2], [[2.0]], of_torch(lambda torch: torch.tensor(2)), of_torch(lambda torch: torch.tensor([2.0], requires_grad=True))),
        of_torch(lambda torch: torch.tensor(2.0, dtype=torch.bfloat16)),
    ],
    ids=str,
)
def test_a_scalar_is_any_number_of_one_element(value: object) -> None:
    found = to_scalar(value, "value/loss")
    assert (2.0, float) == (found, type(found))


@pytest.mark.parametrize(
    ("value", "words"), [([1, 2], r"\(2,\)"), (np.zeros(0), r"\(0,\)"), ("one", "value/loss"), (None, "value/loss")]
)
def test_what_is_no_scalar_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        to_scalar(value, "value/loss")
    assert str(caught.value).startswith("value/loss")


@pytest.mark.large
def test_nan_and_infinity_are_scalars() -> None:
    import torch

    assert np.isnan(to_scalar(float("nan"), "x"))
    assert np.inf == to_scalar(torch.tensor(float("inf")), "x")


@pytest.mark.parametrize("make", [np.array, of_torch(lambda torch: torch.tensor), list], ids=["numpy", "torch", "list"])
def test_an_array_is_a_copy(make: Callable[[Any], Any]) -> None:
    given = make([1.0, 2.0])
    found = to_numpy(given)
    given[0] = 9.0
    assert [1.0, 2.0] == list(found)


# -- images


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 7), (1, 6, 7)),
        ((1, 6, 7), (1, 6, 7)),
        ((3, 6, 7), (3, 6, 7)),
        ((4, 6, 7), (4, 6, 7)),
        ((6, 7, 1), (1, 6, 7)),
        ((6, 7, 3), (3, 6, 7)),
        ((6, 7, 4), (4, 6, 7)),
        ((3, 32, 3), (3, 32, 3)),
    ],
)
def test_an_image_has_its_channels_first(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    image = RNG.random(shape)
    found = to_image(image, "x")
    assert (expected, np.uint8) == (found.shape, found.dtype.type)


def test_channels_last_decides_where_both_ends_could_be_channels() -> None:
    image = RNG.random((3, 32, 4))
    assert ((3, 32, 4), (4, 3, 32)) == (to_image(image, "x").shape, to_image(image, "x", channels_last=True).shape)


@pytest.mark.parametrize("shape", [(5,), (2, 6, 7), (6, 7, 5), (2, 2, 3, 4, 5), (0, 5), (3, 0, 4)])
def test_a_shape_that_is_no_image_is_refused_with_what_is_accepted(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="value/image") as caught:
        to_image(np.zeros(shape), "value/image")
    assert str(shape) in str(caught.value)
    assert "(C,H,W)" in str(caught.value)


@pytest.mark.large
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # within 0..1: as they are
        ([-1.0, 0.0, 1.0], [0, 128, 255]),  # below 0: the range is -1..1
        ([0.0, 5.0, 10.0], [0, 128, 255]),
        ([0.25, 0.25, 0.25], [64, 64, 64]),  # constant
        ([0.0, 0.0, 0.0], [0, 0, 0]),
        ([float("nan"), 0.0, 1.0], [0, 0, 255]),
        ([float("-inf"), 0.0, float("inf")], [0, 0, 255]),
    ],
)
def test_floats_are_spread_over_the_range_from_the_lowest_or_0_to_the_highest_or_1(values: Any, expected: Any) -> None:
    import torch

    for dtype in (np.float64, np.float32):
        assert expected == to_image(np.array([values], dtype), "x")[0, 0].tolist()
    assert expected == to_image(torch.tensor([values], dtype=torch.float32, requires_grad=True), "x")[0, 0].tolist()


def test_bytes_stay_as_they_are_and_wholes_beyond_them_are_spread() -> None:
    assert [0, 7, 255] == to_image(np.array([[0, 7, 255]], np.uint8), "x")[0, 0].tolist()
    assert [0, 7, 255] == to_image(np.array([[0, 7, 255]]), "x")[0, 0].tolist()
    assert [0, 128, 255] == to_image(np.array([[0, 500, 1000]]), "x")[0, 0].tolist()
    assert [0, 255] == to_image(np.array([[False, True]]), "x")[0, 0].tolist()


@pytest.mark.parametrize(
    ("shape", "n", "one"),
    [
        ((6, 7), 1, (1, 6, 7)),
        ((5, 3, 6, 7), 5, (3, 6, 7)),
        ((5, 6, 7, 3), 5, (3, 6, 7)),
        ((5, 6, 7), 5, (1, 6, 7)),
        ((3, 6, 7), 1, (3, 6, 7)),
    ],
)
def test_a_batch_is_a_list_of_images(shape: tuple[int, ...], n: int, one: tuple[int, ...]) -> None:
    found = to_images(RNG.random(shape), "x")
    assert (n, one) == (len(found), found[0].shape)


@pytest.mark.parametrize(("what", "shape"), [(to_images, (8, 9, 2)), (to_images, (2, 6, 2)), (to_video, (8, 9, 2))])
def test_two_channels_are_not_the_width_of_many_pictures(what: Callable[..., object], shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"cannot have the shape .* 2\); give .*\([BT],?C?,?H,W\)"):
        what(np.zeros(shape), "x")


def test_images_of_a_sequence_may_differ_in_size_and_share_one_scale() -> None:
    found = to_images([np.full((2, 3), 2.0), np.full((3, 4, 5), 1.0)], "x")
    assert [(1, 2, 3), (3, 4, 5)] == [image.shape for image in found]
    assert (255, 128) == (found[0].max(), found[1].max())


@pytest.mark.parametrize("kind", [to_image, to_video, to_images])
def test_no_memory_is_shared(kind: Callable[..., Any]) -> None:
    given = np.zeros((3, 8, 9), np.uint8)
    found = kind(given, "x")
    given[:] = 9
    assert 0 == np.max(found)


# -- masks


def test_a_mask_fits_its_image_or_is_refused() -> None:
    mask = np.arange(6).reshape(2, 3)
    assert mask.tolist() == to_mask(mask[None], "x", 2, 3).tolist() == to_mask(mask.astype(float), "x", 2, 3).tolist()
    assert [[0, 1]] == to_mask(np.array([[False, True]]), "x", 1, 2).tolist()
    with pytest.raises(ValueError, match=r"value/mask.*\(2, 3\).*\(4,3\)"):
        to_mask(mask, "value/mask", 4, 3)
    with pytest.raises(ValueError, match="whole number"):
        to_mask(mask + 0.5, "value/mask", 2, 3)


# -- sound


@pytest.mark.parametrize("shape", [(100,), (1, 100), (100, 1), (2, 100), (100, 2)])
def test_sound_is_one_row_of_samples(shape: tuple[int, ...]) -> None:
    found = to_audio(np.full(shape, 0.5), "x")
    assert ((100,), np.float32, 0.5) == (found.shape, found.dtype.type, found[0])


def test_a_peak_above_one_becomes_one_and_silence_stays_silence() -> None:
    assert [0.5, -1.0] == to_audio(np.array([2.0, -4.0]), "x").tolist()
    assert [0.0, 0.0] == to_audio(np.zeros(2), "x").tolist()
    assert [0.0, 1.0] == to_audio(np.array([np.nan, np.inf]), "x").tolist()
    assert 0.5 == to_audio(np.array([2**14], np.int16), "x")[0]


@pytest.mark.parametrize("shape", [(3, 100), (0,), (2, 3, 100)])
def test_what_is_no_sound_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="value/sound"):
        to_audio(np.zeros(shape), "value/sound")


# -- video, points, histograms


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 6, 7), (5, 1, 6, 7)),
        ((5, 3, 6, 7), (5, 3, 6, 7)),
        ((5, 6, 7, 3), (5, 3, 6, 7)),
        ((1, 3, 6, 7), (1, 3, 6, 7)),
    ],
)
def test_a_video_has_frames_then_channels(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    found = to_video(RNG.random(shape), "x")
    assert (expected, np.uint8) == (found.shape, found.dtype.type)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        *[((9, 3), (1, 9, 3)), ((3, 9), (1, 9, 3)), ((4, 9, 3), (4, 9, 3)), ((4, 3, 9), (4, 9, 3)), ((3, 3), (1, 3, 3))],
        *[((2, 4, 5, 3), (2, 20, 3)), ((2, 3, 4, 5), (2, 20, 3)), ((2, 4, 3, 5), (2, 20, 3)), ((3, 4, 5), (4, 5, 3))],
        *[((3, 2, 4, 5), (2, 20, 3)), ((2, 4, 5, 3, 6), (2, 120, 3)), ((3,), (1, 1, 3))],
    ],
)
def test_points_have_their_coordinates_last(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    found = to_point_cloud(RNG.random(shape), "x")
    assert (expected, np.float32) == (found.shape, found.dtype.type)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 5), (2, 4, 5, 3, 6), (3, 2, 4, 5)])
def test_the_dimension_of_size_three_has_the_coordinates_wherever_it_is(shape: tuple[int, ...]) -> None:
    along = [1] * len(shape)
    along[shape.index(3)] = 3
    given = np.broadcast_to(np.array([7.0, 8.0, 9.0]).reshape(along), shape)
    assert (to_point_cloud(given, "x") == [7.0, 8.0, 9.0]).all()


@pytest.mark.parametrize("shape", [(3, 3), (3, 5, 3), (2, 3, 3), (3, 3, 3)])
def test_points_in_their_canonical_form_stay_what_they_are(shape: tuple[int, ...]) -> None:
    given = RNG.random(shape, np.float32)
    np.testing.assert_array_equal(given, to_point_cloud(given, "x").reshape(shape))


def test_a_batch_of_three_clouds_is_read_as_one_of_two_is() -> None:
    clouds = RNG.random((3, 3, 9), np.float32)
    for found, cloud in zip(to_point_cloud(clouds, "x"), clouds, strict=True):
        np.testing.assert_array_equal(cloud.T, found)


def test_of_many_points_the_same_are_taken_of_each_cloud_and_at_each_call() -> None:
    cloud = RNG.random((500, 3), np.float32)
    first, second = (to_point_cloud(np.stack([cloud, cloud]), "x", max_points=10) for _ in range(2))
    assert (2, 10, 3) == first.shape
    assert np.array_equal(first, second)
    assert np.array_equal(first[0], first[1])


@pytest.mark.parametrize("shape", [(5,), (5, 4), (0, 3), (2, 4, 5), ()])
def test_what_are_no_points_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^value/points: .*any shape with a dimension of 3"):
        to_point_cloud(np.zeros(shape), "value/points")


def test_a_histogram_counts_what_is_finite_and_says_what_is_not() -> None:
    values = np.array([0.0, 1.0, 1.0, 4.0, np.nan, np.inf, -np.inf])
    found = to_histogram(values.reshape(7, 1), "x", n_bins=4)
    assert ([1, 2, 0, 1], [0.0, 1.0, 2.0, 3.0, 4.0]) == (found.counts.tolist(), found.edges.tolist())
    assert (4, 0.0, 4.0, 6.0, 18.0) == (found.n, found.min, found.max, found.sum, found.sum_squares)
    assert (1, 2) == (found.n_nan, found.n_inf)


def test_a_histogram_of_one_value_and_of_none_at_all_works() -> None:
    assert 3 == to_histogram(np.full(3, 7.0), "x").counts.sum()
    assert 0 == to_histogram(np.array([np.nan]), "x").n


@pytest.mark.parametrize(
    "value",
    [
        np.linspace(-1, 2, 60).reshape(4, 5, 3),
        np.linspace(-1, 2, 240).reshape(4, 4, 5, 3),
        np.arange(24).reshape(2, 3, 4),
        [np.zeros((5, 6)), np.ones((3, 4, 5)) * 7],
        np.ones((4, 5), bool),
    ],
)
def test_images_that_are_copied_first_and_made_later_are_the_same(value: Any) -> None:
    copies = copy_images(value, "x")
    assert not any(np.shares_memory(copy, value) for copy in copies if isinstance(value, np.ndarray))
    for now, later in zip(to_images(value, "x"), to_images(copies, "x"), strict=True):
        np.testing.assert_array_equal(now, later)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 3), (4, 3, 5, 6), (1, 4, 3, 3, 3)])
def test_videos_that_are_copied_first_and_made_later_are_the_same(shape: tuple[int, ...]) -> None:
    value = np.linspace(-1, 2, int(np.prod(shape))).reshape(shape)
    copy = copy_video(value, "x")
    assert not np.shares_memory(copy, value)
    np.testing.assert_array_equal(to_video(value, "x"), to_video(copy, "x"))


@pytest.mark.parametrize("shape", [(8,), (2, 8), (8, 2), (2, 2), (1, 1, 8)])
def test_sounds_that_are_copied_first_and_made_later_are_the_same(shape: tuple[int, ...]) -> None:
    value = np.linspace(-2, 1, int(np.prod(shape))).reshape(shape)
    copy = copy_audio(value, "x")
    assert not np.shares_memory(copy, value)
    np.testing.assert_array_equal(to_audio(value, "x"), to_audio(copy, "x"))


@pytest.mark.parametrize("copy", [copy_images, copy_video, copy_audio])
def test_what_is_copied_is_checked_at_once(copy: Any) -> None:
    with pytest.raises(ValueError, match=r"^run/x: .*\(2, 3, 4, 5, 6, 7\)"):
        copy(np.zeros((2, 3, 4, 5, 6, 7)), "run/x")
