"""The benchmark at tiny scale: both sides run, do the same work, and the table says what was measured."""

import pytest
import torch
from trainers import tiny

from rapo_lib import bench
from rapo_lib.models import load_tokenizer
from rapo_lib.sampling import prompt_ids


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.fixture(scope="module")
def found(tokenizer):
    """One counted step of each side on a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "WARM_UP", 0)
        patch.setattr(bench, "TOKENS", 6)
        return [bench.measure(path, 60, 1, 0.5, (tiny(tokenizer), tokenizer)) for path in (bench.STOCK, bench.OURS)]


def test_both_sides_run_and_their_phases_add_up(found):
    for result in found:
        assert result.step_s > 0 and result.peak_mib > 100 and result.prompt_tokens >= 60
        assert sum(result.phases.values()) == pytest.approx(result.step_s, rel=1e-6)
        for name in ("sampling", "student", "teacher", "backward", "optimiser"):
            assert result.phases[name] > 0, (result.path, name)
    stock, ours = found
    assert stock.phases["distance"] == 0 < ours.phases["distance"]
    assert stock.prompt_tokens == ours.prompt_tokens


def test_the_table_compares_with_stock_at_the_same_length(found):
    lines = bench.table(found).splitlines()
    assert [line.split()[1] for line in lines[2:]] == [bench.STOCK, bench.OURS]
    ratio = float(lines[3].split()[3])
    assert ratio == pytest.approx(found[1].step_s / found[0].step_s, abs=0.006)
    assert float(lines[2].split()[3]) == 1.0
    shares = [[int(share) for share in line.split()[6:]] for line in lines[2:]]
    assert all(len(s) == len(bench.PHASES) and 95 <= sum(s) <= 105 for s in shares)


def test_both_sides_read_the_same_prompts_and_notes_of_one_length(tokenizer):
    """The teacher's prompt is stock's and ours alike, and no critique is cheaper than another."""
    from rapo_lib.training.teacher import teacher_messages

    messages = bench.prompts(tokenizer, 320)
    assert all(320 <= len(prompt_ids(m, tokenizer)) < 400 for m in messages)
    lengths = [len(tokenizer(c)["input_ids"]) for c in bench.CRITIQUES]
    assert max(lengths) - min(lengths) <= 3 and len(set(bench.CRITIQUES)) == bench.GROUP
    said = teacher_messages(messages[0], bench.CRITIQUES[0], None, None)[-1]["content"]
    assert said == messages[0][-1]["content"] + f"\n\n(Note to the supporter: {bench.CRITIQUES[0]})"


def test_a_phase_within_another_counts_once():
    clock = bench.Clock()
    clock.begin()
    with clock.phase("student"), clock.phase("teacher"):
        torch.randn(200, 200) @ torch.randn(200, 200)
    clock.end()
    step = clock.steps[0]
    assert step["teacher"] > step["student"] >= 0 and sum(step.values()) > 0
