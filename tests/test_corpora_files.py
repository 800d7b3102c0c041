"""Containers and damage: gzip, zip, parquet, byte order marks, broken and hostile files, memory."""

import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rapo_lib.corpora import CorpusError, files, load_dialogues
from rapo_lib.corpora.files import skip_line

RECORD = {"dialog": [{"speaker": "usr", "text": "It rains in my room. ☔"}, {"speaker": "sys", "text": "Since when?"}]}
LINE = json.dumps(RECORD, ensure_ascii=False).encode("utf-8")
DOCUMENT = b"[" + LINE + b",\n" + LINE + b"]"
JSONL = LINE + b"\n\n" + LINE + b"\r\n"


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def parquet(rows: list[dict[str, object]], compression: str = "snappy") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, compression=compression)
    return sink.getvalue()


def written(folder: Path, data: bytes) -> Path:
    path = folder / "corpus.bin"  # the name says nothing; contents decide
    path.write_bytes(data)
    return path


CONTAINERS: dict[str, Callable[[], bytes]] = {
    "array": lambda: DOCUMENT,
    "array, indented": lambda: json.dumps([RECORD, RECORD], indent=2).encode(),
    "array, one record a line": lambda: b"[\n" + LINE + b",\n" + LINE + b"\n]\n",
    "array with byte order mark": lambda: b"\xef\xbb\xbf" + DOCUMENT,
    "lines": lambda: JSONL,
    "lines with byte order mark": lambda: b"\xef\xbb\xbf" + JSONL,
    "keyed by split": lambda: json.dumps({"train": [RECORD], "test": [RECORD]}).encode(),
    "under data": lambda: json.dumps({"data": [RECORD, RECORD]}).encode(),
    "keyed by number": lambda: json.dumps({"0": RECORD, "1": RECORD}, indent=1).encode(),
    "ESC-Eval": lambda: json.dumps({"0": ["ESC-Role：Hi", "AI assitant：Hello"], "1": ["ESC-Role：Hi"]}).encode(),
    "gzip array": lambda: gzip.compress(DOCUMENT),
    "gzip lines": lambda: gzip.compress(JSONL),
    "zip": lambda: zipped({"ExTES/a.json": DOCUMENT}),
    "zip of two": lambda: zipped({"a.jsonl": LINE, "__MACOSX/._a.jsonl": b"x", "b.jsonl": LINE}),
    "parquet": lambda: parquet([RECORD, RECORD]),
    "parquet of the hub": lambda: parquet([{"text": json.dumps(RECORD)}] * 2),
    "parquet in zip": lambda: zipped({"train.parquet": parquet([RECORD, RECORD])}),
    "parquet in gzip": lambda: gzip.compress(parquet([RECORD, RECORD])),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_gives_two_dialogues(tmp_path: Path, name: str) -> None:
    corpus = load_dialogues(written(tmp_path, CONTAINERS[name]()))
    assert len(corpus.dialogues) == 2
    assert corpus.dropped == ()


def test_one_pretty_printed_dialogue_with_a_message_a_line_is_one_document(tmp_path: Path) -> None:
    data = b'{"messages": [\n{"role": "user", "content": "a"},\n{"role": "assistant", "content": "b"}\n]}'
    (dialogue,) = load_dialogues(written(tmp_path, data)).dialogues
    assert len(dialogue.turns) == 2


HEADS = {
    "a broken array": b"[broken",
    "a tag": b"<x>",
    "a NUL": b"\0",
    "a record with a NUL": LINE.replace(b"rains", b"ra\0ns"),
    "a broken record": LINE[:-9],
    "Python": repr(RECORD).encode(),
    "twenty-five lines": b"\n".join([b"junk"] * 25),
    "a record with a comma": LINE + b",",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_bad_head_costs_only_itself(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, HEADS[name] + b"\n" + LINE + b"\n" + LINE)
    corpus = load_dialogues(path)
    assert len(corpus.dialogues) == 2
    assert [d.where for d in corpus.dropped] == [f"{path}, line {n + 1}" for n in range(HEADS[name].count(b"\n") + 1)]


def test_a_bad_line_in_python_says_so(tmp_path: Path) -> None:
    (dropped,) = load_dialogues(written(tmp_path, JSONL + repr(RECORD).encode())).dropped
    assert dropped.why.startswith("looks like Python, not JSON; write it with json.dumps")


def test_zip_members_that_cannot_be_read_are_dropped_by_name(tmp_path: Path) -> None:
    path = written(
        tmp_path, zipped({"read.me": b"x", "bad.json": b"[1, 2", "strategy.json": b'["a"]', "a.json": DOCUMENT})
    )
    corpus = load_dialogues(path)
    assert len(corpus.dialogues) == 2
    assert [d.where.removeprefix(f"{path}!") for d in corpus.dropped] == [
        "read.me",
        "bad.json",
        "strategy.json, record 1",
    ]
    assert all(d.lost for d in corpus.dropped)


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b" \n", "is empty"),
    "cut short": (lambda: DOCUMENT[:-30], "cut short .* at line 2, column"),
    "broken": (lambda: DOCUMENT.replace(b",\n", b";\n"), "broken .* at line 1, column"),
    "binary": (lambda: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary"),
    "UTF-16": (lambda: DOCUMENT.decode().encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    "Latin-1": (lambda: '[{"a": "caf\xe9"}]'.encode("latin-1"), "not UTF-8 text .byte 0xe9 at offset 11"),
    "wrong root": (lambda: b"17", "expected a list or an object"),
    "list of numbers": (lambda: b"[1, 2]", "no dialogue found; .*record 1: a JSON int"),
    "empty list": (lambda: b"[]", "holds an empty list"),
    "prose": (lambda: b"Dear diary,\ntoday", "not valid JSON"),
    "nested too deeply": (lambda: b"[" * 100_000, "nested too deeply"),
    "gzip cut short": (lambda: gzip.compress(JSONL * 50)[:-12], "damaged or cut short"),
    "gzip damaged": (lambda: gzip.compress(b"")[:10] + b"\xff" * 40, "damaged or cut short"),
    "zip cut short": (lambda: zipped({"a.json": DOCUMENT})[:-30], "damaged or cut short"),
    "zip without data": (lambda: zipped({"a.png": b"x"}), "no dialogue found; .*a.png: not a dialogue file"),
    "parquet cut short": (lambda: parquet([RECORD])[:-20], "damaged parquet"),
    "zip that escapes": (lambda: zipped({"../../a.json": DOCUMENT}), "points outside the archive"),
    "zip that escapes, absolute": (lambda: zipped({"/etc/a.json": DOCUMENT}), "points outside the archive"),
    "zip with a nameless member": (lambda: zipped({"q": LINE}).replace(b"q", b"\0"), "or nowhere; refused"),
    "zip with a member called dot": (lambda: zipped({".": LINE}), "or nowhere; refused"),
    "zip with a broken name": (
        lambda: zipped({"é.json": LINE}).replace("é".encode(), b"\xc3("),
        "damaged or cut short",
    ),
    "Git LFS pointer": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "`git lfs pull`"),
    "web page": (lambda: b"<!DOCTYPE html>\n<html></html>", "is a web page"),
    "cut short, a record a line": (lambda: b"[\n" + (LINE + b",\n") * 3 + LINE + b"\n", "it looks cut short"),
    "binary, in lines": (lambda: b"\x01\0\x02\n\0\n" * 30, "is binary"),
    "UTF-16 without its mark": (lambda: JSONL.decode().encode("utf-16-le"), "is binary"),
    "a word in quotes": (lambda: b"'Twas a dark night", "not valid JSON"),
    "Python": (lambda: repr([RECORD]).encode(), "looks like Python, not JSON; write it with json.dumps"),
    "Python in lines": (lambda: repr(RECORD).encode() + b"\n" + repr(RECORD).encode(), "looks like Python, not JSON"),
    "Python's None": (lambda: b'[{"dialog": None}]', "looks like Python, not JSON"),
    "web page with a record in it": (lambda: b"<html>\n" + LINE + b"\n</html>", "is a web page"),
    "part of a web page": (lambda: b"<p>\nNot found\n</p>", "is a web page"),
    "parquet bomb": (lambda: parquet([{"text": "x" * (65 << 20)}], "zstd"), "a compression bomb; refused"),
    "nothing in ten thousand lines": (lambda: b"{}\n" * 20_000, "no dialogue in the first 10000 records; .*line 1"),
    "zip bomb": (lambda: zipped({"a.jsonl": b" " * (65 << 20)}), "a zip bomb; refused"),
    "gzip bomb in lines": (lambda: gzip.compress(LINE + b"\n" + b"{}\n" * (1 << 19)), "a compression bomb; refused"),
    "gzip bomb in one document": (lambda: gzip.compress(b"[" + b" " * (65 << 20)), "more than 64 MiB"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_give_one_clear_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = BROKEN[name]
    path = written(tmp_path, make())
    if name == "gzip bomb in lines":
        monkeypatch.setattr(files, "FREE", 1 << 20)  # a smaller bomb will do
    with pytest.raises(CorpusError, match=message) as caught:
        load_dialogues(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.json": DOCUMENT}))
    data[6] |= 1  # general purpose bit 0, local header and central directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(CorpusError, match="is encrypted"):
        load_dialogues(written(tmp_path, bytes(data)))


@pytest.mark.parametrize("damage", ["checksum", "method"])
def test_a_damaged_member_costs_only_itself(tmp_path: Path, damage: str) -> None:
    data = bytearray(zipped({"a.json": DOCUMENT, "b.json": DOCUMENT}))
    if damage == "checksum":
        data[data.index(b"PK\x01\x02") + 16] ^= 1  # in the central directory, of the first member
    else:
        data[8] = data[data.index(b"PK\x01\x02") + 10] = 99
    corpus = load_dialogues(path := written(tmp_path, bytes(data)))
    assert len(corpus.dialogues) == 2
    assert [(d.where, d.lost) for d in corpus.dropped] == [(f"{path}!a.json", True)]


def test_an_endless_packed_line_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1 << 10)
    monkeypatch.setattr(files, "FREE", 1 << 20)
    path = written(tmp_path, gzip.compress(LINE + b"\n" + b"x" * (64 << 20)))
    read = []
    monkeypatch.setattr(files, "skip_line", lambda *given: read.append(skip_line(*given)) or read[-1])
    with pytest.raises(CorpusError, match="a compression bomb; refused"):
        load_dialogues(path)
    assert read[0] < 8 << 20  # of 64 MiB: a hundred times the file's own size


def test_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is a folder"):
        load_dialogues(tmp_path)
    with pytest.raises(CorpusError, match="no such file"):
        load_dialogues(tmp_path / "absent.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="is a device or a pipe, not a file"):
        load_dialogues(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="cannot be opened"):
        load_dialogues(tmp_path / ("a" * 300))


def test_a_two_gigabyte_array_is_refused_unread(tmp_path: Path) -> None:
    path = written(tmp_path, b"[" + (LINE + b",\n") * 2 * files.PEEK)
    with path.open("r+b") as file:
        file.truncate(2 << 30)  # sparse: takes no room on disk
    with pytest.raises(CorpusError, match=r"more than 256 MiB; write it as JSONL"):
        load_dialogues(path)


def test_an_overlong_line_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    path = written(tmp_path, LINE + b"\n" + b'"' + b"x" * 5000 + b'"\n' + LINE)
    corpus = load_dialogues(path)
    assert len(corpus.dialogues) == 2
    assert [d.where for d in corpus.dropped] == [f"{path}, line 2"]


MEASURE = """
import sys
from rapo_lib.corpora import iter_dialogues
count = sum(len(d.turns) for d in iter_dialogues(sys.argv[1]))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(count, int(peak) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from Linux's /proc")
@pytest.mark.parametrize("megabytes", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_lines_stream_in_little_memory(tmp_path: Path, megabytes: int) -> None:
    turns = [{"role": ("user", "assistant")[n % 2], "content": "word " * 200} for n in range(20)]
    line = json.dumps({"messages": turns}).encode() + b"\n"
    path = tmp_path / "long.jsonl"
    times = megabytes * 1_000_000 // len(line)
    with path.open("wb") as file:
        file.writelines(line for _ in range(times))
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True, cwd=root)
    count, peak = map(int, done.stdout.split())
    assert count == 20 * times
    assert peak < 80  # MiB, whatever the size of the file; the interpreter itself takes about 15


@pytest.mark.parametrize("pack", [lambda line: line + b"\n" + LINE + b"\n", lambda line: b"[" + line + b"]"])
def test_a_key_that_stands_twice_is_reported(tmp_path, pack):
    path = tmp_path / "twice.json"
    path.write_bytes(pack(LINE[:-1] + b', "id": "a", "id": "b"}'))
    corpus = load_dialogues(path)
    assert len(corpus.dialogues) == (2 if path.read_bytes().startswith(b"{") else 1)
    (repaired,) = corpus.dropped
    assert not repaired.lost and "'id' stands twice" in repaired.why and "twice.json" in repaired.where
