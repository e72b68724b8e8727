"""KServe v2 inference bodies (Triton): JSON tensors, binary tensors, shared memory.

PURE. The unit of cost is a token: one for each element of an integer tensor that can hold token
ids, one for every `PATCH_ELEMENTS` elements of any other numeric tensor (a 16 x 16 pixel patch of
three colours, which vision transformers make one token of), and the UTF-8 size of BYTES tensors as
text. A request without BYTES generates nothing unless it says how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ext_authz.estimation.shapes.document import Document
from ext_authz.estimation.shapes.tally import (
    MAX_CAP_TOKENS,
    MAX_CHOICES,
    MAX_COUNT,
    Tally,
    add_parameters,
    utf8_bytes,
    whole_number,
)

PATCH_ELEMENTS = 768
ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    # Each element is preceded by its length.
    "BYTES": 4,
}
TOKEN_ID_TYPES = frozenset({"INT32", "INT64", "UINT32", "UINT64"})
CAP_TENSORS = frozenset({"max_tokens", "max_new_tokens", "request_output_len"})
# Texts that are objects with caps in them.
PARAMETER_TENSORS = frozenset({"sampling_parameters"})
MAX_PARAMETERS = 64
# The longest a double is usually written in JSON, its comma included.
LONGEST_NUMBER_BYTES = 24
MAX_DIMENSIONS = 32
# Rows of a single number in the bytes that are read are fewer.
MAX_ROWS = 16_384


def infer(document: Document, tally: Tally) -> bool:
    """Price all input tensors. False when one contradicts itself or the size of the body.

    What was counted up to the contradiction stays in `tally`.
    """
    inputs = document.root.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        return False
    add_parameters(document.root.get("parameters"), tally)
    raw_bytes = 0
    generates = False
    for tensor in inputs:
        if not isinstance(tensor, dict):
            return False
        raw = _add_tensor(tensor, document, tally)
        if raw is None:
            return False
        raw_bytes += raw
        generates = generates or tensor.get("datatype") == "BYTES" or name_of(tensor) in CAP_TENSORS
    if tally.cap_tokens is None and not generates and not document.cut:
        tally.cap_tokens = 0
    return document.raw_bytes is None or raw_bytes <= document.raw_bytes


def _add_tensor(tensor: Mapping[str, Any], document: Document, tally: Tally) -> int | None:
    """Count one tensor; the raw bytes it claims after the JSON, or None when it is nonsense."""
    kind = tensor.get("datatype")
    elements = elements_of(tensor.get("shape"))
    if not isinstance(kind, str) or kind not in ELEMENT_BYTES or elements is None:
        return None
    smallest = elements * ELEMENT_BYTES[kind]
    parameters = tensor.get("parameters")
    if not isinstance(parameters, dict):
        parameters = {}
    if "data" in tensor:
        return 0 if _add_json(tensor, elements, document, tally) else None
    if "shared_memory_region" in parameters:
        size = _size(parameters.get("shared_memory_byte_size"))
        if size is None or size < smallest:
            return None
        add_elements(tensor, elements, size, tally)
        return 0
    size = _size(parameters.get("binary_data_size"))
    if size is None or size < smallest or (size > smallest and kind != "BYTES"):
        return None
    add_elements(tensor, elements, size, tally)
    return size


def _add_json(tensor: Mapping[str, Any], elements: int, document: Document, tally: Tally) -> bool:
    """Count a tensor whose data is in the document; False if their number is not the shape's."""
    count, text_bytes = _flatten(tensor["data"])
    if count != elements and not (document.cut and count < elements):
        return False
    if document.cut and tensor.get("datatype") != "BYTES":
        tally.announced_bytes += (elements - count) * LONGEST_NUMBER_BYTES
    add_elements(tensor, elements, text_bytes + 4 * elements, tally)
    if name_of(tensor) in CAP_TENSORS and (largest := _largest(tensor["data"])):
        tally.cap_tokens = max(largest, tally.cap_tokens or 0)
    if name_of(tensor) in PARAMETER_TENSORS:
        for text in _leaves(tensor["data"], MAX_PARAMETERS):
            add_parameters(text, tally)
    return True


def add_elements(tensor: Mapping[str, Any], elements: int, size: int, tally: Tally) -> None:
    """Count `elements` in the unit of their datatype; `size` is their binary size in bytes."""
    kind = tensor["datatype"]
    if kind == "BYTES":
        tally.text_bytes += size - 4 * elements
        batch = tensor["shape"][0] if tensor["shape"] else 1
        tally.prompts = max(tally.prompts, min(batch, MAX_CHOICES))
    elif kind in TOKEN_ID_TYPES:
        tally.token_ids += elements
    else:
        tally.token_ids += -(-elements // PATCH_ELEMENTS)


def name_of(tensor: Mapping[str, Any]) -> str:
    """The name of a tensor in lower case, empty if it has none."""
    name = tensor.get("name")
    return name.lower() if isinstance(name, str) else ""


def _size(value: object) -> int | None:
    """A size in bytes, or None: only integers are sizes here, and only believable ones."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return None


def elements_of(shape: object) -> int | None:
    """How many elements a shape holds, or None if it is no shape or beyond `MAX_COUNT`."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        return None
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            return None
        elements *= size
        if elements > MAX_COUNT:
            return None
    return elements


def _flatten(data: object) -> tuple[int, int]:
    """How many scalars nested lists hold, and the UTF-8 bytes of the strings among them.

    With more than `MAX_ROWS` inner lists the number is one that no shape has.
    """
    count = text_bytes = rows = 0
    stack: list[object] = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            rows += 1
            if rows > MAX_ROWS:
                return MAX_COUNT + 1, 0
            if set(map(type, item)).isdisjoint((str, list)):
                count += len(item)
            else:
                stack.extend(item)
        else:
            count += 1
            if isinstance(item, str):
                text_bytes += utf8_bytes(item)
    return count, text_bytes


def _largest(data: object) -> int:
    """The largest number in nested lists, 0 if there is none."""
    return max((whole_number(item, MAX_CAP_TOKENS) or 0 for item in _leaves(data)), default=0)


def _leaves(data: object, most: int = MAX_COUNT) -> list[object]:
    """What nested lists hold, the first `most` of it."""
    found: list[object] = []
    stack: list[object] = [data]
    while stack and len(found) < most:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(reversed(item))
        else:
            found.append(item)
    return found
