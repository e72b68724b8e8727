"""Run by Triton's own Python: a server with one model whose batches take a fixed time.

Arguments: workspace, HTTP port, gRPC port, metrics port, seconds for a batch, largest batch.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def double(x: np.ndarray, kernel_s: float) -> dict[str, np.ndarray]:
    time.sleep(kernel_s)
    return {"y": x * 2}


def main() -> None:
    workspace, http, grpc, metrics, kernel_s, max_batch = sys.argv[1:]
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(http),
        grpc_address="127.0.0.1",
        grpc_port=int(grpc),
        metrics_address="127.0.0.1",
        metrics_port=int(metrics),
        allow_gpu_metrics=False,
    )
    with Triton(config=config, workspace=workspace) as triton:
        triton.bind(
            model_name="Double",
            infer_func=partial(double, kernel_s=float(kernel_s)),
            inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=int(max_batch),
                batcher=DynamicBatcher(max_queue_delay_microseconds=1000),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main()
