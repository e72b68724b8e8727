"""The gate against what a user would pick instead, inside the same Envoy, on the same arrivals."""
