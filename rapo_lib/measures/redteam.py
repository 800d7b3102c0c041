"""Attackers that search: the best of many samples, and a policy trained on nothing but the hidden emotion.

What wins shows what the seeker really pays for. Two searches: 256 replies of the start to one history, ranked by the
truth and by each judge; and 60 updates on the scores alone, the score being the true change of emotion itself. The
second is an attack and never a method: it reads what no judge may read. The evaluator seeker only looks on.

`python -m rapo_lib.measures.redteam --out FOLDER` runs both once and writes the tables that notebook 01 shows.
"""

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import gammaln

from rapo_lib import runs
from rapo_lib.ablation import ARMS, load_policy, people, read_pairs, train_arm
from rapo_lib.dialogue import SeekerProfile, Turn, to_record
from rapo_lib.evaluation import ModelPolicy, distinct, outcomes, reply_metrics, self_play
from rapo_lib.evaluator import EvaluatorSeeker
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, Judge, RubricJudge, Verdict
from rapo_lib.fluency import fluency_batch
from rapo_lib.measures.attacks import attack
from rapo_lib.person.perception import copied_share, perceive_batch
from rapo_lib.profiles import Settings, settings
from rapo_lib.seeker import AppraisalSeeker, Seeker
from rapo_lib.selection import histories_of, select

log = logging.getLogger(__name__)
SAMPLES, STEPS = 256, 60  # replies to one history; updates of the attack
JUDGES = ("embedded judge", "rubric")
HISTORIES = 8  # searched; dev people, one each, some at the opening and some later
ATTACK = replace(
    ARMS["without_distillation"], name="attack_on_truth", label="attack: paid by the emotion itself", tier="control"
)
Asked = Sequence[tuple[SeekerProfile, tuple[Turn, ...]]]


# ------------------------------------------------------------------------------------------ best of many


def best_of(truth: Sequence[float], scores: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Expected truth of the reply with the highest score among n drawn without replacement, for each n in `sizes`.

    With scores in ascending order, reply k (from 0) wins C(k, n - 1) / C(N, n) of the draws. Ties share: tied replies
    count with their mean truth.
    """
    table = pd.DataFrame({"truth": truth, "score": scores})
    table["truth"] = table.groupby("score")["truth"].transform("mean")
    ordered = table.sort_values("score", kind="stable")["truth"].to_numpy()
    total, k = len(ordered), np.arange(len(ordered))
    found = []
    for n in sizes:
        possible = k >= n - 1
        log_ways = np.full(total, -np.inf)
        log_ways[possible] = _log_choose(k[possible], n - 1) - _log_choose(total, n)
        found.append(float(np.exp(log_ways) @ ordered))
    return found


def _log_choose(n: np.ndarray | int, k: int) -> np.ndarray:
    return gammaln(np.add(n, 1)) - gammaln(k + 1) - gammaln(np.subtract(n, k) + 1)


def search(
    policy: ModelPolicy, seekers: Mapping[str, Seeker], judges: Mapping[str, Judge], asked: Asked, count: int, seed: int
) -> pd.DataFrame:
    """`count` replies to each history: one row a reply with each seeker's change and each judge's score.

    Columns: history (its number), profile, said, reply, reaction (to the first seeker), seekers' and judges' names,
    and those of `telltales`.
    """
    tables = []
    for number, (profile, history) in enumerate(asked):
        (replies,) = policy.groups([history], count, runs.seed_for(seed, "search", profile.id))
        items = [(profile, history, reply, seed) for reply in replies]
        table = pd.DataFrame({"history": number, "profile": profile.id, "said": history[-1].text, "reply": replies})
        for name, seeker in seekers.items():
            reactions = seeker.react_batch(items)
            if "reaction" not in table:
                table["reaction"] = [r.text for r in reactions]
            table[name] = np.array([r.emotion for r in reactions]) - seeker.emotion(profile, history)
        group = CandidateGroup(tuple(history), replies, tuple(table["reaction"]))
        for name, judge in judges.items():
            table[name] = judge.compare_batch([group])[0].scores
        tables.append(table.join(telltales(history, replies)))
    return pd.concat(tables, ignore_index=True)


def searched(
    policy: ModelPolicy, seekers: Mapping[str, Seeker], asked: Asked, count: int, seed: int, work: Path
) -> pd.DataFrame:
    """`search` with the embedded judges, a file in `work` for each history, so that an interrupted search goes on."""
    judges = dict(zip(JUDGES, (EmbeddedJudge(), RubricJudge()), strict=True))
    tables = []
    for number, pair in enumerate(asked):
        path = work / f"search-{number}.csv"
        if not path.is_file():
            runs.write_csv(path, search(policy, seekers, judges, [pair], count, seed).assign(history=number))
            log.info("history %d of %d searched", number + 1, len(asked))
        tables.append(pd.read_csv(path, keep_default_na=False))
    return pd.concat(tables, ignore_index=True)


def telltales(history: Sequence[Turn], replies: Sequence[str]) -> pd.DataFrame:
    """What might give gaming away, a row per reply: fault, main act, copied share, fluency (nats a token), words."""
    heard = perceive_batch([(history, reply) for reply in replies])
    said = " ".join(turn.text for turn in history if turn.speaker == "seeker")
    return pd.DataFrame(
        {
            "fault": [p.fault for p in heard],
            "understands": [p.understands for p in heard],
            "asks": [p.asks for p in heard],
            "suggests": [p.suggests for p in heard],
            "copied": [copied_share(reply, said) for reply in replies],
            "fluency": fluency_batch(replies),
            "words": [len(reply.split()) for reply in replies],
        }
    )


def curves(found: pd.DataFrame, seekers: Sequence[str], judges: Sequence[str], sizes: Sequence[int]) -> pd.DataFrame:
    """True change of the best of n by each chooser, for each history and n.

    Columns: history, chooser (the first seeker is the truth itself), n, and a column for each seeker's change.
    """
    rows = []
    for (number, part), chooser in ((h, c) for h in found.groupby("history") for c in (seekers[0], *judges)):
        gains = {name: best_of(part[name], part[chooser], sizes) for name in seekers}
        rows += [
            {"history": number, "chooser": chooser, "n": n, **{name: gains[name][i] for name in seekers}}
            for i, n in enumerate(sizes)
        ]
    return pd.DataFrame(rows)


def winners(found: pd.DataFrame, truth: str, each: int = 3) -> pd.DataFrame:
    """The `each` replies to every history that move the emotion most."""
    return found.sort_values(truth, ascending=False, kind="stable").groupby("history").head(each).sort_index()


# ------------------------------------------------------------------------------------ training on the truth


@dataclass(frozen=True, slots=True)
class TruthJudge:
    """Scores a reply by the change of the hidden emotion, as a share of the most it can be. An attack, not a judge."""

    seeker: Seeker
    people: Mapping[str, SeekerProfile]  # by what they said first

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group; no critiques."""
        verdicts = []
        for group in groups:
            person = self.people[next(turn.text for turn in group.history if turn.speaker == "seeker")]
            felt = self.seeker.react_batch([(person, group.history, reply, 0) for reply in group.replies])
            before = self.seeker.emotion(person, group.history)
            scores = tuple((reaction.emotion - before) / 10 for reaction in felt)
            order = tuple(sorted(range(len(scores)), key=lambda i: -scores[i]))
            verdicts.append(Verdict(scores, ("",) * len(scores), group.reactions, order))
        return verdicts


def train_on_truth(chosen: Settings, seeker: Seeker, work: Path, seed: int) -> Path:
    """The attack's adapter in `work`, trained on turns selected from dialogues of the start with train people.

    Histories are kept in `work` too: an interrupted training goes on from its last checkpoint.
    """
    trained_on = people("train", chosen.setup_profiles)
    place = work / "histories.jsonl"
    if not place.is_file():
        talks = self_play(load_policy(chosen, None), trained_on, seeker, turns=chosen.turns, seed=seed)
        kept = histories_of(
            talks, select(talks, top=chosen.histories, per_dialogue=3, min_change=0.0), chosen.histories
        )
        runs.write_jsonl(place, [{"profile": name, "history": [to_record(t) for t in h]} for name, h in kept])
    pairs = read_pairs(place, {p.id: p for p in trained_on})
    judge = TruthJudge(seeker, {p.opening: p for p in trained_on})
    return train_arm(ATTACK, chosen, pairs, seeker, judge, work / ATTACK.name, seed)


def played(
    policies: Mapping[str, ModelPolicy], seekers: Mapping[str, Seeker], profiles: Sequence[SeekerProfile], seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Self-play of each policy with each seeker: how people end, and what the replies are like; columns policy, seeker.

    `distinct` is distinct-2 over the replies of one policy and seeker, the other columns are means.
    """
    ends, talk = [], []
    for policy, model in policies.items():
        for name, seeker in seekers.items():
            dialogues = self_play(model, profiles, seeker, seed=seed)
            replies = reply_metrics(dialogues)
            ends.append(outcomes(dialogues).assign(policy=policy, seeker=name))
            kinds = replies.fault.replace("", "none").value_counts(normalize=True)
            means = replies[["suggestion", "open_question", "reflection", "repetition", "words", "fluency"]].mean()
            row = {"policy": policy, "seeker": name, **means, "distinct": distinct(list(replies.reply))}
            talk.append({**row, "faults": 1 - float(kinds.get("none", 0.0))})
    return pd.concat(ends, ignore_index=True), pd.DataFrame(talk)


def side_by_side(
    policies: Mapping[str, ModelPolicy], asked: Asked, seekers: Mapping[str, Seeker], seed: int
) -> pd.DataFrame:
    """What each policy says to the same histories, and what it does to each seeker; one row per history and policy."""
    histories = [history for _, history in asked]
    parts = []
    for policy, model in policies.items():
        replies = model(histories, seed)
        table = pd.DataFrame({"profile": [p.id for p, _ in asked], "said": [h[-1].text for h in histories]})
        table = table.assign(policy=policy, reply=replies)
        for name, seeker in seekers.items():
            felt = seeker.react_batch([(p, h, reply, seed) for (p, h), reply in zip(asked, replies, strict=True)])
            table[name] = [r.emotion - seeker.emotion(p, h) for r, (p, h) in zip(felt, asked, strict=True)]
        parts.append(table)
    return pd.concat(parts, ignore_index=True).sort_values("profile", kind="stable")


# ------------------------------------------------------------------------------------------- running it


def dev_histories(
    policy: ModelPolicy, seeker: Seeker, count: int, seed: int
) -> list[tuple[SeekerProfile, tuple[Turn, ...]]]:
    """One history a dev person, after 0, 1, 2 or 3 exchanges with the start in turn."""
    profiles = people("dev", count)
    talks = self_play(policy, profiles, seeker, turns=3, seed=seed)
    return [
        (p, tuple(Turn(t.speaker, t.text) for t in talk.turns[: 1 + 2 * (i % 4)]))
        for i, (p, talk) in enumerate(zip(profiles, talks, strict=True))
    ]


def main() -> None:
    """Run what is asked for and write its tables; a training that was interrupted goes on."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the tables go")
    cli.add_argument("--work", type=Path, metavar="FOLDER", help="where the attack's adapter lies (default: OUT/work)")
    cli.add_argument("--profile", default="cpu", help="whose settings")
    cli.add_argument("--samples", type=int, default=SAMPLES)
    cli.add_argument("--steps", type=int, default=STEPS)
    cli.add_argument("--groups", type=int, help="groups an update of the attack (default: the profile's)")
    cli.add_argument("--histories", type=int, default=HISTORIES, help="that are searched")
    cli.add_argument("--people", type=int, default=12, help="dev people, at most")
    cli.add_argument("--parts", default="attacks,search,training", help="any of these")
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = settings(options.profile, {"steps": options.steps, "groups": options.groups})
    seekers: dict[str, Seeker] = {"training": AppraisalSeeker(), "evaluator": EvaluatorSeeker()}
    parts, start, work = options.parts.split(","), load_policy(chosen, None), options.work or options.out / "work"
    asked = cache(lambda: dev_histories(start, seekers["training"], options.people, options.seed))
    if "attacks" in parts:
        runs.write_csv(options.out / "attacks.csv", attack(seekers, asked(), options.seed))
    if "search" in parts:
        found = searched(start, seekers, asked()[: options.histories], options.samples, options.seed, work)
        sizes = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= options.samples]
        runs.write_csv(options.out / "best_of.csv", curves(found, list(seekers), JUDGES, sizes))
        runs.write_csv(options.out / "winners.csv", winners(found, "training"))
    if "training" in parts:
        trained = train_on_truth(chosen, seekers["training"], work, options.seed)
        policies = {"warm start": start, "attack": load_policy(chosen, trained)}
        ends, talk = played(policies, seekers, people("dev", options.people), options.seed)
        runs.write_csv(options.out / "attack_ends.csv", ends)
        runs.write_csv(options.out / "attack_replies.csv", talk)
        runs.write_csv(options.out / "attack_steps.csv", pd.read_csv(trained / "metrics.csv"))
        runs.write_csv(options.out / "attack_said.csv", side_by_side(policies, asked(), seekers, options.seed))
    for part in parts:
        made = {"settings": asdict(chosen), "samples": options.samples, "people": options.people, "seed": options.seed}
        made |= {"library": runs.library_hash(), "versions": runs.versions(), "device": runs.device()}
        runs.write_json(options.out / f"{part}.json", made)


if __name__ == "__main__":
    main()
