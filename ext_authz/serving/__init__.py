"""The gRPC edge: bytes in, bytes out."""
