"""The embedded model in process: valid objects by construction, and a batch that changes nothing."""

import json
import random
import sys

import pytest
import torch
from jsonschema import Draft202012Validator

from rapo_lib.chat import ChatModel, ChatRequest, LocalModel
from rapo_lib.chat.local import Row, Writer, chat_ids, pick
from rapo_lib.chat.parsing import closed
from rapo_lib.dialogue import Dialogue, Turn, load_profiles
from rapo_lib.lm.critic import LMCritic
from rapo_lib.lm.judge import answer_schema
from rapo_lib.lm.roles import make_roles
from rapo_lib.lm.selection import LMSelector
from rapo_lib.profiles import settings
from rapo_lib.runs import RapoError
from rapo_lib.simulation import SimulatedFeedback, training_row

FEELING = {
    "type": "object",
    "properties": {
        "feeling": {"type": "string", "maxLength": 24},
        "change": {"type": "integer", "minimum": -10, "maximum": 10},
    },
    "required": ["feeling", "change"],
}
TEXTS = ("I lost my job.", "My exam is on Friday and I cannot sleep because everyone will see it.", "Hi")


@pytest.fixture(scope="module")
def local():
    return LocalModel(dtype="float32", batch=6)


def ask(text, **options):
    return ChatRequest(messages=({"role": "user", "content": text},), **{"max_tokens": 40, **options})


def test_a_small_model_writes_valid_objects_and_a_batch_is_its_questions_one_by_one(local):
    chat = ChatModel(local, retries=0)
    requests = [ask(t, schema=FEELING) for t in TEXTS]
    requests += [ask(t, schema=FEELING, temperature=1.5, draw=d) for t in TEXTS[:1] for d in range(2)]
    requests.append(ask(TEXTS[0], max_tokens=6))
    together = chat.complete(requests)
    assert [r.status for r in together] == ["ok"] * 5 + ["truncated"], together
    for reply in together[:5]:
        Draft202012Validator(closed(FEELING)).validate(json.loads(reply.text))
        assert list(json.loads(reply.text)) == ["feeling", "change"], "the schema's own order"
    alone = [chat.complete([request])[0] for request in requests]
    assert [r.text for r in alone] == [r.text for r in together]
    assert together[3].text != together[4].text, "draws differ"
    assert chat.usage.output_tokens > 0 and chat.usage.unmetered == 0


def test_a_prompt_that_does_not_fit_fails_alone(local):
    short, long = ChatModel(local, retries=0).complete([ask("Hi", max_tokens=2), ask("word " * 9000)])
    assert long.status == "failed" and "do not fit" in long.reason and short.status == "truncated"


def test_what_identifies_a_model(local, tmp_path):
    assert local.identity["model"] == "embedded" and len(local.identity["revision"]) == 16
    (tmp_path / "config.json").write_text("{}")
    first = LocalModel(str(tmp_path)).identity
    (tmp_path / "model.safetensors").write_bytes(b"0" * 9)
    assert LocalModel(str(tmp_path)).identity["revision"] != first["revision"]
    with pytest.raises(RapoError, match="unknown dtype"):
        ChatModel(LocalModel(dtype="int3")).complete([ask("Hi")])


def test_drawing_follows_the_distribution_within_the_nucleus():
    scores = torch.log(torch.tensor([0.05, 0.5, 0.25, 0.2]))
    row = Row(limit=1, temperature=1.0, top_p=0.9, rng=random.Random(0))
    counts = torch.bincount(torch.tensor([pick(scores, row) for _ in range(4000)]), minlength=4) / 4000
    assert counts[0] == 0
    assert torch.allclose(counts[1:], torch.tensor([0.5, 0.25, 0.2]) / 0.95, atol=0.03)
    assert pick(scores, Row(limit=1, temperature=0.0, top_p=1.0, rng=random.Random(0))) == 1
    certain = torch.tensor([float("-inf"), 0.0, float("-inf")])
    assert {pick(certain, row) for _ in range(50)} == {1}


def test_each_row_ends_at_its_own_limit():
    rows = [Row(limit=n, temperature=0.0, top_p=1.0, rng=random.Random(0)) for n in (1, 3)]
    writer = Writer(rows, ends=[2])
    for _ in range(4):
        scores = writer(torch.zeros(2, 1), torch.tensor([[0.0, 1.0, 0.5]] * 2))
    assert [row.ids for row in rows] == [[1], [1, 1, 1]] and all(row.cut for row in rows)
    assert scores.argmax(-1).tolist() == [2, 2]


def test_a_template_without_a_system_role():
    class Tokenizer:
        def apply_chat_template(self, messages, **options):
            import jinja2

            if messages[0]["role"] == "system":
                raise jinja2.TemplateError("System role not supported")
            return {"input_ids": [len(messages), *map(ord, messages[0]["content"])]}

    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert chat_ids(messages, Tokenizer()) == [1, *map(ord, "a\n\nb")]


def test_the_judges_schema_binds_the_writer(local):
    matcher = local._matcher(answer_schema(2))
    vocabulary = local._loaded[1]

    def accepts(text):
        fresh = matcher.deep_copy()
        return fresh.consume_tokens(vocabulary.encode(text, add_special_tokens=False)) and fresh.is_accepting()

    def written(ranking):
        one = {"critique": "good", "score": 3}
        return json.dumps({"candidates": {"1": one, "2": one}, "ranking": ranking})

    assert accepts(written([2, 1])) and not accepts(written([2, 2])) and not accepts(written([1, 2, 1]))


def test_without_llguidance_text_works_and_objects_say_what_to_install(local, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    bare = LocalModel(dtype="float32")
    bare.__dict__["_loaded"] = local._loaded
    assert ChatModel(bare, retries=0).complete([ask("Hi", max_tokens=2)])[0].text
    with pytest.raises(RapoError, match=r"rapo-lib\[lm\]"):
        ChatModel(bare, retries=0).complete([ask("Hi", schema=FEELING)])


@pytest.mark.slow
def test_every_role_runs_on_the_embedded_model_and_replays_without_it(tmp_path):
    """Plumbing, not quality: a 135M model is no judge."""
    person = load_profiles("train")[0]
    history = (Turn("seeker", person.opening),)
    talk = Dialogue("a", (*history, Turn("supporter", "What hurts?"), Turn("seeker", "All of it."),
                          Turn("supporter", "Tell me."), Turn("seeker", "It is the waiting.")))  # fmt: skip

    def run(mode):
        roles = make_roles(settings("smoke", {"seeker": "lm", "judge": "lm", "lm_cache": mode}), tmp_path)
        watched = []
        feedback = SimulatedFeedback(roles.seeker, roles.judge, {person.id: person}, watch=watched.append)
        verdicts = feedback([training_row(person, history)], [("What hurts?", "Ok.")])
        pivots = LMSelector(roles.chat).select([talk])
        assessed = LMCritic(roles.chat, samples=2).assess_batch([(person.situation, talk.turns)])
        return verdicts, watched, pivots, assessed, roles.facts()["language_model"]

    *first, report = run("read_write")
    *again, replayed = run("replay")
    assert repr(first) == repr(again)  # NaN is not equal to itself
    assert report["sent"] >= 6 and replayed["sent"] == 0
    assert {name.split(".")[0] for name in report["by_asker"]} == {"seeker", "judge", "selector", "critic"}
    assert first[3][0].unreadable == 0, "a constrained answer is one of the four words"
