"""KL from the start on a tiny Llama: zero at the start, hand-computed after a change, unbiased for what is sampled."""

import numpy as np
import pytest
import torch
from peft import get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from rapo_lib.dialogue import Turn, to_messages
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.measures.divergence import divergence, partway
from rapo_lib.models import load_tokenizer, lora_config
from rapo_lib.sampling import prompt_ids

HISTORIES = [
    (Turn("seeker", "I lost my job."),),
    (Turn("seeker", "Hi."), Turn("supporter", "Yes?"), Turn("seeker", "Well.")),
]
REPLIES = ["What happened there?", "I see."]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def policy(tokenizer, temperature=0.8, moved=True):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2,
                         pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    model = get_peft_model(LlamaForCausalLM(config), lora_config(4, 8)).eval()
    if moved:
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    return ModelPolicy(model=model, tokenizer=tokenizer, temperature=temperature, reply_tokens=12)


def logp(p, ids):
    """log pi of the next token, (V,), without batching or padding."""
    with torch.no_grad():
        return torch.log_softmax(p.model(input_ids=torch.tensor([ids])).logits[0, -1] / p.temperature, -1)


def by_hand(p, history, reply):
    """KL and log-ratio a token, one token at a time."""
    ids, said = prompt_ids(to_messages(history), p.tokenizer), p.tokenizer(reply, add_special_tokens=False)["input_ids"]
    kl = ratio = 0.0
    for token in said:
        tuned = logp(p, ids)
        with p.model.disable_adapter():
            start = logp(p, ids)
        kl += (tuned.exp() * (tuned - start)).sum().item()
        ratio += (tuned - start)[token].item()
        ids = [*ids, token]
    return kl / len(said), ratio / len(said)


def test_it_equals_the_kl_computed_a_token_at_a_time(tokenizer):
    p = policy(tokenizer)
    found = divergence(p, HISTORIES, REPLIES)
    expected = [by_hand(p, h, r)[0] for h, r in zip(HISTORIES, REPLIES, strict=True)]
    assert found == pytest.approx(expected, rel=1e-3) and found.min() > 0.01
    assert divergence(p, HISTORIES[::-1], REPLIES[::-1], batch=1)[::-1] == pytest.approx(found, rel=1e-3)


def test_the_start_has_not_moved(tokenizer):
    assert divergence(policy(tokenizer, moved=False), HISTORIES, REPLIES) == pytest.approx([0, 0], abs=1e-6)
    plain = policy(tokenizer).model.get_base_model()
    assert divergence(ModelPolicy(model=plain, tokenizer=tokenizer), HISTORIES, REPLIES).tolist() == [0.0, 0.0]


def test_over_sampled_replies_its_mean_is_that_of_the_log_ratio_with_less_noise(tokenizer):
    p = policy(tokenizer)
    asked = HISTORIES[:1] * 48
    replies = p(asked, seed=3)
    kl, ratio = divergence(p, asked, replies), np.array([by_hand(p, HISTORIES[0], r)[1] for r in replies])
    assert kl.std() < ratio.std() / 2
    assert kl.mean() == pytest.approx(ratio.mean(), abs=3 * ratio.std() / 48**0.5)


def test_a_reply_without_tokens_has_no_divergence(tokenizer):
    found = divergence(policy(tokenizer), HISTORIES, ["", "I see."])
    assert found[0] != found[0] and found[1] == found[1]


def test_partway_is_the_start_at_0_and_the_trained_policy_at_1(tokenizer):
    p, start = policy(tokenizer), policy(tokenizer, moved=False)
    trained, untrained = p(HISTORIES, seed=1), start(HISTORIES, seed=1)
    assert trained != untrained
    with partway(p.model, 0.0):
        assert p(HISTORIES, seed=1) == untrained
        assert divergence(p, HISTORIES, REPLIES) == pytest.approx([0, 0], abs=1e-6)
    with partway(p.model, 1.0):
        assert p(HISTORIES, seed=1) == trained
    far = abs(divergence(p, HISTORIES, REPLIES)).mean()
    with pytest.raises(KeyError), partway(p.model, 0.5):
        assert 0 < abs(divergence(p, HISTORIES, REPLIES)).mean() < far
        raise KeyError
    assert p(HISTORIES, seed=1) == trained  # as it was, also after an error
