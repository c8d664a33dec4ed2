import random

import numpy as np
import pytest

from tinyworld import layouts, scenes
from tinyworld.scenes import CANVAS, CELL, FIRST_TEST_DIGIT, Item, render


@pytest.mark.parametrize("layout", sorted(layouts.LAYOUTS))
def test_the_same_seed_draws_the_same_image(layout):
    def draw():
        rng = random.Random(f"same {layout}")
        return render(layouts.LAYOUTS[layout](rng), rng, "train")

    first, second = draw(), draw()
    assert first.items == second.items and first.boxes == second.boxes
    assert np.array_equal(np.asarray(first.image), np.asarray(second.image))


@pytest.mark.parametrize("kind", ["shape", "letter", "digit", "operator"])
def test_ink_is_inside_the_box_and_the_box_inside_its_cell(kind):
    names = {"shape": scenes.SHAPES, "letter": scenes.LETTERS, "digit": "0123456789", "operator": "+-"}[kind]
    for cell, name in enumerate(list(names)[:9]):
        rng = random.Random(f"{kind} {name}")
        items = tuple(Item(kind, name, "black") if i == cell else None for i in range(9))
        scene = render(items, rng, "test")
        left, top, right, bottom = scene.boxes[cell]
        assert cell % 3 * CELL <= left < right <= cell % 3 * CELL + CELL
        assert cell // 3 * CELL <= top < bottom <= cell // 3 * CELL + CELL
        pixels = np.asarray(scene.image).astype(int)
        dark = pixels.sum(-1) < 450
        outside = dark.copy()
        outside[top:bottom, left:right] = False
        assert dark.sum() > 20 and not outside.any()
        assert scene.image.size == (CANVAS, CANVAS)


def test_no_handwriting_is_shared_between_training_and_testing():
    train = np.concatenate([scenes._digit_indices(str(d), "train") for d in range(10)])
    test = np.concatenate([scenes._digit_indices(str(d), "test") for d in range(10)])
    assert train.max() < FIRST_TEST_DIGIT <= test.min()
    assert len(train) + len(test) == 1797
