"""KL from the start on a tiny Llama: zero at the start, hand-computed after a change, unbiased for what is sampled."""

import pytest
import torch
from peft import get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from rapo_lib.dialogue import Turn, to_messages
from rapo_lib.divergence import divergence, partway
from rapo_lib.evaluation import ModelPolicy
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


def by_hand(p, history, reply, tuned):
    """log pi(y_t) one token at a time, without batching or padding."""
    ids, said = prompt_ids(to_messages(history), p.tokenizer), p.tokenizer(reply, add_special_tokens=False)["input_ids"]
    total = 0.0
    for token in said:
        with torch.no_grad():
            if tuned:
                logits = p.model(input_ids=torch.tensor([ids])).logits[0, -1]
            else:
                with p.model.disable_adapter():
                    logits = p.model(input_ids=torch.tensor([ids])).logits[0, -1]
        total += torch.log_softmax(logits / p.temperature, -1)[token].item()
        ids = [*ids, token]
    return total / len(said)


def test_it_equals_the_difference_computed_a_token_at_a_time(tokenizer):
    p = policy(tokenizer)
    found = divergence(p, HISTORIES, REPLIES)
    expected = [by_hand(p, h, r, True) - by_hand(p, h, r, False) for h, r in zip(HISTORIES, REPLIES, strict=True)]
    assert found == pytest.approx(expected, abs=1e-5) and abs(found).min() > 1e-3
    assert divergence(p, HISTORIES[::-1], REPLIES[::-1], batch=1)[::-1] == pytest.approx(found, abs=1e-5)


def test_the_start_has_not_moved(tokenizer):
    assert divergence(policy(tokenizer, moved=False), HISTORIES, REPLIES) == pytest.approx([0, 0], abs=1e-6)
    plain = policy(tokenizer).model.get_base_model()
    assert divergence(ModelPolicy(model=plain, tokenizer=tokenizer), HISTORIES, REPLIES).tolist() == [0.0, 0.0]


def test_its_mean_has_the_sign_of_who_spoke(tokenizer):
    """E_pi[log pi - log pi0] is a KL and never negative; over replies of pi0 it is minus the other KL."""
    p = policy(tokenizer)
    asked = HISTORIES[:1] * 64
    own = divergence(p, asked, p(asked, seed=3))
    foreign = divergence(p, asked, policy(tokenizer, moved=False)(asked, seed=3))
    assert own.mean() > 3 * own.std() / 8
    assert foreign.mean() < -3 * foreign.std() / 8


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
