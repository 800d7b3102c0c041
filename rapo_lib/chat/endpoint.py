"""Any OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp, `transformers serve`, or a hosted one.

Transport retries (408, 409, 429, 5xx, broken connections; Retry-After obeyed) are the SDK's own. The body is read by
us, not by the SDK: endpoints differ in what they leave out, and every size and duration has a bound.
"""

import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from rapo_lib.chat.parsing import portable, sound
from rapo_lib.chat.request import Answer, Ask, Failure
from rapo_lib.runs import RapoError

if TYPE_CHECKING:
    import openai

log = logging.getLogger(__name__)
BODY_LIMIT = 4 * 1024 * 1024  # bytes of one answer; ours
BYTES_A_TOKEN = 3  # ours: an estimate for endpoints that report no usage
LOCAL = ("localhost", "127.0.0.1", "::1")
FINISH = {"length": "length", "max_tokens": "length", "content_filter": "refused", "refusal": "refused"}
KEY_NAME = r"[A-Z][A-Z0-9_]*"
SECRET = re.compile(r"key|secret|password|authori[sz]ation|bearer", re.IGNORECASE)
Structured = Literal["json_schema", "json_object", "none"]
TokenLimit = Literal["max_tokens", "max_completion_tokens"]
MISSING = "the openai package is not installed; install the language-model extra: pip install 'rapo-lib[lm]'"


class TooLong(Exception):
    """A body beyond BODY_LIMIT."""


def check_address(url: str, name: str = "lm_url") -> None:
    """Refuse, without repeating it, an address that is none or that holds a key; "" is no address and passes."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        known = False
    if not known:
        raise RapoError(f"{name} must look like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise RapoError(f"{name} must hold no key: put it into an environment variable and give its name (lm_key)")


def check_key_name(value: str, name: str = "lm_key") -> None:
    """Refuse, without repeating it, what looks like a key where the NAME of its environment variable belongs."""
    if value and not re.fullmatch(KEY_NAME, value):
        raise RapoError(f"{name} takes the NAME of an environment variable, such as OPENAI_API_KEY, not a key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is served and how to ask it. The key itself is in the environment and nowhere else."""

    base_url: str  # usually ends in /v1
    model: str
    revision: str = ""  # of the served weights, where you know it; part of the cache key
    key_variable: str = ""  # NAME of the environment variable that holds the key; "": the endpoint needs none
    in_flight: int = 16  # questions at once
    timeout: float = 120.0  # seconds for one answer, per try
    retries: int = 3  # the SDK's, per question
    structured: Structured = "json_schema"  # what the endpoint can enforce
    token_limit: TokenLimit = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)  # more of the request's body, e.g. chat_template_kwargs

    def __post_init__(self) -> None:
        check_address(self.base_url or "nowhere", "base_url")
        check_key_name(self.key_variable, "key_variable")
        parts = urlsplit(self.base_url)
        self._check_options()
        if self.in_flight < 1 or self.timeout <= 0 or self.retries < 0:
            raise RapoError("endpoint: in_flight must be 1 or more, timeout above 0 and retries 0 or more")
        if self.key_variable and parts.scheme == "http" and parts.hostname not in LOCAL:
            log.warning("the key in %s will travel unencrypted to %s", self.key_variable, parts.hostname)

    def _check_options(self) -> None:
        """Options come from a parameters cell too: a wrong value is the user's to mend."""
        if self.structured not in get_args(Structured) or self.token_limit not in get_args(TokenLimit):
            known = f"{' or '.join(get_args(Structured))}, {' or '.join(get_args(TokenLimit))}"
            raise RapoError(f"endpoint: structured and token_limit must be one of {known}")
        numbers = (self.in_flight, self.timeout, self.retries)
        if not isinstance(self.extra, Mapping) or any(type(n) not in (int, float) for n in numbers):
            raise RapoError("endpoint: extra must be an object, in_flight, timeout and retries numbers")
        if any(SECRET.search(str(name)) for name in self.extra):
            raise RapoError("endpoint: extra must hold no key; name its environment variable (lm_key)")

    @property
    def identity(self) -> dict[str, Any]:
        """Model, revision and whatever else shapes an answer; not where it is served."""
        return {
            "model": self.model,
            "revision": self.revision,
            "structured": self.structured,
            "extra": dict(self.extra),
        }

    def answers(self, asks: Iterable[Ask]) -> Iterator[tuple[Ask, Answer | Failure]]:
        """Every answer as it arrives, `in_flight` questions at a time; a RapoError for what concerns all of them."""
        key = self._key()
        client = self._client(key)
        waiting, arrived, running, fatal = iter(asks), SimpleQueue(), 0, None

        def work(ask: Ask) -> None:
            try:
                arrived.put((ask, _ask(client, self, key, ask)))
            except Exception as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
                arrived.put((ask, error))

        try:
            while True:
                for ask in () if fatal else islice(waiting, self.in_flight - running):
                    Thread(target=work, args=(ask,), daemon=True, name="chat").start()  # Ctrl-C waits for no answer
                    running += 1
                if not running:
                    break
                ask, outcome = arrived.get()
                running -= 1
                if isinstance(outcome, Exception):
                    fatal = fatal or outcome
                else:
                    yield ask, outcome
        finally:
            client.close()
        if fatal:
            raise fatal

    def body(self, ask: Ask) -> dict[str, Any]:
        """The arguments of one chat completion."""
        request = ask.request
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(request.messages),
            "temperature": request.temperature,
            self.token_limit: request.max_tokens,
        }
        if request.temperature > 0:
            body |= {"top_p": request.top_p, "seed": ask.seed}
        if request.schema is not None and self.structured == "json_schema":
            named = {"name": "answer", "strict": True, "schema": portable(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif request.schema is not None and self.structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body | ({"extra_body": dict(self.extra)} if self.extra else {})

    def _key(self) -> str:
        if not self.key_variable:
            return ""
        if not (key := os.environ.get(self.key_variable, "").strip()):
            raise RapoError(f"the environment variable {self.key_variable} is not set; it must hold the endpoint's key")
        return key

    def _client(self, key: str) -> "openai.OpenAI":
        try:
            import openai
        except ImportError as error:
            raise RapoError(MISSING) from error
        return openai.OpenAI(
            api_key=key or "none",
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=self.retries,
            http_client=openai.DefaultHttpxClient(event_hooks={"response": [_bounded(self.timeout)]}),
        )


def _ask(client: "openai.OpenAI", endpoint: Endpoint, key: str, ask: Ask) -> Answer | Failure:
    """One question; transport failures become a Failure, what concerns every question a RapoError."""
    import openai

    def clean(text: Any) -> str:
        text = " ".join(sound(str(text)).split())[:300]
        return text.replace(key, "[key]") if key else text

    try:
        raw = client.chat.completions.with_raw_response.create(**endpoint.body(ask))
        return read_completion(raw.content, raw.headers.get("content-type", ""), ask, key)
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        where = f"the key in {endpoint.key_variable}" if endpoint.key_variable else "a request without a key"
        raise RapoError(f"{endpoint.base_url} refuses {where}: {clean(error.message)}") from None
    except openai.NotFoundError as error:
        raise RapoError(
            f"{endpoint.base_url} does not know the model {endpoint.model!r}, or the address is wrong "
            f"(it usually ends in /v1): {clean(error.message)}"
        ) from None
    except openai.APIStatusError as error:
        if error.code == "insufficient_quota":
            raise RapoError(f"{endpoint.base_url}: the account has no quota left: {clean(error.message)}") from None
        return Failure(f"HTTP {error.status_code}: {clean(error.message)}")
    except openai.APITimeoutError:
        return Failure(f"no answer within {endpoint.timeout:g} s, {endpoint.retries + 1} times")
    except openai.APIConnectionError as error:
        if type(error.__cause__).__name__ == "ConnectError":
            raise RapoError(f"nothing answers at {endpoint.base_url}: {clean(error.__cause__)}") from None
        return Failure(f"the connection broke: {clean(error.__cause__ or error)}")
    except TooLong:
        return Failure(f"an answer of more than {BODY_LIMIT >> 20} MB")


def _bounded(seconds: float) -> Any:
    """A response hook that bounds a body's size and time; the client's own timeout is for each piece of it."""
    import httpx2

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: httpx2.SyncByteStream) -> None:
            self.stream, self.size, self.end = stream, 0, time.monotonic() + seconds

        def __iter__(self) -> Iterator[bytes]:
            for part in self.stream:
                self.size += len(part)
                if self.size > BODY_LIMIT:
                    raise TooLong
                if time.monotonic() > self.end:
                    raise httpx2.ReadTimeout("the body takes too long")
                yield part

        def close(self) -> None:
            self.stream.close()

    def hook(response: httpx2.Response) -> None:
        response.stream = Bounded(response.stream)

    return hook


# ---------------------------------------------------------------------------------------------- reading a body


def read_completion(body: bytes, content_type: str, ask: Ask, key: str = "") -> Answer | Failure:
    """The answer in the body of a chat completion; what makes no sense is a Failure worth asking again."""
    try:
        completion = json.loads(_decoded(body, content_type))
    except (ValueError, LookupError, RecursionError):
        return Failure("the body is not JSON", again=True)
    match completion:
        case {"choices": [{"message": {**message}} as choice, *_]}:
            pass
        case {"error": error}:
            reason = " ".join(sound(str(error)).split())[:300]
            return Failure(f"the endpoint reports {reason.replace(key, '[key]') if key else reason}", again=True)
        case _:
            return Failure("the body holds no choice", again=True)
    finish = FINISH.get(choice.get("finish_reason"), "stop")
    text = _text(message.get("content"))
    if message.get("refusal"):
        text, finish = _text(message["refusal"]), "refused"
    if text is None:
        if finish == "stop":
            return Failure("the answer has no text", again=True)
        text = ""  # cut while reasoning, or filtered
    text = sound(text)
    return _metered(text.replace(key, "[key]") if key else text, finish, completion.get("usage"), ask)


def _decoded(body: bytes, content_type: str) -> str:
    """JSON is UTF-8; where the bytes are not, the charset that the header declares."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        declared = re.search(r"charset=\"?([\w.-]+)", content_type)
        if declared is None:
            raise
        return body.decode(declared[1])


def _text(content: Any) -> str | None:
    """Text, or the text parts of a list of parts; reasoning parts are not said."""
    match content:
        case str():
            return content
        case list():
            return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return None


def _metered(text: str, finish: str, usage: Any, ask: Ask) -> Answer:
    match usage:
        case {"prompt_tokens": int(given), "completion_tokens": int(made)} if given >= 0 and made >= 0:
            return Answer(text, finish, given, made)
    asked = sum(len(m["content"].encode()) for m in ask.request.messages)
    return Answer(text, finish, asked // BYTES_A_TOKEN + 1, len(text.encode()) // BYTES_A_TOKEN + 1, metered=False)
