"""A gRPC server that only receives requests, to be started as a process: what gRPC's library does by itself.

``python -m mainspring.experiments.bench.grpc_bare PORT`` answers every ModelInfer with the same short answer,
from `grpc.aio` as the gateway does, and never looks into a request. So what it copies of one is the least
that any server on this library copies. It prints a line once it listens.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import grpc.aio

from mainspring.gateway.grpc.messages import INFERENCE, ModelInferResponse


async def serve(port: int) -> None:
    """Serve on a port of loopback until the process is ended."""
    answer: bytes = ModelInferResponse(raw_output_contents=[b"0000"]).SerializeToString()

    async def infer(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("listening", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
