"""Agents that stream heartbeats, over gRPC and NATS."""
