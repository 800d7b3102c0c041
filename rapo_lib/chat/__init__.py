"""One batched call to a language model: in process, behind an OpenAI-compatible endpoint, or scripted.

    chat = ChatModel(Endpoint(base_url="http://localhost:8000/v1", model="Qwen2.5-7B-Instruct"),
                     cache=ChatCache(path), budget=Budget(requests=10_000))
    replies = chat.complete([ChatRequest(messages=(...,), schema={...})])

`request` is what is asked and answered, `parsing` how an answer is read, `cache` what was paid for once, `budget`
what it costs, `model` the call itself; `endpoint`, `local` and `scripted` are the three kinds of model.
"""

from rapo_lib.chat.budget import Budget, Prices, Usage
from rapo_lib.chat.cache import ChatCache
from rapo_lib.chat.endpoint import Endpoint
from rapo_lib.chat.local import LocalModel
from rapo_lib.chat.model import ChatModel
from rapo_lib.chat.request import Answer, ChatReply, ChatRequest, Failure
from rapo_lib.chat.scripted import Scripted

__all__ = [
    "Answer",
    "Budget",
    "ChatCache",
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "Endpoint",
    "Failure",
    "LocalModel",
    "Prices",
    "Scripted",
    "Usage",
]
