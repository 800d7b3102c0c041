"""The trainer on a tiny random Llama with the real tokenizer: what is seen, what moves, and equality with trl."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from datasets import Dataset
from trainers import CRITIQUE, G, Scripted, batch_of, gradients, make, rows, stir, tiny
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.sdpo import SDPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from rapo_lib.feedback import Verdict
from rapo_lib.hybrid import RAPOConfig, lowest_if_cut
from rapo_lib.models import load_adapter, load_tokenizer, merged
from rapo_lib.runs import RapoError
from rapo_lib.sampling import draw, sample_ids
from rapo_lib.training.teacher import teacher_messages, verdict_notes


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mixing": "logits"}, "known: loss, advantage"),
        ({"loss_type": "dapo"}, "leave it at 'grpo'"),
        ({"top_p": 0.9}, "top_p=0.9 is not done here"),
    ],
)
def test_options_that_would_change_nothing_are_errors(tmp_path, options, says):
    with pytest.raises(RapoError, match=says):
        RAPOConfig(output_dir=str(tmp_path), **options)


def test_too_few_histories_are_an_error_and_not_an_empty_training(tokenizer, tmp_path):
    with pytest.raises(RapoError, match="4 histories are too few: a batch has 5 groups"):
        make(tokenizer, tmp_path, per_device_train_batch_size=5 * G)


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


def test_the_warm_up_rises_to_the_rate_and_no_update_is_lost(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, max_steps=4, warmup_steps=2, learning_rate=0.3)
    trainer.train()
    rates = [e["learning_rate"] for e in trainer.state.log_history if "loss" in e]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3])


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


def same(one, other, tolerance=1e-6):
    """Losses and gradients agree."""
    (loss, found), (wanted_loss, wanted) = one, other
    assert torch.allclose(loss, wanted_loss, atol=tolerance)
    assert found.keys() == wanted.keys() and any(g.abs().max() > 0 for g in wanted.values())
    for name in wanted:
        assert torch.allclose(found[name], wanted[name], atol=tolerance, rtol=1e-4), name


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_both_paths_give_the_loss_and_gradients_of_trls_sdpo(tokenizer, tmp_path, weight, alpha):
    """From what sampling remembers, computed anew, a row for each reply, and trl's own loss."""
    trainer = make(tokenizer, tmp_path, distillation_weight=weight, distillation_alpha=alpha, distillation_topk=20)
    stir(trainer)
    batch = batch_of(trainer)
    remembered = gradients(trainer, batch)
    assert trainer.student.has_remembered
    trainer.student.forget()
    fast = gradients(trainer, batch)
    assert not trainer.student.has_remembered
    same(remembered, fast)
    trainer.args.fast = False
    same(fast, gradients(trainer, batch))
    same(fast, gradients(trainer, batch, lambda model, batch: SDPOTrainer.compute_loss(trainer, model, batch)))


@pytest.mark.parametrize(
    "options", [{"mixing": "advantage"}, {"beta": 0.5}, {"policy_scale": 0.25, "kl_groups": 0}, {"temperature": 0.7}]
)
def test_both_paths_agree_on_what_trl_does_not_have(tokenizer, tmp_path, options):
    trainer = make(tokenizer, tmp_path, distillation_weight=0.4, **options)
    batch = batch_of(trainer)
    stir(trainer)
    fast = gradients(trainer, batch)
    trainer.args.fast = False
    same(fast, gradients(trainer, batch))


def grpo(tokenizer, tmp_path, trainer, batch, beta):
    """trl's GRPOTrainer on the same weights, given the same prompts, replies and scores; its batch and its trainer."""
    replies = [
        row[keep.bool()].tolist() for row, keep in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]
    texts = [t.strip() for t in tokenizer.batch_decode(replies, skip_special_tokens=True)]
    prompts = [row[keep.bool()].tolist() for row, keep in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    config = GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=2 * G, num_generations=G, beta=beta,
                        loss_type="grpo", scale_rewards="group", epsilon=0.2, temperature=trainer.temperature,
                        max_completion_length=6, bf16=False, use_cpu=True, gradient_checkpointing=False,
                        report_to="none")  # fmt: skip
    other = GRPOTrainer(
        trainer.model,
        reward_funcs=lambda completions, **_: [float(len(t)) for t in texts],
        args=config,
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        rollout_func=lambda *_: {"prompt_ids": prompts, "completion_ids": replies, "logprobs": None},
    )
    other.model.train()
    other.current_gradient_accumulation_steps = 1
    return other, other._generate_and_score_completions([{"prompt": r["prompt"]} for r in rows()[:2] for _ in range(G)])


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_without_distillation_it_is_trls_grpo(tokenizer, tmp_path, beta):
    """The same replies and scores through trl's GRPOTrainer (loss_type "grpo", scale_rewards "group"), float32."""
    trainer = make(tokenizer, tmp_path, distillation_weight=0.0, beta=beta, temperature=0.8)
    batch = batch_of(trainer)
    stir(trainer)
    ours = gradients(trainer, batch)
    other, theirs = grpo(tokenizer, tmp_path, trainer, batch, 0.0)
    assert (
        torch.allclose(theirs["advantages"], batch["advantages"], atol=1e-5) and batch["advantages"].abs().max() > 0.5
    )
    if beta > 0:  # trl's reference would be a copy of the stirred adapter; the start is the model without one
        with torch.no_grad(), trainer.model.disable_adapter():
            whole = [torch.cat([theirs[f"prompt_{k}"], theirs[f"completion_{k}"]], dim=1) for k in ("ids", "mask")]
            width = theirs["completion_ids"].shape[1]
            theirs["ref_per_token_logps"] = other._get_per_token_logps_and_entropies(other.model, *whole, width)[0]
        other.beta = beta
    same(ours, gradients(trainer, theirs, other._compute_loss), 1e-5)


# ------------------------------------------------------------------------------------------ invariants


def test_identical_teacher_prompt_and_weights_teach_nothing(tokenizer, tmp_path):
    """With the note equal to nothing and the teacher equal to the student there is nothing to distil."""
    trainer = make(tokenizer, tmp_path, distillation_weight=1.0)
    batch = batch_of(trainer)
    batch["teacher_input_ids"] = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    batch["teacher_attention_mask"] = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    loss, found = gradients(trainer, batch)
    assert loss.abs() < 1e-6
    assert all(g.abs().max() < 1e-6 for g in found.values())


@pytest.mark.parametrize("fast", [True, False])
def test_the_distance_from_the_start_is_zero_at_step_zero_and_not_later(tokenizer, tmp_path, fast):
    trainer = make(tokenizer, tmp_path, fast=fast, kl_groups=2)
    trainer.train()
    first, second = [e["rapo/kl_to_start"] for e in trainer.state.log_history if "loss" in e]
    assert first == 0.0 and second > 1e-4


def test_the_pull_to_the_start_pulls_to_the_start(tokenizer, tmp_path):
    """The first update has no KL to act on; the later ones go less far with it."""
    distances = []
    for beta in (0.0, 20.0):
        trainer = make(tokenizer, tmp_path, max_steps=6, beta=beta, kl_groups=2, learning_rate=0.02)
        trainer.train()
        distances.append([e["rapo/kl_to_start"] for e in trainer.state.log_history if "loss" in e][-1])
    assert distances[1] < 0.7 * distances[0]


@pytest.mark.parametrize("mixing", ["loss", "advantage"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_in_parts_is_the_same_update(tokenizer, tmp_path, mixing, groups):
    """Two groups at once, group by group, and with a group cut in parts: the same weights after an update."""
    sizes = {1: (2 * G, 1), 2: (G, 2)} if groups == 1 else {1: (2 * G, 1), 2: (1, 2 * G)}
    after = []
    for size, parts in sizes.values():
        trainer = make(tokenizer, tmp_path, max_steps=1, per_device_train_batch_size=size, mixing=mixing,
                       gradient_accumulation_steps=parts, optim="sgd", beta=0.1)  # fmt: skip
        trainer.train()
        after.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora_B.default" in n})
    assert all(torch.allclose(after[0][n], after[1][n], atol=1e-6) and after[0][n].abs().max() > 0 for n in after[0])


def padded(batch, prompt_side):
    """The same batch with three more columns of padding at prompts and replies."""
    more = dict(batch)
    for name, value in batch.items():
        if name.startswith(("prompt", "teacher")):
            blank = torch.zeros(len(value), 3, dtype=value.dtype)
            width = 0 if name.startswith("prompt") else batch["completion_ids"].shape[1]
            prompt, reply = value[:, : value.shape[1] - width], value[:, value.shape[1] - width :]
            reply = torch.cat([reply, torch.zeros(len(value), 2, dtype=value.dtype)], dim=1) if width else reply
            more[name] = torch.cat([blank, prompt, reply] if prompt_side == "left" else [prompt, blank, reply], dim=1)
        elif name in ("completion_ids", "completion_mask"):
            more[name] = torch.cat([value, torch.zeros(len(value), 2, dtype=value.dtype)], dim=1)
    return more


@pytest.mark.parametrize(("fast", "side"), [(True, "left"), (True, "right"), (False, "left")])
def test_padding_does_not_matter(tokenizer, tmp_path, fast, side):
    trainer = make(tokenizer, tmp_path, fast=fast, beta=0.1)
    batch = batch_of(trainer)
    stir(trainer)
    same(gradients(trainer, batch), gradients(trainer, padded(batch, side)))


def test_the_policy_scale_is_the_policy_half_of_the_hybrid(tokenizer, tmp_path):
    """The control arm: w = 0 with the policy term times 1 - w has the hybrid's gradient less its verbal part."""
    settings = [{"distillation_weight": 0.4}, {"distillation_weight": 0.0, "policy_scale": 0.6}]
    hybrid, control = (make(tokenizer, tmp_path, **s) for s in settings)
    batch, _ = batch_of(hybrid), batch_of(control)
    stir(hybrid)
    stir(control)
    batch["self_distillation_mask"] = torch.zeros_like(batch["self_distillation_mask"])
    same(gradients(hybrid, batch), gradients(control, batch))


def test_mixing_advantages_has_the_limits_of_mixing_losses_at_zero(tokenizer, tmp_path):
    found = []
    for mixing in ("loss", "advantage"):
        trainer = make(tokenizer, tmp_path, mixing=mixing, distillation_weight=0.0)
        batch = batch_of(trainer)
        stir(trainer)
        found.append(gradients(trainer, batch))
    same(*found)


def test_purely_verbal_advantages_follow_the_teacher_and_not_the_score(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, mixing="advantage", distillation_weight=1.0)
    batch = batch_of(trainer)
    stir(trainer)
    one = gradients(trainer, batch)
    batch["advantages"] = -3 * batch["advantages"]
    same(one, gradients(trainer, batch))


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


def test_vllm_gets_the_merged_weights_and_the_base_stays_as_it_was(tokenizer, tmp_path):
    """trl's own walk over the parameters, which merges and subtracts; the engine that takes them is not here."""
    trainer = make(tokenizer, tmp_path, model=tiny(tokenizer).to(torch.bfloat16))
    stir(trainer)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    whole = SimpleNamespace(gather_params=lambda _: nullcontext(), is_fsdp=False)
    walk = SimpleNamespace(model=trainer.model, _dist=whole, _fix_param_name_to_vllm=lambda name, **_: name)
    sent = {}

    class Engine:
        def sync_weights(self):
            sent.update((n, p.clone()) for n, p in VLLMGeneration._iter_named_params(walk))

        def generate(self, prompts, **_):
            return prompts, [[5, 6]] * len(prompts), None, None

    trainer.vllm_generation, trainer._last_loaded_step = Engine(), -1
    assert trainer._generate_vllm([[1, 2], [1, 2]])[1] == [[5, 6], [5, 6]]
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())
    with merged(trainer.model):
        wanted = dict(trainer.model.get_base_model().named_parameters())
        assert sent.keys() == {n.replace(".base_layer", "") for n in wanted if "lora_" not in n}
        assert all(torch.equal(sent[n.replace(".base_layer", "")], p) for n, p in wanted.items() if "lora_" not in n)
    named = dict(trainer.model.get_base_model().named_parameters())
    assert any(not torch.equal(sent[n.replace(".base_layer", "")], p) for n, p in named.items() if "lora_" not in n)


def test_vllm_does_not_take_4_bit_weights(tokenizer, tmp_path):
    model = tiny(tokenizer)
    model.model.layers[0].mlp.up_proj = Linear4bit(16, 32)
    with pytest.raises(RapoError, match="4-bit weights cannot be merged"):
        make(tokenizer, tmp_path, model=model, use_vllm=True)


def test_the_adapter_is_saved_alone_loads_back_and_merges(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path)
    trainer.train()
    trainer.save_adapter(tmp_path / "adapter")
    names = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    again = load_adapter(tiny(tokenizer), tmp_path / "adapter").eval()
    ids = torch.tensor([[5, 6, 7], [9, 8, 11]])
    with torch.no_grad():
        trained, start = trainer.model.eval()(ids).logits, tiny(tokenizer).eval()(ids).logits
        assert torch.equal(again(ids).logits, trained) and (trained - start).abs().max() > 0.1
        assert torch.allclose(again.merge_and_unload()(ids).logits, trained, atol=1e-5)


def test_the_card_names_data_settings_versions_and_limits_and_no_folder_of_this_machine(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, distillation_weight=0.25)
    trainer.model.peft_config["default"].base_model_name_or_path = str(tmp_path / "somebody" / "warmstart-1234")
    trainer.save_adapter(tmp_path / "adapter", "4 histories of 4 people.", {"arm": "a|b"})
    text = (tmp_path / "adapter" / "README.md").read_text("utf-8")
    assert "Must not talk to people in need" in text and "4 histories of 4 people. Every person" in text
    assert "| distillation_weight | 0.25 |" in text and "| arm | a\\|b |" in text and "| torch | " in text
    assert text.startswith("---\nbase_model: warmstart-1234\n")
    said = text + (tmp_path / "adapter" / "adapter_config.json").read_text("utf-8")
    assert "somebody" not in said and str(tmp_path) not in said


def test_gradient_checkpointing_changes_nothing_but_memory(tokenizer, tmp_path):
    found = []
    for checkpointing in (False, True):
        trainer = make(tokenizer, tmp_path, gradient_checkpointing=checkpointing, beta=0.1)
        batch = batch_of(trainer)
        stir(trainer)
        found.append(gradients(trainer, batch))
    same(*found)


def test_a_reply_cut_at_the_limit_scores_as_the_worst_of_its_group_unless_all_are_cut():
    scores = [0.9, 0.1, 0.5, -0.4]
    assert lowest_if_cut(scores, [True, False, False, False], 4) == [-0.4, 0.1, 0.5, -0.4]
    assert lowest_if_cut(scores, [True] * 4, 4) == scores
    assert lowest_if_cut(scores, [False, False, True, True], 2) == scores
