"""Bodies of the OpenAI APIs and of Anthropic's messages, which differ only in field names, and of
what engines add to them.

PURE. A shape reads the fields its API puts before the model and leaves the rest alone.
"""

from __future__ import annotations

from ext_authz.estimation.shapes.content import add_prompts, add_text
from ext_authz.estimation.shapes.document import Document
from ext_authz.estimation.shapes.media import Media, add_loose_media
from ext_authz.estimation.shapes.tally import (
    MAX_CHOICES,
    Tally,
    add_caps,
    add_parameters,
    whole_number,
)

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
# The names engines have for a prompt, and for one that is tokens already.
PROMPT_FIELDS = (
    "text",
    "prompt",
    "inputs",
    "text_input",
    "input_ids",
    "token_ids",
    "prompt_token_ids",
)
PARAMETER_FIELDS = ("sampling_params", "sampling_parameters", "parameters")


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
    add_text(root.get("prompt_embeds"), tally)
    add_caps(root, tally)
    return True


def generation(document: Document, tally: Tally) -> bool:
    """The engines' own `generate`: a prompt or a batch under any of its names, caps beside it or
    among the parameters, which may be one for each prompt. Always understood."""
    root = document.root
    for name in PROMPT_FIELDS:
        if name in root:
            add_prompts(root[name], tally)
    for name in ("input_embeds", "video_data"):
        add_text(root.get(name), tally)
    for name, kind in (("image_data", Media.PICTURE), ("audio_data", Media.SOUND)):
        if name in root:
            add_text(add_loose_media(kind, root[name], tally), tally)
    add_caps(root, tally)
    for name in PARAMETER_FIELDS:
        if name in root:
            add_parameters(root[name], tally)
    return True


def embedding(document: Document, tally: Tally) -> bool:
    """Embeddings and what else reads without writing: the input in all its forms, or messages."""
    root = document.root
    for name in ("input", "inputs", "text", "input_ids"):
        if name in root:
            add_prompts(root[name], tally)
    for name in ("messages", "chat_template", "chat_template_kwargs", "documents"):
        if name in root:
            add_text(root[name], tally)
    if "image_data" in root:
        add_text(add_loose_media(Media.PICTURE, root["image_data"], tally), tally)
    tally.cap_tokens = 0
    return True


def comparison(document: Document, tally: Tally) -> bool:
    """Rerank and score: the query goes before the model once with each text it is compared to."""
    root = document.root
    asked, compared = Tally(), Tally()
    for name in ("query", "queries", "text_1"):
        if name in root:
            add_prompts(root[name], asked)
    for name in ("documents", "texts", "items", "text_2"):
        if name in root:
            add_prompts(root[name], compared)
            if isinstance(root[name], list):
                compared.prompts = max(compared.prompts, len(root[name]))
    # Several are matched one by one, a single one with all there are on the other side.
    pairs = max(asked.prompts, compared.prompts)
    for side in (asked, compared):
        times = -(-pairs // side.prompts)
        tally.text_bytes += times * side.text_bytes
        tally.token_ids += times * side.token_ids
        tally.images += times * side.images
        tally.media_tokens += times * side.media_tokens
    tally.media_bytes += compared.media_bytes + asked.media_bytes
    tally.largest_media_bytes = max(compared.largest_media_bytes, asked.largest_media_bytes)
    tally.items += compared.items + asked.items
    tally.prompts = pairs
    tally.cap_tokens = 0
    return True


def drawing(document: Document, tally: Tally) -> bool:
    """Pictures to be made, each at the price of one to be looked at. False without a prompt."""
    root = document.root
    if "prompt" not in root:
        return False
    add_text(root["prompt"], tally)
    tally.drawn = whole_number(root.get("n"), MAX_CHOICES) or 1
    tally.cap_tokens = 0
    return True
