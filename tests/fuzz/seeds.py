"""One input of each shape for the fuzzer to start from: `python -m tests.fuzz.seeds FOLDER`."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import sys
from pathlib import Path
from typing import Any

from tests.support.inference_messages import frame, request

WAV = b"RIFF\x24\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16) + b"data"
SOUND = {"data": base64.b64encode(WAV).decode(), "format": "wav"}
PICTURE = {"url": "data:image/png;base64,QUJD", "detail": "low"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PARTS = [
    {"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": PICTURE},
    {"type": "input_audio", "input_audio": SOUND},
    {"type": "document", "source": PDF},
    {"type": "document", "source": {"type": "url", "url": "http://a"}},
    {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
]
TENSORS = [
    {"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]},
    {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [[9]]},
    {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ['{"n":2}']},
]
RAW = {"name": "x", "shape": [8, 3], "datatype": "FP32", "parameters": {"binary_data_size": 96}}
DOCUMENTS: list[dict[str, Any]] = [
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": PARTS}]},
    {"prompt": [[1, 2], [3]], "n": 2, "best_of": 3, "max_tokens": 7, "suffix": "x"},
    {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 4, "n": 2}], "image_data": ["Q"]},
    {"input_ids": [1, 2], "audio_data": [SOUND["data"]], "parameters": '{"max_tokens":4}'},
    {"query": "q", "documents": ["a", {"text": "b"}], "text_1": "x", "text_2": ["y"]},
    {"prompt": "cat", "n": 3},
    {"inputs": TENSORS, "parameters": {"max_tokens": 3}},
]
MESSAGES: list[dict[str, Any]] = [
    {
        "model_name": "m",
        "inputs": [
            {
                "name": "x",
                "datatype": "INT32",
                "shape": [2],
                "contents": {"int_contents": [1, 300]},
            },
            {"name": "y", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [0.5]}},
            {
                "name": "t",
                "datatype": "BYTES",
                "shape": [1],
                "contents": {"bytes_contents": [b"a"]},
            },
        ],
        "parameters": [{"key": "max_tokens", "value": {"int64_param": 5}}],
    },
    {
        "inputs": [
            {"name": "t", "datatype": "BYTES", "shape": [1]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1]},
            {"name": "sampling_parameters", "datatype": "BYTES", "shape": [1]},
        ],
        "raw_input_contents": [b"\3\0\0\0abc", b"\5\0\0\0", b'\7\0\0\0{"n":2}'],
    },
    {
        "inputs": [
            {
                "datatype": "INT32",
                "shape": [5],
                "parameters": [
                    {"key": "shared_memory_region", "value": {"string_param": "r"}},
                    {"key": "shared_memory_byte_size", "value": {"int64_param": 20}},
                ],
            }
        ]
    },
]
_PART = b'--b\r\nContent-Disposition: form-data; name="'
FORM = _PART + b'model"\r\n\r\nm\r\n' + _PART + b'n"\r\n\r\n2\r\n' + _PART
FORM += b'file"; filename="a"\r\n\r\n' + WAV + b"\r\n--b--\r\n"


def inputs() -> list[bytes]:
    """Bodies, each followed by what the fuzzer reads from the end: cut, packing, headers, path."""
    made: list[bytes] = []

    def put(body: bytes, paths: range | tuple[int, ...], headers: int, packing: int) -> None:
        made.extend(body + bytes([1, packing, headers, path]) for path in paths)
        made.extend(body + bytes([0, 9, 0, 0, packing, headers, path]) for path in paths[:2])

    for document in DOCUMENTS:
        body = json.dumps(document).encode()
        put(body, range(13), 0, 0)
        put(body, (0, 7, 15), 4, 1)
        put(body, (0, 7, 15), 5, 2)
    put(json.dumps({"inputs": [RAW]}).encode().ljust(40) + bytes(96), (5, 15), 7, 0)
    for message in MESSAGES:
        put(request(**message), (13, 14, 15), 1, 3)
        put(request(**message), (13, 14, 15), 1, 4)
        put(frame(request(**message)) * 2, (14, 13, 15), 1, 0)
    put(FORM, (9, 11, 15), 3, 0)
    put(gzip.compress(FORM)[:-9], (9, 0), 4, 0)
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs()):
        (folder / f"seed-{number}").write_bytes(data)
