"""The embedded model as a real file, loading errors, NF4 on a CPU, and folding an adapter in and out."""

import pytest
import torch
from peft import get_peft_model

from rapo_lib.models import HASHES, is_whole, load_model, load_tokenizer, lora_config, merged, save_model
from rapo_lib.runs import RapoError
from rapo_lib.sampling import fit, sample_replies
from rapo_lib.training.packed import packed


@pytest.fixture(scope="module")
def embedded():
    return load_model(dtype=torch.float32)


def test_the_embedded_model_speaks_english(embedded):
    model, tokenizer = embedded
    prompt = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    assert "Paris" in sample_replies(model, tokenizer, [prompt], temperature=0, max_new_tokens=8)[0][0]


def test_tokenizer_marks(embedded):
    tokenizer = embedded[1]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.padding_side == "left" and tokenizer.pad_token_id is not None


def test_the_same_seed_gives_the_same_replies_in_the_callers_order(embedded):
    model, tokenizer = embedded
    prompts = [[{"role": "user", "content": text}] for text in ("Hi.", "I lost my job and cannot sleep.", "Why?")]
    once = sample_replies(model, tokenizer, prompts, group=2, max_new_tokens=6, seed=5)
    assert once == sample_replies(model, tokenizer, prompts, group=2, max_new_tokens=6, seed=5)
    assert once != sample_replies(model, tokenizer, prompts, group=2, max_new_tokens=6, seed=6)
    assert [len(group) for group in once] == [2, 2, 2]


def test_histories_are_cut_by_whole_turns_and_keep_system_and_last(embedded):
    said = [{"role": "system", "content": "S"}] + [
        {"role": r, "content": f"{r} {i} " + "word " * 20} for i in range(4) for r in ("user", "assistant")
    ][:7]
    kept = fit(said, embedded[1], 80)
    assert kept[0] == said[0] and kept[-1] == said[-1] and len(kept) < len(said)
    assert kept[1]["role"] == "user"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./nowhere", "no model at './nowhere'"),
        ("two/many/parts", "no model at"),
        ("nobody/no-such-model", "no-such-model"),
    ],
)
def test_a_model_that_is_not_there_is_one_clear_line(name, says):
    with pytest.raises(RapoError, match=says) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(RapoError, match="no config.json"):
        load_tokenizer(str(tmp_path))


def test_a_truncated_weight_file_is_noticed(tiny_llama, embedded, tmp_path):
    folder = tmp_path / "model"
    save_model(folder, tiny_llama, embedded[1])
    assert is_whole(folder) and (folder / HASHES).is_file()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert not is_whole(folder)


def test_folding_an_adapter_in_and_out_leaves_no_trace(tiny_llama):
    import copy

    model = get_peft_model(copy.deepcopy(tiny_llama), lora_config(2, 4)).eval()
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.3)
    ids = torch.tensor([[5, 6, 7, 8]])
    before = {n: p.clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        apart = model(ids).logits
        with merged(model):
            together = model(ids).logits
        again = model(ids).logits
    assert torch.allclose(apart, together, atol=1e-5) and torch.equal(apart, again)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    with torch.no_grad(), model.disable_adapter():
        start = model(ids).logits
        with merged(model):
            assert torch.equal(model(ids).logits, start)
    assert not torch.allclose(start, apart, atol=1e-3)


def test_packed_layers_give_the_same_logits_and_leave_no_trace(embedded):
    model, _ = embedded
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        plain = model(ids).logits
        with packed(model):
            assert torch.allclose(model(ids).logits, plain, atol=1e-3)
        assert torch.equal(model(ids).logits, plain)


def test_nf4_loads_on_a_cpu_and_computes_in_the_models_dtype():
    model, _ = load_model(quantization="nf4", dtype=torch.float32)
    layer = model.model.layers[0].mlp.up_proj
    assert type(layer).__name__ == "Linear4bit" and layer.weight.quant_state.nested
    assert layer.compute_dtype == torch.float32
    with torch.no_grad():
        assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_unknown_quantization():
    with pytest.raises(RapoError, match="nf4"):
        load_model(quantization="int3")
