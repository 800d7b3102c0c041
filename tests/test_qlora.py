"""NF4 QLoRA on a CPU: gradients against the dequantised model, and real steps."""

import bitsandbytes.functional as bnb
import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from trainers import G, Scripted, rows, tiny
from transformers import LlamaForCausalLM

from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
from rapo_lib.models import load_model, load_tokenizer, lora_config, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = load_tokenizer()
    save_model(folder, tiny(tokenizer, hidden_size=64, intermediate_size=128, initializer_range=0.05), tokenizer)
    return folder


def dequantised(folder, quantised, dtype):
    """The same model with the values of the 4-bit weights as plain weights."""
    model, layers = LlamaForCausalLM.from_pretrained(folder, dtype=dtype), dict(quantised.named_modules())
    for name, module in model.named_modules():
        if type(layers[name]).__name__ == "Linear4bit":
            weight = layers[name].weight
            module.weight.data = bnb.dequantize_4bit(weight.data, weight.quant_state).to(dtype)
    return model


def with_lora(model):
    """Both of LoRA's matrices away from zero, the same on every model."""
    model, g = get_peft_model(model, lora_config(4, 8)), torch.Generator().manual_seed(5)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data = 0.05 * torch.randn(p.shape, generator=g)
    return model


def lora_gradients(model, sampled_before=True):
    """Gradients of a language model's loss; as in training, after a forward in eval mode."""
    ids = torch.randint(5, 500, (2, 16), generator=torch.Generator().manual_seed(1))
    if sampled_before:
        with torch.no_grad():
            model.eval()(ids)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    return torch.cat([p.grad.float().flatten() for n, p in model.named_parameters() if "lora_" in n])


def error(found, wanted):
    """Length of the difference over the length of what is wanted."""
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("sampled_before", [True, False])
def test_gradients_are_those_of_the_dequantised_model_in_float32(folder, sampled_before):
    """bitsandbytes packs the weights in eval mode on some CPUs, and the packed product has no gradient."""
    quantised, _ = load_model(str(folder), quantization="nf4", dtype=torch.float32)
    plain = with_lora(dequantised(folder, quantised, torch.float32))
    found = lora_gradients(with_lora(quantised), sampled_before)
    assert error(found, lora_gradients(plain)) <= 1e-5


def test_gradients_in_bfloat16_are_as_good_as_bfloat16_is(folder):
    """Against float32: within 1e-2, and no further off than a plain bfloat16 model with the same weights."""
    quantised, _ = load_model(str(folder), quantization="nf4", dtype=torch.bfloat16)
    exact = lora_gradients(with_lora(dequantised(folder, quantised, torch.float32)))
    rounded = lora_gradients(with_lora(dequantised(folder, quantised, torch.bfloat16)))
    found = lora_gradients(with_lora(quantised))
    assert error(found, exact) <= min(1e-2, 1.3 * error(rounded, exact))


def two_steps(name, tmp_path, dtype):
    model, tokenizer = load_model(name, quantization="nf4", dtype=dtype)
    packed = {n: p.detach().clone() for n, p in model.named_parameters() if p.dtype == torch.uint8}
    args = RAPOConfig(output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2 * G, num_generations=G,
                      max_completion_length=6, learning_rate=0.01, warmup_steps=0, bf16=dtype == torch.bfloat16,
                      seed=3)  # fmt: skip
    data = Dataset.from_list(rows())
    trainer = RAPOTrainer(model, Scripted(), args, data, processing_class=tokenizer, peft_config=lora_config(4, 8))
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora_" in n}
    assert {p.dtype for p in before.values()} == {torch.float32}  # also where the model is bfloat16
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert [n for n, p in before.items() if torch.equal(p, after[n])] == []  # student and teacher moved
    now = dict(trainer.model.get_base_model().named_parameters())
    kept = {n.replace(".weight", ".base_layer.weight"): p for n, p in packed.items()}
    assert packed and all(torch.equal(now[n], p) for n, p in kept.items())
    assert all(e["rapo/dropped_updates"] == 0 for e in trainer.state.log_history if "loss" in e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_steps_move_the_adapter_and_not_the_4_bit_weights(folder, tmp_path, dtype):
    two_steps(str(folder), tmp_path, dtype)


def test_two_steps_of_the_embedded_model(tmp_path):
    two_steps("embedded", tmp_path, torch.float32)
