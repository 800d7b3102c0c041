"""How fast corpora are read, against json.load as the floor. By hand: python tests/bench_corpora.py."""

import json
import tempfile
import time
from pathlib import Path

from rapo_lib.corpora import load_dialogues

TURNS = 100_000


def sample() -> list[dict[str, object]]:
    """An ESConv-like corpus of 100,000 alternating turns, 25 to a dialogue, about 90 characters each."""
    turns = [
        {
            "speaker": ("seeker", "supporter")[n % 2],
            "annotation": annotation(n),
            "content": "I keep hearing it at night. " * 3,
        }
        for n in range(25)
    ]
    return [{"situation": "Noise.", "problem_type": "sleep", "dialog": turns} for _ in range(TURNS // len(turns))]


def annotation(number: int) -> dict[str, str]:
    """Strategies on supporter turns, a rating now and then on the seeker's."""
    if number % 2:
        return {"strategy": "Reflection of feelings"}
    return {"feedback": "4"} if number % 4 == 0 else {}


def timed(path: Path) -> tuple[float, float]:
    """Seconds for json alone and for our reader."""
    start = time.perf_counter()
    text = path.read_text("utf-8")
    parsed = json.loads(text) if text[0] == "[" else [json.loads(line) for line in text.splitlines()]
    middle = time.perf_counter()
    corpus = load_dialogues(path)
    end = time.perf_counter()
    assert len(corpus.dialogues) == len(parsed)
    assert sum(len(d.turns) for d in corpus.dialogues) == TURNS
    return middle - start, end - middle


def main() -> None:
    """Print one line per layout on disk."""
    records = sample()
    texts = {"array": json.dumps(records), "lines": "\n".join(map(json.dumps, records))}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            floor, ours = timed(path)
            print(f"{name}: {TURNS} turns, json {floor:.2f} s, load_dialogues {ours:.2f} s")


if __name__ == "__main__":
    main()
