"""The trainer on a tiny random Llama with the real tokenizer: what is seen, what moves, and equality with trl."""

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import Verdict
from rapo_lib.hybrid import RAPOConfig, RAPOTrainer, teacher_messages, verdict_notes
from rapo_lib.models import load_tokenizer, lora_config
from rapo_lib.runs import RapoError
from rapo_lib.sampling import draw, sample_ids
from rapo_lib.simulation import training_row

CRITIQUE = "Zebra crossing: name the feeling and ask one open question."
G = 3


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def tiny(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


class Scripted:
    """A feedback with known scores: longer replies are better; rows whose profile is in `silent` are abstained on."""

    def __init__(self, flat=False, silent=()):
        self.flat, self.silent, self.seen = flat, set(silent), []

    def __call__(self, rows, replies):
        self.seen.append((list(rows), [tuple(r) for r in replies]))
        return [self.verdict(row, group) for row, group in zip(rows, replies, strict=True)]

    def verdict(self, row, group):
        scores = None if row["profile"] in self.silent else tuple(0.0 if self.flat else float(len(r)) for r in group)
        reactions = tuple(f"Quokka answer {i}." for i in range(len(group)))
        return Verdict(scores, (CRITIQUE,) * len(group), reactions, tuple(range(len(group))))


def rows():
    people = load_profiles("train")[:4]
    return [training_row(p, [Turn("seeker", p.opening[: 30 + 10 * i])]) for i, p in enumerate(people)]


def make(tokenizer, tmp_path, feedback=None, **options):
    settings = {"max_steps": 2, "per_device_train_batch_size": 2 * G, "num_generations": G, "max_completion_length": 6,
                "learning_rate": 0.1, "warmup_steps": 0, "bf16": False, "seed": 3, **options}  # fmt: skip
    return RAPOTrainer(
        tiny(tokenizer),
        feedback or Scripted(),
        args=RAPOConfig(output_dir=str(tmp_path), **settings),
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        peft_config=lora_config(4, 8),
    )


def batch_of(trainer):
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    data = next(iter(trainer.get_train_dataloader()))
    return trainer._prepare_training_batch(data)


def gradients(trainer, batch):
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    found = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    return loss.detach(), found


def stir(trainer):
    """Move LoRA's B and the teacher away from zero, so that every path carries a gradient."""
    torch.manual_seed(1)
    for name, p in trainer.model.named_parameters():
        if "lora_" in name:
            p.data += 0.1 * torch.randn_like(p)


# ------------------------------------------------------------------------------------- who sees what


def test_the_critique_reaches_the_teacher_and_never_the_student(tokenizer, tmp_path):
    batch = batch_of(make(tokenizer, tmp_path, teacher_note="critique_and_reaction"))
    student = tokenizer.batch_decode(batch["prompt_ids"])
    teacher = tokenizer.batch_decode(batch["teacher_input_ids"])
    assert all(CRITIQUE in text and "Quokka" in text for text in teacher)
    assert not any("Zebra" in text or "Quokka" in text for text in student)


def test_student_and_teacher_score_the_same_tokens(tokenizer, tmp_path):
    batch = batch_of(make(tokenizer, tmp_path))
    width = batch["completion_ids"].shape[1]
    assert torch.equal(batch["teacher_input_ids"][:, -width:], batch["completion_ids"])
    header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False).input_ids
    for prompt in (batch["prompt_ids"], batch["teacher_input_ids"][:, :-width]):
        assert all(row[-len(header) :].tolist() == header for row in prompt)


def test_feedback_gets_whole_groups_of_one_history(tokenizer, tmp_path):
    feedback = Scripted()
    batch_of(make(tokenizer, tmp_path, feedback))
    asked, replies = feedback.seen[0]
    assert len(asked) == 2 and asked[0]["profile"] != asked[1]["profile"]
    assert [len(group) for group in replies] == [G, G]
    assert set(asked[0]) >= {"profile", "history", "prompt"} and "emotion" not in str(asked[0]["history"])


def test_notes_follow_the_option_and_never_show_the_own_reply():
    verdict = Verdict((0.1, 0.9), ("a", "b"), ("r0", "r1"), (1, 0))
    assert verdict_notes(verdict, ("own", "best"), "critique") == [("a", None, None), ("b", None, None)]
    assert verdict_notes(verdict, ("own", "best"), "critique_and_reaction")[0] == ("a", "r0", None)
    assert verdict_notes(verdict, ("own", "best"), "critique_and_sibling") == [("a", None, "best"), ("b", None, None)]
    said = teacher_messages([{"role": "user", "content": "hi"}], "a", "r0", "best")[-1]["content"]
    assert "own" not in said and said.startswith("hi\n\n(Note to the supporter:")


def test_an_unknown_note_is_an_error(tmp_path):
    with pytest.raises(RapoError, match="critique_and_sibling"):
        RAPOConfig(output_dir=str(tmp_path), teacher_note="everything")


# ---------------------------------------------------------------------------------------- what moves


def test_every_lora_parameter_moves_in_two_steps_and_nothing_else(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    still = [n for n in before if ".default." in n and torch.equal(before[n], after[n])]
    assert not still, f"did not move: {still}"
    frozen = [n for n in before if "lora_" not in n and not torch.equal(before[n], after[n])]
    assert not frozen, f"moved: {frozen}"


def test_the_teacher_starts_at_the_student_follows_the_ema_and_is_not_optimised(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, max_steps=1, teacher_update_rate=0.25)
    start = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if ".default." in n}
    for name, p in start.items():
        assert torch.equal(p, dict(trainer.model.named_parameters())[name.replace(".default.", ".teacher.")])
    trainer.train()
    named = dict(trainer.model.named_parameters())
    for name, first in start.items():
        expected = 0.75 * first + 0.25 * named[name]
        assert torch.allclose(named[name.replace(".default.", ".teacher.")], expected, atol=1e-6)
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not any(id(p) in optimised for n, p in named.items() if ".teacher." in n)
    assert all(id(named[n]) in optimised for n in start)


def test_a_and_b_of_lora_as_theory_says(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path)
    _, found = gradients(trainer, batch_of(trainer))
    assert all(g.abs().max() == 0 for n, g in found.items() if "lora_A.default" in n)  # while B is zero
    assert all(g.abs().max() > 0 for n, g in found.items() if "lora_B.default" in n)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_an_abstained_group_contributes_nothing(tokenizer, tmp_path, weight):
    people = {row["profile"] for row in rows()}
    trainer = make(tokenizer, tmp_path, Scripted(silent=people), distillation_weight=weight)
    batch = batch_of(trainer)
    stir(trainer)
    _, found = gradients(trainer, batch)
    assert batch["advantages"].eq(0).all() and batch["self_distillation_mask"].eq(0).all()
    assert all(g.abs().max() == 0 for g in found.values())


def test_equal_scores_give_exactly_zero_policy_gradient(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, Scripted(flat=True), distillation_weight=0.0)
    batch = batch_of(trainer)
    stir(trainer)
    _, found = gradients(trainer, batch)
    assert all(g.abs().max() == 0 for g in found.values())


def test_two_runs_with_one_seed_agree(tokenizer, tmp_path):
    logs = []
    for _ in range(2):
        trainer = make(tokenizer, tmp_path)
        trainer.train()
        logs.append([{k: v for k, v in e.items() if "time" not in k and "per_second" not in k}
                     for e in trainer.state.log_history])  # fmt: skip
    keep = [[{k: v for k, v in e.items() if k != "train_runtime"} for e in log] for log in logs]
    assert keep[0] == keep[1]


# ----------------------------------------------------------------------------------- equality with trl


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_group_rows_give_trls_loss_and_gradients(tokenizer, tmp_path, weight, alpha):
    """The fast path shares prompts in rows; trl's own has one row per reply. Same loss, same gradients."""
    trainer = make(tokenizer, tmp_path, distillation_weight=weight, distillation_alpha=alpha, distillation_topk=20)
    batch = batch_of(trainer)
    stir(trainer)
    fast_loss, fast = gradients(trainer, batch)
    trainer.args.fast = False
    slow_loss, slow = gradients(trainer, batch)
    assert torch.allclose(fast_loss, slow_loss, atol=1e-6)
    assert fast.keys() == slow.keys()
    for name in slow:
        assert torch.allclose(fast[name], slow[name], atol=1e-6, rtol=1e-4), name


def test_kl_to_the_start_is_zero_at_step_zero(tokenizer, tmp_path):
    """With the note equal to nothing and the teacher equal to the student there is nothing to distil."""
    trainer = make(tokenizer, tmp_path, distillation_weight=1.0)
    batch = batch_of(trainer)
    batch["teacher_input_ids"] = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    batch["teacher_attention_mask"] = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    loss, found = gradients(trainer, batch)
    assert loss.abs() < 1e-6
    assert all(g.abs().max() < 1e-6 for g in found.values())


# ------------------------------------------------------------------------------------------- sampling


def test_greedy_sampling_equals_generate(tiny_llama):
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    ours = sample_ids(tiny_llama, prompts, group=2, max_new_tokens=5, eos=[2], pad=0, temperature=0)
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        theirs = tiny_llama.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, eos_token_id=2, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert ours[2 * i] == ours[2 * i + 1] == theirs[: len(ours[2 * i])]


def test_drawing_follows_the_distribution():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2])
    g = torch.Generator().manual_seed(0)
    drawn = draw(p.log().repeat(20000, 1), 1.0, g)
    share = torch.bincount(drawn, minlength=4) / 20000
    assert share[1] == 0 and (share - p).abs().max() < 0.015


def test_the_adapter_is_saved_alone_and_loads_back(tokenizer, tmp_path):
    from rapo_lib.models import load_adapter

    trainer = make(tokenizer, tmp_path)
    trainer.train()
    trainer.save_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file() and not (
        tmp_path / "adapter" / "teacher"
    ).exists()
    again = load_adapter(tiny(tokenizer), tmp_path / "adapter").eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        trainer.model.eval()
        assert torch.allclose(again(ids).logits, trainer.model(ids).logits, atol=1e-5)
