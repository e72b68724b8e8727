"""Tests with real model servers: downloads of hundreds of megabytes, hence only when asked for."""
