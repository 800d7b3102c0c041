"""From bytes on disk to JSON records: plain, gzip or zip; JSON, JSONL or parquet.

Contents decide, never the file name. What cannot be read is reported or raised, never skipped in silence:
a bad line or a bad zip member costs itself, a broken file raises one `CorpusError`.
"""

import gzip
import io
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

MIB = 1 << 20
MAX_DOCUMENT = 256 * MIB  # ours: one JSON text is parsed whole and takes about five times its size in memory
MAX_LINE = 16 * MIB  # ours: the longest JSONL record
FREE = 64 * MIB  # ours: archives may always unpack to this much ...
RATIO = 100  # ours: ... and beyond it to at most this many times their own size (text packs 3 to 15 times)
PEEK = 20  # ours: lines looked at to tell JSONL from one JSON document
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # would steer a terminal or turn the text round
WEB_PAGE = "is a web page, not the data; download the raw file"
NOT_DATA = (  # known by the first line, whatever follows
    (re.compile(rb"version https://git-lfs"), "is a Git LFS pointer, not the data; fetch the data with `git lfs pull`"),
    (re.compile(rb"<(!doctype|!--|html|\?xml)", re.IGNORECASE), WEB_PAGE),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "is UTF-16 text; save it as UTF-8"),
)
SPLITS = {"train", "valid", "validation", "val", "dev", "test", "data"}  # keys over whole lists of records
PYTHON = re.compile(r"'|None\b|True\b|False\b")  # where JSON has ", null, true, false
SUFFIXES = (".json", ".jsonl", ".ndjson", ".txt", ".parquet")  # zip members worth opening
UNREADABLE = (  # what damage in a container shows as; the last two come from the names in a zip
    *(EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError),
    *(UnicodeDecodeError, struct.error),
)

Record = tuple[str, Any]  # where it lies, and the parsed JSON value


class CorpusError(ValueError):
    """A file that cannot be read as dialogues; the message is one line: where, what, and what to do."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something the reader left out, or (`lost=False`) repaired and kept."""

    where: str  # file and position
    why: str
    lost: bool = True


Report = Callable[[Dropped], None]


def printable(text: str) -> str:
    """Text of unknown origin, fit for a terminal: each control character becomes a replacement mark."""
    return CONTROL.sub("\ufffd", text)


def records(path: Path, report: Report) -> Iterator[Record]:
    """Every record of the file with its position; JSONL and parquet stream."""
    try:
        if not path.is_file():
            what = "is a folder; name a file in it" if path.is_dir() else "is a device or a pipe, not a file"
            raise CorpusError(f"{path}: {what if path.exists() else 'no such file'}")
        file, size = path.open("rb"), path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{path}: cannot be opened ({error.strerror})") from None
    with file:
        try:
            magic = file.read(4)
            file.seek(0)
            if magic == b"PK\x03\x04":
                yield from zip_records(file, str(path), size, report)
            elif magic[:2] == b"\x1f\x8b":
                with gzip.open(file) as stream:
                    yield from stream_records(stream, str(path), None, max(FREE, RATIO * size), report)
            else:
                yield from stream_records(file, str(path), size, None, report)
        except UNREADABLE as error:
            raise CorpusError(
                f"{path}: damaged or cut short ({error or type(error).__name__}); fetch it again"
            ) from None


# ------------------------------------------------------------------------------------------- archives


def zip_records(file: BinaryIO, name: str, size: int, report: Report) -> Iterator[Record]:
    """The records of every dialogue file in an archive; nothing is ever unpacked to disk."""
    with zipfile.ZipFile(file) as archive:
        members = [m for m in archive.infolist() if not m.filename.endswith("/")]  # is_dir() fails on a nameless one
        check_members(members, name, size)
        for member in members:
            where = f"{name}!{printable(member.filename)}"
            if is_clutter(member.filename):
                continue
            if not member.filename.lower().endswith(SUFFIXES):
                report(Dropped(where, f"not a dialogue file (read: {', '.join(SUFFIXES)})"))
                continue
            try:
                with archive.open(member) as stream:
                    yield from stream_records(stream, where, member.file_size, None, report)
            except CorpusError as error:
                report(Dropped(where, str(error).removeprefix(f"{where}: ")))
            except UNREADABLE as error:
                report(Dropped(where, f"damaged from here on ({error})"))


def check_members(members: list[zipfile.ZipInfo], name: str, size: int) -> None:
    """Refuse archives built to do harm before anything of them is unpacked."""
    total = sum(m.file_size for m in members)
    if total > max(FREE, RATIO * size):
        raise CorpusError(f"{name}: would unpack to {total // MIB} MiB from {size} bytes, a zip bomb; refused")
    for member in members:
        inside = PurePosixPath(member.filename.replace("\\", "/"))
        if inside.is_absolute() or not inside.parts or ".." in inside.parts or ":" in inside.parts[0]:
            raise CorpusError(f"{name}: member {member.filename!r} points outside the archive or nowhere; refused")
        if member.flag_bits & 1:
            raise CorpusError(f"{name}: member {member.filename!r} is encrypted; unpack it first")


def is_clutter(filename: str) -> bool:
    """Files that operating systems add to archives."""
    parts = PurePosixPath(filename).parts
    return parts[0] == "__MACOSX" or parts[-1].startswith(".")


# -------------------------------------------------------------------------------------------- streams


def stream_records(
    stream: BinaryIO, name: str, size: int | None, budget: int | None, report: Report
) -> Iterator[Record]:
    """The records of one uncompressed stream; `size` where known, `budget` the most it may unpack to."""
    lines = peek(stream, name)
    limit = MAX_DOCUMENT if budget is None else min(MAX_DOCUMENT, budget)
    if lines[0].startswith(b"PAR1"):
        yield from parquet_records(stream, name, limit)
        return
    if len(lines) > 1 and is_json(lines[0]):
        yield from line_records(stream, name, budget, report)
        return
    try:
        found = split_document(read_document(stream, name, size, limit, report), name)
    except CorpusError:
        if not holds_lines(stream):
            refuse_strange(lines, name)
            raise
        found = line_records(stream, name, budget, report)
    yield from found


def peek(stream: BinaryIO, name: str) -> list[bytes]:
    """The first lines that are not blank, without a byte order mark; the stream is then back at its start."""
    lines: list[bytes] = []
    left = MAX_LINE + 1
    while len(lines) < PEEK and left > 0 and (line := stream.readline(left)):
        left -= len(line)
        lines += [bare] if (bare := line.removeprefix(b"\xef\xbb\xbf").strip()) else []
    stream.seek(0)
    if not lines:
        raise CorpusError(f"{name}: is empty")
    for head, what in NOT_DATA:
        if head.match(lines[0]):
            raise CorpusError(f"{name}: {what}")
    return lines


def refuse_strange(lines: list[bytes], name: str) -> None:
    """Say of a file that is neither JSON nor JSONL what it is, where its first lines show it."""
    if lines[0].startswith(b"<"):
        raise CorpusError(f"{name}: {WEB_PAGE}") from None
    if any(b"\0" in line for line in lines):
        raise CorpusError(f"{name}: is binary; expected JSON, JSONL or parquet, plain or in .gz or .zip") from None


def holds_lines(stream: BinaryIO) -> bool:
    """Whether this is JSONL whose head is junk; the stream is then back at its start.

    A broken document may have a record a line too, but those end with a comma, all but the last.
    """
    stream.seek(0)
    records, parts, left = 0, 0, FREE
    while left > 0 and (line := stream.readline(min(left, MAX_LINE + 1))):
        left -= len(line)
        bare = line.strip()
        records += is_json(bare)
        parts += bare.endswith(b",") and is_json(bare[:-1])
    stream.seek(0)
    return records > parts


def is_json(line: bytes) -> bool:
    """Whether the line alone is a JSON object or array, in UTF-8."""
    if line[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def line_records(stream: BinaryIO, name: str, budget: int | None, report: Report) -> Iterator[Record]:
    """JSONL, one line in memory at a time; a bad line costs itself."""
    used = 0
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), start=1):
        used += len(line)
        where = f"{name}, line {number}"
        if too_long := len(line) > MAX_LINE:
            used += skip_line(stream, line, None if budget is None else budget - used)
        if budget is not None and used > budget:
            raise CorpusError(f"{name}: unpacks to more than {budget // MIB} MiB, a compression bomb; refused")
        if too_long:
            report(Dropped(where, f"longer than {MAX_LINE // MIB} MiB"))
        elif line.strip():
            try:
                yield where, read_json(line.decode("utf-8-sig" if number == 1 else "utf-8"), where, report)
            except (ValueError, RecursionError) as error:
                report(Dropped(where, not_json(error)))


def skip_line(stream: BinaryIO, line: bytes, most: int | None) -> int:
    """Read on to the end of an overlong line, or until more than `most` bytes were read; returns their number."""
    skipped = 0
    while line and not line.endswith(b"\n") and (most is None or skipped <= most):
        line = stream.readline(MIB)
        skipped += len(line)
    return skipped


def read_json(text: str, where: str, report: Report) -> Any:
    """The value of a JSON text; a key that stands twice in one object loses its first value, which is reported."""
    twice: list[str] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice.append(next(key for key in keys if keys.count(key) > 1))
        return found

    value = json.loads(text, object_pairs_hook=keep)
    if twice:
        report(Dropped(where, f"key {twice[0]!r} stands twice in one object; the last value was kept", lost=False))
    return value


def read_document(stream: BinaryIO, name: str, size: int | None, limit: int, report: Report) -> Any:
    """One whole JSON text."""
    data = b"" if size is not None and size > limit else stream.read(limit + 1)
    if not data or len(data) > limit:
        raise CorpusError(
            f"{name}: one JSON document of more than {limit // MIB} MiB; "
            "write it as JSONL (one object a line), which is read as a stream"
        )
    try:
        return read_json(data.decode("utf-8-sig"), name, report)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{name}: {not_json(error)}") from None


def not_json(error: Exception) -> str:
    """Say in plain words why a text is not JSON."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte 0x{error.object[error.start]:02x} at offset {error.start})"
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        at = f"{error.msg} at line {error.lineno}, column {error.colno}"
        if PYTHON.match(error.doc, error.pos) and error.doc[: error.pos].rstrip().endswith(("{", "[", ",", ":")):
            return f"looks like Python, not JSON; write it with json.dumps ({at})"
        return f"not valid JSON, {'it looks cut short' if cut else 'broken'} ({at})"
    return f"not valid JSON ({error})"


def split_document(root: Any, name: str) -> Iterator[Record]:
    """A list of records, such lists keyed by split, records keyed by number (ESC-Eval), one chat, or one record."""
    if isinstance(root, list) and not is_message(root[0] if root else None):
        numbered = list(enumerate(root, start=1))
    elif isinstance(root, dict) and root and root.keys() <= SPLITS and all(isinstance(v, list) for v in root.values()):
        numbered = [(f"{number} of {key!r}", r) for key, v in root.items() for number, r in enumerate(v, start=1)]
    elif isinstance(root, dict) and root and all(key.isdecimal() for key in root):
        numbered = [(key, {"id": key, **(v if isinstance(v, dict) else {"dialogue": v})}) for key, v in root.items()]
    elif isinstance(root, list | dict):
        numbered = [(1, root)]
    else:
        raise CorpusError(f"{name}: holds a JSON {type(root).__name__}; expected a list or an object of dialogues")
    if not numbered:
        raise CorpusError(f"{name}: holds an empty list")
    for number, record in numbered:
        yield f"{name}, record {number}", record


def is_message(value: Any) -> bool:
    """Whether this is one message of a chat, so that the list around it is one dialogue."""
    return isinstance(value, dict) and ({"role", "content"} <= value.keys() or {"from", "value"} <= value.keys())


def parquet_records(stream: BinaryIO, name: str, limit: int) -> Iterator[Record]:
    """The rows of a parquet file, a few hundred in memory at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CorpusError(f"{name}: is parquet, which needs pyarrow: pip install pyarrow") from None
    if not isinstance(stream, io.BufferedReader):  # an archive: parquet is read from its end, so unpack it in memory
        stream = io.BytesIO(stream.read(limit + 1))
        if stream.getbuffer().nbytes > limit:
            raise CorpusError(f"{name}: unpacks to more than {limit // MIB} MiB; unpack it to a file first")
    try:
        file = pyarrow.parquet.ParquetFile(stream)
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        unpacked = sum(group.total_byte_size for group in groups)
        if unpacked > max(FREE, RATIO * stream.seek(0, io.SEEK_END)):
            raise CorpusError(f"{name}: would unpack to {unpacked // MIB} MiB, a compression bomb; refused")
        batches = file.iter_batches(batch_size=256)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise CorpusError(f"{name}: damaged parquet ({str(error).splitlines()[0]}); fetch it again") from None
