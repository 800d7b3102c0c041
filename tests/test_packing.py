"""Group rows: the picture in numbers, and equality with one row per reply on the real model."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_lib.training.packing import pack, runs_of_equal, shared_prefix

token = st.integers(1, 9)


def test_a_row_by_hand():
    # prompt 1 2 3 shared by replies (4 5) and (6 7 8); the last prompt token is each branch's own
    rows = pack([[1, 2, 3]] * 2, [[4, 5], [6, 7, 8]], [2], width=3)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4, 3, 6, 7]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 2, 3, 4]]
    assert rows.segments.tolist() == [[0, 0, 1, 1, 2, 2, 2]]
    assert rows.predicts.tolist() == [[2, 3, 0], [4, 5, 6]]
    allowed = (rows.mask(torch.float32)[0, 0] == 0).int().tolist()
    assert allowed[3] == [1, 1, 1, 1, 0, 0, 0]  # reply token 4 sees the prompt and itself
    assert allowed[6] == [1, 1, 0, 0, 1, 1, 1]  # reply token 7 sees the prefix and its own branch only


def test_prompts_that_differ_late_share_what_they_can():
    rows = pack([[1, 2, 3, 9], [1, 2, 4, 4, 9]], [[5], [6]], [2], width=1)
    assert rows.input_ids.tolist() == [[1, 2, 3, 9, 4, 4, 9]]
    assert rows.predicts.tolist() == [[3], [6]]


def test_nobody_sees_padding_and_padding_sees_itself():
    rows = pack([[1, 2], [1, 2, 3, 4]], [[5], [6]], [1, 1], width=1)
    allowed = rows.mask(torch.float32)[0, 0] == 0
    assert not allowed[:2, 2:].any() and not allowed[3, 2]
    assert allowed[2, 2] and allowed[3, 3]


@given(st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=5))
def test_shared_prefix_is_shared_and_leaves_a_token(prompts):
    n = shared_prefix(prompts)
    assert all(p[:n] == prompts[0][:n] and len(p) > n for p in prompts)
    longer = n + 1 < min(map(len, prompts))
    assert not (longer and all(p[n] == prompts[0][n] for p in prompts))


def test_runs():
    assert runs_of_equal([[1], [1], [2], [1]]) == [2, 1, 1]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_states_equal_those_of_separate_rows(tiny_llama, data):
    """Whatever the prompts and replies, a branch's logits are those of prompt + reply alone."""
    ids = st.lists(st.integers(3, 90), min_size=1, max_size=7)
    groups = data.draw(st.lists(st.tuples(ids, st.lists(ids, min_size=1, max_size=3)), min_size=1, max_size=3))
    prompts = [p for p, replies in groups for _ in replies]
    replies = [r for _, group in groups for r in group]
    width = max(map(len, replies))
    rows = pack(prompts, replies, runs_of_equal(prompts), width)
    with torch.no_grad():
        states = tiny_llama.model(
            input_ids=rows.input_ids, attention_mask=rows.mask(torch.float32), position_ids=rows.position_ids
        ).last_hidden_state.flatten(0, 1)[rows.predicts]
        for n, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
            alone = tiny_llama.model(input_ids=torch.tensor([prompt + reply])).last_hidden_state[0]
            expected = alone[len(prompt) - 1 : len(prompt) + len(reply) - 1]
            assert torch.allclose(states[n, : len(reply)], expected, atol=1e-5)
