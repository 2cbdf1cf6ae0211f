"""The emulated clusters of benchmarks, on which `scripts/draw_timelines.py` draws, too."""

from benchmarks.emulated import SCALES
from scripts.draw_timelines import PICTURES


def test_every_picture_is_of_a_model_that_has_scales() -> None:
    assert {picture.model for picture in PICTURES} <= SCALES.keys()
