"""Bodies of the OpenAI APIs and of Anthropic's messages, which differ only in field names.

PURE. A shape reads the fields its API puts before the model and leaves the rest alone.
"""

from __future__ import annotations

from ext_authz.estimation.shapes.document import Document
from ext_authz.estimation.shapes.tally import Tally, add_caps, add_prompts, add_text

# Fields of a conversation whose content a chat template puts before the model.
CONVERSATION_FIELDS = (
    "messages",
    "system",
    "instructions",
    "input",
    "tools",
    "functions",
    "response_format",
    "documents",
    "chat_template",
    "chat_template_kwargs",
)


def conversation(document: Document, tally: Tally) -> bool:
    """Chat completions, responses and messages. Always understood."""
    root = document.root
    for name in CONVERSATION_FIELDS:
        if name in root:
            add_text(root[name], tally)
    add_caps(root, tally)
    return True


def completion(document: Document, tally: Tally) -> bool:
    """Text completions: `prompt` in all its forms, one output per prompt and choice."""
    root = document.root
    add_prompts(root.get("prompt"), tally)
    add_text(root.get("suffix"), tally)
    add_caps(root, tally)
    return True


def embedding(document: Document, tally: Tally) -> bool:
    """Embeddings: `input` in all its forms, nothing generated."""
    add_prompts(document.root.get("input"), tally)
    tally.cap_tokens = 0
    return True
