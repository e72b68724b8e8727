"""The yardstick: a grpc.aio handler that does nothing, as the product's host would run it."""

from __future__ import annotations

import sys

import grpc
import uvloop

from ext_authz.serving.server import options
from ext_authz.serving.services import AUTHORIZATION
from tests.benchmarks.names import DATA
from tests.support.settings import make_settings


async def serve(port: int, reply: bytes) -> None:
    async def check(_: bytes, __: object) -> bytes:
        return reply

    server = grpc.aio.server(options=options(make_settings().server))
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(AUTHORIZATION, handlers),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


uvloop.run(serve(int(sys.argv[1]), (DATA / "allow.bin").read_bytes()))
