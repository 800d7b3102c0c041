"""The sentence encoder: the right weights, unit length, meaning, and no surprises in batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_lib import encoder
from rapo_lib.encoder import embed, embed_middle
from rapo_lib.runs import RapoError

SENTENCES = ["My dog died on Sunday.", "I lost my pet at the weekend.", "The train leaves at noon."]


def test_shape_type_and_length():
    vectors = embed(SENTENCES)
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert embed([]).shape == (0, 384)


def test_meaning_is_closer_than_other_words():
    dog, pet, train = embed(SENTENCES)
    assert dog @ pet > 0.5 > 0.2 > dog @ train


def test_padding_does_not_matter():
    encoder._memory.clear()
    alone = embed(["My dog died."])
    encoder._memory.clear()
    beside = embed(["My dog died.", "word " * 60])[:1]
    np.testing.assert_allclose(alone, beside, atol=1e-5)


def test_mean_pooling_by_hand():
    """One text without padding: the mean over its tokens, computed here from the model itself."""
    model, tokenizer = encoder._load()
    with torch.inference_mode():
        layers = model(**tokenizer(["Hello there."], return_tensors="pt"), output_hidden_states=True).hidden_states
    for layer, ours in ((-1, embed), (encoder.MIDDLE, embed_middle)):
        mean = layers[layer][0].numpy().mean(0)
        np.testing.assert_allclose(ours(["Hello there."])[0], mean / np.linalg.norm(mean), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=5))
def test_any_text_in_order_and_remembered(texts):
    first, again = embed(texts), embed(texts[::-1])[::-1]
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all()


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(encoder, "REMEMBERED", 2)
    encoder._memory.clear()
    for text in SENTENCES:
        embed([text])
        assert len(encoder._memory) <= 2
    assert embed(SENTENCES).shape == (3, 384)


def test_missing_package_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(encoder, "CARRIER", "no_such_carrier")
    encoder.encoder_folder.cache_clear()
    with pytest.raises(RapoError, match="run `rapo model`"):
        encoder.encoder_folder()
    encoder.encoder_folder.cache_clear()


def test_damaged_weights_are_refused(monkeypatch, tmp_path):
    (tmp_path / "carrier" / "model").mkdir(parents=True)
    (tmp_path / "carrier" / "__init__.py").touch()
    (tmp_path / "carrier" / "model" / "model.safetensors").write_bytes(b"cut short")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(encoder, "CARRIER", "carrier")
    encoder.encoder_folder.cache_clear()
    with pytest.raises(RapoError, match="damaged"):
        encoder.encoder_folder()
    encoder.encoder_folder.cache_clear()
