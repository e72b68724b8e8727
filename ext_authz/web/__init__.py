"""The admin HTTP server."""
