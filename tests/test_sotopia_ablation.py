"""Training on social goals: the seams, what the arms differ in, and what their talks are summed up to."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from trainers import tiny

from rapo_lib.ablation import arm_feedback, arm_settings
from rapo_lib.dialogue import Turn, read_jsonl
from rapo_lib.grid.arms import ARMS
from rapo_lib.models import load_tokenizer, save_model
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError
from rapo_lib.seeker import Reaction
from rapo_lib.simulation import SimulatedFeedback
from rapo_lib.sotopia import ablation, results
from rapo_lib.sotopia.episode import play, prompt_messages, sotopia_row
from rapo_lib.sotopia.judge import SocialJudge
from rapo_lib.sotopia.lessons import scripts
from rapo_lib.sotopia.lessons import shown as acted
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import load_scenarios

TRAIN = load_scenarios("train")
BY_ID = {s.id: s for s in TRAIN}


def asked():
    """Rows and groups of replies: after the opening, and later in the talk."""
    pairs = [(s, (Turn("seeker", s.opening),)) for s in TRAIN[::4]]
    pairs += [(s, acted(s, s.demonstration)[:3]) for s in TRAIN[1::5]]
    replies = [(*s.demonstration[1::-1], "That sounds good. Deal.", "Come on, just do it.") for s, _ in pairs]
    return [sotopia_row(s, history) for s, history in pairs], replies


# ------------------------------------------------------------------------------------------ the seams


def test_the_partner_is_a_seeker_without_memory():
    items = [(s, (Turn("seeker", s.opening),), line, 5) for s in TRAIN[:6] for line in s.demonstration]
    partner = SotopiaPartner()
    whole = partner.react_batch(items)
    partner.react_batch(items[::-1][:4])
    assert [partner.react_batch([item])[0] for item in items] == whole
    for (s, history, line, _), reaction in zip(items, whole, strict=True):
        assert partner.emotion(s, (*history, Turn("supporter", line))) == reaction.emotion


class Noisy(SotopiaPartner):
    """The partner's words with random progress."""

    def react_batch(self, items):
        rng = np.random.default_rng(len(items))
        return [Reaction(r.text, float(rng.uniform(0, 100))) for r in super().react_batch(items)]

    def emotion(self, scenario, history):
        return float(len(history))


def test_the_judge_reads_words_only():
    rows, replies = asked()
    verdicts = SimulatedFeedback(SotopiaPartner(), SocialJudge(), BY_ID, seed=1)(rows, replies)
    marked = [{**row, "history": [{**t} for t in row["history"]], "emotion": 50.0} for row in rows]
    blind = {name: replace(s, game=s.game, demonstration=(), split="") for name, s in BY_ID.items()}
    assert SimulatedFeedback(Noisy(), SocialJudge(), blind, seed=1)(marked, replies) == verdicts
    assert len({v.scores for v in verdicts}) > 1 and all(v.scores is not None for v in verdicts)


class Spy(SocialJudge):
    def __init__(self):
        self.groups = []

    def compare_batch(self, groups):
        self.groups += groups
        return super().compare_batch(groups)


def test_arms_differ_only_where_they_say():
    rows, replies = asked()
    heard = {}
    for name in ablation.SOCIAL_ARMS:
        spy = Spy()
        arm_feedback(ARMS[name], SotopiaPartner(), spy, BY_ID, seed=2)(rows, replies)
        heard[name] = spy.groups
    assert heard["full"] == heard["without_distillation"] and all(g.reactions for g in heard["full"])
    deaf = [replace(g, reactions=None) for g in heard["full"]]
    assert heard["without_reactions"] == deaf
    chosen = Settings()
    assert arm_settings(ARMS["without_reactions"], chosen) == chosen == arm_settings(ARMS["full"], chosen)
    assert arm_settings(ARMS["without_distillation"], chosen) == replace(chosen, weight=0.0)


def test_plans_name_what_does_not_belong(tmp_path):
    plan = ablation.plan_of(tmp_path, "cpu", "primary", [0], {"groups": 2})
    assert [name for name, _ in plan.cells()] == ["warm_start", *ablation.SOCIAL_ARMS]
    assert plan.settings_of().groups == 2 and plan.settings_of().prompt_tokens == 192 and plan.settings_of().steps >= 30
    assert ablation.plan_of(tmp_path, "smoke", "full", [0, 1]).arms == ("full",)
    for arms in ("dpo", "full,grpo_rubric", "random_turns"):
        with pytest.raises(RapoError, match="no arm of the social domain"):
            ablation.plan_of(tmp_path, "cpu", arms, [0])
    with pytest.raises(RapoError, match="cpuu"):
        ablation.plan_of(tmp_path, "cpuu", "full", [0])


def test_histories_come_evenly_and_end_before_a_turn_of_ours():
    def agent(items, seed):
        return [f"What matters to you, {len(history)}?" for _, history in items]

    chosen = Settings(setup_profiles=8, turns=3, histories=20)
    kept = ablation.histories(agent, TRAIN[:4], chosen, seed=0)
    again = ablation.histories(agent, TRAIN[:4], chosen, seed=0)
    assert kept == again and len(kept) <= 20
    assert len({(s.id, tuple(t.text for t in h)) for s, h in kept}) == len(kept)
    assert all(h[-1].speaker == "seeker" for _, h in kept)
    counts = pd.Series([s.id for s, _ in kept[:12]]).value_counts()
    assert set(counts) == {3}


def test_several_talks_in_a_scenario_are_worded_anew():
    talks = play(lambda items, seed: ["What matters to you here?"] * len(items), TRAIN[:2], turns=8, episodes=3)
    assert [(e.scenario.id, e.number) for e in talks] == [(s.id, k) for s in TRAIN[:2] for k in range(3)]
    assert len({e.turns for e in talks}) == 6 and len({(e.scenario.id, e.goal) for e in talks}) == 2


# ------------------------------------------------------------------------------------------ training


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = load_tokenizer()
    save_model(folder, tiny(tokenizer), tokenizer)
    return folder


def test_arms_are_trained_measured_and_kept(tiny_folder, tmp_path):
    small = {"model": str(tiny_folder), "warm_start": False, "reply_tokens": 5, "group": 3, "groups": 2,
             "setup_profiles": 3, "histories": 5, "eval_profiles": 2, "lora_rank": 4}  # fmt: skip
    plan = ablation.plan_of(tmp_path, "smoke", "primary", [0], small)
    ablation.run_arms(plan)
    rollouts = {}
    for name in ablation.SOCIAL_ARMS:
        place = tmp_path / "adapters" / name / "seed-0"
        rollouts[name] = list(read_jsonl(place / "rollouts.jsonl"))
        assert len(rollouts[name]) == 2 * 2 * 3 and (place / "adapter" / "adapter_model.safetensors").is_file()
        assert {r["profile"] for r in rollouts[name]} <= set(BY_ID)
        assert "scenarios" in (place / "adapter" / "README.md").read_text()
        metrics = pd.read_csv(tmp_path / "cells" / name / "seed-0" / "metrics.csv")
        assert len(metrics) == 2 and metrics.grad_norm.notna().all()
    assert all(r["reaction"] is None for r in rollouts["without_reactions"])
    assert all(r["reaction"] for r in rollouts["full"])
    first = [(r["profile"], r["history"], r["reply"]) for r in rollouts["full"][:6]]
    for name in ablation.SOCIAL_ARMS[1:]:  # the same start, histories, order and draws
        assert [(r["profile"], r["history"], r["reply"]) for r in rollouts[name][:6]] == first
    table = results.write_results(tmp_path)
    assert table.arm.tolist() == ["warm_start", *ablation.SOCIAL_ARMS] and set(table.talks) == {2}
    assert (tmp_path / "figures" / "goals.png").stat().st_size > 10_000
    assert "| warm start (our talks) |" in results.readme_table(table)
    before = (tmp_path / "cells" / "full" / "seed-0" / "cell.json").read_bytes()
    ablation.run_arms(plan)
    assert (tmp_path / "cells" / "full" / "seed-0" / "cell.json").read_bytes() == before
    with pytest.raises(RapoError, match="other settings"):
        ablation.run_arms(ablation.plan_of(tmp_path, "smoke", "primary", [0], {**small, "steps": 3}))


# ------------------------------------------------------------------------------------------ results


def talks(arm, goals, seed=0):
    """Two talks in every scenario, with these goals."""
    rows = [
        {"arm": arm, "seed": seed, "scenario": f"s{i}", "family": "f", "episode": k, "goal": g + (-1) ** k,
         "progress": 0, "secret": np.nan, "turns": 4, "ended": "agreed" if g > 2 else "turns"}
        for i, g in enumerate(goals) for k in range(2)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_summary_by_hand():
    table = pd.concat([talks("warm_start", [1, 2, 3]), talks("full", [2, 4, 6])])
    start, full = results.summary(table).itertuples()
    assert (start.goal, full.goal, full.minus_start) == (2, 4, 2) and np.isnan(start.minus_start or np.nan)
    half = 4.302653 * 1 / np.sqrt(3)  # scenarios are the units, not talks: t(2) with the differences 1, 2, 3
    assert (full.minus_low, full.minus_high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))
    assert (start.agreed, full.agreed, full.talks, full.scenarios, full.seeds) == (1 / 3, 2 / 3, 6, 3, 1)


def test_with_two_seeds_the_interval_crosses_them():
    goals = {"warm_start": ([1, 2, 3], [1, 2, 3]), "full": ([2, 4, 6], [6, 4, 6])}
    parts = [talks(arm, goals[arm][seed], seed) for seed in (0, 1) for arm in goals]
    full = results.summary(pd.concat(parts)).set_index("arm").loc["full"]
    one = results.summary(pd.concat(parts[:2])).set_index("arm").loc["full"]
    assert full.seeds == 2 and full.minus_high - full.minus_low > one.minus_high - one.minus_low


def test_the_training_curve_is_a_running_mean():
    metrics = pd.DataFrame({"arm": "full", "seed": 0, "step": range(1, 8), "change": range(7), "reply_tokens": 9.0,
                            "flat_groups": 0.0, "kl_to_start": 0.0})  # fmt: skip
    assert results.training(metrics).smooth.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4]


def test_missing_tables_are_named(tmp_path):
    with pytest.raises(RapoError, match="no finished cell"):
        results.write_results(tmp_path)
    with pytest.raises(RapoError, match="summary.csv is missing"):
        results.read_tables(tmp_path)


def test_prompts_of_lessons_are_the_policys():
    scene, lines = scripts()[0]
    assert prompt_messages(scene, acted(scene, lines)[:1]) == sotopia_row(scene, acted(scene, lines)[:1])["prompt"]
